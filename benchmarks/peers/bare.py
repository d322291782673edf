"""No federation: the bare loop itself, whose ratio should be 1."""

from measure import bare_loop

from .works import After, Work


def train(work: Work, rounds: int, after: After) -> None:
    run = bare_loop(work.network, work.data, work.batch, work.lr, loss=work.loss())
    for _ in range(rounds):
        after(run().state_dict)
