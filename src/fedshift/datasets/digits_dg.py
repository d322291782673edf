"""Digits-DG: digits of four domains, some to train on and others to test on."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from ..core.errors import UserError
from ..io.disk import atomic_folder
from ..io.download import Source
from ._base import Card, Dataset, Opened, joined, names_of
from ._folders import below, opened, write_folders

SITES = ("mnist", "mnist_m", "svhn", "syn")
PARTS = ("train", "val")
NAMES = tuple("0123456789")
SIDE = 28


class DigitsDg(Dataset):
    """The sites mnist, mnist_m, svhn and syn each have the images (28x28 RGB) of their folders train and val.

    Read from site/{train,val}/class/image: 600 JPEG images of 32x32 for each class and site, resized as in Pillow.
    """

    site_kind = "domain"
    miniature_fields = frozenset({"images"})
    shape: ClassVar[tuple[int, int, int] | None] = (3, SIDE, SIDE)
    classes: tuple[str, ...] = names_of(NAMES)
    archive: str = Field("digits_dg.zip", description="zip or tar file with the folders, in the mirror directory")
    images: int = Field(20, ge=5, description="images of each class and site in the miniature, a fifth of them in val")

    def card(self) -> Card:
        return Card(
            title="Digits-DG",
            version="2020",
            source="https://github.com/KaiyangZhou/Dassl.pytorch (DATASETS.md)",
            licence="none stated; its source MNIST is CC BY-SA 3.0, SVHN for non-commercial use only",
            citation="Zhou et al. 2020 (ECCV, Learning to Generate Novel Domains for Domain Generalization); LeCun et "
            "al. 1998 (MNIST), Netzer et al. 2011 (SVHN), Ganin and Lempitsky 2015 (MNIST-M, SynthDigits)",
            caveat="mnist and mnist_m may share digits, and images of svhn a photograph; no file says which ones do.",
        )

    def sources(self) -> Sequence[Source]:
        return [Source(None, self.archive, unpack=True, page=self.card().source)]

    def open(self, raw: Path) -> Opened:
        root = below(raw / self.sources()[0].unpacked_name, SITES[0])
        parts = []
        for site in SITES:
            for part in PARTS:
                if not (root / site / part).is_dir():
                    remedy = f"expected {' and '.join(PARTS)} in each of {', '.join(SITES)}"
                    raise UserError(root / site / part, "no such folder", remedy)
            images = opened(root / site, PARTS, {name: name for name in NAMES}, SIDE)
            names = site + "/" + images.samples["sample"]
            parts.append(Opened(images.samples.assign(sample=names, site=site), images.image))
        return joined(parts)

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits like those of a digital display; sites differ in colours and noise."""
        with atomic_folder(raw / self.sources()[0].unpacked_name) as new:
            whole = new / "whole"
            write_folders(whole, SITES, NAMES, self.images, 32)
            for site in SITES:
                for part in PARTS:
                    for name in NAMES:
                        (new / site / part / name).mkdir(parents=True)
                for file in sorted((whole / site).rglob("*.jpg")):
                    part = "val" if int(file.stem[-4:]) <= self.images // 5 else "train"
                    file.rename(new / site / part / file.parent.name / file.name)
            shutil.rmtree(whole)
