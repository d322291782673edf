"""The domain-generalisation add-ons: their objectives by hand in NumPy, what travels, and what is left at test time."""

from __future__ import annotations

import copy
import itertools
import math
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.signal import correlate2d
from scipy.special import log_softmax, rel_entr
from torch import Tensor, nn
from torchvision.models import densenet121
from toy import CLASSES, SHAPE, clients, differing, gap, network

from fedshift import Federation, UserError
from fedshift.addons import extended
from fedshift.addons.csd import CSD
from fedshift.addons.jigen import JiGen, orders
from fedshift.addons.randconv import RandConv
from fedshift.core.registry import build
from fedshift.core.rng import keyed
from fedshift.nn.features import classifier, inputs_of
from fedshift.tasks import CLASSIFICATION

EXTRA = {
    "csd": {"specific_weight", "specific_bias", "common", "embedding"},
    "jigen": {"jigsaw_weight", "jigsaw_bias"},
    "randconv": set(),
}
SETTINGS = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.02}
named = pytest.mark.parametrize("name", EXTRA)


def federation(names: str = "abc", dropout: float = 0.0, **options: Any) -> Federation:
    data = {name: given for name, given in clients().items() if name in names}
    return Federation(network(dropout=dropout), data, **{"training": SETTINGS, **options})


def flat(features: int = math.prod(SHAPE)) -> nn.Module:
    """A network whose features are the pixels."""
    with keyed("flat"):
        return nn.Sequential(nn.Flatten(), nn.Linear(features, CLASSES)).double()


def batch(n: int = 8, shape: tuple[int, ...] = SHAPE) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(3)
    return torch.from_numpy(rng.normal(size=(n, *shape))), torch.from_numpy(rng.integers(0, CLASSES, n))


def value(addon: Any, model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, np.ndarray]:
    """The objective of a batch, backward pass included, and the class logits."""
    with keyed(7):
        loss, logits = addon.loss(SimpleNamespace(model=model, class_weights=None, task=CLASSIFICATION), x, y)
    loss.backward()
    return loss.item(), logits.detach().numpy()


def cross_entropy(logits: np.ndarray, y: np.ndarray) -> float:
    return float(-log_softmax(logits, 1)[np.arange(len(y)), y].mean())


# ---- all of them


@named
def test_at_test_time_the_network_is_the_plain_one(name: str) -> None:
    """All tensors of the plain network keep their names, and what is beside them has no say."""
    trained = federation(addon=name).run()
    model = extended(trained.addon, network(), trained.seed).eval()
    state, plain = trained.global_state(), network().eval()
    model.load_state_dict(state)
    assert {k.removeprefix("9.") for k in state.keys() - plain.state_dict().keys()} == EXTRA[name]
    plain.load_state_dict({k: state[k] for k in plain.state_dict()})
    logits = model(clients()["b"][0])
    assert logits.shape == (22, CLASSES)
    assert torch.equal(logits, plain(clients()["b"][0]))


@named
def test_any_network_gets_initial_weights_that_depend_on_the_seed_alone(name: str) -> None:
    """It is left as it was, and so is the global generator."""
    addon = build("addon", name)
    wide, plain = (densenet121(num_classes=CLASSES), 3, 33, 33), (nn.Linear(5, CLASSES, bias=False), 5)
    for model, *shape in ((network(dtype=torch.float32), *SHAPE), wide, plain):
        before, generator = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
        here, same, other = (extended(addon, model, seed) for seed in (0, 0, 1))
        assert torch.equal(torch.random.get_rng_state(), generator)
        assert not differing(model.state_dict(), before)
        assert not differing(here.state_dict(), same.state_dict())
        assert bool(differing(here.state_dict(), other.state_dict())) == bool(EXTRA[name])
        assert classifier(here).out_features == CLASSES
        assert set(addon.stays(here)) == {n for n, _ in here.named_parameters() if n.endswith("embedding")}
        x = torch.zeros(2, *shape)
        assert torch.equal(here.eval()(x), model.eval()(x)) or name == "csd", "CSD draws its last layer anew"


