"""The answer in words. Every sentence follows from numbers, and says so where they say little."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis.effects import ALL, BASELINE
from ..analysis.findings import Findings, Group
from ..analysis.values import DASH, Value, between, doubtful, inner, listed, number, spread
from .tables import LOSS_RECOVERED

NOWHERE = "The study has no external site, so it cannot say how the model travels."
TOLD = 6
"""So many conditions are put into words; the overview table has all."""


@dataclass(frozen=True)
class Tile:
    """One number: `tone` is good, bad or plain."""

    label: str
    value: str
    note: str
    tone: str = "plain"


@dataclass(frozen=True)
class Answer:
    """What the first condition says, what the others say, and the numbers of the first."""

    lead: str
    others: list[str]
    tiles: list[Tile]
    untold: int


def answer(findings: Findings, unit: str = "patients") -> Answer:
    """The headline of a study, from its first condition; averaged over partitions where these leave out other sites.

    `unit` is what the intervals resample: patients, or images.
    """
    titles = {g.title if findings.averaged else findings.full(g): g for g in reversed(findings.groups)}
    groups = list(titles.items())[::-1]
    told = [f"{title}: {sentences(findings, g, unit)}" for title, g in groups[:TOLD]]
    if not any(g.partition.external for g in findings.groups):
        together = [
            n for n, (_, group) in enumerate(groups[:TOLD]) if group.run.algorithm.collaboration.has_global_model
        ]
        told = [f"{text} {NOWHERE}" if n in together[:1] else text for n, text in enumerate(told)]
    return Answer(told[0], told[1:], tiles(findings, groups[0][1]), len(groups) - len(told))


def sentences(findings: Findings, group: Group, unit: str = "patients") -> str:
    """One condition in words."""
    key, held_out = _told(findings, group), _held_out(findings)
    inside, outside = (
        findings.effect("level", group, key, role, held_out=held_out) for role in ("internal", "external")
    )
    if not inside.known and not outside.known:
        return "no run of it has been scored, or its headline metric is defined at none of its sites."
    at_home = f"{_level(inside, findings, group)} at {_sites(findings, group, 'internal')}"
    away = f"{_level(outside, findings, group)} at {_sites(findings, group, 'external')}"
    metric, how = inner(findings.headline), f"with {_statistics(findings, key)}"
    if not group.run.algorithm.collaboration.has_global_model:
        return f"{metric} {at_home}, {how}. Each client trains alone: nothing travels."
    if not group.partition.external:
        return f"{metric} {at_home}, {how}."
    text = f"{metric} {f'{at_home} and {away}' if group.tests_inside else away}, {how}."
    return " ".join([text, *_gap(findings, group, held_out, unit), *_inside(findings, group, held_out)])


def _gap(findings: Findings, group: Group, held_out: str | None, unit: str) -> Iterator[str]:
    """What is lost outside, and what the inference that is told of does about it."""
    if findings.baseline is None:
        return
    gap, metric = findings.gap(group, findings.baseline, held_out), findings.headline
    if not gap.known and group.tests_inside:
        return
    key, lost = _other(findings, group), _shown(gap.mean) > 0
    doubts = [
        *([f"no interval can be given ({_why_none(findings, group)})"] if math.isnan(gap.low) else []),
        *([f"its 95% interval includes zero ({_between(gap, findings)})"] if gap.low <= 0 <= gap.high else []),
        *([f"it is within its spread over seeds (± {number(gap.std, metric)})"] if abs(gap.mean) <= gap.std else []),
    ]
    if not gap.known:
        pass  # no internal site is tested: what changes outside can be told all the same
    elif not lost:
        yield "There is no loss outside to recover."
    elif doubts:
        yield f"The gap is {_points(gap.mean, findings)}, but {listed(doubts)}."
    elif key is None:
        yield f"The gap is {_points(gap.mean, findings)}."
    if key is None:
        return
    gain = findings.gain(group, key, "external", held_out=held_out)
    if not gain.known:
        yield f"{findings.name(key)} has not been scored."
        return
    why = "" if lost and math.isnan(gap.low) else f" ({_why_none(findings, group, ('external',))})"
    yield _gain(findings, findings.name(key), gain, gap, why, unit)


def _gain(findings: Findings, name: str, gain: Value, gap: Value, why: str, unit: str) -> str:
    """What an inference changes outside: helps, harms, or neither. `why` there is no interval, if there is none."""
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
    """Whether a change can be told as a share of what is lost outside: both must be there beyond doubt."""
    return _tone(gain) == "good" and not doubtful(gain) and _shown(gap.mean) > 0 and not doubtful(gap)


def _tone(gain: Value) -> str:
    """A change is good or bad if its interval says so; without an interval it is neither."""
    return "good" if gain.low > 0 else "bad" if gain.high < 0 else "plain"


def _inside(findings: Findings, group: Group, held_out: str | None) -> Iterator[str]:
    """What the same inference changes at the sites that trained, where it shows, and the gap that it then has."""
    key = _other(findings, group)
    if findings.baseline is None or key is None:
        return
    gain = findings.gain(group, key, "internal", held_out=held_out)
    if not gain.known or _shown(gain.mean) == 0:
        return
    over = f" ± {number(gain.std, findings.headline)}" if not math.isnan(gain.std) else ""
    text = f"At internal sites it {'adds' if gain.mean > 0 else 'costs'} {number(abs(gain.mean), findings.headline)}"
    text += f"{over}{' points' if findings.headline.percent else ''}"
    old, new = (findings.gap(group, k, held_out) for k in (findings.baseline, key))
    if new.known and old.known:
        larger = f", larger than the {number(old.mean, findings.headline)} without it"
        text += f", and the gap with {findings.name(key)} is {_points(new.mean, findings)}"
        text += larger if _shown(new.mean) > max(_shown(old.mean), 0) else ""
    yield f"{text}."


def tiles(findings: Findings, group: Group) -> list[Tile]:
    """The numbers behind the headline sentence."""
    key, held_out = _told(findings, group), _held_out(findings)
    metric, unit = findings.headline, "\N{NO-BREAK SPACE}%" if findings.headline.percent else ""

    def level(label: str, how: str, role: str) -> Tile:
        value = findings.effect("level", group, how, role, held_out=held_out)
        return Tile(label, number(value.mean, metric) + (unit if value.known else ""), _note(findings, group, value))

    found = [level(f"Internal sites, {findings.name(key)}", key, "internal")] if group.tests_inside else []
    if group.partition.external:
        found.append(level(f"External sites, {findings.name(key)}", key, "external"))
    other = _other(findings, group)
    if not group.partition.external or findings.baseline not in group.asked or other is None:
        return found
    assert findings.baseline is not None
    gap = findings.gap(group, findings.baseline, held_out)
    gain = findings.gain(group, other, "external", held_out=held_out)
    label, figure, recovers = f"Change outside, {findings.name(other)}", DASH, _recovers(gain, gap)
    if gain.known:
        figure = _points(gain.mean, findings, sign=True)
    if recovers:
        label, figure = f"{LOSS_RECOVERED}, {findings.name(other)}", f"{100 * gain.mean / gap.mean:.0f} %"
    change = Tile(label, figure, _note(findings, group, gain, change=True, mean=recovers), _tone(gain))
    return [*found, level(f"External sites, {findings.name(other)}", other, "external"), change]


def _note(findings: Findings, group: Group, value: Value, change: bool = False, mean: bool = False) -> str:
    """Spread, interval and the seeds that are there; before them the mean, if asked for. A change has a sign."""
    metric, parts = findings.headline, []
    over = "" if math.isnan(value.std) else f"± {number(value.std, metric)} over {value.seeds} seeds"
    if mean and value.known:
        parts.append(" ".join(filter(None, [f"{_points(value.mean, findings, sign=True)}", over])))
    elif over:
        parts.append(over)
    if value.known:
        inside = between(value, metric, sign=change)
        parts.append("no interval" if math.isnan(value.low) else f"95% interval {inside}")
    if value.known and value.seeds != len(group.runs):
        parts.append(f"{value.seeds} of {len(group.runs)} seeds")
    return "; ".join(parts)


def _told(findings: Findings, group: Group) -> str:
    """The inference that levels are told of: the baseline, or the first where that was not asked for."""
    plain = [k for k in group.asked if not findings.plan.inferences[k].uses_labels]
    return findings.baseline if findings.baseline in plain else (plain or group.asked)[0]


def _other(findings: Findings, group: Group) -> str | None:
    """The inference that is told of: the first that needs no labels of the site and is not the baseline's like."""
    inferences = findings.plan.inferences
    others = [k for k in findings.others(group) if not inferences[k].uses_labels]
    return next((k for k in others if inferences[k].name != BASELINE), next(iter(others), None))


