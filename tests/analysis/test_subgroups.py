"""Scores of groups of test images by further columns of the table, against numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import fake_study
import intervals
import numpy as np
import pandas as pd
import pytest
from outline import Outline
from scipy.stats import t as student
from scored_study import summarised

from fedshift import study
from fedshift.analysis import score, study_results, subgroups
from fedshift.cli.data import inspected
from fedshift.core.errors import UserError
from fedshift.core.registry import build
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table
from fedshift.jobs.prepare import prepare
from fedshift.page import page
from fedshift.study.plan import Plan, Run
from fedshift.study.run import Data

NASTY = "<i>B</i>"


def number(table: pd.DataFrame) -> pd.Series:
    """The number of each sample's patient at its site: 0 to 5."""
    return table["patient"].str.rsplit("/", n=1).str[1].astype(int)


def described(table: pd.DataFrame) -> pd.DataFrame:
    """Four patients of each site are seen by scanner A, two by B; the sex of every second is not stated."""
    patient = number(table)
    scanner = np.where(patient < 4, "A", NASTY)
    return table.assign(scanner=scanner, sex=np.where(patient % 2 == 0, "f", None), role="x")


def predict(table: pd.DataFrame, run: Run, inference: str, right: fake_study.ShareRight) -> pd.DataFrame:
    """By scanner A, even patients are all right and odd ones in six of ten images; by B, half, and none with seed 1."""
    order, patient = table.groupby("patient").cumcount(), number(table)
    share = np.where(patient < 4, np.where(patient % 2, 6, 10), 0 if run.seed else 5)
    p1 = np.where((order < share) == (table["label"] == 1), 0.8, 0.2)
    return table.assign(p1=p1, p0=1 - p1)[["sample", "site", "role", "label", "p0", "p1"]]


def made(root: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Plan, Paths]:
    monkeypatch.setattr(fake_study, "predict", predict)
    settings: dict[str, Any] = {"subgroups": ["scanner", "Sex"], "seeds": [0, 1], "figures": []} | changes
    plan, paths = summarised(root, change=described, **settings)
    return plan, paths


def rows(plan: Plan, paths: Paths) -> pd.DataFrame:
    table = score.read_table(paths.study_files(plan.name).result("subgroups"))
    assert list(table) == subgroups.COLUMNS
    return table[(table["inference"] == "source") & (table["bn"] == "local")].set_index(["column", "group", "role"])


def test_scores_of_groups_over_the_sites_of_a_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight patients, four of 0.6 and four of 1: a variance of 0.2^2 / 7, and 7 degrees of freedom."""
    found = rows(*made(tmp_path, monkeypatch))
    one = found.loc[("scanner", "A", "external")]
    assert (one["n"], one["clusters"], one["seeds"]) == (80, 8, 2)
    assert (one["mean"], one["std"]) == (pytest.approx(0.8), pytest.approx(0))
    assert (one["low"], one["high"]) == pytest.approx(intervals.of_share(0.8, 0.2**2 / 7, 7))


def test_few_patients_have_a_mean_and_no_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows(*made(tmp_path, monkeypatch))
    few = found.loc[("scanner", NASTY, "external")]
    assert (few["n"], few["clusters"]) == (40, 4)
    assert (few["mean"], few["std"]) == (pytest.approx(0.25), pytest.approx(0.5 / math.sqrt(2)))
    assert math.isnan(few["low"])
    assert math.isnan(few["high"])


def test_images_without_a_value_are_a_group_and_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, paths = made(tmp_path, monkeypatch)
    found = rows(plan, paths)
    assert set(found.loc["Sex"].index.get_level_values("group")) == {"f", ""}
    scores = score.read_table(paths.study_files("fake").scores)
    tested = scores[(scores["metric"] == "accuracy") & (scores["run"] == scores["run"].iloc[0])]
    for role in ("internal", "external"):
        wanted = tested[(tested["role"] == role) & (tested["inference"] == "source")]["n"].sum()
        for column in ("scanner", "Sex"):
            assert found.loc[column].xs(role, level="role")["n"].sum() == wanted


def test_without_patients_images_stand_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, paths = made(tmp_path, monkeypatch)
    samples = read_table(paths.data_files(next(iter(plan.data))).samples)
    samples["patient"] = None
    loaded = study_results.load(plan, paths)
    alone = samples.astype({"sample": str, "site": str})
    found = list(subgroups.rows(loaded.names, loaded.predictions, lambda data: alone))
    assert found
    assert [row["patients"] for row in found] == [row["n"] for row in found]


def test_an_auc_has_an_interval_on_the_logit_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are alike far from the AUC on the logit scale, and the interval holds the AUC in its middle."""
    found = rows(*made(tmp_path, monkeypatch, headline="auc"))
    one = found.loc[("scanner", "A", "external")]
    low, middle, high = (math.log(x / (1 - x)) for x in (one["low"], one["mean"], one["high"]))
    assert middle - low == pytest.approx(high - middle)
    variance = ((high - middle) / student.ppf(0.975, 7) * one["mean"] * (1 - one["mean"])) ** 2
    assert 0 < variance < 0.01


