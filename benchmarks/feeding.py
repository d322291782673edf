"""Reading, augmenting and copying against an accelerator whose step takes a fixed time: do batches come fast enough?

The accelerator is the stand-in of tests/device, which computes on the host: augmentation, which a GPU would do by
itself, costs time of the host here. The network's step only sleeps.
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

from fedshift.core.registry import build
from fedshift.data.samples import MappedSamples
from fedshift.engine.federation import Federation

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


def _rate(path: str, library: str) -> tuple[float, float]:
    """Return the rate of a round of training over that of its steps alone, and the host's CPU seconds a batch."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "device"))
    import standin

    torch.set_num_threads(1)
    device = standin.load(Path(library))
    n = BATCH * STEPS
    transforms = [build("transform", name) for name in TRANSFORMS]
    samples = MappedSamples(np.load(path, mmap_mode="r"), np.arange(n), np.arange(n) % 2, transforms, device)
    training = {"batch_size": BATCH, "lr": 0.01, "select": "last"}
    federation = Federation(Asleep(), {"a": samples}, training=training, device=device)
    federation.round()  # the first round also imports the transforms
    began, worked = time.perf_counter(), time.process_time()
    federation.round()
    return STEP * STEPS / (time.perf_counter() - began), (time.process_time() - worked) / STEPS


def feeding() -> list[Measurement]:
    """Measure the rate of training over the rate of a sleeping step; nothing where there is no compiler."""
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
        pairs = [alone(_rate, str(path), str(library)) for _ in range(3)]
    low, rate, high = sorted(rate for rate, _ in pairs)
    busy = sorted(seconds for _, seconds in pairs)[1]
    what = f"training on {BATCH * STEPS} flipped and rotated patches 96x96 over its steps alone, of {STEP} s each"
    print(f"{what}\n  {rate:.3f} of their rate ({low:.3f} to {high:.3f}); goal >= 0.97", flush=True)
    print(f"  the host is busy for {busy:.4f} s of a step", flush=True)
    return [Measurement(what, rate, "ratio", ">= 0.97", low, high, len(pairs))]
