"""Distances between surfaces: the values of hand cases, brute force over all edge pixels, and MONAI."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from monai.metrics import compute_average_surface_distance, compute_hausdorff_distance, compute_surface_dice

from fedshift.tasks.segmentation import distances

DIAGONAL = math.hypot(10, 10)


def box(top: int, left: int, bottom: int, right: int) -> np.ndarray:
    """A mask of 10x10 pixels with a rectangle, its last row and column included."""
    mask = np.zeros((10, 10), dtype=bool)
    mask[top : bottom + 1, left : right + 1] = True
    return mask


def blob(rng: np.random.Generator) -> np.ndarray:
    """A random mask of 20x24 pixels: up to three rectangles, which may touch the border of the image."""
    mask = np.zeros((20, 24), dtype=bool)
    for _ in range(rng.integers(1, 4)):
        top, left = rng.integers(0, 18), rng.integers(0, 22)
        mask[top : top + rng.integers(1, 9), left : left + rng.integers(1, 9)] = True
    return mask


def ragged(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two random masks of one random size, in which most pixels are edges; the second flips a fifth of the first."""
    shape = rng.integers(5, 16, 2)
    reference = rng.random(shape) < rng.uniform(0.05, 0.7)
    reference[0, 0] = True
    predicted = reference ^ (rng.random(shape) < 0.2)
    predicted[-1, -1] = True
    return predicted, reference


def edge(mask: np.ndarray) -> np.ndarray:
    """Positions (n, 2) of the pixels of a mask that have a neighbour outside of it, or outside of the image."""
    padded = np.pad(mask, 1)
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return np.argwhere(mask & ~inner)


def by_force(
    predicted: np.ndarray, reference: np.ndarray, tolerance: float, spacing: tuple[float, float]
) -> list[float]:
    """hd95, assd and nsd from the distances of all pairs of edge pixels."""
    ours, theirs = (edge(mask) * np.array(spacing) for mask in (predicted, reference))
    pairs = np.sqrt(((ours[:, None] - theirs[None]) ** 2).sum(2))
    there, back = pairs.min(1), pairs.min(0)
    both = np.concatenate([there, back])
    return [max(np.percentile(there, 95), np.percentile(back, 95)), both.mean(), (both <= tolerance).mean()]


def test_a_square_that_is_moved_by_one_row() -> None:
    reference, predicted = box(2, 2, 5, 5), box(3, 2, 6, 5)
    found = distances(predicted, reference, tolerance=1)
    assert found.hd95 == 1
    assert found.assd == 0.5
    assert found.nsd == 1
    assert distances(predicted, reference, tolerance=0).nsd == 0.5
    assert distances(predicted, reference, tolerance=1, spacing=(2, 0.5)).hd95 == 2


def test_a_prediction_that_goes_three_columns_too_far() -> None:
    found = distances(box(1, 1, 4, 7), box(1, 1, 4, 4), tolerance=1)
    assert found.hd95 == 3
    assert found.nsd == pytest.approx(0.8)


@pytest.mark.parametrize("spacing", [(1.0, 1.0), (2.0, 0.5), (0.7, 3.1)])
def test_random_masks_agree_with_all_pairs_of_edge_pixels(spacing: tuple[float, float]) -> None:
    rng = np.random.default_rng(7)
    for _ in range(500):
        predicted, reference = blob(rng), blob(rng)
        found = distances(predicted, reference, 2.0, spacing)
        np.testing.assert_allclose(found, by_force(predicted, reference, 2.0, spacing), rtol=1e-12)


@pytest.mark.parametrize("tolerance", [0.0, 1.0, 2.5])
def test_ragged_masks_agree_and_are_never_worse_than_a_missed_structure(tolerance: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        predicted, reference = ragged(rng)
        spacing = float(rng.uniform(0.3, 4)), float(rng.uniform(0.3, 4))
        found = distances(predicted, reference, tolerance, spacing)
        np.testing.assert_allclose(found, by_force(predicted, reference, tolerance, spacing), rtol=1e-12)
        missed = distances(np.zeros_like(reference), reference, tolerance, spacing)
        assert max(found.hd95, found.assd) < missed.hd95
        assert found.nsd >= missed.nsd == 0


def test_random_masks_agree_with_monai() -> None:
    rng = np.random.default_rng(8)
    for _ in range(100):
        predicted, reference = blob(rng), blob(rng)
        pair = [torch.from_numpy(np.stack([~mask, mask]))[None].float() for mask in (predicted, reference)]
        expected = [
            compute_hausdorff_distance(*pair, percentile=95),
            compute_average_surface_distance(*pair, symmetric=True),
            compute_surface_dice(*pair, class_thresholds=[2.0]),
        ]
        np.testing.assert_allclose(distances(predicted, reference, 2.0), [float(x) for x in expected], atol=1e-6)


def test_a_missed_structure_and_a_false_alarm_are_as_far_off_as_can_be() -> None:
    nothing, something = np.zeros((10, 10), dtype=bool), box(2, 2, 5, 5)
    assert distances(nothing, something, 2) == (DIAGONAL, DIAGONAL, 0)
    assert distances(something, nothing, 2) == (DIAGONAL, DIAGONAL, 0)
    assert np.isnan(distances(nothing, nothing, 2)).all()
    assert distances(something, something, 0) == (0, 0, 1)


def test_the_diagonal_is_in_units_of_the_spacing() -> None:
    found = distances(np.zeros((10, 10), dtype=bool), box(2, 2, 5, 5), 2, (3.0, 4.0))
    assert found.hd95 == math.hypot(30, 40)
