"""MedMNIST: small images of eleven medical sets, from colon histology to abdominal CT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from ..core.errors import UserError
from ..core.rng import stream
from ..io.disk import atomic
from ..io.download import Source
from ..io.origins import Receipt, obtain
from ._base import Card, Dataset, Opened, joined, listed, read_npz, require_labels
from ._digit_drawing import digit

URL = "https://zenodo.org/records/10519652/files/"
AGAIN = "obtain it again"
PARTS = ("train", "val", "test")
Subset = Literal[
    "pathmnist",
    "dermamnist",
    "octmnist",
    "pneumoniamnist",
    "retinamnist",
    "breastmnist",
    "bloodmnist",
    "tissuemnist",
    "organamnist",
    "organcmnist",
    "organsmnist",
]


@dataclass(frozen=True)
class _Facts:
    """Facts about a set of MedMNIST: numbers of images by part, MD5 sums of files by side in pixels, class names."""

    counts: tuple[int, int, int]
    md5: Mapping[int, str]
    listed_classes: str
    grey: bool = False
    licence: str = "CC BY 4.0"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels 0, 1, ..."""
        return tuple(self.listed_classes.split(", "))


ORGANS = (
    "bladder, left femur, right femur, heart, left kidney, right kidney, liver, left lung, right lung, pancreas, spleen"
)
# as in the package medmnist, version 3.0.2
SETS = {
    "pathmnist": _Facts(
        (89_996, 10_004, 7_180),
        {28: "a8b06965200029087d5bd730944a56c1", 64: "55aa9c1e0525abe5a6b9d8343a507616"},
        "adipose, background, debris, lymphocytes, mucus, smooth muscle, normal colon mucosa, cancer-associated "
        "stroma, adenocarcinoma epithelium",
    ),
    "dermamnist": _Facts(
        (7_007, 1_003, 2_005),
        {28: "0744692d530f8e62ec473284d019b0c7", 64: "b70a2f5635c6199aeaa28c31d7202e1f"},
        "actinic keratosis, basal cell carcinoma, benign keratosis, dermatofibroma, melanoma, melanocytic nevus, "
        "vascular lesion",
        licence="CC BY-NC 4.0",
    ),
    "octmnist": _Facts(
        (97_477, 10_832, 1_000),
        {28: "c68d92d5b585d8d81f7112f81e2d0842", 64: "e229e9440236b774d9f0dfef9d07bdaf"},
        "choroidal neovascularization, diabetic macular edema, drusen, normal",
        grey=True,
    ),
    "pneumoniamnist": _Facts(
        (4_708, 524, 624),
        {28: "28209eda62fecd6e6a2d98b1501bb15f", 64: "8f4eceb4ccffa70c672198ea285246c6"},
        "normal, pneumonia",
        grey=True,
    ),
    "retinamnist": _Facts(
        (1_080, 120, 400),
        {28: "bd4c0672f1bba3e3a89f0e4e876791e4", 64: "afda852cc34dcda56f86ad2b2457dbcc"},
        "grade 0, grade 1, grade 2, grade 3, grade 4",
    ),
    "breastmnist": _Facts(
        (546, 78, 156),
        {28: "750601b1f35ba3300ea97c75c52ff8f6", 64: "742edef2a1fd1524b2efff4bd7ba9364"},
        "malignant, normal or benign",
        grey=True,
    ),
    "bloodmnist": _Facts(
        (11_959, 1_712, 3_421),
        {28: "7053d0359d879ad8a5505303e11de1dc", 64: "2b94928a2ae4916078ca51e05b6b800b"},
        "basophil, eosinophil, erythroblast, immature granulocyte, lymphocyte, monocyte, neutrophil, platelet",
    ),
    "tissuemnist": _Facts(
        (165_466, 23_640, 47_280),
        {28: "ebe78ee8b05294063de985d821c1c34b", 64: "123ece2eba09d0aa5d698fda57103344"},
        "collecting duct or connecting tubule, distal convoluted tubule, glomerular endothelial cells, interstitial "
        "endothelial cells, leukocytes, podocytes, proximal tubule segments, thick ascending limb",
        grey=True,
    ),
    "organamnist": _Facts(
        (34_561, 6_491, 17_778),
        {28: "68e3f8846a6bd62f0c9bf841c0d9eacc", 64: "2dcccc29b88e6da5a01161ef20cda288"},
        ORGANS,
        grey=True,
    ),
    "organcmnist": _Facts(
        (12_975, 2_392, 8_216),
        {28: "b9ceb9546e10131b32923c5bbeaea2b1", 64: "3ce34a8724ea6f548e6db4744d03b6a9"},
        ORGANS,
        grey=True,
    ),
    "organsmnist": _Facts(
        (13_932, 2_452, 8_827),
        {28: "9ab87b696fb54e2a387ebe992d6ed5f1", 64: "53a6d115339d874c25e309a994ff46d3"},
        ORGANS,
        grey=True,
    ),
}


