"""Segmentation: one class for each pixel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from ..core.errors import UserError
from ..core.units import IGNORED
from ..io.images import encoded, overlay
from ._base import Answer, Column, Control, Original, Reduction, Task, require_same_number

if TYPE_CHECKING:
    from torch import Tensor, nn


COUNTS = ("tp", "fp", "fn")
"""True positive, false positive and false negative pixels of a structure."""
DISTANCES = ("hd95", "assd", "nsd")
NUMBERS = (*COUNTS, *DISTANCES)
"""Numbers that are kept as predictions of each image and structure, in this order."""
AREAS: Mapping[str, Column] = {"pixels": "Int64", "share": "float64"}
"""Numbers that are written for each structure of a new image, with their pandas types."""
SMOOTH = 1e-5
"""Pixels that are added to both sides of the soft Dice, as MONAI does: a class without any pixel has no loss."""
PIXELS = 2**20
"""Number of pixels that are predicted at once where batches have no effect: 32 channels of them take 128 MiB."""
FEW_PIXELS = 3
"""Largest tolerance, in pixels, without a warning.

With a larger one, thin structures have a high surface Dice anywhere.
"""
WORST = 6
"""Number of images of each site, those with the lowest Dice, whose predicted masks are always stored."""
THRESHOLDS = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-10, 10, 101)))])
"""Thresholds on the probability of a structure: 0, whose mask is the whole image, and even steps of the log odds.

