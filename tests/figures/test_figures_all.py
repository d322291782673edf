"""Tests for every figure of runs, and invented results that the tests of single figures share."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import fake_study
import numpy as np
import pandas as pd
import pytest
from invented import made, moment, row, tsmobn

from fedshift.analysis import score, study_results
from fedshift.core import registry
from fedshift.figures import Results, _canvas, _series
from fedshift.page import summary
from fedshift.page.html import PageTable
from fedshift.page.study_report import StudyReport

OF_RUNS = ["convergence_by_traffic", "loss_by_site", "methods", "sweep", "test_curves", "test_time"]
NAMES = [*OF_RUNS, "convergence_rates", "gradient_deviation", "ntk", "toy"]
NASTY = '<b>"&$x</b>'


def nasty() -> Results:
    """Something for every figure of runs, with names that are markup, and one seed."""
    scores = [row(NASTY, NASTY, 0.8), row(NASTY, f"{NASTY}2", 0.6, "external")]
    scores += [row(NASTY, f"{NASTY}2", 0.7, "external", **tsmobn(batch_size=b)) for b in (2, 32)]
    scores += [row("other", NASTY, 0.7)]
    rounds = [moment(r, NASTY, "train", 1 / r, condition=NASTY) for r in (1, 2)]
    rounds += [moment(2, f"{NASTY}2", "test", 0.5, condition=NASTY), moment(2, NASTY, "val", 0.5, condition=NASTY)]
    settings = {
        f"{NASTY}-0": {"algorithm.name": "x", "training.lr": 0.1},
        "other-0": {"algorithm.name": "x", "training.lr": 0.2},
    }
    return made(scores, rounds, settings)


@pytest.mark.parametrize("name", NAMES)
def test_same_bytes_well_formed_and_coloured_by_the_page(name: str) -> None:
    figure, given = registry.build("figure", name), nasty()
    text = figure.draw(given)
    assert figure.draw(given) == text
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert (root[0].text or "").startswith(f"{figure.title}: {figure.caption(given)[:20]}")
    assert "Nothing to draw" not in text
    assert _canvas.INK not in text
    assert "currentColor" in text
    assert "<b>" not in text
    assert "mathdefault" not in text
    assert len(text) < 200_000


@pytest.mark.parametrize("name", OF_RUNS)
def test_nothing_to_draw_is_said_and_no_error(name: str) -> None:
    figure = registry.build("figure", name)
    columns = ["round", "site", "split", "loss", "accuracy", "run", "seed", "condition", "held_out"]
    bare = made()
    empty = made()
    empty.rounds[columns] = None
    for given in (bare, empty):
        assert "Nothing to draw" in figure.draw(given)
        assert figure.caption(given) in ElementTree.fromstring(figure.draw(given))[0].text  # type: ignore[operator]


@pytest.mark.parametrize("name", OF_RUNS)
def test_undefined_values_and_lost_sites_are_no_error(name: str) -> None:
    given = nasty()
    given.scores.loc[0, "value"] = np.nan
    rounds = given.rounds.assign(loss=np.nan, floats_up=np.nan)
    for history in (rounds, given.rounds.drop(columns=["floats_up", "floats_down"])):
        lost = Results(**vars(given) | {"rounds": history, "internal": (), "external": ("never seen",)})
        ElementTree.fromstring(registry.build("figure", name).draw(lost))


def test_a_whole_study_can_draw_them(tmp_path: Path) -> None:
    plan, paths = fake_study.build(
        tmp_path,
        lambda run, inference, site, role: 0.8 + 0.1 * inference.startswith("tsmobn"),
        runs=[{"algorithm": "fedavg", "training": {"local_epochs": e}} for e in (1, 4)],
        inferences=["source", {"name": "tsmobn", "batch_size": [2, 32]}, {"name": "source", "client": "centre0"}],
    )
    score.score(plan, paths)
    loaded = study_results.load(plan, paths)
    summary.summarise(loaded)
    for name in NAMES:
        text = study_results.draw(loaded, name).read_text(encoding="utf-8")
        blank = name in ("test_curves", "methods")
        assert ("Nothing to draw" in text) == blank, "no site is watched, and methods have a table"
        assert fake_study.EVIL not in text
    table = StudyReport(loaded).drawn("methods")
    assert isinstance(table, PageTable) and table.header[: table.heads] == ("Condition", "Inference", "Tensors of")
    assert "the best at each site is in bold" in table.caption
    for cells in table.rows:
        marks = {cell.mark for cell in cells[table.heads :] if cell.text}
        assert marks == ({"best"} if "TsmoBN" in cells[1].text else {""})
    found = loaded.for_figures
    assert {"floats_down", "floats_up"} <= set(found.rounds)
    clients = {_series.client_of(i, found.internal) for i in found.scores["inference"]}
    assert clients == {None, "centre0"}


def test_the_default_is_the_middle_of_a_sweep_that_has_it() -> None:
    rows = [row("a", "x", 0.5, **tsmobn(batch_size=b, momentum=0.0)) for b in (2, 8, 32, 128)]
    rows += [row("a", "x", 0.5, **tsmobn(momentum=m)) for m in (0.0, 0.5, 0.9)]
    assert _series.centres(made(rows).scores) == {"tsmobn": "TsmoBN [0.9, 32, 0]"}


@pytest.mark.parametrize("conditions", ["a", "ab"])
def test_a_legend_of_many_inferences_stays_inside_the_figure_of_sites(conditions: str) -> None:
    """A letter counts as five points, about what 9 px take."""
    rows = [
        row(c, "x", 0.5, inference="tsmobn", shown=f"TsmoBN (momentum 0.0, batch_size {b}, order 0, affine True)")
        for c in conditions
        for b in (2, 4, 8, 16, 32)
    ]
    root = ElementTree.fromstring(registry.build("figure", "sites").draw(made(rows)))
    width = float((root.get("viewBox") or "").split()[2])
    places = [t for t in root.iter() if t.tag.endswith("text") and "affine" in "".join(t.itertext())]
    assert len(places) == 5
    for place in places:
        x = float(place.get("x") or "nan")
        assert x + 5 * len("".join(place.itertext())) < width


def test_long_names_that_begin_alike_are_told_apart_in_a_legend() -> None:
    """Of 100 characters a line holds 90, and of 300 the legend shows the beginning and the end."""
    for length in (100, 300):
        names = [f"{'TsmoBN, ' * length}"[:length] + f"momentum {m}" for m in (0.1, 0.9)]
        rows = [row("a", "x", 0.5, inference="tsmobn", shown=name) for name in names]
        root = ElementTree.fromstring(registry.build("figure", "sites").draw(made(rows)))
        lines = ["".join(t.itertext()).strip() for t in root.iter() if t.tag.endswith("text")]
        assert sum(line.endswith("momentum 0.1") for line in lines) == 1
        assert sum(line.endswith("momentum 0.9") for line in lines) == 1
        assert max(map(len, lines)) <= 90
        assert any("…" in line for line in lines) is (length == 300)


def test_in_doubt_the_middle_is_the_default_and_then_the_first() -> None:
    rows = [row("a", "x", 0.5, **tsmobn(batch_size=b)) for b in (2, 32, 512)]
    assert _series.centres(made(rows).scores) == {"tsmobn": "TsmoBN [0.9, 32, 0]"}
    rows = [row("a", "x", 0.5, **tsmobn(batch_size=b)) for b in (2, 512)]
    assert _series.centres(made(rows).scores) == {"tsmobn": "TsmoBN [0.9, 2, 0]"}


@pytest.mark.parametrize(
    ("inference", "client"),
    [
        ("source", None),
        ("source(client=a)", "a"),
        ("source(client=a b)", "a b"),
        ("source(client=a, b)", "a, b"),
        ("tsmobn(affine=False, client=a)", "a"),
        ("tsmobn(client=a, var_center=batch)", "a"),
        ("source(client=unknown)", None),
    ],
)
def test_whose_tensors_an_inference_tests(inference: str, client: str | None) -> None:
    assert _series.client_of(inference, ["a", "a b", "a, b"]) == client


def test_a_mean_over_sites_counts_each_once_and_a_mean_over_seeds_each_seed() -> None:
    rows = [row("a", "x", 0.2, n=1), row("a", "y", 0.6), row("a", "x", 0.4, seed=1), row("a", "y", 1.0, seed=1)]
    values = _series.mean_and_std(_series.over_sites(made(rows).scores, ["condition"]))
    assert values["a"] == pytest.approx((0.55, 0.15 * 2**0.5)), "means of seeds are 0.4 and 0.7"


def test_a_shared_part_ends_with_the_first_run_to_stop() -> None:
    runs = pd.DataFrame({"a": [1.0, 2, 3, 4], "b": [5.0, np.nan, 7, np.nan]}, index=[1, 2, 3, 4])
    assert list(_series.shared_part(runs).index) == [1, 2, 3]
    assert list(_series.shared_part(runs.loc[[2, 3]]).mean(axis=1)) == [2, 5]


def test_partitions_are_told_apart_unless_they_complement_one_another() -> None:
    rows = [row("a", "x", 0.2, "external", held_out="one"), row("a", "y", 0.6, "external", held_out="two")]
    rows += [row("a", "z", 0.1, held_out=h) for h in ("one", "two")]
    assert set(_series.apart(made(rows).scores)["condition"]) == {"a"}
    rows += [row("a", "y", 0.2, "external", held_out="one")]
    assert set(_series.apart(made(rows).scores)["condition"]) == {"a, held out one", "a, held out two"}


def test_lines_can_be_told_apart() -> None:
    looks = list(_canvas.styles(map(str, range(24))).values())
    assert all(looks.count(look) == 1 for look in looks)
