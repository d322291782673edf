"""Digits-Five: raw files of five kinds, the mirror, what is drawn in place of files, tenths, and the miniature."""

from __future__ import annotations

import bz2
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.io import loadmat, savemat

from fedshift import UserError
from fedshift.core.registry import build
from fedshift.data.partition import Partition, Split
from fedshift.data.prepared import Prepared
from fedshift.datasets._digit_files import read_usps
from fedshift.datasets.digits_five import FILES, LEAST, SITES, DigitsFive, tenths
from fedshift.jobs import prepare
from fedshift.study.run import Data

ALL = Partition(internal=SITES, split=Split(train=0.8, val=0, test=0.2), by="class")


def leaves(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("digits")
    DigitsFive(images=12).miniature(raw)
    return raw


@pytest.fixture
def raw(mini: Path, tmp_path: Path) -> Path:
    """A copy that may be spoiled."""
    return Path(shutil.copytree(mini, tmp_path / "raw"))


def mirrored(raw: Path, mirror: Path) -> Path:
    """The files of `raw` as people keep them: a folder for each set."""
    for site, folder in zip(SITES, ("MNIST", "svhn", "usps", "synth", "mnist_m"), strict=True):
        (mirror / folder).mkdir(parents=True)
        for source in (s for part in FILES[site] for s in part):
            shutil.copy(raw / source.filename, mirror / folder)
    return mirror


# --- miniature ------------------------------------------------------------------------------------------------------


def test_the_miniature_is_prepared_end_to_end(tmp_path: Path) -> None:
    data = Data(dataset=DigitsFive(images=24, morpho="generated"), synthetic=True)
    prepare.obtain(data, tmp_path / "raw", None)
    prepare.prepare(data, tmp_path / "raw", tmp_path / "out", threads=2)
    found = Prepared(tmp_path / "out")
    assert found.shape == DigitsFive.shape == (3, 28, 28)
    sizes = dict.fromkeys(SITES, 300) | {"morpho_global": 60, "morpho_local": 60}
    assert found.samples["site"].value_counts().to_dict() == sizes
    assert (found.samples.groupby(["site", "label"]).size().unstack().nunique(axis=1) == 1).all(), "classes alike"
    assert found.samples["patient"].isna().all()
    assert list(found.samples) == ["sample", "site", "label", "patient"]
    for site in ("mnist", "usps", "morpho_local"):
        rows = (found.samples["site"] == site).to_numpy()
        assert (np.ptp(found.images[rows], axis=-1) == 0).all(), "grey"
    assert found.card["source"] == "drawn by fedshift"


def test_the_miniature_is_the_same_to_the_byte(mini: Path, tmp_path: Path) -> None:
    DigitsFive(images=12).miniature(tmp_path)
    assert leaves(tmp_path) == leaves(mini)
    assert len(leaves(mini)) == 12


def test_its_tenths_can_be_split_by_class(tmp_path: Path) -> None:
    dataset = DigitsFive(clients=10)
    dataset.miniature(tmp_path)
    samples = dataset.open(tmp_path).samples
    assert samples["site"].value_counts().to_dict() == {f"{site}{k}": 50 for site in SITES for k in range(1, 11)}
    assert set(samples.groupby(["site", "label"]).size()) == {5}
    split = ALL.model_copy(update={"internal": tuple(f"{site}10" for site in SITES)}).assign(samples)
    assert split.groupby("split").size().to_dict() == {"test": 50, "train": 200}


# --- sites ----------------------------------------------------------------------------------------------------------


def test_fewer_clients_are_the_first_tenths_with_the_right_images(mini: Path) -> None:
    whole, few = DigitsFive().open(mini), DigitsFive(clients=3).open(mini)
    assert set(few.samples["site"]) == {f"{site}{k}" for site in SITES for k in (1, 2, 3)}
    row = dict(zip(whole.samples["sample"], whole.samples.index, strict=True))
    for i in range(0, len(few.samples), 7):
        np.testing.assert_array_equal(few.image(i), whole.image(row[few.samples["sample"][i]]))
    other = DigitsFive(clients=3, seed=1).open(mini).samples
    assert set(other["sample"]) != set(few.samples["sample"])


def test_tenths_are_even_in_size_and_class_and_hold_everything() -> None:
    """USPS: 9,298 images, so 743 train of 929, as FedBN has it."""
    label = np.repeat(np.arange(10), [1553, 1269, 929, 824, 852, 716, 834, 792, 708, 821])
    found = tenths(label, 0, "usps")
    assert sorted(np.bincount(found)) == [929] * 2 + [930] * 8
    assert np.ptp(pd.crosstab(found, label).to_numpy(), axis=0).max() == 1
    samples = pd.DataFrame({"sample": [f"{n}" for n in range(len(label))], "site": found.astype(str), "label": label})
    least = str(np.bincount(found).argmin())
    split = Partition(internal=(least,), split=ALL.split, by="class").assign(samples.assign(patient=None))
    assert (split["split"] == "train").sum() == 743


def test_sites_are_resized_as_pillow_does_and_mnist_m_is_cut(raw: Path) -> None:
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    np.savez(raw / "mnist_m_train.npz", x=wide, y=np.arange(5))
    opened = DigitsFive().open(raw)
    first = opened.samples.groupby("site").head(1).reset_index().set_index("site")["index"]
    svhn = loadmat(raw / "train_32x32.mat")["X"][..., 0]
    small = Image.fromarray(np.ascontiguousarray(svhn)).resize((28, 28), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(opened.image(first["svhn"]), np.asarray(small))
    np.testing.assert_array_equal(opened.image(first["mnistm"] + 3), wide[3, 2:30, 2:30])
    assert opened.samples["sample"][first["mnistm"] + 5] == "mnistm/test000000"
    assert opened.image(first["usps"]).shape == (28, 28, 3)


# --- files ----------------------------------------------------------------------------------------------------------


def test_labels_of_svhn_and_usps_are_not_the_digits(raw: Path) -> None:
    savemat(raw / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 3), np.uint8), "y": np.array([[10], [1], [9]])})
    line = " ".join(f"{k}:{v}" for k, v in enumerate([-1, 1, 0, 0.5] * 64, 1))
    (raw / "usps.bz2").write_bytes(bz2.compress(f"10 {line}\n1 {line}\n".encode()))
    opened = DigitsFive().open(raw)
    label = {site: rows["label"].tolist() for site, rows in opened.samples.groupby("site")}
    assert label["svhn"][:3] == [0, 1, 9]
    assert label["usps"][:2] == [9, 0]
    assert read_usps(raw / "usps.bz2")[0][0, 0, :4].tolist() == [0, 255, 127, 191]  # 127.5 and 191.25, cut


