"""Fed-ISIC2019: dermatoscopic images of skin lesions from six centres, as divided by FLamby."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from pydantic import Field

from ..core.errors import UserError
from ..core.rng import stream
from ..io.disk import atomic_folder
from ..io.download import Source
from ..io.images import read_image, shorter_side
from ..io.origins import Receipt, obtain
from ..io.tables import read_table, write_table
from ._base import Card, Dataset, Opened, names_of
from ._digit_drawing import digit

if TYPE_CHECKING:
    import pandas as pd

URL = "https://isic-challenge-data.s3.amazonaws.com/2019/"
FLAMBY = "https://raw.githubusercontent.com/owkin/FLamby/ed9c943f19236ec4dedb4a3bee30d9316d08e395/"
FOLDER = "ISIC_2019_Training_Input"
IMAGES = f"{FOLDER}.zip"
PEOPLE = "ISIC_2019_Training_Metadata.csv"
LABELS = "ISIC_2019_Training_GroundTruth.csv"
CENTRES = "train_test_split.csv"
# by FLamby's number of the centre: its training and test images
COUNTS = {
    "BCN": (9_930, 2_483),
    "HAM_vidir_molemax": (3_163, 791),
    "HAM_vidir_modern": (2_691, 672),
    "HAM_rosendahl": (1_807, 452),
    "MSK": (655, 164),
    "HAM_vienna_dias": (351, 88),
}
SITES = tuple(COUNTS)
NAMES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
FACTS = ("age_approx", "anatom_site_general", "sex")
AGAIN = "obtain it again"


class FedIsic2019(Dataset):
    """Six centres are the sites of 23,247 images of skin lesions with eight diagnoses; each lesion is a patient.

    Read from three files of ISIC 2019 and FLamby's table `train_test_split`, which names the centre of each image; a
    mirror must hold it as train_test_split.csv. Images without a lesion, whose centre is unknown, are left out, as in
    FLamby. The files name lesions and no people: all images of a lesion stay on one side of a split, but those of a
    person may not. FLamby's own split is by image, so a lesion may be in both of its parts. It is kept as the column
    `flamby` (train or test), and not used. Further columns are age_approx, anatom_site_general and sex.

    As in FLamby, the shorter side is scaled to `size` (bilinear), and then colours to those under white light (shades
    of grey: Finlayson and Trezzi 2004). FLamby stores this as JPEG, with the whole longer side, and crops 200x200
    pixels when it trains. Here the central square of side `size` is kept, it is not compressed again, and values
    above 255 become 255.
    """

    miniature_fields = frozenset({"lesions"})
    reading_fields = frozenset({"size", "power"})
    classes: tuple[str, ...] = names_of(NAMES)
    size: int = Field(224, ge=8, le=1024, description="side of the square images, in pixels")
    power: int | None = Field(
        6, ge=1, le=16, description="power of the mean that estimates the colour of the light; none: keep all colours"
    )
    lesions: int = Field(4, ge=3, description="lesions of each class and centre in the miniature, half with two images")

    def card(self) -> Card:
        return Card(
            title="Fed-ISIC2019",
            version="ISIC 2019 training set, centres of FLamby 2022",
            source="https://challenge.isic-archive.com/data/#2019 and https://github.com/owkin/FLamby",
            licence="CC BY-NC 4.0",
            citation="Tschandl et al. 2018 (Scientific Data 5:180161, HAM10000); Codella et al. 2018 (ISBI); Combalia "
            "et al. 2019 (arXiv 1908.02288, BCN20000); Ogier du Terrail et al. 2022 (NeurIPS, FLamby)",
            caveat="Patients here are lesions: nobody knows which lesions are of one person, so intervals may be too "
            "narrow. Four of the six centres are parts of one collection, HAM10000. Centres differ in their shares of "
            "the diagnoses.",
        )

    def sources(self) -> Sequence[Source]:
        path = "flamby/datasets/fed_isic2019/dataset_creation_scripts/train_test_split"
        return [
            Source(URL + PEOPLE, PEOPLE),
            Source(URL + LABELS, LABELS),
            Source(FLAMBY + path, CENTRES, size=1_558_106),
            Source(URL + IMAGES, IMAGES, unpack=True),
        ]

    def download(self, raw: Path, mirror: Path | None) -> Receipt:
        receipt = obtain(self.origins(), raw, mirror)
        samples = self.open(raw).samples
        for site, counts in COUNTS.items():
            for part, count in zip(("train", "test"), counts, strict=True):
                images = int(((samples["site"] == site) & (samples["flamby"] == part)).sum())
                if images != count:
                    problem = f"centre {site} has {images} images in FLamby's part {part}, expected {count}"
                    raise UserError(raw / CENTRES, problem, AGAIN)
        return receipt.also("the number of images in each part of FLamby's split, by centre")

    def open(self, raw: Path) -> Opened:
        samples = _samples(raw)
        folder = raw / FOLDER / FOLDER
        there = {file.stem for file in folder.glob("*.jpg")}
        lost = [name for name in samples["sample"] if name not in there]
        if lost:
            problem = f"lacks {len(lost)} of the {len(samples)} images, first {lost[0]}.jpg"
            raise UserError(folder, problem, "obtain the archive again")
        files = [folder / f"{name}.jpg" for name in samples["sample"]]

        def image(i: int) -> np.ndarray:
            seen = scaled(read_image(files[i]), self.size)
            return centre(seen if self.power is None else white(seen, self.power), self.size)

        return Opened(
            samples, image, reduction=lambda i: shorter_side(files[i]) / self.size, further=(*FACTS, "flamby")
        )

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits on skin; centres differ in the colour of their light, in contrast and in noise."""
        import pandas as pd

        rows = []
        with atomic_folder(raw / FOLDER) as new:
            (new / FOLDER).mkdir()
            for centre_number, site in enumerate(SITES):
                for n in range(len(NAMES) * self.lesions):
                    label = n % len(NAMES)
                    rng = stream("fed_isic2019 miniature", site, n)
                    for k in range(1 + n // len(NAMES) % 2):
                        name = f"ISIC_{100_000 * (centre_number + 1) + 10 * n + k:07}"
                        seen = _drawn(rng, label, centre_number)
                        Image.fromarray(seen).save(new / FOLDER / f"{name}.jpg", quality=90)
                        part = "test" if n % 5 == 4 else "train"
                        rows.append(
                            (name, f"{site.partition('_')[0]}_{centre_number}{n:06}", label, centre_number, part)
                        )
        made = pd.DataFrame(rows, columns=["image", "lesion_id", "target", "center", "fold"])
        facts: dict[str, Any] = {"age_approx": 50, "anatom_site_general": "anterior torso", "sex": "female"}
        hot = {name: (made["target"] == k).astype(float) for k, name in enumerate((*NAMES, "UNK"))}
        write_table(raw / PEOPLE, made[["image", "lesion_id"]].assign(**facts))
        write_table(raw / LABELS, made[["image"]].assign(**hot))
        folds = made.assign(fold2=made["fold"] + "_" + made["center"].astype(str))
        write_table(raw / CENTRES, folds[["image", "target", "center", "fold", "fold2"]])


def scaled(image: np.ndarray, size: int) -> np.ndarray:
    """Scale an image (height, width, 3) uint8 so that its shorter side is `size`; the longer one is rounded down."""
    height, width = image.shape[:2]
    shorter = min(height, width)
    if shorter == size:
        return image
    new = (max(size, int(width * size / shorter)), max(size, int(height * size / shorter)))
    return np.asarray(Image.fromarray(image).resize(new, Image.Resampling.BILINEAR))


def white(image: np.ndarray, power: int) -> np.ndarray:
    """Return an image (height, width, 3) uint8 as under white light, by shades of grey.

    The light in channel c is e_c = mean(I_c^power)^(1/power). Channel c is multiplied by |e| / (sqrt(3) e_c), so that
    all channels get the same light; results are rounded, and at most 255. A channel without light stays as it is.
    """
    x = image.astype(np.float64)
    # float64: the sixth power of 255 is 2.7e14
    light = (x**power).mean((0, 1)) ** (1 / power)
    gain = np.divide(np.sqrt((light**2).sum() / 3), light, out=np.ones(3), where=light > 0)
    seen: np.ndarray = (x * gain).round().clip(0, 255).astype(np.uint8)
    return seen


def centre(image: np.ndarray, size: int) -> np.ndarray:
    """Return the central square of side `size` of an image that has at least this many pixels along each side."""
    top, left = ((side - size) // 2 for side in image.shape[:2])
    return image[top : top + size, left : left + size]


def _samples(raw: Path) -> pd.DataFrame:
    """Return the table of samples in the order of FLamby's table. Raises UserError where the three tables disagree."""
    import pandas as pd

    table = read_table(raw / CENTRES, columns=("image", "target", "center", "fold2"), text=True)
    people = read_table(raw / PEOPLE, columns=("image", "lesion_id", *FACTS), text=True)
    truth = read_table(raw / LABELS, columns=("image", *NAMES), text=True)
    for file, names in ((CENTRES, table["image"]), (PEOPLE, people["image"]), (LABELS, truth["image"])):
        if names.duplicated().any():
            raise UserError(raw / file, f"lists image {names[names.duplicated()].iloc[0]!r} twice", AGAIN)
        listed = table["image"].isin(names)
        if not listed.all():
            raise UserError(raw / file, f"does not list image {table['image'][~listed].iloc[0]!r}", AGAIN)
    people, truth = (other.set_index("image").loc[table["image"]].reset_index() for other in (people, truth))
    diagnosed = truth[list(NAMES)].isin(["1", "1.0"])
    label = pd.Series(diagnosed.to_numpy().argmax(1))
    split = table["fold2"].str.extract(r"^(train|test)_([0-5])$")
    site = split[1].map({str(k): name for k, name in enumerate(SITES)})
    for file, right, problem in (
        (CENTRES, site.notna(), "its fold2 is not train or test with the number of a centre, as in train_0"),
        (CENTRES, table["center"] == split[1], "its center and its fold2 disagree"),
        (LABELS, diagnosed.sum(axis=1) == 1, "it has none or several of the eight diagnoses"),
        (CENTRES, table["target"] == label.astype(str), f"its target is not its diagnosis in {LABELS}"),
        (PEOPLE, people["lesion_id"].notna(), "it has no lesion_id"),
        (PEOPLE, people["lesion_id"].str[:3] == site.str[:3], f"its lesion_id is of another centre than in {CENTRES}"),
    ):
        if not right.all():
            raise UserError(raw / file, f"image {table['image'][~right].iloc[0]!r}: {problem}", AGAIN)
    samples = {"sample": table["image"], "site": site, "label": label, "patient": people["lesion_id"]}
    return pd.concat([pd.DataFrame(samples), people[list(FACTS)]], axis=1).assign(flamby=split[0])


def _drawn(rng: np.random.Generator, label: int, centre_number: int) -> np.ndarray:
    """Draw a digit of pigment on skin under the light of a centre, (48, 64, 3) uint8."""
    look = stream("fed_isic2019 miniature", "centre", centre_number)
    light = look.uniform(0.6, 1.1, 3)
    noise = look.uniform(3, 14)
    ink = np.zeros((48, 64, 1))
    ink[:, 8:-8, 0] = digit(rng, label, 48)
    skin = np.array([225, 175, 150])
    pigment = np.array([95, 60, 50])
    seen = (skin + (pigment - skin) * ink * rng.uniform(0.6, 1)) * light + rng.normal(0, noise, (48, 64, 3))
    return seen.clip(0, 255).round().astype(np.uint8)
