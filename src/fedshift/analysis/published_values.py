"""Published values beside ours by seed: comparison.csv, the tables made of it, and the outcome for the page."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..core.units import FLOAT_BYTES, MIB
from ..io.paths import IDS, LEVELS
from ..io.tables import read_table
from ..metrics import Metric
from ..study.published import RECORDED
from .conditions import MEAN, UNION, Cell, several
from .predictions import Missing
from .published_words import OVER, SENT, Target, Words
from .study_results import StudyResults
from .values import DASH, Table, inner, number

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


NO_LEDGER = ["run", "statistics", "quantity", "value"]


@dataclass(frozen=True)
class Measure:
    """A quantity that is compared with published values.

    Attributes
    ----------
    name, title : its name in tables and its title for people
    higher : True if higher is better
    metric : the metric; None for a quantity without one, such as traffic
    """

    name: str
    title: str
    higher: bool
    metric: Metric | None

    @classmethod
    def of(cls, name: str) -> Measure:
        """Return the measure with this name: a metric, or a quantity recorded during training, such as `traffic`."""
        if name == "validation_accuracy":
            return cls(name, "validation accuracy", RECORDED[name], registry.build("metric", "accuracy"))
        if name in RECORDED:
            title = {"traffic": "traffic in MB"}.get(name, name.replace("_", " "))
            return cls(name, title, RECORDED[name], None)
        metric = registry.build("metric", name)
        return cls(name, inner(metric), metric.higher_is_better, metric)

    @property
    def percent(self) -> bool:
        """True if values are written in percent."""
        return bool(self.metric and self.metric.percent)

    def text(self, value: float, sign: bool = False) -> str:
        """Return a value as text, in percent or with three decimals."""
        if self.metric:
            return number(value, self.metric, sign)
        return f"{value:{'+' if sign else ''}.3f}".replace("-", "−")

    def amount(self, value: float, sign: bool = False) -> str:
        """Return a difference as text, with `points` as unit if the measure is in percent."""
        return self.text(value, sign) + (" points" if self.percent else "")

    def gain(self, value: float, than: float) -> float:
        """Return `value` minus `than`, times -1 if lower is better, so that positive is better."""
        return value - than if self.higher else than - value

    def best(self, values: Iterable[Any], key: Callable[[Any], float] | None = None) -> Any:
        """Return the best of some values by `key`: the largest, or the smallest if lower is better."""
        best: Callable[..., Any] = max if self.higher else min
        return best(values, key=key)


_SERIES = {
    "training_loss": ("averaged", "loss"),
    "step_loss": ("train", "loss"),
    "validation_accuracy": ("val", "accuracy"),
}
"""The values of `split` and the column in the table of rounds that hold a recorded quantity."""


class Values:
    """The values of a study's cells (a condition under an inference at a site), by seed."""

    def __init__(self, results: StudyResults) -> None:
        self.results = results
        self.plan = results.plan
        self._several = several(results.names.conditions.values())
        self._scores: dict[tuple[str, ...], dict[int, float]] = {}
        for *key, seed, value in results.scores[[*LEVELS, "seed", "value"]].itertuples(index=False, name=None):
            self._scores.setdefault(tuple(key), {})[seed] = value

    def title(self, cell: Cell) -> str:
        """Return the title of a cell's condition, with the partition if the study has several."""
        return cell.condition.full_title(self._several)

    def by_seed(self, cell: Cell, quantity: str) -> dict[int, float]:
        """Return a metric, or a quantity recorded during training, of a cell by seed.

        Seeds without a value are left out. A cell is a condition under an inference at a site. A cell with several
        networks has the mean of their scores.
        """
        if cell.networks:
            parts = [self.by_seed(replace(cell, inference=network, networks=()), quantity) for network in cell.networks]
            seeds = [seed for seed in parts[0] if all(seed in part for part in parts)]
            return {seed: float(np.mean([part[seed] for part in parts])) for seed in seeds}
        if cell.site == UNION:
            return self._pooled(cell, quantity)
        if quantity not in RECORDED:
            return self._scores.get(cell.key(quantity), {})
        runs = cell.condition.runs
        values = {run.seed: self._recorded(name, quantity).get(cell.site) for name, run in runs.items()}
        return {seed: value for seed, value in values.items() if value is not None}

    def _pooled(self, cell: Cell, metric: str) -> dict[int, float]:
        """Return a metric over the test images of all sites of the cell's role together, by seed."""
        score: Metric = registry.build("metric", metric)
        pooled = {}
        for run in cell.condition.runs.values():
            try:
                parts = self.results.predictions.parts(run, cell.inference)
            except Missing:
                continue
            chosen = [part for part in parts if part.role == cell.role]
            label = np.concatenate([part.label for part in chosen])
            pooled[run.seed] = score.value(label, np.concatenate([part.probability for part in chosen]))
        return pooled

    # Cached, since a trend asks for every site of a run, and the table of rounds is long.
    @functools.cache  # noqa: B019 - lives as long as the summary is made
    def _recorded(self, run: str, quantity: str) -> dict[str, float]:
        """Return a quantity that a run recorded during training, such as its traffic, by site.

        Return {} if it has no record.
        """
        table = self._rounds.get(run)
        if table is None:
            return {}
        if quantity == "traffic":
            sent = table.assign(moved=(table["floats_down"] + table["floats_up"]) * FLOAT_BYTES / MIB)
            series = sent.groupby("site")["moved"].sum()
        else:
            split, column = _SERIES[quantity]
            series = table[table["split"] == split].groupby("site")[column].mean()
        return {str(site): float(value) for site, value in series.items()}

    @functools.cached_property
    def _rounds(self) -> dict[str, pd.DataFrame]:
        """The tables of rounds by the id of the run."""
        return {str(run): rows for run, rows in self.results.rounds.groupby("run")}

    def ledger(self, cell: Cell, quantity: str, statistics: bool) -> float:
        """Return a quantity of a cell's condition from ledger.csv, or NaN if it is not there.

        `statistics` says whether running statistics of the model count in it.
        """
        return self._ledger.get((cell.condition.run.id, statistics, quantity), math.nan)

    @functools.cached_property
    def _ledger(self) -> dict[tuple[str, bool, str], float]:
        """The values of ledger.csv by run, whether running statistics count, and quantity.

        It is {} if there is no such file.
        """
        path = self.results.files.ledger
        if not path.exists():
            return {}
        table = read_table(path, NO_LEDGER)
        return {(str(r), bool(s), str(q)): float(v) for r, s, q, v in table.itertuples(index=False)}


