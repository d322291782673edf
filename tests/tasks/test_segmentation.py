"""Segmentation: targets, losses, what is kept of an image, and of a patient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from monai.losses import DiceLoss
from monai.metrics import compute_dice, compute_iou
from torch.nn.functional import cross_entropy

from fedshift import UserError
from fedshift.core import registry
from fedshift.tasks import CLASSIFICATION, Segmentation, Task

NOTHING = np.zeros((6, 6), dtype=np.int64)
SQUARE = NOTHING.copy()
SQUARE[1:4, 1:4] = 1
MOVED = NOTHING.copy()
MOVED[2:5, 1:4] = 1


def logits(mask: np.ndarray, classes: int = 2) -> torch.Tensor:
    """Outputs (1, classes, height, width) that are sure of a mask."""
    return 20 * torch.nn.functional.one_hot(torch.from_numpy(mask), classes).movedim(-1, 0)[None].double()


def rows(predicted: np.ndarray, reference: np.ndarray, task: Task | None = None, classes: int = 2) -> np.ndarray:
    return (task or Segmentation()).predictions(logits(predicted, classes), torch.from_numpy(reference)[None]).numpy()


def metric(name: str, table: np.ndarray) -> float:
    return float(registry.build("metric", name).value(np.zeros(len(table)), table))


# ---- pixels that are ignored


@pytest.mark.parametrize("loss", ["dice_ce", "dice", "cross_entropy"])
@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 3.0], dtype=torch.float64)])
def test_ignored_pixels_have_no_loss_and_no_gradient(loss: Any, weights: torch.Tensor | None) -> None:
    """Half of an image is ignored: its loss is that of the other half alone, as an image of its own."""
    g = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 2, 4, 8, generator=g, dtype=torch.float64, requires_grad=True)
    y = torch.randint(2, (3, 4, 8), generator=g)
    void = y.clone()
    void[:, :, 4:] = 255
    task = Segmentation(loss=loss)
    found = task.batch_loss(outputs, void, weights)
    wanted = task.batch_loss(outputs[..., :4], y[..., :4], weights)
    torch.testing.assert_close(found, wanted)
    found.backward()
    assert (outputs.grad[..., 4:] == 0).all() and (outputs.grad[..., :4] != 0).all()


def test_ignored_pixels_have_no_score() -> None:
    """The square is predicted a row too low: one row of 3 is wrong, and one is missed, unless these are ignored."""
    void = SQUARE.copy()
    void[1], void[4] = 255, 255
    numbers = rows(MOVED, void)
    assert numbers[0, :3].tolist() == [6, 0, 0]
    assert metric("dice", numbers) == 1 and metric("hd95", numbers) == 0
    assert rows(MOVED, SQUARE)[0, :3].tolist() == [6, 3, 3]


def test_accuracy_and_loss_of_a_round_leave_ignored_pixels_out() -> None:
    """Of 4 x 4 pixels, 8 are ignored and 2 of the other 8 are wrong; an image that is ignored as a whole adds 0."""
    y = torch.zeros(2, 4, 4, dtype=torch.long)
    y[0, 2:] = 255
    y[1] = 255
    outputs = torch.zeros(2, 2, 4, 4, dtype=torch.float64)
    outputs[:, 0] = 1
    outputs[0, 1, 0, :2] = 2
    loss, right = Segmentation().sums(outputs, y)
    assert right.item() == pytest.approx(6 / 8)
    assert loss.item() == pytest.approx((6 * math.log(1 + math.exp(-1)) + 2 * math.log(1 + math.exp(1))) / 8)


# ---- losses


def test_dice_and_cross_entropy_of_two_pixels_by_hand() -> None:
    """All logits are 0 but one: the pixel (0, 0) has 2 for its class 1. MONAI's DiceCELoss gives the same numbers."""
    outputs = torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    outputs[0, 1, 0, 0] = 2
    y = torch.zeros(1, 2, 2, dtype=torch.long)
    y[0, 0, 0] = 1
    p = 1 / (1 + math.exp(-2))
    ce = (3 * math.log(2) - math.log(p)) / 4
    smooth = 1e-5
    first = 1 - (2 * 1.5 + smooth) / (3 + (1.5 + 1 - p) + smooth)
    second = 1 - (2 * p + smooth) / (1 + (1.5 + p) + smooth)
    dice = (first + second) / 2
    found = {
        name: float(Segmentation(loss=name).batch_loss(outputs, y, None))
        for name in ("cross_entropy", "dice", "dice_ce")
    }
    assert found["cross_entropy"] == pytest.approx(ce, abs=1e-12)
    assert found["dice"] == pytest.approx(dice, abs=1e-9)
    assert found["dice_ce"] == pytest.approx(dice + ce, abs=1e-9)
    # as printed in the notes on MONAI, to their seven digits
    assert (round(ce, 7), round(dice, 7)) == (0.5515924, 0.4147381)


