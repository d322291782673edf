"""The forest plot of a study: the score of each site with its 95% interval, and the loss at external sites."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..analysis.conditions import Condition
from ..analysis.controls import Controls
from ..analysis.findings import Findings
from ..analysis.values import Value, inner, number
from ..core.spelling import plural
from ..figures._canvas import COLOURS, INK, legend, legend_height, pdf, short, svg
from ..metrics import Metric
from .html import Screen
from .phrases import Nouns, counted, heading, verb

WIDTHS = {"answer": 174 / 25.4, "answer-narrow": 85 / 25.4}
"""Widths of the wide and the narrow plot in inches: two columns of a journal, and one, which also fits a telephone."""
MOST = 24
"""The most sites that are drawn. Of more, the external sites with the best scores are left out."""
NAMES = 24
"""The longest label of a site, in characters, for which the narrow plot writes the patient count in full."""
LONGEST = 43
"""Characters in a line of the legend, so that one column fits the narrow plot and two fit the wide one."""
HALF = 0.4
"""Half the height of the vertical marks in a row of the plot; rows are 1 apart."""
MODEL, CONTROL = "the trained model", "control"
ADAPTED, MARGIN = "adapted with the {place}'s own unlabelled {samples}", "margin: largest loss accepted"


@dataclass(frozen=True)
class Row:
    """One site in the forest plot: scores of the model, of the adapted model and of the control without a network.

    `patients` is 0 if their number is not known, and `unit` is the plural noun for them.
    """

    site: str
    patients: int
    unit: str
    role: str
    plain: Value
    adapted: Value
    control: Value

    @property
    def people(self) -> str:
        """The number of patients, to be appended to the site's name: `, 30 patients`; empty if it is not known."""
        return f", {self.patients:,} {self.unit}" if self.patients else ""


@dataclass(frozen=True)
class Forest:
    """A plot before it is drawn: its size in inches, its content as text, and a function that draws on a figure."""

    size: tuple[float, float]
    title: str
    paint: Callable[[Any], None]

    def svg(self, name: str) -> str:
        """Draw the plot and return it as SVG. `name` is the prefix of its ids, which must be unique on a page."""
        return svg(name, self.title, self.size, self.paint)

    def pdf(self) -> bytes:
        """Draw the plot and return it as the content of a PDF file."""
        return pdf(self.size, self.paint)


def forest(
    findings: Findings,
    controls: Controls,
    condition: Condition,
    screen: Screen,
    nouns: Nouns,
    about: str,
    width: float,
) -> Forest:
    """Return the forest plot of one condition's scores (algorithm x batch norm policy x settings) at all sites.

    The plot can stand alone: it states verdict, metric, numbers of patients and the note `about`. `width` is in inches.
    `screen` has the verdict, `controls` the scores of classifiers without a network, and `nouns` the words for sites.
    """
    every = _rows(findings, controls, condition, nouns.units)
    rows = _shown(findings, every)
    adapted = condition.compared_inference
    labels = {MODEL: MODEL}
    if adapted and any(row.adapted.known for row in rows):
        labels[ADAPTED] = f"{ADAPTED.format(place=nouns.place, samples=nouns.samples)} ({findings.name(adapted)})"
    if any(row.control.known for row in rows):
        labels[CONTROL] = f"{controls.about.sees} only, without a network"
    loss = findings.gap(condition, condition.level_inference, findings.averaged)
    with_loss = loss.known and condition.tests_inside
    if with_loss and findings.margin:
        # nobody accepted a margin that the study does not declare
        declared = findings.plan.study.margin is not None
        labels[MARGIN] = f"{MARGIN} {'beforehand' if declared else 'by default'}"
    labels = {key: textwrap.fill(label, LONGEST) for key, label in labels.items()}
    names = [f"{short(row.site, 20)}{row.people}" for row in rows]
    in_brackets = width == WIDTHS["answer-narrow"] and any(len(name) > NAMES for name in names)
    trainings = max((row.plain.seeds for row in rows), default=0)
    below = f"Mean of {counted(trainings, 'training')}, 95% intervals"
    if in_brackets:
        names = [short(row.site, 18) + (f" ({row.patients:,})" if row.patients else "") for row in rows]
        below += f"; {nouns.units} in brackets"
    below += f". {about}"
    heights = [0.5 + 0.21 * len(rows), 0.62] if with_loss else [0.5 + 0.21 * len(rows)]
    title = textwrap.fill(f"{screen.word}. {heading(findings.headline)} at each {nouns.place}", round(13 * width))
    size = (width, sum(heights) + 0.55 + 0.15 * title.count("\n") + legend_height(labels.values(), width))
    letters = round((9 if in_brackets else 11) * width)
    if len(rows) < len(every):
        left_out = counted(len(every) - len(rows), f"further {nouns.place}")
        below += f" {left_out} outside, with better scores, {verb(len(every) - len(rows), 'are')} left out."

    def paint(figure: Any) -> None:
        figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=9)
        panels = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        _levels(panels[0], rows, findings, labels)
        panels[0].set_yticks(range(len(rows)), names)
        panels[0].set_title(textwrap.fill(below, letters), fontsize=6.5, weight="normal", pad=12)
        if with_loss:
            _loss(panels[1], loss, findings, condition, screen.size, labels)
        legend(figure)

    return Forest(size, described(rows, loss if with_loss else Value(), screen, findings), paint)


