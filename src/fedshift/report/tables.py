"""The tables of a study, as text cells: written as CSV, Markdown and LaTeX, and shown on the page."""

from __future__ import annotations

import math

from ..analysis.conditions import Condition
from ..analysis.controls import Controls
from ..analysis.findings import Findings
from ..analysis.table import Table, save
from ..analysis.values import DASH, Value, doubtful, listed, number, spread
from ..io.paths import StudyFiles
from . import comparison, control, intervals

LOSS_RECOVERED = "External loss recovered"


def write(files: StudyFiles, findings: Findings, controls: Controls) -> None:
    """Write tables/{sites,overview,conditions}.{csv,md,tex} of a study; the first two have columns of intervals."""
    save(files, "sites", control.in_sites(intervals.sites(sites(findings), findings), controls))
    save(files, "overview", control.in_overview(intervals.overview(overview(findings), findings), controls))
    save(files, "conditions", comparison.table(findings))


def sites(findings: Findings, condition: Condition | None = None, unit: str = "patients") -> Table:
    """Return a row for each condition and site: the headline metric under each inference, and the gains.

    `unit` is what intervals resample: patients, or images.
    """
    metric, shown = findings.headline, [condition] if condition else findings.conditions
    keys, others = (list(condition.inferences) if condition else findings.keys), findings.compared(condition)
    rows = []
    for g in shown:
        for role, site in g.sites():
            values = {k: findings.value(g, role, site, k) for k in keys}
            gains = [findings.gain(g, k, role, site) for k in others]
            published = [_published(values[k], findings) for k in _with_published(findings) if k in values]
            rows.append(
                (
                    *(_heads(g, findings) if condition is None else ()),
                    site,
                    role,
                    str(max(v.n for v in values.values()) or DASH),
                    counted(max(values.values(), key=lambda v: v.patients > 0)),
                    *(complete(v, findings, g, k) for k, v in values.items()),
                    *(spread(v, metric, sign=True) for v in gains),
                    *published,
                )
            )
    several = findings.several
    header = (
        *(("Condition", *(("Held out",) if several else ())) if condition is None else ()),
        "Site",
        "Role",
        "n",
        unit.capitalize(),
        *(findings.name(k) for k in keys),
        *(f"Gain, {findings.name(k)}" for k in others),
        *(f"Published, {findings.name(k)}" for k in _with_published(findings) if k in keys),
    )
    heads = 2 if condition else 3 + several
    return Table(f"{_what(findings)} on the test samples of each site", header, tuple(rows), heads)


def overview(findings: Findings, unit: str = "patients") -> Table:
    """Return a row for each condition and inference: internal and external mean, worst site, gap, loss recovered.

    Columns that need internal test samples, or external sites, are left out where no partition has any.
    """
    metric, inside_too = findings.headline, findings.tests_inside
    outside_too = any(g.partition.external for g in findings.conditions)
    both = inside_too and outside_too
    rows = []
    for g in findings.conditions:
        for k in g.inferences:
            inside, outside = (findings.effect("level", g, k, role) for role in ("internal", "external"))
            rows.append(
                (
                    *_heads(g, findings),
                    findings.name(k),
                    _both([value for value, too in ((inside, inside_too), (outside, outside_too)) if too]),
                    *((complete(inside, findings, g, k) if g.tests_inside else DASH,) if inside_too else ()),
                    *((_away(outside, findings, g, k), _worst(findings, g, k)) if outside_too else ()),
                    *((spread(findings.gap(g, k), metric, sign=True), recovered(findings, g, k)) if both else ()),
                )
            )
    header = (
        "Condition",
        *(("Held out",) if findings.several else ()),
        "Inference",
        f"{unit.capitalize()}{' (internal + external)' if both else ''}",
        *(("Internal mean",) if inside_too else ()),
        *(("External mean", "Worst external site") if outside_too else ()),
        *(("Gap", LOSS_RECOVERED) if both else ()),
    )
    without = f" without {listed(out)}, where it is not defined" if (out := findings.left_out()) else ""
    caption = f"{_what(findings)}, mean over sites{without}"
    caption += _blind(findings)
    caption += ". Gap: loss from the internal to the external mean" if both else ""
    if inside_too and not all(g.tests_inside for g in findings.conditions):
        caption += ", a dash where internal sites have no test samples"
    if both and findings.baseline and findings.others():
        baseline = findings.name(findings.baseline)
        caption += (
            f". {LOSS_RECOVERED}: gain at external sites, in percent of the gap with {baseline}; gains at internal "
            "sites do not count in it, so the gap may shrink by less, or grow"
        )
    return Table(caption, header, tuple(rows), 2 + findings.several)


