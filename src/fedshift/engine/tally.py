"""Loss and accuracy of a round's local steps, read from the device for many steps at once."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError
from ..tasks import CLASSIFICATION, Task

EVERY = 64
"""Number of steps after which results are read from the device: a loss that is not finite may be noticed so late."""


class Tally:
    """Mean cross-entropy and accuracy of each client over all samples seen, with the weights of each step.

    Penalties and losses of add-ons are left out, so that algorithms can be compared.
    """

    def __init__(self, number: int, task: Task = CLASSIFICATION) -> None:
        self.round = number
        self.task = task
        self.steps: list[tuple[str, Tensor, Tensor]] = []
        self.weights: list[tuple[str, Tensor]] = []
        self.sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def add(self, client: str, logits: Tensor, y: Tensor) -> None:
        """Add one step: logits (batch, classes, ...) and targets (batch, ...)."""
        self.steps.append((client, *self.task.kept(logits, y)))
        if len(self.steps) == EVERY:
            self.read()

    def add_weights(self, client: str, tensors: Iterable[Tensor]) -> None:
        """Add the weights with which a client ends its local training, of which only the sums are kept."""
        self.weights += [(client, tensor.sum()) for tensor in tensors]

    def read(self) -> None:
        """Read all steps and weights so far from the device. Raises UserError if a loss or a weight is not finite."""
        if self.steps:
            self._read_steps()
        if self.weights:
            clients, sums = zip(*self.weights, strict=True)
            self.weights = []
            for client, total in zip(clients, torch.stack(sums).tolist(), strict=True):
                if not math.isfinite(total):
                    raise diverged(self.round, client, "a weight is not finite after the last step")

    def _read_steps(self) -> None:
        clients, outputs, labels = zip(*self.steps, strict=True)
        self.steps = []
        measured = self.task.measured((torch.cat(outputs), torch.cat(labels))).cpu().numpy()
        sizes = [len(y) for y in labels]
        starts = list(itertools.accumulate(sizes[:-1], initial=0))
        sums_by_step = np.add.reduceat(measured, starts, axis=1).tolist()
        for client, loss, right, seen in zip(clients, *sums_by_step, sizes, strict=True):
            if not math.isfinite(loss):
                raise diverged(self.round, client, f"the training loss is {loss / seen}")
            sums = self.sums[client]
            sums[0] += loss
            sums[1] += right
            sums[2] += seen

    def means(self, client: str) -> tuple[float, float]:
        """Return mean loss and accuracy of one client."""
        self.read()
        loss, right, seen = self.sums[client]
        return loss / seen, right / seen


def diverged(number: int, client: str, what: str) -> UserError:
    """Return the error for a training that diverged; its message names the round and the client."""
    place = f"round {number}, client {client!r}"
    return UserError(place, what, "lower training.lr, or look for broken inputs at this client")
