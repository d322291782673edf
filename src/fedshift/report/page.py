"""The page of a study: one HTML file that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..analysis import unseen
from ..analysis.conditions import Condition
from ..analysis.controls import Controls
from ..analysis.findings import Findings
from ..analysis.results import StudyResults, load
from ..analysis.table import Table
from ..analysis.values import between, inner, listed, spread
from ..core import registry
from ..figures import Figure
from ..io.paths import Paths
from ..io.text import write_text
from ..papers import comparison as published
from ..papers import trends
from ..papers.reproduction import Reproduction
from ..study import calls
from ..study.plan import Plan
from . import (
    calibration,
    collapse,
    comparison,
    control,
    headline,
    new_hospital,
    operating_point,
    search,
    subgroups,
    tables,
    worst,
)
from .answer import answer
from .checklists import checklists, statements
from .cohort import Cohort, cohorts, problems
from .downloads import Download, downloads, embedded
from .drawing import read_drawing
from .glossary import glossary
from .history import Trained, caveats, costs, facts, runs_table, specs, trained
from .html import render
from .page_table import PageCell, PageTable, plain
from .protocol import protocol


@dataclass(frozen=True)
class Drawn:
    """A figure on the page; `svg` is empty where it has not been drawn."""

    name: str
    title: str
    caption: str
    svg: str
    downloads: list[Download]


def write(plan: Plan, paths: Paths, out: Path | None = None) -> Path:
    """Write the page of a scored study, and headline.json beside its tables, which the index of all studies shows.

    Returns the page: `out`, or by default reports/{study}.html.
    """
    out = out or paths.page(plan.name)
    results = load(plan, paths)
    content = context(results)
    write_text(out, render("page.html.j2", content))
    said = " ".join(filter(None, [search.oracle(plan), content["answer"].opening, content["answer"].lead]))
    headline.write(results, said, content["reproduction"], content["problems"])
    return out


def context(results: StudyResults) -> dict[str, Any]:
    """Return everything that the template shows."""
    plan, findings = results.plan, results.findings
    runs, people = trained(results), cohorts(results)
    unit = "patients" if all(cohort.patients for cohort in people) else "images"
    controls, measured = results.controls, calibration.calibration(findings, results.calibration, unit)
    sites = [_sites(n, findings, condition, unit, controls) for n, condition in enumerate(findings.conditions)]
    reproduction = Reproduction.of(results)
    differences = comparison.by_site(findings, unit)
    not_trained_on = unseen.shown(findings, results.unseen)
    return {
        "plan": plan,
        "study": plan.study,
        "synthetic": results.synthetic,
        "cards": results.cards,
        "missing": _missing(results),
        "scaled": plan.scaled,
        "command": calls.snakemake(plan, results.paths),
        "run_commands": calls.single_runs(plan, results.paths),
        "archives": calls.archives(plan),
        "problems": problems(people),
        "answer": answer(findings, unit),
        "glossary": glossary(findings),
        "control": control.sentence(controls, unit),
        "reproduction": reproduction,
        "claimed": trends.MEANING,
        "compared": [(line, _compared(n, t)) for n, (t, line) in enumerate(reproduction.tables)],
        "within": published.MEANING,
        "caveats": _caveats(results, people, runs),
        "subgroups": [
            (column, plain(f"subgroups-{n}", t))
            for n, (column, t) in enumerate(subgroups.tables(results, unit).items())
        ],
        "unseen": plain("unseen", not_trained_on) if not_trained_on else None,
        "overview": plain("overview", control.in_overview(tables.overview(findings, unit), controls)),
        "conditions": _conditions(comparison.table(findings, unit)),
        "differences": plain("differences", differences) if differences else None,
        "new_hospital": _new_hospital(findings, unit),
        "worst": worst.sentences(results, unit),
        "points": operating_point.section(results, unit),
        "sites": sites,
        "coloured": any(cell.mark in ("better", "worse") for t in sites for row in t.rows for cell in row),
        "metrics": [_metrics(n, findings, condition, unit) for n, condition in enumerate(findings.conditions)],
        "search": _search(search.section(results)),
        "oracle": search.oracle(plan),
        "collapse": _collapse(collapse.section(results)),
        "calibration": measured,
        "calibrated": _calibrated(measured),
        "calibration_key": calibration.explanation(),
        "figures": [_figure(results, name) for name in plan.study.figures],
        "cohorts": [(c, plain(f"cohort-{n}", c.table)) for n, c in enumerate(people)],
        "protocol": protocol(findings),
        "statements": statements(plan.study.author),
        "checklists": checklists(plan.study.author),
        "costs": plain("costs", costs(runs)),
        "runs": plain("runs", runs_table(runs)),
        "facts": facts(runs),
        "specs": specs(findings),
        "downloads": list(downloads(results)),
        "several": findings.several,
    }


def _missing(results: StudyResults) -> list[dict[str, str]]:
    """Return what could not be scored, one row where all inferences of a run are missing for one reason."""
    findings = results.findings
    conditions = {name: condition for condition in findings.conditions for name in condition.runs}
    inferences: dict[tuple[str, str], list[str]] = {}
    for item in results.missing:
        inferences.setdefault((item["run"], item["why"]), []).append(findings.name(item["inference"]))
    return [
        {
            "run": run,
            "condition": conditions[run].title,
            "seed": str(conditions[run].runs[run].seed),
            "inference": "all" if len(named) == len(findings.keys) else ", ".join(named),
            "why": why,
        }
        for (run, why), named in inferences.items()
        if run in conditions
    ]


def _caveats(results: StudyResults, people: list[Cohort], runs: list[Trained]) -> list[str]:
    """Return each caveat once: the notes of the study, then the caveats that data and runs give rise to."""
    findings = results.findings
    study = findings.plan.study
    small = "Mini scale: a small model of the study, to show that it runs; not its result."
    lines = [
        *study.notes,
        *([small] if findings.plan.scale == "mini" and findings.plan.scaled else []),
        *(note for card in results.cards for note in card.get("notes", ())),
        *(line for cohort in people for line in cohort.caveats),
        *(metric.caveat for metric in findings.metrics.values() if metric.caveat),
        *_left_out(findings),
        *_untested(findings),
        *_with_labels(findings),
        *_alone(findings),
        *_two_networks(findings),
        *caveats(findings, runs),
    ]
    return list(dict.fromkeys(lines))


def _with_labels(findings: Findings) -> Iterator[str]:
    """Yield a caveat for each inference that uses labels, which must not be compared with the rest."""
    for key, inference in findings.plan.inferences.items():
        if caveat := inference.caveat(findings.name(key)):
            yield caveat


def _alone(findings: Findings) -> Iterator[str]:
    """Yield a caveat for each reason, with the conditions that have no model for external sites for this reason."""
    titles: dict[str, dict[str, None]] = {}
    for condition in findings.conditions:
        if not (together := condition.run.algorithm.collaboration).has_global_model:
            titles.setdefault(together.apart, {})[condition.title] = None
    for reason, names in titles.items():
        yield f"{listed(list(names))}: {reason}, so there is no model for external sites."


def _two_networks(findings: Findings) -> Iterator[str]:
    """Yield a caveat that names the conditions whose losses outside compare two networks."""
    conditions = [c for c in findings.conditions if c.partition.external and c.run.algorithm.external]
    names = dict.fromkeys(c.title for c in conditions if c.run.algorithm.collaboration.has_global_model)
    if names:
        yield (
            f"{listed(list(names))}: internal sites are predicted with networks or layers of their own, and external "
            "sites with common ones, so that a loss outside compares two networks. An inference with network: global "
            "predicts all sites with one."
        )


def _untested(findings: Findings) -> Iterator[str]:
    """Yield a caveat for the sites that train and are not tested."""
    for condition in findings.conditions:
        if not condition.tests_inside:
            held_out = f"With {condition.held_out} held out, training" if findings.several else "Training"
            yield (
                f"{held_out} is at {listed(list(condition.partition.internal))}, where all samples train or validate: "
                "there is no test result for them, and no gap to external sites."
            )


def _left_out(findings: Findings) -> Iterator[str]:
    """Yield a caveat for the sites that count in no mean, with the metrics that are not defined there."""
    where: dict[tuple[str, ...], list[str]] = {}
    for name, metric in findings.metrics.items():
        where.setdefault(tuple(findings.left_out(metric=name)), []).append(inner(metric))
    for sites, titles in where.items():
        if sites:
            are = "are not defined at" if len(titles) > 1 else "is not defined at"
            text = listed(titles)
            left = "which is" if len(sites) == 1 else "which are"
            yield f"{text[:1].upper()}{text[1:]} {are} {listed(list(sites))}, {left} left out of means over sites."


def _new_hospital(findings: Findings, unit: str) -> dict[str, Any] | None:
    """Return what is said about a new hospital, with its tables as the page shows them."""
    said = new_hospital.section(findings, unit)
    if said is None:
        return None
    details = plain("new-hospital-interval", said.details) if said.details else None
    return {
        "sentences": said.sentences,
        "table": plain("new-hospital", said.table),
        "details": details,
        "why": said.why,
    }


def _compared(n: int, table: Table) -> PageTable:
    """Return a published table beside ours, in which the verdict `outside` is marked."""
    shown = plain(f"published-{n}", table)
    for row in shown.rows:
        if row[-1].text == "outside":
            row[-1] = PageCell(row[-1].text, mark="worse")
    return shown


def _collapse(section: collapse.Section | None) -> tuple[list[str], list[PageTable]] | None:
    """Return the sentences and tables of test-time adaptation, in which a collapse is marked; None without any."""
    if section is None:
        return None
    made = [plain(f"collapse-{n}", table) for n, table in enumerate(section.tables)]
    for row in (row for one in made for row in one.rows):
        if row[-1].text not in ("no", "not known"):
            row[-1] = PageCell(row[-1].text, mark="worse")
    return section.lines, made


def _search(section: search.Section | None) -> tuple[list[str], PageTable] | None:
    """Return the sentences and the table of the searches; None without any."""
    return (section.lines, plain("searches", section.table)) if section else None


def _conditions(table: Table) -> PageTable:
    """Return the conditions beside the best of them, with the best and those that are worse marked."""
    marks = {"best": "better", "worse than the best": "worse"}
    shown = plain("conditions", table)
    for row in shown.rows:
        row[-1] = PageCell(row[-1].text, mark=marks.get(row[-1].text, ""))
    return shown


def _below(rows: list[list[PageCell]], unit: str) -> str:
    """Return the part of a caption that explains intervals, if the table has any."""
    return f"; below, the 95% interval over {unit}" if any(cell.below for row in rows for cell in row) else ""


_NUMBERS = 4
"""The column of a table of sites at which the numbers begin."""


def _sites(n: int, findings: Findings, condition: Condition, unit: str, controls: Controls) -> PageTable:
    """Return the headline metric of one condition; the worst external site and sure changes are marked."""
    table, metric = tables.sites(findings, condition, unit), findings.headline
    rows = []
    for cells, (role, site) in zip(table.rows, condition.sites(), strict=True):
        marked = [PageCell(c) for c in cells]
        for k, key in enumerate(condition.inferences):
            value = findings.value(condition, role, site, key)
            worst = role == "external" and site == findings.worst(condition, key)
            below = between(value, metric) if value.low == value.low else ""
            marked[_NUMBERS + k] = PageCell(cells[_NUMBERS + k], below, "worst" if worst else "")
        for k, key in enumerate(findings.compared(condition), _NUMBERS + len(condition.inferences)):
            gain = findings.gain(condition, key, role, site)
            sure = "better" if gain.low > 0 else "worse" if gain.high < 0 else ""
            below = between(gain, metric, sign=True) if gain.low == gain.low else ""
            marked[k] = PageCell(cells[k], below, sure)
        rows.append(marked)
    gains = ", and of gains over trainings too" if findings.compared(condition) and len(condition.runs) > 1 else ""
    beside = control.in_sites(table, controls, condition)
    for row, cells, interval in zip(rows, beside.rows, control.below(controls, condition), strict=False):
        row.append(PageCell(cells[-1], interval))
    under = _below(rows, unit)
    caption = f"{findings.full(condition)}. {table.caption}{under}{gains if under else ''}"
    return PageTable(f"sites-{n}", caption, beside.header, rows, table.heads)


def _metrics(n: int, findings: Findings, condition: Condition, unit: str) -> PageTable:
    """Return all metrics of one condition."""
    rows = []
    for role, site in condition.sites():
        for key in condition.inferences:
            values = {m: findings.value(condition, role, site, key, name) for name, m in findings.metrics.items()}
            cells = [PageCell(spread(v, m), between(v, m) if v.low == v.low else "") for m, v in values.items()]
            behind = tables.counted(max(values.values(), key=lambda value: value.patients > 0))
            rows.append([PageCell(site), PageCell(role), PageCell(findings.name(key)), PageCell(behind), *cells])
    units = (f"{m.title} (%)" if m.percent else m.title for m in findings.metrics.values())
    caption = f"{findings.full(condition)}. All metrics: mean ± standard deviation over seeds{_below(rows, unit)}"
    return PageTable(f"metrics-{n}", caption, ("Site", "Role", "Inference", unit.capitalize(), *units), rows, 3)


def _calibrated(measured: calibration.Calibration | None) -> list[PageTable]:
    """Return the calibration of each condition."""
    made = []
    for n, (table, below) in enumerate(measured.tables if measured else ()):
        rows = [[*map(PageCell, cells, under)] for cells, under in zip(table.rows, below, strict=True)]
        made.append(PageTable(f"calibration-{n}", table.caption, table.header, rows, table.heads))
    return made


def _figure(results: StudyResults, name: str) -> Drawn:
    """Return a figure as it was drawn by its rule."""
    from markupsafe import Markup

    figure: Figure = registry.build("figure", name)
    path = results.files.figure(name)
    try:
        svg = read_drawing(path)
    except FileNotFoundError:
        return Drawn(name, figure.title, "This figure has not been drawn.", "", [])
    file = f"{'synthetic-' if results.synthetic else ''}{results.plan.name}-{name}.svg"
    link = embedded("SVG", file, svg.encode(), "image/svg+xml")
    caption = figure.caption(results.for_figures)
    return Drawn(name, figure.title, caption, Markup(svg), [link])  # looked at by read_drawing
