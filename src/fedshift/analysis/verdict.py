"""The verdict on a condition: whether its model holds up at external sites, by the rules of docs/verdicts.md."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from . import multiple
from .conditions import Condition
from .effects import UNMOVED, margin
from .findings import ALPHA, Findings
from .values import Value

FEW = 3
"""With fewer trainings, more of them are always wanted."""
FEWEST_SITES = 3
"""With fewer external sites, a verdict is about these sites alone."""


class Word(StrEnum):
    """What a study concludes about the external sites: whether a model holds up there."""

    HOLDS = "holds up"
    LOSES = "loses"
    CANNOT_TELL = "cannot tell"


class Reason(StrEnum):
    """Reason why nothing can be concluded."""

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
    """Effect of an inference on an established loss."""

    RECOVERS = "recovers"
    WORSENS = "worsens"
    IN_DOUBT = "in doubt"


@dataclass(frozen=True)
class Verdict:
    """Whether a condition holds up at external sites, in a word, with the reason and the numbers behind it.

    Attributes
    ----------
    word, reason : the conclusion, and why there is none
    home, loss : the level at internal sites, with its `chance` and `majority`, and the loss outside
    above : by how much a metric is better at home than a guess and than the commonest class (see `Findings.gate`)
    recovery : what the inference that is compared does to an established loss; None without one
    needs : what would narrow the interval in question: patients, trainings, or both
    sites : the loss at each external site, where it is known
    below : sites at which the model is surely worse than guessing
    worst : external sites that surely lose more than the margin or, of a model that loses, more than the others do
    open : whether a loss that is sure may be smaller than the margin
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
        """Return the sites with the largest loss and the largest gain, if both are certain; else None.

        A loss that is certain and yet under the margin throughout is none.
        """
        loses = {site: value.mean for site, value in self.sites.items() if value.low > 0 and not value.high < margin}
        gains = {site: value.mean for site, value in self.sites.items() if value.high < 0}
        if not loses or not gains:
            return None
        return max(loses, key=loses.__getitem__), min(gains, key=gains.__getitem__)


def verdict(findings: Findings, condition: Condition) -> Verdict:
    """Return the verdict on the headline metric of a condition, with the inference whose levels are reported."""
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
    """Return why the study does not ask how the model of a condition travels."""
    if not condition.run.algorithm.collaboration.has_global_model:
        return Reason.ALONE
    if not condition.partition.external:
        return Reason.NO_EXTERNAL_SITE
    levels = [findings.effect("level", condition, key, r, across=findings.averaged) for r in ("internal", "external")]
    if not levels[1].known or (condition.tests_inside and not levels[0].known):
        return Reason.NOT_COMPARABLE if incomparable(findings, condition) else Reason.NOT_SCORED
    if condition.tests_inside:
        return None
    return Reason.HOME_UNTESTED


def incomparable(findings: Findings, condition: Condition) -> list[str]:
    """Return the sites of the first role at none of whose sites the headline metric counts; none where each has some.

    The metric is not defined there, or means something else, since all test samples are of one class.
    """
    alike = findings.alike(condition)
    for role in ("external", "internal"):
        sites = list(dict.fromkeys(site for one in alike for own, site in one.sites() if own == role))
        if sites and set(sites) <= set(findings.left_out(role, conditions=alike)):
            return sites
    return []


def _at_home(above: Value) -> Reason | None:
    """Return why a model is not shown to be better at home than guessing and than the commonest class.

    `above` is its distance from the better of both, with an interval of its own. None where the metric has no such
    level.
    """
    if not above.known:
        return None
    if math.isnan(above.low):
        return Reason.HOME_WITHOUT_INTERVAL
    if above.high < 0:
        return Reason.HOME_FAILS
    return None if above.low > 0 else Reason.HOME_IN_DOUBT


def worse_than_guessing(findings: Findings, condition: Condition, key: str) -> tuple[str, ...]:
    """Return the sites at which a measure that no share of classes moves is surely below its level of chance.

    These are the AUC and the balanced accuracy, where the study has them, and with two classes the calibration slope,
    whose level is 0. Accuracy may be below chance where one class is rare and predicted too often. Holm's adjustment is
    over all sites and measures.
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
    adjusted = multiple.holm(np.nan_to_num(p, nan=1.0))
    return tuple(dict.fromkeys(site for site, one in zip(places, adjusted, strict=True) if one < ALPHA))


def _outside(loss: Value, margin: float) -> Reason | None:
    """Return why a loss can neither be established nor be shown to lie under the margin."""
    if math.isnan(loss.low):
        return Reason.WITHOUT_INTERVAL
    if loss.high < margin or loss.low > 0:
        return None
    return Reason.TOO_WIDE


def _recovery(findings: Findings, condition: Condition, across: bool) -> Recovery | None:
    """Return what the inference that is compared with the baseline does to a loss; None where it has no score."""
    key = condition.compared_inference
    if findings.baseline not in condition.inferences or key is None:
        return None
    gain = findings.gain(condition, key, "external", across=across)
    return {1: Recovery.RECOVERS, 0: Recovery.IN_DOUBT, -1: Recovery.WORSENS}[gain.sign] if gain.known else None


def needs(value: Value) -> tuple[str, ...]:
    """Return what would narrow the interval of a value: more of the source that varies most.

    Trainings are always among it where there are fewer than FEW.
    """
    trainings = value.std / math.sqrt(value.seeds) if value.seeds > 1 else math.nan
    # The width of a normal 95% interval in standard errors, 2 * 1.96.
    patients = (value.high_patients - value.low_patients) / 3.92
    if not trainings >= patients:  # also where there is one training
        if value.seeds < FEW:
            return ("patients", "trainings")
        return ("patients",)
    return ("trainings",)
