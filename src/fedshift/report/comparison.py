"""The comparison of conditions in sentences and tables."""

from __future__ import annotations

import math
from dataclasses import replace

from ..analysis import comparisons, contrasts
from ..analysis.comparisons import Entry
from ..analysis.contrasts import TOO_FEW, Contrast, Outcome, Standing
from ..analysis.findings import Findings
from ..analysis.table import Table
from ..analysis.values import DASH, NAN, Value, between, inner, listed, number, spread
from .verdict import over, points, signed

NAMED = 4
"""Conditions that a sentence names. The table has all."""
_CONCLUSIONS = {
    Outcome.ALIKE: "not distinguishable from the best",
    Outcome.TOO_SMALL: "too small a difference to matter",
    Outcome.TRAININGS_DISAGREE: "not distinguishable from the best: it depends on the training",
    Outcome.SITES_DISAGREE: "no verdict: better at one site, worse at another",
    Outcome.FEW_TRAININGS: f"too few to tell: fewer than {comparisons.FEWEST_TRAININGS} trainings",
    Outcome.FEW_PATIENTS: "too few to tell: no interval",
    Outcome.UNDEFINED: "too few to tell: too many resamples lack a class",
}


def sentences(findings: Findings, unit: str = "patients") -> str:
    """Return what is concluded about the conditions; empty for a study that compares none.

    The primary comparison that a study declares comes first, then the best condition of each group with what the others
    differ from it by.
    """
    primary = [f"Primary comparison: {_pair(findings, one, unit)}" for one in contrasts.declared(findings)]
    rest = [] if len(findings.conditions) == 2 and primary else contrasts.standings(findings)
    return " ".join([*primary, *(_standing(findings, one, unit) for one in rest[:NAMED])])


def _standing(findings: Findings, standing: Standing, unit: str) -> str:
    """Return which condition is the best, and which of the others are worse, alike, or cannot be told."""
    if len(standing.others) == 1:
        return _pair(findings, standing.others[0], unit)
    level = standing.level
    interval = "" if math.isnan(level.low) else f", 95% interval {between(level, findings.headline)}"
    percent = "\N{NO-BREAK SPACE}%" if findings.headline.percent else ""
    shown = f"{number(level.mean, findings.headline)}{percent}{interval} {over(level, unit)}"
    better = [one for one in standing.of(Outcome.DIFFERS) if one.value.mean < 0]
    groups = {
        "Not distinguishable from it": standing.of(Outcome.ALIKE, Outcome.TRAININGS_DISAGREE),
        "Too small a difference to matter": standing.of(Outcome.TOO_SMALL),
        "Worse": [one for one in standing.of(Outcome.DIFFERS) if one.value.mean > 0],
        "Better, as a control": better,
        "Better at one site and worse at another": standing.of(Outcome.SITES_DISAGREE),
        "Too few to tell": standing.of(*TOO_FEW),
    }
    named = [f"{words}: {_listed(findings, some)}." for words, some in groups.items() if some]
    best = f"Best of {len(standing.others) + 1} conditions at {_where(findings, standing)}"
    return " ".join([f"{best}: {title(findings, standing.best)} ({shown}).", *named])


def _listed(findings: Findings, some: list[Contrast]) -> str:
    """Return titles, with the difference and the p of those that differ; a count of those after the first NAMED."""
    shown = [title(findings, one.second) + _by(findings, one) for one in some[:NAMED]]
    return listed([*shown, *([f"{len(some) - NAMED} more"] if len(some) > NAMED else [])])


def _by(findings: Findings, one: Contrast) -> str:
    if one.outcome is not Outcome.DIFFERS:
        return ""
    return f" (by {points(abs(one.value.mean), findings)}{_p(one)})"


def _p(one: Contrast) -> str:
    """Return the p adjusted for its family; empty for an exploratory difference."""
    return "" if math.isnan(one.numbers.p_holm) else f", Holm p {p_value(one.numbers.p_holm)}"


def p_value(p: float) -> str:
    """Return a p with three decimals, or that it is below 0.001; a dash where there is none."""
    return DASH if math.isnan(p) else "<\N{NO-BREAK SPACE}0.001" if p < 0.001 else f"{p:.3f}"


def _pair(findings: Findings, one: Contrast, unit: str) -> str:
    """Return a sentence about two conditions, the better one first."""
    if one.value.mean < 0:
        turned = one.value._replace(mean=-one.value.mean, low=-one.value.high, high=-one.value.low)
        one = replace(one, first=one.second, second=one.first, value=turned)
    first, second = title(findings, one.first), title(findings, one.second)
    if one.first.id == one.second.id:
        first, second = (
            f"{t} with {findings.name(e.inference)}" for t, e in ((first, one.first), (second, one.second))
        )
    sites = _count(len(one.sites), comparisons.role(findings.conditions))
    value, interval = one.value, f"95% interval {signed(one.value, findings)} {over(one.value, unit)}{_p(one)}"
    by = points(value.mean, findings)
    if one.outcome is Outcome.DIFFERS:
        return f"{first} is better than {second} at {sites} by {by} ({interval})."
    but = f"{first} is better than {second} at {sites} by {by}"
    return {
        Outcome.ALIKE: f"{first} and {second} are not distinguishable at {sites}: the difference is {by} ({interval}).",
        Outcome.TOO_SMALL: f"{but} ({interval}), which is too small to matter.",
        Outcome.TRAININGS_DISAGREE: f"{first} and {second} are not distinguishable at {sites}: the difference of {by} "
        f"({interval}) depends on the training.",
        Outcome.SITES_DISAGREE: f"No verdict on {first} and {second} over {sites}: either is better at one of them.",
        Outcome.FEW_TRAININGS: f"Too few to tell {first} from {second} at {sites}: {_trainings(value.seeds)} of each "
        f"is fewer than {comparisons.FEWEST_TRAININGS} (difference {by}).",
        Outcome.FEW_PATIENTS: f"Too few to tell {first} from {second} at {sites}: the difference of {by} has no "
        "interval.",
        Outcome.UNDEFINED: f"Too few to tell {first} from {second} at {sites}: many resamples lack a class.",
    }[one.outcome]


