"""Digits that are drawn in place of files, and Digits-Five from the files that are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import real_data
from torchvision.datasets import USPS

from fedshift import UserError
from fedshift.data.partition import Limit, Partition, Split
from fedshift.datasets import Opened, _morpho
from fedshift.datasets._digit_drawing import on_background, synth_digit
from fedshift.datasets.digits_five import SITES, DigitsFive

needs_digits = real_data.needs("mnist", "usps", "svhn", "mnist_m")


def test_a_printed_digit_depends_on_its_number_alone() -> None:
    one, same, other = synth_digit(3, "train", 5), synth_digit(3, "train", 5), synth_digit(3, "train", 6)
    assert (one.shape, one.dtype) == ((32, 32, 3), np.uint8)
    np.testing.assert_array_equal(one, same)
    assert (one != other).mean() > 0.9


def test_printed_digits_stand_out_and_differ_in_colour() -> None:
    x = np.stack([synth_digit(n % 10, n) for n in range(60)]).astype(float)
    grey = x @ [0.299, 0.587, 0.114]
    low, high = np.quantile(grey, (0.02, 0.98), axis=(1, 2))
    assert (high - low > 30).all()
    assert x.mean(axis=(1, 2)).std(axis=0).min() > 30


def test_a_composed_digit_is_the_negative_of_its_background() -> None:
    inside = np.random.default_rng(0).random((40, 28, 28)) < 0.3
    seen, ground = on_background(inside, "a"), on_background(np.zeros_like(inside), "a")
    np.testing.assert_array_equal(seen[inside], 255 - ground[inside])
    np.testing.assert_array_equal(seen[~inside], ground[~inside])
    np.testing.assert_array_equal(on_background(inside[:3], "a"), seen[:3])
    assert (on_background(inside, "b") != seen).mean() > 0.5


def test_the_page_says_what_is_not_real() -> None:
    plain = DigitsFive().card().caveat
    assert "one photograph" in plain
    assert "fedshift" not in plain
    made = DigitsFive(complete=False, synth="rendered", mnistm="composed", morpho="generated", drawn=5000)
    for words in ("without checksum", "5,000 printed digits drawn by fedshift", "drawn textures", "from memory"):
        assert words in made.card().caveat
    names = [s.filename for s in DigitsFive(synth="rendered", mnistm="composed", morpho="files").sources()]
    assert len(names) == 10
    assert names[-2:] == ["global.zip", "local.zip"]


def test_morpho_mnist_comes_from_the_mirror_too(tmp_path: Path) -> None:
    mirror, raw = tmp_path / "mirror", tmp_path / "raw"
    made = DigitsFive(images=10, morpho="generated")
    made.miniature(mirror)
    for kind in ("global", "local"):
        (mirror / "morpho" / kind).rename(mirror / kind)
    dataset = DigitsFive(complete=False, morpho="files", clients=2)
    dataset.download(raw, mirror)
    opened = dataset.open(raw)
    sizes = {f"{site}{k}": 12 for site in SITES for k in (1, 2)} | {"morpho_global": 20, "morpho_local": 20}
    assert opened.samples["site"].value_counts().to_dict() == sizes
    alone = _morpho.opened(raw / "morpho", "t10k")
    assert opened.samples["sample"].tolist()[-40:] == alone.samples["sample"].tolist()
    np.testing.assert_array_equal(opened.image(len(opened.samples) - 25), alone.image(15))


# --- the files at hand ----------------------------------------------------------------------------------------------

COUNTS = {  # digits 0 to 9, as the README of the files says
    "mnist/train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "mnist/test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    "svhn/train": [66, 227, 141, 134, 110, 112, 78, 70, 78, 67],
    "usps/train": [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644],
    "usps/test": [359, 264, 198, 166, 200, 160, 170, 147, 166, 177],
    "mnistm/train": [831, 875, 828, 806, 768, 717, 775, 842, 748, 810],
    "mnistm/test": [291, 348, 322, 299, 307, 254, 272, 309, 282, 316],
    "synth/train": [90] * 10,
    "synth/test": [10] * 10,
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Opened]:
    dataset, raw = DigitsFive(complete=False, synth="rendered", drawn=1000), tmp_path_factory.mktemp("real")
    dataset.download(raw, real_data.FOLDER)
    return raw, dataset.open(raw)


def rows(opened: Opened, part: str, count: int) -> np.ndarray:
    return np.flatnonzero(opened.samples["sample"].str.startswith(f"{part}"))[:count]


@needs_digits
def test_counts_are_those_of_the_files(real: tuple[Path, Opened]) -> None:
    samples = real[1].samples
    found = samples.groupby([samples["sample"].str[:-6], "label"]).size().unstack()
    assert {part: row.tolist() for part, row in found.iterrows()} == COUNTS


@needs_digits
def test_sizes_of_the_split_are_fedbns(real: tuple[Path, Opened]) -> None:
    """1,860 USPS test images are confirmed by all accuracies that FedBN prints; 7,438 and 743 train."""
    split = Split(train=0.8, val=0, test=0.2)
    whole = Partition(internal=SITES, split=split, by="class")
    count = whole.assign(real[1].samples).groupby(["site", "split"]).size().unstack()
    assert count.loc["usps"].to_dict() == {"test": 1860, "train": 7438}
    assert count.loc["mnist"].to_dict() == {"test": 14_000, "train": 56_000}
    limited = whole.model_copy(update={"limit": Limit(train=743)}).assign(real[1].samples)
    assert limited[limited["split"] == "train"].groupby("site").size().to_dict() == dict.fromkeys(SITES, 743)


@needs_digits
def test_pixels_use_the_whole_range(real: tuple[Path, Opened]) -> None:
    for site in SITES:
        x = np.stack([real[1].image(i) for i in rows(real[1], f"{site}/train", 200)])
        assert (x.shape[1:], x.dtype) == ((28, 28, 3), np.uint8)
        assert x.min() < 10
        assert x.max() > 245
        assert (np.ptp(x, axis=-1) == 0).all() == (site in ("mnist", "usps"))


@needs_digits
@pytest.mark.parametrize("train", [True, False])
def test_torchvision_reads_the_same_from_usps(real: tuple[Path, Opened], train: bool) -> None:
    from fedshift.datasets.digits_five import read

    x, y = read(real[0], "usps", "train" if train else "test")
    theirs = USPS(str(real[0]), train=train)
    np.testing.assert_array_equal(x, theirs.data)
    np.testing.assert_array_equal(y, theirs.targets)


@needs_digits
def test_mnist_m_is_the_negative_wherever_mnist_is_above_0(real: tuple[Path, Opened]) -> None:
    """The negative is light on dark grounds; so the middle 28x28 of its 32x32 are MNIST's."""
    with np.load(real_data.FOLDER / "mnist_m" / "mnist_m_test.npz", allow_pickle=False) as file:
        index = file["index"]
    mine, other = rows(real[1], "mnistm/test", 3000), rows(real[1], "mnist/test", 10_000)
    dark = 0
    for i, k in zip(mine, other[index], strict=True):
        seen, inside = real[1].image(i), real[1].image(k)[..., 0] > 0
        assert real[1].samples["label"][i] == real[1].samples["label"][k]
        if seen[~inside].max() < 60:
            dark += 1
            assert (seen[inside] > 150).mean() > 0.97
    assert dark > 20


@needs_digits
def test_files_that_are_not_the_official_ones_are_refused(tmp_path: Path) -> None:
    """MNIST's are; the first other one is named."""
    with pytest.raises(UserError, match=r"train_32x32\.mat: md5 is .*, expected e26dedcc434d2e4c54c9b2d4a06d8373"):
        DigitsFive().download(tmp_path, real_data.FOLDER)
