"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks (2017), algorithm 1."""

from ._base import Algorithm


class FedAvg(Algorithm):
    """Weighted mean of all clients' tensors, running statistics included.

    Down and up each round: all tensors that travel under the BN policy. Extra state: none.
    With BN policy `local` this is FedBN, with `local_statistics` SiloBN; a study may call it by these names. Means and
    variances are averaged arithmetically, as published; that is not the pooled variance.
    """

    paper = "McMahan et al. 2017"
