"""The comparison of a study's conditions (algorithm x batch norm policy x settings) as sentences and tables."""

from __future__ import annotations

import math
from dataclasses import replace

from ..analysis import comparisons
from ..analysis import verdict as conclusions
from ..analysis.findings import Findings
from ..analysis.values import DASH, NAN, Table, between, inner, listed, spread
from ..analysis.verdict import TOO_FEW, Contrast, Outcome, Standing
from .html import Block, Fold, plain
from .phrases import change_interval, heading, joined, level, noun, over, points

NAMED = 4
"""The most compared methods that a sentence names; the table has all."""
_CONCLUSIONS = {
    Outcome.ALIKE: "not distinguishable from the best",
    Outcome.TOO_SMALL: "too small a difference to matter",
    Outcome.TRAININGS_DISAGREE: "not distinguishable from the best: it depends on the training",
    Outcome.SITES_DISAGREE: "no verdict: better at one site, worse at another",
    Outcome.FEW_TRAININGS: f"too few to tell: fewer than {comparisons.FEWEST_TRAININGS} trainings",
    Outcome.FEW_PATIENTS: "too few to tell: no interval",
}
WORSE = "worse than the best"
BEST = "best"


def blocks(findings: Findings, unit: str = "patients") -> list[Block]:
    """Return the tables that compare conditions; empty if no two are tested at the same sites.

    A condition is an algorithm with batch norm policy and settings; `unit` names the resampled units, such as patients.
    """
    conditions = table(findings, unit)
    sites = by_site(findings, unit)
    if not conditions.rows:
        return []
    shown = plain(conditions, {BEST: "better", WORSE: "worse"})
    return [shown, *([Fold("Differences at each site", [plain(sites)])] if sites.rows else [])]


def sentences(findings: Findings, unit: str = "patients") -> str:
    """Return sentences that compare conditions (algorithm x batch norm policy x settings); '' if a study has one only.

    The declared primary comparison comes first, then the best condition of each group that is tested at the same sites,
    with the differences of the others from it. `unit` names the resampled units, such as patients.
    """
    primary = [f"Primary comparison: {pair(findings, contrast, unit)}" for contrast in conclusions.declared(findings)]
    if primary and len(findings.conditions) == 2:
        return joined(*primary)
    return joined(*primary, *(_standing(findings, group, unit) for group in conclusions.standings(findings)[:NAMED]))


def _standing(findings: Findings, standing: Standing, unit: str) -> str:
    """Return sentences that name the best method of a group, and which others are worse, alike or undecided.

    `standing` holds the methods that are tested at the same sites, and `unit` names the resampled units, such as
    patients.
    """
    if len(standing.others) == 1:
        return pair(findings, standing.others[0], unit)
    shown = level(standing.level.mean, findings.headline)
    if not math.isnan(standing.level.low):
        shown += f", 95% interval {between(standing.level, findings.headline)}"
    differ = standing.of(Outcome.DIFFERS)
    groups = {
        "Not distinguishable from it": standing.of(Outcome.ALIKE, Outcome.TRAININGS_DISAGREE),
        "Too small a difference to matter": standing.of(Outcome.TOO_SMALL),
        "Worse": [contrast for contrast in differ if contrast.value.mean > 0],
        "Better, as a control": [contrast for contrast in differ if contrast.value.mean < 0],
        "Better at one site and worse at another": standing.of(Outcome.SITES_DISAGREE),
        "Too few to tell": standing.of(*TOO_FEW),
    }
    sites = _sites(len(standing.sites), comparisons.role(findings.conditions))
    best = f"Best of {len(standing.others) + 1} conditions at {sites}: {findings.title(standing.best.condition)}"
    named = (f"{words}: {_listed(findings, members)}." for words, members in groups.items() if members)
    return joined(f"{best} ({shown} {over(standing.level, unit)}).", *named)


def _listed(findings: Findings, members: list[Contrast]) -> str:
    """Return the names of at most NAMED compared methods, with difference and p-value, and the number of others.

    `members` are their comparisons with the best method.
    """
    names = []
    for contrast in members[:NAMED]:
        name = findings.title(contrast.second.condition)
        if contrast.outcome is Outcome.DIFFERS:
            name += f" (by {points(abs(contrast.value.mean), findings)}{_p(contrast)})"
        names.append(name)
    if len(members) > NAMED:
        names.append(f"{len(members) - NAMED} more")
    return listed(names)


