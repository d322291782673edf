"""Memory, open files and threads of one process over many rounds and predictions: they must stay as they are.

`python benchmarks/leaking.py [ROUNDS] [PREDICTIONS]` prints a line for each quantity: at first, at the end, the most.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

ROUNDS, PREDICTIONS = 300, 200
STUDY = """
title: Leaks
dataset: {{ name: own_images, table: images/samples.csv, size: 16 }}
partition: {{ internal: [A, B], external: [C], split: {{ train: 0.6, val: 0.2, test: 0.2 }} }}
model: {{ name: mlp, hidden: 16 }}
transforms: [scale_intensity, flip]
training: {{ rounds: {rounds}, batch_size: 4 }}
runs: [{{ algorithm: scaffold, bn: local }}]
inferences: [tsmobn]
"""


@dataclass
class Held:
    """What a process holds, measured again and again."""

    memory: list[float] = field(default_factory=list)
    files: list[float] = field(default_factory=list)
    threads: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """Add resident memory (MB), open file descriptors and threads of the system, as they are now."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
        self.files.append(len(list(Path("/proc/self/fd").iterdir())))
        self.threads.append(len(list(Path("/proc/self/task").iterdir())))

    def growth(self, values: list[float]) -> float:
        """Return how much the last quarter has more than the second, on the median: the first warms up."""
        quarter = max(1, len(values) // 4)
        return float(np.median(values[-quarter:]) - np.median(values[quarter : 2 * quarter]))

    def lines(self, what: str) -> list[str]:
        """Return a line for each quantity."""
        named = {"memory (MB)": self.memory, "open files": self.files, "threads": self.threads}
        return [
            f"{what}, {name}: {v[0]:.0f} at first, {v[-1]:.0f} at the end, {max(v):.0f} at most, "
            f"growth {self.growth(v):+.1f}"
            for name, v in named.items()
        ]


def images(folder: Path) -> None:
    """Write thirty grey images of each of three sites, and their table."""
    folder.mkdir(parents=True)
    rng, rows = np.random.default_rng(0), ["path,label,site"]
    for site in "ABC":
        for n in range(30):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{site}{n}.png")
            rows.append(f"{site}{n}.png,{n % 2},{site}")
    (folder / "samples.csv").write_text("\n".join(rows) + "\n")


def measured(root: Path, rounds: int, predictions: int) -> tuple[Held, Held]:
    """Train a run of so many rounds in this process, and predict with it so many times."""
    from fedshift import study
    from fedshift.cli.parser import main
    from fedshift.engine.federation import Federation

    images(root / "images")
    (root / "study.yaml").write_text(STUDY.format(rounds=rounds))
    trained, predicted = Held(), Held()

    def after(self: Federation, *words: object, **options: object) -> object:
        result = real(self, *words, **options)
        trained.measure()
        return result

    def must(*words: str) -> None:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            code = main([*words, "--scale", "paper"])
        if code:
            raise RuntimeError(said.getvalue())

    real: Callable[..., object] = Federation.round
    with contextlib.chdir(root):
        (run,) = study.load(Path("study.yaml"), "paper").runs.values()
        must("download", "study.yaml", run.data.raw)
        must("prepare", "study.yaml", run.data.id)
        must("partition", "study.yaml", run.partition_id)
        Federation.round = after  # type: ignore[method-assign, assignment]
        try:
            must("train", "study.yaml", run.id)
        finally:
            Federation.round = real  # type: ignore[method-assign, assignment]
        for _ in range(predictions):
            must("predict", "study.yaml", run.id, "tsmobn")
            predicted.measure()
    return trained, predicted


def main(rounds: int = ROUNDS, predictions: int = PREDICTIONS) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        trained, predicted = measured(Path(folder), rounds, predictions)
    print(*trained.lines(f"{rounds} rounds"), *predicted.lines(f"{predictions} predictions"), sep="\n")
    print(f"Python threads at the end: {threading.active_count()}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
