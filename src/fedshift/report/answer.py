"""The answer of a study in sentences, made from its numbers, with the doubts that the numbers leave."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.values import DASH, Value, between, doubtful, inner, listed, number, spread
from ..study.selector import BASELINE
from .tables import LOSS_RECOVERED

NO_EXTERNAL_SITE = "The study has no external site, so it cannot say how the model travels."
IN_WORDS = 6
"""Conditions that are described in sentences. The overview table has all."""


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

    `further` counts the conditions without a sentence.
    """

    lead: str
    others: list[str]
    tiles: list[Tile]
    further: int


def answer(findings: Findings, unit: str = "patients") -> Answer:
    """Return the headline of a study, led by its first condition.

    Numbers are averaged over partitions where each of these leaves out other sites. `unit` is what the intervals
    resample: patients, or images.
    """
    firsts: dict[str, Condition] = {}
    for condition in findings.conditions:
        firsts.setdefault(condition.family if findings.averaged else condition.id, condition)
    several = findings.several and not findings.averaged
    conditions = list(firsts.values())
    texts = [f"{c.full_title(several)}: {sentences(findings, c, unit)}" for c in conditions[:IN_WORDS]]
    if not any(c.partition.external for c in findings.conditions):
        together = [n for n, c in enumerate(conditions[:IN_WORDS]) if c.run.algorithm.collaboration.has_global_model]
        texts = [f"{text} {NO_EXTERNAL_SITE}" if n in together[:1] else text for n, text in enumerate(texts)]
    return Answer(texts[0], texts[1:], tiles(findings, conditions[0]), len(conditions) - len(texts))


def sentences(findings: Findings, condition: Condition, unit: str = "patients") -> str:
    """Return the sentences about one condition."""
    key, across = _level_inference(findings, condition), findings.averaged
    inside, outside = (
        findings.effect("level", condition, key, role, across=across) for role in ("internal", "external")
    )
    if not inside.known and not outside.known:
        return "no run of it has been scored, or its headline metric is defined at none of its sites."
    at_home = f"{_level(inside, findings, condition)} at {_sites(findings, condition, 'internal')}"
    away = f"{_level(outside, findings, condition)} at {_sites(findings, condition, 'external')}"
    metric, how = inner(findings.headline), f"with {_statistics(findings, key)}"
    if not condition.run.algorithm.collaboration.has_global_model:
        return f"{metric} {at_home}, {how}. Each client trains alone: nothing travels."
    if not condition.partition.external:
        return f"{metric} {at_home}, {how}."
    text = f"{metric} {f'{at_home} and {away}' if condition.tests_inside else away}, {how}."
    return " ".join([text, *_gap(findings, condition, across, unit), *_inside(findings, condition, across)])


def _gap(findings: Findings, condition: Condition, across: bool, unit: str) -> Iterator[str]:
    """Yield sentences about the loss outside, and about what an inference other than the baseline changes there."""
    if findings.baseline is None:
        return
    gap, metric = findings.gap(condition, findings.baseline, across), findings.headline
    if not gap.known and condition.tests_inside:
        return
    key, lost = _compared_inference(findings, condition), _shown(gap.mean) > 0
    doubts = [
        *([f"no interval can be given ({_why_none(findings, condition)})"] if math.isnan(gap.low) else []),
        *([f"its 95% interval includes zero ({_between(gap, findings)})"] if gap.low <= 0 <= gap.high else []),
        *([f"it is within its spread over seeds (± {number(gap.std, metric)})"] if abs(gap.mean) <= gap.std else []),
    ]
    if not gap.known:
        pass  # no internal site is tested: changes outside can still be reported
    elif not lost:
        yield "There is no loss outside to recover."
    elif doubts:
        yield f"The gap is {_points(gap.mean, findings)}, but {listed(doubts)}."
    elif key is None:
        yield f"The gap is {_points(gap.mean, findings)}."
    if key is None:
        return
    gain = findings.gain(condition, key, "external", across=across)
    if not gain.known:
        yield f"{findings.name(key)} has not been scored."
        return
    why = "" if lost and math.isnan(gap.low) else f" ({_why_none(findings, condition, ('external',))})"
    yield _gain(findings, findings.name(key), gain, gap, why, unit)


