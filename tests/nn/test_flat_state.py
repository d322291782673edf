"""The flat state `[affine | weights | statistics]`: what is where, and what travels."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.models import densenet121
from toy import BATCH_NORMS, NORMS, SHAPE, TRAVELS, differing, kinds, network

from fedshift import Federation
from fedshift.nn.batchnorm import batch_norms
from fedshift.nn.flat_state import Layout
from fedshift.nn.policies import POLICIES


def parts(layout: Layout) -> dict[str, slice]:
    return {"affine": layout.affine, "weights": layout.weights, "statistics": layout.statistics}


def length(span: slice) -> int:
    return span.stop - span.start


@pytest.mark.parametrize("norm", NORMS)
def test_each_tensor_lies_in_the_part_of_its_kind(norm: str) -> None:
    model = network(norm)
    layout, expected = Layout(model), kinds(model)
    assert {k: layout.names(span) for k, span in parts(layout).items()} == {k: expected[k] for k in parts(layout)}
    assert layout.counters == expected["counters"]
    assert layout.affine.start == 0
    assert layout.affine.stop == layout.weights.start
    assert layout.weights.stop == layout.statistics.start
    assert layout.statistics.stop == layout.size
    assert layout.trainable == slice(0, sum(p.numel() for p in model.parameters()))


def test_densenet121_by_type_though_no_name_holds_bn() -> None:
    model = densenet121(weights=None, num_classes=2)
    layers = batch_norms(model)
    layout = Layout(model)
    assert len(layers) == 121
    assert not any("bn" in name for name in layers)
    assert {k: length(span) for k, span in parts(layout).items()} == {
        "affine": 83_648,
        "weights": 6_872_258,
        "statistics": 83_648,
    }
    assert len(layout.counters) == 121
    assert {k: layout.names(span) for k, span in parts(layout).items()} == {k: kinds(model)[k] for k in parts(layout)}


def test_a_layer_called_bn_that_is_none_holds_weights() -> None:
    model = nn.Sequential()
    model.add_module("bn", nn.GroupNorm(1, 2))
    model.add_module("norm", nn.BatchNorm1d(2))
    layout = Layout(model)
    assert layout.names(layout.weights) == ["bn.weight", "bn.bias"]
    assert layout.names(layout.affine) == ["norm.weight", "norm.bias"]


def test_batch_norm_without_affine_or_statistics() -> None:
    layout = Layout(nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, track_running_stats=False)))
    assert layout.names(layout.affine) == ["1.weight", "1.bias"]
    assert layout.names(layout.statistics) == ["0.running_mean", "0.running_var"]
    assert layout.counters == ["0.num_batches_tracked"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("norm", NORMS)
def test_what_travels_under_a_policy(policy: str, norm: str) -> None:
    model = network(norm)
    layout, expected = Layout(model), kinds(model)
    shared = layout.shared(POLICIES[policy])
    assert layout.names(shared) == [name for kind in TRAVELS[policy] for name in expected[kind]]
    assert length(shared) == sum(model.state_dict()[k].numel() for kind in TRAVELS[policy] for k in expected[kind])


@pytest.mark.parametrize("channels_last", [False, True])
def test_pack_and_unpack_give_the_tensors_back(channels_last: bool) -> None:
    model = network()
    layout = Layout(model, channels_last)
    state = {k: v for k, v in model.state_dict().items() if k not in layout.counters}
    flat = layout.pack(state)
    assert flat.shape == (sum(v.numel() for v in state.values()),)
    assert flat.dtype == torch.float64
    back = layout.unpack(flat)
    assert not differing(back, state)
    assert all(v.is_contiguous() for v in back.values())
    flat.zero_()
    assert not differing(back, state), "copies, not views"


@pytest.mark.parametrize("channels_last", [False, True])
def test_an_attached_model_computes_the_same_on_views_of_the_vector(channels_last: bool) -> None:
    plain, model = network(), network()
    layout = Layout(model, channels_last)
    flat = layout.pack(model.state_dict())
    grad = torch.zeros_like(flat[layout.trainable])
    counters = torch.tensor([5, 7])
    layout.attach(model, flat, grad, counters)
    x = torch.randn(4, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
        assert model[0].weight.is_contiguous(memory_format=torch.channels_last)

    expected, got = plain(x), model(x)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    expected.square().sum().backward()
    got.square().sum().backward()

    slopes = {k: p.grad for k, p in plain.named_parameters()}
    assert counters.tolist() == [6, 8], "training counts batches in the tensor given"
    for k, place in layout.places.items():
        here, wanted = place.view(flat), plain.state_dict()[k]
        assert model.state_dict()[k].data_ptr() == here.data_ptr(), k
        torch.testing.assert_close(here, wanted, rtol=1e-12, atol=1e-12)
        if k in slopes:
            torch.testing.assert_close(place.view(grad), slopes[k], rtol=1e-11, atol=1e-11)

    flat.zero_()
    assert not any(p.any() for p in model.parameters())
    assert all(not layer.running_var.any() for layer in model.modules() if isinstance(layer, BATCH_NORMS))


def test_integers_that_are_no_counters_are_constants() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    model.register_buffer("table", torch.tensor([3, 1, 2]))
    model.register_buffer("scratch", torch.zeros(3), persistent=False)
    layout = Layout(model)
    assert layout.constants == ["table"]
    assert layout.counters == ["0.num_batches_tracked"]
    assert set(layout.places) == {"0.weight", "0.bias", "0.running_mean", "0.running_var"}


def test_frozen_and_tied_parameters() -> None:
    """A frozen parameter is neither trained nor sent, decay or not; a tied one keeps both its names."""
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 2))
    net[2].weight = net[0].weight
    net[0].bias.requires_grad_(False)
    bias = net[0].bias.detach().clone()
    assert Layout(net).constants == ["0.bias"]
    assert Layout(net).trainable.stop == 9 + 6 + 3 + 8
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    training = {"weight_decay": 0.1, "lr": 0.1}
    state = Federation(net, {"a": (x, y)}, training=training).run(2).global_state()
    assert torch.equal(state["0.bias"], bias)
    assert torch.equal(state["0.weight"], state["2.weight"])
    assert not torch.equal(state["0.weight"], net[0].weight)
    net.load_state_dict(state)
