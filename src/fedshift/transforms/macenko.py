"""Stain normalisation, with MONAI: Macenko et al. 2009."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from pydantic import Field

from ._base import Transform


class Macenko(Transform):
    """Stain normalisation of haematoxylin and eosin to a common reference, by MONAI's `NormalizeHEStains`.

    It acts once, when images are prepared. An image stays as it is if it has little tissue, or if its two stains cannot
    be separated: stain directions estimated from a few pixels would give all other pixels wrong colours.
    """

    when = "prepare"
    mask = "stays"
    transmitted_light: int = Field(240, ge=1, le=255, description="grey level of the empty glass (Io)")
    alpha: float = Field(1.0, gt=0, lt=50, description="percentile of angles that is used as extreme stain direction")
    beta: float = Field(0.15, gt=0, description="optical density below which a pixel counts as glass")
    tissue: float = Field(0.1, ge=0, le=1, description="share of stained pixels below which an image stays as it is")

    @functools.cached_property
    def _normalise(self) -> Any:
        from monai.apps.pathology.transforms.stain.array import NormalizeHEStains

        normalise: Any = NormalizeHEStains(tli=self.transmitted_light, alpha=self.alpha, beta=self.beta)
        extract = normalise.stain_extractor

        def ordered(image: np.ndarray) -> np.ndarray:
            """Put haematoxylin, which absorbs more red, into the first column; some versions of MONAI do not."""
            stains = extract(image)
            return stains if stains[0, 0] > stains[0, 1] else stains[:, ::-1]

        normalise.stain_extractor = ordered
        return normalise

    def prepare(self, image: np.ndarray) -> np.ndarray:
        # One is added, since the logarithm of a black pixel has no value.
        density = -np.log((image.astype(np.float32) + 1) / self.transmitted_light)
        if (density > self.beta).all(2).mean() < self.tissue or np.ptp(image, axis=(0, 1)).max() == 0:
            return image
        try:
            with np.errstate(divide="raise", invalid="raise"):
                return self._normalise(image).astype(np.uint8)
        except (ValueError, FloatingPointError, np.linalg.LinAlgError):
            return image
