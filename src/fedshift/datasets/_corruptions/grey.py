"""What all corruptions share. They take images (n, 32, 32, 3) uint8, a generator for each, and their constants.

They return uint8, or floats of which those in [0, 1] are kept. `TABLE` of each module has its functions with their
constants at the severities 1 to 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Streams = Sequence[np.random.Generator]
Table = dict[str, tuple[Callable[..., np.ndarray], tuple[tuple[Any, ...], ...]]]


def truncated(x: np.ndarray) -> np.ndarray:
    """Grey levels, uint8, of floats: clipped to [0, 1] and cut to whole levels, as the script does.

    A millionth more, or rounding errors, which differ between machines, would take a level off flat surfaces.
    """
    return (np.clip(x, 0, 1) * 255 + 1e-6).astype(np.uint8)