def _gain(findings: Findings, name: str, gain: Value, gap: Value, why: str, unit: str) -> str:
    """Return a sentence about what an inference changes outside. `why` explains a missing interval."""
    amount, shown = _points(abs(gain.mean), findings), _shown(gain.mean)
    bounds, doubts = "", []
    if math.isnan(gain.low):
        doubts.append(f"no interval can be given{why}")
    else:
        bounds = f"95% interval {_between(gain, findings)} over test {unit}, trainings fixed"
    aside = f" ({bounds})" if bounds else ""
    if shown and gain.low <= 0 <= gain.high:
        doubts.append("the interval includes no change at all")
    if shown and abs(gain.mean) <= gain.std:
        doubts.append(f"that is within its spread over seeds (± {number(gain.std, findings.headline)})")
    but = f", but {listed(doubts)}" if doubts else ""
    if shown == 0:
        return f"{name} changes nothing at external sites{aside}{but}."
    if shown < 0:
        verb = "does not help: it costs" if _tone(gain) == "bad" else "costs"
        return f"{name} {verb} {amount} at external sites{aside}{but}."
    if not _recovers(gain, gap):
        return f"{name} adds {amount} at external sites{aside}{but}."
    share = f"{100 * gain.mean / gap.mean:.0f} % of the external loss"
    if shown > _shown(gap.mean):
        share = f"more than the external loss of {_points(gap.mean, findings)}"
    return f"{name} recovers {share}: +{amount}, {bounds}{but}."


def _recovers(gain: Value, gap: Value) -> bool:
    """Return whether a gain can be given as a share of the loss outside: both must be beyond doubt."""
    return _tone(gain) == "good" and not doubtful(gain) and _shown(gap.mean) > 0 and not doubtful(gap)


def _tone(gain: Value) -> str:
    """Return good or bad if the interval of a change excludes zero, and otherwise plain."""
    return "good" if gain.low > 0 else "bad" if gain.high < 0 else "plain"


def _inside(findings: Findings, condition: Condition, across: bool) -> Iterator[str]:
    """Yield a sentence about what the same inference changes at internal sites, with the gap that it leaves."""
    key = _compared_inference(findings, condition)
    if findings.baseline is None or key is None:
        return
    gain = findings.gain(condition, key, "internal", across=across)
    if not gain.known or _shown(gain.mean) == 0:
        return
    over = f" ± {number(gain.std, findings.headline)}" if not math.isnan(gain.std) else ""
    text = f"At internal sites it {'adds' if gain.mean > 0 else 'costs'} {number(abs(gain.mean), findings.headline)}"
    text += f"{over}{' points' if findings.headline.percent else ''}"
    old, new = (findings.gap(condition, k, across) for k in (findings.baseline, key))
    if new.known and old.known:
        larger = f", larger than the {number(old.mean, findings.headline)} without it"
        text += f", and the gap with {findings.name(key)} is {_points(new.mean, findings)}"
        text += larger if _shown(new.mean) > max(_shown(old.mean), 0) else ""
    yield f"{text}."


