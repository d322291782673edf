"""Sentences that judge, for the author and, without method and statistics, for a clinician."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..analysis.conditions import ALL, Condition
from ..analysis.controls import Controls
from ..analysis.findings import Findings
from ..analysis.values import Value, inner, listed, number
from ..analysis.verdict import FEWEST_SITES, Reason, Verdict, Word
from ..core.spelling import plural
from .phrases import Nouns, capital, home_of_all, interval, level, noun, points, verb
from .verdict_texts import Told

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
    sites = "One external site says" if len(judged.sites) == 1 else f"{len(judged.sites)} external sites say"
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
    control = controls.level(ALL if findings.averaged else condition.run.partition_id, "external")
    best = findings.effect("level", condition, key, "external", across=findings.averaged)
    around = interval(control, metric, f"over {unit}", otherwise="")
    return (
        f"No condition is surely better at external sites than a control that sees {seen}. Its {inner(metric)} there "
        f"is {level(control.mean, metric)}{around and f' ({around})'}; the best condition, "
        f"{findings.title(condition)} with {findings.name(key)}, has "
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


NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NAMED = 4
"""Sites outside that are named. More are only counted."""
INVENTED = "The {samples} are invented and show nothing about any {other}; if they were real, "
FAULTY = "Conclude nothing before the faults of the data that stand at the top of this page are corrected."


def three_sentences(
    findings: Findings,
    condition: Condition,
    judged: Verdict,
    nouns: Nouns,
    faulty: bool,
    synthetic: bool,
    beaten: str = "",
) -> list[str]:
    """Return what was tested and where, what came out and how sure it is, and what may be concluded.

    The three sentences hold three numbers at most, beside those in names of sites. They are about the first
    condition. Of `faulty` data nothing may be concluded. `beaten` says that the control without a network is better.
    There are none where nothing has been scored.
    """
    if not (judged.home.known or judged.loss.known or judged.reason is Reason.HOME_UNTESTED):
        return []
    told = Told(findings, condition, judged, nouns, beaten)
    concluded = told.said("concluded")
    last = FAULTY if faulty else f"{INVENTED.format_map(told.fields) if synthetic else 'So '}{concluded}"
    return [_tested(findings, condition, nouns), told.said("came_out"), last]


def in_letters(count: int) -> str:
    """Return a small number as a word, and a larger one in digits."""
    return NUMBERS[count] if count < len(NUMBERS) else f"{count:,}"


def _tested(findings: Findings, condition: Condition, nouns: Nouns) -> str:
    """Return who trained the model, and on whose images it was tested."""
    inside = condition.partition.internal
    outside = nouns.outside(member.partition for member in findings.alike(condition))
    role = "external" if outside.sites else "internal"
    people = _people(findings, condition, role, nouns.units)
    there = nouns.counted(outside.sites, in_letters, owned=not outside.shared)
    shared = f"; {outside.shared}" if outside.shared else ""
    together = condition.run.algorithm.collaboration.has_global_model
    if findings.averaged:
        return (
            f"{capital(there)} were left out of the training in turn, and each was then a test for "
            f"the model of the others, on {people}{shared}."
        )
    trained = f"{capital(nouns.counted(inside, in_letters))} trained a model together"
    if not together:
        trained = f"{capital(nouns.counted(inside, in_letters))} trained their own models"
    if not outside.sites:
        key = condition.level_inference
        scored = [site for site in inside if findings.value(condition, role, site, key).seeds]
        where = f"the same {noun(len(inside), nouns.each(inside))}"
        if 0 < len(scored) < len(inside):  # others have sent no rows
            where = listed(scored)
        return f"{trained}; it was tested on {people} of {where}."
    names = f" ({listed(outside.sites)})" if len(outside.sites) <= NAMED else ""
    # a scanner whose hospital trained with another one cannot be said to have taken no part
    where = "outside" if shared else "that took no part"
    return f"{trained}; it was tested on {people} of {there} {where}{names}{shared}."


def _people(findings: Findings, condition: Condition, role: str, unit: str) -> str:
    """Return the number of tested patients; without a number where it is not known."""
    value = findings.effect("level", condition, condition.level_inference, role, across=findings.averaged)
    return f"{value.patients:,.0f} {unit}" if value.patients > 0 else unit


def _marks(findings: Findings, condition: Condition, units: str) -> str:
    """Return what a mark and its bar are; one training says something about that model alone."""
    name = inner(findings.headline)
    if len(condition.seeds) == 1:
        return (
            f"The {name} of this one model, not of the method that made it: trained once more, it may lie outside of "
            f"the bar. The bar is its 95% interval: of a hundred such tests with other {units}, about 95 have a bar "
            f"that holds the true value of this model. Few {units} make it long."
        )
    return (
        f"The mean {name} of trainings that differ by chance alone. The bar is its 95% interval: of a hundred studies "
        f"with other test {units} and other trainings on the same training {units}, about 95 have a bar that holds "
        f"the true value. Few {units}, or trainings that disagree, make it long."
    )


def how_to_read(
    findings: Findings, condition: Condition, nouns: Nouns, adapted: bool, control: bool
) -> Iterator[tuple[str, str]]:
    """Yield each part of the first screen with its meaning; `adapted` and `control` say whether it has such marks."""
    yield (
        "Rows",
        f"One for each {nouns.place}, with the number of tested {nouns.units}. "
        + (
            f"Each was tested by a model that the other {plural(nouns.place)} trained (outside). At home is "
            f"{home_of_all(findings, condition, nouns)}."
            if findings.averaged
            else "Those above the line trained the model (at home), those below did not (outside)."
        ),
    )
    yield "Round marks and bars", _marks(findings, condition, nouns.units)
    if adapted:
        yield (
            "Diamonds",
            f"The same model, adapted to the {nouns.samples} of that {nouns.place} without knowing any "
            f"{'diagnosis' if nouns.medical else 'label'}.",
        )
    if control:
        yield (
            "Squares",
            f"A simple rule that sees {findings.plan.study.task.control.sees} only. A model that is no better has not "
            "been shown to see more.",
        )
    blind = findings.blind(condition, condition.level_inference, "external")
    if not math.isnan(blind.chance):
        yield (
            "Dotted lines",
            "What guessing reaches, and what giving everybody the commonest answer reaches. In the row of the loss: "
            "with so much lost, the model is no better than a guess.",
        )
    if findings.margin:
        yield (
            "Grey band",
            f"The margin: a loss of {points(findings.margin, findings)} that the study counts as holding up. It holds "
            "up if the whole bar of the loss ends before the band does. If not, it loses if the whole bar is right of "
            "zero, and how much is open where the bar begins in the band. Else nobody can tell.",
        )
    yield (
        "ok, suspect, problem",
        "Checks that no reader can make: ok found nothing, suspect needs a look, a problem makes scores untrue, and "
        "unknown could not be checked.",
    )
