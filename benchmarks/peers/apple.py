"""pfl-research of Apple: federated averaging in its simulation, on tensors in memory, which it does not shuffle."""

import copy
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from .works import After, Work


class Network(nn.Module):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self.network, self.criterion = copy.deepcopy(work.network), work.loss()

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return self.criterion(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x, y, eval=True).item() * len(y), len(y))}


class Report(TrainingProcessCallback):
    def __init__(self, after: After) -> None:
        self.after = after

    def after_central_iteration(self, metrics: Metrics, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        self.after(model.pytorch_model.network.state_dict)
        return False, Metrics()


def train(work: Work, rounds: int, after: After) -> None:
    network = Network(work)
    users = {name: PyTorchTensorDataset(tensors, user_id=name) for name, tensors in work.data.items()}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(rounds, rounds, len(users), None),
        backend=SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=work.lr
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=work.batch),
        callbacks=[Report(after)],
    )
