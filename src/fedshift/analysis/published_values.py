"""Published values and claims beside ours: comparison.csv, its tables, and the outcome for the page and the index."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from .cells import MEAN
from .names import IDS, LEVELS
from .published_words import OVER, SENT, Target, Words
from .quantities import Measure, Values, finite, incomparable
from .study_results import StudyResults
from .values import DASH, Table

COLUMNS = [
    *IDS,
    *("table", "method", "variant", "site", "metric", "condition", "inference", "published", "published_std"),
    *("mean", "std", "seeds", "difference", "combined", "verdict", "reason"),
]
VERDICTS = ("within", "outside", "no spread", "not comparable", "not run")
LEVEL = 0.95
ADAPTED = "ours is adapted to labelled validation images of the site"
MEANING = (
    "A difference is ours minus the published value. It is “within” where the choice of seeds may explain it: where "
    "the 95% interval of the difference of the two means (Welch's t) includes zero, to within half a unit of the last "
    "printed digit. The combined uncertainty (±) is half the width of that interval. It says nothing about other "
    "splits, other data or other code; and of twenty values that agree, one will be outside by chance. Where no "
    "standard deviation was printed, theirs is taken to be as large as ours; where ours has one seed, ours as large as "
    "theirs. Counted quantities, such as traffic, have no spread: there the uncertainty is half a unit of the last "
    "printed digit."
)


def combined(std: float, seeds: int, published_std: float, trainings: int) -> float:
    """Return half the width of the 95% interval of the difference of two means over trainings.

    It is NaN where no spread is known.

    Both stds are of single trainings (n - 1), so that the difference of the means has the variance
    s_o^2 / n_o + s_p^2 / n_p, and Welch-Satterthwaite's degrees of freedom. The 95% interval is stricter than two
    standard deviations of a single training once there are some seeds, and allows for how few they are, which a fixed
    factor does not. A spread that is not known, on one side, is taken from the other, with its degrees of freedom: a
    printed value without std, or a single training of ours.
    """
    from scipy.special import stdtrit

    ours = seeds > 1 and not math.isnan(std)
    theirs = trainings > 1 and not math.isnan(published_std)
    if seeds < 1 or not (ours or theirs):
        return math.nan
    if not ours:
        std = published_std
    if not theirs:
        published_std = std
    our_part = std**2 / seeds
    their_part = published_std**2 / trainings
    variance = our_part + their_part
    if not ours:
        free: float = trainings - 1
    elif not theirs or variance == 0:
        free = seeds - 1
    else:
        free = variance**2 / (our_part**2 / (seeds - 1) + their_part**2 / (trainings - 1))
    return float(stdtrit(free, (1 + LEVEL) / 2)) * math.sqrt(variance)


def table(words: Words, values: Values) -> pd.DataFrame:
    """Return comparison.csv: a row for each published value that the study does not leave out.

    Values of metrics are from 0 to 1 where the metric is a share; those of the ledger in the printed unit. `mean` and
    `std` are over the seeds that are there.
    """
    rows = [_compared(words, values, target) for target in words.targets()]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"seeds": "Int64"})


def _compared(words: Words, values: Values, target: Target) -> dict[str, Any]:
    """Return the row of comparison.csv for one published value."""
    assert words.published is not None
    plan = words.plan
    row = target.row
    cell = target.cell
    scale = target.scale
    place = dict.fromkeys(("condition_id", "inference_id", "condition", "inference"), "")
    if cell:
        place |= {"condition_id": cell.condition.id, "inference_id": cell.inference, "condition": values.title(cell)}
    mean = std = math.nan
    seeds = 0
    limit = 0.0
    reason = words.published.not_comparable or row.misprint
    if target.ledger:
        mean = _traffic(words, values, target)
        if plan.scale == "mini" and plan.study.scales.get("mini"):
            reason = reason or "mini scale"
    else:
        reason = reason or incomparable(values)
        if cell:
            inference = plan.inferences[(cell.networks or (cell.inference,))[0]]
            place["inference"] = inference.labelled({"client": MEAN} if cell.networks else {})
            # Papers do not say by which labels theirs was adapted.
            if inference.uses_labels:
                reason = reason or ADAPTED
            numbers = np.array(list(finite(values.by_seed(cell, target.metric)).values()))
            seeds = len(numbers)
            mean, std = _mean_and_std(numbers)
        limit = combined(std, seeds, row.std * scale, words.published.trainings(row.table))
    limit += row.precision * scale / 2
    difference = mean - row.value * scale
    verdict, reason = _verdict(difference, limit, reason)
    return place | {
        **{name: getattr(row, name) for name in ("table", "method", "variant", "site")},
        "metric": target.metric,
        "published": row.value * scale,
        "published_std": row.std * scale,
        "mean": mean,
        "std": std,
        "seeds": seeds,
        "difference": difference,
        "combined": limit,
        "verdict": verdict,
        "reason": reason,
    }


def _verdict(difference: float, limit: float, reason: str) -> tuple[str, str]:
    """Return one of VERDICTS, and the reason for a verdict that says nothing about the numbers."""
    if math.isnan(difference):
        return "not run", ""
    if reason:
        return "not comparable", reason
    if math.isnan(limit):
        return "no spread", "one seed, and no printed standard deviation"
    # The margin allows for rounding: 0.8 - 0.7 is a little more than 0.1.
    if abs(difference) <= limit + 1e-9:
        return "within", ""
    return "outside", ""


def _mean_and_std(numbers: np.ndarray) -> tuple[float, float]:
    """Return mean and sample standard deviation, each NaN where there are too few numbers."""
    mean = std = math.nan
    if len(numbers):
        mean = float(numbers.mean())
    if len(numbers) > 1:
        std = float(numbers.std(ddof=1))
    return mean, std


def _traffic(words: Words, values: Values, target: Target) -> float:
    """Return a quantity of the ledger, or the share in percent that a condition sends beyond another."""
    assert words.published is not None
    statistics = words.published.statistics
    if not target.cell:
        return math.nan
    if not target.metric.startswith(OVER):
        return values.ledger(target.cell, target.metric, statistics)
    if not target.reference:
        return math.nan
    # The ledger has traffic of an iteration for every condition; its share is what papers print.
    sent = values.ledger(target.cell, SENT, statistics)
    base = values.ledger(target.reference, SENT, statistics)
    return 100 * (sent / base - 1) if base else math.nan


def published(words: Words) -> pd.DataFrame:
    """Return `published` and `published_std` of rows of summary.csv, by LEVELS. The first table that has one counts."""
    printed: dict[tuple[str, ...], tuple[float, float]] = {}
    for target in words.targets():
        if target.cell and not target.ledger:
            value = (target.row.value * target.scale, target.row.std * target.scale)
            printed.setdefault(target.cell.key(target.metric), value)
    index = pd.MultiIndex.from_tuples(list(printed), names=LEVELS)
    return pd.DataFrame([*printed.values()], index, ["published", "published_std"], dtype="float64")


def counts(compared: pd.DataFrame) -> dict[str, int]:
    """Return how many published values got each verdict. A value that two tables print counts once, in the first."""
    cell = [*IDS, "site", "metric"]
    # Values that the study does not run have no ids, and would all look the same.
    compared = compared[~compared.duplicated(cell) | (compared["condition_id"] == "")]
    return {verdict: int((compared["verdict"] == verdict).sum()) for verdict in VERDICTS}


def sentence(compared: pd.DataFrame) -> str:
    """Return a summary of one table: `41 of 56 within the combined uncertainty; largest ... −3.1 (FedBN, dslr)`."""
    count = counts(compared)
    judged = compared[compared["verdict"].isin(["within", "outside"])]
    parts = [f"{count[verdict]} {verdict}" for verdict in VERDICTS[2:] if count[verdict]]
    if len(judged):
        agree = "equal to the printed digits"
        if judged["seeds"].any():  # quantities of the ledger have none
            agree = "within the combined uncertainty"
        parts.insert(0, f"{count['within']} of {len(judged)} {agree}")
        largest = judged.sort_values("difference", key=abs).to_dict("records")[-1]
        place = ", ".join(filter(None, (largest["method"], largest["variant"], largest["site"])))
        difference = _number(largest["difference"], largest["metric"], sign=True)
        parts.append(f"largest difference {difference} ({place})")
    return "; ".join(parts) or "none of it is run"


def tables(compared: pd.DataFrame) -> list[tuple[Table, str]]:
    """Return each published table beside ours, with a sentence that sums it up. Equal columns move to the caption."""
    return [(_short(_table(str(name), part)), sentence(part)) for name, part in compared.groupby("table", sort=False)]


def _short(table: Table) -> Table:
    """Return a table without the columns that are equal in all rows; the caption has their values."""
    caption = [table.caption]
    kept = []
    for n, (name, column) in enumerate(zip(table.header, zip(*table.rows, strict=True), strict=True)):
        if name not in _MAY_GO or len(set(column)) > 1:
            kept.append(n)
        elif column[0] != DASH:
            caption.append(f"{name.lower()} {column[0]}")
    header, *rows = (tuple(row[n] for n in kept) for row in (table.header, *table.rows))
    heads = table.heads - (len(table.header) - len(kept))
    return Table("; ".join(caption), header, tuple(rows), heads)


def whole(compared: pd.DataFrame) -> Table:
    """Return all published tables in one, for the files."""
    parts = compared.groupby("table", sort=False)
    rows = [(str(name), *row) for name, part in parts for row in _table(str(name), part).rows]
    return Table("Ours beside the published values. " + MEANING, ("Table", *_HEADER), tuple(rows), 7)


_HEADER = (
    *("Method", "Variant", "Site", "Metric", "Ours", "Inference", "Mean ± std", "Seeds", "Published ± std"),
    *("Difference", "±", "Verdict"),
)
_MAY_GO = ("Variant", "Metric", "Inference")


def _table(name: str, part: pd.DataFrame) -> Table:
    return Table(name, _HEADER, tuple(_cells(row) for row in part.to_dict("records")), 6)


def _cells(row: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return the cells of _HEADER for a row of comparison.csv."""
    metric, verdict = row["metric"], row["verdict"]
    if row["reason"]:
        verdict += f" ({row['reason']})"
    return (
        *(row["method"], row["variant"] or DASH, row["site"], metric.replace("_", " ")),
        *(row["condition"] or DASH, row["inference"] or DASH),
        *(_spread(row["mean"], row["std"], metric), str(row["seeds"] or DASH)),
        _spread(row["published"], row["published_std"], metric),
        *(_number(row["difference"], metric, sign=True), _number(row["combined"], metric), verdict),
    )