Networks are sure of most pixels, so that even steps of the probability would leave most thresholds without a pixel.
"""
PLACES = ("inside", "outside")
"""Pixels inside a structure, and all others that are not ignored."""


class Distances(NamedTuple):
    """Distances between the surfaces of two masks, in units of the spacing.

    Attributes
    ----------
    hd95 : the larger of both directions' 95th percentiles (MONAI's `compute_hausdorff_distance(percentile=95)`)
    assd : mean distance of the edge pixels of both masks to the other edge
    nsd : share of the edge pixels of both masks that lie within a tolerance of the other edge
    """

    hd95: float
    assd: float
    nsd: float


def distances(
    predicted: np.ndarray, reference: np.ndarray, tolerance: float, spacing: Sequence[float] = (1.0, 1.0)
) -> Distances:
    """Return the distances between the surfaces of two masks (height, width), bool.

    `spacing` are the distances between rows and between columns of pixels; `tolerance` is in the same unit. An edge
    pixel is one that a binary erosion removes; outside of the image nothing belongs to a mask. Where one mask is empty,
    the diagonal of the image is the distance, so that a missed structure counts as the worst that can be. Where both
    are empty there is no distance: NaN.
    """
    from scipy.ndimage import binary_erosion, distance_transform_edt

    if not predicted.any() and not reference.any():
        return Distances(math.nan, math.nan, math.nan)
    if not predicted.any() or not reference.any():
        diagonal = math.hypot(*(side * step for side, step in zip(predicted.shape, spacing, strict=True)))
        return Distances(diagonal, diagonal, 0.0)
    # All edges lie in the box around both masks; distances outside of it are not needed.
    rows, columns = np.nonzero(predicted | reference)
    box = slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1)
    masks = [np.pad(mask[box], 1) for mask in (predicted, reference)]
    edges = [mask ^ binary_erosion(mask) for mask in masks]
    from_predicted, from_reference = (
        distance_transform_edt(~edge, sampling=spacing)[other]
        for edge, other in zip(reversed(edges), edges, strict=True)
    )
    both = np.concatenate([from_predicted, from_reference])
    return Distances(
        float(max(np.percentile(from_predicted, 95), np.percentile(from_reference, 95))),
        float(both.mean()),
        float((both <= tolerance).mean()),
    )


class Segmentation(Task):
    """One class for each pixel: targets are masks of class numbers (n, height, width); class 0 is the background.

    Pixels of the class number 255 are ignored: they have no loss and no score.

    A prediction has, for each image and structure, the numbers of pixels that are rightly predicted, wrongly predicted
    and missed, and distances between surfaces: in millimetres where the dataset knows the size of a pixel, else in
    pixels of the prepared image. Predicted masks are stored for a few images of each site, or for all with `keep:
    masks`.
    """

    has_masks = True
    has_probabilities = False
    metrics = ("dice", "iou", "hd95", "assd", "missed", "false_alarms")
    headline = "dice"
    counted: ClassVar[Mapping[str, tuple[str, str]]] = {
        "missed": ("structures", "are missed"),
        "false_alarms": ("masks without a structure", "have a false alarm"),
    }
    pictures = ("mask", "overlay")
    control: ClassVar[Control] = Control(
        "pixel_filters",
        sees="colours and edges around each pixel",
        does="outline the structures",
        shortcut="the brightness or the contrast of a camera or a scanner",
    )
    target = "mask"
    remedy = "give masks (n, height, width) of class numbers 0, 1, ... as integers, one for each input"
    loss: Literal["dice_ce", "dice", "cross_entropy"] = Field(
        "dice_ce", description="soft Dice (MONAI's) and cross-entropy added up, or one of the two"
    )
    structures: dict[str, tuple[int, ...]] = Field(
        {},
        description="structures that are scored, each with the numbers of its classes, such as disc: [1, 2] and "
        "cup: [2]; default: each class but the background, 0",
    )
    tolerance: float = Field(
        2,
        ge=0,
        description="distance up to which surfaces agree in the surface Dice (nsd), in the unit of tolerance_in",
    )
    tolerance_in: Literal["pixels", "mm"] = Field(
        "pixels",
        description="unit of the tolerance: pixels of the prepared image (where their sides differ, the geometric mean "
        "counts), or mm, which are pixels where the size of pixels is not known",
    )
    keep: Literal["numbers", "masks"] = Field(
        "numbers",
        description="which predicted masks predictions-*.parquet stores, as PNG files in the column mask: with masks, "
        "all; with numbers, those of the images with the lowest Dice at each site",
    )

    later_fields: ClassVar[frozenset[str]] = frozenset({"keep", "tolerance_in"})

    def require_targets(self, where: str, x: Tensor, y: Tensor) -> None:
        if y.dim() != 3:
            problem = f"masks of shape {tuple(y.shape)} are not class numbers of pixels"
            raise UserError(where, problem, self.remedy)
        require_same_number(where, x, y, self.target)
        if x.shape[2:] != y.shape[1:]:
            sizes = ("x".join(map(str, shape)) for shape in (x.shape[2:], y.shape[1:]))
            raise UserError(where, "images have {} pixels, and masks {}".format(*sizes), "bring both to one size")

    def require_outputs(self, x: Tensor, outputs: Any) -> int:
        from torch import Tensor

        if not isinstance(outputs, Tensor) or outputs.dim() != 4 or outputs.shape[2:] != x.shape[2:]:
            shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            problem = f"returns {shape} for one input {tuple(x.shape)}"
            remedy = "return logits of shape (batch, classes, height, width), with the size of the image"
            raise UserError("model", problem, remedy)
        return outputs.shape[1]

    @property
    def loss_in_words(self) -> str:
        """The name of the training loss, with a capital, as a sentence on a page begins."""
        pixels = "cross-entropy of the pixels"
        return {"dice": "Soft Dice", "dice_ce": f"Soft Dice and {pixels}"}.get(self.loss, pixels.capitalize())

    def batch_loss(self, logits: Tensor, y: Tensor, weights: Tensor | None, reduction: Reduction = "mean") -> Tensor:
        losses = [_pixelwise(logits, y, weights)] if self.loss != "dice" else []
        if self.loss != "cross_entropy":
            losses.append(_soft_dice(logits, y, weights))
        total = losses[0] if len(losses) == 1 else losses[0] + losses[1]
        return total.mean() if reduction == "mean" else total

    def by_sample(self, model: nn.Module) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
        from ..nn.features import Pixelwise

        network = Pixelwise(model)
        return network, network.as_images

    def at_once(self, images: int, shape: tuple[int, ...]) -> int:
        return max(1, min(images, PIXELS // math.prod(shape[1:])))

    def sums(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return _pixelwise(logits, y).sum(), _right(logits, y).sum()

    def kept(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        # Two numbers an image: the outputs of many steps would fill the memory.
        import torch

        numbers = torch.stack([_pixelwise(logits.float(), y), _right(logits, y)], 1)
        # A view would keep the masks.
        return numbers, y[:, 0, 0].clone()

    def measured(self, kept: tuple[Tensor, Tensor]) -> Tensor:
        from ..nn.device import in_float64

        return in_float64(kept[0]).t()

    def scored(self, classes: int) -> list[tuple[int, ...]]:
        """Return the class numbers that make up each structure, for a network with `classes` classes.

        Raises UserError for a structure with a class that the network does not have.
        """
        parts = list(self.structures.values()) or [(k,) for k in range(1, classes)]
        for number in itertools.chain(*parts):
            if not 0 <= number < classes:
                remedy = f"name classes from 0 to {classes - 1}"
                raise UserError("task.structures", f"there is no class {number}", remedy)
        return parts

    def names(self, classes: Sequence[str]) -> Sequence[str]:
        """Return the names of the structures: those of the settings, or else all `classes` but the background."""
        return list(self.structures) or classes[1:]

    def columns(self, classes: Sequence[str]) -> list[str]:
        return [f"{number}_{name}" for name in self.names(classes) for number in NUMBERS]

    def answer_columns(self, classes: Sequence[str]) -> Mapping[str, Column]:
        """Return the columns for a new image: pixels of each structure, and their share of all pixels.

        Both are of the image in the size of its file.
        """
        return {f"{area}_{name}": kind for name in self.names(classes) for area, kind in AREAS.items()}

    def answers(self, logits: Tensor, originals: Sequence[Callable[[], Original]]) -> Iterator[Answer]:
        parts = self.scored(logits.shape[1])
        masks = logits.argmax(1).cpu().numpy().astype(np.uint8)
        finite = logits.isfinite().flatten(1).all(1).tolist()
        for mask, known, original in zip(masks, finite, originals, strict=True):
            image = original()
            restored = image.restored(mask)
            structures = np.stack([np.isin(restored, classes) for classes in parts])
            pixels = structures.sum((1, 2))
            numbers = np.stack([pixels, pixels / restored.size], axis=1).ravel()
            pictures = {"mask": encoded(restored), "overlay": encoded(overlay(image.pixels, structures))}
            yield Answer(numbers if known else np.full_like(numbers, np.nan), pictures)

    def sort(self, numbers: np.ndarray) -> np.ndarray:
        """Return group 1 for an image with a predicted structure, and group 0 for one without."""
        sorts: np.ndarray = (numbers > 0).any(1).astype(int)
        return sorts

    def with_mask(self, predictions: np.ndarray) -> np.ndarray:
        if self.keep == "masks":
            return np.arange(len(predictions))
        # An image without a structure and without a prediction of it, whose Dice is NaN, comes last.
        return np.argsort(dice_of_images(counts(predictions)), kind="stable")[:WORST]

    def fault(self, predictions: np.ndarray, label: np.ndarray) -> str:
        pixels = counts(predictions)
        whole = np.isfinite(pixels).all() and (pixels >= 0).all() and not (pixels % 1).any()
        return "" if whole else "a count of pixels is not a whole number"

    def caveats(self, units: Collection[str] = ("pixels",)) -> Sequence[str]:
        where = "pixels of the prepared image, not in millimetres"
        if "mm" in units:
            where = "millimetres"
        if len(units) > 1:
            where = "millimetres where the size of pixels is known and in pixels elsewhere: do not compare the two"
        return (
            f"Distances are in {where}. Surface Dice counts edges up to {self._tolerance(units)} apart as agreeing.",
            "Pixels are added up over the images of a patient before a score is made of them; distances are means over "
            "these images. A patient with neither a structure nor a prediction of it has no score.",
        )

    def _tolerance(self, units: Collection[str]) -> str:
        """Return the tolerance with its unit, such as "2 pixels". `units` are those of the study's distances."""
        if self.tolerance_in == "pixels":
            units = ("pixels",)
        return f"{self.tolerance:g} {' or '.join(units)}"

    def doubt(self, spacing: np.ndarray) -> str:
        # A pixel of unknown size counts as 1 mm wide, as it does in the distances.
        sides = np.sqrt(np.nan_to_num(spacing, nan=1.0).prod(1))
        pixels = float(np.median(self.tolerance / sides)) if self.tolerance_in == "mm" else self.tolerance
        if pixels <= FEW_PIXELS:
            return ""
        of_one = f", which is {pixels:.1f} pixels of the prepared images" if self.tolerance_in == "mm" else ""
        return (
            f"surface Dice has a tolerance of {self._tolerance((self.tolerance_in,))}{of_one}: edges far apart "
            f"count as agreeing; give the task a tolerance of {FEW_PIXELS} pixels at most"
        )

    def of_patients(self, predictions: np.ndarray, patient: np.ndarray) -> np.ndarray:
        """Return each patient's predictions: counts of pixels, summed over images, and mean distances."""
        table = predictions.reshape(len(predictions), -1, len(NUMBERS))
        sums = np.zeros((patient.max(initial=-1) + 1, *table.shape[1:]))
        images = np.zeros_like(sums)
        # An image without a structure and without a prediction of it has no distance.
        np.add.at(sums, patient, np.nan_to_num(table))
        np.add.at(images, patient, ~np.isnan(table))
        with np.errstate(invalid="ignore"):
            sums[:, :, len(COUNTS) :] /= images[:, :, len(COUNTS) :]
        return sums.reshape(len(sums), -1)

    def predictions(self, logits: Tensor, y: Tensor, final: bool = True, spacing: np.ndarray | None = None) -> Tensor:
        import torch

        predicted, reference = logits.argmax(1).cpu().numpy(), y.cpu().numpy()
        return torch.from_numpy(self.of_masks(predicted, reference, logits.shape[1], final, spacing))

    def of_masks(
        self,
        predicted: np.ndarray,
        reference: np.ndarray,
        classes: int,
        final: bool = True,
        spacing: np.ndarray | None = None,
    ) -> np.ndarray:
        parts = self.scored(classes)
        if spacing is None:
            spacing = np.ones((len(reference), 2))
        tolerance = np.full(len(reference), float(self.tolerance))
        if self.tolerance_in == "pixels":  # distances are in the unit of the spacing
            tolerance *= np.sqrt(spacing.prod(1))
        rows = np.empty((len(reference), len(parts), len(NUMBERS)))
        for structure, numbers in enumerate(parts):
            found, there = np.isin(predicted, numbers), np.isin(reference, numbers)
            found &= reference != IGNORED
            for k, mask in enumerate((found & there, found & ~there, there & ~found)):
                rows[:, structure, k] = mask.sum((1, 2))
            for i in range(len(reference)):
                rows[i, structure, len(COUNTS) :] = np.nan
                if final:
                    rows[i, structure, len(COUNTS) :] = distances(
                        found[i], there[i], float(tolerance[i]), spacing[i].tolist()
                    )
        return rows.reshape(len(reference), -1)


