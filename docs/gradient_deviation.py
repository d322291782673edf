"""FedTAN's theorem 1 on MNIST: the deviation of the clients' gradients beside the loss, by round.

`make reproduce STUDY=fedtan-theorem1-mnist` writes docs/reproductions/fedtan-theorem1-mnist/seeds.csv. A study keeps no
gradients, so this trains by the formulas of the figure `gradient_deviation`, in float64: the network 784-30-30-30-10
with three BN layers, five clients with two digits each, batches of 128 drawn with replacement, a rate of 0.5 and 500
rounds of one local step, in which FedTAN is exact.

Fixed before the first training, with five seeds, each compared with itself: the deviation, mean over rounds and
clients, is lower with FedTAN than with algorithm 2, and with algorithm 2 than with FedAvg; so is the loss on the
batches of all clients together, mean over rounds. The theorem explains the loss where all four hold.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedshift.core.rng import stream
from fedshift.datasets import _digit_files
from fedshift.figures.gradient_deviation import WAYS, descend, network

OUT = Path(__file__).parent / "reproductions" / "fedtan-theorem1-mnist" / "seeds.csv"
SIZES = [784, 30, 30, 30]
CLIENTS, CLASSES, BATCH = 5, 10, 128
ROUNDS, RATE, SEEDS = 500, 0.5, 5
Round = tuple[list[np.ndarray], list[np.ndarray]]
"""Inputs and labels of each client."""


def batches(x: np.ndarray, y: np.ndarray, seed: int) -> Iterator[Round]:
    """Yield the inputs (BATCH, 784) and labels (BATCH,) of each client for each round; client i has digits 2i, 2i+1."""
    own = [np.flatnonzero(y // 2 == client) for client in range(CLIENTS)]
    rng = stream("theorem 1", "batches", seed)
    for _ in range(ROUNDS):
        drawn = [rng.choice(rows, BATCH) for rows in own]
        yield [x[rows].reshape(BATCH, -1) / 255 for rows in drawn], [y[rows] for rows in drawn]


def main(mirror: Path) -> None:
    """Write deviation and loss of each method and seed, from MNIST's files in `mirror`."""
    x, y = _digit_files.read_mnist(mirror, _digit_files.TRAIN)
    lines = []
    for seed in range(SEEDS):
        for way in WAYS:
            start = network(stream("theorem 1", "network", seed), SIZES, CLASSES)
            deviation, loss = descend(way, start, batches(x, y.astype(np.int64), seed), RATE)
            least, most = deviation.mean(axis=0).min(), deviation.mean(axis=0).max()
            lines.append([way, seed, deviation.mean(), least, most, loss.mean(), loss[-100:].mean()])
            print(*lines[-1], flush=True)
    with OUT.open("w", encoding="utf-8", newline="") as file:
        head = ["method", "seed", "deviation", "least_client", "largest_client", "loss", "loss_last_100"]
        csv.writer(file, lineterminator="\n").writerows([head, *lines])
