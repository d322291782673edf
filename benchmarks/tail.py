"""Seconds and peak memory of score and report at full size: `python benchmarks/tail.py [RUNS] [IMAGES]`.

The study is invented: 60 runs by four inferences, tested on 130,000 images of 2,000 patients at five sites. Nothing is
trained. Each command is a process of its own. The project needs about 3 GB of disk while the measurement goes on;
`FEDSHIFT_TAIL` names a folder in which it is made once and kept.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from large_studies import ROOT, cost

STUDY = """title: Tail
question: How long do the last steps of a large study take?
dataset: camelyon17
partition:
  internal: [centre0, centre3, centre4]
  external: [centre1, centre2]
  split: {{ train: 0.45, val: 0.05, test: 0.5 }}
model: mlp
transforms: [scale_intensity]
training: {{ rounds: 2, batch_size: 8, lr: 0.01 }}
runs: [{{ algorithm: [{algorithms}], bn: [aggregated, local] }}]
seeds: [0, 1, 2]
inferences: [source, tsmobn, {{ name: tsmobn, momentum: 0.8 }}, {{ name: tsmobn, momentum: 0.5 }}]
figures: [sites]
control: false
"""
SITES = ("centre0", "centre1", "centre2", "centre3", "centre4")
PATIENTS = 2000


def samples(images: int) -> pd.DataFrame:
    """Return a table of samples of which so many are test images, half of those of the three internal sites."""
    at_site = images // 3.5
    sizes = [int(at_site)] * len(SITES)
    parts = []
    for site, size in zip(SITES, sizes, strict=True):
        patient = np.arange(size) * (PATIENTS // len(SITES)) // size
        names = [f"{site}/{i:06d}" for i in range(size)]
        label = np.random.default_rng(len(parts)).integers(0, 2, size)
        people = [f"{site}-{p}" for p in patient]
        parts.append(pd.DataFrame({"sample": names, "site": site, "label": label, "patient": people}))
    return pd.concat(parts, ignore_index=True)


def write(folder: Path, runs: int, images: int) -> None:
    """Write a project with all that comes before `score`."""
    sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "src")]
    import fake_study

    from fedshift import study
    from fedshift.io.paths import Paths
    from fedshift.io.tables import write_table
    from fedshift.io.text import write_json

    (folder / "config" / "studies").mkdir(parents=True, exist_ok=True)
    file = folder / "config" / "studies" / "tail.yaml"
    algorithms = ", ".join(f"{{ name: fedprox, mu: {0.01 * (k + 1):.2f} }}" for k in range(runs // 6))
    file.write_text(STUDY.format(algorithms=algorithms), encoding="utf-8")
    plan, paths = study.load(file, "paper"), Paths(folder)
    table = samples(images)
    effect = np.random.default_rng(9).normal(0, 0.7, table["patient"].nunique())[pd.factorize(table["patient"])[0]]
    for data in plan.data:
        write_table(paths.data(data) / "samples.parquet", table)
        write_table(
            paths.data(data) / "pixels.parquet", pd.DataFrame({"sample": table["sample"], "pixels": table["sample"]})
        )
        write_json(paths.data(data) / "card.json", fake_study.card(plan, True))
        np.save(paths.data(data) / "images.npy", np.zeros((len(table), 8, 8, 3), dtype=np.uint8))
    for number, (name, run) in enumerate(plan.runs.items()):
        assigned = run.partition.assign(table)
        write_table(paths.partition(run.partition_id), assigned)
        write_json(paths.run(name) / "spec.json", run.spec)
        write_json(paths.run(name) / "manifest.json", fake_study.manifest(run))
        write_table(paths.run(name) / "rounds.parquet", fake_study.rounds(run))
        known = assigned[assigned["split"].isin(["test", "val"])].merge(
            table.assign(effect=effect)[["sample", "label", "effect"]], on="sample"
        )
        rng = np.random.default_rng(number)
        parts = []
        for how in plan.predictions(name):
            shift = np.where(known["role"] == "external", 0.6, 1.2) + 0.2 * (how != "source")
            score = (2 * known["label"] - 1) * shift + known["effect"] + rng.normal(0, 1, len(known))
            p1 = (1 / (1 + np.exp(-score))).astype(np.float32)
            rows = known[["sample", "site", "role", "label", "split"]].assign(p0=1 - p1, p1=p1)
            parts.append(rows.assign(inference=how))
        write_table(paths.predictions(name, plan.prediction_jobs[name]), pd.concat(parts, ignore_index=True))


def main() -> None:
    runs, images = (int(word) for word in (sys.argv[1:] + ["60", "130000"][len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("FEDSHIFT_TAIL", temporary))
        if not (folder / "results").exists():
            write(folder, runs, images)
        print(
            f"{runs} runs, {images:,} test images\n\n| command | processor time | peak memory |\n|---|---|---|",
            flush=True,
        )
        for name in ("score", "report"):
            seconds, memory = cost(folder, ["-m", "fedshift", name, "tail", "--scale", "paper"])
            print(f"| `{name}` | {seconds:.0f} s | {memory:.0f} MiB |", flush=True)
        size = (folder / "reports" / "tail.html").stat().st_size
        print(f"\nThe page has {size / 1e6:.1f} MB.", flush=True)


if __name__ == "__main__":
    main()
