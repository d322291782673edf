"""Masks compared: cases with known values, brute force, MONAI where it has a value, and empty masks."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from monai.metrics import (
    compute_average_surface_distance,
    compute_dice,
    compute_hausdorff_distance,
    compute_iou,
    compute_surface_dice,
)

from fedshift.nn.masks import Edges, Overlap

TOLERANCES = (0.0, 1.0, 2.5)
Masks = tuple[np.ndarray, np.ndarray, tuple[float, ...]]


def rectangle(rows: tuple[int, int], columns: tuple[int, int], shape: tuple[int, int] = (10, 10)) -> np.ndarray:
    """A mask of a rectangle, its first and last rows and columns included."""
    mask = np.zeros(shape, bool)
    mask[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1] = True
    return mask


def random_masks(number: int) -> list[Masks]:
    """Pairs of smooth and of ragged masks, which touch the rim or not, in two and three dimensions, with a spacing."""
    rng = np.random.default_rng(0)
    pairs = []
    while len(pairs) < number:
        shape = (6, 7, 5) if len(pairs) % 5 == 0 else tuple(rng.integers(5, 16, 2).tolist())
        share = rng.uniform(0.05, 0.7)
        reference = rng.random(shape) < share
        prediction = reference ^ (rng.random(shape) < 0.2)
        if len(pairs) % 2:
            corners = [sorted(rng.integers(0, n, 2).tolist()) for n in shape]
            reference = np.zeros(shape, bool)
            reference[tuple(slice(low, high + 1) for low, high in corners)] = True
            prediction = np.roll(reference, tuple(rng.integers(-2, 3, len(shape)).tolist()), tuple(range(len(shape))))
        if reference.any() and prediction.any():
            pairs.append((reference, prediction, tuple(rng.uniform(0.3, 4, len(shape)).tolist())))
    return pairs


PAIRS = random_masks(500)


# ---- cases with known values


def test_a_square_that_is_shifted_by_a_row() -> None:
    """Of 16 pixels each, 12 are common; a row of four of each edge is not on the other one, nor are two more."""
    masks = rectangle((2, 5), (2, 5)), rectangle((3, 6), (2, 5))
    overlap = Overlap.of(*masks)
    assert (overlap.dice, overlap.iou) == (0.75, 0.6)
    edges = Edges.of(*masks)
    assert max(edges.forth.max(), edges.back.max()) == 1
    assert edges.hd95 == 1
    assert edges.assd == 0.5
    assert (edges.nsd(0), edges.nsd(1)) == (0.5, 1)
    assert Edges.of(*masks, (2, 0.5)).hd95 == 2


def test_a_square_with_three_columns_too_many() -> None:
    masks = rectangle((1, 4), (1, 4)), rectangle((1, 4), (1, 7))
    assert Overlap.of(*masks).dice == pytest.approx(2 * 16 / (16 + 28))
    assert round(Overlap.of(*masks).dice, 7) == 0.7272727
    edges = Edges.of(*masks)
    assert max(edges.forth.max(), edges.back.max()) == 3
    assert edges.hd95 == 3
    assert edges.nsd(1) == pytest.approx(0.8)


# ---- brute force


def brute_edge(mask: np.ndarray) -> np.ndarray:
    """Coordinates of the pixels of a mask that have a neighbour outside of it, or outside of the image."""
    found = []
    for place in zip(*np.nonzero(mask), strict=True):
        for axis, step in itertools.product(range(mask.ndim), (-1, 1)):
            beside = list(place)
            beside[axis] += step
            if not 0 <= beside[axis] < mask.shape[axis] or not mask[tuple(beside)]:
                found.append(place)
                break
    return np.array(found, dtype=np.float64)


def test_distances_are_those_of_all_pairs_of_edge_pixels() -> None:
    for reference, prediction, spacing in PAIRS:
        points = [brute_edge(mask) * spacing for mask in (reference, prediction)]
        pairs = np.sqrt(((points[0][:, None] - points[1][None]) ** 2).sum(-1))
        forth, back = pairs.min(1), pairs.min(0)
        edges = Edges.of(reference, prediction, spacing)
        np.testing.assert_allclose(edges.forth, forth, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(edges.back, back, rtol=1e-12, atol=1e-12)
        both = np.concatenate([forth, back])
        assert edges.assd == pytest.approx(both.mean(), rel=1e-12)
        assert edges.hd95 == pytest.approx(max(np.percentile(forth, 95), np.percentile(back, 95)), rel=1e-12)
        for tolerance in TOLERANCES:
            near = sum(distance <= tolerance for distance in both)
            assert edges.nsd(tolerance) == near / len(both)


def test_overlap_is_that_of_sets_of_pixels() -> None:
    for reference, prediction, _ in PAIRS:
        a, b = ({*zip(*np.nonzero(mask), strict=True)} for mask in (reference, prediction))
        overlap = Overlap.of(reference, prediction)
        assert overlap.dice == pytest.approx(2 * len(a & b) / (len(a) + len(b)), rel=1e-15)
        assert overlap.iou == pytest.approx(len(a & b) / len(a | b), rel=1e-15)
        assert overlap.iou == pytest.approx(overlap.dice / (2 - overlap.dice), rel=1e-12)


# ---- MONAI


def test_values_are_those_of_monai_where_it_has_one() -> None:
    """MONAI computes in float32, whose numbers are 1.2e-7 of their size apart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for reference, prediction, spacing in PAIRS:
            y, y_pred = (torch.tensor(mask)[None, None].float() for mask in (reference, prediction))
            both = {"y_pred": y_pred, "y": y, "include_background": True}
            overlap = Overlap.of(reference, prediction)
            edges = Edges.of(reference, prediction, spacing)
            assert overlap.dice == pytest.approx(compute_dice(**both).item(), rel=1e-6)
            assert overlap.iou == pytest.approx(compute_iou(**both).item(), rel=1e-6)
            both["spacing"] = spacing
            assert edges.hd95 == pytest.approx(compute_hausdorff_distance(**both, percentile=95).item(), rel=1e-6)
            assert edges.assd == pytest.approx(
                compute_average_surface_distance(**both, symmetric=True).item(), rel=1e-6
            )
            for tolerance in TOLERANCES:
                shares = compute_surface_dice(**both, class_thresholds=[tolerance]).item()
                assert edges.nsd(tolerance) == pytest.approx(shares, rel=1e-6)