@named
def test_moon_sees_the_features_before_the_class_head(name: str) -> None:
    """Without its term MOON is FedAvg, and with it the term acts on the features."""
    free, moon = (federation(addon=name, algorithm=a).run() for a in ("fedavg", {"name": "moon", "mu": 0}))
    assert not differing(free.global_state(), moon.global_state())
    assert differing(free.global_state(), federation(addon=name, algorithm="moon").run().global_state())


def test_every_client_goes_through_a_joint_step_with_its_own_embedding() -> None:
    """Without batch norm a joint step couples nothing: FedTAN is FedAvg, whatever is private."""
    given = clients()
    runs = [
        Federation(network("group norm"), given, addon="csd", algorithm=a, training={**SETTINGS, "lr": 0.2}).run()
        for a in ("fedavg", "fedtan")
    ]
    for name in given:
        assert gap(*(run.client_state(name) for run in runs)) < 1e-12
    embeddings = {float(runs[0].client_state(name)["9.embedding"]) for name in given}
    assert len(embeddings) == len(given)


@named
def test_joint_steps_map_over_clients(name: str) -> None:
    """FedTAN, with batches of unequal size; one client's joint step is an ordinary one."""
    assert all(v.isfinite().all() for v in federation(addon=name, algorithm="fedtan").run().tensors().values())
    spec = {"name": name, **({"bias_whole_image": 1, "grayscale": 0} if name == "jigen" else {})}
    if name != "randconv":  # whose draws have another key in a joint step
        one, two = (federation("b", addon=spec, algorithm=a).run().global_state() for a in ("fedavg", "fedtan"))
        assert gap(one, two) < 1e-12