def mat(**content: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, content)
    return file.getvalue()


def npz(**content: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **content)
    return file.getvalue()


def usps(*lines: str) -> bytes:
    return bz2.compress("".join(f"{line}\n" for line in lines).encode())


X, IMAGES = np.zeros((32, 32, 3, 2), np.uint8), np.zeros((2, 28, 28, 3), np.uint8)
LINE = " ".join(f"{k}:0" for k in range(1, 257))
Spoil = bytes | Callable[[bytes], bytes] | None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train-images-idx3-ubyte.gz", None, "no such file"),
        ("train_32x32.mat", None, "no such file"),
        ("train_32x32.mat", b"no MATLAB", "not a readable MATLAB 5 file"),
        ("train_32x32.mat", lambda b: b[: len(b) // 2], "not a readable MATLAB 5 file"),
        ("train_32x32.mat", mat(X=X), "has no array 'y'; expected 'X' and 'y'"),
        ("train_32x32.mat", mat(X=X[:28], y=[1, 2]), r"'X' is uint8 of shape \(28, 32, 3, 2\), expected uint8 of"),
        ("train_32x32.mat", mat(X=X.astype(float), y=[1, 2]), "'X' is float64 of shape"),
        ("train_32x32.mat", mat(X=X, y=[1, 2, 3]), "has 3 labels for 2 images"),
        ("train_32x32.mat", mat(X=X, y=[1, 0]), "image 1 has label 0, expected 1 to 10"),
        ("train_32x32.mat", mat(X=X, y=["a", "b"]), "its labels are of type .*, expected numbers"),
        ("train_32x32.mat", mat(X=X, y=[1, 2j]), "its labels are of type complex128, expected numbers"),
        ("synth_test_32x32.mat", mat(X=X, y=[10, 0]), "image 0 has label 10, expected 0 to 9"),
        ("usps.bz2", None, "no such file"),
        ("usps.bz2", b"no bz2", "not a readable bz2 file"),
        ("usps.bz2", lambda b: b[:-9], "not a readable bz2 file"),
        ("usps.bz2", usps(), "holds no images"),
        ("usps.bz2", usps(f"1 {LINE}", "1 1:0"), "line 2 must be a label and 256 pairs place:value; it has 3 numbers"),
        ("usps.bz2", usps(f"1 {LINE.replace('7:0', '7:x', 1)}"), "line 1 must be a label and 256 pairs"),
        ("usps.bz2", usps(f"1 {LINE.replace('7:0', '7:2', 1)}"), "line 1 has places other than 1 to 256, or values"),
        ("usps.bz2", usps(f"1 {LINE.replace('7:0', '9:0', 1)}"), "line 1 has places other than 1 to 256"),
        ("usps.t.bz2", usps(f"11 {LINE}"), "image 0 has label 11, expected 1 to 10"),
        ("mnist_m_test.npz", None, "no such file"),
        ("mnist_m_test.npz", b"no npz", "not a readable npz file"),
        ("mnist_m_test.npz", lambda b: b[:-99], "not a readable npz file"),
        ("mnist_m_test.npz", lambda b: b[:500] + b"spoiled" + b[507:], "not a readable npz file"),
        ("mnist_m_test.npz", npz(y=[1, 2]), "has no array 'x'; it has y"),
        ("mnist_m_test.npz", npz(x=IMAGES[..., 0], y=[1, 2]), r"'x' is uint8 of shape \(2, 28, 28\), expected uint8"),
        ("mnist_m_test.npz", npz(x=IMAGES, y=np.array([1, "a"], dtype=object)), "not a readable npz file"),
        ("mnist_m_test.npz", npz(x=IMAGES, y=["a", "b"]), "labels are of type <U1, expected numbers"),
        ("mnist_m_test.npz", npz(x=IMAGES, y=[1]), "has 1 labels for 2 images"),
        ("mnist_m_test.npz", npz(x=IMAGES, y=[1, 2.5]), "image 1 has label 2.5, expected 0 to 9"),
    ],
)
def test_a_spoiled_file_is_named(raw: Path, name: str, content: Spoil, words: str) -> None:
    before = (raw / name).read_bytes()
    (raw / name).unlink()
    if content is not None:
        (raw / name).write_bytes(content(before) if callable(content) else content)
    with pytest.raises(UserError, match=rf"{name}: .*{words}") as caught:
        DigitsFive().open(raw)
    assert "\n" not in str(caught.value)


