"""FedPer: Arivazhagan et al., Federated Learning with Personalization Layers (2019), algorithms 1 and 2."""

from ._base import Algorithm


class FedPer(Algorithm):
    """The last linear layer (head) stays at its client; all other layers (body) are averaged.

    A client trains both together, with one learning rate, from the received body and its own head. In the paper the
    last one to four blocks of its networks stay at the clients, and few are best; here it is always the last linear
    layer.

    In each round server and clients exchange the body, except what the BN policy keeps at the clients. Each client
    keeps its head, which is trained in every round that the client takes part in. All clients start from the same
    random head. An internal site is predicted with its own head, an external one with the plain mean of the heads: on
    one body, the mean of heads gives the mean of their logits. It has only the settings of training.
    """

    paper = "Arivazhagan et al. 2019"
    layers = "head_home"
    external = "external sites get the plain mean of the clients' last layers, on the common body"
