"""Metrics against numbers worked out by hand."""

import math

import numpy as np
import pytest

from fedshift.core import registry
from fedshift.metrics import midranks, reached

# four samples: right and sure, right and unsure, wrong, right
LABEL = np.array([1, 1, 0, 0])
P1 = np.array([0.9, 0.6, 0.7, 0.2])
BINARY = np.stack([1 - P1, P1], 1)
OF_LABELS = sorted(name for name, metric in registry.discover("metric").items() if "classification" in metric.tasks)
THREE = np.array([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.3, 0.5, 0.2]])


def value(name: str, label: np.ndarray, probability: np.ndarray) -> float:
    return registry.build("metric", name).value(label, probability)


@pytest.mark.parametrize(
    ("classes", "name", "expected"),
    [
        (2, "accuracy", 3 / 4),
        (2, "balanced_accuracy", (2 / 2 + 1 / 2) / 2),
        (2, "sensitivity", 2 / 2),
        (2, "specificity", 1 / 2),
        (2, "auc", 3 / 4),  # pairs (positive above negative): 0.9 beats both, 0.6 beats 0.2 only
        (2, "brier", (0.1**2 + 0.4**2 + 0.7**2 + 0.2**2) / 4),
        # confidences 0.9, 0.6, 0.7, 0.8, each in a bin of its own; the third is wrong
        (2, "ece", (0.1 + 0.4 + 0.7 + 0.2) / 4),
        (3, "accuracy", 2 / 3),  # labels 0, 1, 2; answers 0, 1, 1
        (3, "balanced_accuracy", (1 + 1 + 0) / 3),
        (3, "brier", (0.3**2 + 0.2**2 + 0.1**2 + 0.1**2 + 0.5**2 + 0.4**2 + 0.3**2 + 0.5**2 + 0.8**2) / 3),
        # class 0: 0.7 beats 0.1, 0.3; class 1: 0.5 beats 0.2, ties 0.5; class 2: 0.2 beats 0.1, loses to 0.4
        (3, "auc", (1 + 3 / 4 + 1 / 2) / 3),
        (3, "sensitivity", math.nan),
        (3, "specificity", math.nan),
    ],
)
def test_two_and_three_classes(classes: int, name: str, expected: float) -> None:
    given = {2: (LABEL, BINARY), 3: (np.arange(3), THREE)}[classes]
    assert value(name, *given) == pytest.approx(expected, nan_ok=math.isnan(expected))


def test_ece_pools_a_bin_before_it_takes_the_gap() -> None:
    """Both confidences lie in (9/15, 10/15]: one right, one wrong, so |1/2 - mean(0.61, 0.65)|."""
    probability = np.array([[0.39, 0.61], [0.35, 0.65]])
    assert value("ece", np.array([1, 0]), probability) == pytest.approx(abs(0.5 - 0.63))


def test_ece_takes_full_confidence() -> None:
    assert value("ece", np.array([1, 0]), np.array([[0.0, 1.0], [1.0, 0.0]])) == 0


@pytest.mark.parametrize("name", ["auc", "sensitivity", "balanced_accuracy"])
def test_undefined_without_positives(name: str) -> None:
    """Balanced accuracy would be the recall of one class, beside balanced values of other sites."""
    assert math.isnan(value(name, np.zeros(4, dtype=int), BINARY))


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_balanced_accuracy_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import balanced_accuracy_score

    rng = np.random.default_rng(0)
    label, probability = rng.integers(0, 3, 200), rng.dirichlet([1, 1, 1, 1], 200)  # class 3 is never there
    expected = balanced_accuracy_score(label, probability.argmax(1))
    assert value("balanced_accuracy", label, probability) == pytest.approx(expected)


@pytest.mark.parametrize("digits", [1, 8])
def test_areas_are_those_of_scikit_learn(digits: int) -> None:
    """With one digit, most scores are tied; areas are sums of a few hundred terms, each rounded to 1e-16."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    rng = np.random.default_rng(0)
    label, probability = rng.integers(0, 3, 300), rng.dirichlet([1, 1, 1], 300).round(digits)
    several = [label == c for c in range(3)]
    for name, expected in (("auc", roc_auc_score), ("ap", average_precision_score)):
        each = [expected(positive, probability[:, c]) for c, positive in enumerate(several)]
        assert value(name, label, probability) == pytest.approx(np.mean(each), abs=1e-13)
        assert value(name, several[2] * 1, probability[:, :2]) == pytest.approx(
            expected(several[2], probability[:, 1]), abs=1e-13
        )


@pytest.mark.parametrize("digits", [1, 8])
def test_ranks_and_counts_are_those_of_scipy_and_scikit_learn(digits: int) -> None:
    from scipy.stats import rankdata
    from sklearn.metrics import roc_curve

    rng = np.random.default_rng(1)
    positive, score = rng.random(200) < 0.3, rng.random(200).round(digits)
    assert np.array_equal(midranks(score), rankdata(score))
    found, samples = reached(positive, score)
    wrong, right, _ = roc_curve(positive, score, drop_intermediate=False)
    assert np.array_equal(found / positive.sum(), right[1:])
    assert np.array_equal((samples - found) / (~positive).sum(), wrong[1:])


@pytest.mark.parametrize("name", OF_LABELS)
def test_value_is_the_mean_of_what_each_sample_adds(name: str) -> None:
    metric = registry.build("metric", name)
    each, influence = metric.per_sample(LABEL, BINARY), metric.influence(LABEL, BINARY)
    assert metric.title
    assert metric.has_interval == (influence is not None)
    if influence is not None:
        assert len(influence) == len(LABEL)
        assert np.nansum(influence) == pytest.approx(0, abs=1e-12)
    if each is not None:
        assert np.nanmean(each, axis=0).mean() == pytest.approx(metric.value(LABEL, BINARY))
