"""Cost of each algorithm over FedAvg, and the memory that it keeps for each client."""

from __future__ import annotations

import gc

from measure import Measurement, alone, clients, in_turn, private

from fedshift import Federation
from fedshift.core.registry import build, discover
from fedshift.models import initialise

GOALS = {
    "fedprox": "<= 1.05",
    "fednova": "<= 1.05",
    "fedadam": "<= 1.05",
    "fedbn": "<= 1.05",
    "silobn": "<= 1.05",
    "scaffold": "<= 1.10",
    "feddc": "<= 1.15",
    "moon": "<= 2.00",
    "perfedavg": "<= 2.10",
    **dict.fromkeys(["fedavgm", "fedadagrad", "fedyogi", "vrex", "groupdro"], "<= 1.05"),
    "fedsam": "<= 2.10",
    **dict.fromkeys(["qffl", "afl"], "<= 1.45"),
    "feddg_ga": "<= 1.85",
}
"""What the additional work of an algorithm should cost; one without an entry is measured without a goal."""
SHAPE = (3, 32, 32)


def resnet(algorithm: str, samples: int, **training: object) -> Federation:
    """Four clients who train ResNet-20 in batches of 32."""
    model = initialise(build("model", "resnet20"), SHAPE, 10, 0)
    settings = {"batch_size": 32, "lr": 0.01, **training}
    return Federation(model, clients(4, samples, SHAPE, 10), algorithm=algorithm, training=settings)


def rounds(pairs: int = 9) -> list[Measurement]:
    """Measure rounds of FedAvg and of each other algorithm that is found, in turn."""
    plain = resnet("fedavg", 128)
    what = "4 clients x 128 images 32x32, ResNet-20: a round of fedavg, of {}"
    return [
        in_turn(what.format(name), plain.round, resnet(name, 128).round, pairs, 1, GOALS.get(name, ""))
        for name in discover("algorithm")
        if name != "fedavg"
    ]


def joint_step(pairs: int = 9) -> list[Measurement]:
    """Measure one joint step of all clients, and as many local steps."""
    plain, joint = (resnet(name, 32, local_steps=1) for name in ("fedavg", "fedtan"))
    what = "4 clients x 32 images 32x32, ResNet-20: local steps, the joint step"
    return [in_turn(what, plain.round, joint.round, pairs, 3, "<= 1.50")]


def _kept(algorithm: str, count: int) -> tuple[float, float]:
    """Private memory that a federation takes after a round, MiB, and that of the tensors its clients keep."""
    model, data = initialise(build("model", "densenet121"), SHAPE, 2, 0), clients(count, 16, SHAPE, 2)
    gc.collect()
    before = private()
    federation = Federation(model, data, algorithm=algorithm, training={"batch_size": 16, "lr": 1e-3})
    federation.run(2)
    gc.collect()
    kept = sum(t.nbytes for c in federation.clients for t in (c.own, *c.state.values()))
    return private() - before, kept / 2**20


def state() -> list[Measurement]:
    """Measure what nine more clients add to memory, and the tensors that they keep."""
    grown = []
    for name in ("fedavg", "fedbn", "scaffold", "feddc", "moon"):
        (one, held), (ten, all_held) = (alone(_kept, name, count) for count in (1, 10))
        what = f"private memory of nine more clients, DenseNet121, {name} (tensors: {all_held - held:.0f} MiB)"
        print(f"{what}: {ten - one:+.0f} MiB", flush=True)
        grown.append(Measurement(what, ten - one, "MiB"))
    return grown
