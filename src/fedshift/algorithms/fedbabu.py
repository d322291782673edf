"""FedBABU: Oh et al., Toward Enhanced Representation for Federated Image Classification (2022), algorithm 1."""

from ._base import Algorithm, Phase


class FedBABU(Algorithm):
    """The last linear layer (head) keeps its random start, the same at all clients; all other layers are averaged.

    In training only the other layers (body) are updated, as with a learning rate of 0 for the head, and without weight
    decay of the head. Batch norm is part of the body. After training the paper tunes the whole network, or its head or
    body, on labelled data of each client. Here `personalise` in an inference tunes the whole network on labelled images
    of the site; the study's other inferences evaluate the network before that. A study can ask for both.

    In each round server and clients exchange the body, except what the BN policy keeps at the clients. The head is
    never exchanged, since every client draws it from the same seed: it stays at the clients. An external site is
    predicted with the common random head on the common body. This is the method's global model. The authors' code
    averages clients with equal weights: `weights: uniform`. It trains with learning rate 0.1, momentum 0.9, and a tenth
    of the rate from half and again from three quarters of the rounds on. It has no settings beside those of training.
    """

    paper = "Oh et al. 2022"
    layers = "head_home"
    external = "external sites get the random last layer that all clients share and none trains, on the common body"

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("rest"),)
