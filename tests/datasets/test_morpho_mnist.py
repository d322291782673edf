"""Morpho-MNIST: the perturbations, the files, the mirror and the miniature."""

from __future__ import annotations

import gzip
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_data
from scipy import ndimage

from fedshift import UserError
from fedshift.core.registry import build
from fedshift.core.rng import stream
from fedshift.data.partition import Partition, Split
from fedshift.data.prepared import Prepared
from fedshift.datasets import _digit_files, _morpho
from fedshift.datasets._digit_drawing import digit
from fedshift.datasets._digit_files import TEST, read_mnist
from fedshift.datasets._morpho import NAMES, SCALE, enlarged, perturbed, reduced, skeleton
from fedshift.datasets.morpho_mnist import MorphoMnist
from fedshift.jobs import prepare
from fedshift.study.run import Data

EIGHT = np.ones((3, 3))
FILES = [f"t10k-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1", "pert-idx1")]


def digits(count: int) -> np.ndarray:
    return np.stack([(255 * digit(stream("test", n), n % 10, 28)).round().astype(np.uint8) for n in range(count)])


def under(name: str, image: np.ndarray, *key: object) -> np.ndarray:
    return perturbed(image, NAMES.index(name), stream(*key))


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("morpho")
    MorphoMnist(images=3).miniature(raw)
    return raw


@pytest.fixture
def raw(mini: Path, tmp_path: Path) -> Path:
    """A copy that may be spoiled."""
    return Path(shutil.copytree(mini, tmp_path / "raw"))


# --- perturbations --------------------------------------------------------------------------------------------------


def test_the_skeleton_of_a_bar_is_its_middle_line() -> None:
    ink = np.zeros((9, 30), dtype=bool)
    ink[2:7, 3:27] = True
    rows, columns = np.nonzero(skeleton(ink))
    assert set(rows) == {4}
    assert sorted(columns) == list(range(columns.min(), columns.max() + 1)), "without gaps or doubles"
    assert columns.max() - columns.min() > 17


@pytest.mark.parametrize("label", range(10))
def test_a_skeleton_keeps_parts_and_holes_and_is_thin(label: int) -> None:
    ink = enlarged(digits(10)[label]).ink
    bones = skeleton(ink)
    assert not (bones & ~ink).any()
    assert ndimage.label(bones, EIGHT)[1] == ndimage.label(ink, EIGHT)[1]
    assert ndimage.label(~np.pad(bones, 1))[1] == ndimage.label(~np.pad(ink, 1))[1]
    assert ndimage.binary_erosion(bones, np.ones((2, 2))).sum() <= 2, "no blocks, but where lines meet"


def test_the_thickness_of_a_bar_is_in_pixels_of_the_image() -> None:
    image = np.zeros((28, 28), dtype=np.uint8)
    image[10:14, 4:24] = 255
    assert enlarged(image).thickness == pytest.approx(4, rel=0.1)
    ink = np.repeat(np.repeat(image > 0, SCALE, axis=0), SCALE, axis=1)
    assert np.abs(reduced(ink).astype(int) - image)[:, 6:22].max() < 60, "the blur at the rim"
    assert (reduced(ink)[11:13, 6:22] > 240).all()


def test_thin_and_thick_strokes_have_that_radius_less_or_more() -> None:
    """A bar of 16 fine pixels: eroded by int(0.7 x 8) = 5 on either side, or dilated by 8; the blur keeps its sum."""
    image = np.zeros((28, 28), dtype=np.uint8)
    image[10:14, 4:24] = 255
    middle = {name: under(name, image)[:, 13].sum() / 255 for name in ("thin", "plain", "thick")}
    assert middle["plain"] == 4
    assert middle["thin"] == pytest.approx((16 - 10) / SCALE, abs=0.3)
    assert middle["thick"] == pytest.approx((16 + 16) / SCALE, abs=0.3)


