"""The table of all numbers of a study, numbers.parquet: its rows, its columns, and how numbers are looked up.

The CSV files of a study (`RESULT_TABLES`) are views of its rows, and the page looks its numbers up in it. `Names` is
the only place that translates ids into words for people.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ..io.paths import IDS, INFERENCE
from ..io.tables import read_table
from ..io.text import readable, require_columns, require_unique
from ..study.plan import Plan
from .conditions import ALL, CONDITION, conditions
from .estimates import Estimate
from .predictions import TYPES as OPTIONS
from .predictions import inferences
from .values import NAN, Value

SCHEMA: dict[str, tuple[str, str]] = {
    "quantity": ("str", "what the number is, such as `level`, `loss` or `slope`"),
    "metric": ("str", "name of the metric, in whose unit the number is; empty for calibration"),
    "condition_id inference_id": ("str", "ids of the condition, or of its family for a mean over partitions"),
    "role site": ("str", "`internal` or `external`, and the site; `*` for the mean over the sites of the role"),
    "than_condition_id than_inference_id": ("str", "ids of what the number is a difference from"),
    "partition": ("str", "id of the partition of a control without a network; `*` for the mean over partitions"),
    "column": ("str", "what divides the test images; of a hypothesis, how many of the largest patients are left out"),
    "group": ("str", "the part of the test images, such as the bin; of a hypothesis, its number"),
    "mean std": ("float64", "mean and standard deviation over trainings"),
    "seeds": ("Int64", "trainings"),
    "low high": ("float64", "95% interval over patients and trainings; missing for too few patients"),
    "low_patients high_patients": ("float64", "95% interval over patients alone"),
    "low_trainings high_trainings": ("float64", "95% interval over trainings alone"),
    "n": ("Int64", "test images"),
    "patients rarer": ("Int64", "patients tested, each once; patients of the rarer class of each site"),
    "se": ("float64", "standard error over patients"),
    "p": ("float64", "p of the test that belongs to the quantity"),
    "p_holm family": ("float64", "p adjusted for its family (Holm), and the number of tests of the family"),
    "tested": (
        "boolean",
        "whether a difference is in the family that the study declares or, without one, of all pairs",
    ),
    "same_sign": ("Int64", "trainings whose difference has the sign of the mean"),
    "sign_flip_seeds smallest_seeds": ("float64", "p of the exact test over trainings, and the smallest it can reach"),
    "sites": ("Int64", "sites with a known difference"),
    "sign_flip_sites smallest_sites": ("float64", "p of the exact test over sites, and the smallest it can reach"),
    "chance majority": ("float64", "scores of a guess, and of always giving the commonest class of the site"),
    "published published_std": ("float64", "mean and standard deviation that the paper prints"),
    "probability": ("float64", "mean probability of the images of a bin"),
}
"""The columns of numbers.parquet, with their type and meaning. The text columns (see `Key`) identify a number.

