"""The answer for a clinician in three sentences, and how to read the first screen: no method and no statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.values import inner, listed
from ..analysis.verdict import Reason, Verdict, Word
from .phrases import capital, noun, points
from .verdict_texts import Told

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NAMED = 4
"""Hospitals outside that are named. More are only counted."""
INVENTED = "The images are invented and show nothing about any hospital; if they were real, "
BEATEN = (
    "you may not conclude that a network is of use: it works about as well in {these} as at home, but a simple "
    "classifier without a network works better."
)
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
    told = Told(findings, condition, judged, unit)
    concluded = told.said("concluded")
    if beaten and judged.word is Word.HOLDS:
        concluded = BEATEN.format_map(told.fields)
    last = FAULTY if faulty else f"{INVENTED if synthetic else 'So '}{concluded}"
    return [_tested(findings, condition, unit), told.said("came_out"), last]


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


def _marks(findings: Findings, condition: Condition) -> str:
    """Return what a mark and its bar are; one training says something about that model alone."""
    name = inner(findings.headline)
    if len(condition.seeds) == 1:
        return (
            f"The {name} of this one model, not of the method that made it: trained once more, it may lie outside of "
            "the bar. The bar is its 95% interval: of a hundred such tests with other patients, about 95 have a bar "
            "that holds the true value of this model. Few patients make it long."
        )
    return (
        f"The mean {name} of trainings that differ by chance alone. The bar is its 95% interval: of a hundred studies "
        "with other test patients and other trainings on the same training patients, about 95 have a bar that holds "
        "the true value. Few patients, or trainings that disagree, make it long."
    )


def how_to_read(findings: Findings, condition: Condition, adapted: bool, control: bool) -> Iterator[tuple[str, str]]:
    """Yield each part of the first screen with its meaning; `adapted` and `control` say whether it has such marks."""
    yield (
        "Rows",
        "One for each hospital, with the patients who were tested. Those above the line trained the model (at home), "
        "those below took no part (outside).",
    )
    yield (
        "Round marks and bars",
        _marks(findings, condition),
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
            "up if the whole bar of the loss ends before the band does, and loses if the whole bar is right of zero; "
            "how much is open where the bar begins in the band. Otherwise nobody can tell.",
        )
    yield (
        "ok, suspect, problem",
        "Checks that no reader can make: ok found nothing, suspect needs a look, a problem makes scores untrue, and "
        "unknown could not be checked.",
    )
