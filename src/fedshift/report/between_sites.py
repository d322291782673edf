"""What a page says of a study whose runs real sites have trained: what left them, and which answers are missing."""

from __future__ import annotations

from ..analysis.values import listed
from ..core.spelling import counted
from ..jobs.run_files import REVEALS, STAYS, WITH_EACH_ANSWER, row_columns
from .history import Trained
from .study_report import StudyReport

ITEM = "Real sites"


def between_sites(report: StudyReport) -> list[tuple[str, list[str]]]:
    """Return what left the sites, as an item of the protocol; none where all runs were trained in one place."""
    runs = [run for run in report.runs if run.manifest.get("sites")]
    if not runs:
        return []
    names = list(dict.fromkeys(name for run in runs for name in run.manifest["sites"]))
    trained = "All runs were" if len(runs) == len(report.runs) else f"{len(runs)} of {len(report.runs)} runs were"
    columns = ", ".join(row_columns(report.plan.study))
    lines = [
        f"{trained} trained between {counted(len(names), 'real site')}, {listed(names)}, which kept their images.",
        "What left a site: in each round the tensors that the method sends (see Communication and time), with "
        f"{WITH_EACH_ANSWER}; once, after training, {columns} of each scored image, under drawn numbers of image and "
        f"patient. {STAYS} at the site. {REVEALS}",
        _missing(runs),
    ]
    return [(ITEM, lines)]


def _missing(runs: list[Trained]) -> str:
    """Return how many answers are missing, by site."""
    lost = [str(answer["site"]) for run in runs for answer in run.manifest.get("missing") or ()]
    if not lost:
        return "All sites answered in every round."
    counts = [f"{site} {lost.count(site)}" for site in dict.fromkeys(lost)]
    return f"{counted(len(lost), 'answer')} of sites are missing: {listed(counts)}. The manifests of the runs say why."
