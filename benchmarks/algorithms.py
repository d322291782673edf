"""Cost of each algorithm over FedAvg, and the memory that it keeps for each client."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable

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


def _many(algorithm: str, count: int) -> Federation:
    """Return a federation of so many clients, who train a small network one after another."""
    model, data = initialise(build("model", "mlp"), (784,), 10, 0), clients(count, 64, (784,), 10)
    training = {"batch_size": 32, "lr": 1e-2, "stacked": False}
    return Federation(model, data, algorithm=algorithm, bn="local", training=training)


def _held_by_many(algorithm: str, count: int) -> tuple[float, float]:
    """Private memory in MiB after a round of so many clients, without their images, and of the tensors they keep."""
    _many(algorithm, 1).round()
    gc.collect()
    before = private() + count * 64 * 784 * 4 / 2**20
    federation = _many(algorithm, count)
    federation.round()
    gc.collect()
    kept = sum(t.nbytes for c in federation.clients for t in (c.own, *c.state.values()))
    return private() - before, kept / 2**20


def many_clients(few: int = 10, pairs: int = 5) -> list[Measurement]:
    """Measure whether the time of a client grows with the number of clients, and the memory of a round."""
    rows = []
    for name, times in itertools.product(("fedavg", "scaffold"), (10, 100)):
        one, many = _many(name, few).round, _many(name, few * times).round
        repeated = functools.partial(_repeat, one, times)
        what = f"MLP, {name}, local BN: {times} rounds of {few} clients, a round of {few * times}"
        rows.append(in_turn(what, repeated, many, pairs, 1, "<= 1.10"))
        grown, kept = alone(_held_by_many, name, few * times)
        what = f"private memory after a round of {few * times} clients without their images, MLP, {name}, local BN"
        print(f"{what} (tensors: {kept:.0f} MiB): {grown:.0f} MiB", flush=True)
        rows.append(Measurement(what, grown, "MiB"))
    return rows


def _repeat(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()
