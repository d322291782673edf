"""Camelyon17-WILDS: the layout of its archive, the counts by which any copy is checked, and a copy as Parquet shards.

The copy lies at the Hugging Face Hub. Its PNG files are written as they are in the shards, so that all that follows is
the same for both sources. A shard is removed once its images are written: the disk holds the images and one shard,
where the archive needs twice the images.
"""

from __future__ import annotations

import io
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.console import say
from ..core.errors import UserError, require_none
from ..io.disk import in_turn, require_space
from ..io.download import MARKER, Source
from ..io.images import DAMAGE
from ..io.origins import Hub, Receipt
from ..io.tables import read_table
from ..io.text import read_json, write_json
from ._hub_copy import INDEX, NAME, Row, write_images

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
HUB = Hub("wltjr1007/Camelyon17-WILDS", "d784d5344ba6c967f83f9f3d9b2f1e2a4d6eb78f")
LICENCE = "stated there as other; the slides of CAMELYON17 are CC0 1.0"
MIRROR_FOLDERS = (".", "data", "Camelyon17-WILDS", "Camelyon17-WILDS/data")
"""Folders of a mirror in which shards are looked for: as a download or a clone of the copy leaves them."""
NUMBERS = {"label": "tumor", "center": "center", "patient": "patient", "node": "node", "slide": "slide"}
NUMBERS |= {"x_coord": "x_coord", "y_coord": "y_coord"}
"""Columns of a shard that are whole numbers, and their names in metadata.csv."""
SIDE = 96
CENTRES = {"train": {0, 3, 4}, "validation": {0, 1, 3, 4}, "test": {2}}
"""The centres of each split of the copy; `validation` holds WILDS' id_val and, of centre 1, its val."""


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


@dataclass(frozen=True)
class Split:
    """A split of the copy: the number of its shards and of their rows."""

    shards: int
    rows: int


SPLITS: Mapping[str, Split] = {
    "train": Split(14, 302_436),
    "validation": Split(3, 68_464),
    "test": Split(4, 85_054),
}


def shards(splits: Mapping[str, Split]) -> tuple[Source, ...]:
    """Return all shards. Neither their sizes nor their checksums are published."""
    return tuple(shard for name, split in splits.items() for shard in HUB.shards(name, split.shards))


def staging(folder: Path) -> Path:
    """Return the folder in which the layout of the archive is built."""
    return folder.with_name(f".{folder.name}.copy")


def assemble(
    folder: Path,
    mirror: Path | None,
    official: Path | None,
    expected: Counts,
    splits: Mapping[str, Split],
) -> Receipt:
    """Write `folder` in the layout of the archive, from shards of the mirror or of the Hub, and say what was verified.

    `official` is the metadata.csv of the archive, if there is one to compare with. Finished shards stay beside
    `folder`, and the next call goes on from them. Raises UserErrors that name each wrong count, and UserError for a
    damaged shard, which is deleted if it was downloaded.
    """
    new = staging(folder)
    with in_turn(folder.with_name(f".{folder.name}.lock"), lambda: say(f"{folder.name}: another process gets it")):
        if folder.exists():
            marker = {}
            if (folder / MARKER).is_file():
                marker = read_json(folder / MARKER)
            if marker.get("content") != HUB.page:
                raise UserError(folder, f"was not made from {NAME}", "move it away")
            return _receipt(marker["compared"])
        files = {name: HUB.shards(name, split.shards) for name, split in splits.items()}
        done = len([*(new / INDEX).glob("*.csv")])
        require_space(folder.parent, ROOM * SIZE * (1 - done / sum(map(len, files.values()))))
        frames = {
            name: [write_images(shard, new, mirror, ["image_id", *NUMBERS], _patch) for shard in shards]
            for name, shards in files.items()
        }
        metadata = _metadata(frames, splits, expected, new)
        compared = _compared(metadata, official)
        metadata.assign(patient=metadata["patient"].map("{:03d}".format)).to_csv(new / "metadata.csv")
        (new / RELEASE).write_text(f"made of the shards of {HUB.page}\n", encoding="utf-8")
        write_json(new / MARKER, {"content": HUB.page, "compared": compared})
        # the images are on the disk before the folder counts as finished
        os.sync()
        new.rename(folder)
        shutil.rmtree(folder / INDEX)
    return _receipt(compared)


