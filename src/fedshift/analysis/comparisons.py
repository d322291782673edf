"""Paired differences between conditions (comparisons.csv), and statistics over several methods, sites or seeds.

Conditions are compared at the sites where both are tested, by the rules of docs/verdicts.md. Trainings with the same
seed form a pair, and so do the predictions of two conditions for the same patient.
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
"""One side of a difference: the id of a condition and of an inference, or of a family for a mean over partitions."""


KEYS = ["condition_id", "inference_id", "than_condition_id", "than_inference_id", "role", "site", "metric"]
COLUMNS = [
    *(*KEYS, "condition", "inference", "than_condition", "than_inference"),
    *("tested", "mean", "std", "seeds", "patients", "low", "high", "low_patients", "high_patients"),
    *("low_trainings", "high_trainings", "same_sign", "undefined", "p", "p_holm", "family"),
    *("sign_flip_seeds", "smallest_seeds", "sites", "sign_flip_sites", "smallest_sites"),
]
FEWEST_TRAININGS = 3
"""With fewer trainings of a condition, nothing is concluded about it as a method, and no p value is given."""
_EXACT = 12
"""Decimals to which differences are rounded: the digits behind are floating-point noise, which has no sign."""
MOST_FLIPS = 20
"""The most differences for which all 2 ** n patterns of signs are tried."""
SMALLEST = 1e-6
"""The smallest standard error of a site, which a site gets whose patients all score alike."""


@dataclass(frozen=True)
class Entry:
    """One side of a comparison: a condition (algorithm x batch norm policy x settings) under an inference.

    Attributes
    ----------
    id : the id of the condition, or of its family (conditions that differ in the partition alone) for a mean over
        partitions
    inference : the id of the inference
    members : the condition, or all conditions of the family
    """

    id: str
    inference: str
    members: tuple[Condition, ...] = field(compare=False)

    @property
    def condition(self) -> Condition:
        """The first condition of the entry."""
        return self.members[0]

    @property
    def arm(self) -> Arm:
        """The id of the condition, or of its family, with the id of the inference."""
        return self.id, self.inference

    def sites(self, role: str) -> Iterator[tuple[Condition, str]]:
        """Yield the tested sites of a role (internal or external), each after the condition that is tested there."""
        for member in self.members:
            yield from ((member, site) for r, site in member.sites() if r == role)

    def tested(self, role: str) -> frozenset[tuple[str, str]]:
        """Return the source of the data and the site of all test samples of a role.

        Two entries are compared if these sets are equal.
        """
        return frozenset((member.run.data.source, site) for member, site in self.sites(role))

    @property
    def control(self) -> bool:
        """True for training on pooled data and for clients that train alone: bounds, not federated methods."""
        return type(self.condition.run.algorithm.collaboration) is not Collaboration


def role(all_: Iterable[Condition]) -> str:
    """Return the role of the sites at which conditions are compared: `external`, or `internal` if none is external.

    `all_` are the conditions.
    """
    if any(one.partition.external for one in all_):
        return "external"
    return "internal"


def entry(names: Names, condition_id: str, inference: str = "") -> Entry:
    """Return a condition under an inference as one side of a comparison.

    If the study averages over partitions, the entry is the condition's whole family (conditions that differ in the
    partition alone). By default, the inference is the one whose scores the study reports.
    """
    one = names.conditions[condition_id]
    all_ = list(names.conditions.values())
    inference = inference or one.level_inference
    if not averaged(all_):
        return Entry(one.id, inference, (one,))
    return Entry(one.family, inference, tuple(other for other in all_ if other.family == one.family))


def entries(names: Names) -> list[Entry]:
    """Return all sides of comparisons: each condition, or family of conditions, under the reported inference."""
    return list(dict.fromkeys(entry(names, id_) for id_ in names.conditions))


def groups(compared: Iterable[Entry], role: str) -> list[list[Entry]]:
    """Return entries (conditions under inferences) in groups that are tested at the same sites of a role.

    Entries without test samples at sites of this role are left out.
    """
    alike: dict[frozenset[tuple[str, str]], list[Entry]] = defaultdict(list)
    for one in compared:
        alike[one.tested(role)].append(one)
    return [members for tested, members in alike.items() if tested]


def rows(study: Estimates, declared: Sequence[tuple[Entry, Entry]] = ()) -> list[dict[str, Any]]:
    """Return the paired differences of a study as rows of numbers.parquet (quantity `difference`; see `table`).

    `declared` are the pairs that the study names as its primary comparison. Their p values are adjusted together by
    Holm's method, and the p values of all other pairs, which are exploratory, as a family of their own.
    """
    maker = _Maker(study)
    found = [row for pair in maker.pairs(declared) for row in maker.rows(*pair)]
    for tested in (True, False):
        family = [row for row in found if row["tested"] == tested and not math.isnan(row["p"])]
        adjusted = holm(np.array([row["p"] for row in family]))
        for one, p in zip(family, adjusted, strict=True):
            one |= {"p_holm": p, "family": len(family)}
    return found


def table(names: Names, numbers: Numbers) -> pd.DataFrame:
    """Return comparisons.csv from the numbers of a study: paired differences of the headline metric.

    A row is the first side minus the second. Any two entries that are tested at the same sites have a row for the mean
    over these sites (site ALL). Rows of single sites exist for the entry with the best mean and for declared pairs, and
    have no p value. `p_holm` is adjusted for a family of tests: the declared pairs (`tested`) or, if the study declares
    none, all pairs. If some are declared, all other pairs are exploratory and form a family of their own. The columns
    are COLUMNS.
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
    """Return the title of each condition and family by id, with the partition if it is not averaged with others."""
    all_ = list(names.conditions.values())
    made = {one.id: entry(names, one.id) for one in all_}
    return {
        id_: whole.condition.full_title(several(all_) and len(whole.members) == 1)
        for one, whole in made.items()
        for id_ in (one, whole.id)
    }


