"""Camelyon17-WILDS v1.0: lymph-node patches of five Dutch centres.

The Hugging Face Hub has a copy as Parquet shards. The PNG files in the shards are written unchanged to the folders of
the official archive, so that both sources are read alike. Each shard is removed once its images are written: the disk
holds the images and one shard, where the archive needs twice the room of the images.
"""

from __future__ import annotations

import io
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image
from pydantic import Field

from ..core.console import say, track
from ..core.errors import UserError, require_none
from ..core.rng import stream
from ..io.disk import atomic_folder, in_turn, require_space
from ..io.download import MARKER, Source, fetch
from ..io.images import DAMAGE, read_image
from ..io.origins import INDEX, NAME, Hub, Origin, Receipt, Row, checked, obtain, write_images
from ..io.tables import read_table
from ..io.text import read_json, require_columns, write_json
from . import _histology as tissue
from ._base import Card, Dataset, Opened, listed

if TYPE_CHECKING:
    import pandas as pd

ARCHIVE = "WILDS' archive"
FOLDER = "camelyon17_v1.0"
SIZE = 10_658_709_504
"""Bytes of the official archive."""
ROOM = 1.1
"""Disk space of the unpacked images, in units of SIZE: small files leave gaps."""
RELEASE = "RELEASE_v1.0.txt"
COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")
PLACE = ["patient", "node", "x_coord", "y_coord"]
"""Columns of metadata.csv that together identify a patch."""
ID_VAL = 1
"""The value of the column split that marks in-distribution validation; 0 marks training."""
VALIDATION = 1
TEST = 2
"""VALIDATION and TEST are the centres on which WILDS validates and tests; the other three are for training."""
PATIENTS_EACH = 20
SLIDES_EACH = 10
"""Numbers of patients of centre c start at PATIENTS_EACH * c, and numbers of slides at SLIDES_EACH * c."""
HUB = Hub("wltjr1007/Camelyon17-WILDS", "d784d5344ba6c967f83f9f3d9b2f1e2a4d6eb78f")
LICENCE = "stated there as other; the slides of CAMELYON17 are CC0 1.0"
MIRROR_FOLDERS = (".", "data", "Camelyon17-WILDS", "Camelyon17-WILDS/data")
"""Folders of a mirror in which shards are looked for: where a download or a clone of the copy puts them."""
NUMBERS = {"label": "tumor", "center": "center", "patient": "patient", "node": "node", "slide": "slide"}
NUMBERS |= {"x_coord": "x_coord", "y_coord": "y_coord"}
"""Columns of a shard that are whole numbers, and their names in metadata.csv."""
SIDE = 96
CENTRES = {"train": {0, 3, 4}, "validation": {0, 1, 3, 4}, "test": {2}}
"""The centres in each split of the copy. Its `validation` has WILDS' id_val (centres 0, 3, 4) and val (centre 1)."""
SPLITS: Mapping[str, tuple[int, int]] = {"train": (14, 302_436), "validation": (3, 68_464), "test": (4, 85_054)}
"""The number of shards and the number of rows of each split of the Hugging Face Hub's copy."""
MINIATURE = f"synthetic miniature in the layout of {FOLDER}\n"
"""The content of the file RELEASE in a miniature."""