def test_add_ons_are_found_without_torch() -> None:
    code = "import sys; from fedshift.core.registry import discover; print(*discover('addon'), 'torch' in sys.modules)"
    *found, torch_is = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    assert (set(EXTRA) <= set(found), torch_is) == (True, "False")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "jigen", "grid": 4}, r"jigen\)\.grid.*less than or equal to 3"),
        ({"name": "jigen", "grid": 2, "permutations": 24}, r"2 x 2 tiles have 23 orders beside the original, not 24"),
        ({"name": "csd", "rank": 2}, r"unknown key 'rank'"),
        ({"name": "randconv", "kernel_sizes": [3, 4]}, r"kernel_sizes: 4 is even"),
        ({"name": "randconv", "variant": "mixed"}, r"unknown value 'mixed'; did you mean 'mix'"),
    ],
)
def test_bad_settings_are_errors_of_one_line(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        build("addon", spec)
    assert "\n" not in str(caught.value)


def test_what_an_add_on_cannot_use_is_an_error_of_one_line() -> None:
    x, y = batch()
    for addon, given in ((JiGen(), x[..., :2]), (JiGen(), x.flatten(1)), (RandConv(), x.flatten(1))):
        with pytest.raises(UserError, match="are not images"):
            value(addon, extended(addon, flat(), 0), given, y)
    for name in ("csd", "jigen"):
        with pytest.raises(UserError, match="no linear layer"):
            extended(build("addon", name), nn.Conv2d(2, CLASSES, 6), 0)


# ---- JiGen


def test_jigen_without_puzzles_is_fedavg() -> None:
    spec = {"name": "jigen", "bias_whole_image": 1, "weight": 0, "grayscale": 0}
    plain, puzzled = federation().run(), federation(addon=spec).run()
    assert not differing(plain.global_state(), {k: puzzled.global_state()[k] for k in plain.global_state()})
    assert [r["floats_up"] for r in puzzled.history] == [r["floats_up"] + (6 + 1) * 31 for r in plain.history]


@pytest.mark.parametrize("seed", range(3))
def test_orders_are_as_far_from_each_other_as_a_naive_search_finds_them(seed: int) -> None:
    table, every = orders(3, 30, seed), np.array([*itertools.permutations(range(9))], np.uint8)
    assert list(table[0]) == list(range(9))
    assert (np.sort(table, 1) == np.tile(range(9), (31, 1))).all()
    assert (table[1] != table[0]).all()
    assert not np.array_equal(table, orders(3, 30, seed + 1))
    naive = [every[np.random.default_rng(seed).integers(len(every))]]
    nearest = np.full(len(every), 9)
    while len(naive) < 31:
        nearest = np.minimum(nearest, 9 - (every == naive[-1]).sum(1))
        naive.append(every[nearest.argmax()])
    least, enough = (min(int((a != b).sum()) for a, b in itertools.combinations(t, 2)) for t in (table, naive))
    assert least >= enough > 0
    small, few = orders(2, 23, seed), np.array([*itertools.permutations(range(4))])
    for n in range(1, 24):
        farthest = (few[:, None] != small[None, :n]).sum(2).min(1).max()
        assert (small[n] != small[:n]).sum(1).min() == farthest > 0


def rearranged(image: np.ndarray, order: np.ndarray, grid: int) -> np.ndarray:
    """One image (channels, height, width) whose tile t is the one that was `order[t]`."""
    out, (h, w) = np.empty_like(image), (image.shape[1] // grid, image.shape[2] // grid)
    for t, old in enumerate(order):
        (i, j), (a, b) = divmod(t, grid), divmod(int(old), grid)
        out[:, i * h : i * h + h, j * w : j * w + w] = image[:, a * h : a * h + h, b * w : b * w + w]
    return out


@pytest.mark.parametrize(("grid", "shape"), [(3, (3, 6, 9)), (2, (1, 8, 4)), (3, (2, 7, 8))])
def test_tiles_are_moved_as_by_hand(grid: int, shape: tuple[int, ...]) -> None:
    """Images that cannot be cut are padded with their border and cropped back, so that one in order stays as it is."""
    x, _ = batch(5, shape)
    order = np.stack([np.arange(grid**2), *(np.random.default_rng(n).permutation(grid**2) for n in range(4))])
    got = JiGen(grid=grid, grayscale=0, permutations=5)._shuffled(x, torch.from_numpy(order))
    lacking = [-side % grid for side in shape[1:]]
    before = [n // 2 for n in lacking]
    border = [(0, 0), *((first, n - first) for first, n in zip(before, lacking, strict=True))]
    whole = [np.pad(image, border, mode="edge") for image in x.numpy()]
    moved = np.stack([rearranged(*pair, grid) for pair in zip(whole, order, strict=True)])
    (top, left), (height, width) = before, shape[1:]
    np.testing.assert_array_equal(got.numpy(), moved[..., top : top + height, left : left + width])
    assert torch.equal(got[0], x[0])


@pytest.mark.parametrize("sane", [False, True])
def test_jigen_objective_by_hand(sane: bool) -> None:
    addon = JiGen(bias_whole_image=0.5, weight=0.3, grayscale=0, classify_only_sane=sane, permutation_seed=2)
    (x, y), model = batch(), extended(addon, flat(), 0)
    loss, logits = value(addon, model, x, y)
    with keyed(7):
        stays = torch.rand(len(y)).numpy() < 0.5
        order = np.where(stays, 0, torch.randint(31, (len(y),)).numpy())
    assert 0 < (order == 0).sum() < len(y)
    images = [rearranged(image, orders(3, 30, 2)[k], 3) for image, k in zip(x.numpy(), order, strict=True)]
    features = np.stack(images).reshape(len(y), -1)
    names = ("weight", "bias", "jigsaw_weight", "jigsaw_bias")
    weight, bias, jigsaw, offset = (model.get_parameter(f"1.{k}").detach().numpy() for k in names)
    classes, puzzles = features @ weight.T + bias, features @ jigsaw.T + offset
    kept = order == 0 if sane else np.full(len(y), True)
    expected = cross_entropy(classes[kept], y.numpy()[kept]) + 0.3 * cross_entropy(puzzles, order)
    assert loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(logits, classes, rtol=1e-12)
    one = JiGen(bias_whole_image=0, weight=0, classify_only_sane=True)
    assert value(one, extended(one, flat(), 0), x[:1], y[:1])[0] == 0, "no image in order, and no class loss"


def test_how_many_images_stay_in_order_and_how_many_tiles_turn_grey() -> None:
    addon, n = JiGen(), 20_000
    model = extended(addon, flat(27), 0)
    tiles = torch.arange(9.0).double().view(3, 3) * torch.tensor([1.0, 10, 100]).view(3, 1, 1)
    with inputs_of(model[0]) as seen:  # type: ignore[index]
        value(addon, model, tiles.expand(n, 3, 3, 3), torch.zeros(n, dtype=torch.long))
    image = seen[0].numpy().reshape(n, 3, 9)
    grey = (image[:, 0] == image[:, 1]) & (image[:, 0] > 0)
    assert grey.mean() == pytest.approx(0.1 * 8 / 9, abs=0.005), "all but the black tile show it"
    order = np.where(grey, image[:, 0] / (0.299 + 5.87 + 11.4), image[:, 0]).round(6)
    assert {tuple(row) for row in order} == {tuple(row) for row in orders(3, 30, 0)}
    assert (order == np.arange(9)).all(1).mean() == pytest.approx(0.9 + 0.1 / 31, abs=0.01)
    x = batch()[0]
    assert torch.equal(JiGen(grayscale=1)._shuffled(x, torch.arange(9).expand(8, 9)), x), "two channels have no grey"


# ---- CSD


def test_csd_objective_by_hand() -> None:
    addon = CSD(specific=0.6, orthogonality=0.2)
    (x, y), model = batch(), extended(addon, flat(), 0)
    last: Any = classifier(model)
    nn.init.constant_(last.common, 0.4), nn.init.constant_(last.embedding, -0.7)
    loss, logits = value(addon, model, x, y)
    h = x.numpy().reshape(len(y), -1)
    w0, b0, w1, b1 = (getattr(last, k).detach().numpy() for k in ("weight", "bias", "specific_weight", "specific_bias"))
    c = np.tanh([0.4, -0.7])
    common, specific = h @ w0.T + b0, h @ (c[0] * w0 + c[1] * w1).T + c[0] * b0 + c[1] * b1
    apart = np.mean([(w @ w.T - np.eye(2)) ** 2 for w in np.stack([w0, w1], 1)])
    expected = cross_entropy(common, y.numpy()) + 0.6 * cross_entropy(specific, y.numpy()) + 0.2 * apart
    assert loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(logits, common, rtol=1e-12)
    drawn: Any = extended(CSD(), nn.Linear(4000, 5), 0).requires_grad_(False)
    assert [float(w.std()) for w in (drawn.weight, drawn.specific_weight)] == pytest.approx([0.1, 0.1], rel=0.02)
    assert abs(float(drawn.common) - 0.1) < 1e-3 > abs(float(drawn.embedding))


@pytest.mark.parametrize("bn", ["aggregated", "local"])
def test_csd_embeddings_stay_at_home_and_the_rest_travels(bn: str) -> None:
    plain, trained = federation(bn=bn).run(), federation(bn=bn, addon="csd").run()
    extra = CLASSES * (6 + 1) + 1
    assert trained.server.shared.numel() == plain.server.shared.numel() + extra
    for way in ("floats_down", "floats_up"):
        assert [r[way] for r in trained.history] == [r[way] + extra for r in plain.history]
    layout, own = trained.trainer.layout, {*trained.trainer.own_names}
    assert own - {*plain.trainer.own_names, *layout.counters} == {"9.embedding"}
    states, travels = [trained.client_state(name) for name in "abc"], {*layout.places} - own
    learnt = {abs(float(state["9.embedding"])) for state in states}
    assert (len(learnt), min(learnt) > 1e-3) == (3, True)
    assert {f"9.{k}" for k in EXTRA["csd"] - {"embedding"}} < travels
    for state in states:
        assert not differing({k: state[k] for k in travels}, {k: trained.global_state()[k] for k in travels})


# ---- RandConv


@pytest.mark.parametrize("channels", [1, 3])
def test_random_weights_have_their_moments(channels: int) -> None:
    """Kernels as they are read off impulses, whose sizes are equally frequent."""
    impulses = torch.zeros(channels, channels, 7, 7, dtype=torch.float64)
    impulses[range(channels), range(channels), 3, 3] = 1
    with keyed("impulses"):
        drawn = [RandConv(variant="image", p=0)._convolved(impulses).numpy() for _ in range(1200)]
        unchanged = [RandConv(variant="image", p=0.3)._convolved(impulses) is impulses for _ in range(1000)]
    assert np.mean(unchanged) == pytest.approx(0.3, abs=0.05)
    sizes = [2 * int(np.abs(np.argwhere(w) - 3)[:, 2:].max()) + 1 for w in drawn]
    for k in (1, 3, 5, 7):
        assert sizes.count(k) == pytest.approx(300, abs=60)
        inside, deviation = slice(3 - k // 2, 4 + k // 2), 1 / (k * channels**0.5)
        weights = np.stack([w[..., inside, inside] for w, size in zip(drawn, sizes, strict=True) if size == k])
        assert weights.std() == pytest.approx(deviation, rel=0.1)
        assert abs(weights.mean()) < 5 * deviation / weights.size**0.5


def mixed(x: np.ndarray) -> np.ndarray:
    """The next draw of the default generator: size, weights, share."""
    k = (1, 3, 5, 7)[int(torch.randint(4, ()))]
    weight = torch.randn(2, 2, k, k, dtype=torch.float64).numpy() / np.sqrt(2 * k**2)
    a = float(torch.rand(()))
    out = [[sum(correlate2d(image[c], w[c], "same") for c in (0, 1)) for w in weight] for image in x]
    return a * np.array(out) + (1 - a) * x


@pytest.mark.parametrize("scale", [1, 20, 1e5])
def test_randconv_objective_by_hand(scale: float) -> None:
    """Three draws from the same batch; some means are below 1e-7, and some probabilities are zero."""
    (x, y), model = batch(), flat()
    loss, logits = value(RandConv(weight=3), model, scale * x, y)
    assert all(p.grad.isfinite().all() for p in model.parameters())  # type: ignore[union-attr]
    with inputs_of(model) as seen:
        alone, _ = value(RandConv(weight=0), model, scale * x, y)
    assert len(seen) == 1
    with keyed(7):
        images = [mixed(scale * x.numpy()) for _ in range(3)]
    weight, bias = (p.detach().numpy() for p in model.parameters())
    outputs = [image.reshape(len(y), -1) @ weight.T + bias for image in images]
    p = np.exp([log_softmax(z, 1) for z in outputs])
    assert [p.mean(0).min() < 1e-7, p.min() == 0] == [scale > 1, scale > 20]
    apart = np.mean([rel_entr(q, np.maximum(p.mean(0), 1e-7)).sum(1).mean() for q in p])
    assert loss == pytest.approx(cross_entropy(outputs[0], y.numpy()) + 3 * apart, rel=1e-10)
    assert alone == pytest.approx(cross_entropy(outputs[0], y.numpy()), rel=1e-10)
    np.testing.assert_allclose(logits, outputs[0], rtol=1e-9)