def _both(values: list[Value]) -> str:
    """Return the numbers of test patients inside and outside; a single dash where neither is known."""
    texts = [counted(value) for value in values]
    return " + ".join(texts) if set(texts) != {DASH} else DASH


def counted(value: Value) -> str:
    """Return the number of test patients behind a value; a dash where it has no interval that would resample them."""
    return f"{value.patients:.0f}" if value.patients > 0 else DASH


def _blind(findings: Findings) -> str:
    """Return the levels of chance and of the commonest class for a caption, their range where partitions differ."""
    chance, most = {}, {}
    for role in ("internal", "external"):
        values = [findings.blind(c, findings.level_inference(c), role) for c in findings.conditions]
        known = [value for value in values if not math.isnan(value.chance)]
        if known:
            chance[role] = _range({value.chance for value in known}, findings)
            most[role] = _range({value.majority for value in known}, findings)
    if not chance:
        return ""
    alike = len(set(chance.values())) == 1
    level = f". Chance level: {next(iter(chance.values())) if alike else _by_role(chance)}"
    return level if chance == most else f"{level}; always giving the commonest class: {_by_role(most)}"


def _range(values: set[float], findings: Findings) -> str:
    texts = [number(x, findings.headline) for x in sorted(values)]
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def _by_role(texts: dict[str, str]) -> str:
    return listed([f"{text} at {role} sites" for role, text in texts.items()])


def _away(value: Value, findings: Findings, condition: Condition, key: str) -> str:
    return complete(value, findings, condition, key) if condition.partition.external else DASH


def complete(value: Value, findings: Findings, condition: Condition, key: str) -> str:
    """Return mean ± std, with a count of seeds where some are missing."""
    text, wanted = spread(value, findings.headline), len(condition.runs)
    if value.seeds == 0 and not value.known:
        return DASH if key not in condition.inferences or findings.scored(condition, key) else "no run"
    return text if value.seeds == wanted else f"{text} ({value.seeds} of {wanted} seeds)"


def recovered(findings: Findings, condition: Condition, key: str, across: bool = False) -> str:
    """Return the share of the external loss in percent, or why there is none: no gap, a gap in doubt, labels used."""
    if findings.baseline is None or key == findings.baseline or findings.plan.inferences[key].uses_labels:
        return DASH
    gap = findings.gap(condition, findings.baseline, across)
    if not gap.known:
        return DASH
    share = findings.recovered(condition, key, across)
    if gap.mean <= 0 or doubtful(gap) or math.isnan(share):
        return "no gap" if gap.mean <= 0 else "gap in doubt" if doubtful(gap) else DASH
    return f"{100 * share:.0f} %".replace("-", "−")


def _worst(findings: Findings, condition: Condition, key: str) -> str:
    site = findings.worst(condition, key)
    if site is None:
        return DASH
    return f"{site} ({number(findings.value(condition, 'external', site, key).mean, findings.headline)})"


def _heads(condition: Condition, findings: Findings) -> tuple[str, ...]:
    return (condition.title, *((condition.held_out,) if findings.several else ()))


def _what(findings: Findings) -> str:
    unit = " (%)" if findings.headline.percent else ""
    return f"{findings.headline.title}{unit}: mean ± standard deviation over seeds"


def _with_published(findings: Findings) -> list[str]:
    """Return the inferences that have a published value."""
    return [
        k
        for k in findings.keys
        if any(not math.isnan(findings.value(c, r, s, k).published) for c in findings.conditions for r, s in c.sites())
    ]


def _published(value: Value, findings: Findings) -> str:
    return spread(Value(mean=value.published, std=value.published_std), findings.headline)