def _p(contrast: Contrast) -> str:
    """Return the p-value adjusted by Holm's method, as `, Holm p 0.012`; '' if there is none."""
    if math.isnan(contrast.value.p_holm):
        return ""
    kind = "" if contrast.value.tested else "exploratory, "
    return f", {kind}Holm p {p_value(contrast.value.p_holm)}"


def p_value(p: float) -> str:
    """Return a p-value with three decimals, or `< 0.001`; a dash for NaN."""
    if math.isnan(p):
        return DASH
    if p < 0.001:
        return "<\N{NO-BREAK SPACE}0.001"
    return f"{p:.3f}"


def pair(findings: Findings, contrast: Contrast, unit: str) -> str:
    """Return a sentence that concludes whether two compared methods differ, the better one first.

    `unit` names the resampled units, such as patients.
    """
    if contrast.value.mean < 0:
        value = contrast.value.turned()
        contrast = replace(contrast, first=contrast.second, second=contrast.first, value=value)
    first = findings.title(contrast.first.condition)
    second = findings.title(contrast.second.condition)
    if contrast.first.id == contrast.second.id:
        first += f" with {findings.name(contrast.first.inference)}"
        second += f" with {findings.name(contrast.second.inference)}"
    sites = _sites(len(contrast.sites), comparisons.role(findings.conditions))
    value = contrast.value
    by = points(contrast.value.mean, findings)
    interval = f"{change_interval(value, findings, unit)}{_p(contrast)}"
    better = f"{first} is better than {second} at {sites} by {by} ({interval})"
    alike = f"{first} and {second} are not distinguishable at {sites}"
    few = f"Too few to tell {first} from {second} at {sites}"
    return {
        Outcome.DIFFERS: f"{better}.",
        Outcome.ALIKE: f"{alike}: the difference is {by} ({interval}).",
        Outcome.TOO_SMALL: f"{better}, which is too small to matter.",
        Outcome.TRAININGS_DISAGREE: f"{alike}: the difference of {by} ({interval}) depends on the training.",
        Outcome.SITES_DISAGREE: f"No verdict on {first} and {second} over {sites}: either is better at one of them.",
        Outcome.FEW_TRAININGS: f"{few}: {_trainings(value.seeds)} of each is fewer than "
        f"{comparisons.FEWEST_TRAININGS} (difference {by}).",
        Outcome.FEW_PATIENTS: f"{few}: the difference of {by} has no interval.",
    }[contrast.outcome]


def _trainings(count: int) -> str:
    return {1: "one training"}.get(count, f"{count} trainings")


def _sites(count: int, role: str) -> str:
    return {1: f"the single {role} site"}.get(count, f"{count} {role} sites")


def table(findings: Findings, unit: str = "patients") -> Table:
    """Return a table that compares each condition with the best of its group.

    A condition is an algorithm with batch norm policy and settings. Declared comparisons come first, then the
    conditions tested at the same sites from the best to the worst. The table has no rows if no two conditions are
    tested at the same sites. `unit` names the resampled units, such as patients.
    """
    standings = conclusions.standings(findings)
    primary = conclusions.declared(findings)
    metric = findings.headline
    role = comparisons.role(findings.conditions)
    rows = list[tuple[str, ...]]()
    for contrast in primary:
        # declared pairs come first: they are the only ones that were chosen beforehand
        pair = (
            f"{findings.title(e.condition)}, {findings.name(e.inference)}" for e in (contrast.first, contrast.second)
        )
        mean = spread(findings.level(contrast.first, role), metric)
        rows.append((*pair, mean, *_difference(findings, contrast), f"primary: {contrast.outcome.value}"))
    for standing in standings:
        # a best condition is only called so where all others are surely worse
        alone = len(standing.of(Outcome.DIFFERS)) == len(standing.others)
        best = findings.title(standing.best.condition)
        rows.append((best, DASH, spread(standing.level, metric), *[DASH] * 4, BEST if alone else "best mean"))
        for contrast in standing.others:
            mean = spread(findings.level(contrast.second, role), metric)
            numbers = _difference(findings, replace(contrast, value=contrast.value.turned()))
            rows.append((findings.title(contrast.second.condition), best, mean, *numbers, _conclusion(contrast)))
    shown = [*primary, *(contrast for standing in standings for contrast in standing.others)]
    header = ("Condition", "Compared with", "Mean", "Difference", "95% interval", "p", "Holm p", "Conclusion")
    return Table(_caption(findings, shown, unit), header, tuple(rows), 2)


