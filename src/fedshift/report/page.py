"""The page of a study: one HTML file that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..analysis import unseen
from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.results import StudyResults, load
from ..analysis.values import spread
from ..core import registry
from ..figures import Figure
from ..io.disk import atomic
from ..io.paths import Paths
from ..io.text import readable, write_text
from ..papers import published_values as published
from ..papers import trends
from ..papers.reproduction import Reproduction
from ..study import calls
from ..study.plan import Plan
from . import (
    calibration_section,
    collapse_section,
    comparison_section,
    gallery,
    headline_tables,
    hypothesis_section,
    in_words,
    new_hospital,
    operating_point_section,
    overlooked,
    search_section,
    subgroup_section,
    who,
    worst,
)
from .answer import Answer, Tile, answer
from .care import about_pairs, concerns
from .checklists import checklists, statements
from .citation import Citation, citation
from .cohort import EVENTS, Cohort, cohorts, events, problems
from .downloads import Download, download, downloads
from .first_screen import Screen, lights, screen
from .forest import WIDTHS, Forest, forest, pooled
from .history import costs, facts, of_one_class, runs_table, specs, trained, unfinished
from .html import PageCell, PageTable, plain, render
from .methods_screen import Methods
from .phrases import bounds, counted, heading, joined, level, resampled
from .protocol import glossary, protocol
from .verdict_words import beaten, beside_control, no_better_at_home, shortcut

DRAWN = "drawn by fedshift"
"""The source, on their cards, of datasets that are invented at every scale."""


@dataclass(frozen=True)
class Drawn:
    """A figure on the page; `svg` is empty where it has not been drawn, and `parts` are opened one by one."""

    name: str
    title: str
    caption: str
    svg: str
    downloads: list[Download]
    parts: Sequence[tuple[str, str]] = ()


def write(results: StudyResults) -> Path:
    """Write the page of a study, and headline.json beside its tables, which the index of all studies shows.

    Returns reports/{study}.html.
    """
    out = results.paths.page(results.plan.name)
    content = context(results)
    write_text(out, render("page.html.j2", content))
    lead = joined(search_section.oracle(results.plan), content["answer"].opening, content["answer"].lead)
    gallery.write_headline(results, lead, content["reproduction"], content["problems"])
    return out


def _to_do_first(people: Sequence[Cohort], faults: Sequence[str], few: Sequence[str], unit: str) -> str:
    """Return what must be done before anybody can tell how many more patients would settle a question."""
    if faults:
        return "First correct the data: see the problems above."
    if few:
        return f"First it takes {EVENTS} test {unit} of each class at every site."
    if any(cohort.doubted or not cohort.patients for cohort in people):
        return "First the table must say which images are of one patient."
    return ""


def context(results: StudyResults) -> dict[str, Any]:
    """Return everything that the template shows."""
    plan = results.plan
    findings = results.findings
    controls = results.controls
    runs = trained(results)
    people = cohorts(results)
    unit = "patients" if all(cohort.patients for cohort in people) else "images"
    reproduction = Reproduction.of(results)
    sites = [headline_tables.sites_on_page(findings, c, unit, controls) for c in findings.conditions]
    not_trained_on = unseen.shown(findings, results.table("unseen"))
    few = events(people)
    counts = overlooked.counts(results)
    checks = [check for cohort in people for check in cohort.checks]
    faults = problems(people)
    faulty = bool(faults or few) or any(cohort.doubted for cohort in people)
    told = answer(findings, unit, faulty)
    worse = beaten(controls, told.condition, findings.level_inference(told.condition))
    late = next(unfinished(findings, runs, results.rounds), "")
    to_do = _to_do_first(people, faults, few, unit)
    methods = Methods.of(findings, unit)
    if methods:
        first = methods.screen()
    else:
        first = screen(findings, told.condition, told.judged, unit, to_do, worse, told.led, bool(late))
    cited = citation(results, runs)
    listed_concerns = concerns(results, people, runs)
    tested = findings.compared_inference(told.condition)
    content = {
        "plan": plan,
        "study": plan.study,
        "synthetic": results.synthetic,
        "cards": results.cards,
        "missing": _missing(results),
        "scaled": plan.scaled,
        "command": calls.snakemake(plan, results.paths),
        "run_commands": calls.single_runs(plan, results.paths),
        "archives": calls.archives(plan),
        "settings": plan.settings,
        "problems": faults,
        "answer": told,
        "screen": first,
        "unit": unit,
        "about": _about(results, people, cited, unit),
        "citation": cited,
        "asked": [*hypothesis_section.asked(results), *([] if methods else comparison_section.asked(findings, unit))],
        "in_words": methods.in_words(first, results.synthetic)
        if methods
        else in_words.sentences(
            findings, told.condition, told.judged, unit, bool(faults), results.synthetic, bool(worse)
        ),
        "how_to_read": list(
            methods.how_to_read()
            if methods
            else in_words.how_to_read(findings, told.condition, tested is not None, bool(controls))
        ),
        "lights": lights(
            checks,
            late,
            told.judged.below,
            few,
            overlooked.light(counts),
            of_one_class(results, told.condition),
            operating_point_section.light(results, told.condition),
        ),
        "methods": methods,
        "forests": _forests(results, told, first, unit, methods),
        "pooled": "" if methods else pooled(findings, told.condition),
        "tiles": list(methods.tiles(reproduction)) if methods else [*told.tiles, *_control_tile(results, told)],
        "glossary": glossary(findings),
        "control": joined(
            shortcut(controls, told.condition, findings.level_inference(told.condition)), beside_control(controls, unit)
        ),
        "reproduction": reproduction,
        "claimed": trends.MEANING,
        "compared": [(line, plain(table, {"outside": "worse"})) for table, line in reproduction.tables],
        "within": published.MEANING,
        "concerns": [concern for concern in listed_concerns if concern.status != "ok"],
        "about_pairs": about_pairs(results.synthetic),
        "passed": [concern for concern in listed_concerns if concern.status == "ok"],
        "subgroups": {column: plain(table) for column, table in subgroup_section.tables(results, unit).items()},
        "unseen": plain(not_trained_on) if not_trained_on else None,
        "overview": plain(headline_tables.overview(findings, unit, controls)),
        "hypotheses": hypothesis_section.section(results, unit),
        "comparison": comparison_section.section(findings, unit),
        "new_hospital": new_hospital.section(findings, unit),
        "worst": [*worst.sentences(results, unit), *overlooked.sentences(counts, unit)],
        "operating_point": operating_point_section.section(results, unit),
        "sites": sites,
        "coloured": any(cell.mark in ("better", "worse") for table in sites for row in table.rows for cell in row),
        "metrics": [_metrics(findings, condition, unit) for condition in findings.conditions],
        "search": search_section.section(results),
        "oracle": search_section.oracle(plan),
        "collapse": collapse_section.section(results),
        "calibration": calibration_section.section(findings, results.table("calibration"), unit),
        "who": who.sections(results, people),
        "protocol": protocol(findings),
        "statements": statements(plan.study.author),
        "checklists": checklists(plan.study.author),
        "costs": plain(costs(runs)),
        "runs": plain(runs_table(runs)),
        "facts": facts(runs),
        "specs": specs(findings),
        "downloads": list(downloads(results)),
        "several": findings.several,
    }
    content["figures"] = _figures(results, content)
    return content | {"contents": list(_contents(content))}


SECTIONS = {
    "missing": "What is missing",
    "care": "What can be wrong",
    "hypotheses": "Hypotheses",
    "sites": "Site by site",
    "trends": "Trends of papers",
    "published": "Published numbers",
    "cohort": "Who was in it",
    "operating_point": "At a threshold",
    "calibration": "Calibration",
    "new_hospital": "Another hospital",
    "comparison": "Conditions",
    "subgroups": "Subgroups",
    "collapse": "Adaptation",
    "examples": "Examples",
    "author": "Authors",
    "costs": "Communication",
    "protocol": "Protocol",
    "search": "Search",
    "provenance": "Provenance",
    "checklists": "Checklists",
    "cite": "Cite",
}
"""The sections of the page that its table of contents names, in their order, by the names of their content."""
ILLUSTRATED = ("sites", "operating-point", "calibration", "comparison", "examples", "training", "figures")
"""The sections of the page that show figures."""


def _contents(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield id and short title of each section that the page has."""
    there = content | {
        **dict.fromkeys(("care", "cohort", "comparison", "author", "provenance", "cite"), True),
        "trends": content["reproduction"].claims,
        "published": content["compared"],
        "examples": content["figures"]["examples"],
    }
    for name, title in SECTIONS.items():
        if there[name]:
            yield name.replace("_", "-"), title


