"""The page of a study: one HTML file that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..analysis.study_results import StudyResults, load
from ..analysis.values import listed
from ..io.disk import atomic
from ..io.paths import Paths
from ..io.text import write_text
from ..study.plan import Plan
from . import behind_means, gallery, registered, threshold_and_probabilities
from .cohort import TWO_LABELS, Check
from .downloads import downloads
from .forest import WIDTHS, Forest
from .history import of_one_class, seen, training_light
from .html import Claim, Light, Lights, Tiles, render
from .phrases import counted, joined
from .protocol import glossary
from .screens import Hospitals, Methods
from .sections import WITHOUT_ELSEWHERE, sections, sums_light, without_sums
from .study_report import StudyReport
from .verdict_texts import SITES

MOST_ASKED = 3
"""The most claims that the first screen shows."""
DRAWN = "drawn by fedshift"
"""The source, on their cards, of datasets that are invented at every scale."""


def write(results: StudyResults) -> Path:
    """Write the page of a study, and headline.json beside its tables, which the index of all studies shows.

    Returns reports/{study}.html.
    """
    out = results.paths.page(results.plan.name)
    report = StudyReport(results)
    write_text(out, render("page.html.j2", context(report)))
    caveats = registered.oracle(results.plan), without_sums(report.sites_summed, WITHOUT_ELSEWHERE)
    lead = joined(*caveats, report.told.opening, report.told.lead)
    gallery.write_headline(results, lead, report.reproduction, report.problems)
    return out


def context(report: StudyReport) -> dict[str, Any]:
    """Return what the template of the page shows around its sections, and the sections."""
    first = first_screen(report)
    return {
        "report": report,
        "synthetic": report.results.synthetic,
        "missing": report.missing,
        "oracle": registered.oracle(report.plan),
        "about": _about(report),
        "first": first,
        "asked": [*_asked(report, first)],
        "lights": Lights(_lights(report)),
        "tiles": Tiles([*first.tiles]),
        "forests": _forests(report, first),
        "glossary": glossary(report.findings),
        "sections": sections(report),
        "downloads": list(downloads(report.results)),
    }


def first_screen(report: StudyReport) -> Methods | Hospitals:
    """Return the first screen of a page: of a study that compares methods, or of a study of hospitals."""
    return Methods.of(report) or Hospitals(report)


class Asked(NamedTuple):
    """What a study asked beforehand, of one kind.

    Attributes
    ----------
    claims : those that the first screen shows
    section : the section that has all of them
    further : how many there are besides, in words; empty where all are shown
    """

    claims: list[Claim]
    section: str
    further: str


def _asked(report: StudyReport, first: Methods | Hospitals) -> Iterator[Asked]:
    """Yield the declared comparisons, then the registered hypotheses: MOST_ASKED of both together."""
    room = MOST_ASKED
    kinds = {
        ("comparison", "further declared comparison"): first.asked,
        ("hypotheses", "further hypothesis"): [*registered.asked(report.results)],
    }
    for (section, noun), claims in kinds.items():
        left = len(claims) - room
        if claims:
            yield Asked([*claims[:room]], section, counted(left, noun) if left > 0 else "")
        room = max(-left, 0)


def _lights(report: StudyReport) -> list[Light]:
    """Return what readers ask first of a study."""
    stuck = of_one_class(report.results, report.condition)
    judged = seen(report.findings, report.runs, report.results.rounds)
    leaks, *others = lights(
        [check for cohort in report.people for check in cohort.checks],
        report.told.judged.below,
        report.few,
        behind_means.overlooked_light(report.overlooked),
        threshold_and_probabilities.threshold_light(report.results),
    )
    training = training_light(stuck, report.late, judged, len(report.runs))
    return [leaks, training, *others, *sums_light(report)]


def lights(
    checked: Sequence[Check],
    below: Sequence[str],
    few: Sequence[str],
    overlooked: Light | None = None,
    thresholds: Light | None = None,
) -> list[Light]:
    """Return what readers ask first of the data of a study; what they ask of its trainings is in `history`.

    `below` names the sites that are surely predicted worse than by guessing, and `few` says which have one class, or
    few samples of one. For a task without classes of images, `overlooked` stands in place of the lights about these.
    `thresholds` says whether threshold and probabilities hold outside, where that is known.
    """
    torn = [check for check in checked if check.what.endswith(TWO_LABELS) and check.status == "PROBLEM"]
    worst = next((s for s in ("PROBLEM", "suspect", "unknown") if any(check.status == s for check in checked)), "ok")
    found = [f"{check.what}: {check.detail}" for check in checked if check.status == worst and worst != "ok"]
    wrong = [*(f"worse than guessing at {site}" for site in below), *(f"{c.what}: {c.detail}" for c in torn)]
    said = [*few[:SITES], f"{len(few) - SITES} more"] if len(few) > SITES else [*few]
    first = [
        Light(
            "Leaks and copies", worst.lower() if checked else "unknown", joined(*found[:1]) or "nothing found", "care"
        ),
    ]
    if overlooked:
        return [*first, overlooked]
    return [
        *first,
        Light(
            "Coding of labels",
            "problem" if wrong else "ok",
            listed(wrong) or "no site is surely worse than guessing",
            "sites",
        ),
        Light(
            "Classes and events", "suspect" if few else "ok", listed(said) or "enough of each at all sites", "cohort"
        ),
        *([thresholds] if thresholds else []),
    ]


def _about(report: StudyReport) -> str:
    """Return the facts of a study in a line: name, numbers, date, version and commit."""
    plan, people = report.plan, report.people
    parts = [plan.name]
    if plan.scaled:
        parts[0] += f" at scale {plan.scale}"
    if people:
        sites = dict.fromkeys(site for part in plan.partitions for site in (*part.internal, *part.external))
        samples, cards = report.nouns.samples, report.results.cards
        # nobody checks that samples are real: it is what the study says
        invented = report.results.synthetic or any(card["source"] == DRAWN for card in cards)
        parts.append(f"{people[0].images:,} " + (f"invented {samples}" if invented else f"{samples} given as real"))
        if report.nouns.known:
            parts.append(counted(people[0].people, report.nouns.unit))
        parts.append(report.nouns.counted(list(sites)))
    parts += [report.cited.date, f"fedshift {__version__}", report.cited.commit]
    return " · ".join(filter(None, parts))


def _forests(report: StudyReport, first: Methods | Hospitals) -> list[str]:
    """Return the picture that answers, for wide and for narrow screens; nothing where no site has a score."""
    from markupsafe import Markup

    if not any(report.findings.scored(report.condition, key) for key in report.condition.inferences):
        return []
    return [Markup(_picture(report, first, width).svg(name)) for name, width in WIDTHS.items()]


def _picture(report: StudyReport, first: Methods | Hospitals, width: float) -> Forest:
    return first.picture(f"Study {report.plan.name}, {report.plan.view[:7]}.", width)


def write_answer(plan: Plan, paths: Paths, width: str) -> list[Path]:
    """Write the picture that answers as answer.svg and answer.pdf into the study's folder; width: 174mm or 85mm."""
    results = load(plan, paths)
    report = StudyReport(results)
    picture = _picture(report, first_screen(report), float(width.removesuffix("mm")) / 25.4)
    out = results.files.folder / "answer.svg"
    write_text(out, picture.svg("answer"))
    with atomic(out.with_suffix(".pdf")) as temporary:
        temporary.write_bytes(picture.pdf())
    return [out, out.with_suffix(".pdf")]
