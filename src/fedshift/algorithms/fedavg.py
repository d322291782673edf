"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks (2017), algorithm 1."""

from ..algorithm import Algorithm


class FedAvg(Algorithm):
    """Weighted mean of all clients' tensors, running statistics included.

    Down and up each round: all tensors that travel under the BN policy. Extra state: none.
    With BN policy `local` this is FedBN (Li et al. 2021, algorithm 1, which weights clients equally: `weights:
    uniform`); with `local_statistics` it is SiloBN (which recomputes statistics at a new site: inference `tsmobn`;
    under `source` an external site gets the clients' mean). Means and variances are averaged arithmetically, as
    published; that is not the pooled variance.
    """

    paper = "McMahan et al. 2017"
