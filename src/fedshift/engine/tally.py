"""Loss and accuracy of a round's local steps, read from the device for many steps at once."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..core.errors import UserError
from ..core.limits import Limit

EVERY: Limit[int] = 64
"""Number of steps after which results are read from the device: a loss that is not finite may be noticed so late."""


class Tally:
    """Mean cross-entropy and accuracy of each client over all samples seen, with the weights of each step.

    Penalties and losses of add-ons are left out, so that algorithms can be compared.
    """

    def __init__(self, number: int) -> None:
        self.round = number
        self.steps: list[tuple[str, Tensor, Tensor]] = []
        self.sums: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(3))

    def add(self, client: str, logits: Tensor, y: Tensor) -> None:
        """Add one step: logits (batch, classes) and labels (batch,)."""
        self.steps.append((client, logits, y))
        if len(self.steps) == EVERY:
            self.read()

    def read(self) -> None:
        """Read all steps so far from the device. Raises UserError if a loss is not finite."""
        if not self.steps:
            return
        clients, outputs, labels = zip(*self.steps, strict=True)
        self.steps = []
        logits, truth = torch.cat(outputs), torch.cat(labels)
        logits = logits.float() if logits.dtype.itemsize < 4 else logits
        losses, correct = cross_entropy(logits, truth, reduction="none").double(), (logits.argmax(1) == truth).double()
        sizes = [len(y) for y in labels]
        starts = np.cumsum([0, *sizes[:-1]])
        loss, right = np.add.reduceat(torch.stack([losses, correct]).cpu().numpy(), starts, axis=1)
        for client, step in zip(clients, np.stack([loss, right, sizes], 1), strict=True):
            self.sums[client] += step
            if not math.isfinite(step[0]):
                raise diverged(self.round, client, f"the training loss is {step[0] / step[2]}")

    def means(self, client: str) -> tuple[float, float]:
        """Return mean loss and accuracy of one client."""
        self.read()
        loss, right, seen = self.sums[client]
        return float(loss / seen), float(right / seen)


def diverged(number: int, client: str, what: str) -> UserError:
    """Return the error for a training that diverged; its message names the round and the client."""
    place = f"round {number}, client {client!r}"
    return UserError(place, what, "lower training.lr, or look for broken inputs at this client")
