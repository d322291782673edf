"""The numbers by which a collapse of predictions is seen, and the table of them."""

from __future__ import annotations

import math
from pathlib import Path

import fake_study
import numpy as np
import pandas as pd
import pytest

from fedshift.analysis import collapse
from fedshift.analysis.numbers import Names
from fedshift.analysis.predictions import Predictions
from fedshift.core.rng import stream
from fedshift.inferences import COUNT
from fedshift.io.tables import read_table, write_table


def test_spread_is_of_the_mean_and_entropy_is_the_mean() -> None:
    """Of (1, 0) and (0, 1) the mean is even, and each is certain; ln 2 and 0 over ln 2."""
    certain, even = np.array([[1.0, 0.0], [0.0, 1.0]]), np.full((3, 4), 0.25)
    assert (collapse.spread(certain), collapse.entropy(certain)) == (pytest.approx(1), 0)
    assert (collapse.spread(even), collapse.entropy(even)) == (pytest.approx(1), pytest.approx(1))
    p = np.array([[0.9, 0.1], [0.7, 0.3]])
    h = {q: -(q * math.log(q) + (1 - q) * math.log(1 - q)) / math.log(2) for q in (0.9, 0.8, 0.7)}
    assert collapse.spread(p) == pytest.approx(h[0.8])
    assert collapse.entropy(p) == pytest.approx((h[0.9] + h[0.7]) / 2)
    assert collapse.top_share(np.array([2, 0, 2, 2])) == 0.75


@pytest.mark.parametrize(
    ("spread", "source", "share", "classes", "expected"),
    [
        (0.49, 1.0, 0.91, 3, True),
        (0.5, 1.0, 0.91, 3, False),
        (0.49, 1.0, 0.9, 3, False),
        (0.49, 1.0, 0.95, 2, False),
        (0.49, 1.0, 0.96, 2, True),
        (0.1, 0.15, 1.0, 2, False),  # it was as narrow without adaptation
        (0.1, math.nan, 1.0, 2, None),
    ],
)
def test_a_collapse_needs_a_narrow_spread_and_one_class(
    spread: float, source: float, share: float, classes: int, expected: bool | None
) -> None:
    assert collapse.collapsed(spread, source, share, classes) is expected


def test_the_first_batch_ends_twenty_of_one_class() -> None:
    """Thirty batches of 4: both classes in the first 6, then one.

    20 batches that end with batch t hold 2 (26 - t) images of the other class, which is less than 5 % of 80 from 25 on.
    """
    mixed, single = np.tile([0, 1], 12), np.ones(96, dtype=int)
    assert collapse.first_batch(np.concatenate([mixed, single]), 4) == 25
    assert math.isnan(collapse.first_batch(np.concatenate([mixed, single]), 8))  # 15 batches
    assert collapse.first_batch(single, 4) == 20
    assert math.isnan(collapse.first_batch(np.tile([0, 1], 100), 4))


def share_right(run, inference, site, role):  # type: ignore[no-untyped-def]
    return 0.8


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Tent predicts class 1 for every image of every site, and counted; TsmoBN is as source is."""
    root = tmp_path_factory.mktemp("collapse")
    plan, paths = fake_study.build(root, share_right, inferences=["source", "tsmobn", "tent"], seeds=[0])
    for run in plan.runs:
        path = fake_study.predictions_of(plan, paths, run)
        predicted = read_table(path)
        told = {"p0": 0.01, "p1": 0.99, f"{COUNT}seen": 10, f"{COUNT}kept": 4, f"{COUNT}resets": 0}
        for column, value in told.items():
            predicted.loc[predicted["inference"] == "tent", column] = value
        write_table(path, predicted)
    return collapse.table(Names(plan), Predictions(plan, paths))


def test_every_site_has_a_row_for_each_inference_but_the_baseline(table: pd.DataFrame) -> None:
    assert list(table) == collapse.COLUMNS
    assert set(table["inference_id"]) == {"tent", "tsmobn"}
    assert not table.duplicated([*("condition_id", "inference_id"), "role", "site", "run"]).any()


def test_what_source_does_is_the_measure(table: pd.DataFrame) -> None:
    """Source is right for 8 of 10 images of each patient, classes in turn: 5 of 10 are predicted as either class."""
    tent, tsmobn = (table[table["inference_id"] == name] for name in ("tent", "tsmobn"))
    assert set(tent["collapsed"]) == {1}
    assert set(tsmobn["collapsed"]) == {0}
    assert set(tent["top_share"]) == {1.0}
    h = -(0.99 * math.log(0.99) + 0.01 * math.log(0.01)) / math.log(2)
    assert tent["spread"].to_numpy() == pytest.approx(h)
    assert tent["entropy"].to_numpy() == pytest.approx(h)
    assert tsmobn["spread"].to_numpy() == pytest.approx(tsmobn["spread_source"].to_numpy())
    assert set(tsmobn["agreement"]) == {1.0}
    assert set(tent["agreement"]) == {0.5}
    assert set(tent["seen"]) == {10}
    assert set(tent["kept"]) == {4}
    assert tent["asked"].isna().all()
    assert tsmobn[["seen", "kept", "resets"]].isna().all(axis=None)


def test_batches_are_taken_in_the_order_of_the_test(tmp_path: Path) -> None:
    """One image a batch, 60 in all: in the seed's order every second one is of class 1, and all from the 35th on."""
    plan, paths = fake_study.build(
        tmp_path, share_right, inferences=[{"name": "tent", "batch_size": 1, "order": 5}], seeds=[0]
    )
    (key,), run = plan.inferences, next(iter(plan.runs))
    path = paths.predictions(run, key)
    predicted = read_table(path)
    site = plan.runs[run].partition.external[0]
    rows = predicted.index[(predicted["site"] == site) & (predicted["split"] == "test")].to_numpy()
    order = stream(5, "test order").permutation(len(rows))
    predicted["p1"] = 0.0
    predicted.loc[rows[order[::2]], "p1"] = 1.0
    predicted.loc[rows[order[34:]], "p1"] = 1.0
    write_table(path, predicted.assign(p0=1 - predicted["p1"]))
    table = collapse.table(Names(plan), Predictions(plan, paths))
    (first,) = table.loc[(table["site"] == site) & (table["run"] == run), "first_batch"]
    assert len(rows) == 60
    assert first == 34 + 20


def test_without_source_a_collapse_is_not_known(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, lambda *_: 0.8, inferences=[{"name": "tent"}], seeds=[0])
    table = collapse.table(Names(plan), Predictions(plan, paths))
    assert table[["collapsed", "agreement", "spread_source"]].isna().all(axis=None)
    assert table["spread"].notna().all()


def test_a_study_without_test_time_methods_has_no_rows(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, lambda *_: 0.8, inferences=["source"], seeds=[0])
    assert collapse.table(Names(plan), Predictions(plan, paths)).empty
