"""CIFAR-100: records with two labels, and FedTAN's division of a hundred classes."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedshift import UserError
from fedshift.core.registry import build
from fedshift.data.prepared import Prepared
from fedshift.datasets._divided import divide
from fedshift.datasets.cifar100 import NAMES, Cifar100
from fedshift.io.download import Source
from fedshift.jobs import prepare
from fedshift.study.run import Data

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(100, dtype=np.uint8), 500))
INSIDE = Path("cifar-100-binary") / "cifar-100-binary"


def table(client: np.ndarray, clients: int = 5) -> np.ndarray:
    """Images of each client (rows) and class (columns)."""
    return np.array([np.bincount(LABELS[client == k], minlength=100) for k in range(clients)])


def binary(raw: Path, parts: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Path:
    """The official layout: coarse and fine label, then red, green and blue, each row by row."""
    (folder := raw / INSIDE).mkdir(parents=True)
    for name, (x, coarse, fine) in parts.items():
        planes = [x[..., c].reshape(len(x), 1024) for c in range(3)]
        (folder / name).write_bytes(np.hstack([np.stack([coarse, fine], 1), *planes]).astype(np.uint8).tobytes())
    return folder


def some(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 32, 32, 3)), rng.integers(0, 20, count), rng.integers(0, 100, count)


# ---- names


def test_names_are_in_the_official_order() -> None:
    """Alphabetical; some labels that are known from elsewhere."""
    assert len(set(NAMES)) == 100
    assert list(NAMES) == sorted(NAMES)
    known = {
        0: "apple",
        4: "beaver",
        19: "cattle",
        29: "dinosaur",
        49: "mountain",
        55: "otter",
        72: "seal",
        95: "whale",
    }
    assert {k: NAMES[k] for k in known} == known
    assert NAMES[99] == "worm"


# ---- division


def test_twenty_classes_at_each_of_five_clients() -> None:
    found = table(divide(LABELS, 5, 20, np.random.default_rng(0), 100))
    for k, row in enumerate(found):
        assert np.flatnonzero(row).tolist() == list(range(20 * k, 20 * k + 20))
        assert set(row[row > 0]) == {500}


def test_more_classes_are_shared_cyclically() -> None:
    found = table(divide(LABELS, 5, 40, np.random.default_rng(0), 100))
    for k, row in enumerate(found):
        assert set(np.flatnonzero(row)) == {c % 100 for c in range(20 * k, 20 * k + 40)}
        assert abs(row[row > 0] - 250).max() < 40, "of a block of 20 classes every second image"
    assert found.sum(1).tolist() == [10_000] * 5
    assert found.sum(0).tolist() == [500] * 100


def test_the_dataset_divides_its_hundred_classes(tmp_path: Path) -> None:
    """Not ten: with 20 of them, client1 has the first fifth."""
    fine = np.tile(np.arange(100), 4)
    x, coarse, _ = some(400, 0)
    binary(tmp_path, {"train.bin": (x, coarse, fine), "test.bin": some(7, 1)})
    samples = Cifar100(classes_per_client=20).open(tmp_path).samples
    held = samples[samples["site"] != "test"].groupby("site")["label"].agg(set)
    assert held.to_dict() == {f"client{k + 1}": set(range(20 * k, 20 * k + 20)) for k in range(5)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"classes_per_client": 30},
            r"\.classes_per_client: 30 classes for each of 5 clients .*; take a multiple of 20",
        ),
        (
            {"classes_per_client": 20, "clients": 3},
            r"\.clients: 3 clients do not divide 100 classes evenly; take 1, 2, 4, 5, 10, 20, 25, 50 or 100, or leave",
        ),
        ({"classes_per_client": 101}, r"\.classes_per_client: .*less than or equal to 100"),
        ({"classes": ["a", "b"]}, r"\.classes: .*at least 100 items"),
    ],
)
def test_a_division_that_is_none_is_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        build("dataset", {"name": "cifar100", **settings})
    assert "\n" not in str(caught.value)


# ---- raw files


def test_records_are_read_by_plane_with_the_fine_label(tmp_path: Path) -> None:
    parts = {"train.bin": some(30, 0), "test.bin": some(15, 1)}
    binary(tmp_path, parts)
    opened = Cifar100().open(tmp_path)
    x = np.concatenate([part[0] for part in parts.values()])
    np.testing.assert_array_equal([opened.image(i) for i in range(45)], x)
    assert opened.image(0).dtype == np.uint8
    assert opened.samples["label"].tolist() == np.concatenate([part[2] for part in parts.values()]).tolist()
    assert (opened.samples["site"] == "test").tolist() == [False] * 30 + [True] * 15


def test_the_archive_of_the_mirror_is_unpacked_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"train.bin": some(30, 0), "test.bin": some(15, 1)}
    folder = binary(tmp_path / "made", parts)
    (mirror := tmp_path / "mirror").mkdir()
    with tarfile.open(mirror / "cifar-100-binary.tar.gz", "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    (real,) = Cifar100().sources()
    assert (real.md5, real.size) == ("03b5dce01913d631647c71ecec9e9cb8", 168_513_733)
    monkeypatch.setattr(Cifar100, "sources", lambda _: [Source(real.url, real.filename, unpack=real.unpack)])
    data = Data(dataset=Cifar100(), synthetic=False)
    prepare.obtain(data, tmp_path / "raw", mirror)
    prepare.prepare(data, tmp_path / "raw", tmp_path / "out")
    np.testing.assert_array_equal(Prepared(tmp_path / "out").images[30:], parts["test.bin"][0])


def test_another_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(b"not it")
    words = r"cifar-100-binary\.tar\.gz: size is 6, expected 168513733; check this file of the mirror"
    with pytest.raises(UserError, match=words):
        prepare.obtain(Data(dataset=Cifar100(), synthetic=False), tmp_path / "raw", tmp_path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda file: file.unlink(), r"train\.bin: no such file; obtain the archive again"),
        (lambda file: file.write_bytes(b""), r"train\.bin: has 0 bytes, which are not whole records of 3074"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), r"train\.bin: has 92219 bytes, which are not whole"),
        (lambda file: file.write_bytes(b"\x14" * 6148), r"train\.bin: image 0 has label 20, expected 0 to 19"),
        (
            lambda file: file.write_bytes(bytes(3074) + b"\x00\x64" + bytes(3072)),
            r"train\.bin: image 1 has label 100, expected 0 to 99",
        ),
    ],
)
def test_spoiled_records_are_named(tmp_path: Path, spoil: Callable[[Path], Any], words: str) -> None:
    spoil(binary(tmp_path, {"train.bin": some(30, 0), "test.bin": some(15, 1)}) / "train.bin")
    with pytest.raises(UserError, match=words) as caught:
        Cifar100().open(tmp_path)
    assert "\n" not in str(caught.value)


# ---- the miniature


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("cifar100")
    data = Data(dataset=Cifar100(classes_per_client=20), synthetic=True)
    prepare.obtain(data, folder / "raw", None)
    prepare.prepare(data, folder / "raw", folder / "out", threads=2)
    return Prepared(folder / "out")


def test_the_miniature_is_prepared(made: Prepared) -> None:
    assert made.shape == Cifar100.shape == (3, 32, 32)
    external = (made.samples["site"] == "test").to_numpy()
    for rows, count in ((external, 2), (~external, 10)):
        assert np.bincount(made.samples.loc[rows, "label"]).tolist() == [count] * 100
    assert made.samples["site"].value_counts().to_dict() == dict.fromkeys(
        ["test", *(f"client{k}" for k in range(1, 6))], 200
    )
    assert made.classes == NAMES


def test_the_miniature_is_the_same_to_the_byte(made: Prepared, tmp_path: Path) -> None:
    Cifar100().miniature(tmp_path)
    for name in ("train.bin", "test.bin", "fine_label_names.txt"):
        assert (tmp_path / INSIDE / name).read_bytes() == (made.folder.parent / "raw" / INSIDE / name).read_bytes()
    assert (tmp_path / INSIDE / "fine_label_names.txt").read_text(encoding="utf-8").split() == list(NAMES)


@pytest.mark.parametrize("place", [0, 1], ids=["tens", "ones"])
def test_both_digits_of_the_miniature_can_be_told(made: Prepared, place: int) -> None:
    """Each from its own half of the image, by the nearest of the mean images; chance is 0.1."""
    images, digit = made.images.astype(float), np.stack(divmod(made.samples["label"].to_numpy(), 10))[place]
    train = (made.samples["site"] != "test").to_numpy()
    half = images[:, 8:24, 16 * place : 16 * place + 16]
    ink = np.abs(half - np.median(images, axis=(1, 2), keepdims=True)).mean(-1).reshape(len(images), -1)
    centre = np.stack([ink[train & (digit == d)].mean(0) for d in range(10)])
    found = ((ink[~train][:, None] - centre) ** 2).sum(-1).argmin(1)
    assert (found == digit[~train]).mean() > 0.4
