"""The answer for a clinician in three sentences, and how to read the first screen: no method and no statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.values import inner, listed
from ..analysis.verdict import Reason, Verdict, Word
from .nouns import Nouns
from .phrases import capital, noun, points
from .verdict_texts import Told

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NAMED = 4
"""Sites outside that are named. More are only counted."""
INVENTED = "The images are invented and show nothing about any {other}; if they were real, "
BEATEN = (
    "you may not conclude that a network is of use: it works about as well in {these} as at home, but a simple "
    "classifier without a network works better."
)
FAULTY = "Conclude nothing before the faults of the data that stand at the top of this page are corrected."


def sentences(
    findings: Findings,
    condition: Condition,
    judged: Verdict,
    nouns: Nouns,
    faulty: bool,
    synthetic: bool,
    beaten: bool = False,
) -> list[str]:
    """Return what was tested and where, what came out and how sure it is, and what may be concluded.

    The three sentences hold three numbers at most, beside those in names of sites. They are about the first
    condition. Of `faulty` data nothing may be concluded. Where the network is `beaten` by the control, none is needed.
    There are none where nothing has been scored.
    """
    if not (judged.home.known or judged.loss.known or judged.reason is Reason.HOME_UNTESTED):
        return []
    told = Told(findings, condition, judged, nouns)
    concluded = told.said("concluded")
    if beaten and judged.word is Word.HOLDS:
        concluded = BEATEN.format_map(told.fields)
    last = FAULTY if faulty else f"{INVENTED.format_map(told.fields) if synthetic else 'So '}{concluded}"
    return [_tested(findings, condition, nouns), told.said("came_out"), last]


def in_letters(count: int) -> str:
    """Return a small number as a word, and a larger one in digits."""
    if count < len(NUMBERS):
        return NUMBERS[count]
    return f"{count:,}"


def _tested(findings: Findings, condition: Condition, nouns: Nouns) -> str:
    """Return who trained the model, and on whose images it was tested."""
    inside = condition.partition.internal
    outside = nouns.outside(member.partition for member in findings.alike(condition))
    role = "internal"
    if outside.sites:
        role = "external"
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
        return f"{trained}; it was tested on {people} of the same {noun(len(inside), nouns.each(inside))}."
    names = ""
    if len(outside.sites) <= NAMED:
        names = f" ({listed(outside.sites)})"
    # a scanner whose hospital trained with another one cannot be said to have taken no part
    where = "outside" if shared else "that took no part"
    return f"{trained}; it was tested on {people} of {there} {where}{names}{shared}."


def _people(findings: Findings, condition: Condition, role: str, unit: str) -> str:
    """Return the number of tested patients; without a number where it is not known."""
    value = findings.effect("level", condition, findings.level_inference(condition), role, across=findings.averaged)
    if value.patients > 0:
        return f"{value.patients:,.0f} {unit}"
    return unit


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
        f"One for each {nouns.place}, with the number of tested {nouns.units}. Those above the line trained the model "
        "(at home), those below did not (outside).",
    )
    yield (
        "Round marks and bars",
        _marks(findings, condition, nouns.units),
    )
    if adapted:
        yield (
            "Diamonds",
            f"The same model, adapted to the images of that {nouns.place} without knowing any "
            f"{'diagnosis' if nouns.medical else 'label'}.",
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
            "up if the whole bar of the loss ends before the band does. If not, it loses if the whole bar is right of "
            "zero, and how much is open where the bar begins in the band. Else nobody can tell.",
        )
    yield (
        "ok, suspect, problem",
        "Checks that no reader can make: ok found nothing, suspect needs a look, a problem makes scores untrue, and "
        "unknown could not be checked.",
    )
