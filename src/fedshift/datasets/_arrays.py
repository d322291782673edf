"""Arrays of images and labels: read from NumPy's files, checked, and listed as samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import UserError
from ..io.text import readable
from ._base import Opened

if TYPE_CHECKING:
    import pandas as pd


def read_npz(path: Path, keys: Sequence[str], remedy: str) -> list[np.ndarray]:
    """Return arrays of an npz file, without pickles. Raises UserError for a file that is damaged or lacks one."""
    with readable(path, "npz", remedy), np.load(path, allow_pickle=False) as content:
        lacking = [key for key in keys if key not in content]
        if lacking:
            raise UserError(path, f"has no array {lacking[0]!r}", f"it has {', '.join(content)}")
        return [content[key] for key in keys]


def require_labels(where: object, labels: np.ndarray, classes: int, remedy: str, lowest: int = 0) -> None:
    """Raise UserError for labels (n,) of images other than `lowest`, `lowest` + 1, ..., one for each class."""
    wrong = ~np.isin(labels, np.arange(lowest, lowest + classes))
    if wrong.any():
        first = int(wrong.argmax())
        problem = f"image {first} has label {labels[first]:g}, expected {lowest} to {lowest + classes - 1}"
        raise UserError(where, problem, remedy)


def listed(
    names: Sequence[str], sites: object, labels: np.ndarray, patients: Iterable[object] | None = None
) -> pd.DataFrame:
    """Return the table of `Opened`: name, site, label and, where known, patient of each image."""
    import pandas as pd

    columns = {"sample": names, "site": sites, "label": labels.astype(np.int64), "patient": patients}
    return pd.DataFrame(columns)


def joined(parts: Sequence[Opened]) -> Opened:
    """Return opened images of several parts as those of one set, in order."""
    import pandas as pd

    sizes = [len(part.samples) for part in parts]
    owner = np.repeat(np.arange(len(parts)), sizes)
    number = np.concatenate([np.arange(size) for size in sizes])
    samples = pd.concat([part.samples for part in parts], ignore_index=True)
    return Opened(samples, lambda i: parts[owner[i]].image(number[i]))
