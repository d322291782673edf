"""The tasks that fedshift and its peers are compared on: a network, clients' tensors, and how to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from measure import Clients, DiceCE, clients
from torch import Tensor, nn

State = Mapping[str, Tensor]
After = Callable[[Callable[[], State]], None]
"""What a peer calls after each round, with a function that returns the state of the global network."""


@dataclass(frozen=True)
class Work:
    """One epoch of SGD a round on each client; all clients have equally many samples."""

    what: str
    network: nn.Module
    data: Clients
    batch: int
    rounds: int
    loss: type[nn.Module] = nn.CrossEntropyLoss
    task: str = "classification"
    lr: float = 0.01
    path: str = ""


@cache
def load(path: str) -> Work:
    """Return a work from its file, once in a process."""
    return replace(torch.load(path, weights_only=False), path=path)


def digits() -> Work:
    network, data = _network("digit_cnn", (3, 28, 28), 10), clients(5, 743, (3, 28, 28), 10)
    return Work("5 clients x 743 images 28x28, DigitCNN", network, data, 32, 3)


def vectors() -> Work:
    network, data = _network("mlp", (784,), 10), clients(50, 64, (784,), 10)
    return Work("50 clients x 64 samples, MLP 784-30-10", network, data, 32, 21)


def patches() -> Work:
    from torchvision.models import densenet121

    data = clients(2, 64, (3, 96, 96), 2)
    return Work("2 clients x 64 images 96x96, DenseNet121", densenet121(num_classes=2), data, 32, 3)


def masks() -> Work:
    from masks import BATCH, outlined

    what = "2 clients x 32 images 128x128 with masks, unet_small, Dice and cross-entropy"
    return Work(what, *outlined(32, 128), BATCH, 5, DiceCE, "segmentation")


def _network(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    from fedshift.core.registry import build
    from fedshift.models import initialise

    return initialise(build("model", name), shape, classes, 0)


WORKS: Mapping[str, Callable[[], Work]] = {"A": digits, "B": vectors, "C": patches, "D": masks}


def write(name: str, folder: Path) -> str:
    """Write a work to a file that needs no fedshift to be read; return what it is."""
    torch.manual_seed(0)
    work = WORKS[name]()
    torch.save(work, folder / f"work-{name}.pt")
    return work.what