@pytest.mark.parametrize(
    "weights", [None, torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)], ids=["plain", "weighted"]
)
def test_soft_dice_is_monais(weights: torch.Tensor | None) -> None:
    """Of three classes, of which the second image has one alone."""
    outputs = 3 * torch.randn(2, 3, 5, 4, dtype=torch.float64)
    y = torch.randint(0, 3, (2, 5, 4))
    y[1] = 2
    theirs = DiceLoss(softmax=True, to_onehot_y=True, weight=weights, reduction="none")(outputs, y[:, None])
    found = Segmentation(loss="dice").batch_loss(outputs, y, weights, "none")
    np.testing.assert_allclose(found, theirs.flatten(1).mean(1), rtol=1e-12)


def test_weights_of_classes_are_factors_on_the_loss_of_their_pixels() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 3, (2, 4, 4), generator=generator)
    weights = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    expected = torch.stack([weights[y[i]] * cross_entropy(outputs, y, reduction="none")[i] for i in range(2)])
    found = Segmentation(loss="cross_entropy").batch_loss(outputs, y, weights, "none")
    np.testing.assert_allclose(found, expected.flatten(1).mean(1), rtol=1e-12)


@pytest.mark.parametrize("loss", ["cross_entropy", "dice", "dice_ce"])
def test_the_loss_of_a_batch_is_the_mean_over_its_images(loss: str) -> None:
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(3, 2, 5, 7, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 2, (3, 5, 7), generator=generator)
    task = Segmentation(loss=loss)
    alone = [float(task.batch_loss(outputs[i : i + 1], y[i : i + 1], None)) for i in range(3)]
    assert float(task.batch_loss(outputs, y, None)) == pytest.approx(np.mean(alone), rel=1e-12)
    np.testing.assert_allclose(task.batch_loss(outputs, y, None, "none"), alone, rtol=1e-12)


# ---- what is kept


def test_counts_of_a_square_that_is_moved_by_a_row() -> None:
    tp, fp, fn, *surfaces = rows(MOVED, SQUARE)[0]
    assert (tp, fp, fn) == (6, 3, 3)
    assert surfaces[0] == 1
    assert metric("dice", rows(MOVED, SQUARE)) == 12 / 18
    assert metric("iou", rows(MOVED, SQUARE)) == 6 / 12
    assert metric("volume_error", rows(MOVED, SQUARE)) == 0


