"""The training loss after averaging: the averaged model, with each client's BN, on its training images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedshift import Federation
from fedshift.algorithms import Training
from fedshift.core.errors import UserError
from fedshift.core.registry import validated

SETTINGS = {"rounds": 4, "batch_size": 8, "lr": 0.1, "select": "last"}


def clients() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Two clients of unlike size whose inputs lie apart."""
    generator = torch.Generator().manual_seed(0)
    data = {}
    for k, (name, n) in enumerate({"a": 40, "b": 23}.items()):
        x = torch.randn(n, 5, generator=generator) * (1 + k) + 3 * k
        data[name] = x, (x[:, 0] > 3 * k).long()
    return data


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def trained(bn: str = "local", algorithm: str = "fedavg", **settings: Any) -> Federation:
    training = SETTINGS | settings
    return Federation(network(), clients(), algorithm=algorithm, bn=bn, training=training).run()


def evaluated(federation: Federation) -> list[dict[str, Any]]:
    return [row for row in federation.history if row["split"] == "averaged"]


@pytest.mark.parametrize(("bn", "algorithm"), [("local", "fedavg"), ("aggregated", "fedavg"), ("local", "local")])
def test_it_is_that_of_each_clients_model_in_evaluation_mode(bn: str, algorithm: str) -> None:
    federation = trained(bn, algorithm, training_loss_every=2)
    rows = evaluated(federation)
    assert [(row["round"], row["site"]) for row in rows] == [(2, "a"), (2, "b"), (4, "a"), (4, "b")]
    for row in rows[2:]:
        model, (x, y) = network(), clients()[row["site"]]
        model.load_state_dict(federation.client_state(row["site"]))
        with torch.no_grad():
            logits = model.eval()(x)
        assert row["loss"] == pytest.approx(float(cross_entropy(logits, y)), rel=1e-5)
        assert row["accuracy"] == pytest.approx(float((logits.argmax(1) == y).double().mean()))
        steps = next(r for r in federation.history if (r["round"], r["site"], r["split"]) == (4, row["site"], "train"))
        assert abs(row["loss"] - steps["loss"]) > 1e-3, "the loss of local steps is another quantity"


def test_a_part_of_the_images_is_spread_evenly_and_always_the_same() -> None:
    federation = trained(training_loss_every=4, training_loss_images=10)
    for row in evaluated(federation):
        model, (x, y) = network(), clients()[row["site"]]
        model.load_state_dict(federation.client_state(row["site"]))
        part = np.linspace(0, len(y) - 1, 10).round().astype(int)
        with torch.no_grad():
            expected = cross_entropy(model.eval()(x[part]), y[part])
        assert row["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_nothing_depends_on_it() -> None:
    plain, watched = trained(), trained(training_loss_every=1)
    for name, tensor in plain.global_state().items():
        assert torch.equal(tensor, watched.global_state()[name])
    assert plain.ledger() == watched.ledger()


def test_ids_of_studies_without_it_stay_and_a_limit_alone_is_refused() -> None:
    assert not {"training_loss_every", "training_loss_images"} & set(Training().identity())
    assert Training(training_loss_every=5).identity()["training_loss_every"] == 5
    with pytest.raises(UserError, match="training_loss_images: limits an evaluation that is not asked for"):
        validated(Training, {"training_loss_images": 5}, "")
