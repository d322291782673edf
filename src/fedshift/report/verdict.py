"""The verdict on a condition in plain words, with the numbers that it follows from."""

from __future__ import annotations

import math

from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.values import Value, between, inner, listed, number
from ..analysis.verdict import Reason, Recovery, Verdict, Word

NO_EXTERNAL_SITE = "The study has no external site, so it cannot say how the model travels."


def sentence(findings: Findings, condition: Condition, verdict: Verdict, unit: str = "patients") -> str:
    """Return the verdict as a sentence that follows the name of its condition; empty where there is nothing to judge.

    `unit` is what the intervals resample: patients, or images.
    """
    if verdict.word is Word.CANNOT_TELL:
        return _why_not(findings, condition, verdict, unit)
    loss = verdict.loss
    interval = f"(95% interval {signed(loss, findings)} {over(loss, unit)})"
    if verdict.word is Word.LOSES:
        lost = f"loses {points(loss.mean, findings)} at {_external_sites(findings, condition)} {interval}"
        return f"{lost}{_recovery(findings, condition, verdict.recovery)}."
    limit = f"under the margin of {points(findings.margin, findings)}" if findings.margin else "below zero"
    where = _external_sites(findings, condition)
    return f"holds up at {where}: the loss is {points(loss.mean, findings)} {interval}, {limit} throughout."


def _recovery(findings: Findings, condition: Condition, recovery: Recovery | None) -> str:
    key = findings.compared_inference(condition)
    if recovery is None or key is None:
        return ""
    gain = findings.gain(condition, key, "external", across=findings.averaged)
    amount = points(abs(gain.mean), findings)
    return {
        Recovery.RECOVERS: f", and {findings.name(key)} recovers {amount}",
        Recovery.WORSENS: f", and {findings.name(key)} loses another {amount}",
        Recovery.IN_DOUBT: f", and it is not shown that {findings.name(key)} recovers any of it",
    }[recovery]


def _why_not(findings: Findings, condition: Condition, verdict: Verdict, unit: str) -> str:
    """Return why nothing can be said, and what would be needed."""
    home, loss, metric = verdict.home, verdict.loss, inner(findings.headline)
    level = f"{metric} is {_level(home, findings)}"
    bounds = f"95% interval {between(home, findings.headline)} {over(home, unit)}"
    bounds = "no interval" if math.isnan(home.low) else bounds
    none = f"no interval can be given ({why_none(findings, condition)})"
    more = f" More {listed(list(verdict.needs))} would narrow the interval." if verdict.needs else ""
    zero = f"both no loss and {points(findings.margin, findings)}, the margin" if findings.margin else "no loss"
    return {
        Reason.NOT_SCORED: "",
        Reason.ALONE: "",
        Reason.NO_EXTERNAL_SITE: "",
        Reason.HOME_UNTESTED: "cannot tell: there are no test samples at home to compare with.",
        Reason.HOME_WITHOUT_INTERVAL: f"cannot tell: at home {level}, but {none}.",
        Reason.HOME_FAILS: f"cannot tell: it does not work at home, where {level} ({bounds}; {blind(home, findings)}).",
        Reason.HOME_IN_DOUBT: f"cannot tell: it is not shown to work at home, where {level} "
        f"({bounds}; {blind(home, findings)}).{more}",
        Reason.WITHOUT_INTERVAL: f"cannot tell: the loss outside is {points(loss.mean, findings)}, but {none}.",
        Reason.SITES_DISAGREE: _opposite(findings, verdict, unit),
        Reason.TOO_WIDE: f"cannot tell: the loss outside is {points(loss.mean, findings)}, but its 95% interval "
        f"({signed(loss, findings)} {over(loss, unit)}) includes {zero}.{more}",
    }[verdict.reason or Reason.NOT_SCORED]


