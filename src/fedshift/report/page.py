"""The page of a study: one HTML file that needs no network and no script."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..analysis import results, score, unseen
from ..analysis.findings import Findings, Group
from ..analysis.table import Table
from ..analysis.values import between, inner, listed, spread
from ..core import registry
from ..core.errors import UserError
from ..figures import Figure, Results
from ..io.paths import Paths
from ..io.text import write_text
from ..papers import comparison, trends
from ..papers.reproduction import Reproduction
from ..study.plan import Plan
from . import headline, tables
from .answer import answer
from .cohort import Cohort, cohorts
from .history import Trained, caveats, costs, facts, runs_table, specs, trained
from .html import render
from .protocol import protocol, scaled

EMBED = 100_000
"""Files of more bytes are not embedded for download, only named."""


@dataclass(frozen=True)
class Cell:
    """Text of a table cell, a smaller second line, and what to make of it: worst, better, worse or nothing."""

    text: str
    below: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Shown:
    """A table on the page. `id` is its own on the page."""

    id: str
    caption: str
    header: tuple[str, ...]
    rows: list[list[Cell]]
    heads: int


@dataclass(frozen=True)
class Download:
    """A link that holds its own file."""

    label: str
    name: str
    uri: str


@dataclass(frozen=True)
class Drawn:
    """A figure on the page; `svg` is empty where it has not been drawn."""

    name: str
    title: str
    caption: str
    svg: str
    downloads: list[Download]


def write(plan: Plan, paths: Paths, out: Path | None = None) -> Path:
    """Writes the page of a scored study, by default to reports/{study}.html; and what the index says of it.

    The latter is headline.json, beside the study's tables.
    """
    out = out or paths.page(plan.name)
    shown = context(plan, paths)
    write_text(out, render("page.html.j2", shown))
    headline.write(plan, paths, shown["answer"].lead, shown["synthetic"], shown["reproduction"])
    return out


def context(plan: Plan, paths: Paths) -> dict[str, Any]:
    """Everything the template shows."""
    findings, found = Findings.read(plan, paths), results.load(plan, paths)
    runs, people = trained(findings, paths, found.rounds), cohorts(plan, paths)
    unit = "patients" if all(cohort.patients for cohort in people) else "images"
    sites = [_sites(n, findings, group, unit) for n, group in enumerate(findings.groups)]
    reproduction = Reproduction.read(plan, paths)
    other = unseen.shown(findings, score.read_tidy(paths.study(plan.name) / "unseen.csv"))
    return {
        "plan": plan,
        "study": plan.study,
        "synthetic": found.synthetic,
        "cards": [results.card(paths, data) for data in plan.data.values()],
        "missing": _missing(findings, paths),
        "scaled": scaled(plan),
        "command": score.command(plan, paths),
        "archives": score.archives(plan),
        "answer": answer(findings, unit),
        "reproduction": reproduction,
        "claimed": trends.MEANING,
        "compared": [(line, _compared(n, t)) for n, (t, line) in enumerate(reproduction.tables)],
        "within": comparison.MEANING,
        "caveats": _caveats(findings, people, runs),
        "unseen": plain("unseen", other) if other else None,
        "overview": plain("overview", tables.overview(findings)),
        "sites": sites,
        "coloured": any(cell.mark in ("better", "worse") for t in sites for row in t.rows for cell in row),
        "metrics": [_metrics(n, findings, group, unit) for n, group in enumerate(findings.groups)],
        "figures": [_figure(plan, paths, name, found) for name in plan.study.figures],
        "cohorts": [(c, plain(f"cohort-{n}", c.table)) for n, c in enumerate(people)],
        "protocol": protocol(findings),
        "costs": plain("costs", costs(runs)),
        "runs": plain("runs", runs_table(runs)),
        "facts": facts(runs),
        "specs": specs(findings),
        "downloads": list(_downloads(plan, paths)),
        "several": findings.several,
    }


def _missing(findings: Findings, paths: Paths) -> list[dict[str, str]]:
    """What could not be scored, with the words for its run; one row where all inferences of a run fail alike."""
    titles = {name: (g.title, str(run.seed)) for g in findings.groups for name, run in g.runs.items()}
    grouped: dict[tuple[str, str], list[str]] = {}
    for item in score.missing(findings.plan, paths):
        grouped.setdefault((item["run"], item["why"]), []).append(findings.name(item["inference"]))
    return [
        {
            "run": run,
            "condition": titles[run][0],
            "seed": titles[run][1],
            "inference": "all" if len(named) == len(findings.keys) else ", ".join(named),
            "why": why,
        }
        for (run, why), named in grouped.items()
        if run in titles
    ]


def _caveats(findings: Findings, people: list[Cohort], runs: list[Trained]) -> list[str]:
    """Each caveat once: the study's own, then those that the data and the runs give rise to."""
    study = findings.plan.study
    small = "Mini scale: a small model of the study, to show that it runs; not its result."
    found = [
        *study.notes,
        *([small] if findings.plan.scale == "mini" and scaled(findings.plan) else []),
        *(line for cohort in people for line in cohort.caveats),
        *_left_out(findings),
        *_untested(findings),
        *_with_labels(findings),
        *_alone(findings),
        *caveats(findings, runs),
    ]
    return list(dict.fromkeys(found))


def _with_labels(findings: Findings) -> Iterator[str]:
    """What is not to be compared with the rest."""
    for key, inference in findings.plan.inferences.items():
        if caveat := inference.caveat(findings.name(key)):
            yield caveat


def _alone(findings: Findings) -> Iterator[str]:
    """Conditions without a model for external sites."""
    titles = dict.fromkeys(g.title for g in findings.groups if not g.run.algorithm.collaboration.has_global_model)
    if titles:
        yield f"{listed(list(titles))}: each client trains alone, so that no model is there for external sites."


