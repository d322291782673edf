"""Sentences that judge: the verdict on a condition, on all conditions, and beside the control without a network."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..analysis.conditions import ALL, Condition
from ..analysis.controls import Controls
from ..analysis.findings import Findings
from ..analysis.values import Value, inner, listed, number
from ..analysis.verdict import FEWEST_SITES, Verdict, Word
from ..core.spelling import plural
from .nouns import Nouns
from .phrases import interval, level, points, verb

NO_EXTERNAL_SITE = "The study has no external site, so it cannot say how the model travels."


def these_only(findings: Findings, condition: Condition, judged: Verdict, nouns: Nouns) -> str:
    """Return that a verdict about so few sites holds for these alone; empty for one about more sites, or for none.

    Sites whose hospital trained with other scanners or departments say nothing of another hospital.
    """
    outside = nouns.outside(one.partition for one in findings.alike(condition))
    apart = [site for site in judged.sites if site in outside.apart]
    if judged.word is Word.CANNOT_TELL or len(apart) >= FEWEST_SITES:
        return ""
    others = plural(nouns.other)
    if outside.shared:
        return (
            f"Outside, {nouns.counted(apart or outside.sites, owned=False)} alone can say little about other {others}."
        )
    sites = f"{len(judged.sites)} external sites say"
    if len(judged.sites) == 1:
        sites = "One external site says"
    return f"{sites} nothing about other {others}."


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
    """Return that the control is surely better than the network, and by how much, outside or else at home.

    It is empty where the control is better at neither, or nobody can tell.
    """
    findings = controls.findings
    _, which = controls.beside(condition)
    for role, where in (("external", "outside"), ("internal", "at home")):
        difference = controls.difference(which, key, role)
        if difference.high < 0:
            by = number(-difference.high, findings.headline), points(-difference.low, findings)
            return (
                f"{controls.about.sees.capitalize()} alone, without a network, do better {where}, by {' to '.join(by)}."
            )
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
