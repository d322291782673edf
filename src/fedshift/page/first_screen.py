"""The first screen of a page: the verdict in a word and a plain sentence, for whom it holds, what would settle it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.conditions import Condition
from ..analysis.controls import Controls
from ..analysis.findings import Findings
from ..analysis.values import Value, listed
from ..analysis.verdict import FEWEST_SITES, Reason, Verdict, Word
from ..core.spelling import plural
from .cohort import TWO_LABELS, Check
from .html import Light
from .phrases import Nouns, counted, joined, points
from .verdict_texts import SITES, Told, low_level, magnitude, next_step

WIDTHS = 1.96
"""Half the width of a normal 95% interval, in standard errors."""
FAR = 50
"""With more than so many times the patients or trainings, no number of them is named."""


@dataclass(frozen=True)
class Screen:
    """The verdict of a study for readers in a hurry.

    Attributes
    ----------
    word, tone : the verdict, and whether it is good, bad or plain
    sentence : what it means, with three numbers at most and without names of methods
    whom : the condition, and the sites that the verdict holds for
    settle : what would decide it: how many more patients or trainings; may be empty
    size : an established loss against the margin, in words; else empty
    step : what to do next, with a line of YAML or a command in backticks
    low : that a level which holds up is low in itself; else empty
    """

    word: str
    tone: str
    sentence: str
    whom: str
    settle: str
    size: str = ""
    step: str = ""
    low: str = ""


def screen(
    findings: Findings,
    condition: Condition,
    judged: Verdict,
    nouns: Nouns,
    first: str = "",
    beaten: str = "",
    led: str = "",
    late: bool = False,
    controls: Controls | None = None,
) -> Screen:
    """Return the verdict on a condition. `first` is what to do before anything else.

    `beaten` says that the control without a network is better. `led` names the condition, and `late` says that
    trainings may not have converged. `controls` stand beside a level that is low in itself.
    """
    told = Told(findings, condition, judged, nouns, beaten)
    word, tone, sentence = (told.said(what) for what in ("word", "tone", "sentence"))
    is_open = judged.word is Word.CANNOT_TELL and not first
    settle = _settle(findings, judged, nouns.units) if is_open else ""
    whom = ". ".join(filter(None, (led, _whom(findings, condition, judged, nouns))))
    step = first or next_step(told, late)
    return Screen(word, tone, sentence, whom, settle, magnitude(findings, judged), step, low_level(told, controls))


def _whom(findings: Findings, condition: Condition, judged: Verdict, nouns: Nouns) -> str:
    """Return the external sites that were tested, and which of them belong to a hospital that trained."""
    outside = nouns.outside(one.partition for one in findings.alike(condition))
    sites = outside.sites
    if not sites:
        return ""
    names = listed(sites) if len(sites) <= 4 else f"{', '.join(sites[:3])} and {len(sites) - 3} others"
    count = nouns.counted(sites, owned=not outside.shared)
    text = "; ".join(filter(None, (f"{count} outside: {names}", outside.shared)))
    few = sum(site in outside.apart for site in judged.sites) < FEWEST_SITES
    return f"{text}. Other {plural(nouns.other)} may differ" if few else text


def _settle(findings: Findings, judged: Verdict, unit: str) -> str:
    """Return what would decide an open question, and the smallest loss that the study could have seen."""
    loss = judged.loss
    half = (loss.high - loss.low) / 2
    if judged.reason is Reason.HOME_IN_DOUBT:
        more = (f"test {unit}" if need == "patients" else need for need in judged.needs)
        return f"More {listed(list(more))} at home would settle it." if judged.needs else ""
    if math.isnan(half) or judged.reason is not Reason.TOO_WIDE:
        return ""
    seen = f"A loss under {points(half, findings)} could not have been seen."
    return f"{_more(loss, findings.margin, unit)} {seen}".strip()


def _more(loss: Value, margin: float, unit: str) -> str:
    """Return how many patients and trainings would bring the interval to one side, if the mean stays where it is."""
    room = max(loss.mean, margin - loss.mean) / WIDTHS
    trainings = loss.std / math.sqrt(loss.seeds) if loss.seeds > 1 else math.nan
    patients = (loss.high_patients - loss.low_patients) / (2 * WIDTHS)
    if room <= 0 or math.isnan(trainings + patients) or not loss.patients > 0:
        return ""
    alone = {
        "trainings": (_times(trainings, patients, room), loss.seeds),
        unit: (_times(patients, trainings, room), loss.patients),
    }
    both = (trainings**2 + patients**2) / room**2
    if both <= 1:
        # normal errors would fit already: the interval is wide as few trainings hardly tell how much they differ
        few = f"{counted(loss.seeds, 'training')} hardly tell how they differ"
        return f"A few more trainings would settle it, if the loss stays where it is: {few}."
    possible = [f"{math.ceil(times * now):,} {what}" for what, (times, now) in alone.items() if times < FAR]
    if possible:
        return f"About {' or '.join(possible)} in all would settle it, if the loss stays where it is."
    if both < FAR:
        count = f"{math.ceil(both * loss.patients):,} {unit} and {math.ceil(both * loss.seeds)} trainings"
        return f"About {count} in all would settle it, if the loss stays where it is."
    return f"Far more {unit} and trainings would be needed to settle it."


def _times(shrinks: float, stays: float, room: float) -> float:
    """Return by how many times a source of variance must grow so that the standard error fits; inf where it cannot."""
    left = room**2 - stays**2
    return shrinks**2 / left if left > 0 else math.inf


def lights(
    checked: Sequence[Check],
    below: Sequence[str],
    few: Sequence[str],
    overlooked: Light | None = None,
    thresholds: Light | None = None,
) -> list[Light]:
    """Return what readers ask first of the data of a study; what they ask of its trainings is in `history`.

    Parameters
    ----------
    checked : the checks of the cohorts
    below : sites that are surely predicted worse than by guessing
    few : what is said of sites with one class, or with few samples of one
    overlooked : for a task without classes of images, what stands in the place of the lights about these
    thresholds : whether threshold and probabilities hold outside, where that is known
    """
    torn = [check for check in checked if check.what.endswith(TWO_LABELS) and check.status == "PROBLEM"]
    worst = next((s for s in ("PROBLEM", "suspect", "unknown") if any(check.status == s for check in checked)), "ok")
    found = [f"{check.what}: {check.detail}" for check in checked if check.status == worst and worst != "ok"]
    wrong = [*(f"worse than guessing at {site}" for site in below), *(f"{c.what}: {c.detail}" for c in torn)]
    said = [*few[:SITES], f"{len(few) - SITES} more"] if len(few) > SITES else [*few]
    first = [
        Light(
            "Leaks and copies", worst.lower() if checked else "unknown", joined(*found[:1]) or "nothing found", "care"
        ),
    ]
    if overlooked:
        return [*first, overlooked]
    return [
        *first,
        Light(
            "Coding of labels",
            "problem" if wrong else "ok",
            listed(wrong) or "no site is surely worse than guessing",
            "sites",
        ),
        Light(
            "Classes and events", "suspect" if few else "ok", listed(said) or "enough of each at all sites", "cohort"
        ),
        *([thresholds] if thresholds else []),
    ]
