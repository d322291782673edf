"""`make bench`: what the engine, algorithms, prepared arrays and memory cost, each over its reference.

Everything compared is measured in one process run, in turn, so that a busy machine slows both sides; ratios are medians
over pairs. Synthetic data throughout: these are measurements of speed, not of accuracy. What can be compared between
machines is kept in benchmarks/results/DATE.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import algorithms
import corrupting
import feeding
import masks
import numpy as np
import ranks
import results
import testing
import torch
from measure import Clients, Measurement, alone, bare_loop, clients, in_turn, private, timed
from torch import nn

from fedshift import Federation
from fedshift.core.registry import build
from fedshift.data.prepared import Prepared
from fedshift.data.samples import MappedSamples
from fedshift.jobs.prepare import obtain, prepare
from fedshift.models import initialise
from fedshift.study.run import Data

FORMATS = {torch.contiguous_format: "contiguous", torch.channels_last: "channels_last"}


def engine(
    what: str, model: nn.Module, data: Clients, pairs: int, repeat: int, goals: Mapping[torch.memory_format, str]
) -> list[Measurement]:
    """Measure a round of the engine over the bare loop, in each of the loop's memory formats that has a goal."""
    federation = Federation(model, data, training={"lr": 0.01, "batch_size": 32})
    return [
        in_turn(
            f"{what}: bare loop ({FORMATS[layout]}), engine, a round",
            bare_loop(model, data, 32, 0.01, layout),
            federation.round,
            pairs,
            repeat,
            goal,
        )
        for layout, goal in goals.items()
    ]


def mlp() -> list[Measurement]:
    network = initialise(build("model", "mlp"), (784,), 10, 0)
    goals = {torch.contiguous_format: "<= 1.05"}
    return engine("50 clients x 64 samples, MLP 784-30-10", network, clients(50, 64, (784,), 10), 41, 5, goals)


def stacked() -> list[Measurement]:
    """Measure rounds in which clients train together: over the bare loop, or where they convolve over one by one."""
    what, network = "{} clients x 64 samples, MLP 784-30-10", initialise(build("model", "mlp"), (784,), 10, 0)
    rows = []
    for count, pairs in ((50, 21), (1000, 5)):
        data = clients(count, 64, (784,), 10)
        bare, together = bare_loop(network, data, 32, 0.01), _federation(network, data, True).round
        named = f"{what.format(count)}: bare loop, clients together, a round"
        rows.append(in_turn(named, bare, together, pairs, 1, "<= 0.35"))
    for name, side, images in (("digit_cnn", 28, 64), ("resnet20", 32, 32)):
        shape = 3, side, side
        network, data = initialise(build("model", name), shape, 10, 0), clients(8, images, shape, 10)
        alone, together = (_federation(network, data, how).round for how in (False, True))
        named = f"8 clients x {images} images {side}x{side}, {name}: clients one after another, together, a round"
        rows.append(in_turn(named, alone, together, 5, 1, ""))
    return rows


def _federation(model: nn.Module, data: Clients, together: bool) -> Federation:
    return Federation(model, data, training={"lr": 0.01, "batch_size": 32, "stacked": together})


def densenet() -> list[Measurement]:
    network = initialise(build("model", "densenet121"), (3, 96, 96), 2, 0)
    goals = {torch.contiguous_format: "<= 0.90", torch.channels_last: "<= 1.05"}
    return engine("2 clients x 64 images 96x96, DenseNet121", network, clients(2, 64, (3, 96, 96), 2), 5, 1, goals)


def reading(patches: int = 400) -> list[Measurement]:
    """Measure patches a second through the prepared arrays, and through the wilds package's loader with PIL."""
    with tempfile.TemporaryDirectory() as folder:
        return _reading(Path(folder), patches)


