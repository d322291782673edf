"""Paired differences between conditions at the sites where both are tested: comparisons.csv.

The rules are in docs/verdicts.md. Trainings with the same seed are a pair, and so are predictions of the same patients.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

from ..algorithms import Collaboration
from ..core import registry
from ..metrics import Metric
from . import crossed, multiple
from .conditions import ALL, Condition, averaged, several
from .effects import Arm, Group, Measured, reported
from .names import Names
from .statistics import LEVEL, interval
from .values import Value


class Difference(NamedTuple):
    """The numbers of one row of comparisons.csv."""

    tested: bool
    mean: float
    std: float
    seeds: int
    patients: int
    low: float
    high: float
    low_patients: float
    high_patients: float
    low_trainings: float
    high_trainings: float
    same_sign: int
    undefined: float
    p: float
    p_holm: float
    family: float
    sign_flip_seeds: float
    smallest_seeds: float
    sites: float
    sign_flip_sites: float
    smallest_sites: float

    @property
    def value(self) -> Value:
        """The difference with its intervals."""
        return Value(**{name: value for name, value in self._asdict().items() if name in Value._fields})

    def reversed(self) -> Difference:
        """Return the difference of the second condition minus the first."""
        turned = {f"low{of}": -getattr(self, f"high{of}") for of in _BOUNDS}
        turned |= {f"high{of}": -getattr(self, f"low{of}") for of in _BOUNDS}
        return self._replace(mean=-self.mean, **turned)


KEYS = ["condition_id", "inference_id", "than_condition_id", "than_inference_id", "role", "site", "metric"]
COLUMNS = [
    *KEYS,
    *("condition", "inference", "than_condition", "than_inference"),
    *Difference._fields,
]
_BOUNDS = ("", "_patients", "_trainings")
FEWEST_TRAININGS = 3
"""With fewer trainings of a condition nothing is said of it as a method, and no p is given."""
MOST_FLIPS = 20
"""More differences have too many patterns of signs."""
_EXACT = 12
"""Decimals that count: the rest is noise of floating-point numbers."""


@dataclass(frozen=True)
class Entry:
    """A condition under an inference, or the conditions of a family whose mean over partitions is compared."""

    id: str
    inference: str
    members: tuple[Condition, ...] = field(compare=False)

    @property
    def condition(self) -> Condition:
        """The first of the conditions."""
        return self.members[0]

    @property
    def arm(self) -> Arm:
        """The ids of the condition, or family, and of the inference."""
        return self.id, self.inference

    def sites(self, role: str) -> Iterator[tuple[Condition, str]]:
        """Yield the tested sites of a role, each with the condition that is tested there."""
        for member in self.members:
            yield from ((member, site) for r, site in member.sites() if r == role)

    def tested(self, role: str) -> frozenset[tuple[str, str]]:
        """Return the data and the site of all test samples. Entries that agree in it are compared."""
        return frozenset((member.run.data.id, site) for member, site in self.sites(role))

    @property
    def control(self) -> bool:
        """True for pooled data and for clients that train alone: these are bounds, not federated methods."""
        return type(self.condition.run.algorithm.collaboration) is not Collaboration


def role(all_: Iterable[Condition]) -> str:
    """Return the role of the sites at which conditions are compared: external, unless the study has none."""
    return "external" if any(one.partition.external for one in all_) else "internal"


def entry(names: Names, condition_id: str, inference: str = "") -> Entry:
    """Return the entry of a condition or, where numbers are means over partitions, of its family.

    By default, its inference is the one whose levels are reported.
    """
    one, all_ = names.conditions[condition_id], list(names.conditions.values())
    inference = inference or reported(names.plan, one)
    if not averaged(all_):
        return Entry(one.id, inference, (one,))
    return Entry(one.family, inference, tuple(other for other in all_ if other.family == one.family))


def entries(names: Names) -> list[Entry]:
    """Return what is compared: each condition, or family of conditions, under the inference that is reported."""
    return list(dict.fromkeys(entry(names, id_) for id_ in names.conditions))


def groups(compared: Iterable[Entry], role: str) -> list[list[Entry]]:
    """Return the entries that are tested at the same sites, group by group; none that are not tested in the role."""
    alike: dict[frozenset[tuple[str, str]], list[Entry]] = defaultdict(list)
    for one in compared:
        alike[one.tested(role)].append(one)
    return [members for tested, members in alike.items() if tested]


def arms(compared: Iterable[Entry]) -> set[Arm]:
    """Return the conditions and inferences whose influences a comparison of entries needs."""
    return {(member.id, one.inference) for one in compared for member in one.members}


def table(numbers: Measured, declared: Sequence[tuple[Entry, Entry]] = ()) -> pd.DataFrame:
    """Return comparisons.csv: the paired differences of the headline metric, with the columns COLUMNS.

    Every two entries that are tested at the same sites have a row for the mean over these (site ALL), the first minus
    the second. Rows of single sites are there for the entry with the best mean and for declared pairs. `p` and `p_holm`
    are given for the family: the `declared` pairs or, without any, all pairs. All other rows are exploratory.
    """
    maker = _Maker(numbers)
    out = pd.DataFrame([row for pair in maker.pairs(declared) for row in maker.rows(*pair)], columns=COLUMNS)
    known = out["p"].notna().to_numpy()
    out.loc[known, "p_holm"] = multiple.holm(out.loc[known, "p"].to_numpy(dtype=float))
    out.loc[known, "family"] = known.sum()
    return out


class _Place(NamedTuple):
    """A site with the ids of both conditions that are tested there."""

    first: str
    second: str
    site: str


class _Maker:
    """The rows of comparisons.csv."""

    def __init__(self, numbers: Measured) -> None:
        self.numbers, self.names, self.plan = numbers, numbers.names, numbers.names.plan
        conditions = list(self.names.conditions.values())
        self.role, self.several = role(conditions), several(conditions)
        self.metric: Metric = registry.build("metric", self.plan.study.headline)
        self.groups = groups(filter(self._scored, entries(self.names)), self.role)
        means = {one.id: float(self._level(numbers.by_seed, one).mean()) for members in self.groups for one in members}
        self.best = [best_of(members, means, self.metric.higher_is_better) for members in self.groups]

    def pairs(self, declared: Sequence[tuple[Entry, Entry]]) -> list[tuple[Entry, Entry, bool]]:
        """Return the pairs that are compared, and whether each belongs to the family."""
        family = [pair for pair in declared if all(map(self._scored, pair))]
        others = [pair for members in self.groups for pair in itertools.combinations(members, 2)]
        done = {frozenset(pair) for pair in family}
        rest = [(*pair, not declared) for pair in others if frozenset(pair) not in done]
        return [*((*pair, True) for pair in family), *rest]

    def rows(self, first: Entry, second: Entry, tested: bool) -> Iterator[dict[str, Any]]:
        """Yield the row of the mean over sites, and those of single sites."""
        places = self._places(first, second)
        by_seed, by_draw = (
            self._level(table, first) - self._level(table, second)
            for table in (self.numbers.by_seed, self.numbers.by_draw)
        )
        whole = self._row(by_seed, by_draw, places, first, second)
        whole["patients"] = self.numbers.patients((first.id, self.role, ALL, *self._of(first), "level"))
        means = np.array([self._at(place, self.numbers.seeds, first, second).mean() for place in places])
        known = means[~np.isnan(means)]
        whole |= dict(zip(("sign_flip_sites", "smallest_sites"), _flips(known), strict=True), sites=len(known))
        if not tested or whole["seeds"] < FEWEST_TRAININGS:
            whole["p"] = math.nan
        yield self._about(first, second, _Place(first.id, second.id, ALL)) | whole | {"tested": tested}
        if (tested and self.plan.study.primary) or {first, second} & set(self.best):
            for place in places:
                single = self._single(place, first, second) | {"tested": False, "p": math.nan}
                yield self._about(first, second, place) | single

    def _scored(self, one: Entry) -> bool:
        return bool(self._level(self.numbers.by_seed, one).notna().any())

    def _of(self, one: Entry) -> tuple[str, str]:
        return one.inference, self.metric.name

    def _level(self, table: pd.DataFrame, one: Entry) -> pd.Series:
        """Return the mean over sites by seed or by resample; empty where there is none."""
        return _column(table, (one.id, self.role, ALL, *self._of(one), "level"))

    def _places(self, first: Entry, second: Entry) -> dict[_Place, float]:
        """Return the sites at which both are tested and the metric is defined, with their shares of the mean."""
        others = {site: member.id for member, site in second.sites(self.role)}
        left_out = self.numbers.left_out
        places = [
            _Place(member.id, others[site], site)
            for member, site in first.sites(self.role)
            if site in others and (member.run.partition_id, self.role, site, self.metric.name) not in left_out
        ]
        count = Counter(place.first for place in places)
        return {place: 1 / (count[place.first] * len(count)) for place in places}

    def _at(self, place: _Place, table: pd.DataFrame, first: Entry, second: Entry) -> pd.Series:
        """Return the difference at one site by seed or by resample."""
        left, right = (
            _column(table, (id_, self.role, place.site, *self._of(one)))
            for id_, one in ((place.first, first), (place.second, second))
        )
        return left - right

    def _single(self, place: _Place, first: Entry, second: Entry) -> dict[str, Any]:
        """Return the numbers of one site."""
        by_seed, by_draw = (
            self._at(place, table, first, second) for table in (self.numbers.seeds, self.numbers.resampled.draws)
        )
        row = self._row(by_seed, by_draw, {place: 1.0}, first, second)
        return row | {
            "patients": self.numbers.patients((place.first, self.role, place.site, *self._of(first), "level"))
        }

    def _row(
        self, by_seed: pd.Series, draws: pd.Series, places: Mapping[_Place, float], first: Entry, second: Entry
    ) -> dict[str, Any]:
        """Return the numbers of a difference, given its values by seed and by resample, and its sites."""
        values = by_seed.dropna().round(_EXACT)
        mean, seeds = float(values.mean()), len(values)
        low, high = interval(draws.to_numpy(dtype=float)) if seeds else (math.nan, math.nan)
        row = {"mean": mean, "std": float(values.std()), "seeds": seeds, "p": math.nan}
        row |= {"low_patients": low, "high_patients": high, "low": low, "high": high}
        row |= dict(zip(("low_trainings", "high_trainings"), _over_trainings(values.to_numpy()), strict=True))
        row |= dict(zip(("sign_flip_seeds", "smallest_seeds"), _flips(values.to_numpy()), strict=True))
        row["same_sign"] = int((np.sign(values) == np.sign(mean)).sum())
        row["undefined"] = float(draws.isna().mean()) if len(draws) else math.nan
        if seeds > 1 and not math.isnan(low):
            tables = self._influences(list(values.index), places, first, second)
            spread = crossed.truncated(crossed.parts(values.to_numpy(), tables))
            row["low"], row["high"] = crossed.interval(mean, spread)
            row["p"] = crossed.two_sided_p(mean, spread)
        return row

    def _influences(
        self, seeds: list[int], places: Mapping[_Place, float], first: Entry, second: Entry
    ) -> list[np.ndarray]:
        """Return by how much each patient moves a difference (seeds, patients), a table for each group of patients."""
        known, group = self.numbers.resampled.influences, self.numbers.resampled.group
        total: dict[Group, pd.DataFrame] = {}
        for place, share in places.items():
            left = known[place.first, self.role, place.site, first.inference].loc[seeds]
            right = known[place.second, self.role, place.site, second.inference].loc[seeds]
            part = left.sub(right, fill_value=0.0) * share
            patients = group[place.first, self.role, place.site]
            total[patients] = total[patients].add(part, fill_value=0.0) if patients in total else part
        return [table.to_numpy().round(_EXACT) for table in total.values()]

    def _about(self, first: Entry, second: Entry, place: _Place) -> dict[str, Any]:
        ids = (place.first, first.inference, place.second, second.inference, self.role, place.site, self.metric.name)
        titles = [one.condition.full_title(self.several and len(one.members) == 1) for one in (first, second)]
        inferences = [self.names.inferences[one.inference]["inference"] for one in (first, second)]
        words = {"condition": titles[0], "than_condition": titles[1]}
        words |= {"inference": inferences[0], "than_inference": inferences[1]}
        return dict(zip(KEYS, ids, strict=True)) | words


def by_pair(table: pd.DataFrame) -> dict[tuple[Arm, Arm, str, str], Difference]:
    """Return the rows of comparisons.csv by both arms, role and site."""
    ids = table[KEYS].itertuples(index=False, name=None)
    rows = table[[*Difference._fields]].astype(object).itertuples(index=False, name=None)
    return {
        ((a, b), (c, d), role, site): Difference(*row)
        for (a, b, c, d, role, site, _), row in zip(ids, rows, strict=True)
    }


def _column(table: pd.DataFrame, name: tuple[str, ...]) -> pd.Series:
    """Return a column; empty where the table does not have it."""
    return table[name] if name in table.columns else pd.Series(dtype=float)


def best_of(group: Sequence[Entry], means: dict[str, float], higher: bool) -> Entry | None:
    """Return the federated entry with the best mean over sites, of several the first; a control if there is no other.

    None where no mean is known.
    """
    known = [one for one in group if not math.isnan(means.get(one.id, math.nan))]
    candidates = [one for one in known if not one.control] or known
    return (max if higher else min)(candidates, key=lambda one: means[one.id], default=None)


def _over_trainings(values: np.ndarray) -> tuple[float, float]:
    """Return the t interval of the mean of values (seeds,) over trainings, with the patients fixed."""
    if len(values) < 2:
        return math.nan, math.nan
    half = student.ppf((1 + LEVEL) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def _flips(values: np.ndarray) -> tuple[float, float]:
    """Return the p of sign flips and the smallest one that is possible; NaN for no or too many values."""
    if not 0 < len(values) <= MOST_FLIPS:
        return math.nan, math.nan
    return multiple.sign_flip(values)
