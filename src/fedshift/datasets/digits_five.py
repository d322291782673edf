"""The five sets of digits of FedBN: MNIST, SVHN, USPS, SynthDigits and MNIST-M."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from ..core.console import Progress, say
from ..core.errors import UserError
from ..core.rng import stream
from ..io.download import USE_MIRROR, Source, fetch
from . import _digit_files as files
from . import _morpho as morpho
from ._base import Card, Dataset, Opened, joined, listed, names_of
from ._digit_drawing import digit, on_background, synth_digit

PARTS = ("train", "test")
SVHN = "http://ufldl.stanford.edu/housenumbers/"
USPS = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"
GANIN = "copies of the sets of Ganin and Lempitsky 2015"
_MNIST = tuple(files.mnist_sources())
FILES: dict[str, tuple[tuple[Source, ...], tuple[Source, ...]]] = {
    "mnist": (_MNIST[:2], _MNIST[2:]),
    "svhn": (
        (Source(SVHN + "train_32x32.mat", "train_32x32.mat", md5="e26dedcc434d2e4c54c9b2d4a06d8373"),),
        (Source(SVHN + "test_32x32.mat", "test_32x32.mat", md5="eb5a983be6a315427106f1b164d9cef3"),),
    ),
    "usps": (
        (Source(USPS + "usps.bz2", "usps.bz2", md5="ec16c51db3855ca6c91edd34d0e9b197"),),
        (Source(USPS + "usps.t.bz2", "usps.t.bz2", md5="8ea070ee2aca1ac39742fdd1ef5ed118"),),
    ),
    "synth": (
        (Source(None, "synth_train_32x32.mat", page=GANIN),),
        (Source(None, "synth_test_32x32.mat", page=GANIN),),
    ),
    "mnistm": (
        (Source(None, "mnist_m_train.npz", page=GANIN),),
        (Source(None, "mnist_m_test.npz", page=GANIN),),
    ),
}
"""Files of the training part and of the test part of each site."""
LEAST = {
    "synth_train_32x32.mat": 479_400,
    "synth_test_32x32.mat": 9_553,
    "mnist_m_train.npz": 59_000,  # MNIST's 60,000 in some publications, 59,001 in others
    "mnist_m_test.npz": 9_000,
}
"""Smallest number of images that is accepted in files without a known checksum."""
SITES = tuple(FILES)
MORPHO = "morpho"  # a separate folder, because its files have the names of MNIST's


class DigitsFive(Dataset):
    """The sites mnist, svhn, usps, synth and mnistm each have the training and test images of their set, 28x28 RGB.

    SVHN, USPS and SynthDigits are resized (bilinear, as in Pillow), grey becomes three equal channels, and MNIST-M of
    32x32 is cropped to its middle. The mirror directory holds the files, or has a folder for each site: usps, mnist_m,
    ...
    """

    site_kind = "domain"
    miniature_fields = frozenset({"images"})
    reading_fields = frozenset({"clients", "seed"})
    shape: ClassVar[tuple[int, int, int] | None] = (3, 28, 28)
    classes: tuple[str, ...] = names_of("0123456789")
    complete: bool = Field(
        True,
        description="whether all official files are needed; if false, the parts of each site that the mirror has are "
        "used, without checksum",
    )
    synth: Literal["files", "rendered"] = Field(
        "files", description="SynthDigits from its files, or printed digits drawn by fedshift instead"
    )
    drawn: int = Field(10_000, ge=100, le=500_000, description="number of images with synth: rendered")
    mnistm: Literal["files", "composed"] = Field(
        "files", description="MNIST-M from its files, or MNIST on textures drawn by fedshift instead"
    )
    morpho: Literal["none", "files", "generated"] = Field(
        "none",
        description="source of the additional sites morpho_global and morpho_local, as in the dataset morpho_mnist",
    )
    clients: int = Field(
        1,
        ge=1,
        le=10,
        description="number of sites made of each set; if above 1, each is a tenth of the set: mnist1, ...",
    )
    seed: int = Field(0, ge=0, description="seed of the division into tenths")
    images: int = Field(
        40, ge=10, description="training images of each class in the miniature, which has a quarter as many test images"
    )

    def card(self) -> Card:
        return Card(
            title="Digits-Five",
            version="as in FedBN",
            source=f"MNIST: http://yann.lecun.com/exdb/mnist/; SVHN: {SVHN}; USPS: {USPS}; SynthDigits and "
            "MNIST-M: http://yaroslav.ganin.net/",
            licence="MNIST: CC BY-SA 3.0; SVHN: non-commercial use only; USPS, SynthDigits, MNIST-M: none stated",
            citation="LeCun et al. 1998 (MNIST), Netzer et al. 2011 (SVHN), Hull 1994 (USPS), Ganin and Lempitsky 2015 "
            "(SynthDigits, MNIST-M); together as in Li et al. 2021 (ICLR, FedBN)",
            caveat=" ".join(self._caveats()),
        )

    def _caveats(self) -> Iterator[str]:
        yield (
            "SVHN's digits of one photograph follow one another, and no file says which belong together: a random "
            "split puts digits of one house number into training and test data. MNIST-M shows MNIST's digits: the "
            "test digits of one site may be training digits of the other."
        )
        if not self.complete:
            yield "Only parts of the official files, without checksum: not comparable with published figures."
        if self.synth == "rendered":
            yield f"Instead of SynthDigits: {self.drawn:,} printed digits drawn by fedshift, with other fonts."
        if self.mnistm == "composed":
            yield "Instead of MNIST-M: MNIST composed in the same way, but on drawn textures, not on photographs."
        if self.morpho != "none":
            yield "Morpho-MNIST shows digits of MNIST's test part; the site mnist trains on most of them."
        if self.morpho == "generated":
            yield f"Morpho-MNIST: {morpho.DRAWN}"

    def _files(self) -> dict[str, list[tuple[Source, ...]]]:
        """Return the files to obtain: for each site those of its training part, and those of its test part.

        Sites whose images fedshift draws are left out. Without `complete`, files have no address and no checksum.
        """
        made = {"synth": self.synth == "rendered", "mnistm": self.mnistm == "composed"}
        return {
            site: [tuple(s if self.complete else unchecked(s) for s in part) for part in parts]
            for site, parts in FILES.items()
            if not made.get(site)
        }

    def sources(self) -> Sequence[Source]:
        more = morpho.sources() if self.morpho == "files" else ()
        return [*(source for parts in self._files().values() for part in parts for source in part), *more]

    def download(self, raw: Path, mirror: Path | None) -> None:
        for site, parts in self._files().items():
            if not self.complete:
                present = [part for part in parts if all(at_hand(raw, mirror, site, s.filename) for s in part)]
                if not present:
                    names = " or ".join(source.filename for part in parts for source in part[:1])
                    problem = f"has neither training nor test images of {site}: {names}"
                    raise UserError(mirror or "mirror", problem, USE_MIRROR)
                parts = present
            for source in (s for part in parts for s in part):
                path = fetch(source, raw, files.place(mirror, site, source.filename))
                least = LEAST.get(path.name, 0) if self.complete else 0
                if least and (images := files.count(path)) < least:
                    remedy = "obtain it again, or say complete: false to use a part of it"
                    raise UserError(path, f"has {images} images, expected {least} or more", remedy)
        if self.synth == "rendered":
            write_synth(raw, self.drawn)
        if self.mnistm == "composed":
            write_mnistm(raw)
        if self.morpho == "files":
            morpho.obtain(raw / MORPHO, mirror, "t10k")
        if self.morpho == "generated":
            self._perturb(raw)

    def _perturb(self, raw: Path) -> None:
        morpho.generate(raw / MORPHO, *read(raw, "mnist", "test"), "t10k")

    def open(self, raw: Path) -> Opened:
        found = []
        for site in SITES:
            parts = [part for part in PARTS if self.complete or is_there(raw, site, part)]
            if not parts:
                raise UserError(raw, f"has neither training nor test images of {site}", "obtain the dataset again")
            images = joined([opened(raw, site, part) for part in parts])
            if self.clients > 1:
                tenth = tenths(images.samples["label"].to_numpy(), self.seed, site)
                images.samples["site"] = [f"{site}{k + 1}" for k in tenth]
            found.append(images)
        five = joined(found)
        if self.clients > 1:
            used = {f"{site}{k + 1}" for site in SITES for k in range(self.clients)}
            samples = five.samples[five.samples["site"].isin(used)]
            rows = samples.index.to_numpy()
            whole = five.image
            five = Opened(samples.reset_index(drop=True), lambda i: whole(rows[i]))
        if self.morpho == "none":
            return five
        more = morpho.opened(raw / MORPHO, "t10k")
        return joined([five, Opened(more.samples.drop(columns="base"), more.image)])

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits: printed ones for synth, else like a digital display; sites differ in colours."""
        write_miniature(raw, self.images)
        if self.morpho != "none":
            self._perturb(raw)