def tiles(findings: Findings, condition: Condition) -> list[Tile]:
    """Return the numbers behind the headline sentence."""
    key, across = _level_inference(findings, condition), findings.averaged
    metric, unit = findings.headline, "\N{NO-BREAK SPACE}%" if findings.headline.percent else ""

    def level(label: str, how: str, role: str) -> Tile:
        value = findings.effect("level", condition, how, role, across=across)
        return Tile(
            label, number(value.mean, metric) + (unit if value.known else ""), _note(findings, condition, value)
        )

    numbers = [level(f"Internal sites, {findings.name(key)}", key, "internal")] if condition.tests_inside else []
    if condition.partition.external:
        numbers.append(level(f"External sites, {findings.name(key)}", key, "external"))
    other = _compared_inference(findings, condition)
    if not condition.partition.external or findings.baseline not in condition.inferences or other is None:
        return numbers
    assert findings.baseline is not None
    gap = findings.gap(condition, findings.baseline, across)
    gain = findings.gain(condition, other, "external", across=across)
    label, figure, recovers = f"Change outside, {findings.name(other)}", DASH, _recovers(gain, gap)
    if gain.known:
        figure = _points(gain.mean, findings, sign=True)
    if recovers:
        label, figure = f"{LOSS_RECOVERED}, {findings.name(other)}", f"{100 * gain.mean / gap.mean:.0f} %"
    change = Tile(label, figure, _note(findings, condition, gain, change=True, mean=recovers), _tone(gain))
    return [*numbers, level(f"External sites, {findings.name(other)}", other, "external"), change]


def _note(findings: Findings, condition: Condition, value: Value, change: bool = False, mean: bool = False) -> str:
    """Return spread, interval and missing seeds of a value, after its mean if `mean` is set. A change has a sign."""
    metric, parts = findings.headline, []
    over = "" if math.isnan(value.std) else f"± {number(value.std, metric)} over {value.seeds} seeds"
    if mean and value.known:
        parts.append(" ".join(filter(None, [f"{_points(value.mean, findings, sign=True)}", over])))
    elif over:
        parts.append(over)
    if value.known:
        inside = between(value, metric, sign=change)
        parts.append("no interval" if math.isnan(value.low) else f"95% interval {inside}")
    if value.known and value.seeds != len(condition.runs):
        parts.append(f"{value.seeds} of {len(condition.runs)} seeds")
    return "; ".join(parts)


def _level_inference(findings: Findings, condition: Condition) -> str:
    """Return the inference whose levels are reported: the baseline if the study has it, else the first."""
    plain = [k for k in condition.inferences if not findings.plan.inferences[k].uses_labels]
    return findings.baseline if findings.baseline in plain else (plain or condition.inferences)[0]


def _compared_inference(findings: Findings, condition: Condition) -> str | None:
    """Return the inference that is compared with the baseline: the first of another kind that needs no labels."""
    inferences = findings.plan.inferences
    others = [k for k in findings.others(condition) if not inferences[k].uses_labels]
    return next((k for k in others if inferences[k].name != BASELINE), next(iter(others), None))


def _alike(findings: Findings, condition: Condition) -> list[Condition]:
    """Return the conditions that a number is averaged over: one for each partition, or the condition alone."""
    return [c for c in findings.conditions if c.family == condition.family] if findings.averaged else [condition]


def _why_none(findings: Findings, condition: Condition, roles: tuple[str, ...] = ("internal", "external")) -> str:
    """Return why the headline metric has no interval."""
    if not findings.headline.has_interval:
        return f"{inner(findings.headline)} comes without"
    sites = findings.without_interval(_alike(findings, condition), roles)
    few = f"too few test patients{' of a class' if findings.headline.by_class else ''}"
    return f"{few} at {listed(sites)}" if sites else few


def _sites(findings: Findings, condition: Condition, role: str) -> str:
    """Return `external sites`, or `2 of 3 external sites` where the metric is not defined at one."""
    alike = _alike(findings, condition)
    everywhere = {s for c in alike for s in getattr(c.partition, role)}
    left_out = everywhere & set(findings.left_out(role, conditions=alike))
    if not left_out:
        return f"{role} sites"
    return f"{len(everywhere) - len(left_out)} of {len(everywhere)} {role} sites"


def _between(value: Value, findings: Findings) -> str:
    """Return the interval of a difference, with signs where they differ."""
    return between(value, findings.headline, sign=not value.low > 0)


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


def _points(x: float, findings: Findings, sign: bool = False) -> str:
    text = number(x, findings.headline, sign)
    return f"{text} {'point' if text.strip('+−') == '1.0' else 'points'}" if findings.headline.percent else text