def histograms(p: np.ndarray, reference: np.ndarray, structures: Sequence[Sequence[int]]) -> np.ndarray:
    """Count the pixels inside and outside of each structure by their probability, from each of THRESHOLDS to the next.

    Parameters
    ----------
    p : probabilities of the classes (n, classes, height, width); NaN counts as 0
    reference : class numbers of the pixels (n, height, width)
    structures : the class numbers that together are a structure, for each structure

    Returns
    -------
    Numbers of pixels (n, structures, 2, thresholds), int32.
    """
    pixels_of = np.empty((len(p), len(structures), len(PLACES), len(THRESHOLDS)), dtype=np.int32)
    for k, classes in enumerate(structures):
        bins = np.searchsorted(THRESHOLDS, np.nan_to_num(p[:, list(classes)].sum(1)), side="right") - 1
        inside = np.isin(reference, classes)
        for side, pixels in enumerate((inside, ~inside & (reference != IGNORED))):
            for i, chosen in enumerate(pixels):
                pixels_of[i, k, side] = np.bincount(bins[i][chosen], minlength=len(THRESHOLDS))
    return pixels_of


def counts(predictions: np.ndarray) -> np.ndarray:
    """Return the pixels tp, fp and fn (n, structures, 3) from the predictions of images or patients (n, columns)."""
    return predictions.reshape(len(predictions), -1, len(NUMBERS))[:, :, : len(COUNTS)]