@dataclass(frozen=True)
class Counts:
    """The numbers of patches and patients that a complete set has.

    Parameters
    ----------
    patches : number of patches of each centre (without tumour, with tumour)
    patients : number of patients of each centre
    splits : number of rows in the splits train and id_val of the training centres
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


class Camelyon17(Dataset):
    """Patches of 96x96 pixels, positive if the central 32x32 pixels contain tumour; site = centre, patient = patient.

    Files are listed in the order of metadata.csv, as the package `wilds` lists them. No checksum of the official
    archive is published, so its size is checked, and the checksums of the prepared data are kept. Where its server does
    not give it, the images come from a copy at the Hugging Face Hub, in the same files and the same order. A mirror may
    hold the archive, the unpacked folder or the shards of the copy. Whatever the source, the counts per centre, label,
    patient and split must be those of WILDS.
    """

    miniature_fields = frozenset({"patches", "patients", "shift"})
    reading_fields = frozenset({"id_val"})
    later_fields: ClassVar[frozenset[str]] = frozenset({"id_val", "shift"})
    shape: ClassVar[tuple[int, int, int] | None] = (3, 96, 96)
    classes: tuple[str, ...] = Field(("normal", "tumour"), description="names of the labels 0 and 1")
    id_val: bool = Field(
        True,
        description="whether the patches of centres 0, 3 and 4 that WILDS keeps for in-distribution validation are "
        "read; without them, these centres hold WILDS' training patches and no others",
    )
    patches: int = Field(360, ge=40, description="patches of each centre in the miniature")
    patients: int = Field(
        60, ge=3, le=199, description="patients of each centre in the miniature; at most half as many as patches"
    )
    shift: float = Field(
        1.0,
        ge=0,
        le=2,
        description="how far the stains and scanners of centres 1 to 4 are from those of centre 0 in the miniature, as "
        "a multiple of the usual distance; with 0, all centres have the colours of centre 0",
    )

    def card(self) -> Card:
        return Card(
            title="Camelyon17-WILDS",
            version="1.0",
            source="https://wilds.stanford.edu/datasets/#camelyon17",
            licence="CC0 1.0",
            citation="Bandi et al. 2018 (IEEE TMI 38(2):550-560); Koh et al. 2021 (WILDS, ICML)",
        )

    def sources(self) -> Sequence[Source]:
        url = "https://worksheets.codalab.org/rest/bundles/0xe45e15f39fb54e9d9e919556af67aabe/contents/blob/"
        return [Source(url, f"{FOLDER}.tar.gz", size=SIZE, unpack=True)]

    def origins(self) -> Sequence[Origin]:
        copy = tuple(shard for split in shards().values() for shard in split)
        return [
            Origin(ARCHIVE, tuple(self.sources()), self._take_archive),
            Origin(NAME, copy, self._take_copy, LICENCE, MIRROR_FOLDERS, (staging(Path(FOLDER)).name,)),
        ]

    def download(self, raw: Path, mirror: Path | None) -> Receipt:
        folder = raw / FOLDER
        if mirror and (mirror / FOLDER / "metadata.csv").is_file() and not folder.exists():
            folder.symlink_to((mirror / FOLDER).resolve())
        linked = folder.is_symlink()
        if linked:
            name = f"the folder {folder.resolve().name} of the mirror"
            receipt = Receipt(name, (), ("images: as they lie in the mirror",))
        else:
            receipt = obtain(self._possible(folder), raw, mirror)
        try:
            metadata = folder / "metadata.csv"
            found = faults(read_table(metadata, columns=COLUMNS), WILDS)
            require_none(UserError(metadata, fault, "obtain Camelyon17-WILDS v1.0 again") for fault in found)
        except UserError:
            if linked:
                folder.unlink()
            raise
        return receipt.also("counts per centre, label, patient and split, which are those of WILDS")

    def _possible(self, folder: Path) -> Sequence[Origin]:
        """Return the one origin that a finished `folder` came from, as its marker file says, or else all origins."""
        marker = folder / MARKER
        if not marker.is_file():
            return self.origins()
        content = read_json(marker).get("content")
        used = [o for o in self.origins() if content and content in (o.sources[0].url, o.sources[0].page)]
        return used or self.origins()

    def _take_archive(self, raw: Path, mirror: Path | None) -> Receipt:
        """Get the official archive from the mirror or the network, and unpack it into `raw`."""
        (source,) = self.sources()
        if not (raw / FOLDER).exists():
            here = sum(f.stat().st_size for f in raw.glob(f".{FOLDER}.tar*") if f.is_file())
            in_mirror = mirror and (mirror / source.filename).is_file()
            require_space(raw, (ROOM if in_mirror else 1 + ROOM) * SIZE - here)
        fetch(source, raw, mirror)
        return Receipt(f"{ARCHIVE} ({source.url})", *checked([source]))

    def _take_copy(self, raw: Path, mirror: Path | None) -> Receipt:
        """Get the Hugging Face Hub's copy, write its images to the archive's folders, and return what was verified.

        Rows are compared with the metadata.csv of the archive if the mirror has it. Finished shards stay beside the
        folder, and the next call goes on from them. Raises UserErrors that name each wrong count, and UserError for a
        damaged shard, which is deleted if it was downloaded.
        """
        shelf = self.origins()[1].shelf(mirror)
        tables = [folder / "metadata.csv" for folder in (mirror, shelf) if folder]
        official = next((table for table in tables if table.is_file()), None)
        folder = raw / FOLDER
        new = staging(folder)
        with in_turn(folder.with_name(f".{folder.name}.lock"), lambda: say(f"{folder.name}: another process gets it")):
            if folder.exists():
                marker = read_json(folder / MARKER) if (folder / MARKER).is_file() else {}
                if marker.get("content") != HUB.page:
                    raise UserError(folder, f"was not made from {NAME}", "move it away")
                return _receipt(marker["compared"])
            files = shards()
            done = len([*(new / INDEX).glob("*.csv")])
            require_space(folder.parent, ROOM * SIZE * (1 - done / sum(map(len, files.values()))))
            frames = {
                name: [write_images(shard, new, shelf, ["image_id", *NUMBERS], _patch) for shard in split]
                for name, split in files.items()
            }
            metadata = _metadata(frames, new)
            compared = _compared(metadata, official)
            metadata.assign(patient=metadata["patient"].map("{:03d}".format)).to_csv(new / "metadata.csv")
            (new / RELEASE).write_text(f"made of the shards of {HUB.page}\n", encoding="utf-8")
            write_json(new / MARKER, {"content": HUB.page, "compared": compared})
            # the images are on the disk before the folder counts as finished
            os.sync()
            new.rename(folder)
            shutil.rmtree(folder / INDEX)
        return _receipt(compared)

    def open(self, raw: Path) -> Opened:
        folder = raw / FOLDER
        metadata = _check(folder / "metadata.csv")
        if not (folder / RELEASE).exists():
            problem = f"has no {RELEASE}: it is another version, or only partly unpacked"
            raise UserError(folder, problem, "obtain the archive again")
        rows = metadata.assign(patient=metadata["patient"].map("{:03d}".format))
        files = [patch_file(row) for row in rows[PLACE].to_dict("records")]
        samples = listed(
            [Path(file).stem.removeprefix("patch_") for file in files],
            [f"centre{centre}" for centre in metadata["center"]],
            metadata["tumor"].to_numpy(),
            [Path(file).parent.name.partition("_node_")[0] for file in files],
        )
        held_out = (metadata["split"] == ID_VAL) & ~metadata["center"].isin([VALIDATION, TEST])
        kept = np.flatnonzero(self.id_val | ~held_out.to_numpy())
        return Opened(samples.iloc[kept].reset_index(drop=True), lambda i: read_image(folder / files[kept[i]]))

    def miniature(self, raw: Path) -> None:
        """Write synthetic tissue of five centres, in the layout of the archive.

        Each centre has its own stain, scanner and patients, and each patient one slide and patches of both classes.
        Patients of centre c are numbered from 20 c as in the real set, or from n c if a centre has n > 20.
        """
        import pandas as pd

        patients = min(self.patients, self.patches // 2)
        first_patient = max(20, patients)
        first_slide = max(10, patients)
        rows: list[dict[str, Any]] = [
            {
                "patient": f"{first_patient * centre + n % patients:03d}",
                "node": n % patients % 5,
                "x_coord": 32 * (n // patients),
                "y_coord": 32 * n,
                "tumor": n // patients % 2,
                "slide": first_slide * centre + n % patients,
                "center": centre,
                "split": 0,
            }
            for centre in range(len(tissue.CENTRES))
            for n in range(self.patches)
        ]
        with atomic_folder(raw / FOLDER) as new:
            for row in track(rows, "draw patches", len(rows), "patches"):
                rng = stream("camelyon17 miniature", *row.values())
                patch = tissue.draw(rng, bool(row["tumor"]), tissue.CENTRES[row["center"]].away(self.shift))
                path = new / patch_file(row)
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(patch).save(path, compress_level=1)
            pd.DataFrame(rows).to_csv(new / "metadata.csv")
            (new / RELEASE).write_text(MINIATURE, encoding="utf-8")


def _check(metadata: Path) -> pd.DataFrame:
    """Read a metadata.csv. Raises UserError for a patch without whole numbers in PLACE, an unknown label or centre."""
    frame = read_table(metadata, columns=COLUMNS)
    require_columns(metadata, frame, dict.fromkeys(PLACE, "whole numbers"), "obtain the archive again")
    for column, known in (("tumor", range(2)), ("center", range(5))):
        wrong = ~frame[column].isin(list(known))
        if wrong.any():
            at = int(wrong.to_numpy().argmax())
            problem = f"{column} is {frame[column].iloc[at]!r}, expected one of {', '.join(map(str, known))}"
            raise UserError(f"{metadata}, row {at + 2}", problem, "obtain the archive again")
    return frame


def patch_file(row: Mapping[Any, Any]) -> str:
    """Return the path of a patch's file, from its row in metadata.csv; `row["patient"]` is text of three digits."""
    where = f"patient_{row['patient']}_node_{row['node']}"
    return f"patches/{where}/patch_{where}_x_{row['x_coord']}_y_{row['y_coord']}.png"


