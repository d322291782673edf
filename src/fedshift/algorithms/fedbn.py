"""FedBN: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization (2021), algorithm 1."""

from ._base import Algorithm


class FedBN(Algorithm):
    """Another name for `fedavg` with BN policy `local`: a run under either name is the same run.

    In each round server and clients exchange all weights except those of batch norm. Gamma, beta and running statistics
    stay at the clients. The paper gives all clients equal weight: `weights: uniform`.
    """

    paper = "Li et al. 2021"
    policies = ("local",)
    why = "FedBN is FedAvg with BN policy 'local'"
    stands_for = "fedavg"
