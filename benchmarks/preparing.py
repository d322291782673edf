"""Memory and time to prepare all of Camelyon17: measured at two sizes, extrapolated to its full size."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from measure import Measurement, alone

from fedshift.core.registry import build
from fedshift.jobs.prepare import obtain, prepare
from fedshift.study.run import Data

FULL = 455_954


def preparing(patches: int = 50_000) -> list[Measurement]:
    """Prepare synthetic patches in the layout of the archive, and a fifth of them, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        data = Data(dataset=build("dataset", {"name": "camelyon17", "patches": patches // 5}), synthetic=True)
        raw = Path(folder) / "raw"
        obtain(data, raw, None)
        (few, little, _), (many, much, seconds) = [
            alone(_measure, raw, Path(folder), n) for n in (patches // 5, patches)
        ]
    slope = (much - little) / (many - few)
    print(
        f"preparing 96x96 patches, {os.cpu_count()} threads: peak resident memory {little:.0f} MiB for {few:,}, "
        f"{much:.0f} MiB for {many:,}; that is {much + slope * (FULL - many):.0f} MiB for all {FULL:,}, goal < 2,000\n"
        f"  {seconds:.0f} s for {many:,}, {seconds / many * FULL / 60:.0f} min and "
        f"{FULL * 96 * 96 * 3 / 1e9:.1f} GB of disk for all",
        flush=True,
    )
    what = f"peak resident memory of preparing 96x96 patches, extrapolated to {FULL:,}"
    return [Measurement(what, much + slope * (FULL - many), "MiB", "< 2000")]


def _measure(raw: Path, folder: Path, patches: int) -> tuple[int, float, float]:
    """Prepare the first rows of the table. Return their number, the peak of memory in MiB, and the seconds."""
    release = raw / "camelyon17_v1.0"
    table = pd.read_csv(release / "metadata.csv", index_col=0, dtype={"patient": str})
    part = Path(tempfile.mkdtemp(dir=folder)) / release.name
    part.mkdir()
    table.iloc[np.arange(patches)].to_csv(part / "metadata.csv")
    for name in ("patches", "RELEASE_v1.0.txt"):
        (part / name).symlink_to(release / name)
    data = Data(dataset=build("dataset", "camelyon17"), synthetic=False)
    start = time.perf_counter()
    prepare(data, part.parent, folder / f"prepared{patches}", threads=os.cpu_count() or 1)
    return patches, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, time.perf_counter() - start
