"""The base of all ways to run batch normalisation at test time."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from .registry import Plugin

if TYPE_CHECKING:
    from torch import nn


class Inference(Plugin):
    """How a trained network predicts one site."""

    kind: ClassVar[str] = "inference"
    batch_size: int = Field(32, ge=1, description="images a batch")

    def on_site(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Entered once for each site, around all its batches. Leaves every parameter and buffer as it was."""
        return nullcontext()

    def settings(self) -> dict[str, Any]:
        """What `scores.csv` says of this inference: momentum, batch_size and order, None where without meaning."""
        return {"momentum": None, "batch_size": None, "order": None}
