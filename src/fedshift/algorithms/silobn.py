"""SiloBN: Andreux et al., Siloed Federated Learning for Multi-centric Histopathology Datasets (2020)."""

from ._base import Algorithm


class SiloBN(Algorithm):
    """Another name for `fedavg` with BN policy `local_statistics`: a run under either name is the same run.

    In each round server and clients exchange all parameters. Running statistics stay at the clients. The paper
    recomputes the statistics at a new site: here by the prediction method (inference) `population` or `tsmobn`. With
    `source`, an external site gets the mean of the clients' statistics.
    """

    paper = "Andreux et al. 2020"
    policies = ("local_statistics",)
    why = "SiloBN is FedAvg with BN policy 'local_statistics'"
    stands_for = "fedavg"
