"""What two of the methods share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def squared(vector: Tensor) -> Tensor:
    """Return the squared norm of a vector, (1,)."""
    return (vector * vector).sum().reshape(1)
