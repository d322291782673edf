"""FLamby's strategies: FedAvg over loaders."""

import torch
from flamby.strategies import FedAvg
from torch.utils.data import DataLoader, TensorDataset

from .works import After, Work


def train(work: Work, rounds: int, after: After) -> None:
    loaders = [DataLoader(TensorDataset(x, y), work.batch, shuffle=True) for x, y in work.data.values()]
    strategy = FedAvg(loaders, work.network, work.loss(), torch.optim.SGD, work.lr, len(loaders[0]), rounds)
    for _ in range(rounds):
        strategy.perform_round()
        after(strategy.models_list[0].model.state_dict)