def _figures(results: StudyResults, content: dict[str, Any]) -> dict[str, list[Drawn]]:
    """Return the figures of each section of the page; those of a section that it lacks are among the further ones."""
    placed: dict[str, list[Drawn]] = {name: [] for name in ILLUSTRATED}
    for name in results.plan.figures:
        figure: Figure = registry.build("figure", name)
        section = figure.section
        if section not in placed or content.get(section.replace("-", "_"), True) is None:
            section = "figures"
        placed[section].append(_figure(results, name))
    return placed


def _about(results: StudyResults, people: list[Cohort], cited: Citation, unit: str) -> str:
    """Return the facts of a study in a line: name, numbers, date, version and commit."""
    plan = results.plan
    parts = [plan.name]
    if plan.scaled:
        parts[0] += f" at scale {plan.scale}"
    if people:
        sites = dict.fromkeys(site for part in plan.partitions for site in (*part.internal, *part.external))
        parts.append(f"{people[0].images:,} {_origin(results)}")
        if unit == "patients":
            parts.append(counted(people[0].people, "patient"))
        parts.append(counted(len(sites), "hospital" if unit == "patients" else "site"))
    parts += [cited.date, f"fedshift {__version__}", cited.commit]
    return " · ".join(filter(None, parts))


def _origin(results: StudyResults) -> str:
    """Return whether images are real or invented. Nobody checks the former: it is what the study says."""
    if results.synthetic or any(card["source"] == DRAWN for card in results.cards):
        return "invented images"
    return "images given as real"


