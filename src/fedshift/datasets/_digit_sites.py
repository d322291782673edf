"""The five sets of digits: their sources, files and contents."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from ..core.console import Progress, say
from ..core.errors import UserError
from ..core.rng import stream
from ..io.download import Source
from . import _digit_files as files
from ._base import Opened, listed
from ._digit_drawing import digit, on_background, synth_digit
from ._folders import resized

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
"""Least number of images in files without a known checksum."""
SITES = tuple(FILES)


def unchecked(source: Source) -> Source:
    """Return this file without address, checksum and size: it comes from the mirror, with any content."""
    page = source.page or (source.url or "").rpartition("/")[0]
    return dataclasses.replace(source, url=None, md5=None, sha256=None, size=None, page=page)


def place(mirror: Path | None, folder: str, filename: str) -> Path | None:
    """Return the mirror or its folder that holds the file; the folder's name equals `folder` except for case, _ and -.

    Other folders are ignored, because several datasets have a file such as t10k-images-idx3-ubyte.gz.
    """
    if mirror is None or not mirror.is_dir() or (mirror / filename).is_file():
        return mirror
    folders = (f for f in sorted(mirror.iterdir()) if _plain(f.name) == _plain(folder))
    return next((f for f in folders if (f / filename).is_file()), mirror)


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


def at_hand(raw: Path, mirror: Path | None, folder: str, filename: str) -> bool:
    """Return whether `raw` or the mirror has the file."""
    where = place(mirror, folder, filename)
    return (raw / filename).is_file() or (where is not None and (where / filename).is_file())


def is_there(raw: Path, site: str, part: str) -> bool:
    """Return whether `raw` has the files of a part."""
    return all((raw / s.filename).is_file() for s in FILES[site][PARTS.index(part)])


def check_count(path: Path) -> None:
    """Raise UserError if a file without known checksum has fewer images than the published one."""
    if path.name not in LEAST:
        return
    images = files.count(path)
    if images < LEAST[path.name]:
        problem = f"has {images} images, expected {LEAST[path.name]} or more"
        raise UserError(path, problem, "obtain it again, or say complete: false to use a part of it")


def read(raw: Path, site: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, side, side) or (n, side, side, 3) uint8, and digits (n,) int64.

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
        if x.shape[1] == 32:
            x = x[:, 2:30, 2:30]
        return x, y
    # SVHN's labels run from 1 to 10, those of SynthDigits from 0 to 9
    return files.read_mat(path, lowest=int(site == "svhn"))


def tenths(label: np.ndarray, *key: object) -> np.ndarray:
    """Return the tenth, from 0, of each image: (n,) int64. Sizes, and sizes of a class, differ by at most one."""
    order = stream("tenths", *key).permutation(len(label))
    order = order[np.argsort(label[order], kind="stable")]
    tenth = np.empty(len(label), dtype=np.int64)
    tenth[order] = np.arange(len(label)) % 10
    return tenth


def opened(raw: Path, site: str, part: str) -> Opened:
    """Open the images of one part of a site."""
    x, y = read(raw, site, part)
    names = [f"{site}/{part}{n:06}" for n in range(len(x))]
    return Opened(listed(names, site, y), lambda i: shown(x[i]))


def shown(image: np.ndarray) -> np.ndarray:
    """Resize an image (side, side) or (side, side, 3) to (28, 28, 3); grey becomes three equal channels."""
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=2)
    return resized(image, 28)


def drawn(raw: Path, images: int) -> None:
    """Write printed digits in SynthDigits' files, of all classes in turn, one tenth of them in the test part."""
    with Progress("draw SynthDigits", images, "images") as bar:
        for part, sources, count in zip(PARTS, FILES["synth"], (images - images // 10, images // 10), strict=True):
            y = np.arange(count) % 10
            x = np.empty((count, 32, 32, 3), dtype=np.uint8)
            for n in range(count):
                x[n] = synth_digit(int(y[n]), part, n)
                bar.update()
            files.write_mat(raw / sources[0].filename, x, y, lowest=0)


def composed(raw: Path, paper: int = 0) -> None:
    """Write MNIST-M's files for the parts of MNIST in `raw`; a digit is where it is lighter than `paper`."""
    for part, (target,) in zip(PARTS, FILES["mnistm"], strict=True):
        if is_there(raw, "mnist", part):
            x, y = read(raw, "mnist", part)
            files.write_npz(raw / target.filename, on_background(x > paper, part), y)
            say(f"composed {len(x)} images for {target.filename}")


def miniature(raw: Path, images: int) -> None:
    """Write all files, with `images` of each class in the training part and a quarter as many in the test part."""
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
            dark = rng.uniform(0, 110, 3)
            light = rng.uniform(145, 255, 3)
            ground, pen = dark, light
            if rng.random() >= 0.5:
                ground, pen = light, dark
            seen = ground + (pen - ground) * ink[..., None] + rng.normal(0, 12, (32, 32, 3))
            x[n] = seen.clip(0, 255).round()
            small[n] = 255 * digit(rng, int(label), 16)
        files.write_mat(raw / svhn, x, y, lowest=1)
        files.write_usps(raw / usps, small, y)
    drawn(raw, 10 * (images + images // 4))
    # the paper of the miniature is noisy, that of MNIST is 0
    composed(raw, paper=64)
