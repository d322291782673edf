"""Values with standard deviation and interval as text, and tables of text in CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from ..io.paths import StudyFiles
from ..io.text import inert, write_text
from ..metrics import Metric

DASH = "–"
NAN = float("nan")


class Value(NamedTuple):
    """A number of a study with its standard deviation and intervals: the columns of numbers.SCHEMA that are no keys.

    An unknown number has the mean NaN.
    """

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
        """True if the mean is known, that is, not NaN."""
        return not math.isnan(self.mean)

    @property
    def sign(self) -> int:
        """The sign of a value that is surely above zero (1) or below zero (-1), else 0.

        Surely means that the whole interval lies on this side. A value without an interval has the sign 0.
        """
        return int(self.low > 0) - int(self.high < 0)

    def turned(self) -> Value:
        """Return the value times -1, with its intervals: A minus B becomes B minus A."""
        ends = ((f"low{over}", f"high{over}") for over in ("", "_patients", "_trainings"))
        pairs = (*ends, ("mean", "mean"), ("chance", "chance"), ("majority", "majority"))
        # The upper end of the interval of a difference is the lower end of that of its opposite.
        return self._replace(**{new: -getattr(self, old) for pair in pairs for new, old in (pair, pair[::-1])})


class Recovered(NamedTuple):
    """The gain of an inference as what it recovers of the loss at external sites, or a short reason why none."""

    gain: Value = Value()
    why: str = ""


def number(x: float, metric: Metric, sign: bool = False) -> str:
    """Return a value of a metric as text: percent with one decimal, or three decimals; a dash for NaN.

    With `sign`, a positive value has a plus sign.
    """
    if math.isnan(x):
        return DASH
    text = f"{100 * x:+.1f}" if metric.percent else f"{x:+.3f}"
    if not text.strip("+-0."):  # zero has no sign
        text = text.lstrip("+-")
    if not sign:
        text = text.lstrip("+")
    return text.replace("-", "−")


def spread(value: Value, metric: Metric, sign: bool = False) -> str:
    """Return a value as text: mean ± standard deviation over seeds, or the mean alone if the latter is unknown."""
    mean = number(value.mean, metric, sign)
    if math.isnan(value.std) or not value.known:
        return mean
    return f"{mean}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{number(value.std, metric)}"


def inner(metric: Metric) -> str:
    """Return the title of a metric as it is written inside a sentence, mostly in lower case."""
    if metric.in_sentence or metric.title.isupper():
        return metric.in_sentence or metric.title
    return metric.title[:1].lower() + metric.title[1:]


def listed(names: list[str]) -> str:
    """Return names as an enumeration: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def between(value: Value, metric: Metric, sign: bool = False) -> str:
    """Return the interval of a value as text, `71.0 to 74.5`, or a dash without one."""
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
    """A table of text cells with a caption. The first `heads` columns are headings that say what a row is about."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    heads: int = 1

    def csv(self) -> str:
        """Return the table as CSV. A cell that a spreadsheet would run as a formula is prefixed with an apostrophe."""
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
    """Return a text in one line, with each special character replaced by the sequence in `special`."""
    return "".join(special.get(c, c) for c in re.sub(r"[\r\n\t]+", " ", text))


def _inert(cell: str) -> str:
    """Return a cell of text changed so that no spreadsheet runs it as a formula; a number loses its plus sign."""
    cell = cell.replace("\N{NO-BREAK SPACE}", " ")
    return cell[1:] if cell[:1] == "+" and cell[1:2].isdigit() else inert(cell)


def save(files: StudyFiles, name: str, table: Table) -> None:
    """Write a table of a study as tables/{name}.csv, .md and .tex."""
    for kind in ("csv", "md", "tex"):
        write_text(files.table(name, kind), getattr(table, kind)())
