"""Federated algorithms, one file each, and their base class, which is FedAvg.

Each file says what differs from FedAvg: what is sent, how a local step goes, how the server updates.
The engine does rounds, checkpoints and batches. `Training` holds the settings of local training.
"""

from ._base import (
    LOGGED,
    Algorithm,
    Bessel,
    Blend,
    Images,
    Joint,
    Local,
    Mean,
    Objective,
    Phase,
    Server,
    class_loss,
    task_loss,
)
from ._collaboration import Collaboration, Traffic
from ._training import ADAM, Training

__all__ = [
    "ADAM",
    "LOGGED",
    "Algorithm",
    "Bessel",
    "Blend",
    "Collaboration",
    "Images",
    "Joint",
    "Local",
    "Mean",
    "Objective",
    "Phase",
    "Server",
    "Traffic",
    "Training",
    "class_loss",
    "task_loss",
]