def dice(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray) -> np.ndarray:
    """Return the Dice score 2 |A and B| / (|A| + |B|) from counts of pixels; NaN where both masks are empty."""
    with np.errstate(invalid="ignore"):
        return np.asarray(2 * tp / (2 * tp + fp + fn))


def dice_of_images(pixels: np.ndarray) -> np.ndarray:
    """Return the Dice of each image (n,) from tp, fp and fn (n, structures, 3): the mean over its structures.

    A structure that is neither there nor predicted does not count; NaN where that holds for all.
    """
    scores = dice(*np.moveaxis(pixels, -1, 0))
    counted = ~np.isnan(scores)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nansum(scores, 1) / counted.sum(1))


def _pixelwise(logits: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy over the pixels of each image (batch,), with factors on classes if given."""
    from ..nn.features import cross_entropies

    losses = cross_entropies(logits, y)
    if weights is not None:
        # The loss of an ignored pixel is 0, whatever its weight.
        losses = weights[y.clamp(max=len(weights) - 1)] * losses
    return losses.flatten(1).mean(1) * _over_known(y)


def _over_known(y: Tensor) -> Tensor:
    """Return factors (batch,) from means over all pixels of an image to means over pixels that are not ignored."""
    pixels = y[0].numel()
    return pixels / (y != IGNORED).flatten(1).sum(1).clamp(min=1)


def _soft_dice(logits: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
    """Return the soft Dice loss of each image (batch,): the mean over classes, the background included.

    The formula is that of MONAI's `DiceLoss(softmax=True)`, which cannot be called: it compares the shapes of whole
    batches, and the clients of a joint step may have batches of different sizes.
    """
    from torch.nn.functional import one_hot

    known = (y != IGNORED)[:, None]
    p = logits.softmax(1) * known
    target = one_hot(y.clamp(max=logits.size(1) - 1), logits.size(1)).movedim(-1, 1) * known
    shared, predicted, true = (mask.flatten(2).sum(2) for mask in (p * target, p, target))
    losses = 1 - (2 * shared + SMOOTH) / (predicted + true + SMOOTH)
    if weights is not None:
        losses = weights * losses
    return losses.mean(1)


def _right(logits: Tensor, y: Tensor) -> Tensor:
    """Return each image's share of pixels whose most probable class is right (batch,); ignored pixels do not count."""
    return (logits.argmax(1) == y).to(logits.dtype).flatten(1).mean(1) * _over_known(y)
