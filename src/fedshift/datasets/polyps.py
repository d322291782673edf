"""Polyps: colonoscopy images with outlined polyps from five public sets, as FL-MedSegBench divides them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ..io.download import Source
from ._base import Card, names_of
from ._outlines import Layout, Outlines, ellipse

ARCHIVE = Source(
    None,
    "FL_Polyp.zip",
    unpack=True,
    page="the folder in Google Drive to which docs/datasets/Fed-Polyp.md of https://github.com/meiluzhu/FL-MedSegBench "
    "links (pack a folder for each of the five sets)",
)


def _layout(folder: str, count: int, ending: str = "png") -> Layout:
    """Return the layout of a set in a folder with the folders images and masks, whose files have equal names."""
    written = folder.replace("-?", "")
    return Layout(
        (ARCHIVE,),
        rf"(FL_Polyp/(?:.*/)?)({folder})/image(s?)/(.+)\.(?:png|jpe?g|tiff?|bmp)",
        r"\1\2/mask\3/\4",
        (count,),
        lambda n: (f"FL_Polyp/{written}/images/{1 + n}.{ending}", f"FL_Polyp/{written}/masks/{1 + n}.{ending}"),
    )


class Polyps(Outlines):
    """1,448 images of colonoscopies; sites = cvc_300 60, cvc_clinicdb 612, cvc_colondb 380, endotect 200, etis 196.

    Read from SET/images and SET/masks, or SET/image and SET/mask, where SET is CVC-300, CVC-ClinicDB, CVC-ColonDB,
    EndoTect or ETISLaribPolypDB. Pixels of a mask brighter than half of white are polyp.
    """

    layouts: ClassVar[Mapping[str, Layout]] = {
        "cvc_300": _layout("CVC-300", 60),
        "cvc_clinicdb": _layout("CVC-ClinicDB", 612, "tif"),
        "cvc_colondb": _layout("CVC-ColonDB", 380),
        "endotect": _layout("EndoTect", 200),
        "etis": _layout("ETIS-?Larib-?PolypDB", 196),
    }
    classes: tuple[str, ...] = names_of(("background", "polyp"), "classes", " of a mask")

    def card(self) -> Card:
        return Card(
            title="Polyps of CVC-300, CVC-ClinicDB, CVC-ColonDB, EndoTect and ETIS-Larib",
            version="as in FL-MedSegBench, 2026",
            source="https://github.com/meiluzhu/FL-MedSegBench (docs/datasets/Fed-Polyp.md)",
            licence="for research; each set has its own terms (unverified)",
            citation="Vázquez et al. 2017 (J Healthcare Eng, CVC-300); Bernal et al. 2015 (CMIG 43:99, ClinicDB); "
            "Bernal et al. 2012 (Pattern Recognition 45:3166, ColonDB); Hicks et al. 2021 (ICPR, EndoTect); "
            "Silva et al. 2014 (IJCARS 9:283, ETIS-Larib)",
            caveat="Frames of one video resemble each other, and the files name neither video nor patient: the 612 "
            "frames of ClinicDB are of 29 sequences. Splits are by image, so that scores at home are too good, and "
            "intervals too narrow. Names of files and endings within the folders are unverified.",
        )

    def drawing(self, rng: np.random.Generator) -> np.ndarray:
        return ellipse(rng, (0.1, 0.3)).astype(np.uint8)