@pytest.mark.parametrize(
    ("predicted", "reference", "expected"),
    [
        (NOTHING, SQUARE, {"dice": 0, "iou": 0, "nsd": 0, "hd95": math.hypot(6, 6), "missed": 1, "volume_error": 1}),
        (SQUARE, NOTHING, {"dice": 0, "iou": 0, "nsd": 0, "hd95": math.hypot(6, 6), "false_alarms": 1}),
        (NOTHING, NOTHING, {"false_alarms": 0}),
        (SQUARE, SQUARE, {"dice": 1, "iou": 1, "nsd": 1, "hd95": 0, "assd": 0, "missed": 0, "volume_error": 0}),
    ],
    ids=["missed", "false alarm", "both empty", "both there"],
)
def test_empty_masks(predicted: np.ndarray, reference: np.ndarray, expected: dict[str, float]) -> None:
    table = rows(predicted, reference)
    names = ["dice", "iou", "hd95", "assd", "nsd", "volume_error", "missed", "false_alarms"]
    found = {name: metric(name, table) for name in names}
    assert {name: found[name] for name in expected} == expected
    undefined = {name for name, value in found.items() if math.isnan(value)}
    both_empty = {"dice", "iou", "hd95", "assd", "nsd", "volume_error", "missed"}
    assert (
        undefined
        == {
            "missed": {"false_alarms"},
            "false alarm": {"volume_error", "missed"},
            "both empty": both_empty,
            "both there": {"false_alarms"},
        }[
            "both empty"
            if not predicted.any() and not reference.any()
            else "missed"
            if not predicted.any()
            else "false alarm"
            if not reference.any()
            else "both there"
        ]
    )


def test_dice_of_a_square_with_three_columns_too_many() -> None:
    """Of 16 and 28 pixels, 16 are common: 32 / 44."""
    reference, predicted = np.zeros((2, 10, 10), dtype=np.int64)
    reference[1:5, 1:5] = 1
    predicted[1:5, 1:8] = 1
    assert metric("dice", rows(predicted, reference)) == pytest.approx(32 / 44, rel=1e-15)


