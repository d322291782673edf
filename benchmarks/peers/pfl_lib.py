"""PFLlib: its server of FedAvg, on files as it reads them in each round; its loaders drop the last, smaller batch."""

import os
import tempfile
from argparse import Namespace
from pathlib import Path

import numpy as np
from flcore.servers.serveravg import FedAvg

from .works import After, Work

SETTINGS = dict.fromkeys(("learning_rate_decay", "random_join_ratio", "time_select", "auto_break", "dlg_eval"), False)
NUMBERS = dict.fromkeys(("few_shot", "client_drop_rate", "train_slow_rate", "send_slow_rate", "num_new_clients"), 0)


def write(work: Work, folder: Path) -> None:
    # A batch is for the tests that it makes in the first round.
    for part, samples in (("train", None), ("test", work.batch)):
        (folder / part).mkdir(parents=True)
        for i, (x, y) in enumerate(work.data.values()):
            np.savez_compressed(folder / part / f"{i}.npz", data={"x": x[:samples].numpy(), "y": y[:samples].numpy()})


def train(work: Work, rounds: int, after: After) -> None:
    class Reporting(FedAvg):
        def aggregate_parameters(self) -> None:
            super().aggregate_parameters()
            after(self.global_model.state_dict)

    classes = 1 + max(int(y.max()) for _, y in work.data.values())
    with tempfile.TemporaryDirectory() as folder:
        write(work, Path(folder, "dataset", "own"))
        Path(folder, "system").mkdir()
        os.chdir(Path(folder, "system"))
        own = {"dataset": "own", "model": work.network, "num_classes": classes, "num_clients": len(work.data)}
        sgd = {"batch_size": work.batch, "local_learning_rate": work.lr, "local_epochs": 1, "global_rounds": rounds - 1}
        rest = {"device": "cpu", "algorithm": "FedAvg", "goal": "test", "save_folder_name": "items", "join_ratio": 1.0}
        more = {"eval_gap": rounds, "time_threthold": 1e4, "top_cnt": 100, "learning_rate_decay_gamma": 0.99}
        last = {"batch_num_per_client": 2, "fine_tuning_epoch_new": 0, "dlg_gap": 100}
        Reporting(Namespace(**own, **sgd, **rest, **more, **last, **SETTINGS, **NUMBERS), 0).train()
        os.chdir("/")