def unchecked(source: Source) -> Source:
    """Return a copy of `source` without address, checksum and size.

    Any file of its name in the folder of files that the user names (`--mirror`) is then taken.
    """
    page = source.page or (source.url or "").rpartition("/")[0]
    return dataclasses.replace(source, url=None, md5=None, sha256=None, size=None, page=page)


def at_hand(raw: Path, mirror: Path | None, folder: str, filename: str) -> bool:
    """Return whether `raw`, the mirror or the mirror's subfolder `folder` has the file."""
    where = files.place(mirror, folder, filename)
    return (raw / filename).is_file() or (where is not None and (where / filename).is_file())


def is_there(raw: Path, site: str, part: str) -> bool:
    """Return whether `raw` has all files of the part "train" or "test" of a site."""
    return all((raw / s.filename).is_file() for s in FILES[site][PARTS.index(part)])


def read(raw: Path, site: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, side, side) or (n, side, side, 3) uint8, and digits (n,) int64, of one part of a site.

    MNIST-M of 32x32 is cropped to its middle: it is MNIST's 28x28 with 2 more pixels of background around it. Raises
    UserError, with the file's path.
    """
    if site == "mnist":
        x, y = files.read_mnist(raw, files.MNIST_PARTS[part])
        return x, y.astype("int64")
    path = raw / FILES[site][PARTS.index(part)][0].filename
    if site == "usps":
        return files.read_usps(path)
    if site == "mnistm":
        x, y = files.read_mnistm(path)
        return x[:, 2:30, 2:30] if x.shape[1] == 32 else x, y
    # SVHN's labels run from 1 to 10, those of SynthDigits from 0 to 9
    return files.read_mat(path, lowest=int(site == "svhn"))


def tenths(label: np.ndarray, *key: object) -> np.ndarray:
    """Divide images with labels `label` (n,) at random into ten parts: return the part of each image, 0 to 9.

    Parts differ by at most one image, in total and in each class. `key` names the random stream.
    """
    order = stream("tenths", *key).permutation(len(label))
    order = order[np.argsort(label[order], kind="stable")]
    tenth = np.empty(len(label), dtype=np.int64)
    tenth[order] = np.arange(len(label)) % 10
    return tenth


def opened(raw: Path, site: str, part: str) -> Opened:
    """Open the images of the part "train" or "test" of a site."""
    x, y = read(raw, site, part)
    names = [f"{site}/{part}{n:06}" for n in range(len(x))]
    return Opened(listed(names, site, y), lambda i: files.shown(x[i]))


def write_synth(raw: Path, images: int) -> None:
    """Write `images` drawn digits, of all classes in turn, as SynthDigits' files; one tenth is the test part."""
    with Progress("draw SynthDigits", images, "images") as bar:
        for part, sources, count in zip(PARTS, FILES["synth"], (images - images // 10, images // 10), strict=True):
            y = np.arange(count) % 10
            x = np.empty((count, 32, 32, 3), dtype=np.uint8)
            for n in range(count):
                x[n] = synth_digit(int(y[n]), part, n)
                bar.update()
            files.write_mat(raw / sources[0].filename, x, y, lowest=0)


def write_mnistm(raw: Path, paper: int = 0) -> None:
    """Compose MNIST-M's files from the parts of MNIST that `raw` has.

    Pixels of MNIST with a grey level above `paper` are the digit.
    """
    for part, (target,) in zip(PARTS, FILES["mnistm"], strict=True):
        if is_there(raw, "mnist", part):
            x, y = read(raw, "mnist", part)
            files.write_npz(raw / target.filename, on_background(x > paper, part), y)
            say(f"composed {len(x)} images for {target.filename}")


def write_miniature(raw: Path, images: int) -> None:
    """Write synthetic files of all sites: `images` of each class for training, and a quarter as many for testing."""
    raw.mkdir(parents=True, exist_ok=True)
    for part, each in zip(PARTS, (images, images // 4), strict=True):
        y = np.arange(10 * each) % 10
        files.write_mnist(raw, files.MNIST_PARTS[part], len(y))
        svhn, usps = (FILES[site][PARTS.index(part)][0].filename for site in ("svhn", "usps"))
        x = np.empty((len(y), 32, 32, 3), dtype=np.uint8)
        small = np.empty((len(y), 16, 16), dtype=np.uint8)
        for n, label in enumerate(y):
            rng = stream("digits miniature", part, n)
            ink = digit(rng, int(label), 32)
            ground, pen = rng.uniform(0, 110, 3), rng.uniform(145, 255, 3)
            if rng.random() >= 0.5:
                ground, pen = pen, ground
            seen = ground + (pen - ground) * ink[..., None] + rng.normal(0, 12, (32, 32, 3))
            x[n] = seen.clip(0, 255).round()
            small[n] = 255 * digit(rng, int(label), 16)
        files.write_mat(raw / svhn, x, y, lowest=1)
        files.write_usps(raw / usps, small, y)
    write_synth(raw, 10 * (images + images // 4))
    # the paper of the miniature is noisy, that of MNIST is 0
    write_mnistm(raw, paper=64)
