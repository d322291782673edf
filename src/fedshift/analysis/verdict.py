"""Verdicts by the rules of docs/verdicts.md: whether a model holds up at external sites; which conditions differ."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from ..figures import Ranking
from . import comparisons
from .comparisons import FEWEST_TRAININGS, Entry
from .conditions import ALL, Condition
from .effects import UNMOVED, margin
from .findings import ALPHA, Findings
from .values import Value

FEW = 3
"""With fewer trainings, more trainings are always asked for."""
FEWEST_SITES = 3
"""With fewer external sites, a verdict is about these sites alone."""
SITES, CONDITIONS = 5, 3
"""The fewest sites, and the fewest conditions, for a comparison of ranks."""
FAMILY = 0.05
"""Probability of calling at least one difference of a family of tests real by chance."""


class Word(StrEnum):
    """Verdict on whether a model holds up at external sites."""

    HOLDS = "holds up"
    LOSES = "loses"
    CANNOT_TELL = "cannot tell"


class Reason(StrEnum):
    """Reason why a verdict cannot be given."""

    NOT_SCORED = "no score"
    ALONE = "each client trains alone"
    NO_EXTERNAL_SITE = "no external site"
    HOME_UNTESTED = "no test at home"
    NOT_COMPARABLE = "metric means nothing, or something else, at all sites of a role"
    BELOW_CHANCE = "worse than guessing"
    HOME_WITHOUT_INTERVAL = "no interval at home"
    HOME_FAILS = "does not work at home"
    HOME_IN_DOUBT = "not shown to work at home"
    WEAK_AT_HOME = "weak at home, and as weak outside"
    WITHOUT_INTERVAL = "no interval of the loss"
    SITES_DISAGREE = "external sites of opposite sign"
    SITE_FAILS = "an external site loses more than the margin, though the mean does not"
    TOO_WIDE = "interval of the loss too wide"


class Recovery(StrEnum):
    """Effect of an inference on a loss at external sites that is sure."""

    RECOVERS = "recovers"
    WORSENS = "worsens"
    IN_DOUBT = "in doubt"


@dataclass(frozen=True)
class Verdict:
    """The verdict on a condition at external sites, with the reason and the numbers behind it.

    Attributes
    ----------
    word, reason : the verdict, and why none can be given
    home, loss : the score at internal sites, with its `chance` and `majority`, and the loss at external sites
    above : by how much the score at internal sites is above a guess and always giving the commonest class, in the
        metric `Findings.gate`
    recovery : the effect of the compared inference on a sure loss; None if there is no loss or no such inference
    needs : what would narrow the interval in question: patients, trainings, or both
    sites : the loss at each external site where it is known
    below : sites at which the model is surely worse than guessing
    worst : external sites that surely lose more than the margin or, for a model that loses, more than the mean of all
    open : True if a sure loss may be smaller than the margin
    """

    word: Word
    home: Value
    loss: Value
    reason: Reason | None = None
    recovery: Recovery | None = None
    needs: tuple[str, ...] = ()
    sites: dict[str, Value] = field(default_factory=dict)
    below: tuple[str, ...] = ()
    above: Value = field(default_factory=Value)
    worst: tuple[str, ...] = ()
    open: bool = False

    def opposite(self, margin: float) -> tuple[str, str] | None:
        """Return the site with the largest sure loss and the site with the largest sure gain; None unless both exist.

        Sure means that the whole interval lies on one side of zero. A loss whose whole interval is below the margin
        does not count.
        """
        loses = {site: value.mean for site, value in self.sites.items() if value.low > 0 and not value.high < margin}
        gains = {site: value.mean for site, value in self.sites.items() if value.high < 0}
        if not loses or not gains:
            return None
        return max(loses, key=loses.__getitem__), min(gains, key=gains.__getitem__)


def verdict(findings: Findings, condition: Condition) -> Verdict:
    """Return the verdict on a condition, in the headline metric, with the inference whose scores are reported."""
    key = condition.level_inference
    across = findings.averaged
    home = findings.effect("level", condition, key, "internal", across=across)
    blind = findings.blind(condition, key, "internal")
    home = home._replace(chance=blind.chance, majority=blind.majority)
    loss = findings.gap(condition, key, across)
    above = findings.effect("above_guess", condition, key, "internal", across=across, metric=findings.gate.name)
    told = Verdict(Word.CANNOT_TELL, home, loss, sites=findings.losses(condition, key), above=above)
    if below := worse_than_guessing(findings, condition, key):
        return replace(told, reason=Reason.BELOW_CHANCE, below=below)
    reason = _unasked(findings, condition, key) or _at_home(above) or _outside(loss, findings.margin)
    if reason in (None, Reason.TOO_WIDE) and told.opposite(findings.margin):
        return replace(told, reason=Reason.SITES_DISAGREE)
    worst = tuple(findings.losing(condition, key))
    if reason is Reason.TOO_WIDE and worst:
        reason = Reason.SITE_FAILS
    if reason:
        doubtful = {Reason.HOME_IN_DOUBT: above, Reason.TOO_WIDE: loss}
        more = needs(doubtful[reason]) if reason in doubtful else ()
        return replace(told, reason=reason, needs=more, worst=worst)
    if loss.high < findings.margin:
        if worst:
            return replace(told, reason=Reason.SITE_FAILS, worst=worst)
        if above.known and not above.low > margin(findings.plan, findings.gate):
            return replace(told, reason=Reason.WEAK_AT_HOME)
        return replace(told, word=Word.HOLDS)
    return replace(
        told,
        word=Word.LOSES,
        recovery=_recovery(findings, condition, findings.averaged),
        worst=tuple(findings.worse(condition, key)),
        open=bool(findings.margin) and not loss.low > findings.margin,
    )


def _unasked(findings: Findings, condition: Condition, key: str) -> Reason | None:
    """Return the reason why the study cannot say how the model of a condition works at external sites; None if it can.

    `key` is the id of the inference.
    """
    if not condition.run.algorithm.collaboration.has_global_model:
        return Reason.ALONE
    if not condition.partition.external:
        return Reason.NO_EXTERNAL_SITE
    levels = [findings.effect("level", condition, key, r, across=findings.averaged) for r in ("internal", "external")]
    if not levels[1].known or (condition.tests_inside and not levels[0].known):
        return Reason.NOT_COMPARABLE if incomparable(findings, condition) else Reason.NOT_SCORED
    return None if condition.tests_inside else Reason.HOME_UNTESTED


def incomparable(findings: Findings, condition: Condition) -> list[str]:
    """Return the sites of a role if the headline metric counts at none of them, external sites first; else [].

    It does not count where it is not defined, or where all test samples have one class.
    """
    alike = findings.alike(condition)
    for role in ("external", "internal"):
        sites = list(dict.fromkeys(site for one in alike for own, site in one.sites() if own == role))
        if sites and set(sites) <= set(findings.left_out(role, conditions=alike)):
            return sites
    return []


def _at_home(above: Value) -> Reason | None:
    """Return the reason why a model is not shown to be better at internal sites than a guess and the commonest class.

    `above` is the difference of its score to both, with an interval. Return None if the model is better, or the metric
    has no chance level.
    """
    if not above.known:
        return None
    if math.isnan(above.low):
        return Reason.HOME_WITHOUT_INTERVAL
    if above.high < 0:
        return Reason.HOME_FAILS
    return None if above.low > 0 else Reason.HOME_IN_DOUBT


def worse_than_guessing(findings: Findings, condition: Condition, key: str) -> tuple[str, ...]:
    """Return the sites at which a model is surely worse than guessing, under the inference `key`.

    The AUC and the balanced accuracy, if the study has them, are compared with their chance level, and with two classes
    the calibration slope with 0. Accuracy is not used, since it may be below chance if one class is rare and predicted
    too often. Surely means by one-sided p values, after Holm's adjustment over all sites and measures.
    """
    # with more classes, a slope is about the most probable one, and tells nothing of how labels are coded
    has_slope = len(findings.plan.study.dataset.classes) == 2
    places, p = list[str](), list[float]()
    for one in findings.alike(condition):
        for role, site in one.sites():
            found = [findings.value(one, role, site, key, name).p for name in UNMOVED if name in findings.metrics]
            if has_slope:
                found.append(findings.slope(one, role, site, key).p)
            places += [site] * len(found)
            p += found
    adjusted = comparisons.holm(np.nan_to_num(p, nan=1.0))
    return tuple(dict.fromkeys(site for site, one in zip(places, adjusted, strict=True) if one < ALPHA))


def _outside(loss: Value, margin: float) -> Reason | None:
    """Return the reason why a loss is neither sure nor shown to be below the margin; None if it is one of the two."""
    if math.isnan(loss.low):
        return Reason.WITHOUT_INTERVAL
    return None if loss.high < margin or loss.low > 0 else Reason.TOO_WIDE


def _recovery(findings: Findings, condition: Condition, across: bool) -> Recovery | None:
    """Return the effect of the compared inference on the loss at external sites; None without an inference or a score.

    With `across`, it is the mean over the partitions of the condition's family.
    """
    key = condition.compared_inference
    if findings.baseline not in condition.inferences or key is None:
        return None
    gain = findings.gain(condition, key, "external", across=across)
    return {1: Recovery.RECOVERS, 0: Recovery.IN_DOUBT, -1: Recovery.WORSENS}[gain.sign] if gain.known else None


def needs(value: Value) -> tuple[str, ...]:
    """Return what would narrow the interval of a value most: more patients, more trainings, or both.

    It is the source that varies more. With fewer than 3 trainings, more trainings are always asked for.
    """
    trainings = value.std / math.sqrt(value.seeds) if value.seeds > 1 else math.nan
    # The width of a normal 95% interval in standard errors, 2 * 1.96.
    patients = (value.high_patients - value.low_patients) / 3.92
    if not trainings >= patients:  # also where there is one training
        if value.seeds < FEW:
            return ("patients", "trainings")
        return ("patients",)
    return ("trainings",)


class Outcome(StrEnum):
    """Conclusion about the difference between two conditions."""

    DIFFERS = "differs"
    TOO_SMALL = "too small to matter"
    ALIKE = "not distinguishable"
    TRAININGS_DISAGREE = "depends on the training"
    SITES_DISAGREE = "differs between sites"
    FEW_TRAININGS = "too few trainings"
    FEW_PATIENTS = "too few patients"


TOO_FEW = (Outcome.FEW_TRAININGS, Outcome.FEW_PATIENTS)
"""Outcomes that mean too few data."""
SURE = (Outcome.DIFFERS, Outcome.TOO_SMALL)
"""Outcomes that mean that one of two conditions is surely better, whether or not the difference matters."""


@dataclass(frozen=True)
class Contrast:
    """The difference between two entries (conditions under their inferences), with the conclusion about it.

    Attributes
    ----------
    value : the difference of the means over sites, positive if the first entry is better, whatever the metric
    sites : the same difference at each site
    outcome : the conclusion
    """

    first: Entry
    second: Entry
    value: Value
    sites: dict[str, Value]
    outcome: Outcome


@dataclass(frozen=True)
class Standing:
    """The comparison of entries that are tested at the same sites with the best of them.

    Attributes
    ----------
    best, level : the entry (condition under an inference) with the best mean over sites, and this mean
    sites : the sites
    others : differences of the best entry to each other one, in the order of their means, the better first
    """

    best: Entry
    level: Value
    sites: tuple[str, ...]
    others: tuple[Contrast, ...]

    def of(self, *outcomes: Outcome) -> list[Contrast]:
        """Return the differences of the best entry to others about which one of `outcomes` is concluded."""
        return [one for one in self.others if one.outcome in outcomes]


def standings(findings: Findings) -> list[Standing]:
    """Return, for each group of entries that are tested at the same sites, their comparison with the best of them.

    An entry is a condition under an inference.
    """
    role = comparisons.role(findings.conditions)
    made = []
    for members in comparisons.groups(comparisons.entries(findings.names), role):
        levels = {one.id: findings.level(one, role) for one in members}
        means = {id_: level.mean for id_, level in levels.items()}
        best = comparisons.best_of(members, means, findings.headline.higher_is_better)
        if best is None:
            continue
        others = [contrast(findings, best, one, role) for one in members if one != best]
        if ordered := sorted(filter(None, others), key=lambda one: one.value.mean):
            made.append(Standing(best, levels[best.id], tuple(ordered[0].sites), tuple(ordered)))
    return made


def declared(findings: Findings) -> list[Contrast]:
    """Return the differences that the study declares as its primary comparison, with the conclusion about each."""
    ids = {one.family if findings.averaged else one.id: one.id for one in reversed(findings.conditions)}
    role = comparisons.role(findings.conditions)
    made = []
    for key, value in findings.numbers.of("difference").items() if findings.plan.study.primary else ():
        if value.tested and key.site == ALL:
            first = comparisons.entry(findings.names, ids[key.condition_id], key.inference_id)
            second = comparisons.entry(findings.names, ids[key.than_condition_id], key.than_inference_id)
            made.append(contrast(findings, first, second, role))
    return [one for one in made if one is not None]


def contrast(findings: Findings, first: Entry, second: Entry, role: str) -> Contrast | None:
    """Return the difference of two entries at the sites of a role, with the conclusion about it.

    An entry is a condition under an inference. Return None if comparisons.csv does not have the pair.
    """
    value = findings.better(findings.difference(first.arm, second.arm, role))
    if not value.known:
        return None
    others = {site: member.id for member, site in second.sites(role)}
    sites = {}
    for member, site in first.sites(role):
        arms = (member.id, first.inference), (others.get(site, ""), second.inference)
        at_site = findings.better(findings.difference(*arms, role, site))
        if at_site.known:
            sites[site] = at_site
    return Contrast(first, second, value, sites, _outcome(findings, value, sites))


def _outcome(findings: Findings, value: Value, sites: dict[str, Value]) -> Outcome:
    """Return the conclusion about a difference: the first one that holds, in the order of docs/verdicts.md.

    `value` is the difference of the means over sites, and `sites` the difference at each site.
    """
    primary = findings.plan.study.primary
    if math.isnan(value.low):
        return Outcome.FEW_PATIENTS
    if value.seeds < FEWEST_TRAININGS:
        return Outcome.FEW_TRAININGS
    if {1, -1} <= {one.sign for one in sites.values()}:
        return Outcome.SITES_DISAGREE
    over_patients = value.low_patients > 0 or value.high_patients < 0
    over_trainings = value.low_trainings > 0 or value.high_trainings < 0
    if over_patients and not (over_trainings and value.same_sign == value.seeds):
        return Outcome.TRAININGS_DISAGREE
    if not value.sign or value.p_holm >= FAMILY:
        return Outcome.ALIKE
    if primary and primary.smallest and abs(value.mean) < primary.smallest:
        return Outcome.TOO_SMALL
    return Outcome.DIFFERS


@dataclass(frozen=True)
class Rank:
    """The rank of a condition among those that are tested at the same sites, from `first` to `last`; 1 is the best.

    `level` is the mean score over sites.
    """

    entry: Entry
    level: Value
    first: int
    last: int


def ranks(findings: Findings) -> list[list[Rank]]:
    """Return the ranks of conditions, in groups that are tested at the same sites, from the best mean to the worst.

    A condition ranks behind all conditions that are surely better, and before all that are surely worse. With a
    probability of at least 95%, all these intervals include the true ranks, since with this probability no pair is
    wrongly called different (Holm). If a study declares a primary comparison, its pairs and all others are two families
    with 95% each. Groups with fewer than two scored conditions are left out.
    """
    role = comparisons.role(findings.conditions)
    groups = comparisons.groups(comparisons.entries(findings.names), role)
    scored = ([one for one in members if findings.level(one, role).known] for members in groups)
    return [_ranked(findings, members, role) for members in scored if len(members) > 1]


def _ranked(findings: Findings, members: list[Entry], role: str) -> list[Rank]:
    """Return the ranks of `members`, conditions that are tested at the same sites, from the best mean to the worst."""
    better = dict.fromkeys(members, 0)
    worse = dict.fromkeys(members, 0)
    for pair in itertools.combinations(members, 2):
        found = contrast(findings, *pair, role)
        if found is not None and found.outcome in SURE:
            winner, loser = pair if found.value.mean > 0 else pair[::-1]
            better[loser] += 1
            worse[winner] += 1
    made = [Rank(one, findings.level(one, role), 1 + better[one], len(members) - worse[one]) for one in members]
    return sorted(made, key=lambda rank: -findings.better(rank.level).mean)


def ranking(findings: Findings) -> Ranking:
    """Return the mean ranks over sites of the largest group of conditions that are tested at the same sites.

    `why_not` of the result says why ranks are not compared, if so: too few conditions or sites, a site without a score,
    or equal scores.
    """
    role = comparisons.role(findings.conditions)
    members = max(comparisons.groups(comparisons.entries(findings.names), role), key=len, default=[])
    names = tuple(one.condition.title if findings.averaged else findings.full(one.condition) for one in members)
    scores = [
        {site: findings.better(findings.value(own, role, site, one.inference)).mean for own, site in one.sites(role)}
        for one in members
    ]
    values = np.array([[at_sites[site] for at_sites in scores] for site in (scores[0] if scores else ())])
    sites = len(values)
    empty = Ranking(names, role, sites)
    if len(members) < CONDITIONS:
        return empty._replace(why_not=f"it needs {CONDITIONS} conditions that are tested at the same sites")
    if sites < SITES:
        return empty._replace(why_not=f"it needs {SITES} {role} sites, and the study has {sites}")
    if np.isnan(values).any():
        return empty._replace(why_not="a condition has no score at one of the sites")
    if (values == values[:, :1]).all():
        return empty._replace(why_not="all conditions have the same scores")
    ranked = comparisons.friedman(values)
    critical = comparisons.critical_difference(len(members), sites)
    ranks = tuple(ranked.ranks.tolist())
    return empty._replace(ranks=ranks, critical=critical, p=ranked.f_p, related=findings.averaged)
