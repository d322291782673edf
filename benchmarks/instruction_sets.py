"""The demo as other processors compute it: `python benchmarks/instruction_sets.py FOLDER`.

Each of `SETTINGS` runs the demo in its own folder inside FOLDER, from raw images to the page, with limits that keep
this processor from newer instructions, or with two threads. The table that is printed says how far the weights are
from those without limits, and whether the verdict is the same. Finished folders are read as they are. A setting takes
a minute on two idle cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import torch

import fedshift
from fedshift.io.arrays import read_tensors
from fedshift.io.paths import Paths

ALL_AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
ALL_SSE = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
SETTINGS: dict[str, tuple[int, dict[str, str]]] = {
    "no limit": (1, {}),
    "oneDNN to AVX2": (1, {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "torch to AVX2": (1, {"ATEN_CPU_CAPABILITY": "avx2"}),
    "all to AVX2": (1, ALL_AVX2),
    "all to SSE": (1, ALL_SSE),
    "no limit, two threads": (2, {}),
}
"""Threads of a training, and environment variables."""
COLUMNS = ("setting", "relative distance of weights", "loss, aggregated BN", "loss, local BN", "the page says")


def run(folder: Path, threads: int, limits: dict[str, str]) -> None:
    """Run the demo in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fedshift", "run", "demo", "--scale", "mini", "--cores", "2", "--"]
    command += ["--set-threads", f"train={threads}", f"predict={threads}"]
    subprocess.run(command, cwd=folder, env=os.environ | limits, check=True, capture_output=True)


def weights(folder: Path, run_id: str) -> torch.Tensor:
    """Return the weights and biases of a trained network in a row, without running statistics."""
    tensors, _ = read_tensors(Paths(folder).run_files(run_id).model)
    return torch.cat([x.double().ravel() for name, x in tensors.items() if name.endswith(("weight", "bias"))])


def distance(folder: Path, reference: Path) -> float:
    """Return how far the weights are from those of the reference, relative to their length, where that is furthest."""
    pairs = [
        [weights(root, run_id) for root in (folder, reference)]
        for run_id in fedshift.load_study("demo", project=folder).runs
    ]
    return max(float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs)


def losses(effects: pd.DataFrame) -> list[str]:
    """Return the loss outside of each condition in points, with its interval."""
    headline = (effects["quantity"] == "gap") & (effects["metric"] == "accuracy") & (effects["inference"] == "source")
    points = 100 * effects.loc[headline].set_index("bn")[["mean", "low", "high"]].sort_index()
    return [f"{mean:.1f} ({low:.1f} to {high:.1f})" for mean, low, high in points.to_numpy()]


def main(root: Path) -> None:
    """Run all settings and print the table in Markdown."""
    print("|", " | ".join(COLUMNS), "|\n|" + "---|" * len(COLUMNS))
    for name, (threads, limits) in SETTINGS.items():
        folder = root / name.replace(" ", "-")
        files = Paths(folder).study_files("demo")
        if not files.headline.exists():
            run(folder, threads, limits)
        lead = json.loads(files.headline.read_text(encoding="utf-8"))["lead"]
        difference = f"{distance(folder, root / 'no-limit'):.2g}"
        row = (name, difference, *losses(fedshift.results(files.folder).effects), lead.split(" (")[0])
        print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
