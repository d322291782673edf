"""Channels that never change, as ImageNet's weights have them: their running variance is 0, and none divides by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toy import clients, network

from fedshift import Federation
from fedshift.contract import inferences
from fedshift.core.registry import discover
from fedshift.engine.prediction import site_predictor
from fedshift.inferences.tsmobn import TsmoBN

SHIFT = 0.75


def dead(*_: Any, **__: Any) -> nn.Module:
    """The toy network, whose second norm has a first channel of zeros with running variance 0, and beta SHIFT."""
    model = network()
    with torch.no_grad():
        for tensor in (*model[3].parameters(), model[4].running_mean, model[4].running_var):  # type: ignore[index]
            tensor[0] = 0
        model[4].bias[0] = SHIFT  # type: ignore[index]
    return model


@pytest.mark.parametrize("name", sorted(discover("inference")))
def test_every_inference_predicts_finite_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inferences, "network", dead)
    cls: Any = discover("inference")[name]
    inferences.predicts_one(cls, "batch norm")
    inferences.answers_logits(cls)


def test_tsmobn_gives_a_dead_channel_its_beta() -> None:
    """(0 - 0) / sqrt(0 + eps) gamma + beta at every pixel of each batch, which ReLU and the mean keep."""
    model = dead()
    last: Any = model[9]  # type: ignore[index]
    with torch.no_grad():
        last.weight.zero_()[0, 0] = 1  # the first logit is the first feature
        last.bias.zero_()
    batches = clients()["a"][0].split(5)
    with site_predictor(model, TsmoBN(), lambda: iter(batches)) as predict:
        for x in batches:
            torch.testing.assert_close(predict(x)[:, 0], torch.full((len(x),), SHIFT).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", sorted({"fedavg", "fedap", "fedbn", "fedtan", "scaffold"}))
@pytest.mark.parametrize("variance", ["averaged", "pooled"])
def test_training_goes_on_with_dead_channels(algorithm: str, variance: str) -> None:
    training = {"rounds": 2, "batch_size": 4, "select": "last", "running_variance": variance, "lr": 0.05}
    trained = Federation(dead(), clients(), algorithm=algorithm, training=training).run()
    for client in trained.clients:
        assert all(v.isfinite().all() for v in trained.client_state(client.name).values())
