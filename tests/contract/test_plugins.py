"""Every plug-in must satisfy the contract, whoever adds it: it runs over all that discovery finds.

docs/contract.md and the page of each kind (docs/add-a-*.md) say what authors must know. The checks themselves are in
`fedshift.contract`, so that `fedshift test-plugin` runs them too. Tables in this file hold facts of known plug-ins
only; a plug-in without an entry is checked with its defaults, by general rules.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from rotation import of_day
from torch import nn
from toy import BATCH_NORMS, CLASSES, LARGE, NORMS, SHAPE, TRAVELS, clients, network

from fedshift import Federation, UserError
from fedshift.algorithms import Algorithm, Local
from fedshift.contract import cases
from fedshift.contract.algorithms import LAST, SETTINGS, alike, federation, networks
from fedshift.contract.case import made
from fedshift.contract.models import accepted
from fedshift.contract.transforms import GIVEN
from fedshift.contract.transforms import SHAPES as BATCHES
from fedshift.core.registry import KINDS, build, discover
from fedshift.core.rng import stream
from fedshift.models import initialise
from fedshift.nn.policies import POLICIES
from fedshift.transforms import shape_after

CASES = {
    f"{kind} {name}: {case.title}": case
    for kind, name, cls in of_day(((kind, name, cls) for kind in KINDS for name, cls in discover(kind).items()), 4)
    for case in cases(cls)
}


@pytest.mark.parametrize("name", CASES)
def test_every_plug_in_satisfies_the_contract(name: str) -> None:
    CASES[name].check()


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_is_refused(kind: str) -> None:
    for name in discover(kind):
        with pytest.raises(UserError, match=rf"unknown {kind} '{name}x'; did you mean '{name}'\?"):
            build(kind, f"{name}x")
    with pytest.raises(UserError, match=rf"unknown {kind} 'qqqqqqqq'; known: "):
        build(kind, "qqqqqqqq")


# ---- the engine and hooks


class NoGradient(Algorithm):
    """An algorithm whose pass leaves a gradient of zero."""

    def backward(self, local: Local, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = super().backward(local, x, y)
        local.all_grad.zero_()
        return logits


@pytest.mark.parametrize("norm", [*NORMS, LARGE])
def test_a_hook_that_is_overridden_takes_effect_on_networks_of_any_size(norm: str) -> None:
    model, data = network(norm), {"b": clients()["b"]}  # a mean over one client is exact
    assert (sum(p.numel() for p in model.parameters()) / len([*model.parameters()]) > 100_000) is (norm == LARGE)
    trained = Federation(model, data, algorithm=NoGradient(), training=SETTINGS).run(2)
    before, after = dict(model.named_parameters()), trained.global_state()
    assert all(torch.equal(after[name], parameter) for name, parameter in before.items())
    moved = Federation(model, data, training=SETTINGS).run(2).global_state()
    weights = {name: value for name, value in before.items() if name.endswith("weight")}  # BN takes some biases out
    assert not any(torch.equal(moved[name], weight) for name, weight in weights.items())


ALGORITHMS: dict[str, type[Algorithm]] = discover("algorithm")  # type: ignore[assignment]


@pytest.mark.parametrize("name", [name for name, cls in ALGORITHMS.items() if len(cls.policies) > 1])
def test_without_batch_norm_all_policies_are_one(name: str) -> None:
    """So the contract tries other networks under the first policy alone."""
    cls, training = ALGORITHMS[name], LAST | {"rounds": 2}
    first, *others = [networks(federation(cls, bn, "group norm", training=training)) for bn in cls.policies]
    assert all(alike(first, other) for other in others)


MAY_CHANGE_GRADIENTS = {"gradient", "backward", "correct", "phases"}
"""Hooks that run between a step's backward pass and the optimiser, or choose what a step trains."""
CANNOT = {
    *("canonical", "require", "extend", "shared", "stays", "weights", "server_state", "client_state", "joint"),
    *("offer", "sample", "broadcast", "download", "round_weights", "freezes_statistics", "begin", "loss"),
    *("personal", "report", "update"),
}


def test_algorithms_that_may_change_gradients_have_them_in_one_vector() -> None:
    """A hook that is added later must be put into one of the two sets."""
    hooks = {name for name, hook in vars(Algorithm).items() if callable(hook) and not name.startswith("_")}
    assert hooks == MAY_CHANGE_GRADIENTS | CANNOT
    for name in sorted(hooks):
        own = type("Own", (Algorithm,), {name: lambda self, *words: None, "__module__": "own"})
        assert own().needs_flat_gradient is (name in MAY_CHANGE_GRADIENTS)


# ---- known plug-ins

WITH_BATCH_NORM = {"alexnet_bn", "densenet121", "densenet_small", "digit_cnn", "mlp", "resnet20", "two_layer"}
"""Models that are known to have batch norm by default; others may have none."""
KNOWN_TRANSFORMS = {"flip", "macenko", "normalize", "random_crop", "resize", "rotate", "rotate90", "scale_intensity"}
"""Transforms that take any number of channels and, all but `resize`, keep height and width."""


@pytest.mark.parametrize("name", sorted(WITH_BATCH_NORM))
def test_known_models_have_batch_norm(name: str) -> None:
    cls = discover("model")[name]
    model = initialise(made(cls), accepted(cls), CLASSES, seed=0)  # type: ignore[arg-type]
    assert any(isinstance(layer, BATCH_NORMS) for layer in model.modules())


@pytest.mark.parametrize("shape", BATCHES)
@pytest.mark.parametrize("name", sorted(KNOWN_TRANSFORMS))
def test_known_transforms_take_any_number_of_channels(name: str, shape: tuple[int, ...]) -> None:
    transform = made(discover("transform")[name], **GIVEN.get(name, {}))
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 255
    side = [12, 12] if name == "resize" else list(shape[2:])
    assert list(transform.apply(x, stream(0, "test")).shape) == [*shape[:2], *side]
    assert list(shape_after((transform,), shape[1:])) == [shape[1], *side]


# ---- names


def test_plug_ins_of_all_kinds_are_found() -> None:
    found = {kind: set(discover(kind)) for kind in KINDS}
    assert {"fedavg"} <= found["algorithm"]
    assert {"source", "tsmobn"} <= found["inference"]
    assert {"camelyon17", "own_images"} <= found["dataset"]
    assert {"mlp", "densenet121"} <= found["model"]


def test_toy_policies_are_the_librarys() -> None:
    assert set(TRAVELS) == set(POLICIES)
    assert [POLICIES[bn].affine for bn in TRAVELS] == ["affine" in kinds for kinds in TRAVELS.values()]
    assert [POLICIES[bn].statistics for bn in TRAVELS] == ["statistics" in kinds for kinds in TRAVELS.values()]
    assert len(set(itertools.chain(*TRAVELS.values()))) == 3
    assert SHAPE[0] == next(m for m in network().modules() if isinstance(m, nn.Conv2d)).in_channels