def pooled(findings: Findings, condition: Condition, nouns: Nouns) -> str:
    """Return a note on why the mean over external sites has a narrower interval than each site alone; else ''."""
    key = condition.level_inference
    mean = findings.effect("level", condition, key, "external", across=findings.averaged)
    sites = [
        _level(findings, one, key, "external", site)
        for one in findings.alike(condition)
        for site in one.partition.external
    ]
    widths = [value.high - value.low for value in sites if value.known]
    # a width that is not known is NaN, which compares as False
    if len(widths) < 2 or not all(mean.high - mean.low < width for width in widths):
        return ""
    places = plural(nouns.place)
    return f"Chance partly cancels in the mean of several {places}, so that its interval is narrower than theirs."


def described(rows: list[Row], loss: Value, screen: Screen, findings: Findings) -> str:
    """Return the content of the forest plot as text, for readers who cannot see it.

    `rows` are the plotted sites, and `loss` is the loss at external sites.
    """
    metric = findings.headline
    over = " and ".join([*dict.fromkeys(row.unit for row in rows), "trainings"])
    parts = [f"{screen.word}. {screen.sentence} {metric.title} with 95% intervals over {over}."]
    for row in rows:
        text = f"{row.site}{row.people}, {row.role}: {_said(row.plain, metric)}"
        if row.adapted.known:
            text += f", adapted {_said(row.adapted, metric)}"
        if row.control.known:
            text += f", without a network {number(row.control.mean, metric)}"
        parts.append(f"{text}.")
    if loss.known:
        parts.append(f"Loss outside: {_said(loss, metric)}.")
    return " ".join(parts)


def _said(value: Value, metric: Metric) -> str:
    if math.isnan(value.low):
        return f"{number(value.mean, metric)}, without an interval"
    return f"{number(value.mean, metric)} ({number(value.low, metric)} to {number(value.high, metric)})"


def _rows(findings: Findings, controls: Controls, condition: Condition, unit: str) -> list[Row]:
    """Return a row of the forest plot for each site at which the headline metric is defined, internal sites first.

    `controls` has the scores of classifiers without a network, and `unit` is the plural noun for patients.
    """
    key = condition.level_inference
    adapted = condition.compared_inference
    rows = []
    for one in findings.alike(condition):
        for role, site in one.sites():
            # Of several partitions each shows what it leaves out: their internal sites are the others.
            if findings.averaged and role == "internal":
                continue
            plain = _level(findings, one, key, role, site)
            if not plain.known:
                continue
            summary = findings.value(one, role, site, key)
            plain = plain._replace(chance=summary.chance, majority=summary.majority)
            patients = int(summary.patients) if summary.patients > 0 else 0
            adapted_value = _level(findings, one, adapted, role, site) if adapted else Value()
            control = controls.level(one.run.partition_id, role, site) if controls else Value()
            rows.append(Row(site, patients, unit, role, plain, adapted_value, control))
    return rows


def _shown(findings: Findings, rows: list[Row]) -> list[Row]:
    """Return at most MOST of the rows, in their order: internal sites, and the external ones with the worst scores."""
    outside = sorted((row for row in rows if row.role == "external"), key=lambda row: findings.better(row.plain).mean)
    kept = {id(row) for row in [*(row for row in rows if row.role == "internal"), *outside][:MOST]}
    return [row for row in rows if id(row) in kept]


def _level(findings: Findings, condition: Condition, key: str, role: str, site: str) -> Value:
    """Return a site's score with an interval over patients and trainings, or else its mean score from the summary.

    `key` is the id of an inference method.
    """
    level = findings.effect("level", condition, key, role, site)
    return level if level.known else findings.value(condition, role, site, key)


