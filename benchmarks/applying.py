"""Memory and time to apply a run to a million images, measured at two sizes, labels and page included.

`python benchmarks/applying.py [IMAGES]`, by default 100,000. A table lists the same thousand synthetic patches many
times: each listing is read and predicted by itself.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import pandas as pd
from measure import alone
from PIL import Image

from fedshift.algorithms import Training
from fedshift.core.registry import build
from fedshift.core.rng import stream
from fedshift.data.partition import Partition
from fedshift.datasets import _histology as tissue
from fedshift.io.arrays import write_tensors
from fedshift.io.tables import write_table
from fedshift.io.text import write_json
from fedshift.jobs.apply import apply, chosen
from fedshift.jobs.record import peak_memory_mb
from fedshift.models import initialise
from fedshift.page.applied import write
from fedshift.study.run import Data, Run

FULL = 1_000_000
FILES = 1_000
SITES = 2
PATIENTS = 5_000


def applying(images: int, threads: int) -> None:
    """Apply DenseNetSmall with TsmoBN to so many images, and to a fifth of them, each in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _untrained(folder / "run")
        for n in range(FILES):
            patch = tissue.draw(stream("patch", n), bool(n % 2), tissue.CENTRES[n % len(tissue.CENTRES)])
            Image.fromarray(patch).save(folder / f"{n}.png", compress_level=1)
        measured = [alone(_measure, folder, n, threads) for n in (images // 5, images)]
    (few, little, _), (many, much, seconds) = measured
    slope = (much - little) / (many - few)
    print(
        f"applying DenseNetSmall with TsmoBN to 96x96 patches, {threads} threads: peak resident memory {little:.0f} "
        f"MiB for {few:,}, {much:.0f} MiB for {many:,}; with {1024 * 1024 * slope:.0f} bytes an image that is "
        f"{much + slope * max(0, FULL - many):.0f} MiB for {FULL:,}, goal < 1,430\n"
        f"  {seconds:.0f} s for {many:,}: {many / seconds:.0f} images/s",
        flush=True,
    )


def _untrained(folder: Path) -> None:
    """The files of a run whose weights are the initial ones."""
    model = build("model", "densenet_small")
    run = Run(
        data=Data(dataset=build("dataset", {"name": "own_images", "table": "images.csv", "size": 96}), synthetic=True),
        partition=Partition(internal=("a", "b")),
        model=model,
        transforms=(build("transform", "scale_intensity"),),
        algorithm=build("algorithm", "fedavg"),
        bn="aggregated",
        addon=None,
        training=Training(),
        seed=0,
    )
    write_json(folder / "spec.json", run.spec)
    write_tensors(folder / "model.safetensors", initialise(model, (3, 96, 96), 2, 0).state_dict(), {})
    write_tensors(folder / "clients.safetensors", {}, {})


def _measure(folder: Path, images: int, threads: int) -> tuple[int, float, float]:
    """Return the number of images, the peak of memory in MiB, and seconds."""
    n = pd.Series(range(images))
    table = pd.DataFrame({"path": (n % FILES).astype(str) + ".png", "label": n % 2, "site": n % SITES})
    write_table(folder / f"{images}.csv", table.assign(patient=n % PATIENTS))
    start = time.perf_counter()
    write(apply(folder / "run", folder / f"{images}.csv", chosen("tsmobn", [], None), folder / "out", threads=threads))
    return images, peak_memory_mb(), time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", nargs="?", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    applying(given.images, given.threads)