A number is in the unit of its metric; shares are from 0 to 1.
"""
TYPES = {name: dtype for names, (dtype, _) in SCHEMA.items() for name in names.split()}
Row = Mapping[str, Any]
"""A row of numbers.parquet; columns that do not apply may be missing."""
UNBOUNDED = (-math.inf, math.inf)


class Key(NamedTuple):
    """The columns that identify a number in numbers.parquet, empty if they do not apply.

    No two rows have the same key.
    """

    quantity: str
    metric: str = ""
    condition_id: str = ""
    inference_id: str = ""
    role: str = ""
    site: str = ""
    than_condition_id: str = ""
    than_inference_id: str = ""
    partition: str = ""
    column: str = ""
    group: str = ""


def row(
    quantity: str, one: Estimate, ends: tuple[float, float] = UNBOUNDED, difference: bool = False, **more: Any
) -> dict[str, Any]:
    """Return an estimate as a row of numbers.parquet.

    `quantity` names what it is, `ends` are the lowest and highest possible value, at which the intervals are clipped,
    and `difference` is True for a difference of two values. `more` are further columns.
    """
    counts = {"seeds": len(one.values), "patients": one.patients, "rarer": one.rarer}
    se = math.sqrt(one.over_patients.variance) if one.known else NAN
    bounds = one.bounded(ends, difference)._asdict()
    return {"quantity": quantity, "mean": one.mean, "std": one.std, "se": se, **counts, **bounds, **more}


class Numbers:
    """The rows of numbers.parquet, in the order in which they were made, with lookup by key.

    Attributes
    ----------
    frame : the table, with the columns and types of SCHEMA
    """

    def __init__(self, rows: Iterable[Row] | pd.DataFrame) -> None:
        rows = rows if isinstance(rows, pd.DataFrame) else list(rows)
        frame = pd.DataFrame(rows, columns=[*TYPES]).astype(dict.fromkeys(Key._fields, object))
        self.frame = frame.fillna(dict.fromkeys(Key._fields, "")).astype(TYPES)

    @classmethod
    def read(cls, path: Path, remedy: str) -> Numbers:
        """Return the numbers in a file.

        Raises UserError, with this `remedy`, if it is not such a table or has two numbers with one key.
        """
        frame = read_table(path)
        kinds = {name: "text" if dtype == "str" else "anything" for name, dtype in TYPES.items()}
        require_columns(path, frame, kinds, remedy)
        require_unique(path, frame, [*Key._fields], remedy)
        with readable(path, "table", remedy):
            return cls(frame)

    @functools.cached_property
    def _known(self) -> dict[str, dict[Key, Value]]:
        """The numbers by quantity, and then by key."""
        columns = {name: self.frame[name].to_numpy(object, na_value=NAN).tolist() for name in TYPES}
        keys = map(Key, *(columns[name] for name in Key._fields))
        numbers = map(Value, *(columns[name] for name in Value._fields))
        known: dict[str, dict[Key, Value]] = defaultdict(dict)
        for key, number in zip(keys, numbers, strict=True):
            known[key.quantity][key] = number
        return dict(known)

    def known(self, quantity: str, *about: str, **more: str) -> Value | None:
        """Return the number of a quantity with some key, or None if there is none.

        `about` are the columns of `Key` after the quantity, in their order, and `more` columns by name.
        """
        return self._known.get(quantity, {}).get(Key(quantity, *about, **more))

    def find(self, quantity: str, *about: str, **more: str) -> Value:
        """Return the number of a quantity with some key, or an empty value (NaN) if there is none.

        `about` are the columns of `Key` after the quantity, in their order, and `more` columns by name.
        """
        return self.known(quantity, *about, **more) or Value()

    def of(self, *quantities: str) -> dict[Key, Value]:
        """Return all numbers of some quantities, by key."""
        return {key: value for quantity in quantities for key, value in self._known.get(quantity, {}).items()}

    def view(self, *quantities: str) -> pd.DataFrame:
        """Return the rows of some quantities as a table for a CSV file.

        Columns of counts are integers, or floats if a count is missing.
        """
        rows = self.frame[self.frame["quantity"].isin(quantities)].reset_index(drop=True)
        counts = (name for name, dtype in TYPES.items() if dtype == "Int64")
        return rows.astype({name: "float64" if rows[name].isna().any() else "int64" for name in counts})


class Names:
    """The titles of the conditions and inferences of a plan, by id, as columns for tables."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.conditions = conditions(plan)
        self.inferences = inferences(plan)

    def identified(self, scores: pd.DataFrame) -> pd.DataFrame:
        """Return rows of scores.csv with the columns condition_id and inference_id added.

        Rows of runs or inferences that the plan does not have are dropped. The id of the condition follows from the
        run, and the id of the inference from the columns that describe it, which differ between any two inferences of a
        plan.
        """
        ids = {tuple(words[name] for name in INFERENCE): key for key, words in self.inferences.items()}
        runs = {name: run.condition for name, run in self.plan.runs.items()}
        columns = (scores[name].astype(object).where(scores[name].notna(), None) for name in INFERENCE)
        inference = pd.Series([ids.get(words) for words in zip(*columns, strict=True)], scores.index, dtype=object)
        rows = scores.assign(condition_id=scores["run"].map(runs), inference_id=inference)
        return rows.dropna(subset=[*IDS]).reset_index(drop=True)

    def described(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table that has the columns condition_id and inference_id with columns that describe both added."""
        words = {one.id: one.words for one in self.conditions.values()}
        words |= {one.family: one.words | {"held_out": ALL} for one in self.conditions.values()}
        condition = {name: [words[id_][name] for id_ in table["condition_id"]] for name in CONDITION}
        chosen = [self.inferences[id_] for id_ in table["inference_id"]]
        inference = {
            name: pd.array([one[name] for one in chosen], dtype=OPTIONS.get(name, "str")) for name in INFERENCE
        }
        return table.assign(**condition, **inference)

    def table(self, rows: Iterable[Row], columns: list[str]) -> pd.DataFrame:
        """Return rows that have condition_id and inference_id as a table with the wanted `columns`.

        Wanted columns that describe condition and inference are filled in, following the ids.
        """
        given = [name for name in columns if name not in (*CONDITION, *INFERENCE)]
        return self.described(pd.DataFrame(list(rows), columns=given))[columns]
