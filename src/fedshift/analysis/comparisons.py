"""Paired differences between conditions, comparisons.csv, and the statistics of several methods, sites or seeds.

Conditions are compared at the sites where both are tested, by the rules of docs/verdicts.md. Trainings with the same
seed are a pair, and so are predictions of the same patients.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import fdtrc, stdtrit

from ..algorithms import Collaboration
from . import estimates
from .conditions import ALL, Condition, averaged, several
from .effects import Estimates
from .estimates import Estimate
from .numbers import Names, Numbers, row

Arm = tuple[str, str]
"""The ids of a condition, or family, and of an inference."""


KEYS = ["condition_id", "inference_id", "than_condition_id", "than_inference_id", "role", "site", "metric"]
COLUMNS = [
    *(*KEYS, "condition", "inference", "than_condition", "than_inference"),
    *("tested", "mean", "std", "seeds", "patients", "low", "high", "low_patients", "high_patients"),
    *("low_trainings", "high_trainings", "same_sign", "undefined", "p", "p_holm", "family"),
    *("sign_flip_seeds", "smallest_seeds", "sites", "sign_flip_sites", "smallest_sites"),
]
FEWEST_TRAININGS = 3
"""With fewer trainings of a condition nothing is said of it as a method, and no p is given."""
_EXACT = 12
"""Decimals that count: the rest is noise of floating-point numbers."""
MOST_FLIPS = 20
"""More differences have too many patterns of signs."""
SMALLEST = 1e-6
"""The standard error of a site whose patients all score alike."""


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
        return frozenset((member.run.data.source, site) for member, site in self.sites(role))

    @property
    def control(self) -> bool:
        """True for pooled data and for clients that train alone: these are bounds, not federated methods."""
        return type(self.condition.run.algorithm.collaboration) is not Collaboration


def role(all_: Iterable[Condition]) -> str:
    """Return the role of the sites at which conditions are compared: external, unless the study has none."""
    if any(one.partition.external for one in all_):
        return "external"
    return "internal"


def entry(names: Names, condition_id: str, inference: str = "") -> Entry:
    """Return the entry of a condition or, where numbers are means over partitions, of its family.

    By default, its inference is the one whose levels are reported.
    """
    one = names.conditions[condition_id]
    all_ = list(names.conditions.values())
    inference = inference or one.level_inference
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


def rows(study: Estimates, declared: Sequence[tuple[Entry, Entry]] = ()) -> list[dict[str, Any]]:
    """Return the numbers of comparisons.csv (see `table`): those of the quantity `difference`."""
    maker = _Maker(study)
    found = [row for pair in maker.pairs(declared) for row in maker.rows(*pair)]
    for tested in (True, False):
        family = [row for row in found if row["tested"] == tested and not math.isnan(row["p"])]
        adjusted = holm(np.array([row["p"] for row in family]))
        for one, p in zip(family, adjusted, strict=True):
            one |= {"p_holm": p, "family": len(family)}
    return found


def table(names: Names, numbers: Numbers) -> pd.DataFrame:
    """Return comparisons.csv: the paired differences of the headline metric, with the columns COLUMNS.

    Every two entries that are tested at the same sites have a row for the mean over these (site ALL), the first minus
    the second. Rows of single sites are there for the entry with the best mean and for declared pairs. `p_holm` is
    adjusted for a family: the `declared` pairs or, without any, all pairs. Where some are declared, all others are
    exploratory, and a family of their own. Rows of single sites have no p.
    """
    found = numbers.view("difference").astype({"tested": bool})
    titles, inferences = _titles(names), {key: words["inference"] for key, words in names.inferences.items()}
    words = {
        f"{side}{what}": found[f"{side}{what}_id"].map(known)
        for side in ("", "than_")
        for what, known in (("condition", titles), ("inference", inferences))
    }
    return found.assign(undefined=found["low"].where(found["low"].isna(), 0.0), **words)[COLUMNS]


def _titles(names: Names) -> dict[str, str]:
    """Return the title of each condition and family, with the partition of one that is not averaged with others."""
    all_ = list(names.conditions.values())
    made = {one.id: entry(names, one.id) for one in all_}
    return {
        id_: whole.condition.full_title(several(all_) and len(whole.members) == 1)
        for one, whole in made.items()
        for id_ in (one, whole.id)
    }


class _Maker:
    """The rows of comparisons.csv."""

    def __init__(self, study: Estimates) -> None:
        self.study = study
        self.names = study.names
        self.plan = study.names.plan
        self.role = role(self.names.conditions.values())
        self.metric = study.metrics[self.plan.study.headline]
        self.groups = groups(filter(self._scored, entries(self.names)), self.role)
        means = {entry.id: self._level(entry).mean for members in self.groups for entry in members}
        self.best = [best_of(members, means, self.metric.higher_is_better) for members in self.groups]

    def pairs(self, declared: Sequence[tuple[Entry, Entry]]) -> list[tuple[Entry, Entry, bool]]:
        """Return the pairs that are compared, and whether each belongs to the family."""
        family = [pair for pair in declared if all(map(self._scored, pair))]
        others = [pair for members in self.groups for pair in itertools.combinations(members, 2)]
        done = {frozenset(pair) for pair in family}
        exploratory = [(*pair, not declared) for pair in others if frozenset(pair) not in done]
        return [*((*pair, True) for pair in family), *exploratory]

    def rows(self, first: Entry, second: Entry, tested: bool) -> Iterator[dict[str, Any]]:
        """Yield the row of the mean over sites, and those of single sites."""
        places = self._places(first, second)
        at_sites = [self._at(*place) for place in places]
        difference = estimates.minus(self._level(first), self._level(second))
        whole = self._row(difference, first.arm, second.arm, ALL)
        means = np.array([estimate.mean for estimate in at_sites if not math.isnan(estimate.mean)])
        flips = sign_flip(means)
        whole |= {"sign_flip_sites": flips.p, "smallest_sites": flips.smallest, "sites": len(means)}
        if whole["seeds"] < FEWEST_TRAININGS:
            whole["p"] = math.nan
        yield whole | {"tested": tested}
        if (tested and self.plan.study.primary) or {first, second} & set(self.best):
            for place, estimate in zip(places, at_sites, strict=True):
                yield self._row(estimate, *place) | {"tested": False, "p": math.nan}

    def _scored(self, entry: Entry) -> bool:
        return not math.isnan(self._level(entry).mean)

    def _level(self, entry: Entry) -> Estimate:
        """Return the mean over sites; without any training where there is none."""
        return self.study.level(entry.id, self.role, entry.inference, self.metric.name) or estimates.NOTHING

    def _places(self, first: Entry, second: Entry) -> list[tuple[Arm, Arm, str]]:
        """Return the sites at which both are tested and the metric is defined, each with what is tested there."""
        others = {site: (member.id, second.inference) for member, site in second.sites(self.role)}
        return [
            ((member.id, first.inference), others[site], site)
            for member, site in first.sites(self.role)
            if site in others and self.study.counts(member.run.partition_id, self.role, site, self.metric.name)
        ]

    def _at(self, first: Arm, second: Arm, site: str) -> Estimate:
        """Return the difference at one site; without any training where either has no score there."""
        left, right = (self.study.level(id_, self.role, key, self.metric.name, site) for id_, key in (first, second))
        return estimates.NOTHING if left is None or right is None else estimates.minus(left, right)

    def _row(self, exact: Estimate, first: Arm, second: Arm, site: str) -> dict[str, Any]:
        """Return the row of a difference at one site, or of the mean over sites."""
        difference = exact.rounded(_EXACT)
        values = difference.values
        trainings = estimates.NO_INTERVAL
        p = math.nan
        if len(values) > 1:
            trainings = estimates.bounds(difference.mean, difference.over_trainings)
            p = difference.p
        flips = sign_flip(values)
        ids = *first, *second, self.role, site, self.metric.name
        return row("difference", difference, self.metric.ends, True, **dict(zip(KEYS, ids, strict=True))) | {
            **{"low_trainings": trainings[0], "high_trainings": trainings[1], "p": p},
            "same_sign": int((np.sign(values) == np.sign(difference.mean)).sum()),
            **{"sign_flip_seeds": flips.p, "smallest_seeds": flips.smallest},
        }


def best_of(group: Sequence[Entry], means: dict[str, float], higher: bool) -> Entry | None:
    """Return the federated entry with the best mean over sites, of several the first; a control if there is no other.

    None where no mean is known.
    """
    scored = [one for one in group if not math.isnan(means.get(one.id, math.nan))]
    candidates = [one for one in scored if not one.control] or scored
    return (max if higher else min)(candidates, key=lambda one: means[one.id], default=None)


def holm(p: np.ndarray) -> np.ndarray:
    """Return p values (k,) adjusted for the family of k tests (Holm, Scand J Stat 1979;6:65), in their order."""
    order = np.argsort(p)
    adjusted = np.minimum(1, np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1)))
    return np.asarray(adjusted[np.argsort(order)])


class SignFlip(NamedTuple):
    """A two-sided p, and the smallest p that so many differences can reach."""

    p: float
    smallest: float


def sign_flip(differences: np.ndarray) -> SignFlip:
    """Return the exact test that differences (n,) are as likely below zero as above; NaN for none, or more than 20.

    The p is the share of all 2 ** n patterns of signs whose mean is as far from zero as that of the data (Fisher, The
    Design of Experiments, 1935). The smallest p is 2 / 2 ** n: five differences never reach 0.05.
    """
    n = len(differences)
    if not 0 < n <= MOST_FLIPS:
        return SignFlip(float("nan"), float("nan"))
    observed = abs(float(np.sum(differences))) - 1e-12 * np.abs(differences).sum()
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    return SignFlip(float((np.abs(sums) >= observed).mean()), min(1.0, 2 / 2**n))


class Ranked(NamedTuple):
    """The mean ranks of methods (methods,), 1 the best, with the F test that all ranks are alike, and its p."""

    ranks: np.ndarray
    f: float
    f_p: float


def friedman(values: np.ndarray) -> Ranked:
    """Return Iman and Davenport's form of Friedman's test for values (sites, methods), of which higher is better.

    Sites must be independent of each other (Demsar, J Mach Learn Res 2006;7:1, section 3.2.2). The F is infinite where
    all sites rank the methods alike.
    """
    from scipy.stats import friedmanchisquare, rankdata  # takes a second to import

    sites, methods = values.shape
    ranks = rankdata(-values, axis=1).mean(0)
    chi2 = friedmanchisquare(*values.T).statistic
    denominator = sites * (methods - 1) - chi2
    ratio = (sites - 1) * chi2 / denominator if denominator > 1e-12 else np.inf
    p = fdtrc(methods - 1, (methods - 1) * (sites - 1), ratio)
    return Ranked(ranks, float(ratio), float(p))


def critical_difference(methods: int, sites: int) -> float:
    """Return by how much mean ranks of two methods must differ: Nemenyi's test (Demsar 2006, section 3.2.2)."""
    from scipy.stats import studentized_range

    q = studentized_range.ppf(0.95, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * sites)))


