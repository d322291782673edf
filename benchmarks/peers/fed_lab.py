"""FedLab: its pipeline in one process, with its server and its serial trainer of FedAvg."""

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset

from .works import After, Work


class Sites(FedDataset):
    def __init__(self, work: Work) -> None:
        self.sites = [TensorDataset(x, y) for x, y in work.data.values()]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader:
        return DataLoader(self.sites[id], batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    def __init__(self, handler: SyncServerHandler, trainer: SGDSerialClientTrainer, after: After) -> None:
        super().__init__(handler, trainer)
        self.after = after

    def evaluate(self) -> None:
        self.after(self.handler.model.state_dict)


def train(work: Work, rounds: int, after: After) -> None:
    trainer = SGDSerialClientTrainer(work.network, len(work.data))
    trainer.setup_dataset(Sites(work))
    trainer.setup_optim(1, work.batch, work.lr)
    trainer.criterion = work.loss()
    Pipeline(SyncServerHandler(work.network, rounds, 1.0), trainer, after).main()
