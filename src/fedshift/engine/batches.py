"""Batches: which samples make up each local step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from ..algorithms import Phase, Training


def batch_indices(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield consecutive batches of `order`.

    A last batch of one sample joins the batch before it, since BN cannot train on a single vector.
    """
    n = len(order)
    cuts = list(range(0, n, size))
    if n % size == 1 and n > 1:
        cuts.pop()
    for start, stop in zip(cuts, [*cuts[1:], n], strict=True):
        yield order[start:stop]


def batch_stream(n: int, training: Training, generator: torch.Generator) -> Iterator[np.ndarray]:
    """Yield batches of indices below `n` without end: epoch after epoch, or each batch drawn with replacement."""
    while True:
        if training.replacement:
            yield torch.randint(n, (training.batch_size,), generator=generator).numpy()
        else:
            yield from batch_indices(torch.randperm(n, generator=generator).numpy(), training.batch_size)


def round_steps(n: int, training: Training) -> int:
    """Return the number of local steps that the settings ask of a client with `n` samples in a round."""
    return training.local_steps or training.local_epochs * epoch_steps(n, training)


def epoch_steps(n: int, training: Training) -> int:
    """Return the number of batches in one pass over `n` samples."""
    size = training.batch_size
    joined = n % size == 1 and n > 1 and not training.replacement
    return math.ceil(n / size) - joined


def phase_steps(n: int, training: Training, phases: Sequence[Phase]) -> list[int]:
    """Return the number of local steps in each phase of a round of a client with `n` samples."""
    steps = []
    for phase in phases:
        if phase.epochs is None:
            steps.append(round_steps(n, training))
        else:
            steps.append(phase.epochs * epoch_steps(n, training))
    return steps


def equal_steps(training: Training, sizes: Iterable[int]) -> Training:
    """Return the settings with which each client takes as many local steps as the largest client.

    `sizes` are the numbers of samples of the clients.
    """
    return taking(training, max(round_steps(n, training) for n in sizes))


def taking(training: Training, steps: int) -> Training:
    """Return the settings with which each client takes this number of local steps in a round."""
    return training.model_copy(update={"local_steps": steps, "local_epochs": 1, "equal_steps": False})