def incomparable(values: Values) -> str:
    """Return the reason why no value of a study can be compared with published ones, or "" if they can."""
    if values.results.synthetic:
        return "synthetic data"
    if values.plan.scale == "mini":
        return "mini scale"
    return ""


def finite(values: dict[int, float]) -> dict[int, float]:
    """Return the values by seed without those that are NaN."""
    return {seed: value for seed, value in values.items() if not math.isnan(value)}


def combined(std: float, seeds: int, published_std: float, trainings: int) -> float:
    """Return half the width of the 95% interval of the difference between our mean and the published one.

    `std` and `seeds` are our standard deviation over single trainings (n - 1) and their number, `published_std` and
    `trainings` the paper's. The variance of the difference is std^2 / seeds + published_std^2 / trainings, with
    Welch-Satterthwaite's degrees of freedom. If one side has no standard deviation (a printed value without one, or a
    single training of ours), the other side's is taken for both, with its degrees of freedom. NaN if neither side has
    one.

    Two standard deviations of a single training would be a wider limit with several seeds, and a fixed factor does not
    allow for how few they are.
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
    our_part, their_part = std**2 / seeds, published_std**2 / trainings
    variance = our_part + their_part
    if not ours:
        free: float = trainings - 1
    elif not theirs or variance == 0:
        free = seeds - 1
    else:
        free = variance**2 / (our_part**2 / (seeds - 1) + their_part**2 / (trainings - 1))
    return float(stdtrit(free, (1 + LEVEL) / 2)) * math.sqrt(variance)


def table(words: Words, values: Values) -> pd.DataFrame:
    """Return comparison.csv: a row for each published value that the study does not leave out on purpose.

    Values of metrics are from 0 to 1 if the metric is a share, and values of the ledger in the printed unit. `mean` and
    `std` are over the seeds that have been run.
    """
    rows = [_compared(words, values, target) for target in words.targets()]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"seeds": "Int64"})


def _compared(words: Words, values: Values, target: Target) -> dict[str, Any]:
    """Return the row of comparison.csv for one published value."""
    assert words.published is not None
    plan, row, cell, scale = words.plan, target.row, target.cell, target.scale
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
            mean = float(numbers.mean()) if seeds else math.nan
            std = float(numbers.std(ddof=1)) if seeds > 1 else math.nan
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
    """Return the verdict (one of VERDICTS) on the difference of our mean to a published one, and a reason.

    `limit` is the combined uncertainty of both. `reason` says why values are not comparable, or is "". The returned
    reason is "" if the verdict is `within` or `outside`.
    """
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


def _traffic(words: Words, values: Values, target: Target) -> float:
    """Return our value of a published amount of traffic, or of its excess in percent over another condition.

    It is NaN if it is not known.
    """
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
    """Return the published values of scores (columns `published` and `published_std`), indexed by LEVELS.

    The index is condition, role, site, inference and metric. If several tables print a value, the first one counts.
    """
    printed: dict[tuple[str, ...], tuple[float, float]] = {}
    for target in words.targets():
        if target.cell and not target.ledger:
            value = (target.row.value * target.scale, target.row.std * target.scale)
            printed.setdefault(target.cell.key(target.metric), value)
    index = pd.MultiIndex.from_tuples(list(printed), names=LEVELS)
    return pd.DataFrame([*printed.values()], index, ["published", "published_std"], dtype="float64")


def counts(compared: pd.DataFrame) -> dict[str, int]:
    """Return the number of published values with each verdict. A value that several tables print counts once."""
    # Values that the study does not run have no ids, and would all look the same.
    compared = compared[~compared.duplicated([*IDS, "site", "metric"]) | (compared["condition_id"] == "")]
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
    """Return a table for each published one, with our values beside, and a sentence that sums it up."""
    parts = compared.groupby("table", sort=False)
    return [(_short(str(name), [*map(_cells, part.to_dict("records"))]), sentence(part)) for name, part in parts]


def _short(title: str, cells: list[tuple[str, ...]]) -> Table:
    """Return `cells` as a table without columns that are equal in all rows; their values move to the caption."""
    caption, kept = [title], []
    for n, (name, column) in enumerate(zip(_HEADER, zip(*cells, strict=True), strict=True)):
        if name not in _MAY_GO or len(set(column)) > 1:
            kept.append(n)
        elif column[0] != DASH:
            caption.append(f"{name.lower()} {column[0]}")
    header, *rows = (tuple(row[n] for n in kept) for row in (_HEADER, *cells))
    return Table("; ".join(caption), header, tuple(rows), _HEADS - (len(_HEADER) - len(kept)))


def whole(compared: pd.DataFrame) -> Table:
    """Return all published values beside ours as one table, for the files of tables."""
    parts = compared.groupby("table", sort=False)
    rows = tuple((str(name), *_cells(row)) for name, part in parts for row in part.to_dict("records"))
    return Table("Ours beside the published values. " + MEANING, ("Table", *_HEADER), rows, 1 + _HEADS)


_HEADER = (
    *("Method", "Variant", "Site", "Metric", "Ours", "Inference", "Mean ± std", "Seeds", "Published ± std"),
    *("Difference", "±", "Verdict"),
)
_HEADS = 6
_MAY_GO = ("Variant", "Metric", "Inference")


def _cells(row: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return a row of comparison.csv as cells of text, for the table for people."""
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
    """Return a value as text, with two decimals in percent, or four decimals; a dash for NaN.

    A metric in percent is shown with one digit more than elsewhere, as papers print it.
    """
    if math.isnan(value):
        return DASH
    plus = "+" if sign else ""
    percent = registry.find("metric", metric) and Measure.of(metric).percent
    return (f"{100 * value:{plus}.2f}" if percent else f"{value:{plus}.4f}").replace("-", "−")


