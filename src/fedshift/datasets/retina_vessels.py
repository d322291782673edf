"""Retinal vessels: five sets of fundus photographs with outlined vessels, each from another clinic and camera."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..io.disk import atomic
from ..io.download import Source
from ._base import Card, names_of
from ._outlines import SIDE, Layout, Outlines

STARE = "https://cecas.clemson.edu/~ahoover/stare/probing/"
# The checksums of STARE's and HRF's archives are those that readers of both sets publish (torch-em; the authors none).
IMAGES = Source(
    f"{STARE}stare-images.tar",
    "stare-images.tar",
    sha256="5f7b509b6067cad4f1be84933145d783de9ec087b3eaaf4db0103dd0144dd433",
    unpack=True,
)
LABELS = Source(
    f"{STARE}labels-ah.tar",
    "labels-ah.tar",
    sha256="ebf2f1e17ca955f24579d9edd990e2dae79a5c82def69f0985d8e24f826ddd2f",
    unpack=True,
)
DRIVE = Source(
    None,
    "DRIVE.zip",
    unpack=True,
    page="https://drive.grand-challenge.org (after a registration; pack the folders training and test)",
)
CHASE = Source("https://researchinnovation.kingston.ac.uk/files/40659508/CHASEDB1.zip", "CHASEDB1.zip", unpack=True)
HRF = Source(
    "https://www5.cs.fau.de/fileadmin/research/datasets/fundus-images/all.zip",
    "all.zip",
    sha256="a914d02cda161b7f33f25d0397c276d50e9a6cbc705e9b364a54f0adafed57e4",
    unpack=True,
)
LESAV = Source(None, "LES-AV.zip", unpack=True, page="https://figshare.com/articles/dataset/LES-AV_dataset/11857698")


class RetinaVessels(Outlines):
    """155 fundus photographs with outlined vessels; sites = drive 40, stare 20, chase 28, hrf 45, lesav 22 images.

    Read from the official archives with the masks of the first observer: DRIVE's `1st_manual`, STARE's `labels-ah`,
    CHASE_DB1's `1stHO`, HRF's `manual1` and LES-AV's `vessel-segmentations`. DRIVE's present release has masks of its
    20 training images only, older ones of all 40: both are read. Photographs are taken whole, with the black around
    the field of view. At small sizes thin vessels are partly lost, above all those of HRF, whose photographs are 3,504
    pixels wide. A patient is a child at chase, which has both eyes of 14, and a photograph at the other sites.
    """

    layouts: ClassVar[Mapping[str, Layout]] = {
        "drive": Layout(
            (DRIVE,),
            r"(DRIVE/(?:.*/)?)(training|test)/images/(\d+)_\2\.tif",
            r"\1\2/1st_manual/\3_manual1",
            (40, 20),
            lambda n: (
                f"DRIVE/training/images/{21 + n}_training.tif",
                f"DRIVE/training/1st_manual/{21 + n}_manual1.gif",
            ),
            r"\3",
        ),
        "stare": Layout(
            (IMAGES, LABELS),
            r"(stare-images/)(im\d{4})\.ppm",
            r"labels-ah/\2.ah",
            (20,),
            lambda n: (f"stare-images/im{1 + n:04}.ppm", f"labels-ah/im{1 + n:04}.ah.ppm"),
            r"\2",
        ),
        "chase": Layout(
            (CHASE,),
            r"(CHASEDB1/(?:.*/)?)Image_(\d\d)([LR])\.jpg",
            r"\1Image_\2\3_1stHO",
            (28,),
            lambda n: (
                f"CHASEDB1/Image_{1 + n // 2:02}{'LR'[n % 2]}.jpg",
                f"CHASEDB1/Image_{1 + n // 2:02}{'LR'[n % 2]}_1stHO.png",
            ),
            r"\2",
        ),
        "hrf": Layout(
            (HRF,),
            r"(all/(?:.*/)?)images/(\d\d_(?:h|dr|g))\.jpg",
            r"\1manual1/\2",
            (45,),
            lambda n: (
                f"all/images/{1 + n // 3:02}_{('h', 'dr', 'g')[n % 3]}.jpg",
                f"all/manual1/{1 + n // 3:02}_{('h', 'dr', 'g')[n % 3]}.tif",
            ),
            r"\2",
        ),
        "lesav": Layout(
            (LESAV,),
            r"(LES-AV/(?:.*/)?)images/(\d+)\.png",
            r"\1vessel-segmentations/\2",
            (22,),
            lambda n: (f"LES-AV/LES-AV/images/{1 + n}.png", f"LES-AV/LES-AV/vessel-segmentations/{1 + n}.png"),
            r"\2",
        ),
    }
    classes: tuple[str, ...] = names_of(("background", "vessel"), "classes", " of a mask")

    def card(self) -> Card:
        return Card(
            title="Retinal vessels of DRIVE, STARE, CHASE_DB1, HRF and LES-AV",
            version="2000 to 2018",
            source="https://drive.grand-challenge.org, https://cecas.clemson.edu/~ahoover/stare, "
            "https://researchdata.kingston.ac.uk/96, https://www5.cs.fau.de/research/data/fundus-images, "
            "https://figshare.com/articles/dataset/LES-AV_dataset/11857698",
            licence="each set has its own: DRIVE and STARE for research; CHASE_DB1 and HRF CC BY 4.0; LES-AV CC BY 4.0 "
            "(unverified)",
            citation="Staal et al. 2004 (IEEE TMI 23:501, DRIVE); Hoover et al. 2000 (IEEE TMI 19:203, STARE); Fraz et "
            "al. 2012 (IEEE TBME 59:2538, CHASE_DB1); Budai et al. 2013 (Int J Biomed Imaging, HRF); Orlando et al. "
            "2018 (MICCAI, LES-AV)",
            caveat="Sets differ in field of view, disease, observer and how far thin vessels are drawn, so labels "
            "shift as well as images. Few patients. That a photograph is a patient at stare and hrf is unverified, and "
            "so is that the archive of STARE has its files at the top.",
        )

    def unpacked(self, raw: Path) -> None:
        """Decompress the images of STARE, each of which is compressed by itself in the official archives."""
        for source in (IMAGES, LABELS):
            for file in (raw / source.unpacked_name).glob("*.ppm.gz"):
                with atomic(file.with_suffix("")) as new, gzip.open(file) as content, new.open("wb") as out:
                    shutil.copyfileobj(content, out)
                file.unlink()

    def drawing(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the mask of five vessels that leave one point and bend: (SIDE, SIDE), uint8."""
        rows, columns = np.mgrid[:SIDE, :SIDE] + 0.5
        centre = rng.uniform(0.3, 0.7, 2) * SIDE
        angle = np.arctan2(rows - centre[0], columns - centre[1])
        radius = np.hypot(rows - centre[0], columns - centre[1])
        vessels = np.zeros((SIDE, SIDE), dtype=bool)
        for k in range(5):
            course = 2 * np.pi * k / 5 + rng.uniform(-0.3, 0.3) + rng.uniform(-0.02, 0.02) * radius
            # across a vessel, the distance is the radius times the angle to its course
            across = radius * np.abs(np.angle(np.exp(1j * (angle - course))))
            vessels |= across < rng.uniform(1, 2)
        return vessels.astype(np.uint8)
