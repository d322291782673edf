"""The figure of cases: a dot for each patient, sorted by Dice, with those that fail altogether counted."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from xml.etree import ElementTree

import disc_study
import numpy as np
import pandas as pd
import pytest
from fake_study import predictions_of
from invented import made

from fedshift.analysis import study_results
from fedshift.core import registry
from fedshift.data.prepared import Prepared
from fedshift.figures import Results
from fedshift.io.tables import read_table


def given(*rows: tuple[str, str, str, float, bool, bool]) -> Results:
    table = pd.DataFrame(rows, columns=["role", "site", "case", "dice", "missed", "false_alarm"])
    return dataclasses.replace(made(), cases=lambda: table)


def words(svg: str) -> list[str]:
    return ["".join(e.itertext()).strip() for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]


def test_the_mean_stands_beside_what_fails_altogether() -> None:
    """By hand: the mean of 80, 0, 0 and 60 % is 35 %."""
    svg = registry.build("figure", "cases").draw(
        given(
            ("external", "far & <b>", "a", 0.8, False, False),
            ("external", "far & <b>", "b", 0.0, True, False),
            ("external", "far & <b>", "c", 0.0, False, True),
            ("external", "far & <b>", "d", 0.6, False, False),
            ("internal", "home", "e", 0.9, False, False),
        )
    )
    text = " ".join(words(svg))
    assert "far & <b>, external" in text
    for line in ("mean 35.0 %", "missed 1, false alarms 1", "mean 90.0 %", "missed 0, false alarms 0"):
        assert line in words(svg), line
    for name in ("both masks", "missed", "false alarm"):
        assert name in words(svg)
    assert "<b>" not in re.sub("<title>.*?</title>", "", svg)


def test_dots_rise_from_the_worst_case_to_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: list[tuple[str, list[float], list[float]]] = []
    plot = Axes.plot

    def noted(self: Axes, x: pd.Index, y: pd.Series, **look: object) -> object:
        drawn.append((str(look["label"]), [float(v) for v in x], [round(float(v), 6) for v in y]))
        return plot(self, x, y, **look)

    monkeypatch.setattr(Axes, "plot", noted)
    registry.build("figure", "cases").draw(
        given(
            ("external", "far", "a", 0.8, False, False),
            ("external", "far", "b", 0.0, True, False),
            ("external", "far", "c", 0.3, False, False),
        )
    )
    assert drawn == [("both masks", [2, 3], [30, 80]), ("missed", [1], [0]), ("false alarm", [], [])]


def test_without_masks_nothing_is_drawn() -> None:
    assert "Nothing to draw." in registry.build("figure", "cases").draw(made())


def test_a_case_is_a_patient_whose_pixels_are_added_up(tmp_path: Path) -> None:
    """Dice follows from the pixels of predictions.parquet, added up here by patient; two images are one patient."""
    plan, paths = disc_study.finished(tmp_path, figures=["cases"])
    found = study_results.load(plan, paths).for_figures.cases()
    (run,) = plan.runs.values()
    table = read_table(predictions_of(plan, paths, run.id))
    table = table[table["inference"] == "source"]
    samples = Prepared(paths.data(run.data.id)).samples.set_index("sample")
    table = table.assign(patient=samples.loc[table["sample"], "patient"].to_numpy())
    assert list(dict.fromkeys(found["site"])) == ["east", "north", "south"]
    assert found["role"].tolist() == ["external" if site == "east" else "internal" for site in found["site"]]
    for site, cases in found.groupby("site"):
        sums = table[table["site"] == site].groupby("patient")[["tp_disc", "fp_disc", "fn_disc"]].sum()
        tp, fp, fn = sums.to_numpy().T
        seen = tp + fp + fn > 0
        assert sorted(cases["dice"]) == pytest.approx(sorted((2 * tp / (2 * tp + fp + fn))[seen]))
        assert cases["missed"].sum() == ((tp + fn > 0) & (tp + fp == 0)).sum()
        assert cases["false_alarm"].sum() == ((tp + fn == 0) & (fp > 0)).sum()
        assert len(cases) == np.count_nonzero(seen)
    assert "Cases by Dice" in paths.page(plan.name).read_text(encoding="utf-8")
