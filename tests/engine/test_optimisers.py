"""Optimisers of local steps: by hand in NumPy, with corrections, clipping and rounds, and where they are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from toy import LARGE, NORMS, Noted, clients, gap, network

from fedshift import Federation, Training, UserError
from fedshift.algorithms import Algorithm
from fedshift.core.registry import discover, validated

SETTINGS: dict[str, Any] = {"rounds": 3, "batch_size": 4, "lr": 0.02, "select": "last", "optimiser": "adam"}
Vector = NDArray[np.float64]


class Linear(nn.Module):
    """Two logits [0, w x + b], with [w, b] = [0.3, -0.2] at first."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.theta[0] * x + self.theta[1]
        return torch.cat([torch.zeros_like(z), z], 1)


def samples(n: int = 11) -> Noted:
    rng = np.random.default_rng(4)
    y = rng.integers(0, 2, n)
    return Noted(torch.from_numpy(rng.normal(size=(n, 1)) + y[:, None]), torch.from_numpy(y))


def gradient(theta: Vector, x: Vector, y: Vector) -> Vector:
    away = (1 / (1 + np.exp(-(theta[0] * x + theta[1]))) - y) / len(y)
    return np.array([away @ x, away.sum()])


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_steps_are_those_of_the_papers_with_moments_of_the_corrected_gradient(optimiser: str, mu: float) -> None:
    """Adam's algorithm 1 and AdamW's algorithm 2, anew in each of three rounds; FedProx's term enters the moments."""
    data, decay, lr, b1, b2 = samples(), 0.1, 0.02, 0.8, 0.95
    training = {**SETTINGS, "optimiser": optimiser, "beta1": b1, "beta2": b2, "weight_decay": decay}
    trained = Federation(
        Linear(), {"a": data}, algorithm={"name": "fedprox", "mu": mu}, training={**training, "lr": lr}
    ).run()
    x, y, theta = data.x.numpy()[:, 0], data.y.numpy(), np.array([0.3, -0.2])
    taken = iter(data.taken)
    for _ in range(3):
        start, m, v = theta, np.zeros(2), np.zeros(2)
        for step in (1, 2, 3):
            batch = next(taken).numpy()
            g = gradient(theta, x[batch], y[batch]) + mu * (theta - start)
            if optimiser == "adam":
                g = g + decay * theta
            else:
                theta = theta * (1 - lr * decay)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            theta = theta - lr * (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + 1e-8)
    np.testing.assert_allclose(trained.global_state()["theta"], theta, rtol=1e-12)
    plain = Federation(Linear(), {"a": data}, training=training | {"optimiser": "sgd"}).run()
    assert abs(float(plain.global_state()["theta"][0]) - theta[0]) > 1e-3


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("norm", [*NORMS, LARGE])
def test_rounds_are_those_of_torchs_adam(norm: str, clip: float | None) -> None:
    """On networks whose gradients lie in one vector and on others; a gradient is clipped before the moments."""
    data = Noted(*clients()["b"])
    model = network(norm)
    trained = Federation(model, {"b": data}, training={**SETTINGS, "weight_decay": 0.1, "clip_norm": clip})
    assert trained.trainer.flat_gradient is (norm != LARGE or clip is not None)
    trained.run(2)
    taken = iter(data.taken)
    for _ in range(2):
        optimiser = torch.optim.Adam(model.parameters(), lr=SETTINGS["lr"], weight_decay=0.1)
        for _ in range(6):
            index = next(taken)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(data.x[index]), data.y[index]).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimiser.step()
    assert gap(trained.global_state(), dict(model.state_dict())) < 1e-9


@pytest.mark.parametrize("name", discover("algorithm"))
def test_every_algorithm_takes_adam_or_says_in_one_line_why_not(name: str) -> None:
    """Those that read gradients off the path of local steps, or share a step, need SGD."""
    cls: Any = discover("algorithm")[name]
    try:
        trained = Federation(network(), clients(), algorithm=name, training={**SETTINGS, "rounds": 100}).run(2)
    except UserError as refused:
        assert str(refused).startswith("training.optimiser: 'adam' has no meaning with ")
        assert str(refused).count("\n") == 0
        assert cls.needs_sgd in str(refused)
    else:
        assert not cls.needs_sgd
        assert all(np.isfinite(row["loss"]) for row in trained.history)


def test_the_algorithms_whose_mathematics_needs_sgd_refuse_others() -> None:
    """Named here, so that none of them is forgotten."""
    for name in ("fedtan", "fedtan2", "fedavg_alg2", "fednova", "feddc", "scaffold", "qffl", "vrex"):
        with pytest.raises(UserError, match=r"training\.optimiser: 'adamw' has no meaning"):
            Federation(network(), clients(), algorithm=name, training={"optimiser": "adamw"})
    spec = {"name": "scaffold", "option": 1}
    first = Federation(network(), clients(), algorithm=spec, training=SETTINGS).run(2)
    assert all(v.isfinite().all() for v in first.tensors().values())


def test_momentum_is_no_setting_of_adam() -> None:
    with pytest.raises(UserError, match=r"training\.momentum: is a setting of sgd, and not of adam; set it to 0"):
        validated(Training, {"optimiser": "adam", "momentum": 0.9}, "training")


def test_studies_with_sgd_keep_their_ids() -> None:
    plain = Training().identity()
    assert not {"optimiser", "beta1", "beta2"} & set(plain)
    assert Training(beta1=0.5).identity() == plain, "it has no effect"
    adam = Training(optimiser="adam").identity()
    assert adam == plain | {"optimiser": "adam", "beta1": 0.9, "beta2": 0.999}


def test_no_optimiser_needs_gradients_in_one_vector() -> None:
    assert not Algorithm().needs_flat_gradient
