"""Many methods in one study: every algorithm and add-on goes through the workflow, from images to the page."""

from __future__ import annotations

import html
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny_project import Project

pytestmark = pytest.mark.slow

SWEEP = {"name": "tsmobn", "momentum": [0, 0.9], "batch_size": 8}
PERSONAL = {"name": "source", "personalise": {"source": "test_excluded", "batch_size": 4}}
STUDY: dict[str, Any] = {
    "title": "Many methods",
    "partition": {"internal": ["A", "B"], "external": ["C"], "split": {"train": 0.5, "val": 0.2, "test": 0.3}},
    "model": {"name": "densenet_small", "growth": 4, "stem": 8},
    "training": {"rounds": 2, "batch_size": 4, "lr": 0.01},
    "runs": [
        {"algorithm": ["fedavg", "fedbn"], "inferences": ["source", SWEEP, "population"]},
        {"algorithm": ["fedprox", "scaffold", "fednova", "fedadam", "moon", "feddc"]},
        {"algorithm": "perfedavg", "inferences": ["source", PERSONAL]},
        {"algorithm": ["fedtan", {"name": "fedtan2", "exchange_rounds": 1}, "fedavg_alg2"]},
        {"algorithm": ["local", "pooled", "silobn"]},
        {"algorithm": "fedavg", "addon": ["jigen", "csd", "randconv"]},
        {"algorithm": "fedavg", "model": {"name": "resnet20", "norm": "group"}, "training": {"local_steps": 1}},
    ],
    "seeds": [0],
    "inferences": ["source"],
    "metrics": ["accuracy"],
    "figures": ["sites"],
}
SITES = {"A": "internal", "B": "internal", "C": "external"}
SOURCE, ADAPTED = "source", "source, adapted"
ALL = {SOURCE, "tsmobn 0.0", "tsmobn 0.9", "population"}
WANTED: dict[tuple[str, ...], set[str]] = {
    ("fedavg", "aggregated", "", "densenet"): ALL,
    ("fedavg", "local", "", ""): ALL,  # FedBN
    ("fedavg", "local_statistics", "", ""): {SOURCE},  # SiloBN
    ("perfedavg", "aggregated", "", ""): {SOURCE, ADAPTED},
    ("local", "local", "", ""): {SOURCE},
    ("fedavg", "aggregated", "", "resnet20"): {SOURCE},
    **{("fedavg", "aggregated", addon, ""): {SOURCE} for addon in ("jigen", "csd", "randconv")},
    **{
        (name, "aggregated", "", ""): {SOURCE}
        for name in (
            *("fedprox", "scaffold", "fednova", "fedadam", "moon", "feddc"),
            *("fedtan", "fedtan2", "fedavg_alg2", "pooled"),
        )
    },
}
"""Inferences by what is trained: algorithm, BN policy, add-on, and the model where others are called the same."""
MARK = "uses labels of the site"


