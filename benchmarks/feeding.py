"""Reading, augmenting and copying against an accelerator whose step takes a fixed time: do batches come fast enough?

The accelerator is the stand-in of tests/device, which computes on the host: augmentation, which a GPU would do by
itself, costs time of the host here. The network's step only sleeps, and its last layer takes some time of the host.
So the reference is the same training on one batch that lies on the device: what is lost against it, is lost by feeding.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from measure import Measurement, alone
from torch import Tensor, nn

from fedshift import Federation
from fedshift.core.registry import build
from fedshift.data.samples import MappedSamples

STEP, BATCH, STEPS = 0.05, 32, 60
"""Seconds of a step, images of a batch, and steps of a round: a GPU that trains on 640 patches a second."""
TRANSFORMS = ("scale_intensity", "flip", "rotate90")


class Asleep(nn.Module):
    """A network whose step takes a fixed time, in which the host is free, as it is while a GPU works."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(STEP)
        return self.last(x[:, :, 0, 0])


class Ready:
    """Samples that all have the same batch, which lies on the device: feeding them costs nothing."""

    random = False

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return BATCH * STEPS

    def batch(self, index: np.ndarray, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        return self.x, self.y


def _seconds(path: str, library: str) -> tuple[float, float, float]:
    """Return seconds of a round on a batch that is ready and on mapped patches, and the CPU seconds of the second."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "device"))
    import standin

    torch.set_num_threads(1)
    device = standin.load(Path(library))
    n = BATCH * STEPS
    transforms = [build("transform", name) for name in TRANSFORMS]
    samples = MappedSamples(np.load(path, mmap_mode="r"), np.arange(n), np.arange(n) % 2, transforms, device)
    training = {"batch_size": BATCH, "lr": 0.01, "select": "last"}
    ready = Ready(*(tensor.to(device) for tensor in samples.batch(np.arange(BATCH))))
    (unfed, _), (fed, worked) = (
        _round(Federation(Asleep(), {"a": source}, training=training, device=device)) for source in (ready, samples)
    )
    return unfed, fed, worked


def _round(federation: Federation) -> tuple[float, float]:
    """Return seconds and CPU seconds of the second round; the first also imports the transforms."""
    federation.round()
    began, worked = time.perf_counter(), time.process_time()
    federation.round()
    return time.perf_counter() - began, time.process_time() - worked


def feeding() -> list[Measurement]:
    """Measure the rate of training over that of the same steps on a ready batch; nothing where there is no compiler."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "device"))
    import standin

    if not standin.compiler():
        print("feeding: g++ is not there, which builds the stand-in accelerator: left out", flush=True)
        return []
    with tempfile.TemporaryDirectory() as folder:
        library = standin.build(Path(folder))
        path = Path(folder) / "patches.npy"
        shape = (BATCH * STEPS, 96, 96, 3)
        np.save(path, np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
        rounds = [alone(_seconds, str(path), str(library)) for _ in range(3)]
    low, rate, high = sorted(ready / fed for ready, fed, _ in rounds)
    asleep, busy = sorted(STEPS * STEP / fed for _, fed, _ in rounds)[1], sorted(cpu for *_, cpu in rounds)[1] / STEPS
    what = f"training on {BATCH * STEPS} flipped and rotated patches 96x96 over the same steps on a batch that is ready"
    print(f"{what}\n  {rate:.3f} of their rate ({low:.3f} to {high:.3f}); goal >= 0.97", flush=True)
    print(
        f"  {asleep:.3f} of the rate of sleeping {STEP} s a step; the host is busy for {busy:.4f} s of a step",
        flush=True,
    )
    return [Measurement(what, rate, "ratio", ">= 0.97", low, high, len(rounds))]