def _forests(
    results: StudyResults, told: Answer, first: Screen, unit: str, methods: Methods | None = None
) -> list[str]:
    """Return the picture that answers, for wide and for narrow screens; nothing where no site has a score."""
    from markupsafe import Markup

    findings = results.findings
    if not any(findings.scored(told.condition, key) for key in told.condition.inferences):
        return []
    return [Markup(_forest(results, told, first, unit, width, methods).svg(name)) for name, width in WIDTHS.items()]


def _forest(
    results: StudyResults, told: Answer, first: Screen, unit: str, width: float, methods: Methods | None = None
) -> Forest:
    about = f"Study {results.plan.name}, {results.plan.view[:7]}."
    if methods:
        return methods.picture(first, about, width)
    return forest(results.findings, results.controls, told.condition, first, unit, about, width)


def write_answer(plan: Plan, paths: Paths, width: str) -> list[Path]:
    """Write the picture that answers as answer.svg and answer.pdf into the study's folder; width: 174mm or 85mm."""
    results = load(plan, paths)
    content = context(results)
    inches = float(width.removesuffix("mm")) / 25.4
    picture = _forest(results, content["answer"], content["screen"], content["unit"], inches, content["methods"])
    out = results.files.folder / "answer.svg"
    write_text(out, picture.svg("answer"))
    with atomic(out.with_suffix(".pdf")) as temporary:
        temporary.write_bytes(picture.pdf())
    return [out, out.with_suffix(".pdf")]


def _control_tile(results: StudyResults, told: Answer) -> Iterator[Tile]:
    """Yield the score of the control without a network, at home and outside."""
    findings, controls = results.findings, results.controls
    partition, _ = controls.beside(told.condition)
    home, outside = (controls.level(partition, role) for role in ("internal", "external"))
    if outside.known:
        note = f"{level(home.mean, findings.headline)} at home" if home.known else ""
        if note and no_better_at_home(controls, told.condition, findings.level_inference(told.condition)):
            note += ", where the network is not shown to see more"
        yield Tile(f"Outside, by {controls.about.sees} only", level(outside.mean, findings.headline), note)


def _missing(results: StudyResults) -> list[dict[str, Any]]:
    """Return what could not be scored, one row where all inferences of a run are missing for one reason.

    Rows that are `unusable` have predictions, which cannot be scored.
    """
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
            "unusable": results.paths.predictions(run, results.plan.prediction_jobs[run]).exists(),
        }
        for (run, why), named in inferences.items()
        if run in conditions
    ]


def _metrics(findings: Findings, condition: Condition, unit: str) -> PageTable:
    """Return all metrics of one condition."""
    rows = []
    metrics = list(findings.metrics.values())
    for role, site in condition.sites():
        for key in condition.inferences:
            values = [findings.value(condition, role, site, key, metric.name) for metric in metrics]
            cells = [PageCell(spread(v, m), bounds(v, m)) for v, m in zip(values, metrics, strict=True)]
            people = headline_tables.patients(max(values, key=lambda value: value.patients > 0))
            rows.append([*map(PageCell, (site, role, findings.name(key), people)), *cells])
    caption = f"{findings.full(condition)}. All metrics: mean ± standard deviation over seeds"
    if any(cell.below for row in rows for cell in row):
        caption += f"; below, the 95% interval {resampled(len(condition.seeds), unit)}"
    header = ("Site", "Role", "Inference", unit.capitalize(), *map(heading, metrics))
    return PageTable(caption, header, rows, 3)


def _figure(results: StudyResults, name: str) -> Drawn:
    """Return a figure as it was drawn by its rule."""
    from markupsafe import Markup

    figure: Figure = registry.build("figure", name)
    path = results.files.figure(name)
    if not path.exists():
        return Drawn(name, figure.title, "This figure has not been drawn.", "", [])
    with readable(path, "figure"):
        svg = path.read_text(encoding="utf-8")
    # its texts were escaped when it was drawn; the page's content policy lets nothing in a forged one run or load
    link = download(results, f"{name}.svg", svg.encode())
    parts = [(title, Markup(part)) for title, part in figure.parts(svg)]
    return Drawn(name, figure.title, figure.caption(results.for_figures), Markup(svg), [link], parts)
