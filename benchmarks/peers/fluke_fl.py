"""fluke: FedAVG on its fast loaders."""

import copy

from fluke import DDict
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver

from .works import After, Work


class Report(FederationObserver):
    def __init__(self, algorithm: FedAVG, after: After) -> None:
        self.algorithm, self.after = algorithm, after

    def end_round(self, round: int) -> None:
        self.after(self.algorithm.server.model.state_dict)


def train(work: Work, rounds: int, after: After) -> None:
    classes = 1 + max(int(y.max()) for _, y in work.data.values())
    loaders = [
        FastDataLoader(x, y, num_labels=classes, batch_size=work.batch, shuffle=True) for x, y in work.data.values()
    ]
    container = DummyDataContainer(loaders, [None] * len(loaders), None, classes)
    client = DDict(
        batch_size=work.batch,
        local_epochs=1,
        loss=work.loss,
        optimizer=DDict(name="SGD", lr=work.lr),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1),
    )
    settings = DDict(model=copy.deepcopy(work.network), client=client, server=DDict(weighted=True))
    algorithm = FedAVG(len(loaders), DataSplitter(container), settings)
    algorithm.set_callbacks(Report(algorithm, after))
    algorithm.run(rounds, 1.0)
