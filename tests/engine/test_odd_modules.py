"""Networks that others wrote: buffers that are replaced, masks that are infinite, batch norm that does more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from fedshift import Federation
from fedshift.core.errors import UserError
from fedshift.inferences.population import Population
from fedshift.inferences.tsmobn import TsmoBN

FEATURES = 3


class Tracking(nn.Module):
    """A running mean of its inputs, kept in place or replaced; it takes no part in the output but through `run`."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("run", torch.zeros(FEATURES))
        self.linear = nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean = x.mean(0).detach()
            if self.in_place:
                self.run.mul_(0.5).add_(0.5 * mean)
            else:
                self.run = 0.5 * self.run + 0.5 * mean
        return self.linear(x - self.run)


def samples(centre: float, n: int = 8) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(1)) + centre
    return x, torch.arange(n) % 2


def federation(model: nn.Module, sites: dict[str, Any], **given: Any) -> Federation:
    algorithm, bn = given.pop("algorithm", "fedavg"), given.pop("bn", "aggregated")
    torch.manual_seed(0)
    training = {"rounds": 2, "batch_size": 4, "lr": 0.01, **given}
    return Federation(model, sites, validation=sites, algorithm=algorithm, bn=bn, training=training)


@pytest.mark.parametrize("bn", ["aggregated", "local"])
def test_a_buffer_that_is_replaced_is_as_good_as_one_that_is_changed(bn: str) -> None:
    """Two clients around 0 and around 100: each has its own running mean, and neither sees the other's."""
    sites = {"near": samples(0), "far": samples(100)}
    found = []
    for in_place in (True, False):
        torch.manual_seed(7)
        found.append(federation(Tracking(in_place), sites, bn=bn).run(2))
    for name in sites:
        one, two = (fed.client_state(name) for fed in found)
        assert all(torch.equal(one[k], two[k]) for k in one)
    if bn == "local":
        near, far = (found[1].client_state(name)["run"] for name in sites)
        assert float(near.abs().max()) < 2 < 50 < float(far.min())
    losses = [[row["loss"] for row in fed.history] for fed in found]
    assert losses[0] == losses[1]


def test_clients_in_lockstep_have_no_buffer_each_to_replace() -> None:
    model = nn.Sequential(nn.BatchNorm1d(FEATURES), Tracking(in_place=False))
    with pytest.raises(UserError, match="Tracking: its buffer run"):
        federation(model, {"a": samples(0), "b": samples(1)}, algorithm="fedtan").run(1)


class Masked(nn.Module):
    """Attention to the first feature alone, by a mask of minus infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf, -torch.inf]))
        self.norm, self.linear = nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x) * torch.softmax(self.mask, 0))


def test_an_infinite_mask_is_no_diverged_weight() -> None:
    trained = federation(Masked(), {"a": samples(0), "b": samples(1)}).run(2)
    assert torch.equal(trained.global_state()["mask"], torch.tensor([0.0, -torch.inf, -torch.inf]))
    assert all(torch.isfinite(p).all() for k, p in trained.global_state().items() if k != "mask")


def test_a_running_statistic_that_is_not_finite_is_noticed_beside_a_mask() -> None:
    """A variance of 1e50 is none in float32, though the loss of what it normalised is."""
    x, y = samples(0)
    with pytest.raises(UserError, match="not finite after the last step"):
        federation(Masked(), {"a": (1e25 * x, y)}).run(1)


class NormAndRelu(nn.BatchNorm1d):
    """Batch norm and ReLU in one module, as libraries fuse them."""

    def forward(self, x: Tensor) -> Tensor:
        return relu(super().forward(x))


@pytest.mark.parametrize("inference", [TsmoBN(), Population()])
def test_batch_norm_that_does_more_is_not_quietly_replaced(inference: Any) -> None:
    model, x = nn.Sequential(NormAndRelu(FEATURES), nn.Linear(FEATURES, 2)).eval(), samples(0)[0]
    with (
        pytest.raises(UserError, match="layer 0: NormAndRelu does more than batch norm"),
        inference.on_site(model, lambda: iter([x])),
    ):
        model(x)
    assert "forward" not in vars(model[0])


def test_clients_that_have_not_trained_yet_do_not_count_outside() -> None:
    """One of four takes part: an external site gets its batch norm, not a quarter of it."""
    sites = {name: samples(100) for name in "abcd"}
    model = nn.Sequential(nn.BatchNorm1d(FEATURES, momentum=None), nn.Linear(FEATURES, 2))
    trained = federation(model, sites, bn="local", participation=0.25).run(1)
    (there,) = {row["site"] for row in trained.history if row["split"] == "train"}
    outside = trained.global_state()["0.running_mean"]
    assert torch.equal(outside, trained.client_state(there)["0.running_mean"])
    assert float(outside.min()) > 50


def test_without_a_global_network_there_is_none_to_watch() -> None:
    sites = {"a": samples(0), "b": samples(1)}
    model = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 2))
    training = {"rounds": 1, "batch_size": 4, "lr": 0.01, "watch_every": 1}
    for algorithm, watched in (("fedavg", {"far"}), ("local", set[str]())):
        trained = Federation(model, sites, algorithm=algorithm, training=training, watched={"far": samples(9)}).run(1)
        assert {row["site"] for row in trained.history if row["split"] == "test"} == watched