class _Maker:
    """The pairs that a study compares and the rows of comparisons.csv for them."""

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
        """Return the pairs of entries to compare, each with True for a tested pair or False for an exploratory one.

        `declared` are the pairs that the study names as primary. These are the tested ones or, without any, all pairs.
        """
        family = [pair for pair in declared if all(map(self._scored, pair))]
        others = [pair for members in self.groups for pair in itertools.combinations(members, 2)]
        done = {frozenset(pair) for pair in family}
        exploratory = [(*pair, not declared) for pair in others if frozenset(pair) not in done]
        return [*((*pair, True) for pair in family), *exploratory]

    def rows(self, first: Entry, second: Entry, tested: bool) -> Iterator[dict[str, Any]]:
        """Yield the row of the mean difference of two entries over sites, then rows of single sites.

        Single sites have rows if a primary comparison is declared and this pair is `tested`, or if one entry has the
        best mean.
        """
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
        """Return whether the mean score of an entry (condition under an inference) is known."""
        return not math.isnan(self._level(entry).mean)

    def _level(self, entry: Entry) -> Estimate:
        """Return the mean score of an entry (condition under an inference) over sites.

        The estimate is empty if there is no score.
        """
        return self.study.level(entry.id, self.role, entry.inference, self.metric.name) or estimates.NOTHING

    def _places(self, first: Entry, second: Entry) -> list[tuple[Arm, Arm, str]]:
        """Return the sites at which both entries are tested and the metric is defined, as tuples (arm, arm, site).

        An arm is the id of a condition with the id of an inference.
        """
        others = {site: (member.id, second.inference) for member, site in second.sites(self.role)}
        return [
            ((member.id, first.inference), others[site], site)
            for member, site in first.sites(self.role)
            if site in others and self.study.counts(member.run.partition_id, self.role, site, self.metric.name)
        ]

    def _at(self, first: Arm, second: Arm, site: str) -> Estimate:
        """Return the difference `first` minus `second` of two arms (ids of condition and inference) at one site.

        The estimate is empty if one of the two has no score there.
        """
        left, right = (self.study.level(id_, self.role, key, self.metric.name, site) for id_, key in (first, second))
        return estimates.NOTHING if left is None or right is None else estimates.minus(left, right)

    def _row(self, exact: Estimate, first: Arm, second: Arm, site: str) -> dict[str, Any]:
        """Return a difference as a row of numbers.parquet, at one site or, with the site ALL, as a mean over sites.

        `exact` is the difference before it is rounded, and `first` and `second` are the ids of condition and inference
        on both sides.
        """
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
    """Return the federated entry (condition under an inference) of a group with the best mean, the first of equal ones.

    If no federated entry has a mean, return the best control; if nothing has a mean, None. `means` maps the id of an
    entry to its mean over sites, and `higher` says whether more is better.
    """
    scored = [one for one in group if not math.isnan(means.get(one.id, math.nan))]
    candidates = [one for one in scored if not one.control] or scored
    return (max if higher else min)(candidates, key=lambda one: means[one.id], default=None)