def _levels(axes: Any, rows: list[Row], findings: Findings, labels: dict[str, str]) -> None:
    """Draw one row for each site: the model's score with its interval, the adapted model's, and the control's.

    The control is a classifier without a network. Dotted lines mark the score of guessing and of always predicting the
    commonest class. `labels` are the texts of the legend.
    """
    scale = 100.0 if findings.headline.percent else 1.0
    for y, row in enumerate(rows):
        looks: list[tuple[Value, dict[str, Any], float]] = [
            (row.plain, {"color": COLOURS[0], "marker": "o", "markersize": 6}, -0.1),
            (row.adapted, {"color": COLOURS[1], "marker": "D", "markersize": 4.5}, 0.18),
            (row.control, {"color": COLOURS[5], "marker": "s", "markersize": 4.5}, 0.0),
        ]
        for n, (value, look, shift) in enumerate(looks):
            if not value.known:
                continue
            if n < 2 and not math.isnan(value.low):
                ends = [scale * value.low, scale * value.high]
                axes.plot(ends, [y + shift] * 2, color=look["color"], linewidth=1.6 - 0.7 * n, solid_capstyle="butt")
            axes.plot([scale * value.mean], [y + shift], linestyle="none", **look)
    marks = {MODEL: ("o", COLOURS[0]), ADAPTED: ("D", COLOURS[1]), CONTROL: ("s", COLOURS[5])}
    for key, (marker, colour) in marks.items():
        if key in labels:
            axes.plot([], [], linestyle="none", marker=marker, color=colour, label=labels[key])
    blind = [row for row in rows if not math.isnan(row.plain.chance)]
    for y, row in enumerate(rows):
        # the share of the commonest class is another one in each hospital
        for level in {row.plain.chance, row.plain.majority} if row in blind else ():
            axes.plot([scale * level] * 2, [y - HALF, y + HALF], color=INK, linewidth=0.8, linestyle=":")
    names: dict[float, list[str]] = {}
    for row in blind[:1]:
        for level, name in ((row.plain.chance, "guess"), (row.plain.majority, "commonest class")):
            names.setdefault(level, []).append(name)
    # two names stand on either side of their two lines, so that they never overlap
    sides = ("right", "left") if len(names) > 1 else ("center",)
    for (level, known), side in zip(sorted(names.items()), sides, strict=False):
        _name(axes, ", ".join(known), scale * level, side)
    internal = sum(row.role == "internal" for row in rows)
    if 0 < internal < len(rows):
        axes.axhline(internal - 0.5, color=INK, linewidth=0.6, alpha=0.6)
        for text, up in (("home", "bottom"), ("outside", "top")):
            place = {"xycoords": ("axes fraction", "data"), "xytext": (3, 0), "textcoords": "offset points"}
            axes.annotate(text, (1, internal - 0.5), fontsize=7, ha="left", va=up, **place)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _name(axes: Any, text: str, x: float, align: str) -> None:
    """Write a small label above the axes at position x."""
    axes.annotate(text, (x, 1), xycoords=("data", "axes fraction"), fontsize=7, ha=align, va="bottom")


def _loss(axes: Any, loss: Value, findings: Findings, condition: Condition, size: str, labels: dict[str, str]) -> None:
    """Draw the loss at external sites with its interval, and the margin (largest accepted loss) as a grey band.

    A dotted line marks the loss that leaves the model no better than guessing, so that the axis keeps its length
    whether the loss is large or small. `size` describes the loss in words, and `labels` are the texts of the legend.
    """
    scale = 100 if findings.headline.percent else 1
    if findings.margin:
        axes.axvspan(0, scale * findings.margin, color=INK, alpha=0.12, linewidth=0, label=labels[MARGIN])
    key = condition.level_inference
    home = findings.better(findings.effect("level", condition, key, "internal", across=findings.averaged))
    lead = home.mean - findings.better(findings.blind(condition, key, "external")).chance
    if lead > 0:
        axes.axvline(scale * lead, color=INK, linewidth=0.8, linestyle=":")
        _name(axes, "guess", scale * lead, "center")
    axes.axvline(0, color=INK, linewidth=0.8)
    if not math.isnan(loss.low):
        axes.plot([scale * loss.low, scale * loss.high], [0, 0], color=COLOURS[0], linewidth=1.6, solid_capstyle="butt")
    axes.plot([scale * loss.mean], [0], linestyle="none", marker="o", markersize=6, color=COLOURS[0])
    axes.set_yticks([0], [textwrap.fill(f"loss outside{size and f': {size}'}", 22)])
    axes.set_ylim(0.6, -0.6)
    axes.grid(axis="y", visible=False)
    points = "points of " if findings.headline.percent else ""
    axes.set_xlabel(f"{points}{inner(findings.headline)} lost outside", fontsize=8)