def test_disks_are_those_of_erosion_and_dilation() -> None:
    stroke = enlarged(digits(4)[3])
    for amount, operation in ((-0.7, ndimage.binary_erosion), (1.0, ndimage.binary_dilation)):
        radius = int(abs(amount) * SCALE * stroke.thickness / 2)
        y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
        expected = reduced(operation(stroke.ink, x**2 + y**2 <= radius**2))
        np.testing.assert_array_equal(under("thin" if amount < 0 else "thick", digits(4)[3]), expected)


def test_swelling_and_fractures_are_local_and_keyed() -> None:
    image = digits(9)[8]
    same = reduced(enlarged(image).ink).astype(int)
    for name, sign in (("swollen", 1), ("fractured", -1)):
        seen = under(name, image, 1).astype(int)
        changed = np.abs(seen - same) > 40
        assert 3 < changed.sum() < 250
        assert sign * (seen - same).sum() > 0
        np.testing.assert_array_equal(seen, under(name, image, 1))
        assert (seen != under(name, image, 2)).any()


def test_fractures_cut_the_stroke() -> None:
    parts = [ndimage.label(under("fractured", digits(8)[1], k) > 100, EIGHT)[1] for k in range(20)]
    assert np.mean(parts) > 2
    assert max(parts) <= 4, "three gaps"


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_image_stays_empty(name: str) -> None:
    assert not under(name, np.zeros((28, 28), dtype=np.uint8)).any()


def test_a_dot_is_perturbed_too() -> None:
    dot = np.zeros((28, 28), dtype=np.uint8)
    dot[14, 14] = 9
    for name in NAMES:
        assert under(name, dot).shape == (28, 28)


# --- miniature and files --------------------------------------------------------------------------------------------


def test_the_miniature_is_prepared_end_to_end(tmp_path: Path) -> None:
    data = Data(dataset=MorphoMnist(), synthetic=True)
    prepare.obtain(data, tmp_path / "raw", None)
    prepare.prepare(data, tmp_path / "raw", tmp_path / "out", threads=2)
    found = Prepared(tmp_path / "out")
    assert found.shape == MorphoMnist.shape == (3, 28, 28)
    assert found.samples["site"].value_counts().to_dict() == {"morpho_global": 100, "morpho_local": 100}
    assert set(found.samples.groupby(["site", "label"]).size()) == {10}
    how = found.samples["sample"].str.rpartition("_")[2]
    assert {site: set(names) for site, names in how.groupby(found.samples["site"])} == {
        "morpho_global": {"plain", "thin", "thick"},
        "morpho_local": {"plain", "swollen", "fractured"},
    }


def test_both_sites_share_digits_and_a_split_keeps_them_together(mini: Path) -> None:
    opened = MorphoMnist().open(mini)
    internal = ("morpho_global", "morpho_local")
    split = Partition(internal=internal, split=Split(train=0.8, val=0, test=0.2), by="sample").assign(opened.samples)
    one, two = (split.loc[split["site"] == site, "split"].tolist() for site in internal)
    assert one == two
    plain = opened.samples["sample"].str.endswith("plain")
    both = plain[:30].to_numpy() & plain[30:].to_numpy()
    for n in np.flatnonzero(both):
        np.testing.assert_array_equal(opened.image(int(n)), opened.image(int(n) + 30))


def test_the_miniature_is_the_same_to_the_byte(mini: Path, tmp_path: Path) -> None:
    MorphoMnist(images=3).miniature(tmp_path)
    for kind in ("global", "local"):
        for name in FILES:
            assert (tmp_path / kind / name).read_bytes() == (mini / kind / name).read_bytes()


