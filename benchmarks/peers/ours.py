"""fedshift through its public Federation."""

from fedshift import Federation

from .works import After, Work


def train(work: Work, rounds: int, after: After, stacked: bool | str = "auto") -> None:
    training = {"lr": work.lr, "batch_size": work.batch, "stacked": stacked}
    federation = Federation(work.network, work.data, training=training, task=work.task)
    for _ in range(rounds):
        federation.round()
        after(lambda: federation.model().state_dict())