# --- mirror ---------------------------------------------------------------------------------------------------------


def test_a_mirror_with_folders_gives_what_it_has(mini: Path, tmp_path: Path) -> None:
    mirror = mirrored(mini, tmp_path / "mirror")
    (mirror / "svhn" / "test_32x32.mat").unlink()
    (mirror / "MNIST" / "train-labels-idx1-ubyte.gz").unlink()
    (mirror / "fashion").mkdir()
    (mirror / "fashion" / "train-labels-idx1-ubyte.gz").write_bytes(b"of another dataset")
    dataset = DigitsFive(complete=False, synth="rendered", drawn=100, mnistm="composed")
    dataset.download(tmp_path / "raw", mirror)
    found = dataset.open(tmp_path / "raw").samples["sample"].str[:-6].value_counts()
    expected = {"mnist/test": 30, "svhn/train": 120, "usps/train": 120, "usps/test": 30}
    assert found.to_dict() == expected | {"synth/train": 90, "synth/test": 10, "mnistm/test": 30}


def test_the_mirror_itself_comes_before_its_folders(mini: Path, tmp_path: Path) -> None:
    mirror = mirrored(mini, tmp_path / "mirror")
    shutil.copy(mini / "usps.t.bz2", mirror / "usps.bz2")
    DigitsFive(complete=False).download(tmp_path / "raw", mirror)
    assert (tmp_path / "raw" / "usps.bz2").read_bytes() == (mini / "usps.t.bz2").read_bytes()


def test_a_site_of_which_nothing_is_at_hand_is_named(mini: Path, tmp_path: Path) -> None:
    mirror = mirrored(mini, tmp_path / "mirror")
    shutil.rmtree(mirror / "svhn")
    for where, words in ((mirror, "mirror"), (None, "mirror"), (tmp_path / "none", "none")):
        missing = r"(svhn: train_32x32\.mat or test|mnist: train-images)"
        pattern = rf"{words}: has neither training nor test images of {missing}.*; put the file"
        with pytest.raises(UserError, match=pattern):
            DigitsFive(complete=False).download(tmp_path / "raw" / words, where)
    with pytest.raises(UserError, match=r"has neither training nor test images of mnist; obtain the dataset again"):
        DigitsFive(complete=False).open(tmp_path)


def test_official_files_have_their_checksums(mini: Path, tmp_path: Path) -> None:
    """Every file but those of SynthDigits and MNIST-M, which have a least number of images."""
    mirror = mirrored(mini, tmp_path / "mirror")
    sources = DigitsFive().sources()
    assert len(sources) == 12
    assert {s.filename for s in sources if s.md5 is None} == set(LEAST)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz: size is .*, expected 9912422; check this file"):
        DigitsFive().download(tmp_path / "raw", mirror)
    assert all(s.url is s.md5 is s.sha256 is s.size is None and s.page for s in DigitsFive(complete=False).sources())


def test_files_without_checksum_must_be_whole(mini: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = mirrored(mini, tmp_path / "mirror")
    dataset = DigitsFive(complete=False)
    files = dataset._files()
    monkeypatch.setattr(DigitsFive, "_files", lambda _: files)
    with pytest.raises(UserError, match=r"synth_train_32x32\.mat: has 135 images, expected 479400 or more; .*complete"):
        DigitsFive().download(tmp_path / "raw", mirror)
    monkeypatch.setitem(LEAST, "synth_train_32x32.mat", 135)
    monkeypatch.setitem(LEAST, "synth_test_32x32.mat", 15)
    with pytest.raises(UserError, match=r"mnist_m_train\.npz: has 120 images, expected 59000 or more"):
        DigitsFive().download(tmp_path / "raw", mirror)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"synth": "drawn"}, r"\.synth: unknown value 'drawn'; known: files, rendered"),
        ({"mnistm": "file"}, r"\.mnistm: unknown value 'file'; did you mean 'files'\?"),
        ({"morpho": True}, r"\.morpho: unknown value True; known: files, generated, none"),
        ({"clients": 11}, r"\.clients: .*less than or equal to 10"),
        ({"drawn": 10}, r"\.drawn: .*greater than or equal to 100"),
    ],
)
def test_settings_that_are_none(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build("dataset", {"name": "digits_five", **settings})
