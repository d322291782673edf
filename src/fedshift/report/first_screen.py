"""The first screen of a page: the verdict in a word and a plain sentence, for whom it holds, what would settle it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.values import Value, inner, listed, number
from ..analysis.verdict import Reason, Verdict, Word, incomparable
from .cohort import TORN, Check
from .phrases import counted, joined, level, points

WIDTHS = 1.96
"""Half the width of a normal 95% interval, in standard errors."""
SITES = 4
"""The most sites that a sentence names."""
FAR = 50
"""With more than so many times the patients or trainings, no number of them is named."""


@dataclass(frozen=True)
class Screen:
    """The verdict of a study for readers in a hurry.

    Attributes
    ----------
    word, tone : the verdict, and whether it is good, bad or plain
    sentence : what it means, with three numbers at most and without names of methods
    whom : the sites that it holds for
    settle : what would decide it: how many more patients or trainings, or what must come first; may be empty
    size : an established loss against the margin, in words; else empty
    """

    word: str
    tone: str
    sentence: str
    whom: str
    settle: str
    size: str = ""


def screen(
    findings: Findings, condition: Condition, judged: Verdict, unit: str, first: str = "", beaten: str = ""
) -> Screen:
    """Return the verdict on a condition. `first` is what to do before more patients or trainings could settle it.

    `beaten` says that the control without a network is better: a network that holds up is then not shown as good.
    """
    word, tone, sentence = _said(findings, condition, judged)
    if beaten and judged.word is Word.HOLDS:
        worst = points(max(judged.loss.high, 0), findings)
        word, tone = "A simple classifier is better", "plain"
        sentence = f"{beaten} From home to outside the network loses at most {worst}."
    settle = ""
    if judged.word is Word.CANNOT_TELL:
        settle = first or _settle(findings, judged, unit)
    return Screen(word, tone, sentence, _whom(findings, condition, judged), settle, _size(findings, judged))


def _size(findings: Findings, judged: Verdict) -> str:
    """Return how large an established loss is, against the margin or, without one, against what is above a guess."""
    if judged.word is not Word.LOSES:
        return ""
    loss, home = judged.loss.mean, findings.better(judged.home)
    if findings.margin:
        return f"{loss / findings.margin:.1f} times the margin"
    if home.mean > home.chance:
        return f"{100 * loss / (home.mean - home.chance):.0f} % of its lead over a guess"
    return ""


def _loses(findings: Findings, judged: Verdict) -> str:
    """Return an established loss, the least that it may be, and its size: three numbers at most."""
    subject = "it"
    if not findings.headline.percent:
        subject = f"its {inner(findings.headline)}"
    lost, least = points(judged.loss.mean, findings), number(judged.loss.low, findings.headline)
    text = f"Outside {subject} is {lost} worse than at home (at least {least})"
    text = f"{', '.join(filter(None, [text, _size(findings, judged)]))}."
    return text if findings.margin else f"{text} There is no margin: any sure loss counts."


def _said(findings: Findings, condition: Condition, judged: Verdict) -> tuple[str, str, str]:
    metric, loss, home = findings.headline, judged.loss, findings.better(judged.home)
    margin = points(findings.margin, findings) if findings.margin else "none"
    low, high = (points(abs(x), findings) for x in (loss.low, loss.high))
    at_home = f"At home its {inner(metric)} is {level(judged.home.mean, metric)}"
    reference = level(max(home.chance, home.majority) * (1 if metric.higher_is_better else -1), metric)
    match judged.word, judged.reason:
        case Word.HOLDS, _:
            return "Holds up", "good", f"Outside it is at most {high} worse than at home; the margin is {margin}."
        case Word.LOSES, _:
            return "Loses", "bad", _loses(findings, judged)
        case _, Reason.NOT_COMPARABLE:
            where = listed(incomparable(findings, condition)[:SITES])
            text = (
                f"At {where} all test samples are of one class, so that the scores there and elsewhere differ in kind."
            )
            return "Cannot tell", "plain", text
        case _, Reason.BELOW_CHANCE:
            where = listed(list(judged.below))
            text = f"At {where} it does worse than a guess. Are the labels coded the other way round there?"
            return "Worse than guessing", "bad", text
        case _, Reason.HOME_FAILS:
            return (
                "Does not work at home",
                "bad",
                f"{at_home}; always giving the commonest class, or guessing, has {reference}.",
            )
        case _, Reason.HOME_IN_DOUBT:
            text = f"{at_home}, which may be no better than guessing or the commonest class ({reference} there)."
            return "Not shown to work at home", "plain", text
        case _, Reason.SITES_DISAGREE:
            text = "Outside it is surely worse at one hospital and surely better at another."
            return "Depends on the hospital", "plain", text
        case _, Reason.TOO_WIDE:
            if loss.low < 0:
                return "Cannot tell", "plain", f"Outside it may be {high} worse than at home, or {low} better."
            return "Cannot tell", "plain", f"Outside it may be {high} worse than at home, or as good."
        case _, Reason.WITHOUT_INTERVAL | Reason.HOME_WITHOUT_INTERVAL:
            return "Cannot tell", "plain", "The test patients are too few to say how sure the scores are."
        case _, Reason.ALONE:
            return "No common model", "plain", "Each hospital has its own model, which no other hospital can use."
        case _, Reason.NO_EXTERNAL_SITE:
            return "No hospital outside", "plain", "All hospitals of this study took part in the training."
        case _, Reason.HOME_UNTESTED:
            return "Nothing to compare with", "plain", "The hospitals that trained keep no test images."
    key = findings.level_inference(condition)
    if any(findings.scored(held_out, key) for held_out in findings.alike(condition)):
        text = "Runs or predictions are missing, so that hospitals inside and outside cannot be compared yet."
        return "No result yet", "plain", text
    return "No result yet", "plain", "No run of this study has been scored."


def _whom(findings: Findings, condition: Condition, judged: Verdict) -> str:
    """Return the external sites that were tested."""
    sites = list(dict.fromkeys(site for one in findings.alike(condition) for site in one.partition.external))
    if not sites:
        return ""
    names = listed(sites) if len(sites) <= 4 else f"{', '.join(sites[:3])} and {len(sites) - 3} others"
    text = f"{counted(len(sites), 'hospital')} outside: {names}"
    return f"{text}. Other hospitals may differ" if len(judged.sites) < 3 else text


def _settle(findings: Findings, judged: Verdict, unit: str) -> str:
    """Return what would decide an open question, and the smallest loss that the study could have seen."""
    loss = judged.loss
    half = (loss.high - loss.low) / 2
    if judged.reason is Reason.HOME_IN_DOUBT:
        return f"More test {unit} at home would settle it."
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
        "trainings": _times(trainings, patients, room) * loss.seeds,
        unit: _times(patients, trainings, room) * loss.patients,
    }
    both = (trainings**2 + patients**2) / room**2
    if both <= 1:
        # normal errors would fit already: the interval is wide as few trainings hardly tell how much they differ
        few = counted(loss.seeds, "training")
        return (
            f"A few more trainings would settle it, if the loss stays where it is: {few} hardly tell how they differ."
        )
    possible = [f"{math.ceil(n):,} {what}" for what, n in alone.items() if n < FAR * _now(loss, what, unit)]
    if possible:
        return f"About {' or '.join(possible)} in all would settle it, if the loss stays where it is."
    if both < FAR:
        count = f"{math.ceil(both * loss.patients):,} {unit} and {math.ceil(both * loss.seeds)} trainings"
        return f"About {count} in all would settle it, if the loss stays where it is."
    return f"Far more {unit} and trainings would be needed to settle it."


def _now(loss: Value, what: str, unit: str) -> float:
    return loss.patients if what == unit else loss.seeds


def _times(shrinks: float, stays: float, room: float) -> float:
    """Return by how many times a source of variance must grow so that the standard error fits; inf where it cannot."""
    left = room**2 - stays**2
    return shrinks**2 / left if left > 0 else math.inf


@dataclass(frozen=True)
class Light:
    """One thing that can be wrong: its name, whether it is ok, unknown, suspect or a problem, and where more is."""

    name: str
    status: str
    detail: str
    place: str


def lights(
    checked: Sequence[Check], late: str, below: Sequence[str], few: Sequence[str], overlooked: Light | None = None
) -> list[Light]:
    """Return what readers ask first of a study.

    Parameters
    ----------
    checked : the checks of the cohorts
    late : what is said of trainings that may not have converged; empty if all have
    below : sites that are surely predicted worse than by guessing
    few : what is said of sites with one class, or with few samples of one
    overlooked : for a task without classes of images, what stands in the place of the lights about these
    """
    torn = [check for check in checked if check.what == TORN and check.status == "PROBLEM"]
    worst = next((s for s in ("PROBLEM", "suspect", "unknown") if any(check.status == s for check in checked)), "ok")
    found = [f"{check.what}: {check.detail}" for check in checked if check.status == worst and worst != "ok"]
    wrong = [*(f"worse than guessing at {site}" for site in below), *(f"{c.what}: {c.detail}" for c in torn)]
    said = [*few[:SITES], f"{len(few) - SITES} more"] if len(few) > SITES else [*few]
    first = [
        Light(
            "Leaks and copies", worst.lower() if checked else "unknown", joined(*found[:1]) or "nothing found", "care"
        ),
        Light("Converged", "suspect" if late else "ok", late or "by validation", "care"),
    ]
    if overlooked:
        return [*first, overlooked]
    return [
        *first,
        Light(
            "Coding of labels",
            "problem" if wrong else "ok",
            listed(wrong) or "no site is worse than guessing",
            "sites",
        ),
        Light(
            "Classes and events", "suspect" if few else "ok", listed(said) or "enough of each at all sites", "cohort"
        ),
    ]