def test_overlaps_of_random_masks_are_those_of_sets_of_pixels_and_of_monai() -> None:
    """MONAI computes in float32, whose numbers are 1.2e-7 of their size apart."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        reference = (rng.random((7, 9)) < rng.uniform(0.1, 0.7)).astype(np.int64)
        predicted = reference ^ (rng.random((7, 9)) < 0.2)
        a, b = ({*zip(*np.nonzero(mask), strict=True)} for mask in (reference, predicted))
        table = rows(predicted, reference)
        dice, iou = metric("dice", table), metric("iou", table)
        assert dice == pytest.approx(2 * len(a & b) / (len(a) + len(b)), rel=1e-15)
        assert iou == pytest.approx(len(a & b) / len(a | b), rel=1e-15)
        pair = {"y_pred": torch.from_numpy(predicted)[None, None], "y": torch.from_numpy(reference)[None, None]}
        assert dice == pytest.approx(compute_dice(**pair).item(), rel=1e-6)
        assert iou == pytest.approx(compute_iou(**pair).item(), rel=1e-6)


def test_counts_of_a_patient_are_those_of_the_volume_of_its_slices() -> None:
    """So that what is invented in a slice without the structure counts."""
    reference, predicted = (np.random.default_rng(1).random((2, 5, 8, 8)) < 0.3).astype(np.int64)
    reference[:2] = 0
    predicted[0] = 0
    slices = np.concatenate([rows(predicted[k], reference[k]) for k in range(5)])
    whole = rows(predicted.reshape(40, 8), reference.reshape(40, 8))
    np.testing.assert_array_equal(Segmentation().of_patients(slices, np.zeros(5, dtype=int))[:, :3], whole[:, :3])


def test_structures_are_unions_of_classes() -> None:
    """A cup inside a disc: the disc is the rim and the cup."""
    reference = SQUARE.copy()
    reference[2, 2] = 2
    predicted = reference.copy()
    predicted[2, 2] = 1
    task = Segmentation(structures={"disc": (1, 2), "cup": (2,)})
    table = rows(predicted, reference, task, classes=3)
    assert task.columns(("ground", "rim", "cup"))[:3] == ["tp_disc", "fp_disc", "fn_disc"]
    dice = registry.build("metric", "dice").per_sample(np.zeros(1), table)
    np.testing.assert_array_equal(dice, [[1, 0]])
    with pytest.raises(UserError, match="there is no class 3"):
        rows(SQUARE, SQUARE, Segmentation(structures={"disc": (3,)}))


def test_counts_of_a_patient_are_sums_over_slices_and_distances_means() -> None:
    table = np.concatenate([rows(MOVED, SQUARE), rows(NOTHING, NOTHING), rows(NOTHING, SQUARE), rows(SQUARE, SQUARE)])
    found = Segmentation().of_patients(table, np.array([0, 0, 1, 0]))
    np.testing.assert_array_equal(found[:, :3], [[15, 3, 3], [0, 0, 9]])
    # Patient 0 has a slice without any distance, which counts in no mean.
    np.testing.assert_array_equal(found[:, 3], [0.5, math.hypot(6, 6)])
    assert metric("dice", found) == np.mean([30 / 36, 0])


def test_a_patient_without_the_structure_in_any_slice_has_no_distance() -> None:
    table = np.concatenate([rows(NOTHING, NOTHING)] * 2)
    found = Segmentation().of_patients(table, np.array([0, 0]))
    np.testing.assert_array_equal(found, [[0, 0, 0, np.nan, np.nan, np.nan]])


def test_the_validation_of_a_round_measures_no_distances() -> None:
    found = Segmentation().predictions(logits(MOVED), torch.from_numpy(SQUARE)[None], final=False)
    np.testing.assert_array_equal(found, [[6, 3, 3, np.nan, np.nan, np.nan]])


def test_loss_and_accuracy_of_images_are_means_over_their_pixels() -> None:
    generator = torch.Generator().manual_seed(2)
    outputs = torch.randn(3, 2, 4, 6, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 2, (3, 4, 6), generator=generator)
    task = Segmentation()
    losses = cross_entropy(outputs, y, reduction="none").numpy().reshape(3, -1).mean(1)
    right = (outputs.argmax(1) == y).numpy().reshape(3, -1).mean(1)
    np.testing.assert_allclose(task.measured(task.kept(outputs.float(), y)), [losses, right], rtol=1e-6)
    np.testing.assert_allclose(task.sums(outputs, y), [losses.sum(), right.sum()], rtol=1e-12)


def test_what_is_kept_of_a_step_does_not_hold_its_masks() -> None:
    y = torch.zeros(3, 4, 6, dtype=torch.long)
    _, kept = Segmentation().kept(torch.zeros(3, 2, 4, 6), y)
    assert kept.untyped_storage().nbytes() == 3 * y.element_size()


@pytest.mark.parametrize(("side", "images"), [(16, 256), (64, 256), (128, 64), (384, 7), (2000, 1)])
def test_large_images_are_predicted_a_few_at_once(side: int, images: int) -> None:
    """A million pixels: 2 ** 20 / side ** 2 images, at most those that are asked for, at least one."""
    assert Segmentation().at_once(256, (3, side, side)) == images
    assert CLASSIFICATION.at_once(256, (3, side, side)) == 256


# ---- messages


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ((4, 1, 8, 8), (4,), r"masks of shape \(4,\) are not class numbers of pixels"),
        ((4, 1, 8, 8), (3, 8, 8), "4 inputs, but 3 masks"),
        ((4, 1, 8, 8), (4, 8, 9), "images have 8x8 pixels, and masks 8x9"),
    ],
)
def test_targets_of_another_form_are_named(x: tuple[int, ...], y: tuple[int, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Segmentation().require_targets("client 'a'", torch.zeros(x), torch.zeros(y, dtype=torch.long))


@pytest.mark.parametrize("outputs", [torch.zeros(1, 2), torch.zeros(1, 2, 4, 4), [torch.zeros(1, 2, 8, 8)]])
def test_a_network_of_another_form_is_named(outputs: Any) -> None:
    with pytest.raises(UserError, match="return logits of shape"):
        Segmentation().require_outputs(torch.zeros(1, 1, 8, 8), outputs)


def test_classification_is_the_default() -> None:
    assert registry.build("task", "classification") == CLASSIFICATION
    assert not CLASSIFICATION.has_masks
