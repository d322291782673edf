"""The layout of the archive of Camelyon17-WILDS, and its counts, by which any copy of it is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, require_none
from ..io.tables import read_table

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "camelyon17_v1.0"
SIZE = 10_658_709_504
"""Bytes of the official archive."""
ROOM = 1.1
"""Disk space of the unpacked images, in units of SIZE: small files leave gaps."""
RELEASE = "RELEASE_v1.0.txt"
COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")
PLACE = ["patient", "node", "x_coord", "y_coord"]
"""Columns that say which patch a row is."""
ID_VAL = 1
"""The value of the column split that marks in-distribution validation; 0 marks training."""
VALIDATION = 1
TEST = 2
"""The centres on which WILDS validates and tests; the others train."""
PATIENTS_EACH = 20
SLIDES_EACH = 10
"""Centre c has the patients from 20 c and the slides from 10 c."""


def patch_file(row: Mapping[Any, Any]) -> str:
    """Return the file of a patch, by its row in metadata.csv; its patient is text of three digits."""
    where = f"patient_{row['patient']}_node_{row['node']}"
    return f"patches/{where}/patch_{where}_x_{row['x_coord']}_y_{row['y_coord']}.png"


@dataclass(frozen=True)
class Counts:
    """The numbers of patches and patients in a whole set.

    Parameters
    ----------
    patches : patches of each centre, (without, with tumour)
    patients : patients of each centre
    splits : rows in the `train` and the `id_val` of the centres that train
    """

    patches: Mapping[int, tuple[int, int]]
    patients: Mapping[int, int]
    splits: tuple[int, int]


WILDS = Counts(
    patches={0: (29_718, 29_718), 1: (17_452, 17_452), 2: (42_527, 42_527), 3: (64_919, 64_919), 4: (73_361, 73_361)},
    patients={0: 7, 1: 8, 2: 9, 3: 10, 4: 9},
    splits=(302_436, 33_560),
)
"""The published counts (Koh et al. 2021, and the package `wilds`)."""
VERIFIED = "counts per centre, label, patient and split, which are those of WILDS"


def require_counts(metadata: Path, expected: Counts, remedy: str) -> str:
    """Return, in words, what a metadata.csv was checked for. Raises UserErrors with each count that is wrong."""
    frame = read_table(metadata, columns=COLUMNS)
    require_none(UserError(metadata, fault, remedy) for fault in faults(frame, expected))
    return VERIFIED


def faults(frame: pd.DataFrame, expected: Counts) -> Iterator[str]:
    """Yield what is wrong with the rows of a metadata.csv; columns as in COLUMNS, all whole numbers."""
    import pandas as pd

    wrong = [name for name in COLUMNS if not pd.api.types.is_integer_dtype(frame[name])]
    if wrong:
        yield f"the column {wrong[0]!r} must hold only whole numbers"
        return
    rows = zip(frame["center"].tolist(), frame["tumor"].tolist(), strict=True)
    patches: Mapping[tuple[int, int], int] = Counter(rows)
    wanted = {(centre, label): n for centre, pair in expected.patches.items() for label, n in enumerate(pair)}
    for centre, label in sorted({*patches, *wanted}):
        number = patches.get((centre, label), 0)
        right = wanted.get((centre, label), 0)
        if number != right:
            yield f"centre {centre} has {number:,} patches with label {label}, expected {right:,}"
    patients = frame.groupby("center")["patient"].nunique().to_dict()
    for centre, right in expected.patients.items():
        number = patients.get(centre, 0)
        if number != right:
            yield f"centre {centre} has {number} patients, expected {right}"
    elsewhere = (frame["patient"] // PATIENTS_EACH != frame["center"]) | (
        frame["slide"] // SLIDES_EACH != frame["center"]
    )
    if elsewhere.any():
        row = frame[elsewhere].iloc[0]
        yield (
            f"patient {row['patient']} and slide {row['slide']} do not belong to centre {row['center']}"
            f" (rows like this: {int(elsewhere.sum()):,})"
        )
    training = frame.loc[~frame["center"].isin([VALIDATION, TEST]), "split"]
    for split, (name, right) in enumerate(zip(("train", "id_val"), expected.splits, strict=True)):
        number = int((training == split).sum())
        if number != right:
            yield f"the split {name} has {number:,} patches, expected {right:,}"
    twice = frame.duplicated(PLACE)
    if twice.any():
        where = ", ".join(f"{name} {value}" for name, value in frame.loc[twice, PLACE].iloc[0].items())
        yield f"a patch appears twice: {where}"
