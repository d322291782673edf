"""What real sites send and receive, counted in their messages, against the forecast of `fedshift ledger`."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import pytest
from served_sites import Hospitals, trained
from three_sites import SITES, STUDY, write

from fedshift import study
from fedshift.analysis.communication import forecast
from fedshift.core.units import FLOAT_BYTES
from fedshift.engine.messages import Fault, Message
from fedshift.hospitals import agreed
from fedshift.study.plan import Plan

ROUNDS = 3
RUNS = [
    {"algorithm": "fedavg", "bn": ["aggregated", "local"]},
    {"algorithm": ["scaffold", "fedtan"], "bn": "aggregated"},
]
TRAINING = {"rounds": ROUNDS, "batch_size": 4, "lr": 0.05, "select": "last", "weights": "uniform"}


def payload(message: Message) -> int:
    """The bytes of a message's tensors, without names, shapes and settings."""
    return sum(tensor.numel() * tensor.element_size() for tensor in message.tensors.values())


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Hospitals]:
    root = tmp_path_factory.mktemp("traffic")
    write(root, STUDY | {"model": "mlp", "training": TRAINING, "runs": RUNS})
    with contextlib.chdir(root / "server"):
        plan = study.load(Path("study.yaml"), "mini")
    return plan, Hospitals(root)


@pytest.mark.parametrize(
    ("algorithm", "bn"),
    [("fedavg", "aggregated"), ("fedavg", "local"), ("scaffold", "aggregated"), ("fedtan", "aggregated")],
)
def test_the_payload_of_each_round_and_direction_is_the_forecast(
    algorithm: str, bn: str, town: tuple[Plan, Hospitals]
) -> None:
    plan, hospitals = town
    (run,) = (run for run in plan.runs.values() if (run.algorithm.name, run.bn) == (algorithm, bn))
    hospitals.exchanged.clear()
    coordinator = trained(run, hospitals)
    down, up = Counter[int](), Counter[int]()
    for _, asked, answer in hospitals.exchanged:
        assert not isinstance(answer, Fault)
        # What a site validates after a round is what it trains from in the next: it is sent once.
        down[asked.about.get("round", 0) + (asked.kind == "evaluate")] += payload(asked)
        up[answer.about.get("round", 0)] += payload(answer)
    expected = forecast(run, agreed.shape_of(run), 2)
    numbers = iter(range(1, ROUNDS + 1))
    for phase in expected.phases:
        for number in (next(numbers) for _ in range(phase.rounds)):
            assert down[number] == FLOAT_BYTES * phase.down * len(SITES), number
            assert up[number] == FLOAT_BYTES * phase.up * len(SITES), number
    # The network after the last round, which no later round downloads, is validated; nothing else travels.
    assert down[ROUNDS + 1] == FLOAT_BYTES * coordinator.server.shared.numel() * len(SITES)
    assert sum(down.values()) + sum(up.values()) - down[ROUNDS + 1] == expected.bytes(broadcast=False)
    assert coordinator.ledger()["down"] * FLOAT_BYTES == sum(down.values()) - down[ROUNDS + 1]