class MedMnist(Dataset):
    """The sites are the official parts train, val and test of one of eleven medical sets, at 28x28 or 64x64 pixels.

    A study deals the images of train and val to clients (`partition: deal`), evenly or with label skew, and tests at
    test. The part test of pathmnist is from another clinical centre, as its authors say; the other sets have no shift
    of hospitals between their parts. Grey images get three equal channels.

    Read from the authors' npz files with the arrays train_images, train_labels, val_images and so on. chestmnist is
    left out, since each of its images has several labels. In breastmnist, the first class is the one to find: write
    `positive: malignant`. The grades of retinamnist are taken as classes without an order.
    """

    site_kind = "site"
    miniature_fields = frozenset({"images"})
    classes: tuple[str, ...] = Field(
        SETS["pathmnist"].classes, description="names of the labels 0, 1, ...; default: those of the set"
    )
    subset: Subset = Field("pathmnist", description="the set of MedMNIST")
    size: Literal[28, 64] = Field(28, description="side of the square images, in pixels")
    images: int = Field(
        20, ge=8, description="images of each class in the miniature's part train; the others have less"
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, settings: Any) -> Any:
        """Set `classes` to the subset's names unless the study gives names. Raises UserError for chestmnist."""
        if not isinstance(settings, dict):
            return settings
        subset = settings.get("subset", "pathmnist")
        if subset == "chestmnist":
            problem = "chestmnist has several labels for each image, and images here have one"
            raise UserError("subset", problem, f"choose one of {', '.join(get_args(Subset))}")
        return {"classes": SETS[subset].classes, **settings} if subset in get_args(Subset) else settings

    @model_validator(mode="after")
    def _all_named(self) -> MedMnist:
        number = len(self._facts.classes)
        if len(self.classes) != number:
            problem = f"{len(self.classes)} names for the {number} classes of {self.subset}"
            raise UserError("classes", problem, "name all")
        return self

    @property
    def _facts(self) -> _Facts:
        return SETS[self.subset]

    def card(self) -> Card:
        centre = "another clinical centre" if self.subset == "pathmnist" else "no other hospital"
        return Card(
            title=f"MedMNIST+, {self.subset}",
            version=f"3.0.2, {self.size}x{self.size} pixels",
            source="https://medmnist.com",
            licence=self._facts.licence,
            citation="Yang et al. 2023 (Scientific Data 10:41, MedMNIST v2), and the source of the set that it names",
            caveat=f"Not for clinical use. Patients are not known: intervals are over images. Sites are official parts "
            f"of one set; the part test is from {centre}.",
        )

    def sources(self) -> Sequence[Source]:
        name = f"{self.subset}.npz" if self.size == 28 else f"{self.subset}_{self.size}.npz"
        return [Source(f"{URL}{name}?download=1", name, md5=self._facts.md5[self.size])]

    def download(self, raw: Path, mirror: Path | None) -> Receipt:
        receipt = obtain(self.origins(), raw, mirror)
        file = self._file(raw)
        labels = read_npz(file, [f"{part}_labels" for part in PARTS], AGAIN)
        for part, y, count in zip(PARTS, labels, self._facts.counts, strict=True):
            if len(y) != count:
                raise UserError(file, f"part {part} has {len(y)} images, expected {count}", AGAIN)
        return receipt.also("the number of images in each part")

    def open(self, raw: Path) -> Opened:
        return joined([self._opened(self._file(raw), part) for part in PARTS])

    def _opened(self, file: Path, part: str) -> Opened:
        """Open one part: train, val or test. Raises UserError for arrays with other shapes, types or labels."""
        x, y = read_npz(file, [f"{part}_images", f"{part}_labels"], AGAIN)
        shape = (self.size, self.size) if self._facts.grey else (self.size, self.size, 3)
        if x.dtype != np.uint8 or x.shape[1:] != shape or len(x) == 0:
            problem = f"'{part}_images' is {x.dtype} of shape {x.shape}, expected uint8 of shape (n, {str(shape)[1:]}"
            raise UserError(file, problem, AGAIN)
        if y.dtype.kind not in "ui" or y.shape != (len(x), 1):
            problem = f"'{part}_labels' is {y.dtype} of shape {y.shape}, expected whole numbers of shape ({len(x)}, 1)"
            raise UserError(file, problem, AGAIN)
        require_labels(f"{file}, part {part}", y[:, 0], len(self._facts.classes), AGAIN)
        if x.ndim == 3:
            x = np.broadcast_to(x[..., None], (*x.shape, 3))
        names = [f"{part}{n:06}" for n in range(len(x))]
        return Opened(listed(names, part, y[:, 0]), lambda i: np.ascontiguousarray(x[i]))

    def _file(self, raw: Path) -> Path:
        return raw / self.sources()[0].filename

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits for the classes; the part test is lighter, has other colours and more noise."""
        raw.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {}
        for part, share in zip(PARTS, (1, 4, 2), strict=True):
            labels = np.arange(len(self._facts.classes) * (self.images // share)) % len(self._facts.classes)
            arrays[f"{part}_images"] = np.stack([self._drawn(part, n, int(k)) for n, k in enumerate(labels)])
            arrays[f"{part}_labels"] = labels[:, None].astype(np.uint8)
        with atomic(self._file(raw)) as temporary:
            np.savez_compressed(temporary, **arrays)

    def _drawn(self, part: str, number: int, label: int) -> np.ndarray:
        """Draw a digit in colours of stained tissue: (side, side, 3) or (side, side), uint8. Label 10 is a lying 4."""
        rng = stream("medmnist miniature", self.subset, part, number)
        ink = digit(rng, label, self.size) if label < 10 else digit(rng, 4, self.size).T
        far = part == "test"
        ground, pen = np.array([[215, 180, 205], [120, 60, 140]]) + (np.array([25, 40, 20]) if far else 0)
        seen = ground + (pen - ground) * ink[..., None] * rng.uniform(0.7, 1) + rng.normal(0, 12, 3)
        seen = seen + rng.normal(0, 14 if far else 7, seen.shape)
        return (seen.mean(-1) if self._facts.grey else seen).clip(0, 255).round().astype(np.uint8)
