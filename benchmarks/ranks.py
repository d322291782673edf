"""Two processes against one: rounds of four equal clients, the six-layer digit network, one thread each."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import torch
from measure import Measurement, clients, timed

from fedshift.core.registry import build
from fedshift.engine.federation import Federation
from fedshift.engine.ranks import opened
from fedshift.engine.specification import Specification
from fedshift.models import initialise

ROUNDS = 3


def worker() -> None:
    """Seconds a round, as JSON: what is started alone, or by torchrun."""
    torch.set_num_threads(1)
    network = initialise(build("model", "digit_cnn"), (3, 28, 28), 10, 0)
    with opened(torch.device("cpu")) as among:
        specification = Specification.open(network, training={"lr": 0.01})
        federation = Federation(specification, clients(4, 743, (3, 28, 28), 10), ranks=among)
        federation.round()
        seconds = [timed(federation.round, 1) for _ in range(ROUNDS)]
    if among.rank == 0:
        print(json.dumps(seconds))


def seconds(processes: int) -> list[float]:
    """Return the seconds of each round with this number of processes."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *launch, __file__]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return list(json.loads(out.strip().splitlines()[-1]))


def processes(turns: int = 3) -> list[Measurement]:
    """Time both in turn; print and return the ratio of their medians."""
    one, two = [], []
    for _ in range(turns):
        one += seconds(1)
        two += seconds(2)
    a, b = statistics.median(one), statistics.median(two)
    what = "a round of 4 equal clients x 743 images 28x28, DigitCNN: one process, two"
    print(f"{what}\n  {a:.2f} s and {b:.2f} s, ratio {b / a:.2f}; goal <= 0.65", flush=True)
    return [Measurement(what, b / a, "ratio", "<= 0.65", pairs=turns)]


if __name__ == "__main__":
    worker()
