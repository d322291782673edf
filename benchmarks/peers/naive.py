"""FedAvg as a tutorial writes it: loaders, copies of the network, and the mean of their state dicts."""

import copy

import torch
from torch.utils.data import DataLoader, TensorDataset

from .works import After, Work


def train(work: Work, rounds: int, after: After) -> None:
    loaders = [DataLoader(TensorDataset(x, y), work.batch, shuffle=True) for x, y in work.data.values()]
    network, criterion = copy.deepcopy(work.network), work.loss()
    for _ in range(rounds):
        states = []
        for loader in loaders:
            local = copy.deepcopy(network).train()
            optimiser = torch.optim.SGD(local.parameters(), lr=work.lr)
            for x, y in loader:
                optimiser.zero_grad()
                criterion(local(x), y).backward()
                optimiser.step()
            states.append(local.state_dict())
        network.load_state_dict({k: torch.stack([s[k].float() for s in states]).mean(0) for k in states[0]})
        after(network.state_dict)