def _spread(mean: float, std: float, metric: str) -> str:
    """Return mean ± standard deviation as text, or the mean alone."""
    if math.isnan(std):
        return _number(mean, metric)
    return f"{_number(mean, metric)}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{_number(std, metric)}"


@dataclass(frozen=True)
class Claim:
    """A trend that a paper claims, with our finding in words.

    `held` is yes, no, cannot tell or not run; `doubt` says what weakens the finding.
    """

    claim: str
    held: str
    sentence: str
    doubt: str


@dataclass(frozen=True)
class Reproduction:
    """The comparison of a study with papers.

    Attributes
    ----------
    compared : comparison.csv, our values beside the published ones
    claims : the trends of trends.csv, which are claims of papers
    reason : why the trends do not count, such as synthetic data; else empty
    """

    compared: pd.DataFrame
    claims: list[Claim]
    reason: str

    @classmethod
    def of(cls, results: StudyResults) -> Reproduction:
        """Return the comparison of a study with papers; it has no rows if the study names no published values."""
        rows = [{str(k): v for k, v in row.items()} for row in results.table("trends").to_dict("records")]
        claims = [Claim(*(str(row[name]) for name in Claim.__dataclass_fields__)) for row in rows]
        reason = next((str(row["reason"]) for row in rows if row["reason"]), "")
        return cls(results.table("comparison"), claims, reason)

    @functools.cached_property
    def tables(self) -> list[tuple[Table, str]]:
        """A table for each published one, with our values beside and a sentence that sums it up."""
        return tables(self.compared)

    @property
    def held(self) -> int:
        """The number of trends that hold and are not in doubt."""
        return sum(claim.held == "yes" and not claim.doubt for claim in self.claims)

    @property
    def doubtful(self) -> int:
        """The number of trends that were run and are in doubt, such as within the noise of seeds."""
        return sum(claim.held in ("yes", "no") and bool(claim.doubt) for claim in self.claims)

    @property
    def judged(self) -> int:
        """The number of trends that were run."""
        return sum(claim.held != "not run" for claim in self.claims)

    def headline(self) -> dict[str, Any]:
        """Return the part of headline.json about papers: trends by outcome, and published values by verdict."""
        return {
            "trends": {
                "held": self.held,
                "doubtful": self.doubtful,
                "judged": self.judged,
                "of": len(self.claims),
                "reason": self.reason,
            },
            "published": counts(self.compared),
        }
