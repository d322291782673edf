"""The base class of tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from ..core.errors import UserError
from ..core.registry import Plugin

if TYPE_CHECKING:
    from torch import Tensor, nn

Reduction = Literal["mean", "none"]
Column = Literal["Int64", "float64"]
"""The pandas type of a column of numbers. Whole numbers may be missing, too."""


class Original(Protocol):
    """Protocol of an image of a hospital, in the size of its file."""

    @property
    def pixels(self) -> np.ndarray:
        """The image (height, width, 3), uint8."""
        raise NotImplementedError

    def restored(self, mask: np.ndarray) -> np.ndarray:
        """Return a mask (size, size) of the prepared image, brought to the size of the file (height, width).

        Parts of the image that preparation has cut off are 0.
        """
        raise NotImplementedError


class Answer(NamedTuple):
    """A network's prediction for one new image, without a target.

    `numbers` (columns,) are those that `Task.answer_columns` names; they are NaN where the network's outputs are not
    finite. `pictures` are PNG files by the names in `Task.pictures`.
    """

    numbers: np.ndarray
    pictures: Mapping[str, bytes]


class Control(NamedTuple):
    """The control of a task (a simple classifier without a network, tested beside the runs), with its words for pages.

    `worker` is a key of `jobs.control.WORKERS`. The page says that the control `sees` something of an image and `does`
    something with it, such as tell the classes apart; `shortcut` names what a network that does no better may have
    learnt.
    """

    worker: str
    sees: str
    does: str
    shortcut: str


class Task(Plugin):
    """Base class of tasks: the form of targets, and how a network's outputs become a loss and predictions.

    Outputs have the shape (batch, classes, ...), and a target has that of the outputs without the classes. All losses
    and accuracies of an image are means over its positions, so that images of all sizes count alike.
    """

    kind: ClassVar[str] = "task"
    has_masks: ClassVar[bool] = False
    """True if targets are masks, which are prepared and transformed together with their images."""
    has_probabilities: ClassVar[bool] = True
    """True if predictions are class probabilities of images, as thresholds, calibration and mistakes need."""
    metrics: ClassVar[tuple[str, ...]] = (
        *("accuracy", "balanced_accuracy", "auc", "sensitivity", "specificity", "brier", "ece"),
    )
    """Metrics that a study computes if it names none."""
    headline: ClassVar[str] = "accuracy"
    """The metric that a study shows first if it names none."""
    counted: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Metrics whose counts the page also says in words, since means hide them.

    Each has a noun and a clause, such as "structures" and "are missed".
    """
    pictures: ClassVar[tuple[str, ...]] = ()
    """Names of the pictures drawn of each new image.

    Each has its own folder and column; the page shows the last one.
    """
    control: ClassVar[Control]
    """The control: a simple classifier without a network that is tested beside the runs."""
    target: ClassVar[str] = ""
    """The word for a target of one image in messages, such as label."""
    remedy: ClassVar[str] = ""
    """The remedy in messages about wrong targets: which ones to give."""

    @property
    def loss_in_words(self) -> str:
        """The name of the training loss, with a capital, as a sentence on a page begins."""
        return "Cross-entropy"

    def require_targets(self, where: str, x: Tensor, y: Tensor) -> None:
        """Raise UserError, at `where`, for targets `y` (n, ...) whose shape does not fit the inputs `x` (n, ...)."""
        raise NotImplementedError

    def require_outputs(self, x: Tensor, outputs: Any) -> int:
        """Return the number of classes of outputs for inputs (n, ...). Raises UserError for outputs of other shapes."""
        raise NotImplementedError

    def batch_loss(self, logits: Tensor, y: Tensor, weights: Tensor | None, reduction: Reduction = "mean") -> Tensor:
        """Return the loss of a batch: its mean over images, or that of each image (batch,) with `none`.

        `weights` (classes,) are factors on the loss of single classes; None if all count alike. The mean divides by the
        number of images. If it divided by the sum of weights, as torch's does, weights would cancel in a batch of one
        class, and so at a client that has one class only.
        """
        raise NotImplementedError

    def by_sample(self, model: nn.Module) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
        """Return a network whose logits are (samples, classes), and a function back to `model`'s output shape.

        Test-time methods work on samples; in dense outputs each pixel is a sample. By default that is the network
        itself.
        """
        return model, _unchanged

    def at_once(self, images: int, shape: tuple[int, ...]) -> int:
        """Return the number of inputs of `shape` that go through the network together, up to `images`.

        It is asked where the number has no effect on results. By default that is `images`. A task with outputs for each
        pixel takes fewer large images, to save memory.
        """
        return images

    def sums(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of cross-entropy and of accuracy over the images of a batch, two scalars."""
        raise NotImplementedError

    def kept(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return two tensors (batch, ...) of a training step, from which `measured` computes loss and accuracy later.

        Many steps are measured at once, since each reading from a device takes time.
        """
        raise NotImplementedError

    def measured(self, kept: tuple[Tensor, Tensor]) -> Tensor:
        """Return cross-entropy and accuracy of each image (2, n), float64, from joined tensors of `Task.kept`."""
        raise NotImplementedError

    def columns(self, classes: Sequence[str]) -> list[str]:
        """Return the names of the numbers that are kept as predictions of an image."""
        raise NotImplementedError

    def predictions(self, logits: Tensor, y: Tensor, final: bool = True, spacing: np.ndarray | None = None) -> Tensor:
        """Return the numbers that are kept as predictions (batch, columns), float64; see `columns`.

        Without `final`, as in the validation of a round, numbers that take long to compute are NaN. `spacing`
        (batch, 2) are the millimetres between rows and between columns of each image; None if they are unknown.
        """
        raise NotImplementedError

    def of_masks(
        self,
        predicted: np.ndarray,
        reference: np.ndarray,
        classes: int,
        final: bool = True,
        spacing: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the rows (n, columns) of a table of predictions for masks and references (n, height, width).

        Masks hold class numbers below `classes`; for `final` and `spacing` see `predictions`.
        """
        raise NotImplementedError

    def answer_columns(self, classes: Sequence[str]) -> Mapping[str, Column]:
        """Return the columns of numbers that are written for a new image: name to pandas type."""
        raise NotImplementedError

    def answers(self, logits: Tensor, originals: Sequence[Callable[[], Original]]) -> Iterator[Answer]:
        """Yield the prediction for each new image of a batch, from logits (batch, classes, ...).

        `originals` read the images again in the size of their files, one at a time.
        """
        raise NotImplementedError

    def sort(self, numbers: np.ndarray) -> np.ndarray:
        """Return the group of each new image (n,), from 0, given its numbers (n, columns).

        Examples of each group are shown. By default all images are in one group.
        """
        return np.zeros(len(numbers), dtype=int)

    def with_mask(self, predictions: np.ndarray) -> np.ndarray:
        """Return the positions (k,) of a site's images whose predicted masks are stored.

        `predictions` (n, columns) are those of all the site's images.
        """
        return np.arange(0)

    def fault(self, predictions: np.ndarray, label: np.ndarray) -> str:
        """Return what is wrong with predictions (n, columns) of samples with labels (n,), or "" if nothing is."""
        raise NotImplementedError

    def caveats(self, units: Collection[str] = ("pixels",)) -> Sequence[str]:
        """Return sentences for the page on how predictions are scored.

        `units` are those of distances in the data of a study: pixels, mm, or both.
        """
        return ()

    def doubt(self, spacing: np.ndarray) -> str:
        """Return why scores of images with pixels of this size may say little, or "" if there is no doubt.

        `spacing` (n, 2) are the millimetres between rows and between columns of prepared images, NaN where unknown.
        """
        return ""

    def of_patients(self, predictions: np.ndarray, patient: np.ndarray) -> np.ndarray:
        """Return the predictions of each patient (patients, columns) from those of images, for a task with masks.

        `patient` (n,) are numbers of patients from 0, each of whom has an image.
        """
        raise NotImplementedError


def _unchanged(logits: Tensor) -> Tensor:
    return logits


def require_same_number(where: str, x: Tensor, y: Tensor, target: str) -> None:
    """Raise UserError, at `where`, unless there is one target for each input. `target` is the word for a target."""
    if len(x) != len(y):
        raise UserError(where, f"{len(x)} inputs, but {len(y)} {target}s", f"give one {target} for each input")
