"""Hours, memory and disk of whole studies of many images: `python benchmarks/whole_way.py patches 2000 450000`.

Invented images of several sites go the whole way with the workflow, two cores, a stage after the other: prepared,
assigned, controlled, trained for one round with a small network, predicted, scored, told on a page. `patches` are PNG
files of 96 pixels in the layout of Camelyon17, `slices` are images of 384 pixels with outlines. `download` draws them
and is not counted. Memory is that of all processes together, looked at twice a second. The system
may drop mapped images whenever it wants.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from large_studies import cost, project

STUDIES = {
    "patches": """title: Patches of 96 pixels at five sites
dataset: {{ name: camelyon17, patches: {each}, patients: {patients} }}
partition:
  internal: [centre0, centre3, centre4]
  external: [centre1, centre2]
  split: {{ train: 0.6, val: 0.1, test: 0.3 }}
  by: patient
model: {{ name: densenet_small, growth: 8, blocks: [1, 1, 1], stem: 16 }}
transforms: [scale_intensity]
training: {{ rounds: 1, batch_size: 32, lr: 0.01 }}
runs: [{{ algorithm: fedavg }}]
seeds: [0]
inferences: [source, tsmobn]
metrics: [auc, accuracy]
figures: [sites]
""",
    # Nearly all slices are tested, without a control, since what is measured is their prediction and their scores.
    "slices": """title: Slices of 384 pixels, outlined, at four sites
task: segmentation
dataset: {{ name: discs, samples: {each}, size: 384 }}
partition:
  internal: [north, south, west]
  external: [east]
  split: {{ train: 0.02, val: 0.01, test: 0.97 }}
model: {{ name: unet_small, features: [4, 4, 8, 8, 16, 4] }}
transforms: [scale_intensity]
training: {{ rounds: 1, batch_size: 2, lr: 0.05 }}
runs: [{{ algorithm: fedavg }}]
seeds: [0]
inferences: [source]
headline: dice
metrics: [dice, hd95, assd, nsd]
control: false
figures: [outlines]
""",
}
SITES = {"patches": 5, "slices": 4}
SIZES = {"patches": ("2000", "8000", "32000", "100000", "450000"), "slices": ("600", "2500", "10000")}
STAGES = ("download", "prepare", "partition", "control", "train", "predict", "score", "report")
"""Rules of the workflow, in order; the first makes the patches."""
HEAD = "| {} | stage | elapsed | processor time | memory | images mapped | disk |\n|---|---|---|---|---|---|---|"


def descendants(pid: int) -> Iterator[int]:
    """Yield the numbers of a process and of all that it started and that still run."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            started = children.read_text().split()
        except OSError:  # It has ended.
            continue
        for child in started:
            yield from descendants(int(child))


def memory(pid: int) -> Counter[str]:
    """Return memory in KiB: a process's and all that it started's own, and what of images is mapped by any of them."""
    found = Counter[str]()
    for one in descendants(pid):
        try:
            whole = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            parts = Path(f"/proc/{one}/smaps").read_text().split("\n")
        except OSError:  # It has ended.
            continue
        found["own"] += sum(int(line.split()[1]) for line in whole if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
        images = [n for n, line in enumerate(parts) if line.endswith("/images.npy")]
        found["images"] += sum(_resident(parts[n:]) for n in images)
    return found


def _resident(mapping: list[str]) -> int:
    """Return the KiB of the first of some mappings that are in memory, shared pages by their share."""
    return next(int(line.split()[1]) for line in mapping if line.startswith("Pss:"))


def stage(folder: Path, rule: str) -> tuple[float, float, Counter[str]]:
    """Run all jobs of a rule. Return seconds, processor seconds, and the most memory of each kind in KiB (Linux)."""
    words = ["-m", "snakemake", "--cores", "2", "--until", rule, "--config", "study=large", "scale=mini"]
    peak, start = Counter[str](), time.perf_counter()
    # What a look finds above the peak is added to it, so that each kind keeps its largest.
    seconds, _ = cost(folder, words, lambda pid: peak.update(memory(pid) - peak))
    return time.perf_counter() - start, seconds, peak


def disk(folder: Path) -> float:
    """Return the gigabytes below a folder, patches as they came left out."""
    files = (Path(where) / name for where, _, names in os.walk(folder / "results") for name in names)
    return sum(file.stat().st_blocks * 512 for file in files if not file.is_symlink()) / 1e9


def measure(folder: Path, kind: str, images: int) -> None:
    """Send so many images the whole way, and print a row for each stage."""
    each = images // SITES[kind]
    project(folder, STUDIES[kind].format(each=each, patients=min(199, each // 20)))
    for rule in STAGES:
        elapsed, seconds, peak = stage(folder, rule)
        print(
            f"| {images:,} | `{rule}` | {elapsed:.0f} s | {seconds:.0f} s | {peak['own'] / 1024:.0f} MiB "
            f"| {peak['images'] / 1024:.0f} MiB | {disk(folder):.2f} GB |",
            flush=True,
        )


def main() -> None:
    kind, *sizes = sys.argv[1:] or ["patches"]
    print(HEAD.format(kind), flush=True)
    for images in map(int, sizes or SIZES[kind]):
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), kind, images)


if __name__ == "__main__":
    main()