# ---- empty masks

FULL, EMPTY = rectangle((2, 5), (2, 5), (10, 20)), np.zeros((10, 20), bool)


@pytest.mark.parametrize(("reference", "prediction"), [(FULL, EMPTY), (EMPTY, FULL)], ids=["missed", "invented"])
def test_where_one_mask_is_empty_every_value_is_the_worst(reference: np.ndarray, prediction: np.ndarray) -> None:
    """The corners of 10x20 pixels are 9 and 19 pixels apart; of 2 and 0.5 mm, 18 and 9.5 mm."""
    overlap = Overlap.of(reference, prediction)
    assert (overlap.dice, overlap.iou) == (0, 0)
    edges = Edges.of(reference, prediction)
    assert [edges.hd95, edges.assd] == pytest.approx([math.hypot(9, 19)] * 2)
    assert edges.nsd(0) == edges.nsd(1000) == 0
    assert Edges.of(reference, prediction, (2, 0.5)).hd95 == pytest.approx(math.hypot(18, 9.5))


def test_where_both_are_empty_there_is_no_value() -> None:
    overlap, edges = Overlap.of(EMPTY, EMPTY), Edges.of(EMPTY, EMPTY)
    assert all(math.isnan(value) for value in (overlap.dice, overlap.iou, edges.hd95, edges.assd, edges.nsd(1)))


def test_where_both_are_equal_every_value_is_the_best() -> None:
    overlap, edges = Overlap.of(FULL, FULL), Edges.of(FULL, FULL)
    assert (overlap.dice, overlap.iou, edges.hd95, edges.assd, edges.nsd(0)) == (1, 1, 0, 0, 1)


def test_no_distance_is_worse_than_a_missed_structure() -> None:
    for reference, prediction, spacing in PAIRS:
        edges = Edges.of(reference, prediction, spacing)
        assert max(edges.hd95, edges.assd) <= edges.worst


# ---- slices, and bad input


def test_sums_over_slices_are_the_overlap_of_the_volume() -> None:
    """So that a slice without the structure needs no value of its own, and what is invented there counts."""
    volume = np.random.default_rng(1).random((2, 5, 8, 8)) < 0.3
    volume[:, 0] = False
    volume[0, 1] = False
    slices = [Overlap.of(volume[0, k], volume[1, k]) for k in range(5)]
    assert sum(slices, Overlap(0, 0, 0)) == Overlap.of(*volume)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="a mask is boolean, not int64"):
        Overlap.of(FULL, EMPTY.astype(np.int64))
    with pytest.raises(ValueError, match="masks of shapes"):
        Edges.of(FULL, EMPTY[1:])
    for spacing in ((1.0,), (1.0, 0.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match="spacing"):
            Edges.of(FULL, EMPTY, spacing)
    with pytest.raises(ValueError, match="negative"):
        Edges.of(FULL, FULL).nsd(-1)
