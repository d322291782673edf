"""Weights of the classes in the loss of local steps, from the labels of training images alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..algorithms import Collaboration, Training
from ..core.errors import UserError
from ..data.samples import class_counts
from .client import Client
from .ledger import Traffic


def weigh_classes(clients: Sequence[Client], training: Training, collaboration: Collaboration) -> Traffic:
    """Give each client the weights of the classes that the training asks for, and return the traffic.

    See `class_weights`. Raises UserError for a label without a weight.
    """
    if training.class_weights is None:
        return Traffic()
    counted = [class_counts(client.train).numpy() for client in clients]
    for client, weights in zip(clients, class_weights(counted, training, collaboration), strict=True):
        client.class_weights = torch.from_numpy(weights.copy())
    return counting(counted, [client.name for client in clients], training, collaboration)


def class_weights(counted: Sequence[np.ndarray], training: Training, collaboration: Collaboration) -> np.ndarray:
    """Return the weights of the classes at each client, (clients, classes), given each client's counts of labels.

    `balanced` gives class c the weight n / (K n_c), with n training images, n_c of them of class c, and K classes that
    have any. The counts are the sums over all clients: each sends its own once, K integers, and gets the sums. Clients
    that train alone use their own counts. Raises UserError for a label without a weight.
    """
    classes = max(map(len, counted))
    if isinstance(training.class_weights, tuple):
        if classes > len(training.class_weights):
            problem = f"has {len(training.class_weights)} weights, and there is a label {classes - 1}"
            raise UserError("training.class_weights", problem, "give one weight for each class")
        return np.tile(training.class_weights, (len(counted), 1))
    counts = np.stack([np.pad(count, (0, classes - len(count))) for count in counted])
    return balanced(collaboration.class_counts(counts))


def counting(
    counted: Sequence[np.ndarray], names: Sequence[str], training: Training, collaboration: Collaboration
) -> Traffic:
    """Return the traffic of the counts of labels that clients send, where the weights of classes depend on them."""
    if training.class_weights != "balanced":
        return Traffic()
    return Traffic.summed_up(max(map(len, counted)), names, collaboration)


def balanced(counts: np.ndarray) -> np.ndarray:
    """Return n / (K n_c) for each row of counts (clients, classes), and 0 for classes without images."""
    shown = (counts > 0).sum(1, keepdims=True)
    return counts.sum(1, keepdims=True) / (shown * np.maximum(counts, 1)) * (counts > 0)
