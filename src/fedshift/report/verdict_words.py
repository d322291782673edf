"""Sentences that judge: the verdict on a condition, on all conditions, and beside the control without a network."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..analysis.conditions import ALL, Condition
from ..analysis.controls import Controls
from ..analysis.findings import Findings
from ..analysis.values import Value, inner, listed
from ..analysis.verdict import Reason, Recovery, Verdict, Word, incomparable
from .phrases import blind, change_interval, interval, level, level_interval, over, points, signed, verb, why_none

NO_EXTERNAL_SITE = "The study has no external site, so it cannot say how the model travels."


def sentence(findings: Findings, condition: Condition, verdict: Verdict, unit: str = "patients") -> str:
    """Return the verdict as a sentence that follows the name of its condition; empty without anything to judge."""
    if verdict.word is Word.CANNOT_TELL:
        return _why_not(findings, condition, verdict, unit)
    where = _external_sites(findings, condition)
    loss = points(verdict.loss.mean, findings)
    interval = f"({change_interval(verdict.loss, findings, unit)})"
    if verdict.word is Word.LOSES:
        return f"loses {loss} at {where} {interval}{_recovery(findings, condition, verdict.recovery)}."
    limit = "below zero"
    if findings.margin:
        limit = f"under the margin of {points(findings.margin, findings)}"
    return f"holds up at {where}: the loss is {loss} {interval}, {limit} throughout."


def _recovery(findings: Findings, condition: Condition, recovery: Recovery | None) -> str:
    key = findings.compared_inference(condition)
    if recovery is None or key is None:
        return ""
    gain = findings.gain(condition, key, "external", across=findings.averaged)
    amount = points(abs(gain.mean), findings)
    return {
        Recovery.RECOVERS: f", and {findings.name(key)} recovers {amount}",
        Recovery.WORSENS: f", and {findings.name(key)} loses another {amount}",
        Recovery.IN_DOUBT: f", and it is not shown that {findings.name(key)} recovers any of it",
    }[recovery]


def _why_not(findings: Findings, condition: Condition, verdict: Verdict, unit: str) -> str:
    """Return why nothing can be said, and what would be needed."""
    home = verdict.home
    loss = points(verdict.loss.mean, findings)
    home_level = f"{inner(findings.headline)} is {level(home.mean, findings.headline)}"
    none = f"no interval can be given ({why_none(findings, condition)})"
    around = f"{level_interval(home, findings, unit)}; {blind(home, findings)}"
    more = ""
    if verdict.needs:
        more = f" More {listed(list(verdict.needs))} would narrow the interval."
    zero = "no loss"
    if findings.margin:
        zero = f"both no loss and {points(findings.margin, findings)}, the margin"
    reasons = {
        Reason.NOT_COMPARABLE: f"{inner(findings.headline)} compares classes, and at "
        f"{listed(incomparable(findings, condition))} all test samples are of one class, or it is not defined.",
        Reason.BELOW_CHANCE: f"it is worse than guessing at {listed(list(verdict.below))}. Are the labels coded "
        "the other way round there?",
        Reason.HOME_UNTESTED: "there are no test samples at home to compare with.",
        Reason.HOME_WITHOUT_INTERVAL: f"at home {home_level}, but {none}.",
        Reason.HOME_FAILS: f"it does not work at home, where {home_level} ({around}).",
        Reason.HOME_IN_DOUBT: f"it is not shown to work at home, where {home_level} ({around}).{more}",
        Reason.WITHOUT_INTERVAL: f"the loss outside is {loss}, but {none}.",
        Reason.TOO_WIDE: f"the loss outside is {loss}, but its 95% interval ({signed(verdict.loss, findings)} "
        f"{over(verdict.loss, unit)}) includes {zero}.{more}",
    }
    # this sentence does not begin with `cannot tell:`
    if verdict.reason is Reason.SITES_DISAGREE:
        return _opposite(findings, verdict, unit)
    if verdict.reason in reasons:
        return f"cannot tell: {reasons[verdict.reason]}"
    return ""


def _opposite(findings: Findings, verdict: Verdict, unit: str) -> str:
    """Return why a mean over sites of opposite sign says nothing; empty where there are none."""
    sites = verdict.opposite(findings.margin)
    if sites is None:
        return ""
    values = {site: verdict.sites[site] for site in sites}
    loses, gains = (
        f"{points(abs(value.mean), findings)} at {site} ({change_interval(value, findings, unit)})"
        for site, value in values.items()
    )
    mean = points(verdict.loss.mean, findings)
    return (
        f"cannot tell from the mean: it loses {loses} and gains {gains}. The mean loss of {mean} says nothing of "
        "either."
    )


def these_only(verdict: Verdict) -> str:
    """Return that a verdict about so few sites holds for these alone; empty for one about more sites, or for none."""
    if not verdict.these_only:
        return ""
    sites = f"{len(verdict.sites)} external sites say"
    if len(verdict.sites) == 1:
        sites = "One external site says"
    return f"{sites} nothing about other hospitals."


def all_of(verdicts: list[Verdict]) -> str:
    """Return how many of several conditions hold up, lose, or cannot be judged."""
    words = [verdict.word for verdict in verdicts]
    holds = words.count(Word.HOLDS)
    loses = words.count(Word.LOSES)
    unclear = len(words) - holds - loses
    if unclear == len(words):
        return f"The data cannot tell for any of the {len(words)} conditions."
    parts = []
    where = "at external sites"
    if holds:
        parts.append(f"{holds} {verb(holds, 'hold')} up {where}")
        where = "there"
    if loses:
        parts.append(f"{loses} {verb(loses, 'lose')} {where}")
    if unclear:
        parts.append(f"for {unclear} the data cannot tell")
    return f"Of {len(words)} conditions {listed(parts)}."


def _external_sites(findings: Findings, condition: Condition) -> str:
    """Return `its 2 external sites`: those at which the metric is defined."""
    alike = findings.alike(condition)
    sites = {site for member in alike for site in member.partition.external}
    count = len(sites - set(findings.left_out("external", conditions=alike)))
    if count > 1:
        return f"its {count} external sites"
    return "its single external site"


def beside_control(controls: Controls, unit: str = "patients") -> str:
    """Return that no condition is surely better outside than the control; empty where one is, or there is no control.

    A condition is surely better if the 95% interval of its paired difference from the control is above zero, with any
    inference that uses no labels.
    """
    compared = list(_differences(controls))
    if not compared or any(difference.low > 0 for _, _, difference in compared):
        return ""
    findings = controls.findings
    seen = f"{controls.about.sees} only, without a network"
    if all(math.isnan(difference.low) for _, _, difference in compared):
        return (
            f"Nobody can tell whether any condition is better at external sites than a control that sees {seen}: "
            "no interval can be given."
        )
    condition, key, _ = max(compared, key=lambda entry: entry[2].mean)
    metric = findings.headline
    partition = condition.run.partition_id
    if findings.averaged:
        partition = ALL
    control = controls.level(partition, "external")
    best = findings.effect("level", condition, key, "external", across=findings.averaged)
    around = interval(control, metric, f"over {unit}", otherwise="")
    return (
        f"No condition is surely better at external sites than a control that sees {seen}. Its {inner(metric)} there "
        f"is {level(control.mean, metric)}{around and f' ({around})'}; the best condition, "
        f"{condition.full_title(findings.several and not findings.averaged)} with {findings.name(key)}, has "
        f"{level(best.mean, metric)}."
    )


def shortcut(controls: Controls, condition: Condition, key: str) -> str:
    """Return what the control says of shortcuts; empty where it neither falls outside nor equals the network at home.

    It falls where its loss from home to outside is surely above zero, and above the margin. It equals the network where
    the network is not surely better at home.
    """
    findings = controls.findings
    partition, _ = controls.beside(condition)
    home, outside = (controls.level(partition, role) for role in ("internal", "external"))
    gap = findings.better(controls.gap(partition))
    control = controls.about
    parts = []
    if gap.low > 0 and gap.mean > findings.margin:
        at_home, elsewhere = (level(value.mean, findings.headline) for value in (home, outside))
        parts.append(
            f"{control.sees.capitalize()} alone, without a network, {control.does} at home ({at_home}) and much less "
            f"outside ({elsewhere}). The network may have learnt the same shortcut: {control.shortcut}."
        )
    if no_better_at_home(controls, condition, key):
        parts.append(f"At home the network is not shown to see more than {control.sees} alone.")
    return " ".join(parts)


def no_better_at_home(controls: Controls, condition: Condition, key: str) -> bool:
    """Return whether the network is not surely better at home than the control; False where nobody can tell."""
    _, which = controls.beside(condition)
    return controls.difference(which, key, "internal").low <= 0


def beaten(controls: Controls, condition: Condition, key: str) -> str:
    """Return that the control is surely better than the network, with both scores, outside or else at home.

    It is empty where the control is better at neither, or nobody can tell.
    """
    findings = controls.findings
    partition, which = controls.beside(condition)
    for role, where in (("external", "outside"), ("internal", "at home")):
        if controls.difference(which, key, role).high < 0:
            network = findings.effect("level", condition, key, role, across=findings.averaged).mean
            other, own = (level(x, findings.headline) for x in (controls.level(partition, role).mean, network))
            sees = controls.about.sees.capitalize()
            return f"{sees} alone, without a network, do better {where}: {other} against {own}."
    return ""


def _differences(controls: Controls) -> Iterator[tuple[Condition, str, Value]]:
    """Yield the conditions and inferences with a known difference from the control, and that difference."""
    for id_, condition in distinct(controls.findings).items():
        for key in condition.inferences:
            difference = controls.difference(id_, key)
            if difference.known:
                yield condition, key, difference


def distinct(findings: Findings) -> dict[str, Condition]:
    """Return the conditions by id; where numbers are averaged, the first of each family by the family's id."""
    conditions: dict[str, Condition] = {}
    for condition in findings.conditions:
        id_ = condition.id
        # conditions of a family differ in the sites held out, over which numbers are averaged
        if findings.averaged:
            id_ = condition.family
        conditions.setdefault(id_, condition)
    return conditions
