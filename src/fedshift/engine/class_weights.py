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

    `balanced` gives class c the weight n / (K n_c), with n training images, n_c of them of class c, and K classes that
    have any. The counts are the sums over all clients: each sends its own once, K integers, and gets the sums. Clients
    that train alone use their own counts. Raises UserError for a label without a weight.
    """
    if training.class_weights is None:
        return Traffic()
    counted = [class_counts(client.train).numpy() for client in clients]
    classes = max(map(len, counted))
    if isinstance(training.class_weights, tuple):
        if classes > len(training.class_weights):
            problem = f"has {len(training.class_weights)} weights, and there is a label {classes - 1}"
            raise UserError("training.class_weights", problem, "give one weight for each class")
        weights = np.tile(training.class_weights, (len(clients), 1))
        traffic = Traffic()
    else:
        counts = np.stack([np.pad(count, (0, classes - len(count))) for count in counted])
        weights = balanced(collaboration.class_counts(counts))
        traffic = Traffic.summed_up(classes, [client.name for client in clients], collaboration)
    for client, own in zip(clients, weights, strict=True):
        client.class_weights = torch.from_numpy(own.copy())
    return traffic


def balanced(counts: np.ndarray) -> np.ndarray:
    """Return n / (K n_c) for each row of counts (clients, classes), and 0 for classes without images."""
    shown = (counts > 0).sum(1, keepdims=True)
    return counts.sum(1, keepdims=True) / (shown * np.maximum(counts, 1)) * (counts > 0)
