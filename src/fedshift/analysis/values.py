"""The numbers of a study: the one table of them, numbers.parquet, its values, and how people read these.

The CSV files of a study (`RESULT_TABLES`) are views of its rows, and the page looks its numbers up in it.
`Names` is the one place where ids meet the words that people read: all else in the package is keyed by LEVELS.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ..io.paths import StudyFiles
from ..io.tables import read_table
from ..io.text import inert, readable, require_columns, require_unique, write_text
from ..metrics import Metric
from ..study.plan import Plan
from .conditions import ALL, CONDITION, conditions
from .estimates import Estimate
from .predictions import INFERENCE, inferences
from .predictions import TYPES as OPTIONS

DASH = "–"
NAN = float("nan")
IDS = ["condition_id", "inference_id"]
LEVELS = ["condition_id", "role", "site", "inference_id", "metric"]
"""The columns that identify one number of a study, but for its seed."""
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
"""The columns of the table with type and meaning. The text columns, those of `Key`, name a number.

The unit of a number is that of its metric; shares are from 0 to 1.
"""
TYPES = {name: dtype for names, (dtype, _) in SCHEMA.items() for name in names.split()}
Row = Mapping[str, Any]
"""A row of the table; columns that do not apply may be absent."""
UNBOUNDED = (-math.inf, math.inf)


class Value(NamedTuple):
    """A number of a study with its spread and its intervals: the columns of SCHEMA that are no keys."""

    mean: float = NAN
    std: float = NAN
    seeds: int = 0
    low: float = NAN
    high: float = NAN
    n: int = 0
    published: float = NAN
    published_std: float = NAN
    low_patients: float = NAN
    high_patients: float = NAN
    chance: float = NAN
    majority: float = NAN
    patients: float = NAN
    se: float = NAN
    rarer: float = NAN
    p: float = NAN
    p_holm: float = NAN
    family: float = NAN
    tested: bool = False
    low_trainings: float = NAN
    high_trainings: float = NAN
    same_sign: int = 0
    sign_flip_seeds: float = NAN
    smallest_seeds: float = NAN
    sites: float = NAN
    sign_flip_sites: float = NAN
    smallest_sites: float = NAN
    probability: float = NAN

    @property
    def known(self) -> bool:
        """True where there is a mean."""
        return not math.isnan(self.mean)

    @property
    def sign(self) -> int:
        """The sign of a number whose whole interval is above 0 (1) or below it (-1); 0 where it holds 0, or is missing.

        A difference with the sign 0 may be due to chance.
        """
        return int(self.low > 0) - int(self.high < 0)

    def turned(self) -> Value:
        """Return the value times -1: the difference of B from A, where this is that of A from B."""
        ends = ((f"low{over}", f"high{over}") for over in ("", "_patients", "_trainings"))
        pairs = (*ends, ("mean", "mean"), ("chance", "chance"), ("majority", "majority"))
        # The upper end of the interval of a difference is the lower end of that of its opposite.
        return self._replace(**{new: -getattr(self, old) for pair in pairs for new, old in (pair, pair[::-1])})


class Recovered(NamedTuple):
    """What is recovered of the external loss, or why nothing is, in words for a cell of a table."""

    gain: Value = Value()
    why: str = ""


class Key(NamedTuple):
    """What a number is about; empty where a column of the table does not apply. No two rows agree in it."""

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
    """Return the row of an estimate; `ends` are those of what it can be (see `Estimate.bounded`)."""
    counts = {"seeds": len(one.values), "patients": one.patients, "rarer": one.rarer}
    se = math.sqrt(one.over_patients.variance) if one.known else NAN
    bounds = one.bounded(ends, difference)._asdict()
    return {"quantity": quantity, "mean": one.mean, "std": one.std, "se": se, **counts, **bounds, **more}


class Numbers:
    """The rows of numbers.parquet, in the order in which they were made.

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
        """Return the table in a file. Raises UserError where it is not one, or names a number twice."""
        frame = read_table(path)
        kinds = {name: "text" if dtype == "str" else "anything" for name, dtype in TYPES.items()}
        require_columns(path, frame, kinds, remedy)
        require_unique(path, frame, [*Key._fields], remedy)
        with readable(path, "table", remedy):
            return cls(frame)

    @functools.cached_property
    def _known(self) -> dict[str, dict[Key, Value]]:
        """The numbers of each quantity."""
        columns = {name: self.frame[name].to_numpy(object, na_value=NAN).tolist() for name in TYPES}
        keys = map(Key, *(columns[name] for name in Key._fields))
        numbers = map(Value, *(columns[name] for name in Value._fields))
        known: dict[str, dict[Key, Value]] = defaultdict(dict)
        for key, number in zip(keys, numbers, strict=True):
            known[key.quantity][key] = number
        return dict(known)

    def known(self, quantity: str, *about: str, **more: str) -> Value | None:
        """Return the number with a key (see `Key`); None where it is not there."""
        return self._known.get(quantity, {}).get(Key(quantity, *about, **more))

    def find(self, quantity: str, *about: str, **more: str) -> Value:
        """Return the number with a key (see `Key`); an empty value where it is not there."""
        return self.known(quantity, *about, **more) or Value()

    def of(self, *quantities: str) -> dict[Key, Value]:
        """Return all numbers of some quantities."""
        return {key: value for quantity in quantities for key, value in self._known.get(quantity, {}).items()}

    def view(self, *quantities: str) -> pd.DataFrame:
        """Return the rows of some quantities as CSV files have them: counts are whole unless any of them is missing."""
        rows = self.frame[self.frame["quantity"].isin(quantities)].reset_index(drop=True)
        counts = (name for name, dtype in TYPES.items() if dtype == "Int64")
        return rows.astype({name: "float64" if rows[name].isna().any() else "int64" for name in counts})


