"""The base class of network architectures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ..core.errors import UserError, out_of_memory
from ..core.registry import Plugin
from ..core.rng import keyed

if TYPE_CHECKING:
    from torch import nn

LARGEST = 2_000_000_000
"""Largest number of parameters of a network: 8 GB in float32, of which training needs a multiple."""
SMALLER = "choose smaller settings of the model, or smaller images"


class Model(Plugin):
    """A network architecture.

    A plug-in overrides `build`, which may draw initial weights from torch's generator: the caller seeds it. `tasks` are
    the tasks that the network can solve.
    """

    kind: ClassVar[str] = "model"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return a new network for inputs of `shape` (channels, height, width) and `classes` classes.

        The network returns logits: (batch, classes), or (batch, classes, height, width) for segmentation.
        """
        raise TypeError(f"{type(self).__name__} does not build a network")

    @property
    def origin(self) -> str:
        """The source of the initial weights, as words for the page of a study; empty if they are drawn at random."""
        return ""

    def unfilled(self) -> Model:
        """Return the same model without pretrained weights, to build a network whose tensors will be overwritten."""
        return self

    def inputs(self) -> Sequence[Path]:
        """Return the paths of the user's files that the settings name. A missing file is an error of the study."""
        return ()

    def located(self, folder: Path) -> Model:
        """Return the model with paths in its settings resolved against `folder`, the folder of the study's file."""
        return self


def require_images(model: Model, shape: tuple[int, ...], least: int, channels: int | None = None) -> None:
    """Raise UserError unless `shape` is (channels, height, width) with both sides at least `least` pixels.

    With `channels`, the number of channels must match as well.
    """
    where = f"model {model.name}"
    size = "x".join(map(str, shape[1:])) or "no pixels"
    if len(shape) != 3 or min(shape[1:]) < least:
        raise UserError(where, f"takes images of at least {least}x{least} pixels, these have {size}", "resize them")
    if channels not in (None, shape[0]):
        problem = f"takes images of {channels} channels, these have {shape[0]}"
        raise UserError(where, problem, "choose another model, or bring images to RGB")


def initialise(model: Model, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Return a new network whose initial weights depend on `seed` alone; torch's global generator keeps its state.

    `shape` is the shape of an input, usually (channels, height, width). Raises UserError for a network of more than
    LARGEST parameters, before it takes memory, and for a network that does not fit into memory.
    """
    where = f"model {model.name}"
    try:
        # A network that cannot be built without memory is not checked.
        network = shaped(model, shape, classes)
        size = sum(p.numel() for p in network.parameters()) if network is not None else 0
        if size > LARGEST:
            raise UserError(where, f"its network would have {size:,} parameters (limit {LARGEST:,})", SMALLER)
        with keyed(seed, "initial weights"):
            return model.build(shape, classes)
    except (RuntimeError, MemoryError, OverflowError) as error:
        if not (out_of_memory(error) or "overflow" in str(error).lower()):
            raise
        raise UserError(where, "its network does not fit into the memory", SMALLER) from error


def shaped(model: Model, shape: tuple[int, ...], classes: int) -> nn.Module | None:
    """Return the network on torch's meta device: its tensors have shapes, but no values and no memory.

    Pretrained weights are left out. Return None if the network cannot be built without memory. Raises UserError if the
    network does not support inputs of `shape`.
    """
    from ..nn.device import without_memory

    try:
        with keyed(0, "size"), without_memory():
            return model.unfilled().build(shape, classes)
    except (NotImplementedError, RuntimeError):
        return None
