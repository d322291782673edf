"""headline.json: what the index of all studies shows of one. It is written with the page, so that the two agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..analysis.results import StudyResults
from ..core.errors import UserError
from ..io.checksums import damage
from ..io.guards import require_object
from ..io.paths import Paths
from ..io.text import read_json, write_json
from ..papers.reproduction import Reproduction

KINDS = {
    "title": "text",
    "scale": "text",
    "lead": "text",
    "runs": "a whole number",
    "missing": "a whole number",
    "trends": "a mapping",
    "published": "a mapping",
    "reproduces": "a list of texts",
}
"""The entries that are read, and what they are where they are there."""


def write(results: StudyResults, lead: str, reproduction: Reproduction, problems: Sequence[str] = ()) -> Path:
    """Write results/studies/{study}/headline.json. A run that lacks any prediction counts as missing.

    `problems` are the checks of the data that fail.
    """
    plan = results.plan
    out = file(results.paths, plan.name)
    missing = {item["run"] for item in results.missing}
    headline: dict[str, Any] = {
        "study": plan.name,
        "title": plan.study.title,
        "scale": plan.scale,
        "scaled": plan.scaled,
        "synthetic": results.synthetic,
        "view": plan.view,
        "runs": len(plan.runs),
        "missing": len(missing & set(plan.runs)),
        "lead": lead,
        "problems": list(problems),
        "reproduces": list(plan.study.reproduces),
        **reproduction.headline(),
    }
    write_json(out, headline)
    return out


def file(paths: Paths, study: str) -> Path:
    """Return the place of a study's headline.json."""
    return paths.study_files(study).headline


def read(paths: Paths, study: str) -> dict[str, Any] | None:
    """Return what was written last; None where it is not there. Raises UserError where it is damaged or unreadable."""
    path = file(paths, study)
    if not path.exists():
        return None
    if what := damage(path):
        raise UserError(path, what)
    headline = require_object(path, read_json(path), {"study": "text"}, KINDS)
    if trends := headline.get("trends"):
        require_object(path, trends, dict.fromkeys(("held", "judged", "of"), "a whole number"), {"reason": "text"})
    if published := headline.get("published"):
        require_object(path, published, dict.fromkeys(published, "a whole number"))
    return headline if headline["study"] == study else None
