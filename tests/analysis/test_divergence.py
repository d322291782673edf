"""Divergence of features: both measures by hand, test-specific statistics that remove a shift, and a whole study."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from invented import made
from predicting import trained
from torch import nn

from fedshift.analysis import divergence, score, study_results
from fedshift.analysis.divergence import a_distance, mmd
from fedshift.core import registry
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import probabilities
from fedshift.inferences import Inference
from fedshift.io.tables import read_table
from fedshift.jobs.predict import last_inputs
from fedshift.page import summary


def normal(seed: int, n: int, d: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def alone(name: str, n: int) -> np.ndarray:
    """Each image its own patient."""
    return np.array([f"{name}{k}" for k in range(n)])


# ---- MMD


def test_mmd_by_hand() -> None:
    """x = 0, 2 and y = 1, 3: the six distances are 1, 1, 1, 2, 2, 3, with the median 1.5, so k(d) = exp(-d^2 / 4.5).

    Each side has one pair, k(2); between them are k(1) three times and k(3).
    """
    k = {d: np.exp(-(d**2) / 4.5) for d in (1, 2, 3)}
    wanted = k[2] + k[2] - 2 / 4 * (3 * k[1] + k[3])
    assert mmd(np.array([[0.0], [2.0]]), np.array([[1.0], [3.0]])) == pytest.approx(wanted, rel=1e-12)


def test_mmd_is_unbiased() -> None:
    """Over 200 draws of one distribution, the mean is 0 within four standard errors; the biased estimate's is not."""
    values = np.array([mmd(normal(2 * k, 8), normal(2 * k + 1, 12)) for k in range(200)])
    assert abs(values.mean()) < 4 * values.std(ddof=1) / 200**0.5
    assert (values < 0).any()


def test_mmd_of_distributions_far_apart() -> None:
    """Of 780 pairs, 400 are between the sides, so that the median is such a distance: about 1 + 1 - 2 exp(-1/2)."""
    x, y = normal(0, 20), normal(1, 20) + 100
    assert mmd(x, y) == pytest.approx(2 - 2 * np.exp(-0.5), abs=0.05)
    assert mmd(x, y) == pytest.approx(mmd(y, x))
    assert mmd(x, y) == pytest.approx(mmd(7 * x, 7 * y)), "the bandwidth follows the scale"


def test_mmd_without_spread_or_pairs() -> None:
    assert mmd(np.ones((3, 2)), np.ones((4, 2))) == 0
    assert np.isnan(mmd(np.ones((1, 2)), np.ones((4, 2))))


# ---- A-distance


def test_a_distance_of_disjoint_and_of_equal_distributions() -> None:
    """Equal: an error of 1/2 over 800 images has a standard error of 0.018, and the distance four times that."""
    x = normal(0, 400)
    assert a_distance(x, normal(1, 400) + 20, alone("x", 400), alone("y", 400)) == 2
    equal = a_distance(x, normal(1, 400), alone("x", 400), alone("y", 400))
    assert abs(equal) < 4 * 4 * (0.25 / 800) ** 0.5


def test_a_distance_by_hand() -> None:
    """One feature, which is 0 or 1: a share of 3/4 ones against 1/4 is told with an error of 1/4: 2 (1 - 2/4) = 1.

    It counts both sides alike, also where one has more images.
    """
    x = np.tile([1.0, 1, 1, 0], 50)[:, None]
    y = np.tile([1.0, 0, 0, 0], 150)[:, None]
    assert a_distance(x, y, alone("x", len(x)), alone("y", len(y))) == pytest.approx(1, abs=1e-12)


def test_patients_are_not_on_both_sides_of_a_fold() -> None:
    """Twenty patients a side from one distribution, ten images each, that differ by patient alone.

    Images of a known patient are told apart; those of a new one are not.
    """
    centres = normal(0, 40, 100)
    values = np.repeat(centres, 10, axis=0) + 0.01 * normal(1, 400, 100)
    patient = np.repeat([f"p{k}" for k in range(40)], 10)
    x, y = values[:200], values[200:]
    assert a_distance(x, y, alone("x", 200), alone("y", 200)) > 1.9
    assert abs(a_distance(x, y, patient[:200], patient[200:])) < 4 * 4 * (0.25 / 40) ** 0.5
    assert np.isnan(a_distance(x, y, np.repeat("p", 200), patient[200:])), "one patient can be in no two folds"


# ---- features


