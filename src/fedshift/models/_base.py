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
"""Most parameters of a network: 8 GB, which training holds several times."""
SMALLER = "choose smaller settings of the model, or smaller images"


class Model(Plugin):
    """A network architecture. `build` runs in a keyed random state, so it may draw initial weights freely."""

    kind: ClassVar[str] = "model"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a network for inputs of `shape` (channels, height, width).

        It returns logits (batch, classes), or for segmentation (batch, classes, height, width).
        """
        raise TypeError(f"{type(self).__name__} does not build a network")

    @property
    def origin(self) -> str:
        """Where initial weights come from, for the page of a study; empty where they are drawn at random."""
        return ""

    def unfilled(self) -> Model:
        """Return the model of a network whose tensors will be replaced by others: it needs no file of weights."""
        return self

    def inputs(self) -> Sequence[Path]:
        """Return the user's own files that the settings name. A file that is not there is an error of the study."""
        return ()

    def located(self, folder: Path) -> Model:
        """Return the model of a study whose file is in `folder`, from which paths of its settings count."""
        return self


def require_images(model: Model, shape: tuple[int, ...], least: int, channels: int | None = None) -> None:
    """Raise UserError unless inputs are images of `least` x `least` pixels or more, with `channels` if given."""
    where = f"model {model.name}"
    size = "x".join(map(str, shape[1:])) or "no pixels"
    if len(shape) != 3 or min(shape[1:]) < least:
        raise UserError(where, f"takes images from {least}x{least}, these have {size}", "resize them")
    if channels not in (None, shape[0]):
        problem = f"takes images of {channels} channels, these have {shape[0]}"
        raise UserError(where, problem, "choose another model, or bring images to RGB")


def initialise(model: Model, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Build a network whose initial weights depend on `seed` alone; the global generator stays as it was.

    Raises UserError, before memory is taken, for a network of more than LARGEST parameters.
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
    """Return a network whose tensors have shapes and no numbers; None where it cannot be built without memory.

    Pretrained weights are left out. Raises UserError where the network cannot be built for inputs of `shape`.
    """
    from ..nn.device import without_memory

    try:
        with keyed(0, "size"), without_memory():
            return model.unfilled().build(shape, classes)
    except (NotImplementedError, RuntimeError):
        return None
