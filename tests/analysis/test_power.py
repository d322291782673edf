"""What a study can show is told beforehand: against the simulation, textbook formulas, and in words."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import binom, nct, norm, t

from fedshift.analysis import power
from fedshift.analysis.power import Design, Site
from fedshift.cli import parser
from fedshift.core import registry
from fedshift.study import plan as study

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import simulated

sys.path.pop()
STUDIES = 40
APPROXIMATE = 0.1
"""Assumed are the effects of patients and trainings, which are others in the simulation: `about` is 10 points."""


def design(
    metric: str, inside: int, outside: int, seeds: int = 3, images: int = 3, sites: tuple[int, int] = (3, 2)
) -> Design:
    """Return a study of hospitals of so many tested patients, half of them with a disease."""
    roles = [("internal", f"in{k}", inside) for k in range(sites[0])]
    roles += [("external", f"out{k}", outside) for k in range(sites[1])]
    tested = tuple(Site(role, site, n, (n // 2, n // 2)) for role, site, n in roles)
    return Design(registry.build("metric", metric), (tested,), images, 0, seeds, 0.05, metric != "auc")


def apart(metric: str, level: float) -> float:
    """Return the distance of the classes at which the simulation's truth is a level, by halving."""
    low, high = 0.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if simulated.Hospital("a", 1, middle).truth(metric) < level else (low, middle)
    return low


def said(metric: str, inside: int, outside: int, lost: float) -> dict[str, float]:
    """Return how often simulated studies of which so much is truly lost say each word."""
    home, away = apart(metric, power.HOME), apart(metric, power.HOME - lost)
    trial = simulated.Trial(
        [simulated.Hospital(f"in{k}", inside, home) for k in range(3)],
        [simulated.Hospital(f"out{k}", outside, away) for k in range(2)],
        metric,
        3,
    )
    return trial.said(STUDIES, seed=1)


def about(share: float, expected: float) -> bool:
    """Whether a share of STUDIES is what 998 in 1000 such draws give of a probability about as large as expected."""
    low, high = (min(max(expected + step, 0), 1) for step in (-APPROXIMATE, APPROXIMATE))
    return bool(binom.ppf(0.001, STUDIES, low) <= round(STUDIES * share) <= binom.ppf(0.999, STUDIES, high))


@pytest.mark.parametrize(("metric", "inside", "outside"), [("accuracy", 60, 60), ("auc", 100, 100)])
def test_the_loss_that_it_says_is_called_loses_as_often(metric: str, inside: int, outside: int) -> None:
    one = design(metric, inside, outside)
    lost = one.smallest()
    assert one.shown(lost) == pytest.approx(power.OFTEN, abs=0.005)
    assert about(said(metric, inside, outside, lost)["loses"], power.OFTEN)
    seldom = said(metric, inside, outside, lost / 2)["loses"]
    assert about(seldom, one.shown(lost / 2))
    assert not about(seldom, power.OFTEN), "the comparison with the simulation can fail"


@pytest.mark.parametrize("patients", [60, 200])
def test_holds_up_is_said_as_often_where_nothing_is_lost(patients: int) -> None:
    one = design("accuracy", patients, patients)
    assert about(said("accuracy", patients, patients, 0.0)["holds up"], one.holds())
    assert (one.holds() >= power.OFTEN) == (patients == 200)


def test_many_patients_with_one_image_and_one_training_have_the_textbook_power() -> None:
    """Of two shares p and q with n patients each: z = d / sqrt(p (1 - p) / n + q (1 - q) / n)."""
    n, lost = 4000, 0.02
    one = design("accuracy", n, n, seeds=1, images=1, sites=(1, 1))
    p, q = power.HOME, power.HOME - lost
    z = lost / math.sqrt((p * (1 - p) + q * (1 - q)) / n)
    assert one.shown(lost) == pytest.approx(norm.cdf(z - norm.ppf(0.975)), abs=0.01)
    assert one.shown(0.0) == pytest.approx(0.025, abs=0.002)


def test_more_trainings_and_more_patients_show_smaller_losses() -> None:
    numbers = [design("accuracy", n, n, seeds).smallest() for n, seeds in ((20, 3), (80, 3), (320, 3), (320, 5))]
    assert numbers == sorted(numbers, reverse=True)
    # four times the patients halve the error, where nothing else matters
    single = [design("accuracy", n, n, 1, 1).smallest() for n in (400, 1600)]
    assert single[0] / single[1] == pytest.approx(2, rel=0.05)


