"""Helpers of all measurements: random clients, timing in turn, and memory."""

from __future__ import annotations

import copy
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Clients = dict[str, tuple[Tensor, Tensor]]

T = TypeVar("T")


@dataclass(frozen=True)
class Measurement:
    """One number that can be compared between machines: a ratio of two times, or memory.

    `unit` is `ratio` (second time over first), `times` (first speed over second) or `MiB`. `low` and `high` bound the
    middle half of the pairs.
    """

    what: str
    value: float
    unit: str
    goal: str = ""
    low: float | None = None
    high: float | None = None
    pairs: int = 1


def clients(n: int, samples: int, shape: tuple[int, ...], classes: int) -> Clients:
    """Random inputs and labels."""
    g = torch.Generator().manual_seed(0)
    return {
        f"client{k:02d}": (torch.randn(samples, *shape, generator=g), torch.randint(classes, (samples,), generator=g))
        for k in range(n)
    }


class DiceCE(nn.Module):
    """The loss `dice_ce` as MONAI computes it, from logits (n, classes, height, width) and masks (n, height, width)."""

    def __init__(self) -> None:
        super().__init__()
        from monai.losses import DiceCELoss

        self.monai = DiceCELoss(softmax=True, to_onehot_y=True)

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = self.monai(logits, y[:, None])
        return loss


def bare_loop(
    model: nn.Module,
    data: Clients,
    batch: int,
    lr: float,
    layout: torch.memory_format = torch.contiguous_format,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> Callable[[], nn.Module]:
    """Take equal SGD steps on preloaded tensors, with no federation at all: the usual PyTorch loop on one network."""
    model = copy.deepcopy(model).to(memory_format=layout)
    clients = [(x.contiguous(memory_format=layout), y) for x, y in data.values()]
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)

    def run() -> nn.Module:
        model.train()
        for x, y in clients:
            for index in torch.randperm(len(y)).split(batch):
                optimiser.zero_grad()
                loss(model(x[index]), y[index]).backward()
                optimiser.step()
        return model

    return run


def timed(work: Callable[[], object], repeat: int, clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    for _ in range(repeat):
        work()
    return (clock() - start) / repeat


def worked(work: Callable[[], object], repeat: int) -> float:
    """Processor time in seconds of all threads of this process, which other work on the machine changes little."""
    start = time.process_time()
    for _ in range(repeat):
        work()
    return (time.process_time() - start) / repeat


def in_turn(
    what: str, a: Callable[[], object], b: Callable[[], object], pairs: int, repeat: int, goal: str
) -> Measurement:
    """Take the processor time of `a` and `b` in turn; print and return the median ratio b / a."""
    a(), b()
    return compared(what, [(worked(a, repeat), worked(b, repeat)) for _ in range(pairs)], goal)


def compared(what: str, seconds: list[tuple[float, float]], goal: str = "") -> Measurement:
    """Print and return the median ratio of the second to the first of two times, over pairs of them."""
    pairs, ratios = len(seconds), sorted(second / first for first, second in seconds)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    first, second = (statistics.median(column) for column in zip(*seconds, strict=True))
    ratio = statistics.median(ratios)
    print(
        f"{what}\n  {first:.4f} s and {second:.4f} s, ratio {ratio:.2f} "
        f"(middle half {low:.2f} to {high:.2f}, {pairs} pairs)" + f"; goal {goal}" * bool(goal),
        flush=True,
    )
    return Measurement(what, ratio, "ratio", goal, low, high, pairs)


def private() -> float:
    """Resident memory that is not a mapped file, MiB (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return float("nan")


def alone(work: Callable[..., T], *given: object) -> T:
    """Return the result of `work` from a process of its own, whose memory nothing else has touched."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, given)
