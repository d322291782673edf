"""Results of benchmarks, kept as one JSON file a day: ratios and memory, versions and cores, but no seconds."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from measure import Measurement

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("fedshift", "torch", "numpy")


def keep(measured: Mapping[str, list[Measurement]]) -> Path:
    """Write the measurements of some parts into the file of today, in place of earlier ones of these parts."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    path = FOLDER / f"{today}.json"
    rows = _rows(path, measured) + [
        {"part": part, **_rounded(measurement)} for part, of in measured.items() for measurement in of
    ]
    content = {
        "date": today,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "measurements": rows,
    }
    FOLDER.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def _rows(path: Path, measured: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the measurements of a file, without those of the parts that were measured again."""
    if not path.exists():
        return []
    content = json.loads(path.read_text(encoding="utf-8"))
    return [row for row in content["measurements"] if row["part"] not in measured]


def _rounded(measurement: Measurement) -> dict[str, Any]:
    fields = dataclasses.asdict(measurement)
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in fields.items() if v not in (None, "")}