def _opposite(findings: Findings, verdict: Verdict, unit: str) -> str:
    """Return why a mean over sites of opposite sign says nothing; empty where there are none."""
    sites = verdict.opposite(findings.margin)
    if sites is None:
        return ""
    loses, gains = (verdict.sites[site] for site in sites)
    at = [
        f"{verb} {points(abs(value.mean), findings)} at {site} (95% interval {signed(value, findings)} "
        f"{over(value, unit)})"
        for verb, site, value in zip(("loses", "gains"), sites, (loses, gains), strict=True)
    ]
    mean = f"The mean loss of {points(verdict.loss.mean, findings)} says nothing of either."
    return f"cannot tell from the mean: it {listed(at)}. {mean}"


def these_only(verdict: Verdict) -> str:
    """Return that a verdict about so few sites holds for these alone; empty for one about more sites, or for none."""
    if not verdict.these_only:
        return ""
    sites = "One external site says" if len(verdict.sites) == 1 else f"{len(verdict.sites)} external sites say"
    return f"{sites} nothing about other hospitals."


def all_of(verdicts: list[Verdict]) -> str:
    """Return how many of several conditions hold up, lose, or cannot be judged."""
    words = [verdict.word for verdict in verdicts]
    holds, loses = (words.count(word) for word in (Word.HOLDS, Word.LOSES))
    if not holds + loses:
        return f"The data cannot tell for any of the {len(words)} conditions."
    parts = [
        *([f"{holds} {'holds' if holds == 1 else 'hold'} up at external sites"] if holds else []),
        *([f"{loses} {'loses' if loses == 1 else 'lose'} there" if holds else _lose(loses)] if loses else []),
        *([f"for {rest} the data cannot tell"] if (rest := len(words) - holds - loses) else []),
    ]
    return f"Of {len(words)} conditions {listed(parts)}."


def _lose(number_: int) -> str:
    return f"{number_} {'loses' if number_ == 1 else 'lose'} at external sites"


def over(value: Value, unit: str) -> str:
    """Return what an interval holds, with numbers: `over 60 patients and 3 trainings`, or patients only."""
    patients = f"{value.patients:.0f} {unit}" if value.patients > 0 else unit
    if value.seeds == 1:
        return f"over {patients} only: one training"
    return f"over {patients} and {f'{value.seeds} trainings' if value.patients > 0 else 'trainings'}"


def blind(value: Value, findings: Findings) -> str:
    """Return the levels of chance and of the commonest class; empty for a metric that has none."""
    if math.isnan(value.chance):
        return ""
    chance, majority = (number(x, findings.headline) for x in (value.chance, value.majority))
    return f"chance level {chance}" if chance == majority else f"chance level {chance}, commonest class {majority}"


def why_none(findings: Findings, condition: Condition, roles: tuple[str, ...] = ("internal", "external")) -> str:
    """Return why the headline metric has no interval."""
    if not findings.headline.has_interval:
        return f"{inner(findings.headline)} comes without"
    sites = findings.without_interval(findings.alike(condition), roles)
    few = f"too few test patients{' of a class' if findings.headline.by_class else ''}"
    few += ", or a value of 0 or 1," if findings.headline.logit else ""
    return f"{few} at {listed(sites)}" if sites else few.rstrip(",")


def signed(value: Value, findings: Findings) -> str:
    """Return the interval of a difference, with signs where they differ."""
    return between(value, findings.headline, sign=not value.low > 0)


def points(x: float, findings: Findings, sign: bool = False) -> str:
    """Return a difference with its unit."""
    text = number(x, findings.headline, sign)
    return f"{text} {'point' if text.strip('+−') == '1.0' else 'points'}" if findings.headline.percent else text


def _level(value: Value, findings: Findings) -> str:
    return number(value.mean, findings.headline) + ("\N{NO-BREAK SPACE}%" if findings.headline.percent else "")


def _external_sites(findings: Findings, condition: Condition) -> str:
    """Return `its 2 external sites`: those at which the metric is defined."""
    alike = findings.alike(condition)
    sites = {site for one in alike for site in one.partition.external}
    count = len(sites - set(findings.left_out("external", conditions=alike)))
    return f"its {count} external sites" if count > 1 else "its single external site"
