"""Classification: one class for each image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..core.errors import UserError
from ._base import Answer, Column, Control, Original, Reduction, Task, require_same_number

if TYPE_CHECKING:
    from torch import Tensor


ROUNDING = 1e-4
"""Largest deviation from 1 of the sum of a sample's probabilities: networks predict in float32."""


class Classification(Task):
    """One class for each image: targets are class numbers (n,), predictions are class probabilities (n, classes)."""

    control: ClassVar[Control] = Control(
        "colour_texture",
        sees="colour and texture",
        does="tell the classes apart",
        shortcut="a stain, a scanner, or a mark that goes with the class",
    )
    target = "label"
    remedy = "give class numbers 0, 1, ... as integers, one for each input"

    def require_targets(self, where: str, x: Tensor, y: Tensor) -> None:
        if y.dim() != 1:
            raise UserError(where, f"labels of shape {tuple(y.shape)} are not class numbers", self.remedy)
        require_same_number(where, x, y, self.target)

    def require_outputs(self, x: Tensor, outputs: Any) -> int:
        from torch import Tensor

        if not isinstance(outputs, Tensor) or outputs.dim() != 2:
            shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise UserError("model", f"returns {shape} for one input", "return logits of shape (batch, classes)")
        return outputs.shape[1]

    def batch_loss(self, logits: Tensor, y: Tensor, weights: Tensor | None, reduction: Reduction = "mean") -> Tensor:
        from torch.nn.functional import cross_entropy

        if weights is None:
            return cross_entropy(logits, y, reduction=reduction)
        losses = weights.index_select(0, y) * cross_entropy(logits, y, reduction="none")
        return losses.mean() if reduction == "mean" else losses

    def sums(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, y, reduction="sum"), (logits.argmax(1) == y).sum()

    def kept(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return logits, y

    def measured(self, kept: tuple[Tensor, Tensor]) -> Tensor:
        import torch
        from torch.nn.functional import nll_loss

        from ..nn.device import in_float64

        logits, y = kept
        if logits.dtype.itemsize < 4:
            logits = logits.float()
        # Along the first dimension, since a softmax over a short last dimension is slow on the CPU.
        losses = nll_loss(logits.t().log_softmax(0).t(), y, reduction="none")
        return torch.stack([in_float64(losses), in_float64(logits.argmax(1) == y)])

    def columns(self, classes: Sequence[str]) -> list[str]:
        return [f"p{k}" for k in range(len(classes))]

    def fault(self, predictions: np.ndarray, label: np.ndarray) -> str:
        classes = predictions.shape[1]
        if not np.isfinite(predictions).all():
            return "a probability is NaN or infinite"
        if (predictions < 0).any() or (np.abs(predictions.sum(1) - 1) > ROUNDING).any():
            return "the probabilities of a sample do not add up to 1"
        if not np.isin(label, range(classes)).all():
            return f"a label is outside of 0 to {classes - 1}"
        return ""

    def predictions(self, logits: Tensor, y: Tensor, final: bool = True, spacing: np.ndarray | None = None) -> Tensor:
        from ..nn.device import in_float64

        return in_float64(logits).softmax(1)

    def answer_columns(self, classes: Sequence[str]) -> Mapping[str, Column]:
        columns: dict[str, Column] = {"predicted": "Int64"}
        return columns | dict.fromkeys(self.columns(classes), "float64")

    def answers(self, logits: Tensor, originals: Sequence[Callable[[], Original]]) -> Iterator[Answer]:
        from ..nn.device import in_float64

        probability = in_float64(logits).softmax(1).cpu().numpy()
        numbers = np.column_stack([probability.argmax(1), probability])
        return (Answer(row, {}) for row in numbers)

    def sort(self, numbers: np.ndarray) -> np.ndarray:
        """Return the predicted class of each image as its group."""
        return numbers[:, 0].astype(int)