def test_two_trainings_cannot_hold_up_whatever_the_patients() -> None:
    """With infinite patients the error is TRAININGS / sqrt(2), with one degree of freedom: t is 12.7."""
    error = power.TRAININGS / math.sqrt(2)
    ideal = 1 - nct.cdf(t.ppf(0.975, 1), 1, 0.05 / error)
    assert ideal < power.OFTEN
    assert math.isnan(design("accuracy", 100, 100, seeds=2).factor)
    assert not math.isnan(design("accuracy", 100, 100, seeds=3).factor)


def test_the_patients_that_it_asks_for_are_enough() -> None:
    one = design("accuracy", 30, 20)
    assert one.holds() < power.OFTEN
    assert one.holds(one.factor) == pytest.approx(power.OFTEN, abs=0.01)
    wanted = one.patients("external", one.factor)
    assert wanted == pytest.approx(40 * one.factor, rel=0.05)


def test_the_rarer_class_counts() -> None:
    """An AUC with 10 of 200 patients shows less than one with 100 of 200, and with 4 of them there is none."""
    one = design("auc", 200, 200)
    few, none = (
        replace(
            one,
            partitions=tuple(tuple(site._replace(by_class=(200 - k, k)) for site in sites) for sites in one.partitions),
        )
        for k in (10, 4)
    )
    assert few.smallest() > 1.5 * one.smallest()
    assert math.isnan(none.smallest()) and none.shown(0.3) == 0


# ---- the table of images


STUDY: dict[str, Any] = {
    "title": "Own",
    "partition": {"internal": ["a", "b"], "external": ["c"], "split": {"train": 0.5, "val": 0, "test": 0.5}},
    "model": {"name": "mlp", "hidden": 4},
    "training": {"rounds": 1, "batch_size": 4, "select": "last"},
    "runs": [{"algorithm": "fedavg"}],
    "seeds": [0, 1, 2],
    "inferences": ["source"],
}


def table(patients: dict[str, int], images: int = 2) -> pd.DataFrame:
    """Return the samples of a table of own images: every second patient is sick."""
    rows = [
        (f"{site}{k}-{i}.png", k % 2, site, f"{site}{k}")
        for site, number in patients.items()
        for k in range(number)
        for i in range(images)
    ]
    return pd.DataFrame(rows, columns=["sample", "label", "site", "patient"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {("internal", "a", 20), ("internal", "b", 30), ("external", "c", 30)}),
        (
            {"partition": {"internal": ["a", "b"], "external": ["c"], "split": {"folds": 5}}},
            {("internal", "a", 40), ("internal", "b", 60), ("external", "c", 30)},
        ),
        (
            {"partition": {"internal": ["a", "b", "c"], "leave_one_out": True, "split": STUDY["partition"]["split"]}},
            None,
        ),
        ({"partition": {"internal": ["a", "b", "c"]}}, set()),
        ({"headline": "brier"}, set()),
        ({"runs": [{"algorithm": "local"}]}, set()),
    ],
)
def test_the_tested_patients_of_a_table(
    tmp_path: Path, changes: dict[str, Any], expected: set[tuple[str, str, int]] | None
) -> None:
    samples = table({"a": 40, "b": 60, "c": 30})
    dataset = {"name": "own_images", "table": "t.csv", "classes": ["healthy", "sick"], "size": 8}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(STUDY | {"dataset": dataset} | changes), encoding="utf-8")
    plan = study.load(path, "paper")
    (key,) = plan.data
    found = power.design(plan, samples, key)
    if expected == set():
        assert found is None
    elif expected is None:
        assert found is not None and len(found.partitions) == 3
        assert all({site.role for site in sites} == {"internal", "external"} for sites in found.partitions)
        assert found.patients("external") == 130
    else:
        assert found is not None and found.images == 2 and found.seeds == 3
        assert {site[:3] for site in found.partitions[0]} == expected
        assert all(sum(site.by_class) == site.patients for site in found.partitions[0])


def test_check_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    samples = table({"a": 40, "b": 60, "c": 30})
    for name in samples["sample"]:
        Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(tmp_path / name)
    samples.rename(columns={"sample": "path"}).to_csv(tmp_path / "t.csv", index=False)
    dataset = {"name": "own_images", "table": "t.csv", "classes": ["healthy", "sick"], "size": 8}
    declared = STUDY | {"dataset": dataset, "conformal": {"alpha": 0.01}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(declared), encoding="utf-8")
    assert parser.main(["check", str(tmp_path / "own.yaml")]) == 0
    out = capsys.readouterr().out
    few = "conformal.alpha: 0.01 needs 99 validation patients, and there are 0: nothing can be promised"
    assert f"  warning: {few}; give val a share\n" in out
    assert "beforehand, with 30 test patients outside, 50 at home, and 3 trainings:" in out
    assert (
        "a loss of accuracy under " in out
        and "out of reach; about " in out
        and "assumed: accuracy 85.0 % at home" in out
    )
