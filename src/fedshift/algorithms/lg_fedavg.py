"""LG-FedAvg: Liang et al., Think Locally, Act Globally (2020), algorithm 1."""

from ._base import Algorithm
from ._collaboration import SharedHead


class LGFedAvg(Algorithm):
    """The last linear layer (head) is averaged; all other layers (body) stay at their client.

    A client trains both together, with one learning rate. Batch norm is part of the body, so no running statistics
    travel. The paper shares the top layers of the network, here the last linear one. The authors' code for CIFAR-10
    shares the two convolutions instead and keeps the linear layers at home, starts from a model that FedAvg has trained
    for hundreds of rounds, and keeps each client's round with the best test accuracy. Here every client starts from the
    same random weights, and `select` chooses one round for all by their validation images.

    Down and up each round: the head. Kept at the clients: the body with its running statistics. The authors' code
    averages clients with equal weights: `weights: uniform`. External sites are not predicted, since the mean of bodies
    that were trained apart has no meaning; the paper's answer for a new device is the mean of all clients' predictions,
    for which all bodies would have to travel. There is no setting beside those of training.
    """

    paper = "Liang et al. 2020"
    policies = ("local",)
    why = "the body stays at its client, and batch norm is part of it"
    layers = "body_home"
    external = "external sites are not predicted, since the mean of the clients' bodies has no meaning"
    collaboration = SharedHead()
