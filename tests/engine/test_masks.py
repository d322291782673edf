"""Rounds on a U-Net against loops written by hand in plain torch, float64, and what segmentation asks of the engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from monai.losses import DiceCELoss
from rotation import of_day
from squares import SIZES, clients, network
from torch import Tensor, nn
from toy import Noted, gap

from fedshift import Federation, Training, UserError
from fedshift.contract.fixtures import outlining_network
from fedshift.core import registry
from fedshift.engine.prediction import probabilities
from fedshift.tasks import Segmentation, segmentation

SETTINGS = Training(rounds=2, local_epochs=1, batch_size=3, lr=0.05, weights="size")
State = dict[str, Tensor]
SIZES_OF_BATCHES = {"source": [5, 5, 2], "iabn": [5, 5, 2], "tsmobn": [9, 3]}


@pytest.fixture(scope="module")
def plain_masks() -> Federation:
    """FedAvg after its rounds, which tests only look at."""
    return Federation(network(), clients(), training=SETTINGS, task="segmentation").run()


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """MONAI's own sum of Dice and cross-entropy, in one call."""
    total: Tensor = DiceCELoss(softmax=True, to_onehot_y=True)(model(x), y[:, None])
    return total


def trained(
    algorithm: Any, training: Training = SETTINGS, **options: Any
) -> tuple[Federation, dict[str, Iterator[Tensor]]]:
    """A federation after its rounds, and the batches that each client took."""
    noted = {name: Noted(*samples) for name, samples in clients().items()}
    options = {"task": "segmentation", "training": training, "algorithm": algorithm, **options}
    federation = Federation(network(), noted, **options).run()
    return federation, {name: iter(list(samples.taken)) for name, samples in noted.items()}