def network() -> nn.Sequential:
    """Batch norm and a linear layer, so that the features are the normalised images."""
    model = nn.Sequential(nn.BatchNorm1d(3, eps=1e-12), nn.Linear(3, 2)).double()
    return model.eval()


def test_test_specific_statistics_remove_a_shift_of_mean_and_scale() -> None:
    """The network has the statistics of site x; the other site shows a x + b, channel by channel.

    As trained, its features are apart. With its own statistics in one batch, they are those of site x.
    """
    x = normal(0, 60)
    a, b = np.array([0.5, 3.0, 1.0]), np.array([40.0, -50.0, 60.0])
    model = network()
    model[0].running_mean.copy_(torch.from_numpy(x.mean(0)))
    model[0].running_var.copy_(torch.from_numpy(x.var(0)))
    home, far = (TensorSamples(torch.from_numpy(v), torch.zeros(60, dtype=torch.long)) for v in (x, a * x + b))
    drawn = np.random.default_rng(0).permutation(60)
    tsmobn = registry.build("inference", {"name": "tsmobn", "batch_size": 60})
    inside = last_inputs(model, home, Inference(), drawn)
    before = last_inputs(model, far, Inference(), drawn)
    after = last_inputs(model, far, tsmobn, drawn)
    np.testing.assert_allclose(inside, ((x - x.mean(0)) / x.std(0))[drawn], rtol=1e-9)
    np.testing.assert_allclose(after, inside, rtol=1e-9, atol=1e-9)
    half = slice(0, 30), slice(30, 60)
    names = alone("x", 30), alone("y", 30)
    assert a_distance(inside[half[0]], before[half[1]], *names) == 2
    assert abs(a_distance(inside[half[0]], after[half[1]], *names)) < 4 * 4 * (0.25 / 60) ** 0.5
    assert mmd(inside[half[0]], after[half[1]]) == pytest.approx(mmd(inside[half[0]], inside[half[1]]), abs=1e-9)


@pytest.mark.parametrize("name", ["source", "tsmobn", "population", "tent", "t3a"])
def test_features_are_those_behind_the_predictions(name: str) -> None:
    """With a last layer that stays, the logits are its product with the features, in the order that was asked for."""
    model = network()
    samples = TensorSamples(torch.from_numpy(5 * normal(0, 22) + 2), torch.zeros(22, dtype=torch.long))
    inference = registry.build("inference", {"name": name, "batch_size": 8})
    before = {key: value.clone() for key, value in model.state_dict().items()}
    drawn = np.array([7, 21, 0])
    seen = last_inputs(model, samples, inference, drawn)
    assert seen.shape == (3, 3)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not model[1]._forward_pre_hooks
    if name in ("source", "tsmobn", "population"):
        logits = model[1](torch.from_numpy(seen))
        wanted = probabilities(model, samples, inference)[drawn]
        np.testing.assert_allclose(logits.softmax(1).detach(), wanted, rtol=1e-12)


# ---- a study


def test_a_whole_study(tmp_path: Path) -> None:
    inferences = ["source", "tsmobn", {"name": "new_client", "images": 2}]
    changes: dict[str, Any] = {"inferences": inferences, "figures": ["divergence"], "seeds": [0, 1]}
    plan, paths = trained(tmp_path, **changes)
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    out = divergence.write(plan, paths)
    first = out.read_bytes()
    table = read_table(out)
    assert list(table) == divergence.COLUMNS
    assert set(zip(table["role"], table["site"], table["inference"], table["seed"], strict=True)) == {
        (role, site, name, seed)
        for seed in (0, 1)
        for role, site, name in [
            ("internal", "north", "source"),
            ("internal", "south", "source"),
            ("external", "far", "source"),
            ("external", "far", "tsmobn"),
        ]
    }
    assert set(table["features"]) == {6}, "the hidden units"
    assert table[["a_distance", "mmd"]].notna().all(axis=None)
    assert divergence.write(plan, paths).read_bytes() == first
    svg = study_results.draw(study_results.load(plan, paths), "divergence").read_text(encoding="utf-8")
    words = ["".join(e.itertext()) for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]
    assert {"Source", "TsmoBN", "internal sites, each with the others"} <= {w.strip() for w in words}


def test_the_figure_needs_the_table() -> None:
    figure = registry.build("figure", "divergence")
    assert "Nothing to draw" in figure.draw(made())
    assert "needs a trained run" in figure.caption(made())
