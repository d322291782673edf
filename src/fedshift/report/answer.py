"""The answer in words. Every sentence follows from numbers, and says so where they say little."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .effects import ALL
from .findings import Findings, Group, Value, between, number, spread

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


def answer(findings: Findings) -> Answer:
    """The headline of a study, from its first condition; all partitions are averaged over where there are several."""
    groups = list({g.title: g for g in reversed(findings.groups)}.values())[::-1]
    told = [f"{g.title}: {sentences(findings, g)}" for g in groups[:TOLD]]
    return Answer(told[0], told[1:], tiles(findings, groups[0]), len(groups) - len(told))


def sentences(findings: Findings, group: Group) -> str:
    """One condition in words."""
    key = findings.baseline or findings.keys[0]
    held_out = _held_out(findings)
    inside, outside = (
        findings.effect("level", group, key, role, held_out=held_out) for role in ("internal", "external")
    )
    if not inside.known and not outside.known:
        return "no run of it has been scored, or its headline metric is not defined at every site."
    what = findings.headline.title[:1].lower() + findings.headline.title[1:]
    if findings.headline.title.isupper():
        what = findings.headline.title
    at_home = f"{what} {_level(inside, findings, group)} at internal sites"
    if not group.partition.external:
        return (
            f"{at_home}, with {_statistics(findings, key)}. "
            "The study has no external site, so it cannot say how the model travels."
        )
    away = f"{_level(outside, findings, group)} at external sites"
    text = f"{at_home} and {away}, with {_statistics(findings, key)}."
    return " ".join([text, *_gap(findings, group, held_out), *_harm_inside(findings, group, held_out)])


def _gap(findings: Findings, group: Group, held_out: str | None) -> list[str]:
    """What is lost outside, and what the first other inference does about it."""
    if findings.baseline is None:
        return []
    gap = findings.gap(group, findings.baseline, held_out)
    if not gap.known:
        return []
    none = ["There is no gap to win back."] if _shown(gap.mean) <= 0 else []
    if not none and gap.low <= 0:
        none = [f"The gap itself is not certain (95% interval {between(gap, findings.headline, sign=True)})."]
    if not findings.others():
        return [*none, *([f"The gap is {_points(gap.mean, findings)}."] if _shown(gap.mean) > 0 else [])]
    key = findings.others()[0]
    gain = findings.gain(group, key, "external", held_out=held_out)
    if not gain.known:
        return [*none, f"{findings.name(key)} has not been scored."]
    return [*none, _gain(findings, findings.name(key), gain, gap, findings.share(group, key, held_out))]


def _gain(findings: Findings, name: str, gain: Value, gap: Value, share: float) -> str:
    """What an inference changes outside: helps, harms, or neither."""
    metric = findings.headline
    shown, lost = _shown(gain.mean), _shown(gap.mean)
    within = "" if math.isnan(gain.low) else f"95% interval {between(gain, metric, sign=True)}"
    bounds = f" ({within})" if within else ""
    doubt = ", but the interval includes no change at all" if gain.low <= 0 <= gain.high else ""
    amount = number(abs(gain.mean), metric)
    if shown == 0:
        return f"{name} changes nothing there{bounds}."
    if shown < 0:
        return f"{name} does not help: it costs {_points(-gain.mean, findings)} there{bounds}{doubt}."
    if lost <= 0:
        return f"{name} adds {_points(gain.mean, findings)} there{bounds}{doubt}."
    if gain.mean > gap.mean:
        return f"{name} more than closes the gap of {_points(gap.mean, findings)}: it adds {amount}{bounds}{doubt}."
    part = "; ".join([f"{100 * share:.0f} %", *([within] if within else [])])
    return f"{name} wins back {amount} of {_points(gap.mean, findings)} ({part}){doubt}."


def _harm_inside(findings: Findings, group: Group, held_out: str | None) -> list[str]:
    """What the first other inference changes at the sites that trained, where it shows."""
    if findings.baseline is None or not findings.others():
        return []
    key = findings.others()[0]
    gain = findings.gain(group, key, "internal", held_out=held_out)
    if not gain.known or _shown(gain.mean) == 0:
        return []
    verb = "adds" if gain.mean > 0 else "costs"
    return [f"At internal sites it {verb} {_points(abs(gain.mean), findings)}."]


def tiles(findings: Findings, group: Group) -> list[Tile]:
    """The numbers behind the headline sentence."""
    key, held_out = findings.baseline or findings.keys[0], _held_out(findings)
    metric, unit = findings.headline, "\N{NO-BREAK SPACE}%" if findings.headline.percent else ""

    def level(label: str, how: str, role: str) -> Tile:
        value = findings.effect("level", group, how, role, held_out=held_out)
        return Tile(label, number(value.mean, metric) + (unit if value.known else ""), _note(findings, group, value))

    found = [level(f"Internal sites, {findings.name(key)}", key, "internal")]
    if group.partition.external:
        found.append(level(f"External sites, {findings.name(key)}", key, "external"))
    if not group.partition.external or findings.baseline is None or not findings.others():
        return found
    other = findings.others()[0]
    gain = findings.gain(group, other, "external", held_out=held_out)
    share = findings.share(group, other, held_out)
    shown = _shown(gain.mean) if gain.known else 0.0
    tone = "good" if shown > 0 and not gain.low <= 0 else "bad" if shown < 0 and not gain.high >= 0 else "plain"
    label, figure = f"Change outside, {findings.name(other)}", number(gain.mean, metric, sign=True)
    if share > 0:
        label, figure = "Gap won back", f"{100 * share:.0f} %"
    won = Tile(label, figure, _note(findings, group, gain, gain=True), tone)
    return [*found, level(f"External sites, {findings.name(other)}", other, "external"), won]


def _note(findings: Findings, group: Group, value: Value, gain: bool = False) -> str:
    """Spread, interval and the seeds that are there."""
    metric = findings.headline
    parts = [f"{_points(value.mean, findings, sign=True)}"] if gain and value.known else []
    if not math.isnan(value.std):
        parts.append(f"± {number(value.std, metric)} over {value.seeds} seeds")
    if not math.isnan(value.low):
        parts.append(f"95% interval {between(value, metric, sign=gain)}")
    if value.known and value.seeds != len(group.runs):
        parts.append(f"{value.seeds} of {len(group.runs)} seeds")
    return "; ".join(parts)


def _held_out(findings: Findings) -> str | None:
    return ALL if findings.several else None


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
