"""Any array transform of MONAI, by its name."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, JsonValue, field_validator

from ..core import digest
from ..core.errors import UserError, did_you_mean
from ._base import Transform

if TYPE_CHECKING:
    from torch import Tensor

_TURN = threading.RLock()
"""Lock around MONAI's switch for metadata: the whole process has one, and several threads may read batches."""


@contextmanager
def without_tracking() -> Iterator[None]:
    """Let MONAI's transforms return plain tensors, without metadata of what they did, inside a `with` block."""
    from monai.data import get_track_meta, set_track_meta

    with _TURN:
        before = get_track_meta()
        set_track_meta(False)
        try:
            yield
        finally:
            set_track_meta(before)


class Monai(Transform):
    """A transform of `monai.transforms`, applied to each image by itself.

    It takes any class that changes one array (channels, height, width), with the settings of its constructor:
    `{ name: monai, transform: RandGaussianNoise, settings: { prob: 0.5, std: 0.05 } }`. Grey levels are 0 to 255 before
    `scale_intensity`, and 0 to 1 after it. A random class acts on training images alone, and gets a new seed for each
    image. A class that draws nothing at random acts on training images and, with `always: true`, in prediction too.
    `fedshift check` builds the transform and tries it on one image.
    """

    libraries = ("monai.transforms",)
    transform: str = Field(
        description="name of the class, such as RandGaussianNoise; no dictionary transform (RandGaussianNoised)",
        examples=["RandGaussianNoise"],
    )
    settings: dict[str, JsonValue] = Field({}, description="settings of the class, by their names in MONAI")
    always: bool = Field(False, description="whether it acts in prediction too; not for classes that draw at random")

    @field_validator("settings")
    @classmethod
    def _probability(cls, settings: dict[str, Any]) -> dict[str, Any]:
        # MONAI accepts 2 as if it were 1.
        value = settings.get("prob", 0)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
            raise UserError("prob", f"is {value!r}, which is not a probability", "give a number from 0 to 1")
        return settings

    @property
    def when(self) -> Literal["train", "always"]:  # type: ignore[override]
        """Return "always" with the setting `always`, else "train": the transform then acts in training only."""
        return "always" if self.always else "train"

    @property
    def mask(self) -> Literal["", "stays"]:  # type: ignore[override]
        """Return "stays" for a class that changes grey levels alone, and "" for a class that may move pixels."""
        return "stays" if type(self._built).__module__.startswith("monai.transforms.intensity") else ""

    def __hash__(self) -> int:
        return hash(digest.canonical(self.spec()))

    def require(self, shape: tuple[int, ...]) -> None:
        """Raise UserError if the transform fails on images of `shape` (channels, height, width)."""
        import torch

        from ..core.rng import stream

        x = torch.from_numpy(stream("monai").uniform(0, 1, (1, *shape)).astype(np.float32))
        # With a small probability, most draws would change nothing, and a wrong setting would pass.
        surely = {"prob": 1.0} if hasattr(self._built, "prob") else {}
        tried = Monai(transform=self.transform, settings=self.settings | surely, always=self.always)
        tried.apply(x, stream("monai", "draws"))

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch

        built = self._built
        seeds = [None] * len(x) if self._draws is False else rng.integers(0, 2**32, len(x)).tolist()
        with without_tracking():
            return torch.stack([self._one(built, image, seed) for image, seed in zip(x, seeds, strict=True)])

    def _one(self, built: Any, image: Tensor, seed: int | None) -> Tensor:
        """Return an image (channels, height, width) after MONAI's transform `built`.

        `seed` is None for a transform that draws nothing at random.
        """
        import torch

        if seed is not None:
            built.set_random_state(seed)
        try:
            changed = built(image.clone())
        except Exception as error:
            line = str(error).strip().partition("\n")[0][:200]
            problem = f"fails on an image {tuple(image.shape)}: {line or type(error).__name__}"
            raise UserError(self._where, problem, "change its settings, or choose another class") from error
        if not isinstance(changed, torch.Tensor | np.ndarray) or changed.ndim != 3 or len(changed) != len(image):
            problem = f"returns no image of {len(image)} channels for an image of shape {tuple(image.shape)}"
            raise UserError(self._where, problem, "choose another class")
        if seed is not None and changed.shape != image.shape:
            problem = f"changes the size of images from {tuple(image.shape)} to {tuple(changed.shape)}"
            raise UserError(self._where, problem, "only a class that draws nothing at random may, with always: true")
        return torch.as_tensor(changed).as_subclass(torch.Tensor).to(image)

    @property
    def _where(self) -> str:
        return f"transform monai ({self.transform})"

    @functools.cached_property
    def _draws(self) -> bool:
        """Return whether the class draws at random."""
        from monai.transforms import Randomizable

        return isinstance(self._built, Randomizable)

    @functools.cached_property
    def _built(self) -> Any:
        """MONAI's transform. Raises UserError for an unknown class or setting, and for a value that MONAI refuses."""
        from monai import transforms

        classes = {
            name: cls
            for name, cls in vars(transforms).items()
            if inspect.isclass(cls)
            and issubclass(cls, transforms.Transform)
            and not issubclass(cls, transforms.MapTransform | transforms.Compose)
        }
        if self.transform not in classes:
            problem = f"unknown class {self.transform!r} of monai.transforms"
            raise UserError("transform monai", problem, did_you_mean(self.transform, classes))
        cls = classes[self.transform]
        settings = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
        for key in self.settings:
            if key not in settings:
                raise UserError(self._where, f"unknown setting {key!r}", did_you_mean(key, settings))
        try:
            built = cls(**self.settings)
        except Exception as error:
            line = str(error).strip().partition("\n")[0][:200]
            raise UserError(self._where, f"MONAI refuses its settings: {line}", "see its documentation") from error
        if self.always and isinstance(built, transforms.Randomizable):
            raise UserError(self._where, "draws at random, and a prediction must not", "leave out `always`")
        return built
