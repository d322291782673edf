"""Optic disc and cup of four sets of fundus photographs, in the folders of DoFE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ..core.errors import UserError
from ..io.download import Source
from ._base import Card, names_of
from ._outlines import Layout, Outlines, Pair, ellipse

ARCHIVE = Source(
    None,
    "Fundus.zip",
    unpack=True,
    page="https://github.com/emma-sjwang/Dofe (its README links to Google Drive; pack the folders Domain1 to Domain4)",
)
BORDER = 0.5
"""Smallest share of background along the border of a sound mask: disc and cup lie in the middle of each image."""


def _layout(number: int, count: int) -> Layout:
    folder = f"Fundus/Domain{number}"
    return Layout(
        (ARCHIVE,),
        rf"(Fundus/(?:.*/)?)Domain{number}/(train|test)/ROIs/image/(.+)\.png",
        rf"\1Domain{number}/\2/ROIs/mask/\3",
        (count,),
        lambda n: (
            f"{folder}/{_part(n)}/ROIs/image/{1 + n:03}.png",
            f"{folder}/{_part(n)}/ROIs/mask/{1 + n:03}.png",
        ),
    )


def _part(n: int) -> str:
    return "test" if n % 5 == 4 else "train"


class FundusSites(Outlines):
    """Sites with 1,060 images of the optic disc: drishti_gs 101, rim_one_r3 159, refuge_train 400, refuge_val 400.

    Read from the folders DomainN/{train,test}/ROIs/{image,mask}; N = 1 to 4 are the sites in this order. DoFE's own
    split is not used. Grey values of a mask up to 50 are the cup, 51 to 200 the rim of the disc, and 201 to 255 the
    background, as in DoFE's code. Classes are background, rim and cup, so that the disc is rim and cup: a study says
    `task: {name: segmentation, structures: {disc: [1, 2], cup: [2]}}`.
    """

    layouts: ClassVar[Mapping[str, Layout]] = {
        "drishti_gs": _layout(1, 101),
        "rim_one_r3": _layout(2, 159),
        "refuge_train": _layout(3, 400),
        "refuge_val": _layout(4, 400),
    }
    levels: ClassVar[Mapping[int, int]] = {0: 2, 51: 1, 201: 0}
    inks: ClassVar[tuple[int, ...]] = (255, 128, 0)
    classes: tuple[str, ...] = names_of(("background", "rim", "cup"), "classes", " of a mask")

    def card(self) -> Card:
        return Card(
            title="Optic disc and cup of Drishti-GS, RIM-ONE r3 and REFUGE",
            version="DoFE 2020",
            source="https://github.com/emma-sjwang/Dofe",
            licence="none stated by DoFE; Drishti-GS, RIM-ONE and REFUGE have their own terms (unverified)",
            citation="Wang et al. 2020 (IEEE TMI, DoFE); Sivaswamy et al. 2015 (Drishti-GS); Fumero et al. 2015 "
            "(RIM-ONE r3); Orlando et al. 2020 (REFUGE)",
            caveat="Patients are unknown; an image is about an eye, so that both eyes of a person may be on both sides "
            "of a split. Sets differ in camera, crop and graders. refuge_train and refuge_val are of one challenge, "
            "with cameras of Zeiss and Canon.",
        )

    def classes_of(self, pair: Pair) -> np.ndarray:
        classes = super().classes_of(pair)
        border = np.concatenate([classes[0], classes[-1], classes[:, 0], classes[:, -1]])
        if (border == 0).mean() < BORDER:
            problem = "has cup or rim along most of its border: its grey values mean something else than in DoFE"
            raise UserError(pair.mask, problem, "take DoFE's own archive, in which the background is white")
        return classes

    def drawing(self, rng: np.random.Generator) -> np.ndarray:
        disc = ellipse(rng, (0.2, 0.35))
        return disc.astype(np.uint8) + (disc & ellipse(rng, (0.1, 0.18)))
