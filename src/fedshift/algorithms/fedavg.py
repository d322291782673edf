"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks (2017), algorithm 1."""

from ._base import Algorithm


class FedAvg(Algorithm):
    """Weighted mean of all clients' tensors, running statistics included.

    In each round server and clients exchange all tensors that do not stay at the clients under the BN policy. No
    further state is kept. With BN policy `local` this is FedBN, and with `local_statistics` it is SiloBN; a study may
    use these names. Means and variances of batch norm are averaged arithmetically, as published. The mean of the
    variances is not the pooled variance.
    """

    paper = "McMahan et al. 2017"