def test_the_page_shows_them_as_exploratory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, paths = made(tmp_path, monkeypatch)
    html = page.write(study_results.load(plan, paths)).read_text(encoding="utf-8")
    text = Outline(html).text
    assert "Exploratory." in text
    assert "By scanner" in text
    assert (
        f"{NASTY} external FedAvg, aggregated BN 40 4 25.0 ± 35.4 (too few patients for an interval)"
        in text.replace("\N{NO-BREAK SPACE}", " ")
    )
    low, high = (100 * end for end in intervals.of_share(0.8, 0.2**2 / 7, 7))
    shown = f"A external FedAvg, aggregated BN 80 8 80.0 ± 0.0 ({low:.1f} to {high:.1f})"
    assert shown in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "not stated external" in text
    assert NASTY not in html
    assert " p " not in text[text.index("Exploratory.") : text.index("By scanner")]


def test_a_study_without_subgroups_shows_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, paths = made(tmp_path, monkeypatch, subgroups=[])
    assert score.read_table(paths.study_files("fake").result("subgroups")).empty
    assert "Subgroups" not in page.write(study_results.load(plan, paths)).read_text(encoding="utf-8")


def test_many_groups_are_cut_to_the_largest() -> None:
    group = pd.Series([f"{n:02d}" for n in range(30) for _ in range(1 + (n % 3 == 0))] + [""] * 5)
    assert subgroups.largest(group) == [*(f"{n:02d}" for n in (0, 1, *range(3, 28, 3))), ""]


def test_an_unknown_column_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError) as caught:
        made(tmp_path, monkeypatch, subgroups=["scaner"])
    assert "fake.yaml.subgroups: no column 'scaner' in the data fake_study-" in str(caught.value)
    assert "it has scanner, sex, role" in str(caught.value)


STUDY = """
title: T
dataset: {{ name: own_images, table: {table}, size: 8 }}
partition: {{ internal: [A, B], external: [C], split: {{ train: 0.5, val: 0, test: 0.5 }} }}
model: mlp
training: {{ rounds: 1, batch_size: 2, select: last }}
runs: [{{ algorithm: fedavg }}]
inferences: [source]
subgroups: [{subgroups}]
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    from PIL import Image

    lines = ["path,label,site,patient, Scanner ,sex"]
    for n, site in enumerate("AAAABBBBC"):
        Image.fromarray(np.full((8, 8, 3), n, dtype=np.uint8)).save(tmp_path / f"{n}.png")
        lines.append(f"{n}.png,{n % 2},{site},p{n},00{n},{'f' if n % 2 else ''}")
    (tmp_path / "samples.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "samples.csv"


def test_further_columns_of_own_images_are_kept_as_text(tmp_path: Path, table: Path) -> None:
    data = Data(dataset=build("dataset", {"name": "own_images", "table": str(table), "size": 8}), synthetic=False)
    prepare(data, tmp_path, tmp_path / "out")
    samples = read_table(tmp_path / "out" / "samples.parquet")
    assert list(samples) == ["sample", "site", "label", "patient", "scanner", "sex"]
    assert samples["scanner"].tolist() == [f"00{n}" for n in range(9)]
    assert samples["sex"].fillna("").tolist() == ["", "f"] * 4 + [""]


@pytest.mark.parametrize(
    ("named", "fault"), [("Scanner, sex", ""), ("sexe", "no column 'sexe' in"), ("site", "'site'")]
)
def test_a_check_looks_for_the_columns_before_anything_runs(
    tmp_path: Path, table: Path, named: str, fault: str
) -> None:
    (tmp_path / "mine.yaml").write_text(STUDY.format(table=table, subgroups=named), encoding="utf-8")
    plan = study.load(tmp_path / "mine.yaml", "paper")
    if not fault:
        assert inspected(plan)
        return
    with pytest.raises(UserError) as caught:
        inspected(plan)
    assert fault in str(caught.value)
    assert "it has scanner, sex" in str(caught.value)


def test_subgroups_change_no_run(tmp_path: Path) -> None:
    one, other = (fake_study.plan(tmp_path, subgroups=names) for names in ([], ["scanner"]))
    assert list(one.runs) == list(other.runs)
    assert one.view != other.view
