"""Federated algorithms, one plug-in in each file, and their base class `Algorithm`, which is FedAvg.

Each file holds what an algorithm does otherwise than FedAvg: what clients and server exchange, how a local step goes,
how the server updates the model. Rounds, checkpoints and batches are the engine's. `Training` holds the settings of
local training.
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