def _untested(findings: Findings) -> Iterator[str]:
    """The sites that train and are not tested."""
    for group in findings.groups:
        if not group.tests_inside:
            held_out = f"With {group.condition.held_out} held out, training" if findings.several else "Training"
            yield (
                f"{held_out} is at {listed(list(group.partition.internal))}, where all samples train or validate: no "
                "test result is there for them, and no gap to external sites."
            )


def _left_out(findings: Findings) -> Iterator[str]:
    """The sites that count in no mean, with the metrics that are not defined there."""
    where: dict[tuple[str, ...], list[str]] = {}
    for name, metric in findings.metrics.items():
        where.setdefault(tuple(findings.left_out(metric=name)), []).append(inner(metric))
    for sites, titles in where.items():
        if sites:
            are = "are not defined at" if len(titles) > 1 else "is not defined at"
            text = listed(titles)
            left = "which is" if len(sites) == 1 else "which are"
            yield f"{text[:1].upper()}{text[1:]} {are} {listed(list(sites))}, {left} left out of means over sites."


def plain(name: str, table: Table) -> Shown:
    """A table without marks."""
    return Shown(name, table.caption, table.header, [[Cell(c) for c in row] for row in table.rows], table.heads)


def _compared(n: int, table: Table) -> Shown:
    """A published table beside ours; what is outside is marked."""
    shown = plain(f"published-{n}", table)
    for row in shown.rows:
        if row[-1].text == "outside":
            row[-1] = Cell(row[-1].text, mark="worse")
    return shown


def _below(rows: list[list[Cell]], unit: str) -> str:
    """What a caption says of intervals, if the table has any."""
    return f"; below, the 95% interval over {unit}" if any(cell.below for row in rows for cell in row) else ""


def _sites(n: int, findings: Findings, group: Group, unit: str) -> Shown:
    """The headline metric of one condition, with intervals; the worst external site and the changes are marked."""
    table, metric = tables.sites(findings, group), findings.headline
    rows = []
    for cells, (role, site) in zip(table.rows, group.sites(), strict=True):
        marked = [Cell(c) for c in cells]
        for k, key in enumerate(group.asked):
            value = findings.value(group, role, site, key)
            worst = role == "external" and site == findings.worst(group, key)
            below = between(value, metric) if value.low == value.low else ""
            marked[3 + k] = Cell(cells[3 + k], below, "worst" if worst else "")
        for k, key in enumerate(findings.compared(group), 3 + len(group.asked)):
            gain = findings.gain(group, key, role, site)
            sure = "better" if gain.low > 0 else "worse" if gain.high < 0 else ""
            below = between(gain, metric, sign=True) if gain.low == gain.low else ""
            marked[k] = Cell(cells[k], below, sure)
        rows.append(marked)
    caption = f"{findings.full(group)}. {table.caption}{_below(rows, unit)}"
    return Shown(f"sites-{n}", caption, table.header, rows, table.heads)


def _metrics(n: int, findings: Findings, group: Group, unit: str) -> Shown:
    """All metrics of one condition."""
    rows = []
    for role, site in group.sites():
        for key in group.asked:
            values = {m: findings.value(group, role, site, key, name) for name, m in findings.metrics.items()}
            cells = [Cell(spread(v, m), between(v, m) if v.low == v.low else "") for m, v in values.items()]
            rows.append([Cell(site), Cell(role), Cell(findings.name(key)), *cells])
    units = (f"{m.title} (%)" if m.percent else m.title for m in findings.metrics.values())
    caption = f"{findings.full(group)}. All metrics: mean ± standard deviation over seeds{_below(rows, unit)}"
    return Shown(f"metrics-{n}", caption, ("Site", "Role", "Inference", *units), rows, 3)


def _figure(plan: Plan, paths: Paths, name: str, found: Results) -> Drawn:
    """A figure as it was drawn by its rule."""
    from markupsafe import Markup

    figure: Figure = registry.build("figure", name)
    path = paths.study(plan.name) / "figures" / f"{name}.svg"
    try:
        svg = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Drawn(name, figure.title, "This figure has not been drawn.", "", [])
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(path, f"not a readable figure: {error}", "draw it again") from error
    link = download("SVG", f"{plan.name}-{name}.svg", svg, "image/svg+xml")
    return Drawn(name, figure.title, figure.caption(found), Markup(svg), [link])  # our own file, escaped when drawn


def _downloads(plan: Plan, paths: Paths) -> Iterator[tuple[str, list[Download], str]]:
    """Files of the study: what, links, and where they lie."""
    folder = paths.study(plan.name)
    types = {"csv": "text/csv", "md": "text/markdown", "tex": "application/x-tex"}
    files = {
        "Overview table": "tables/overview",
        "Table of sites": "tables/sites",
        "Summary": "summary",
        "Effects": "effects",
        "Beside the published values": "tables/comparison",
        "Trends": "trends",
        "All scores": "scores",
    }
    for title, stem in files.items():
        links = []
        for kind in types:
            path = folder / f"{stem}.{kind}"
            if path.exists() and path.stat().st_size <= EMBED:
                name = f"{plan.name}-{path.name}"
                links.append(download(kind.upper(), name, path.read_text(encoding="utf-8"), types[kind]))
        yield title, links, f"results/studies/{plan.name}/{stem}.csv"


def download(label: str, name: str, text: str, kind: str) -> Download:
    """A link with the text in it."""
    content = base64.b64encode(text.encode()).decode()
    return Download(label, name, f"data:{kind};charset=utf-8;base64,{content}")
