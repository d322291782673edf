"""The answer for a clinician in three sentences, and how to read the first screen: no method and no statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.values import inner, listed
from ..analysis.verdict import Reason, Verdict, Word
from .phrases import capital, level, noun, points

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NAMED = 4
"""Hospitals outside that are named. More are only counted."""
INVENTED = "The images are invented and show nothing about any hospital; if they were real, "
FAULTY = "Conclude nothing before the faults of the data that stand at the top of this page are corrected."


def sentences(
    findings: Findings,
    condition: Condition,
    judged: Verdict,
    unit: str,
    faulty: bool,
    synthetic: bool,
    beaten: bool = False,
) -> list[str]:
    """Return what was tested and where, what came out and how sure it is, and what may be concluded.

    The three sentences hold three numbers at most, beside those in names of hospitals. They are about the first
    condition. Of `faulty` data nothing may be concluded. Where the network is `beaten` by the control, none is needed.
    There are none where nothing has been scored.
    """
    if not (judged.home.known or judged.loss.known or judged.reason is Reason.HOME_UNTESTED):
        return []
    if faulty:
        last = FAULTY
    elif synthetic:
        last = f"{INVENTED}{_concluded(judged, beaten)}"
    else:
        last = f"So {_concluded(judged, beaten)}"
    return [_tested(findings, condition, unit), _came_out(findings, judged), last]


def in_letters(count: int) -> str:
    """Return a small number as a word, and a larger one in digits."""
    if count < len(NUMBERS):
        return NUMBERS[count]
    return f"{count:,}"


def _hospitals(count: int) -> str:
    return f"{in_letters(count)} {noun(count, 'hospital')}"


def _tested(findings: Findings, condition: Condition, unit: str) -> str:
    """Return who trained the model, and on whose images it was tested."""
    inside = condition.partition.internal
    outside = list(dict.fromkeys(site for member in findings.alike(condition) for site in member.partition.external))
    role = "internal"
    if outside:
        role = "external"
    people = _people(findings, condition, role, unit)
    together = condition.run.algorithm.collaboration.has_global_model
    if findings.averaged:
        return (
            f"{capital(_hospitals(len(outside)))} were left out of the training in turn, and each was then a test for "
            f"the model of the others, on {people}."
        )
    trained = f"{capital(_hospitals(len(inside)))} trained a model together"
    if not together:
        trained = f"{capital(_hospitals(len(inside)))} trained their own models"
    if not outside:
        return f"{trained}; it was tested on {people} of the same {noun(len(inside), 'hospital')}."
    names = ""
    if len(outside) <= NAMED:
        names = f" ({listed(outside)})"
    return f"{trained}; it was tested on {people} of {_hospitals(len(outside))} that took no part{names}."


def _people(findings: Findings, condition: Condition, role: str, unit: str) -> str:
    """Return the number of tested patients; without a number where it is not known."""
    value = findings.effect("level", condition, findings.level_inference(condition), role, across=findings.averaged)
    if value.patients > 0:
        return f"{value.patients:,.0f} {unit}"
    return unit


def _came_out(findings: Findings, judged: Verdict) -> str:
    """Return the result with two numbers at most, and how far chance may have moved it."""
    metric = findings.headline
    its = f"its {inner(metric)}"
    loss = judged.loss
    home = f"{its} was {level(judged.home.mean, metric)}"
    reference = findings.better(judged.home)
    sign = 1 if metric.higher_is_better else -1
    blind = level(sign * max(reference.chance, reference.majority), metric)
    if judged.word is Word.HOLDS and round(loss.high, 3) <= 0:
        return f"Outside, {its} was no worse than at home, even with the worst of luck."
    if judged.word is Word.HOLDS:
        worst = points(loss.high, findings)
        return f"Outside, {its} was at most {worst} worse than at home, even allowing for chance."
    if judged.word is Word.LOSES:
        least = points(loss.low, findings)
        return (
            f"Outside, {its} was {points(loss.mean, findings)} worse than at home, and at least {least} of that are "
            "hardly chance."
        )
    if judged.reason is Reason.TOO_WIDE:
        side, or_else = "worse", "no worse at all"
        if loss.mean < 0:
            side, or_else = "better", "clearly better"
        return (
            f"Outside, {its} came out {points(abs(loss.mean), findings)} {side} than at home, but with other patients "
            f"or another training it may be {points(loss.high, findings)} worse, or {or_else}."
        )
    reasons: dict[Reason | None, str] = {
        Reason.NOT_COMPARABLE: f"At the hospitals that trained it, {home}; outside, all images of a hospital are of "
        "one class, and a score there means something else.",
        Reason.BELOW_CHANCE: f"At {listed(list(judged.below))} its answers point the wrong way, and a guess would "
        "do better.",
        Reason.HOME_FAILS: f"Even at the hospitals that trained it, {home}, and giving everybody the same answer, or "
        f"guessing, would have reached {blind}.",
        Reason.HOME_IN_DOUBT: f"Even at the hospitals that trained it, {home}, which may be no better than the "
        f"{blind} of giving everybody the same answer, or of guessing.",
        Reason.SITES_DISAGREE: "It did worse than at home in one hospital and better in another, and neither is "
        "chance.",
        Reason.NO_EXTERNAL_SITE: f"There, {home}.",
        Reason.ALONE: f"There, {home}.",
        Reason.HOME_UNTESTED: "The hospitals that trained it kept no images for a test, so that there is nothing to "
        "compare with.",
    }
    few = f"At the hospitals that trained it, {home}, but too few patients were tested to say how sure the result is."
    return reasons.get(judged.reason, few)


def _concluded(judged: Verdict, beaten: bool) -> str:
    """Return what a reader may conclude, and what not, as the rest of a sentence."""
    these = "these hospitals"
    if len(judged.sites) == 1:
        these = "this hospital"
    if judged.word is Word.HOLDS and beaten:
        return (
            f"you may not conclude that a network is of use: it works about as well in {these} as at home, but a "
            "simple classifier without a network works better."
        )
    if judged.word is Word.HOLDS:
        return (
            f"you may expect it to work about as well in {these} as at home, but this says nothing about other "
            "hospitals, or about its use for patients."
        )
    if judged.word is Word.LOSES:
        return (
            f"you may conclude that it works less well in {these} than at home, but not how it would do in any other "
            "hospital."
        )
    reasons: dict[Reason | None, str] = {
        Reason.TOO_WIDE: f"you may conclude neither that it holds up in {these} nor that it fails there, and nothing "
        "about other hospitals.",
        Reason.NOT_COMPARABLE: "you may not compare the scores at home with those outside, and conclude nothing.",
        Reason.BELOW_CHANCE: "you may conclude nothing until somebody has checked how the labels are coded there.",
        Reason.HOME_FAILS: "you may conclude that it does not work, and need not ask how it does elsewhere.",
        Reason.HOME_IN_DOUBT: "you may not conclude that it has learnt anything, at home or elsewhere.",
        Reason.SITES_DISAGREE: "you may read each hospital by itself, but conclude nothing from their mean, and "
        "nothing about other hospitals.",
        Reason.HOME_UNTESTED: "you may read the scores outside as they are, but not conclude that anything was lost.",
        Reason.NO_EXTERNAL_SITE: "you may not conclude how it would do in a hospital that took no part.",
        Reason.ALONE: "you may not conclude how any of these models would do in another hospital.",
    }
    few = f"you may not conclude whether it holds up in {these}: more patients must be tested first."
    return reasons.get(judged.reason, few)


def how_to_read(findings: Findings, condition: Condition, adapted: bool, control: bool) -> Iterator[tuple[str, str]]:
    """Yield each part of the first screen with its meaning; `adapted` and `control` say whether it has such marks."""
    metric = findings.headline
    yield (
        "Rows",
        "One for each hospital, with the patients who were tested. Those above the line trained the model (at home), "
        "those below took no part (outside).",
    )
    yield (
        "Round marks and bars",
        f"The mean {inner(metric)} of trainings that differ by chance alone. The bar is its 95% interval: of a hundred "
        "studies made in the same way, about 95 have a bar that holds the true value. Hardly any patients, or "
        "trainings that disagree, make it long.",
    )
    if adapted:
        yield (
            "Diamonds",
            "The same model, adapted to the images of that hospital without knowing any diagnosis.",
        )
    if control:
        yield (
            "Squares",
            f"A simple rule that sees {findings.plan.study.task.control.sees} only. A model that is no better has not "
            "been shown to see more.",
        )
    blind = findings.blind(condition, findings.level_inference(condition), "external")
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
            "up if the whole bar of the loss ends before the band does, and loses if the whole bar is right of zero. "
            "Otherwise nobody can tell.",
        )
    yield (
        "ok, suspect, problem",
        "Checks that no reader can make: ok found nothing, suspect needs a look, a problem makes scores untrue, and "
        "unknown could not be checked.",
    )