def holm(p: np.ndarray) -> np.ndarray:
    """Return p values (k,) of k tests, adjusted by Holm's step-down method (Scand J Stat 1979;6:65), in their order."""
    order = np.argsort(p)
    # The running maximum keeps adjusted values in the order of the p values.
    adjusted = np.minimum(1, np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1)))
    return np.asarray(adjusted[np.argsort(order)])


class SignFlip(NamedTuple):
    """Result of an exact sign-flip test: a two-sided p value, and the smallest that this many differences can reach."""

    p: float
    smallest: float


def sign_flip(differences: np.ndarray) -> SignFlip:
    """Return the exact sign-flip test that differences (n,) are symmetric about zero; NaN for none, or more than 20.

    The p value is the share of all 2 ** n patterns of signs whose mean is at least as far from zero as the observed
    mean (Fisher, The Design of Experiments, 1935). The smallest possible p is 2 / 2 ** n: five differences never reach
    0.05.
    """
    n = len(differences)
    if not 0 < n <= MOST_FLIPS:
        return SignFlip(float("nan"), float("nan"))
    # The tolerance keeps the observed pattern among those that are as far from zero, whatever the order of sums.
    observed = abs(float(np.sum(differences))) - 1e-12 * np.abs(differences).sum()
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    return SignFlip(float((np.abs(sums) >= observed).mean()), min(1.0, 2 / 2**n))


class Ranked(NamedTuple):
    """Mean ranks of methods (methods,), where 1 is the best, with F and p value of the test of equal ranks."""

    ranks: np.ndarray
    f: float
    f_p: float


def friedman(values: np.ndarray) -> Ranked:
    """Return Iman and Davenport's form of Friedman's test, for scores (sites, methods) of which higher is better.

    Sites must be independent of each other (Demsar, J Mach Learn Res 2006;7:1, section 3.2.2). F is infinite if all
    sites rank the methods in the same way.
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
    """Return the critical difference of Nemenyi's test at 5%: mean ranks that differ less are not distinguishable.

    `methods` and `sites` are numbers of methods and of sites (Demsar, J Mach Learn Res 2006;7:1, section 3.2.2).
    """
    from scipy.stats import studentized_range

    q = studentized_range.ppf(0.95, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * sites)))


class Pooled(NamedTuple):
    """A random-effects mean over `sites` sites, its standard error `se`, and the variance `tau2` between sites."""

    mean: float
    se: float
    tau2: float
    sites: int


def pool(estimates: np.ndarray, se: np.ndarray) -> Pooled:
    """Return the random-effects mean of estimates (sites,) with standard errors (sites,), of two sites or more.

    The variance between sites is DerSimonian and Laird's (Control Clin Trials 1986;7:177): max(0, (Q - (k - 1)) / C)
    for k sites, where Q = sum w (x - fixed mean)^2, C = sum w - sum w^2 / sum w and w = 1 / se^2.
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
    """Return the 95% prediction interval for the true value at a new, similar site; NaN with fewer than three sites.

    It is mean ± t(k - 2) sqrt(tau2 + se^2) for k sites (Higgins, Thompson and Spiegelhalter, J R Stat Soc A
    2009;172:137).
    """
    if pooled.sites < 3:
        return float("nan"), float("nan")
    half = stdtrit(pooled.sites - 2, 0.975) * np.sqrt(pooled.tau2 + pooled.se**2)
    return float(pooled.mean - half), float(pooled.mean + half)


def below_the_worst(sites: int) -> float:
    """Return the probability that a new site is worse than all of `sites` others, if drawn alike: 1 / (sites + 1)."""
    return 1 / (sites + 1)


def predicted(estimates: np.ndarray, se: np.ndarray, logit: bool) -> tuple[float, float]:
    """Return the 95% prediction interval for a new site from estimates (sites,) and their standard errors (sites,).

    With `logit`, the estimates are proportions and the interval is made on the logit scale, so that it stays between 0
    and 1. It is NaN with fewer than three sites, if a standard error is unknown and, with `logit`, if a proportion is 0
    or 1.
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
