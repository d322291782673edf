"""The evaluation of a federation, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from toy import gap

import fedshift
from fedshift import Federation
from fedshift.core import registry
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import client_answer, probabilities
from fedshift.inferences import Site

SIZES = {"a": 24, "b": 16}


def data(shift: float, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng([int(10 * shift), n])
    y = np.arange(n) % 2
    return torch.from_numpy(rng.normal(size=(n, 3)) + y[:, None] + shift), torch.from_numpy(y)


def trained(algorithm: Any = "fedavg", rounds: int = 3, **settings: Any) -> Federation:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).double()
    clients = {name: data(k, n) for k, (name, n) in enumerate(SIZES.items())}
    training = {"lr": 0.1, "batch_size": 8, "rounds": 5}
    return Federation(net, clients, algorithm=algorithm, training=training, **settings).run(rounds)


def by_hand(state: dict[str, torch.Tensor], x: torch.Tensor, batches: int = 0) -> np.ndarray:
    """Linear, BN by running statistics, or without momentum by those of consecutive batches; ReLU, linear, softmax."""
    p = {name: tensor.numpy() for name, tensor in state.items()}
    h = x.numpy() @ p["0.weight"].T + p["0.bias"]
    parts = [h[k : k + batches] for k in range(0, len(h), batches)] if batches else [h]
    moments = [(b.mean(0), b.var(0)) if batches else (p["1.running_mean"], p["1.running_var"]) for b in parts]
    z = np.concatenate([(b - m) / np.sqrt(v + 1e-5) for b, (m, v) in zip(parts, moments, strict=True)])
    logits = np.maximum(p["1.weight"] * z + p["1.bias"], 0) @ p["3.weight"].T + p["3.bias"]
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


@pytest.mark.parametrize("site", [None, "a", "b"])
def test_probabilities_and_scores_are_those_of_numpy(site: str | None) -> None:
    federation = trained(bn="local")
    x, y = data(2.0, 30)
    expected = by_hand(federation.client_state(site) if site else federation.global_state(), x)
    np.testing.assert_allclose(federation.predict(x, site=site), expected, rtol=0, atol=1e-12)
    label = y.numpy()
    brier = ((expected[:, 1] - label) ** 2).mean()
    scores = federation.evaluate(x, y, site=site, metrics=["accuracy", "brier"])
    assert scores == pytest.approx({"accuracy": (expected.argmax(1) == label).mean(), "brier": brier}, abs=1e-12)


def test_an_inference_adapts_to_the_data() -> None:
    federation = trained()
    x, _ = data(3.0, 24)
    how = {"name": "tsmobn", "momentum": 0, "order": None}
    expected = by_hand(federation.global_state(), x, batches=8)
    np.testing.assert_allclose(federation.predict(x, inference=how, batch_size=8), expected, rtol=0, atol=1e-12)


def test_what_an_inference_asks_is_asked_of_the_clients() -> None:
    """EATA's Fisher information is the mean of the clients', by their 24 and 16 samples."""
    federation = trained(bn="local")
    x, _ = data(2.0, 30)
    eata = registry.build(
        "inference", {"name": "eata", "fisher": 50.0, "lr": 0.05, "batch_size": 8, "threshold": 1.0, "similarity": 1.0}
    )
    cpu = torch.device("cpu")
    answers = {
        name: client_answer(federation.model(name), TensorSamples(*data(k, n)), eata, cpu)
        for k, (name, n) in enumerate(SIZES.items())
    }
    mean = 0.6 * answers["a"] + 0.4 * answers["b"]
    samples = TensorSamples(x, torch.zeros(30, dtype=torch.long))
    expected = probabilities(federation.model(), samples, eata, site=Site(answer=mean))
    np.testing.assert_allclose(federation.predict(x, inference=eata), expected, rtol=0, atol=1e-12)
    other = probabilities(federation.model(), samples, eata, site=Site(answer=answers["a"]))
    assert np.abs(other - expected).max() > 1e-9, "the mean is not one client's"


def test_several_networks_predict_together() -> None:
    """APFL's prediction is the mean of its two networks' logits, by their weights."""
    federation = trained({"name": "apfl", "alpha": 0.3})
    x, _ = data(1.0, 12)
    networks = federation.networks("a")
    assert len(networks.states) == 2
    logits = [np.log(by_hand(state, x)) for state in networks.states]  # up to a constant that softmax takes away
    with torch.no_grad():
        own = [module(x).numpy() for module in federation.model("a").networks]  # type: ignore[union-attr]
    for ours, known in zip(own, logits, strict=True):
        np.testing.assert_allclose(ours - ours.mean(1, keepdims=True), known - known.mean(1, keepdims=True), atol=1e-12)
    blended = sum(weight * z for weight, z in zip(networks.weights, own, strict=True))
    expected = np.exp(blended) / np.exp(blended).sum(1, keepdims=True)
    np.testing.assert_allclose(federation.predict(x, site="a"), expected, rtol=0, atol=1e-12)


def test_labels_that_a_network_has_seen_are_not_scored() -> None:
    federation = trained()
    x, y = data(2.0, 20)
    how = {"name": "source", "personalise": {"source": "test_excluded", "batch_size": 12, "lr": 1e-12}}
    rows = np.setdiff1d(np.arange(20), _drawn(12, 20))
    right = by_hand(federation.global_state(), x[rows]).argmax(1) == y.numpy()[rows]
    assert federation.evaluate(x, y, how) == {"accuracy": pytest.approx(right.mean(), abs=1e-12)}
    with pytest.raises(fedshift.UserError, match="source adapts to labelled inputs; call evaluate with their labels"):
        federation.predict(x, inference=how)


def _drawn(count: int, n: int) -> np.ndarray:
    from fedshift.core.rng import stream

    return stream(0, "personalise", "outside").permutation(n)[:count]


def test_a_federation_goes_on_as_if_nobody_had_looked() -> None:
    looked, left = trained(bn="local"), trained(bn="local")
    x, y = data(2.0, 30)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    for how in ("source", "tsmobn", "tent", "eata"):
        looked.evaluate(x, y, inference=how, site="a")
    with torch.no_grad():
        for parameter in looked.model("a").parameters():
            parameter.zero_()
    assert torch.equal(torch.get_rng_state(), before)
    one, two = (federation.run(5).global_state() for federation in (looked, left))
    assert gap(one, two) == 0


def test_a_model_holds_its_own_tensors_alone() -> None:
    """The network of the training is views of one vector, which a saved model must not drag along."""
    model = trained(bn="local").model("a")
    assert not model.training
    for tensor in model.state_dict().values():
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f, x, y: f.evaluate(x, y, site="c"), "site: unknown site 'c'; known: a, b"),
        (lambda f, x, y: f.model("c"), "site: unknown site 'c'; known: a, b"),
        (lambda f, x, y: f.evaluate(x, y, {"name": "source", "client": "c"}), "site: unknown site 'c'; known: a, b"),
        (lambda f, x, y: f.evaluate(x, y.double()), "samples of 'outside': labels of type torch.float64 are not class"),
        (lambda f, x, y: f.evaluate(x, y + 1), "samples of 'outside': label 2, but the network has 2 outputs"),
        (lambda f, x, y: f.evaluate(x[1:], y), "samples of 'outside': 29 inputs, but 30 labels"),
        (lambda f, x, y: f.evaluate(x[:0], y[:0]), "x: holds no samples; give at least one"),
        (lambda f, x, y: f.evaluate(x, y, "tsmob"), "inference: unknown inference 'tsmob'; did you mean 'tsmobn'?"),
        (lambda f, x, y: f.evaluate(x, y, metrics=["au"]), "metric: unknown metric 'au'"),
    ],
)
def test_a_wrong_argument_is_one_line(call: Any, words: str) -> None:
    with pytest.raises(fedshift.UserError) as caught:
        call(trained(rounds=1), *data(2.0, 30))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_clients_that_train_alone_are_named() -> None:
    federation = trained("local")
    x, y = data(2.0, 30)
    with pytest.raises(fedshift.UserError, match="each client trains alone, so sites outside have no network"):
        federation.evaluate(x, y)
    expected = by_hand(federation.client_state("b"), x)
    np.testing.assert_allclose(federation.predict(x, site="b"), expected, rtol=0, atol=1e-12)


def test_the_range_of_a_federation_s_images_is_black_and_white(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr("fedshift.inferences.cotta.augmented", lambda x, draws: seen.append(x) or x)
    x = torch.randn(12, 1, 4, 4, generator=torch.Generator().manual_seed(3))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    federation = Federation(net, {"a": (x, torch.arange(12) % 2)}, training={"batch_size": 4}).run(rounds=1)
    cotta = {"name": "cotta", "augmentations": 1, "lr": 0, "order": None}
    augmented = federation.predict(x, inference={**cotta, "sure": 1}, batch_size=12)
    assert (float(seen[0].min()), float(seen[0].max())) == (0, 1)
    plain = federation.predict(x, inference={**cotta, "sure": 0}, batch_size=12)
    np.testing.assert_allclose(augmented, plain, rtol=0, atol=1e-6)
