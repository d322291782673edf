"""Loss and accuracy of a round's local steps, read from the device for many steps at once."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..core.errors import UserError
from ..core.limits import Limit

EVERY: Limit[int] = 64
"""Steps between two looks at the device: how late a loss that is not finite may be noticed."""


class Outcome(NamedTuple):
    """What one site's part of a round came to: a row of the history. Floats and messages are those of training."""

    site: str
    loss: float
    accuracy: float
    seconds: float
    floats_down: int = 0
    floats_up: int = 0
    messages: int = 0


class Tally:
    """Mean cross-entropy and accuracy of each client over all samples seen, with the weights of each step.

    Penalties and add-ons are left out, so that algorithms compare.
    """

    def __init__(self, number: int) -> None:
        self.round = number
        self.steps: list[tuple[str, Tensor, Tensor]] = []
        self.sums: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(3))

    def add(self, client: str, logits: Tensor, y: Tensor) -> None:
        """Count one step: logits (batch, classes) and labels (batch,)."""
        self.steps.append((client, logits, y))
        if len(self.steps) == EVERY:
            self.read()

    def read(self) -> None:
        """Take in all steps so far. Raises UserError where a loss is not finite."""
        if not self.steps:
            return
        clients, outputs, labels = zip(*self.steps, strict=True)
        self.steps = []
        logits, truth = torch.cat(outputs), torch.cat(labels)
        logits = logits.float() if logits.dtype.itemsize < 4 else logits
        each = cross_entropy(logits, truth, reduction="none").double(), (logits.argmax(1) == truth).double()
        sizes = [len(y) for y in labels]
        starts = np.cumsum([0, *sizes[:-1]])
        loss, right = np.add.reduceat(torch.stack(each).cpu().numpy(), starts, axis=1)
        for client, step in zip(clients, np.stack([loss, right, sizes], 1), strict=True):
            self.sums[client] += step
            if not math.isfinite(step[0]):
                raise diverged(self.round, client, f"the training loss is {step[0] / step[2]}")

    def means(self, client: str) -> tuple[float, float]:
        """Mean loss and accuracy of one client."""
        self.read()
        loss, right, seen = self.sums[client]
        return float(loss / seen), float(right / seen)


def diverged(number: int, client: str, what: str) -> UserError:
    """Says at which round and client training went astray."""
    place = f"round {number}, client {client!r}"
    return UserError(place, what, "lower training.lr, or look for broken inputs at that client")