def faults(frame: pd.DataFrame, expected: Counts) -> Iterator[str]:
    """Yield a sentence for each difference between the rows of a metadata.csv and the `expected` counts and numbers."""
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


def shards() -> dict[str, list[Source]]:
    """Return the Parquet shards of the copy, by split. Neither their sizes nor their checksums are published."""
    return {name: HUB.shards(name, number) for name, (number, _) in SPLITS.items()}


def staging(folder: Path) -> Path:
    """Return the temporary folder, beside `folder`, in which the images of the copy are collected."""
    return folder.with_name(f".{folder.name}.copy")


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
    """Return the path of a patch's file, and its row of metadata.csv with image_id, from a row of a shard.

    Raises ValueError if the image is damaged, or not 96x96 pixels. Only `row` is used.
    """
    record = {"image_id": int(row["image_id"]), **{ours: int(row[name]) for name, ours in NUMBERS.items()}}
    try:
        with Image.open(io.BytesIO(row["image"]["bytes"]), formats=["PNG"]) as image:
            image.verify()
    except (*DAMAGE, Image.DecompressionBombError):
        raise ValueError("is damaged: its image is not a whole PNG file") from None
    if image.size != (SIDE, SIDE):
        raise ValueError(f"has an image of {image.size[0]}x{image.size[1]} pixels, expected {SIDE}x{SIDE}")
    return patch_file({**record, "patient": f"{record['patient']:03d}"}), record


