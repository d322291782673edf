"""Masks: a round of a U-Net over a bare loop, memory of predictions, and training on slices that are read from disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from measure import Clients, DiceCE, Measurement, alone, bare_loop, in_turn, private
from torch import Tensor, nn
from torch.nn.functional import interpolate

from fedshift import Federation
from fedshift.core.registry import build
from fedshift.data.samples import MappedSamples
from fedshift.engine.prediction import probabilities
from fedshift.jobs.predict import MaskReader
from fedshift.models import initialise
from fedshift.tasks import Segmentation

SIDE, BATCH = 384, 4
"""Side of a slice in pixels, and images of a batch."""
MANY = 10_000
"""Slices of a site that memory is extrapolated to."""


def masks() -> list[Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        return [_round(), *_memory(Path(folder)), _reading(Path(folder))]


def _blobs(n: int, side: int, seed: int) -> np.ndarray:
    """Masks (n, side, side), uint8, of a few round structures each, as organs are: a PNG of noise would be large."""
    noise = torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return (interpolate(noise, size=(side, side), mode="bicubic") > 1)[:, 0].numpy().astype(np.uint8)


def outlined(images: int, side: int) -> tuple[nn.Module, Clients]:
    """Return `unet_small` and two clients with masks, on which `DiceCE` is what fedshift trains with."""
    network = initialise(build("model", "unet_small"), (3, side, side), 2, 0)
    data: Clients = {}
    for seed, site in enumerate(("a", "b")):
        y = torch.from_numpy(_blobs(images, side, seed)).long()
        data[site] = (y[:, None] + torch.randn(images, 3, side, side, generator=torch.Generator().manual_seed(seed)), y)
    x, y = data["a"]
    with torch.no_grad():
        logits = network(x)
        torch.testing.assert_close(Segmentation().batch_loss(logits, y, None), DiceCE()(logits, y), rtol=0, atol=1e-5)
    return network, data


def _round(images: int = 32, side: int = 128, pairs: int = 9) -> Measurement:
    """Measure a round of the engine over the same steps of a bare loop, with channels last on both sides."""
    network, data = outlined(images, side)
    federation = Federation(network, data, training={"lr": 0.01, "batch_size": BATCH}, task="segmentation")
    return in_turn(
        f"2 clients x {images} images {side}x{side}, unet_small, dice_ce: bare loop with MONAI's loss, engine, a round",
        bare_loop(network, data, BATCH, 0.01, torch.channels_last, DiceCE()),
        federation.round,
        pairs,
        1,
        "<= 1.05",
    )


def _written(folder: Path, n: int) -> tuple[str, str]:
    """Write images (n, side, side, 3), in which structures are brighter, and their masks; return the two files."""
    files = str(folder / f"images-{n}.npy"), str(folder / f"masks-{n}.npy")
    shape = (n, SIDE, SIDE)
    images, reference = (
        np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=of)
        for file, of in zip(files, ((*shape, 3), shape), strict=True)
    )
    for start in range(0, n, 100):
        part = slice(start, min(start + 100, n))
        reference[part] = _blobs(part.stop - start, SIDE, start)
        images[part] = 100 + 80 * np.roll(reference[part], 4, axis=(1, 2))[..., None]
    return files


def _opened(files: tuple[str, str], *transforms: str) -> MappedSamples:
    images, reference = (np.load(file, mmap_mode="r") for file in files)
    n = len(images)
    return MappedSamples(
        images, np.arange(n), np.zeros(n), [build("transform", k) for k in transforms], masks=reference
    )


def _bright() -> nn.Module:
    """Return a network that costs nothing and outlines what is bright: four pixels away from the reference."""
    network = nn.Conv2d(3, 2, 1)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([-1.0, 1.0])[:, None, None, None].expand(2, 3, 1, 1))
        network.bias.copy_(torch.tensor([3.0, -3.0]) * 140 / 255)
    return network


def _grown(files: tuple[str, str]) -> float:
    """Predict all slices as one site, with distances; return how far private memory rose above that of 64 slices."""
    torch.set_num_threads(1)
    samples, task, inference = _opened(files, "scale_intensity"), Segmentation(), build("inference", "source")
    network, used = _bright(), list[float]()

    def predict(n: int) -> float:
        part = MappedSamples(samples.images, np.arange(n), np.zeros(n), samples.transforms, masks=samples.masks)
        reader = MaskReader(task, inference.image_order(n))

        def read(logits: Tensor, y: Tensor) -> Tensor:
            used.append(private())
            return reader(logits, y)

        predictions = probabilities(network, part, inference, task=task, read=read)
        reader.kept(predictions)
        used.append(private())
        assert np.isfinite(predictions).all(1).mean() > 0.9, "most slices have distances"
        return max(used)

    before = predict(64)
    return predict(len(samples)) - before


def _memory(folder: Path) -> list[Measurement]:
    """Measure private memory of predicting few and many slices of memory-mapped files, and extrapolate it."""
    few, many = 500, 2000
    grown = {n: alone(_grown, _written(folder, n)) for n in (few, many)}
    each = max(0.0, grown[many] - grown[few]) / (many - few)
    grown[MANY] = grown[many] + each * (MANY - many)
    what = "private memory added by predicting {} slices {}x{} with distances{}"
    rows = [
        Measurement(what.format(n, SIDE, SIDE, ", extrapolated" * (n == MANY)), value, "MiB", "< 300 for 10,000")
        for n, value in grown.items()
    ]
    for row in rows:
        print(f"{row.what}: {row.value:+.1f} MiB; goal {row.goal}", flush=True)
    return rows


def _reading(folder: Path, slices: int = 24, pairs: int = 5) -> Measurement:
    """Measure a round on mapped slices, moved with their masks, over one on tensors that are ready in memory."""
    samples = _opened(_written(folder, slices), "scale_intensity", "flip", "rotate90")
    network = initialise(build("model", "unet_small"), (3, SIDE, SIDE), 2, 0)
    training = {"lr": 0.01, "batch_size": BATCH}
    ready, mapped = (
        Federation(network, {"a": source}, training=training, task="segmentation")
        for source in (samples.batch(np.arange(slices)), samples)
    )
    what = f"a round on {slices} slices {SIDE}x{SIDE}, unet_small: ready in memory, read, flipped and turned with masks"
    return in_turn(what, ready.round, mapped.round, pairs, 1, "<= 1.03, 0.97 of the rate")