def steps(model: nn.Module, batches: Iterator[Tensor], name: str, change: Callable[[], None] | None = None) -> None:
    """One round of SGD of a client, with a change of the gradients before each step."""
    x, y = clients()[name]
    model.train()
    for _ in range(len(y) // SETTINGS.batch_size):
        index = next(batches)
        model.zero_grad()
        loss(model, x[index], y[index]).backward()
        if change:
            change()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= SETTINGS.lr * parameter.grad


def mean(states: Mapping[str, State]) -> State:
    total = sum(SIZES.values())
    names = next(iter(states.values()))
    return {k: sum(SIZES[name] / total * state[k] for name, state in states.items()) for k in names}


def floats(state: Mapping[str, Tensor]) -> State:
    return {k: v.clone() for k, v in state.items() if v.is_floating_point()}


def test_fedavg() -> None:
    found, batches = trained("fedavg")
    model = network()
    for _ in range(SETTINGS.rounds):
        states = {}
        for name in SIZES:
            net = copy.deepcopy(model)
            steps(net, batches[name], name)
            states[name] = floats(net.state_dict())
        model.load_state_dict(mean(states), strict=False)
    assert gap(floats(found.global_state()), floats(model.state_dict())) < 1e-6


def test_fedbn_keeps_all_batch_norm_at_home() -> None:
    found, batches = trained("fedavg", bn="local")
    nets = {name: network() for name in SIZES}
    norms = [m for m in nets["a"].modules() if isinstance(m, nn.BatchNorm2d)]
    kept = {f"{path}.{leaf}" for path, m in nets["a"].named_modules() if m in norms for leaf in m.state_dict()}
    assert len(norms) == 18
    assert set(found.own_names) == kept, "all tensors of batch norm, and none else"
    for _ in range(SETTINGS.rounds):
        for name, net in nets.items():
            steps(net, batches[name], name)
        average = mean({name: floats(net.state_dict()) for name, net in nets.items()})
        for net in nets.values():
            net.load_state_dict({k: v for k, v in average.items() if k not in kept}, strict=False)
    for name, net in nets.items():
        assert gap(floats(found.client_state(name)), floats(net.state_dict())) < 1e-6


def test_scaffold() -> None:
    found, batches = trained("scaffold")
    model = network()
    server = [torch.zeros_like(p) for p in model.parameters()]
    own = {name: copy.deepcopy(server) for name in SIZES}
    total = sum(SIZES.values())
    for _ in range(SETTINGS.rounds):
        states, changes = {}, {}
        for name in SIZES:
            net = copy.deepcopy(model)
            start = [p.detach().clone() for p in net.parameters()]

            def correct(net: nn.Module = net, name: str = name) -> None:
                for p, c, c_i in zip(net.parameters(), server, own[name], strict=True):
                    p.grad = p.grad - c_i + c

            steps(net, batches[name], name, correct)
            path = (SIZES[name] // SETTINGS.batch_size) * SETTINGS.lr
            new = [
                c_i - c + (x - p.detach()) / path
                for c_i, c, x, p in zip(own[name], server, start, net.parameters(), strict=True)
            ]
            changes[name] = [after - before for after, before in zip(new, own[name], strict=True)]
            own[name] = new
            states[name] = floats(net.state_dict())
        model.load_state_dict(mean(states), strict=False)
        for k, c in enumerate(server):
            c += sum(SIZES[name] / total * changes[name][k] for name in SIZES)
    assert gap(floats(found.global_state()), floats(model.state_dict())) < 1e-6


def test_ditto() -> None:
    lam = 0.3
    found, batches = trained({"name": "ditto", "lam": lam})
    model = network()
    personal = {name: network() for name in SIZES}
    for _ in range(SETTINGS.rounds):
        states = {}
        for name in SIZES:
            net = copy.deepcopy(model)
            received = [p.detach().clone() for p in net.parameters()]
            taken = [next(batches[name]) for _ in range(SIZES[name] // SETTINGS.batch_size)]

            def pull(own: nn.Module = personal[name], received: list[Tensor] = received) -> None:
                for p, x in zip(own.parameters(), received, strict=True):
                    p.grad = p.grad + lam * (p.detach() - x)

            steps(personal[name], iter(taken), name, pull)
            steps(net, iter(taken), name)
            states[name] = floats(net.state_dict())
        model.load_state_dict(mean(states), strict=False)
    assert gap(floats(found.global_state()), floats(model.state_dict())) < 1e-6
    for name, net in personal.items():
        assert gap(floats(found.client_state(name)), floats(net.state_dict())) < 1e-6


def test_fedrep_trains_the_last_convolution_first_and_keeps_it_at_home() -> None:
    found, batches = trained({"name": "fedrep", "head_epochs": 1})
    nets = {name: network() for name in SIZES}
    head = {"final_conv.weight", "final_conv.bias"}
    assert {name for name in found.own_names if "num_batches" not in name} == head
    for _ in range(SETTINGS.rounds):
        for name, net in nets.items():
            for trains_head in (True, False):

                def freeze(net: nn.Module = net, trains_head: bool = trains_head) -> None:
                    for key, p in net.named_parameters():
                        if (key in head) is not trains_head:
                            p.grad = None

                steps(net, batches[name], name, freeze)
        average = mean({name: floats(net.state_dict()) for name, net in nets.items()})
        for net in nets.values():
            net.load_state_dict({k: v for k, v in average.items() if k not in head}, strict=False)
    for name, net in nets.items():
        assert gap(floats(found.client_state(name)), floats(net.state_dict())) < 1e-6


@pytest.mark.parametrize(
    ("build", "sizes"),
    [(network, {"a": 6, "b": 6}), (outlining_network, {"a": 3, "b": 9})],
    ids=["U-Net, equal batches", "unequal batches"],
)
@pytest.mark.parametrize("kind", ["cross_entropy", "dice_ce"])
def test_fedtans_joint_step_is_that_of_the_union(
    kind: str, build: Callable[[], nn.Module], sizes: dict[str, int]
) -> None:
    """One step of all images: gradients and statistics are those of one batch of all clients' images."""
    training = Training(rounds=1, local_steps=1, batch_size=12, lr=0.05, weights="size")
    channels = next(build().parameters()).shape[1]
    samples = {name: (x.expand(-1, channels, -1, -1), y) for name, (x, y) in clients(sizes).items()}
    options = {"task": {"name": "segmentation", "loss": kind}, "training": training}
    found = Federation(build(), samples, algorithm="fedtan", **options).run()
    x, y = (torch.cat(parts) for parts in zip(*samples.values(), strict=True))
    union = Federation(build(), {"union": (x, y)}, **options).run()
    parameters = [name for name, _ in build().named_parameters()]
    one, two = ({name: f.global_state()[name] for name in parameters} for f in (found, union))
    assert gap(one, two) < 1e-6


# ---- what the engine keeps and says


def test_the_history_has_the_mean_over_images_of_cross_entropy_and_right_pixels() -> None:
    samples = clients()
    settings = SETTINGS.model_copy(update={"rounds": 1})
    federation = Federation(network(), samples, validation=samples, training=settings, task="segmentation").run()
    model = network()
    model.load_state_dict(federation.global_state())
    for row in (row for row in federation.history if row["split"] == "val"):
        x, y = samples[row["site"]]
        with torch.no_grad():
            logits = model.eval()(x)
        losses = nn.functional.cross_entropy(logits, y, reduction="none")
        assert row["loss"] == pytest.approx(float(losses.mean()), rel=1e-9)
        assert row["accuracy"] == pytest.approx(float((logits.argmax(1) == y).double().mean()), rel=1e-9)


def test_the_round_is_selected_by_dice() -> None:
    samples = clients()
    settings = SETTINGS.model_copy(update={"select_by": "dice", "select": "best_validation"})
    federation = Federation(network(), samples, validation=samples, training=settings, task="segmentation").run()
    scores = [row["score"] for row in federation.history if row["split"] == "val"]
    assert all(0 <= score <= 1 for score in scores)


@pytest.fixture(scope="module")
def larger_clients() -> Federation:
    """FedAvg after its rounds, of clients with two batches of six images for an inference that asks them."""
    return Federation(network(), clients({"a": 12, "b": 12}), training=SETTINGS, task="segmentation").run()


@pytest.mark.parametrize("name", of_day(sorted(registry.discover("inference")), 4))
def test_every_inference_predicts_pixels_or_says_that_it_cannot(name: str, larger_clients: Federation) -> None:
    cls, federation = registry.get("inference", name), larger_clients
    x, y = clients({"c": 12})["c"]
    spec = {"name": name, "batch_size": 6}
    if "segmentation" not in cls.tasks:
        with pytest.raises(UserError, match="is for classification"):
            federation.evaluate(x, y, spec, metrics=["dice"])
        return
    if name == "cotta":
        with pytest.raises(UserError, match="sure: 0"):
            federation.evaluate(x, y, spec, metrics=["dice"])
        spec["sure"] = 0
    if name == "new_client":
        spec |= {"images": 4}
    found = federation.evaluate(x, y, spec, metrics=["dice", "missed"])
    assert 0 <= found["dice"] <= 1
    if not cls().uses_labels:
        p = federation.predict(x, inference=spec)
        assert p.shape == (12, 2, 16, 16)
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-6)


def test_only_where_batches_have_no_effect_are_they_cut(
    monkeypatch: pytest.MonkeyPatch, plain_masks: Federation
) -> None:
    """Five images of 16x16 pixels at once, in validation too; TsmoBN keeps its batches."""
    whole = plain_masks
    samples = Noted(*clients({"c": 12})["c"])
    expected = {name: whole.predict(samples.x, inference={"name": name, "batch_size": 9}) for name in SIZES_OF_BATCHES}
    selected = SETTINGS.model_copy(update={"select_by": "dice"})
    monkeypatch.setattr(segmentation, "PIXELS", 5 * 16 * 16 + 10)
    for name, sizes in SIZES_OF_BATCHES.items():
        samples.taken.clear()
        inference = registry.build("inference", {"name": name, "batch_size": 9})
        found = probabilities(whole.model(), samples, inference, task=Segmentation())
        np.testing.assert_allclose(found, expected[name], rtol=1e-9)
        assert [len(index) for index in samples.taken] == sizes
    samples.taken.clear()
    options = {"validation": {"a": samples}, "training": selected, "task": "segmentation"}
    Federation(network(), {"a": clients()["a"]}, **options).run(1)
    assert [len(index) for index in samples.taken] == [5, 5, 2]


@pytest.mark.parametrize("name", of_day(sorted(registry.discover("addon")), 4))
def test_every_addon_trains_on_masks_or_says_that_it_cannot(name: str) -> None:
    def run() -> Federation:
        return Federation(network(), clients(), training=SETTINGS, task="segmentation", addon=name).run()

    if "segmentation" not in registry.get("addon", name).tasks:
        with pytest.raises(UserError, match="has no linear layer"):
            run()
        return
    before = network().state_dict()
    after = run().model("a").state_dict()
    assert all(tensor.isfinite().all() for tensor in after.values())
    assert any(not torch.equal(after[key], before[key]) for key in before)


def test_tent_takes_its_steps_on_the_mean_entropy_of_all_pixels(plain_masks: Federation) -> None:
    x, _ = clients({"c": 4})["c"]
    found = plain_masks.predict(
        x, inference={"name": "tent", "lr": 0.01, "optimiser": "sgd", "beta": 0, "answer": "after", "batch_size": 4}
    )
    model = copy.deepcopy(plain_masks.model())
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
    order = registry.build("inference", "tent").image_order(4)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    p = model(x[order]).softmax(1)
    entropy = -(p * p.log()).sum(1).mean()
    parameters = [q for m in norms for q in (m.weight, m.bias)]
    gradients = torch.autograd.grad(entropy, parameters)
    with torch.no_grad():
        for q, g in zip(parameters, gradients, strict=True):
            q -= 0.01 * g
        expected = np.empty(found.shape)
        expected[order] = model(x[order]).softmax(1).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_metrics_of_another_task_are_refused(plain_masks: Federation) -> None:
    x, y = clients({"c": 4})["c"]
    with pytest.raises(UserError, match="metric auc is for classification, and this is segmentation"):
        plain_masks.evaluate(x, y, metrics=["auc"])