def _number(value: float, metric: str, sign: bool = False) -> str:
    """Return a value of a metric with one digit more than usual, as papers print; of the ledger with four decimals."""
    if math.isnan(value):
        return DASH
    text = f"{value:+.4f}"
    if registry.find("metric", metric) and Measure.of(metric).percent:
        text = f"{100 * value:+.2f}"
    if not sign:
        text = text.removeprefix("+")
    return text.replace("-", "−")


def _spread(mean: float, std: float, metric: str) -> str:
    if math.isnan(std):
        return _number(mean, metric)
    return f"{_number(mean, metric)}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{_number(std, metric)}"


@dataclass(frozen=True)
class Claim:
    """A trend in words. `held` is yes, no, cannot tell or not run; `doubt` says what weakens it."""

    claim: str
    held: str
    sentence: str
    doubt: str


@dataclass(frozen=True)
class Reproduction:
    """comparison.csv and trends.csv of a study. `reason` says why the trends do not count, if so."""

    compared: pd.DataFrame
    claims: list[Claim]
    reason: str

    @classmethod
    def of(cls, results: StudyResults) -> Reproduction:
        """Return the reproduction of a study. It is empty where the study names nothing published."""
        rows = [{str(k): v for k, v in row.items()} for row in results.table("trends").to_dict("records")]
        claims = [Claim(*(str(row[name]) for name in Claim.__dataclass_fields__)) for row in rows]
        reason = next((str(row["reason"]) for row in rows if row["reason"]), "")
        return cls(results.table("comparison"), claims, reason)

    @functools.cached_property
    def tables(self) -> list[tuple[Table, str]]:
        """A table for each published one, with the sentence above it."""
        return tables(self.compared)

    @property
    def held(self) -> int:
        """The number of trends that hold."""
        return sum(claim.held == "yes" for claim in self.claims)

    @property
    def judged(self) -> int:
        """The number of trends that were run."""
        return sum(claim.held != "not run" for claim in self.claims)

    def headline(self) -> dict[str, Any]:
        """Return the part of headline.json that is about the papers."""
        return {
            "trends": {"held": self.held, "judged": self.judged, "of": len(self.claims), "reason": self.reason},
            "published": counts(self.compared),
        }