def _reading(folder: Path, patches: int) -> list[Measurement]:
    from torchvision.transforms.functional import to_tensor
    from wilds.datasets.camelyon17_dataset import Camelyon17Dataset

    data = Data(dataset=build("dataset", {"name": "camelyon17", "patches": patches}), synthetic=True)
    obtain(data, folder / "raw", None)
    prepare(data, folder / "raw", folder / "data", threads=os.cpu_count() or 1)
    prepared = Prepared(folder / "data")
    n = len(prepared.samples)
    order = np.random.default_rng(0).permutation(n)
    samples = MappedSamples(
        prepared.images, np.arange(n), prepared.samples["label"].to_numpy(), [build("transform", "scale_intensity")]
    )
    wilds = Camelyon17Dataset(version="1.0", root_dir=str(folder / "raw"), download=False)

    def slow() -> None:
        for start in range(0, n // 5, 32):
            torch.stack([to_tensor(wilds.get_input(i)) for i in order[start : start + 32]])

    def fast() -> None:
        for start in range(0, n, 32):
            samples.batch(order[start : start + 32])

    slow(), fast()
    seconds = [(timed(slow, 1) * 5, timed(fast, 1)) for _ in range(5)]
    ratio = statistics.median(a / b for a, b in seconds)
    pil, mapped = (n / statistics.median(column) for column in zip(*seconds, strict=True))
    what = "reading 96x96 patches as float batches of 32 in [0, 1], one process: wilds with PIL, prepared arrays"
    print(f"{what}\n  {pil:.0f}/s and {mapped:.0f}/s: {ratio:.1f} times; goal >= 20", flush=True)
    return [Measurement(what, ratio, "times", ">= 20", pairs=len(seconds))]


def _train_mapped(path: str, n: int) -> tuple[float, float]:
    """Train one round on a mapped file of n patches; report the growth of private memory and of all resident memory."""
    torch.set_num_threads(1)
    images = np.load(path, mmap_mode="r")
    model = initialise(build("model", "densenet_small"), (3, 96, 96), 2, 0)

    def samples(rows: np.ndarray) -> MappedSamples:
        return MappedSamples(images, rows, rows % 2, [build("transform", "scale_intensity")])

    Federation(model, {"warm": samples(np.arange(128))}).round()
    before = private()
    federation = Federation(model, {"a": samples(np.arange(n))})
    peak = [before]
    federation.run(1, should_stop=lambda: peak.append(private()) is not None)
    return max(peak) - before, n * images[0].nbytes / 2**20


def memory() -> list[Measurement]:
    """Measure private memory while training on few and on many patches of one memory-mapped file."""
    with tempfile.TemporaryDirectory() as folder:
        return [_memory(Path(folder) / f"{n}.npy", n) for n in (4000, 16000)]


def _memory(path: Path, n: int) -> Measurement:
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(n, 96, 96, 3))
    for start in range(0, n, 500):
        array[start : start + 500] = np.random.default_rng(start).integers(0, 255, (500, 96, 96, 3), dtype=np.uint8)
    array.flush()
    grown, mapped = alone(_train_mapped, str(path), n)
    what = f"private memory added by one round over {n} mapped patches ({mapped:.0f} MiB)"
    print(f"{what}: {grown:+.0f} MiB", flush=True)
    return Measurement(what, grown, "MiB", "does not grow with the number of patches")


PARTS: Mapping[str, Callable[[], list[Measurement]]] = {
    "mlp": mlp,
    "stacked": stacked,
    "densenet": densenet,
    "algorithms": algorithms.rounds,
    "joint": algorithms.joint_step,
    "state": algorithms.state,
    "many_clients": algorithms.many_clients,
    "reading": reading,
    "feeding": feeding.feeding,
    "memory": memory,
    "corruptions": corrupting.corruptions,
    "inferences": testing.inferences,
    "processes": ranks.processes,
    "masks": masks.masks,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    only = parser.parse_args().only or PARTS
    if unknown := set(only) - set(PARTS):
        parser.error(f"unknown part {min(unknown)!r}; known: {', '.join(PARTS)}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores", flush=True)
    print("results are kept in", results.keep({part: PARTS[part]() for part in only}))


if __name__ == "__main__":
    sys.exit(main())