class Names:
    """The conditions and inferences of a plan, by id, with the columns that describe them in words."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.conditions = conditions(plan)
        self.inferences = inferences(plan)

    def identified(self, scores: pd.DataFrame) -> pd.DataFrame:
        """Return rows of scores.csv with the columns IDS, without rows of runs or inferences that the plan has not.

        The id of the condition follows from the run. The columns INFERENCE differ between any two inferences of a
        plan (see `predictions.inferences`), so that the id of the inference follows from them.
        """
        ids = {tuple(words[name] for name in INFERENCE): key for key, words in self.inferences.items()}
        runs = {name: run.condition for name, run in self.plan.runs.items()}
        columns = (scores[name].astype(object).where(scores[name].notna(), None) for name in INFERENCE)
        inference = pd.Series([ids.get(words) for words in zip(*columns, strict=True)], scores.index, dtype=object)
        rows = scores.assign(condition_id=scores["run"].map(runs), inference_id=inference)
        return rows.dropna(subset=IDS).reset_index(drop=True)

    def described(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table that has the columns IDS with the columns CONDITION and INFERENCE added."""
        words = {one.id: one.words for one in self.conditions.values()}
        words |= {one.family: one.words | {"held_out": ALL} for one in self.conditions.values()}
        condition = {name: [words[id_][name] for id_ in table["condition_id"]] for name in CONDITION}
        chosen = [self.inferences[id_] for id_ in table["inference_id"]]
        inference = {
            name: pd.array([one[name] for one in chosen], dtype=OPTIONS.get(name, "str")) for name in INFERENCE
        }
        return table.assign(**condition, **inference)

    def table(self, rows: Iterable[Row], columns: list[str]) -> pd.DataFrame:
        """Return the table of rows that have the columns IDS: with some columns, those of words among them."""
        given = [name for name in columns if name not in (*CONDITION, *INFERENCE)]
        return self.described(pd.DataFrame(list(rows), columns=given))[columns]


def number(x: float, metric: Metric, sign: bool = False) -> str:
    """Return a value of a metric: percent with one decimal, or three decimals; a dash where it is not defined."""
    if math.isnan(x):
        return DASH
    text = f"{100 * x:+.1f}" if metric.percent else f"{x:+.3f}"
    if not text.strip("+-0."):  # zero has no sign
        text = text.lstrip("+-")
    if not sign:
        text = text.lstrip("+")
    return text.replace("-", "−")


def spread(value: Value, metric: Metric, sign: bool = False) -> str:
    """Return mean ± standard deviation over seeds, the latter where there is one."""
    mean = number(value.mean, metric, sign)
    if math.isnan(value.std) or not value.known:
        return mean
    return f"{mean}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{number(value.std, metric)}"


def inner(metric: Metric) -> str:
    """Return the title of a metric as it stands inside a sentence."""
    if metric.in_sentence or metric.title.isupper():
        return metric.in_sentence or metric.title
    return metric.title[:1].lower() + metric.title[1:]


def listed(names: list[str]) -> str:
    """Return names as a list in a sentence: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def between(value: Value, metric: Metric, sign: bool = False) -> str:
    """Return the interval of a value, or a dash."""
    if math.isnan(value.low):
        return DASH
    return f"{number(value.low, metric, sign)} to {number(value.high, metric, sign)}"


_MARKDOWN = {c: f"\\{c}" for c in "\\`*_[]<>#|~$&"}

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "\N{NO-BREAK SPACE}": "~",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


@dataclass(frozen=True)
class Table:
    """A table of text cells. The first `heads` columns name what a row is about."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    heads: int = 1

    def csv(self) -> str:
        """Return the table as CSV. A cell that a spreadsheet would run as a formula gets an apostrophe."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([[_inert(c) for c in row] for row in (self.header, *self.rows)])
        return out.getvalue()

    def md(self) -> str:
        """Return the table in Markdown, with its caption below."""
        lines = [self.header, [":--"] * self.heads + ["--:"] * (len(self.header) - self.heads), *self.rows]
        escaped = [line if n == 1 else [_escape(c, _MARKDOWN) for c in line] for n, line in enumerate(lines)]
        return (
            "\n".join("| " + " | ".join(line) + " |" for line in escaped) + f"\n\n{_escape(self.caption, _MARKDOWN)}\n"
        )

    def tex(self) -> str:
        """Return the table in LaTeX, for the package booktabs."""
        align = "l" * self.heads + "r" * (len(self.header) - self.heads)
        lines = [" & ".join(_escape(c, _LATEX) for c in row) + r" \\" for row in (self.header, *self.rows)]
        return "\n".join(
            [
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{_escape(self.caption, _LATEX)}}}",
                rf"  \begin{{tabular}}{{{align}}}",
                r"    \toprule",
                f"    {lines[0]}",
                r"    \midrule",
                *(f"    {line}" for line in lines[1:]),
                r"    \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
                "",
            ]
        )


def _escape(text: str, special: dict[str, str]) -> str:
    return "".join(special.get(c, c) for c in re.sub(r"[\r\n\t]+", " ", text))


def _inert(cell: str) -> str:
    cell = cell.replace("\N{NO-BREAK SPACE}", " ")
    return cell[1:] if cell[:1] == "+" and cell[1:2].isdigit() else inert(cell)


def save(files: StudyFiles, name: str, table: Table) -> None:
    """Write tables/{name}.{csv,md,tex} of a study."""
    for kind in ("csv", "md", "tex"):
        write_text(files.table(name, kind), getattr(table, kind)())