def _trainings(count: int) -> str:
    return "one training" if count == 1 else f"{count} trainings"


def title(findings: Findings, entry: Entry) -> str:
    """Return the title of what is compared, with its partition where several are not averaged."""
    return entry.condition.title if findings.averaged else findings.full(entry.condition)


def _where(findings: Findings, standing: Standing) -> str:
    return _count(len(standing.sites), comparisons.role(findings.conditions))


def _count(sites: int, role: str) -> str:
    return f"{sites} {role} sites" if sites != 1 else f"the single {role} site"


def table(findings: Findings, unit: str = "patients") -> Table:
    """Return the conditions beside the best of their group: declared pairs first, then from the best to the worst.

    It has no rows where no two conditions are tested at the same sites.
    """
    standings, primary, metric = contrasts.standings(findings), contrasts.declared(findings), findings.headline
    role, rows = comparisons.role(findings.conditions), list[tuple[str, ...]]()
    for one in primary:
        pair = (title(findings, e) + f", {findings.name(e.inference)}" for e in (one.first, one.second))
        mean = spread(findings.level(one.first, role), metric)
        rows.append((*pair, mean, *_difference(findings, one), f"primary: {one.outcome.value}"))
    for standing in standings:
        best = title(findings, standing.best)
        alone = len(standing.of(Outcome.DIFFERS)) == len(standing.others)
        rows.append((best, DASH, spread(standing.level, metric), *[DASH] * 4, "best" if alone else "best mean"))
        for one in standing.others:
            mean = spread(findings.level(one.second, role), metric)
            turned = replace(one, value=_negative(one.value))
            rows.append((title(findings, one.second), best, mean, *_difference(findings, turned), _conclusion(one)))
    header = ("Condition", "Compared with", "Mean", "Difference", "95% interval", "p", "Holm p", "Conclusion")
    return Table(
        _caption(findings, [*primary, *(o for s in standings for o in s.others)], unit), header, tuple(rows), 2
    )


def _negative(value: Value) -> Value:
    return value._replace(mean=-value.mean, low=-value.high, high=-value.low)


def _difference(findings: Findings, one: Contrast) -> tuple[str, str, str, str]:
    """Return a difference with its interval, its p, and the p for the family."""
    metric = findings.headline
    shown = spread(one.value, metric, sign=True), between(one.value, metric, sign=True)
    return *shown, p_value(one.numbers.p if not math.isnan(one.numbers.p_holm) else NAN), p_value(one.numbers.p_holm)


def _conclusion(one: Contrast) -> str:
    if one.outcome is Outcome.DIFFERS:
        return "worse than the best" if one.value.mean > 0 else "better than the best federated condition (a control)"
    return _CONCLUSIONS[one.outcome]


def _caption(findings: Findings, shown: list[Contrast], unit: str) -> str:
    """Return what the table holds, how large the family is, and what sign flips can reach."""
    role = comparisons.role(findings.conditions)
    caption = f"{findings.headline.title}{' (%)' if findings.headline.percent else ''}, mean over {role} sites"
    if not shown:
        return caption
    numbers = shown[0].numbers
    better = "" if findings.headline.higher_is_better else ", turned so that more is better"
    caption += f", and the paired difference (same seeds, same {unit}){better}, {over(shown[0].value, unit)}"
    family = [one.numbers.family for one in shown if not math.isnan(one.numbers.family)]
    if family:
        plural = "s" if family[0] > 1 else ""
        what = f"declared comparison{plural}" if findings.plan.study.primary else f"pair{plural} of conditions"
        caption += f". Holm p: adjusted for {family[0]:.0f} {what}"
    if not math.isnan(numbers.smallest_seeds):
        caption += f". Sign flips of {_trainings(numbers.seeds)} cannot give a p below {numbers.smallest_seeds:.2g}"
        if not math.isnan(numbers.smallest_sites):
            caption += f", and those of {_count(int(numbers.sites), role)} none below {numbers.smallest_sites:.2g}"
        caption += "; the p of the table is that of a t test"
    if len(shown) > 1:
        caption += f". The best was chosen by the same numbers, so its {inner(findings.headline)} flatters it"
    return caption


def by_site(findings: Findings, unit: str = "patients") -> Table | None:
    """Return the differences from the best at each site, without p: they are exploratory. None without any."""
    rows, metric = [], findings.headline
    standings = contrasts.standings(findings)
    for one in (contrast for standing in standings for contrast in standing.others):
        for site, value in one.sites.items():
            cells = spread(_negative(value), metric, sign=True), between(_negative(value), metric, sign=True)
            rows.append((title(findings, one.second), site, f"{value.patients:.0f}", *cells))
    if not rows:
        return None
    best = listed(list(dict.fromkeys(title(findings, standing.best) for standing in standings)))
    caption = f"{findings.headline.title} minus that of {best} at each site; 95% interval over {unit} and trainings"
    caption += ". Exploratory: without p"
    return Table(caption, ("Condition", "Site", unit.capitalize(), "Difference", "95% interval"), tuple(rows), 2)
