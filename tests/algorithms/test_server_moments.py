"""FedAvgM, FedAdagrad and FedYogi: printed first steps, and the algorithms that they equal in limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from toy import TRAVELS, clients, gap, network

from fedshift import Federation
from fedshift.algorithms import Mean, Server
from fedshift.core.registry import build

TRAINING = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.05, "select": "last"}
CHANGES = [1e-2, 0.1, 1.0]
FIRST = {
    "fedadam": (0.414822, 0.905028, 0.990050),
    "fedyogi": (0.414214, 0.904988, 0.990050),
    "fedadagrad": (0.904988, 0.990050, 0.999000),
}
"""First steps in units of eta_g for these changes, with the paper's b1, b2, tau and v0, to six digits."""


def state(algorithm: Any, bn: str = "aggregated", rounds: int = 3) -> dict[str, torch.Tensor]:
    federation = Federation(network(), clients(), algorithm=algorithm, bn=bn, training=TRAINING)
    return federation.run(rounds).global_state()


def step(algorithm: Any, changes: list[float]) -> np.ndarray:
    """Return the server's first step from 0, for these mean changes of the clients."""
    n = len(changes)
    server = Server(shared=torch.zeros(n).double(), trainable=slice(0, n), statistics=slice(n, n))
    server.state = algorithm.server_state(server)
    algorithm.update(server, Mean({"shared": torch.tensor(changes).double()}, server.trainable))
    return server.params.numpy()


@pytest.mark.parametrize("name", FIRST)
def test_first_steps_are_those_of_the_formulas_to_six_digits(name: str) -> None:
    steps = step(build("algorithm", {"name": name, "server_lr": 0.5}), CHANGES) / 0.5
    np.testing.assert_allclose(steps, FIRST[name], rtol=0, atol=5.1e-7)


def test_first_steps_where_the_change_is_tau() -> None:
    """v = D^2 stays for Adam and Yogi, so that x moves by eta_g (1 - b1) D / (D + tau); a power of two is exact."""
    tau = 2.0**-10
    for name, expected in (("fedadam", 0.05), ("fedyogi", 0.05), ("fedadagrad", 1 / (2**0.5 + 1))):
        np.testing.assert_allclose(
            step(build("algorithm", {"name": name, "server_lr": 1, "tau": tau}), [tau]), [expected], rtol=1e-14
        )


@pytest.mark.parametrize("bn", TRAVELS)
def test_fedavgm_without_momentum_is_fedavg(bn: str) -> None:
    expected = state("fedavg", bn)
    assert gap(state({"name": "fedavgm", "beta": 0.0}, bn), expected) < 1e-12
    assert gap(state({"name": "fedavgm", "beta": 0.5}, bn), expected) > 1e-3


def test_fedadagrad_from_nothing_first_moves_by_the_sign_of_the_change() -> None:
    """With v0 = 0, x moves by eta_g D / (|D| + tau) in round 1."""
    given = {"name": "fedadagrad", "v0": 0.0, "tau": 0.1, "server_lr": 0.3}
    changes = np.array([-1e-3, 1e-2, -0.1, 1.0])
    expected = 0.3 * changes / (np.abs(changes) + 0.1)
    np.testing.assert_allclose(step(build("algorithm", given), list(changes)), expected, rtol=1e-12)
    assert np.abs(step(build("algorithm", {**given, "v0": 0.01}), list(changes)) - expected).max() > 1e-3


def test_yogis_second_moment_is_adams_where_it_equals_the_squared_change() -> None:
    """Both leave v = D^2 as it is. Elsewhere Yogi moves by (1 - b2) D^2, and Adam by (1 - b2) times the distance."""
    change = torch.tensor([0.2, -0.3]).double()
    for name, away in (("fedyogi", 0.01 * change**2), ("fedadam", 0.01 * change**2 * 2)):
        algorithm = build("algorithm", name)
        for start, expected in ((1, change**2), (3, 3 * change**2 - away)):
            v = start * change**2
            algorithm.second_moment(v, change)
            torch.testing.assert_close(v, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["fedyogi"])
@pytest.mark.parametrize("bn", TRAVELS)
def test_a_second_moment_that_stays_at_zero_is_fedavg(name: str, bn: str) -> None:
    """With b1 = 0, b2 = 1 and eta_g = tau, x moves by tau D / (0 + tau)."""
    given = {"name": name, "beta1": 0.0, "beta2": 1.0, "v0": 0.0, "tau": 0.1, "server_lr": 0.1}
    expected = state("fedavg", bn)
    assert gap(state(given, bn), expected) < 1e-12
    for change in ({"beta1": 0.5}, {"beta2": 0.9}, {"v0": 0.01}):
        assert gap(state({**given, **change}, bn), expected) > 1e-3


@pytest.mark.parametrize("name", ["fedavgm", "fedyogi", "fedadagrad"])
def test_running_statistics_have_no_moments(name: str) -> None:
    """After one round they are FedAvg's to the last bit, and the state of the server is as long as its parameters."""
    trained, plain = (
        Federation(network(), clients(), algorithm=algorithm, bn="aggregated", training=TRAINING).run(1)
        for algorithm in (name, "fedavg")
    )
    statistics = trained.server.statistics
    assert torch.equal(trained.server.shared[statistics], plain.server.shared[statistics])
    assert not torch.equal(trained.server.params, plain.server.params)
    assert {v.shape for v in trained.server.state.values()} == {trained.server.params.shape}