class Pooled(NamedTuple):
    """The mean over some `sites` in a random-effects model, its standard error, and the variance between sites."""

    mean: float
    se: float
    tau2: float
    sites: int


def pool(estimates: np.ndarray, se: np.ndarray) -> Pooled:
    """Return the random-effects mean of estimates (sites,) with standard errors (sites,), of two sites or more.

    The variance between sites is that of DerSimonian and Laird (Control Clin Trials 1986;7:177):
    max(0, (Q - (k - 1)) / C), where Q = sum w (x - fixed mean)^2, C = sum w - sum w^2 / sum w and w = 1 / se^2.
    """
    weight = 1 / np.asarray(se) ** 2
    k = len(estimates)
    q = (weight * (estimates - np.average(estimates, weights=weight)) ** 2).sum()
    c = weight.sum() - (weight**2).sum() / weight.sum()
    excess = max(0.0, float(q - (k - 1)))
    weight = 1 / (np.asarray(se) ** 2 + excess / c)
    mean = float(np.average(estimates, weights=weight))
    return Pooled(mean, float(1 / np.sqrt(weight.sum())), float(excess / c), k)


def prediction_interval(pooled: Pooled) -> tuple[float, float]:
    """Return the 95% interval in which the true value of a new, similar site lies; NaN below three sites.

    It is mean ± t(k - 2) sqrt(tau2 + se^2) (Higgins, Thompson and Spiegelhalter, J R Stat Soc A 2009;172:137).
    """
    if pooled.sites < 3:
        return float("nan"), float("nan")
    half = stdtrit(pooled.sites - 2, 0.975) * np.sqrt(pooled.tau2 + pooled.se**2)
    return float(pooled.mean - half), float(pooled.mean + half)


def below_the_worst(sites: int) -> float:
    """Return the probability that a new site is worse than the worst of so many, all drawn alike: 1 / (k + 1)."""
    return 1 / (sites + 1)


def predicted(estimates: np.ndarray, se: np.ndarray, logit: bool) -> tuple[float, float]:
    """Return the prediction interval for a new site from estimates (sites,) and their standard errors (sites,).

    With `logit`, estimates are proportions and the interval is made on the logit scale, so that it stays between 0 and
    1. It is NaN below three sites, where a standard error is unknown, and where a proportion is 0 or 1.
    """
    estimates, se = np.asarray(estimates, dtype=float), np.asarray(se, dtype=float)
    at_an_end = logit and not ((estimates > 0) & (estimates < 1)).all()
    if len(estimates) < 3 or np.isnan([estimates, se]).any() or at_an_end:
        return float("nan"), float("nan")
    if not logit:
        return prediction_interval(pool(estimates, np.maximum(se, SMALLEST)))
    slope = estimates * (1 - estimates)
    low, high = prediction_interval(pool(np.log(estimates / (1 - estimates)), np.maximum(se / slope, SMALLEST)))
    return 1 / (1 + math.exp(-low)), 1 / (1 + math.exp(-high))
