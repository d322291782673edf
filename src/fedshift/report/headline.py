"""headline.json: what the index of all studies says of one. Written with its page, so that the two agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..analysis import score
from ..core.errors import UserError
from ..io.paths import Paths
from ..io.text import read_json, write_json
from ..papers.reproduction import Reproduction
from ..study.plan import Plan


def write(plan: Plan, paths: Paths, lead: str, synthetic: bool, found: Reproduction) -> Path:
    """Writes results/studies/{study}/headline.json. A run that lacks any prediction counts as missing."""
    out = file(paths, plan.name)
    missing = {item["run"] for item in score.missing(plan, paths)}
    told: dict[str, Any] = {
        "study": plan.name,
        "title": plan.study.title,
        "scale": plan.scale,
        "synthetic": synthetic,
        "view": plan.view,
        "runs": len(plan.runs),
        "missing": len(missing & set(plan.runs)),
        "lead": lead,
        "reproduces": list(plan.study.reproduces),
        **found.headline(),
    }
    write_json(out, told)
    return out


def file(paths: Paths, study: str) -> Path:
    return paths.study(study) / "headline.json"


def read(paths: Paths, study: str) -> dict[str, Any] | None:
    """What was written last; nothing where it is not there, or not to be read."""
    try:
        found = read_json(file(paths, study))
    except UserError:
        return None
    return found if isinstance(found, dict) and found.get("study") == study else None
