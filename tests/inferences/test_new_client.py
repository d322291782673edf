"""A client that joins a trained federation: its steps by hand, which images are scored, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from toy import clients, differing, network

from fedshift.core.errors import UserError
from fedshift.core.registry import build
from fedshift.core.rng import stream
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import adapted_probabilities
from fedshift.inferences.new_client import NewClient

NOTHING = TensorSamples(*(tensor[:0] for tensor in clients()["b"]))


def site() -> TensorSamples:
    """The 22 labelled images of a site."""
    return TensorSamples(*clients()["b"])


def drawn(n: int) -> np.ndarray:
    return stream(0, "new client", "b").permutation(22)[:n]


def test_a_step_of_gamma_and_beta_by_hand() -> None:
    """Two features and two classes, W the identity: dF/dgamma = mean of error * hat, dF/dbeta = mean of error.

    Running statistics move by a tenth towards the batch's, with n - 1 in the variance; the linear layer stays.
    """
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(2))
        model[1].bias.zero_()
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 2, (22, 2)), rng.integers(0, 2, 22)
    test = TensorSamples(torch.from_numpy(x), torch.from_numpy(y))
    unscored = NewClient(images=6, steps=1, lr=0.5).adapt_to_labels(model, test, NOTHING, "b")
    index = drawn(6)
    assert list(np.flatnonzero(unscored)) == sorted(index)
    x, y = x[index], y[index]
    hat = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    odds = np.exp(hat)
    error = odds / odds.sum(1, keepdims=True) - np.eye(2)[y]
    precise = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(model[0].weight.detach(), 1 - 0.5 * (error * hat).mean(0), **precise)
    np.testing.assert_allclose(model[0].bias.detach(), -0.5 * error.mean(0), **precise)
    np.testing.assert_allclose(model[0].running_mean, 0.1 * x.mean(0), **precise)
    np.testing.assert_allclose(model[0].running_var, 0.9 + 0.1 * x.var(0, ddof=1), **precise)
    assert torch.equal(model[1].weight, torch.eye(2).double())


@pytest.mark.parametrize("steps", [1, 4])
def test_with_all_parameters_it_is_ordinary_training(steps: int) -> None:
    """Full-batch SGD of torch on the same images, in training mode."""
    tuned, plain = network(), network().train()
    NewClient(images=9, steps=steps, lr=0.05, train="all").adapt_to_labels(tuned, site(), NOTHING, "b")
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.05)
    x, y = (tensor[drawn(9)] for tensor in clients()["b"])
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(plain(x), y).backward()
        optimiser.step()
    assert not differing(tuned.state_dict(), plain.state_dict())


def test_only_batch_norm_changes_by_default() -> None:
    model = network()
    NewClient(images=9).adapt_to_labels(model, site(), NOTHING, "b")
    changed = {name.split(".")[0] for name in differing(model.state_dict(), network().state_dict())}
    assert changed == {"1", "4"}, "the two batch-norm layers"


def test_fewer_labelled_images_are_part_of_more_and_all_are_scored_on_the_same() -> None:
    few, many = (NewClient(images=k, held_back=12).adapt_to_labels(network(), site(), NOTHING, "b") for k in (4, 12))
    assert few.sum() == 12
    assert np.array_equal(few, many)
    assert set(drawn(4)) <= set(np.flatnonzero(few))
    alone = NewClient(images=4).adapt_to_labels(network(), site(), NOTHING, "b")
    assert alone.sum() == 4
    assert not (alone & ~many).any()


def test_the_trained_network_stays_and_other_images_are_predicted_by_the_tuned_one() -> None:
    model = network()
    inference = NewClient(images=9, held_back=12)
    p, unscored = adapted_probabilities(model, site(), NOTHING, inference, "b")
    assert not differing(model.state_dict(), network().state_dict())
    tuned = network()
    inference.adapt_to_labels(tuned, site(), NOTHING, "b")
    with torch.no_grad():
        wanted = tuned.eval()(clients()["b"][0]).softmax(1).numpy()
    np.testing.assert_allclose(p, wanted, rtol=1e-12)
    assert unscored.sum() == 12


def test_without_batch_norm_nothing_is_tuned_unless_all_is() -> None:
    model = network("no norm")
    NewClient().adapt_to_labels(model, site(), NOTHING, "b")
    assert not differing(model.state_dict(), network("no norm").state_dict())
    NewClient(train="all").adapt_to_labels(model, site(), NOTHING, "b")
    assert differing(model.state_dict(), network("no norm").state_dict())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"images": 8, "held_back": 4}, "held_back: is 4, and 8 labelled images must not be scored"),
        ({"personalise": {"steps": 2}}, "personalise: and new_client both take steps"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build("inference", {"name": "new_client", **settings})


def test_a_site_with_too_few_images_is_refused() -> None:
    with pytest.raises(UserError, match="site 'b': has 22 test images, and 23 labelled ones are asked for"):
        NewClient(images=23).adapt_to_labels(network(), site(), NOTHING, "b")
    with pytest.raises(UserError, match="all 22 test images would be adapted to"):
        adapted_probabilities(network(), site(), NOTHING, NewClient(images=22), "b")


def test_it_says_that_it_uses_labels() -> None:
    inference = NewClient(images=8, steps=1)
    assert inference.uses_labels
    assert inference.labels_used == "8 test images, steps 1, lr 0.01, seed 0"
    assert inference.caveat("it").startswith("it first takes 1 gradient step on 8 labelled images of the site")