def _alike(findings: Findings, group: Group) -> list[Group]:
    """The group with its like of all partitions that it is averaged over."""
    return [g for g in findings.groups if g.title == group.title] if findings.averaged else [group]


def _why_none(findings: Findings, group: Group, roles: tuple[str, ...] = ("internal", "external")) -> str:
    """Why the headline metric has no interval."""
    if not findings.headline.has_interval:
        return f"{inner(findings.headline)} comes without"
    sites = findings.without_interval(_alike(findings, group), roles)
    few = f"too few test patients{' of a class' if findings.headline.by_class else ''}"
    return f"{few} at {listed(sites)}" if sites else few


def _sites(findings: Findings, group: Group, role: str) -> str:
    """`external sites`, or `2 of 3 external sites` where the metric is not defined at one."""
    alike = _alike(findings, group)
    everywhere = {s for g in alike for s in getattr(g.partition, role)}
    left_out = everywhere & set(findings.left_out(role, groups=alike))
    if not left_out:
        return f"{role} sites"
    return f"{len(everywhere) - len(left_out)} of {len(everywhere)} {role} sites"


def _between(value: Value, findings: Findings) -> str:
    """The interval of a difference; with signs where they differ."""
    return between(value, findings.headline, sign=not value.low > 0)


def _held_out(findings: Findings) -> str | None:
    return ALL if findings.averaged else None


def _statistics(findings: Findings, key: str) -> str:
    return "training statistics" if key == findings.baseline else findings.name(key)


def _level(value: Value, findings: Findings, group: Group) -> str:
    """A level with its unit, and a loud count where seeds are missing."""
    unit = "\N{NO-BREAK SPACE}%" if findings.headline.percent else ""
    wanted = len(group.runs)
    seeds = f" ({value.seeds} of {wanted} seeds)" if value.seeds != wanted else ""
    return f"{spread(value, findings.headline)}{unit}{seeds}"


def _shown(x: float) -> float:
    """A value as precise as it is written: a change that is not visible is none."""
    return round(x, 3)


def _points(x: float, findings: Findings, sign: bool = False) -> str:
    text = number(x, findings.headline, sign)
    return f"{text} {'point' if text.strip('+−') == '1.0' else 'points'}" if findings.headline.percent else text
