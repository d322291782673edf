"""A study of masks that takes seconds, carried out from its data to its page."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import all_steps
import once
import yaml

from fedshift import study
from fedshift.io.paths import Paths
from fedshift.study.plan import Plan

STUDY: dict[str, Any] = {
    "title": "A few discs",
    "task": "segmentation",
    "dataset": {"name": "discs", "samples": 20, "size": 16},
    "partition": {
        "internal": ["north", "south"],
        "external": ["east"],
        "split": {"train": 0.5, "val": 0.2, "test": 0.3},
    },
    "model": {"name": "unet_small", "features": [4, 4, 4, 6, 6, 4]},
    "transforms": ["scale_intensity"],
    "training": {"rounds": 2, "batch_size": 4, "lr": 0.05},
    "runs": [{"algorithm": "fedavg"}],
    "seeds": [0],
    "inferences": ["source", "tsmobn"],
    "headline": "dice",
    "metrics": ["dice", "hd95", "missed", "false_alarms"],
    "control": False,
    "figures": ["outlines"],
}


def finished(root: Path, **changes: Any) -> tuple[Plan, Paths]:
    """Return the study, with changes, once it is carried out in the folder `root`."""
    once.written(root, (changes,), lambda folder: carry_out(folder, changes))
    return study.load(root / "discs.yaml", "mini"), Paths(root)


def carry_out(folder: Path, changes: dict[str, Any]) -> None:
    """Write the study, with changes, into a folder, and carry out all its steps there."""
    file = folder / "discs.yaml"
    file.write_text(yaml.safe_dump(STUDY | changes, sort_keys=False), encoding="utf-8")
    with contextlib.chdir(folder):
        all_steps.carry_out(file, "mini", Counter())
