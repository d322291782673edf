"""The answer of a study in sentences, made from its numbers, with the doubts that the numbers leave."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis import contrasts
from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.values import DASH, Value, between, inner, number, spread
from ..analysis.verdict import Reason, Verdict, Word, verdict
from . import comparison
from .tables import LOSS_RECOVERED
from .verdict import NO_EXTERNAL_SITE, all_of, blind, over, points, sentence, signed, these_only, why_none

IN_WORDS = 6
"""Conditions that are described in sentences. The overview table has all."""
ONE_BY_ONE = 3
"""With more conditions, a sentence about all of them comes first."""


@dataclass(frozen=True)
class Tile:
    """One number of the headline: `tone` is good, bad or plain."""

    label: str
    value: str
    note: str
    tone: str = "plain"


@dataclass(frozen=True)
class Answer:
    """The sentences about the first condition and the others, and the numbers of the first.

    `opening` is about all conditions, and empty where they are few: then `compared` says how they differ. With an
    opening, the best condition stands first. `further` counts the conditions without a sentence.
    """

    opening: str
    compared: str
    lead: str
    others: list[str]
    tiles: list[Tile]
    further: int


def answer(findings: Findings, unit: str = "patients") -> Answer:
    """Return the headline of a study, led by the comparison of its conditions where there are many.

    Numbers are averaged over partitions where each of these leaves out other sites. `unit` is what the intervals
    resample: patients, or images.
    """
    firsts: dict[str, Condition] = {}
    for condition in findings.conditions:
        firsts.setdefault(condition.family if findings.averaged else condition.id, condition)
    several = findings.several and not findings.averaged
    conditions, compared = list(firsts.values()), comparison.sentences(findings, unit)
    if len(conditions) > ONE_BY_ONE:
        best = [standing.best.condition for standing in contrasts.standings(findings)[:1]]
        conditions.sort(key=lambda condition: condition not in best)
    judged = [verdict(findings, c) for c in conditions]
    in_words = list(zip(conditions, judged, strict=True))[:IN_WORDS]
    texts = [f"{c.full_title(several)}: {sentences(findings, c, v, unit)}" for c, v in in_words]
    outside = any(c.partition.external for c in findings.conditions)
    if not outside:
        together = [n for n, c in enumerate(conditions[:IN_WORDS]) if c.run.algorithm.collaboration.has_global_model]
        texts = [f"{text} {NO_EXTERNAL_SITE}" if n in together[:1] else text for n, text in enumerate(texts)]
    texts[0] = " ".join(filter(None, [texts[0], these_only(judged[0])]))
    opening = ""
    if len(conditions) > ONE_BY_ONE:
        opening, compared = " ".join(filter(None, [compared, all_of(judged) if outside else ""])), ""
    numbers = tiles(findings, conditions[0], judged[0], unit)
    return Answer(opening, compared, texts[0], texts[1:], numbers, len(conditions) - len(texts))


def sentences(findings: Findings, condition: Condition, judged: Verdict, unit: str) -> str:
    """Return the sentences about one condition, which begin with the verdict on it."""
    key, across = findings.level_inference(condition), findings.averaged
    inside, outside = (
        findings.effect("level", condition, key, role, across=across) for role in ("internal", "external")
    )
    if not inside.known and not outside.known:
        return "no run of it has been scored, or its headline metric is defined at none of its sites."
    at_home = f"{_level(inside, findings, condition)} at {_sites(findings, condition, 'internal')}"
    away = f"{_level(outside, findings, condition)} at {_sites(findings, condition, 'external')}"
    metric, how = inner(findings.headline), f"with {_statistics(findings, key)}"
    if not condition.run.algorithm.collaboration.has_global_model:
        together = condition.run.algorithm.collaboration
        return f"{metric} {at_home}, {how}. {together.apart[:1].upper()}{together.apart[1:]}: {together.moves}."
    if not condition.partition.external:
        return f"{metric} {at_home}, {how}."
    text = f"{findings.headline.title} {f'{at_home} and {away}' if condition.tests_inside else away}, {how}."
    change = (*_change(findings, condition, judged, unit), *_inside(findings, condition, across))
    return " ".join([sentence(findings, condition, judged, unit), text, *change])


def _change(findings: Findings, condition: Condition, judged: Verdict, unit: str) -> Iterator[str]:
    """Yield a sentence about what an inference other than the baseline changes outside."""
    key = findings.compared_inference(condition)
    if findings.baseline is None or key is None or (not judged.loss.known and condition.tests_inside):
        return
    gain = findings.gain(condition, key, "external", across=findings.averaged)
    if not gain.known:
        yield f"{findings.name(key)} has not been scored."
        return
    told = judged.reason in (Reason.HOME_WITHOUT_INTERVAL, Reason.WITHOUT_INTERVAL)
    why = "" if told else f" ({why_none(findings, condition, ('external',))})"
    yield _gain(findings, findings.name(key), gain, judged, why, unit)


def _gain(findings: Findings, name: str, gain: Value, judged: Verdict, why: str, unit: str) -> str:
    """Return a sentence about what an inference changes outside. `why` explains a missing interval."""
    amount, shown = points(abs(gain.mean), findings), _shown(gain.mean)
    bounds, but = "", f", but no interval can be given{why}"
    if not math.isnan(gain.low):
        bounds = f"95% interval {signed(gain, findings)} {over(gain, unit)}"
        but = ", but the interval includes no change at all" if shown and gain.low <= 0 <= gain.high else ""
    aside = f" ({bounds})" if bounds else ""
    if shown == 0:
        return f"{name} changes nothing at external sites{aside}{but}."
    if shown < 0:
        verb = "does not help: it costs" if _tone(gain) == "bad" else "costs"
        return f"{name} {verb} {amount} at external sites{aside}{but}."
    if not _recovers(gain, judged):
        return f"{name} adds {amount} at external sites{aside}{but}."
    share = f"{100 * gain.mean / judged.loss.mean:.0f} % of the external loss"
    if shown > _shown(judged.loss.mean):
        share = f"more than the external loss of {points(judged.loss.mean, findings)}"
    return f"{name} recovers {share}: +{amount}, {bounds}."


def _recovers(gain: Value, judged: Verdict) -> bool:
    """Return whether a gain can be given as a share of the loss outside: both must be established."""
    return judged.word is Word.LOSES and gain.low > 0


def _tone(gain: Value) -> str:
    """Return good or bad if the interval of a change excludes zero, and otherwise plain."""
    return "good" if gain.low > 0 else "bad" if gain.high < 0 else "plain"


def _inside(findings: Findings, condition: Condition, across: bool) -> Iterator[str]:
    """Yield a sentence about what the same inference changes at internal sites, with the gap that it leaves."""
    key = findings.compared_inference(condition)
    if findings.baseline is None or key is None:
        return
    gain = findings.gain(condition, key, "internal", across=across)
    if not gain.known or _shown(gain.mean) == 0:
        return
    deviation = f" ± {number(gain.std, findings.headline)}" if not math.isnan(gain.std) else ""
    text = f"At internal sites it {'adds' if gain.mean > 0 else 'costs'} {number(abs(gain.mean), findings.headline)}"
    text += f"{deviation}{' points' if findings.headline.percent else ''}"
    old, new = (findings.gap(condition, k, across) for k in (findings.baseline, key))
    if new.known and old.known:
        larger = f", larger than the {number(old.mean, findings.headline)} without it"
        text += f", and the gap with {findings.name(key)} is {points(new.mean, findings)}"
        text += larger if _shown(new.mean) > max(_shown(old.mean), 0) else ""
    yield f"{text}."


def tiles(findings: Findings, condition: Condition, judged: Verdict, unit: str) -> list[Tile]:
    """Return the numbers behind the headline sentence."""
    key, across = findings.level_inference(condition), findings.averaged
    metric, percent = findings.headline, "\N{NO-BREAK SPACE}%" if findings.headline.percent else ""

    def level(label: str, how: str, role: str) -> Tile:
        value = findings.effect("level", condition, how, role, across=across)
        note = [_note(findings, condition, value, unit), blind(findings.blind(condition, how, role), findings)]
        return Tile(label, number(value.mean, metric) + (percent if value.known else ""), "; ".join(filter(None, note)))

    numbers = [level(f"Internal sites, {findings.name(key)}", key, "internal")] if condition.tests_inside else []
    if condition.partition.external:
        numbers.append(level(f"External sites, {findings.name(key)}", key, "external"))
    other = findings.compared_inference(condition)
    if not condition.partition.external or findings.baseline not in condition.inferences or other is None:
        return numbers
    gain = findings.gain(condition, other, "external", across=across)
    label, figure, recovers = f"Change outside, {findings.name(other)}", DASH, _recovers(gain, judged)
    if gain.known:
        figure = points(gain.mean, findings, sign=True)
    if recovers:
        label, figure = f"{LOSS_RECOVERED}, {findings.name(other)}", f"{100 * gain.mean / judged.loss.mean:.0f} %"
    change = Tile(label, figure, _note(findings, condition, gain, unit, change=True, mean=recovers), _tone(gain))
    return [*numbers, level(f"External sites, {findings.name(other)}", other, "external"), change]


def _note(
    findings: Findings, condition: Condition, value: Value, unit: str, change: bool = False, mean: bool = False
) -> str:
    """Return spread, interval and missing seeds of a value, after its mean if `mean` is set. A change has a sign."""
    metric, parts = findings.headline, []
    seeds = "" if math.isnan(value.std) else f"± {number(value.std, metric)} over {value.seeds} seeds"
    if mean and value.known:
        parts.append(" ".join(filter(None, [f"{points(value.mean, findings, sign=True)}", seeds])))
    elif seeds:
        parts.append(seeds)
    if value.known:
        inside = between(value, metric, sign=change)
        parts.append("no interval" if math.isnan(value.low) else f"95% interval {inside} {over(value, unit)}")
    if value.known and value.seeds != len(condition.runs):
        parts.append(f"{value.seeds} of {len(condition.runs)} seeds")
    return "; ".join(parts)


def _sites(findings: Findings, condition: Condition, role: str) -> str:
    """Return `external sites`, or `2 of 3 external sites` where the metric is not defined at one."""
    alike = findings.alike(condition)
    everywhere = {s for c in alike for s in getattr(c.partition, role)}
    left_out = everywhere & set(findings.left_out(role, conditions=alike))
    if not left_out:
        return f"{role} sites"
    return f"{len(everywhere) - len(left_out)} of {len(everywhere)} {role} sites"


def _statistics(findings: Findings, key: str) -> str:
    return "training statistics" if key == findings.baseline else findings.name(key)


def _level(value: Value, findings: Findings, condition: Condition) -> str:
    """Return a level with its unit, and a count of seeds where some are missing."""
    unit = "\N{NO-BREAK SPACE}%" if findings.headline.percent else ""
    wanted = len(condition.runs)
    seeds = f" ({value.seeds} of {wanted} seeds)" if value.seeds != wanted else ""
    return f"{spread(value, findings.headline)}{unit}{seeds}"


def _shown(x: float) -> float:
    """Return a value as precisely as it is written: a change that is not visible counts as none."""
    return round(x, 3)
