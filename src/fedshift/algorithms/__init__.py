"""Federated algorithms, one file each, and their base class, which is FedAvg.

A file here says what differs from FedAvg: what is sent, how a local step goes, how the server updates.
Rounds, checkpoints and batches belong to the engine; settings of local training are in `Training`.
"""

from ._base import Algorithm, Bessel, Joint, Local, Mean, Objective, Server, cross_entropy
from ._collaboration import Collaboration
from ._training import Training

__all__ = [
    "Algorithm",
    "Bessel",
    "Collaboration",
    "Joint",
    "Local",
    "Mean",
    "Objective",
    "Server",
    "Training",
    "cross_entropy",
]
