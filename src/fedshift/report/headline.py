"""headline.json: what the index of all studies shows of one. It is written with the page, so that the two agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..analysis.results import StudyResults
from ..io.paths import Paths
from ..io.text import read_json, write_json
from ..papers.reproduction import Reproduction


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
    """Return what was written last; None where it is not there. Raises UserError where it cannot be read."""
    if not file(paths, study).exists():
        return None
    headline = read_json(file(paths, study))
    return headline if isinstance(headline, dict) and headline.get("study") == study else None