@pytest.mark.parametrize("packing", ["folders", "archives"])
def test_files_come_from_the_mirror(mini: Path, tmp_path: Path, packing: str) -> None:
    (mirror := tmp_path / "mirror").mkdir()
    (mirror / FILES[0]).write_bytes(b"MNIST's own")
    if packing == "folders":
        shutil.copytree(mini / "global", mirror / "global")
        shutil.copytree(mini / "local", mirror / "morpho_local")
    else:
        for kind in ("global", "local"):
            with zipfile.ZipFile(mirror / f"{kind}.zip", "w") as archive:
                for name in FILES:
                    archive.write(mini / kind / name, f"{kind}/{name}")
    MorphoMnist().download(tmp_path / "raw", mirror)
    found, expected = MorphoMnist().open(tmp_path / "raw"), MorphoMnist().open(mini)
    assert found.samples.equals(expected.samples)
    np.testing.assert_array_equal(found.image(40), expected.image(40))


def test_what_the_mirror_lacks_is_named(mini: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"global\.zip: no lasting address .*Morpho-MNIST; put the file"):
        MorphoMnist().download(tmp_path / "raw", None)
    shutil.copytree(mini / "global", tmp_path / "mirror" / "global")
    (tmp_path / "mirror" / "global" / FILES[2]).unlink()
    with pytest.raises(UserError, match=r"t10k-pert-idx1-ubyte\.gz: no lasting address"):
        MorphoMnist().download(tmp_path / "raw", tmp_path / "mirror")


def idx(*values: int) -> bytes:
    return gzip.compress(struct.pack(">HBBi", 0, 8, 1, len(values)) + bytes(values))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("global/" + FILES[0], None, "no such file"),
        ("local/" + FILES[2], None, "no such file"),
        ("local/" + FILES[2], b"no gzip", "not a readable gzip file"),
        ("local/" + FILES[2], idx(0, 3), "has 2 perturbations for 30 images"),
        ("local/" + FILES[2], idx(*[0] * 29, 1), "image 29 has perturbation 1, expected one of 0, 3, 4"),
        ("global/" + FILES[2], idx(3, *[0] * 29), "image 0 has perturbation 3, expected one of 0, 1, 2"),
        ("global/" + FILES[1], idx(*[0] * 29), "has 29 labels for 30 images"),
        ("global/" + FILES[1], idx(*[0] * 29, 10), "image 29 has label 10, expected 0 to 9"),
    ],
)
def test_a_spoiled_file_is_named(raw: Path, name: str, content: bytes | None, words: str) -> None:
    (raw / name).unlink()
    if content is not None:
        (raw / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}: .*{words}") as caught:
        MorphoMnist().open(raw)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"morpho": "drawn"}, r"\.morpho: unknown value 'drawn'"), ({"part": "test"}, r"\.part: unknown value 'test'")],
)
def test_settings_that_are_none(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build("dataset", {"name": "morpho_mnist", **settings})


@real_data.needs("mnist")
def test_real_mnist_is_perturbed_from_the_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first 150 of the test images; each depends on its number alone."""
    monkeypatch.setattr(_digit_files, "read_mnist", lambda raw, part: tuple(a[:150] for a in read_mnist(raw, part)))
    dataset = MorphoMnist(morpho="generated")
    assert [s.filename for s in dataset.sources()] == FILES[:2]
    assert "from memory" in dataset.card().caveat
    dataset.download(tmp_path, real_data.FOLDER)
    opened = dataset.open(tmp_path)
    x, y = read_mnist(real_data.FOLDER / "mnist", TEST)
    assert opened.samples["label"].tolist() == 2 * y[:150].tolist()
    ink: dict[str, list[float]] = {name: [] for name in NAMES}
    for i, name in enumerate(opened.samples["sample"].str.rpartition("_")[2]):
        ink[name].append(opened.image(i)[..., 0].sum() / x[i % 150].sum())
    assert 30 < len(ink["thin"]) < 70
    mean = {name: float(np.mean(values)) for name, values in ink.items()}
    assert mean["thin"] < 0.65 < mean["fractured"] < mean["plain"] == 1 < mean["swollen"] < mean["thick"] < 2.5
    few = tmp_path / "few"
    _morpho.generate(few, x[:9], y[:9], "t10k")
    for i in range(9):
        np.testing.assert_array_equal(_morpho.opened(few, "t10k").image(i), opened.image(i))
