"""The table of numbers: its columns, its rows against algebra, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scored_study import summarised

from fedshift.analysis import estimates, numbers, score, study_results
from fedshift.analysis.estimates import Estimate
from fedshift.analysis.numbers import TYPES, Key, Numbers
from fedshift.analysis.values import Value
from fedshift.core.errors import UserError
from fedshift.io.tables import read_table, write_table


def test_each_column_is_declared_once() -> None:
    """Text names a number, and all else is one."""
    assert [name for name, dtype in TYPES.items() if dtype == "str"] == [*Key._fields]
    assert sorted(name for name, dtype in TYPES.items() if dtype != "str") == sorted(Value._fields)


def test_a_row_has_the_numbers_of_an_estimate() -> None:
    """Two trainings without patients: a mean, its deviation, and no interval."""
    row = numbers.row("level", Estimate(np.array([0.5, 0.7]), (0, 1)), (0.0, 1.0), site="x")
    value = Numbers([row]).find("level", site="x")
    assert (value.mean, value.std, value.seeds) == (pytest.approx(0.6), pytest.approx(0.1 * math.sqrt(2)), 2)
    assert math.isnan(value.low) and math.isnan(value.p)
    assert not Numbers([row]).find("level", site="y").known
    assert Numbers([]).of("level") == {}


def test_a_difference_turned_is_that_of_the_other_from_the_first() -> None:
    left, right = (
        estimates.single(share, np.array(moved), np.arange(6), ("data", "x"))
        for share, moved in ((0.5, [0.1, -0.1, 0.1, -0.1, 0.1, -0.1]), (0.75, [0.1, 0.1, -0.2, 0.1, 0.1, -0.2]))
    )
    rows = [
        numbers.row("difference", estimates.minus(*pair), (0.0, 1.0), True, site=str(n))
        for n, pair in enumerate(((left, right), (right, left)))
    ]
    one, other = (Numbers(rows).find("difference", site=site) for site in "01")
    ends = ("mean", "low", "high", "low_patients", "high_patients")
    assert [getattr(one, name) for name in ends] == pytest.approx([getattr(other.turned(), name) for name in ends])
    assert one.low < one.mean == -0.25 < one.high


def test_tables_are_views_of_the_numbers(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path, figures=[])
    files = paths.study_files(plan.name)
    found = study_results.load(plan, paths).findings.numbers
    for name in ("effects", "comparisons"):
        table = score.read_table(files.result(name))
        keys = [column for column in Key._fields if column in table]
        quantity = {} if "quantity" in keys else {"quantity": "difference"}
        assert len(table)
        for row in table.to_dict("records"):
            value = found.find(**quantity, **{str(key): row[key] for key in keys})
            shown = [row[column] for column in ("mean", "std", "seeds", "low", "high", "low_patients", "patients")]
            assert shown == pytest.approx(
                [value.mean, value.std, value.seeds, value.low, value.high, value.low_patients, value.patients],
                nan_ok=True,
            )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda table: table.drop(columns="site"), "no column 'site'"),
        (lambda table: table.assign(site=1.0), "the column 'site' must hold only text"),
        (lambda table: pd.concat([table, table]), "has two rows of"),
        (lambda table: table.assign(mean="high"), "not a readable table file"),
    ],
)
def test_another_table_is_refused(tmp_path: Path, change, problem: str) -> None:  # type: ignore[no-untyped-def]
    plan, paths = summarised(tmp_path, figures=[])
    file = paths.study_files(plan.name).numbers
    write_table(file, change(read_table(file)))
    with pytest.raises(UserError, match=problem):
        study_results.load(plan, paths).findings  # noqa: B018 - it is read when it is first asked for
