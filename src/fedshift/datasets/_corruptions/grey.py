"""Types and rounding that all corruptions share.

A corruption takes images (n, 32, 32, 3) uint8, a random generator for each image, and its constants. It returns uint8,
or floats, which are clipped to [0, 1]. `TABLE` of each module has its functions with their constants at the severities
1 to 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Streams = Sequence[np.random.Generator]
Table = dict[str, tuple[Callable[..., np.ndarray], tuple[tuple[Any, ...], ...]]]


def truncated(x: np.ndarray) -> np.ndarray:
    """Convert floats to grey levels, uint8: clip to [0, 1] and round down to whole levels, as the script does.

    One millionth of a level is added. Without it, rounding errors, which differ between machines, would lower flat
    surfaces by one level.
    """
    return (np.clip(x, 0, 1) * 255 + 1e-6).astype(np.uint8)