def _difference(findings: Findings, contrast: Contrast) -> tuple[str, str, str, str]:
    """Return as text a difference, its 95% interval, its p-value, and the p-value adjusted for all comparisons."""
    value = contrast.value
    metric = findings.headline
    # a bare p, without one that is adjusted, would invite conclusions
    p = NAN if math.isnan(value.p_holm) else value.p
    shown = spread(value, metric, sign=True), between(value, metric, sign=True)
    return *shown, p_value(p), p_value(value.p_holm)


def _conclusion(contrast: Contrast) -> str:
    if contrast.outcome is not Outcome.DIFFERS:
        return _CONCLUSIONS[contrast.outcome]
    if contrast.value.mean < 0:
        return "better than the best federated condition (a control)"
    return WORSE if contrast.value.tested else f"{WORSE} (exploratory)"


def _caption(findings: Findings, shown: list[Contrast], unit: str) -> str:
    """Return the table's caption: metric, number of pairs, and the smallest p-values that sign flips can give.

    `shown` are the comparisons in the table, and `unit` names the resampled units, such as patients.
    """
    role = comparisons.role(findings.conditions)
    metric = findings.headline
    caption = f"{heading(metric)}, mean over {role} sites"
    if not shown:
        return caption
    value = shown[0].value
    caption += f", and the paired difference (same seeds, same {unit})"
    if not metric.higher_is_better:
        caption += ", turned so that more is better"
    caption += f", {over(value, unit)}"
    families = {c.value.tested: int(c.value.family) for c in shown if not math.isnan(c.value.family)}
    kinds = {True: ("pair", " of conditions"), False: ("exploratory pair", "")}
    if findings.plan.study.primary:
        kinds[True] = ("declared comparison", "")
    if pairs := [f"{n} {noun(n, kinds[tested][0])}{kinds[tested][1]}" for tested, n in families.items()]:
        caption += f". Holm p: adjusted for {' and, by themselves, for '.join(pairs)}"
    if not math.isnan(value.smallest_seeds):
        caption += f". Sign flips of {_trainings(value.seeds)} cannot give a p below {value.smallest_seeds:.2g}"
        if not math.isnan(value.smallest_sites):
            caption += f", and those of {_sites(int(value.sites), role)} none below {value.smallest_sites:.2g}"
        caption += "; the p of the table is that of a t test"
    if len(shown) > 1:
        caption += f". The best was chosen by the same numbers, so its {inner(metric)} flatters it"
    return caption


def by_site(findings: Findings, unit: str = "patients") -> Table:
    """Return a table of each method's difference from the best at single sites; exploratory, so without p-values.

    `unit` names the resampled units, such as patients.
    """
    rows = []
    metric = findings.headline
    standings = conclusions.standings(findings)
    for contrast in (contrast for standing in standings for contrast in standing.others):
        for site, value in contrast.sites.items():
            # contrasts are the best minus the other; the table says how far the other is from the best
            cells = spread(value.turned(), metric, sign=True), between(value.turned(), metric, sign=True)
            rows.append((findings.title(contrast.second.condition), site, f"{value.patients:.0f}", *cells))
    best = listed(list(dict.fromkeys(findings.title(standing.best.condition) for standing in standings)))
    caption = (
        f"{metric.title} minus that of {best} at each site; 95% interval over {unit} and trainings. Exploratory: "
        "without p"
    )
    return Table(caption, ("Condition", "Site", unit.capitalize(), "Difference", "95% interval"), tuple(rows), 2)