def _metadata(frames: Mapping[str, Sequence[pd.DataFrame]], new: Path) -> pd.DataFrame:
    """Return the metadata.csv of all shards, in the order of image_id. `frames` maps a split to one table a shard.

    Raises UserErrors, about the folder `new`, with each wrong count or number.
    """
    import pandas as pd

    wrong = []
    tables = []
    for name, parts in frames.items():
        table = pd.concat(parts, ignore_index=True)
        if len(table) != (right := SPLITS[name][1]):
            wrong.append(f"the split {name} has {len(table):,} rows, expected {right:,}")
        foreign = sorted({*table["center"]} - CENTRES[name])
        if foreign:
            wrong.append(f"the split {name} has patches of centre {foreign[0]}")
        # the copy's validation split has WILDS' val, which is centre 1, and its id_val, which is all other centres
        held_out = (table["center"] != VALIDATION) & (name == "validation")
        tables.append(table.assign(split=held_out.astype("int64")))
    whole = pd.concat(tables).sort_values("image_id", kind="stable")
    if whole["image_id"].tolist() != list(range(len(whole))):
        wrong.append(f"image_id is not 0 to {len(whole) - 1:,}, each once")
    metadata = whole.set_index("image_id")[list(COLUMNS)].rename_axis(None)
    wrong += faults(metadata, WILDS)
    remedy = "check that all shards are of one revision; remove this folder to begin again"
    require_none(UserError(new, fault, remedy) for fault in wrong)
    return metadata


def _compared(metadata: pd.DataFrame, official: Path | None) -> str | None:
    """Compare all rows with the metadata.csv at `official`, and return words for what was compared.

    Return None if `official` is None. Raises UserError where rows differ.
    """
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
