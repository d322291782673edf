"""The answer of a study in sentences, made from its numbers, with the doubts that the numbers leave."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..algorithms import Collaboration
from ..analysis import contrasts
from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.values import DASH, Value, inner, listed, number, spread
from ..analysis.verdict import Reason, Recovery, Verdict, verdict
from . import comparison_section
from .html import Tile
from .phrases import (
    HOSPITALS,
    Nouns,
    capital,
    change_interval,
    home_of_all,
    interval,
    joined,
    level,
    of_seeds,
    over,
    percent,
    points,
    signed,
    why_none,
)
from .verdict_texts import Told
from .verdict_words import NO_EXTERNAL_SITE, all_of, distinct, these_only

IN_WORDS = 6
"""Conditions that are described in sentences. The overview table has all."""
ONE_BY_ONE = 3
"""With more conditions, a sentence about all of them comes first."""


@dataclass(frozen=True)
class Answer:
    """The sentences about the first condition and the others, and the numbers of the first.

    `opening` is about all conditions, and empty where they are few: then `compared` says how they differ. The first
    condition is never chosen by results: see `leading`. `led` names it, and says why it is this one where there are
    several. `further` counts the conditions without a sentence. `condition` is the first,
    and `judged` the verdict on it.
    """

    opening: str
    compared: str
    lead: str
    others: list[str]
    tiles: list[Tile]
    further: int
    condition: Condition
    judged: Verdict
    led: str


def leading(findings: Findings, conditions: Sequence[Condition]) -> tuple[Condition, str]:
    """Return the condition that a page is about, and the words that say why it is this one.

    It is the first of the primary comparison that a study declares, or else the first federated condition of the study.
    No result plays a part, not even validation images at home: trainings that were lucky there are lucky outside, too.
    """
    if declared := contrasts.declared(findings):
        first = next(one for one in conditions if one in declared[0].first.members)
        return first, "named first by the declared comparison, of {} conditions"
    federated = (one for one in conditions if type(one.run.algorithm.collaboration) is Collaboration)
    return next(federated, conditions[0]), "first of {} conditions"


@functools.lru_cache(maxsize=1)  # many sections of one page ask, and the answer lies in the plan
def by_lead(findings: Findings) -> tuple[list[Condition], list[Condition]]:
    """Return the conditions that a page is about, one for each partition that it is averaged over, and all others."""
    led = findings.alike(leading(findings, list(distinct(findings).values()))[0])
    return led, [condition for condition in findings.conditions if condition not in led]


def answer(findings: Findings, nouns: Nouns = HOSPITALS, faulty: bool = False) -> Answer:
    """Return the headline of a study, led by the comparison of its conditions where there are many.

    Numbers are averaged over partitions where each of these leaves out other sites. Of `faulty` data nothing is said of
    what would narrow an interval.
    """
    conditions = list(distinct(findings).values())
    compared = comparison_section.sentences(findings, nouns.units)
    opening = ""
    many = len(conditions) > ONE_BY_ONE
    first, why = leading(findings, conditions)
    # False sorts first, and the sort is stable: the leading condition comes first, the others keep their order
    conditions.sort(key=lambda condition: condition is not first)
    title = findings.title(first)
    if len(first.inferences) > 1:
        title += f", {findings.name(first.level_inference)}"
    led = f"{title}, {why.format(len(conditions))}" if len(conditions) > 1 else title
    judged = [verdict(findings, condition) for condition in conditions]
    if faulty:
        judged = [replace(found, needs=()) for found in judged]
    outside = any(condition.partition.external for condition in findings.conditions)
    # a page of many conditions opens with their comparison instead of ending with it
    if many:
        opening, compared = compared, ""
        tested = [found for found in judged if found.reason is not Reason.ALONE]
        if outside and len(tested) > 1:
            opening = joined(opening, all_of(tested))
    texts = []
    for condition, found in list(zip(conditions, judged, strict=True))[:IN_WORDS]:
        title = findings.title(condition)
        texts.append(f"{title}: {sentences(findings, condition, found, nouns)}")
    if not outside:
        for n, condition in enumerate(conditions[:IN_WORDS]):
            if condition.run.algorithm.collaboration.has_global_model:
                texts[n] = joined(texts[n], NO_EXTERNAL_SITE)
                break
    texts[0] = joined(texts[0], these_only(findings, conditions[0], judged[0], nouns))
    numbers = tiles(findings, conditions[0], nouns)
    further = len(conditions) - len(texts)
    return Answer(opening, compared, texts[0], texts[1:], numbers, further, conditions[0], judged[0], led)


def sentences(findings: Findings, condition: Condition, judged: Verdict, nouns: Nouns) -> str:
    """Return the sentences about one condition, which begin with the verdict on it."""
    key = condition.level_inference
    metric = findings.headline
    levels = {
        role: findings.effect("level", condition, key, role, across=findings.averaged)
        for role in ("internal", "external")
    }
    if not any(value.known for value in levels.values()):
        return "no run of it has been scored, or its headline metric is defined at none of its sites."
    at_home, outside = (
        f"{spread(value, metric)}{percent(metric)}{of_seeds(value, condition)} at {_sites(findings, condition, role)}"
        for role, value in levels.items()
    )
    statistics = "training statistics" if key == findings.baseline else findings.name(key)
    inside = f"{inner(metric)} {at_home}, with {statistics}."
    together = condition.run.algorithm.collaboration
    if not together.has_global_model:
        return f"{inside} {capital(together.apart)}: {together.moves}."
    if not condition.partition.external:
        return inside
    where = [outside] if levels["external"].known else []
    if condition.tests_inside:
        where.insert(0, at_home)
    text = f"{metric.title} {listed(where)}, with {statistics}."
    change = [*_change(findings, condition, judged, nouns.units)]
    change += _inside(findings, condition, named=not change)
    return " ".join([Told(findings, condition, judged, nouns).said("detail"), text, *change])


def _change(findings: Findings, condition: Condition, judged: Verdict, unit: str) -> Iterator[str]:
    """Yield a sentence about what an inference other than the baseline changes outside."""
    key = condition.compared_inference
    if findings.baseline is None or key is None or (not judged.loss.known and condition.tests_inside):
        return
    gain = findings.gain(condition, key, "external", across=findings.averaged)
    if not gain.known:
        yield f"{findings.name(key)} has not been scored."
        return
    why = f" ({why_none(findings, condition, unit, ('external',))})"
    if judged.reason in (Reason.HOME_WITHOUT_INTERVAL, Reason.WITHOUT_INTERVAL):
        # the verdict has just told why
        why = ""
    yield f"{findings.name(key)} {_gain(findings, gain, judged, why, unit)}."


def _gain(findings: Findings, gain: Value, judged: Verdict, why: str, unit: str) -> str:
    """Return what an inference changes outside, as the rest of a sentence. `why` explains a missing interval."""
    amount = points(abs(gain.mean), findings)
    shown = _shown(gain.mean)
    around = change_interval(gain, findings, unit)
    aside = f" ({around})"
    if math.isnan(gain.low):
        aside = f", but no interval can be given{why}"
    elif shown and gain.low <= 0 <= gain.high:
        aside += ", but the interval includes no change at all"
    if shown == 0:
        return f"changes nothing at external sites{aside}"
    if shown < 0:
        verb = "does not help: it costs" if gain.high < 0 else "costs"
        return f"{verb} {amount} at external sites{aside}"
    if judged.recovery is not Recovery.RECOVERS:
        return f"adds {amount} at external sites{aside}"
    part = f"{amount} of the external loss"
    if shown > _shown(judged.loss.mean):
        part = f"more than the external loss of {points(judged.loss.mean, findings)}: +{amount}"
    return f"recovers {part}, {around}"


def _inside(findings: Findings, condition: Condition, named: bool) -> Iterator[str]:
    """Yield a sentence about what the same inference changes at internal sites, with the gap that it leaves.

    The inference is `named` where no sentence before has named it.
    """
    key = condition.compared_inference
    metric = findings.headline
    across = findings.averaged
    if findings.baseline is None or key is None:
        return
    gain = findings.gain(condition, key, "internal", across=across)
    if not gain.known or _shown(gain.mean) == 0:
        return
    verb = "adds" if gain.mean > 0 else "costs"
    subject = findings.name(key) if named else "it"
    text = f"At internal sites {subject} {verb} {number(abs(gain.mean), metric)}"
    if not math.isnan(gain.std):
        text += f" ± {number(gain.std, metric)}"
    if metric.percent:
        text += " points"
    before, after = (findings.gap(condition, k, across) for k in (findings.baseline, key))
    if before.known and after.known:
        text += f", and the gap with {findings.name(key)} is {points(after.mean, findings)}"
        if _shown(after.mean) > max(_shown(before.mean), 0):
            text += f", larger than the {number(before.mean, metric)} without it"
    yield f"{text}."


def tiles(findings: Findings, condition: Condition, nouns: Nouns) -> list[Tile]:
    """Return the levels behind the headline sentence, each with its interval; how they differ, sentences say."""
    key = condition.level_inference
    compared = condition.compared_inference

    def level_tile(role: str, inference: str, notes: Iterable[str] = ()) -> Tile:
        value = findings.effect("level", condition, inference, role, across=findings.averaged)
        text = level(value.mean, findings.headline) if value.known else DASH
        place = "at home" if role == "internal" else "outside"
        label = f"{findings.headline.title} {place}"
        if inference != findings.baseline:
            label = f"{place.capitalize()}, adapted ({findings.name(inference)})"
        return Tile(label, text, "; ".join([*_notes(findings, condition, value, nouns.units), *notes]))

    made = []
    if condition.tests_inside:
        made.append(level_tile("internal", key, filter(None, [home_of_all(findings, condition, nouns)])))
    if condition.partition.external:
        made.append(level_tile("external", key))
        if findings.baseline in condition.inferences and compared is not None:
            gain = findings.gain(condition, compared, "external", across=findings.averaged)
            around = "no interval" if math.isnan(gain.low) else signed(gain, findings)
            gained = f"gain {points(gain.mean, findings, sign=True)} ({around})"
            made.append(level_tile("external", compared, [gained] if gain.known else ()))
    return made


def _notes(findings: Findings, condition: Condition, value: Value, unit: str) -> list[str]:
    """Return the interval of a value, and how many of its seeds are there if some are missing."""
    if not value.known:
        return []
    notes = [interval(value, findings.headline, over(value, unit))]
    if value.seeds != len(condition.seeds):
        notes.append(f"{value.seeds} of {len(condition.seeds)} seeds")
    return notes


def _sites(findings: Findings, condition: Condition, role: str) -> str:
    """Return `external sites`, or `2 of 3 external sites` where the metric is not defined at one."""
    alike = findings.alike(condition)
    everywhere = {site for member in alike for site in getattr(member.partition, role)}
    left_out = everywhere & set(findings.left_out(role, conditions=alike))
    if not left_out:
        return f"{role} sites"
    return f"{len(everywhere) - len(left_out)} of {len(everywhere)} {role} sites"


def _shown(x: float) -> float:
    """Return a value as precisely as it is written: a change that is not visible counts as none."""
    return round(x, 3)