@pytest.fixture(scope="module")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The study, built once."""
    return Project.finished(tmp_path_factory.mktemp("methods") / "a project", **STUDY)


@pytest.fixture(scope="module")
def scores(finished_project: Project) -> pd.DataFrame:
    """scores.csv, with what is trained and the inference in words of this file."""
    table = pd.read_csv(finished_project.root / "results" / "studies" / "tiny" / "scores.csv", keep_default_na=False)
    table["how"] = [
        ADAPTED if "personalise" in inference else f"{inference} {momentum}".split("(")[0].strip()
        for inference, momentum in zip(table["inference"], table["momentum"], strict=True)
    ]
    table["trained"] = [
        (re.split(r"[ (\[]", name)[0], bn, addon, "".join(re.findall("densenet|resnet20", name)))
        for name, bn, addon in table[["algorithm", "bn", "addon"]].itertuples(index=False)
    ]
    return table


def test_there_is_a_score_for_all_that_is_asked_and_nothing_else(scores: pd.DataFrame) -> None:
    """A row for every condition, site and inference; where each client trained alone, none for the external site."""
    found = sorted(scores[["trained", "how", "site", "role"]].itertuples(index=False, name=None))
    assert found == sorted(
        (trained, how, site, role)
        for trained, asked in WANTED.items()
        for how in asked
        for site, role in SITES.items()
        if trained[0] != "local" or role == "internal"
    )


def test_every_score_is_an_accuracy(scores: pd.DataFrame) -> None:
    value = scores["value"].astype(float)
    assert np.isfinite(value).all()
    assert value.between(0, 1).all()
    assert ((value * scores["n"]).round(9) % 1 == 0).all(), "a count of right answers"


def test_images_that_a_model_was_adapted_to_are_not_scored(scores: pd.DataFrame) -> None:
    """Six patients of four images: two are tested of each internal site, all of the external one."""
    plain = scores[scores["how"] != ADAPTED].groupby("site")["n"].unique()
    assert {site: [*n] for site, n in plain.items()} == {"A": [8], "B": [8], "C": [24]}
    adapted = scores[scores["how"] == ADAPTED].set_index("site")["n"]
    assert adapted.to_dict() == {"A": 4, "B": 4, "C": 20}


def test_one_file_holds_every_inference_of_a_run(finished_project: Project) -> None:
    folders = sorted(finished_project.root.glob("results/runs/fedavg-*"))
    files = [file for folder in folders for file in folder.glob("predictions-*.parquet")]
    assert len(files) == len(folders)
    swept = 0
    for file in files:
        table = pd.read_parquet(file).query("split == 'test'")
        if "inference" in table:  # there are several
            table = table[table["inference"].str.startswith("tsmobn-")]
            one, other = [part.sort_values("sample")["p1"].to_numpy() for _, part in table.groupby("inference")]
            assert len(one) == len(other) == 8 + 8 + 24
            assert not np.array_equal(one, other), "24 images in batches of 8 have a history to weigh"
            swept += 1
    assert swept == 2


def test_every_run_went_through_its_rounds(finished_project: Project) -> None:
    specs = finished_project.runs()
    assert len(specs) == len(WANTED) == 19
    for name, spec in specs.items():
        rounds = pd.read_parquet(finished_project.root / "results" / "runs" / name / "rounds.parquet")
        assert set(rounds["round"]) == {1, 2}
        assert np.isfinite(rounds["loss"]).all(), name
        moved = rounds.loc[rounds["split"] == "train", ["floats_down", "floats_up"]].to_numpy()
        alone = spec["algorithm"]["name"] in ("local", "pooled")
        assert not moved.any() if alone else (moved > 0).all(), name


def overview(project: Project) -> list[tuple[str, str]]:
    """Condition and inference of each row of the first table that compares conditions."""
    page = (project.root / "reports" / "tiny.html").read_text(encoding="utf-8")
    compared = page[page.index('id="comparison"') :]
    first = compared[: compared.index("</table>")]
    rows = re.findall(r'<th scope="row">(.*?)</th>\s*<td[^>]*>(.*?)</td>', first, re.DOTALL)
    return [(html.unescape(condition), html.unescape(re.sub("<.*?>", " ", cell))) for condition, cell in rows]


def test_the_page_marks_rows_that_use_labels(finished_project: Project) -> None:
    *rows, control = overview(finished_project)
    assert control[0] == "Control: colour and texture only, no network"
    assert len(rows) == sum(map(len, WANTED.values()))
    assert [condition for condition, inference in rows if MARK in inference] == ["Per-FedAvg, aggregated BN"]
    page = (finished_project.root / "reports" / "tiny.html").read_text(encoding="utf-8")
    care = page[page.index('id="care"') :]
    (said,) = [line for line in re.findall("<li[^>]*>(.*?)</li>", care, re.DOTALL) if MARK in line]
    assert "4 labelled images of the site, which are not scored" in said
    assert "not comparable" in said


def test_the_page_says_that_clients_alone_have_no_model_for_others(finished_project: Project) -> None:
    page = (finished_project.root / "reports" / "tiny.html").read_text(encoding="utf-8")
    assert page.lstrip().startswith("<!doctype html>")
    assert "SingleSet, local BN: each client trains alone" in page
    assert "missing.</strong>" not in page
    assert not [line for line in page.splitlines() if re.search(r">\s*(nan|inf)\s*<", line)]


def test_a_second_call_does_nothing(finished_project: Project) -> None:
    again = finished_project.build()
    assert again.returncode == 0
    assert "Nothing to be done" in again.stdout + again.stderr
    assert finished_project.jobs() == set()


def test_one_version_of_the_code_is_not_taken_for_several(finished_project: Project) -> None:
    page = (finished_project.root / "reports" / "tiny.html").read_text(encoding="utf-8")
    assert "different versions of the training code" not in page
