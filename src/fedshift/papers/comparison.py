"""Published values beside ours: comparison.csv, and its tables."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.names import IDS, LEVELS
from ..analysis.table import Table
from ..analysis.values import DASH
from .values import Measure, Values, finite, incomparable
from .words import OVER, Target, Words

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
    from scipy.stats import t

    ours, theirs = seeds > 1 and not math.isnan(std), trainings > 1 and not math.isnan(published_std)
    if not (ours or theirs) or seeds < 1:
        return math.nan
    a, b = (std if ours else published_std) ** 2 / seeds, (published_std if theirs else std) ** 2 / trainings
    if ours and theirs and a + b > 0:
        free = (a + b) ** 2 / (a**2 / (seeds - 1) + b**2 / (trainings - 1))
    else:
        free = (seeds if ours else trainings) - 1
    return float(t.ppf((1 + LEVEL) / 2, free)) * math.sqrt(a + b)


def table(words: Words, values: Values) -> pd.DataFrame:
    """Return comparison.csv: a row for each published value that the study does not leave out.

    Values of metrics are from 0 to 1 where the metric is a share; those of the ledger in the printed unit. `mean` and
    `std` are over the seeds that are there.
    """
    rows = [_compared(words, values, target) for path in words.plan.published for target in words.of(path)]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"seeds": "Int64"})


def _compared(words: Words, values: Values, target: Target) -> dict[str, Any]:
    """Return the row of comparison.csv for one published value."""
    assert words.published is not None
    plan, row, cell, scale = words.plan, target.row, target.cell, target.scale
    mean = std = limit = math.nan
    seeds = 0
    reason = words.published.not_comparable or row.misprint
    if target.ledger:
        mean = _traffic(words, values, target)
        scaled = plan.scale == "mini" and plan.study.scales.get("mini")
        reason = reason or ("mini scale" if scaled else "")
        limit = 0.0
    else:
        reason = reason or incomparable(values) or (ADAPTED if _adapts(words, target) else "")
        if cell and (known := finite(values.by_seed(cell, target.metric))):
            numbers = np.array(list(known.values()))
            mean, seeds = float(numbers.mean()), len(numbers)
            std = float(numbers.std(ddof=1)) if seeds > 1 else math.nan
            limit = combined(std, seeds, row.std * scale, words.published.trainings(row.table))
    limit += row.precision * scale / 2
    difference = mean - row.value * scale
    verdict = "within" if abs(difference) <= limit + 1e-9 else "outside"
    if math.isnan(mean) or math.isnan(row.value):
        verdict, reason = "not run", ""
    elif reason:
        verdict = "not comparable"
    elif math.isnan(limit):
        verdict, reason = "no spread", "one seed, and no printed standard deviation"
    return {
        "condition_id": cell.condition.id if cell else "",
        "inference_id": cell.inference if cell else "",
        **{name: getattr(row, name) for name in ("table", "method", "variant", "site")},
        "metric": target.metric,
        "condition": values.title(cell) if cell else "",
        "inference": _inference(words, target),
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


def _adapts(words: Words, target: Target) -> bool:
    """Return whether our network was adapted to labels of the site. Papers do not say by which labels theirs was."""
    key = target.cell.inference if target.cell else ""
    return bool(key and words.plan.inferences[key].uses_labels)


def _inference(words: Words, target: Target) -> str:
    if not target.cell or not target.cell.inference:
        return ""
    return words.plan.inferences[target.cell.inference].label


def _traffic(words: Words, values: Values, target: Target) -> float:
    """Return a quantity of the ledger, or the share in percent that a condition sends beyond another."""
    assert words.published is not None
    counted = words.published.statistics
    if not target.cell:
        return math.nan
    if not target.metric.startswith(OVER):
        return values.ledger(target.cell, target.metric, counted)
    if not target.other:
        return math.nan
    sent, base = (values.ledger(c, "exchanged_MB_per_iteration", counted) for c in (target.cell, target.other))
    return 100 * (sent / base - 1) if base else math.nan


def published(words: Words) -> pd.DataFrame:
    """Return `published` and `published_std` of rows of summary.csv, by LEVELS. The first table that has one counts."""
    printed: dict[tuple[str, ...], tuple[float, float]] = {}
    for target in words.targets():
        if target.cell and not target.ledger:
            value = target.row.value * target.scale, target.row.std * target.scale
            printed.setdefault(target.cell.key(target.metric), value)
    index = pd.MultiIndex.from_tuples(list(printed), names=LEVELS)
    return pd.DataFrame([*printed.values()], index, ["published", "published_std"], dtype="float64")


def counts(compared: pd.DataFrame) -> dict[str, int]:
    """Return how many published values got each verdict. A value that two tables print counts once, in the first."""
    cell = [*IDS, "site", "metric"]
    compared = compared[~compared.duplicated(cell) | (compared["condition_id"] == "")]
    return {verdict: int((compared["verdict"] == verdict).sum()) for verdict in VERDICTS}


def sentence(compared: pd.DataFrame) -> str:
    """Return a summary of one table: `41 of 56 within the combined uncertainty; largest ... −3.1 (FedBN, dslr)`."""
    count = counts(compared)
    judged = compared[compared["verdict"].isin(["within", "outside"])]
    how = "within the combined uncertainty" if judged["seeds"].any() else "equal to the printed digits"
    parts = [f"{count['within']} of {len(judged)} {how}"] if len(judged) else []
    parts += [f"{count[v]} {v}" for v in VERDICTS[2:] if count[v]]
    if len(judged):
        far = judged.sort_values("difference", key=abs).to_dict("records")[-1]
        what = ", ".join(filter(None, (far["method"], far["variant"], far["site"])))
        parts.append(f"largest difference {_number(far['difference'], far['metric'], sign=True)} ({what})")
    return "; ".join(parts) or "none of it is run"


def tables(compared: pd.DataFrame) -> list[tuple[Table, str]]:
    """Return one table for each published table, with its sentence. What all rows share moves to the caption."""
    return [(_short(_table(str(name), part)), sentence(part)) for name, part in compared.groupby("table", sort=False)]


def _short(table: Table) -> Table:
    """Return a table without the columns that are equal in all rows; the caption has their values."""
    columns = list(zip(*table.rows, strict=True))
    same = [n for n, name in enumerate(table.header) if name in _MAY_GO and len(set(columns[n])) == 1]
    shared = [f"{table.header[n].lower()} {columns[n][0]}" for n in same if columns[n][0] != DASH]
    rest = [n for n in range(len(table.header)) if n not in same]
    cut = [tuple(row[n] for n in rest) for row in (table.header, *table.rows)]
    return Table("; ".join([table.caption, *shared]), cut[0], tuple(cut[1:]), table.heads - len(same))


def whole(compared: pd.DataFrame) -> Table:
    """Return all published tables in one, for the files."""
    rows = [
        (str(name), *row)
        for name, part in compared.groupby("table", sort=False)
        for row in _table(str(name), part).rows
    ]
    return Table("Ours beside the published values. " + MEANING, ("Table", *_HEADER), tuple(rows), 7)


_HEADER = (
    *("Method", "Variant", "Site", "Metric", "Ours", "Inference", "Mean ± std", "Seeds", "Published ± std"),
    *("Difference", "±", "Verdict"),
)
_MAY_GO = ("Variant", "Metric", "Inference")


def _table(name: str, part: pd.DataFrame) -> Table:
    rows = []
    for record in part.to_dict("records"):
        r = SimpleNamespace(**{str(k): v for k, v in record.items()})
        why = f" ({r.reason})" if r.reason else ""
        ours = (r.condition or DASH, r.inference or DASH, _spread(r.mean, r.std, r.metric), str(r.seeds or DASH))
        away = (_number(r.difference, r.metric, sign=True), _number(r.combined, r.metric))
        rows.append(
            (
                *(r.method, r.variant or DASH, r.site, r.metric.replace("_", " ")),
                *ours,
                _spread(r.published, r.published_std, r.metric),
                *away,
                f"{r.verdict}{why}",
            )
        )
    return Table(name, _HEADER, tuple(rows), 6)


def _measure(metric: str) -> Measure | None:
    from ..core import registry

    return Measure.of(metric) if metric in registry.discover("metric") else None


def _number(value: float, metric: str, sign: bool = False) -> str:
    """Return a value of a metric with one digit more than usual, as papers print; of the ledger with four decimals."""
    if math.isnan(value):
        return DASH
    measure = _measure(metric)
    digits = 2 if measure and measure.percent else 4
    text = f"{value * (100 if measure and measure.percent else 1):{'+' if sign else ''}.{digits}f}"
    return text.replace("-", "−")


def _spread(mean: float, std: float, metric: str) -> str:
    text = _number(mean, metric)
    return text if math.isnan(std) else f"{text}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{_number(std, metric)}"