def _receipt(compared: str | None) -> Receipt:
    order = "the order of the images, which follows the copy's image_id"
    return Receipt(
        f"{NAME} ({HUB.page})",
        (
            "rows per split, and image_id without gaps",
            f"every PNG is whole and has {SIDE}x{SIDE} pixels",
            *([compared] if compared else []),
        ),
        (
            "shards: neither size nor checksum is published",
            "pixels: not compared with the official images",
            *([] if compared else [f"{order}: not compared with the official metadata.csv"]),
        ),
    )


def _patch(row: Row, number: int, shard: Path) -> tuple[str, Row]:
    """Return the file of a patch, and its row of metadata.csv, with its image_id."""
    from PIL import Image

    record = {"image_id": int(row["image_id"]), **{ours: int(row[name]) for name, ours in NUMBERS.items()}}
    try:
        with Image.open(io.BytesIO(row["image"]["bytes"]), formats=["PNG"]) as image:
            image.verify()
    except (*DAMAGE, Image.DecompressionBombError):
        raise ValueError("is damaged: its image is not a whole PNG file") from None
    if image.size != (SIDE, SIDE):
        raise ValueError(f"has an image of {image.size[0]}x{image.size[1]} pixels, expected {SIDE}x{SIDE}")
    return patch_file({**record, "patient": f"{record['patient']:03d}"}), record


def _metadata(
    frames: Mapping[str, Sequence[pd.DataFrame]], splits: Mapping[str, Split], expected: Counts, new: Path
) -> pd.DataFrame:
    """Return the rows of all shards in the order of image_id. Raises UserErrors for all that is wrong with them."""
    import pandas as pd

    wrong = []
    tables = []
    for name, parts in frames.items():
        table = pd.concat(parts, ignore_index=True)
        if len(table) != splits[name].rows:
            wrong.append(f"the split {name} has {len(table):,} rows, expected {splits[name].rows:,}")
        foreign = sorted({*table["center"]} - CENTRES[name])
        if foreign:
            wrong.append(f"the split {name} has patches of centre {foreign[0]}")
        held_out = (table["center"] != VALIDATION) & (name == "validation")
        tables.append(table.assign(split=held_out.astype("int64")))
    whole = pd.concat(tables).sort_values("image_id", kind="stable")
    if whole["image_id"].tolist() != list(range(len(whole))):
        wrong.append(f"image_id is not 0 to {len(whole) - 1:,}, each once")
    metadata = whole.set_index("image_id")[list(COLUMNS)].rename_axis(None)
    wrong += faults(metadata, expected)
    remedy = "check that all shards are of one revision; remove this folder to begin again"
    require_none(UserError(new, fault, remedy) for fault in wrong)
    return metadata


def _compared(metadata: pd.DataFrame, official: Path | None) -> str | None:
    """Return that all rows agree with the official metadata.csv, None if there is none. Raises UserError."""
    if official is None:
        return None
    columns = [*PLACE, "tumor", "center", "slide"]
    rows = read_table(official, columns=columns)
    if len(rows) != len(metadata):
        raise UserError(official, f"has {len(rows):,} rows, and the copy {len(metadata):,}", "is it that of WILDS?")
    differ = (rows.to_numpy() != metadata[columns].to_numpy()).any(1)
    if differ.any():
        row = int(differ.argmax())
        problem = f"differs from the copy in {int(differ.sum()):,} rows, first in row {row + 2}"
        raise UserError(official, problem, "is it that of WILDS? Remove it to go on without this comparison")
    return "place, label, centre and slide of every row, by the metadata.csv in the mirror"
