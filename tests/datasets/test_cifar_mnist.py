"""CIFAR-10 and MNIST: raw files, their division among clients as FedTAN describes it, and the miniatures."""

from __future__ import annotations

import gzip
import hashlib
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import real_data
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torchvision.datasets import MNIST

from fedshift import UserError
from fedshift.core.registry import build
from fedshift.data.partition import Partition, Split
from fedshift.data.prepared import Prepared
from fedshift.datasets import Dataset
from fedshift.datasets._divided import divide
from fedshift.datasets.camelyon17 import Camelyon17
from fedshift.datasets.cifar10 import Cifar10
from fedshift.datasets.mnist import Mnist
from fedshift.io.download import Source
from fedshift.jobs import prepare
from fedshift.study.run import Data

CIFAR10 = "cifar10/cifar10_exact.npz"

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
CIFAR_LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10, dtype=np.uint8), 5000))
HELD = {  # classes of the clients 1 to 5, as in FedTAN's supplement, whose labels are 1 to 10
    2: [{1, 2}, {3, 4}, {5, 6}, {7, 8}, {9, 10}],
    4: [{1, 2, 3, 4}, {3, 4, 5, 6}, {5, 6, 7, 8}, {7, 8, 9, 10}, {9, 10, 1, 2}],
    6: [{1, 2, 3, 4, 5, 6}, {3, 4, 5, 6, 7, 8}, {5, 6, 7, 8, 9, 10}, {7, 8, 9, 10, 1, 2}, {9, 10, 1, 2, 3, 4}],
    8: [
        {1, 2, 3, 4, 5, 6, 7, 8},
        {3, 4, 5, 6, 7, 8, 9, 10},
        {5, 6, 7, 8, 9, 10, 1, 2},
        {7, 8, 9, 10, 1, 2, 3, 4},
        {9, 10, 1, 2, 3, 4, 5, 6},
    ],
    10: [set(range(1, 11))] * 5,
}


def divided(labels: np.ndarray, clients: int, per_client: int | None, seed: int = 0) -> np.ndarray:
    return divide(labels, clients, per_client, np.random.default_rng(seed))


def table(labels: np.ndarray, client: np.ndarray, clients: int = 5) -> np.ndarray:
    """Images of each client (rows) and class (columns)."""
    return np.array([np.bincount(labels[client == k], minlength=10) for k in range(clients)])


def prepared(data: Data, folder: Path, mirror: Path | None = None) -> Prepared:
    prepare.obtain(data, folder / "raw", mirror)
    prepare.prepare(data, folder / "raw", folder / "out", threads=2)
    return Prepared(folder / "out")


# --- division -------------------------------------------------------------------------------------------------------


def test_iid_parts_are_equal_and_whole_and_look_alike() -> None:
    client = divided(CIFAR_LABELS, 5, None)
    assert np.bincount(client).tolist() == [10_000] * 5  # each image has one client, so they are disjoint
    fractions = table(CIFAR_LABELS, client) / 10_000
    assert np.abs(fractions - 0.1).max() < 5 * (0.1 * 0.9 * 0.8 / 10_000) ** 0.5, "five standard errors"


def test_iid_parts_that_cannot_be_equal_differ_by_one() -> None:
    assert sorted(np.bincount(divided(CIFAR_LABELS, 7, None))) == [7142] + [7143] * 6


def test_iid_parts_are_drawn_by_the_seed() -> None:
    one, same, other = (divided(CIFAR_LABELS, 5, None, seed) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert 0.75 < (one != other).mean() < 0.85, "four of five images move"


@pytest.mark.parametrize("per_client", HELD)
def test_each_client_holds_its_classes_in_equal_fractions(per_client: int) -> None:
    found = table(CIFAR_LABELS, divided(CIFAR_LABELS, 5, per_client))
    for row, held in zip(found, HELD[per_client], strict=True):
        assert set(np.flatnonzero(row) + 1) == held
        assert np.abs(row[row > 0] - 10_000 / per_client).max() < 1
    assert found.sum(1).tolist() == [10_000] * 5
    assert found.sum(0).tolist() == [5000] * 10
    assert ((found > 0).sum(0) == per_client / 2).all(), "each class is shared by C / 2 clients"


def test_ten_clients_may_hold_any_number_of_classes() -> None:
    found = table(CIFAR_LABELS, divided(CIFAR_LABELS, 10, 3), clients=10)
    assert [set(np.flatnonzero(row)) for row in found] == [{k, (k + 1) % 10, (k + 2) % 10} for k in range(10)]
    assert found.sum(1).tolist() == [5000] * 10
    assert np.abs(found[found > 0] - 5000 / 3).max() < 1


def test_classes_of_unequal_size_are_cut_at_equal_blocks_all_the_same() -> None:
    """MNIST: the sorted labels cut at 12000, 24000, 36000 and 48000; worked out from the running sums of its counts."""
    labels = np.repeat(np.arange(10), MNIST_TRAIN)
    expected = np.zeros((5, 10), dtype=int)
    expected[0, [0, 1]] = 5923, 6077
    expected[1, [1, 2, 3]] = 665, 5958, 5377
    expected[2, [3, 4, 5]] = 754, 5842, 5404
    expected[3, [5, 6, 7]] = 17, 5918, 6065
    expected[4, [7, 8, 9]] = 200, 5851, 5949
    assert table(labels, divided(labels, 5, 2)).tolist() == expected.tolist()
    assert table(labels, divided(labels, 5, 4)).sum(1).tolist() == [12_000] * 5


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"classes_per_client": 3},
            r"\.classes_per_client: 3 classes for each of 5 clients make unequal parts; take a multiple of 2",
        ),
        (
            {"classes_per_client": 1, "clients": 4},
            r"\.clients: 4 clients do not divide 10 classes evenly; take 1, 2, 5",
        ),
        ({"classes_per_client": 11}, r"\.classes_per_client: .*less than or equal to 10"),
        ({"clients": 0}, r"\.clients: .*greater than or equal to 1"),
        ({"classes": ["a", "b"]}, r"\.classes: .*at least 10 items"),
    ],
)
def test_a_division_that_is_none_is_one_line(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        build("dataset", {"name": name, **settings})
    assert "\n" not in str(caught.value)


# --- miniatures -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[Cifar10, Mnist], ids=["cifar10", "mnist"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Prepared]:
    dataset = request.param(classes_per_client=4)
    return dataset, prepared(Data(dataset=dataset, synthetic=True), tmp_path_factory.mktemp(dataset.name))


def test_a_miniature_is_prepared_end_to_end(made: tuple[Dataset, Prepared]) -> None:
    dataset, found = made
    channels, height, width = {"cifar10": (3, 32, 32), "mnist": (1, 28, 28)}[dataset.name]
    assert found.shape == dataset.shape == (channels, height, width)
    assert found.images.shape == (600, height, width, channels)
    assert found.samples["site"].value_counts().to_dict() == {"test": 100} | {f"client{k}": 100 for k in range(1, 6)}
    labels = {site: set(rows + 1) for site, rows in found.samples.groupby("site")["label"]}
    assert [labels[f"client{k}"] for k in range(1, 6)] == HELD[4]
    for external, count in ((True, 10), (False, 50)):
        rows = (found.samples["site"] == "test") == external
        assert np.bincount(found.samples.loc[rows, "label"]).tolist() == [count] * 10
    assert (found.card["synthetic"], found.card["sites"]["test"]) == (True, {"images": 100, "patients": None})
    assert found.card["source"] == "drawn by fedshift"


def test_all_training_images_train_and_the_test_images_are_external(made: tuple[Dataset, Prepared]) -> None:
    _, found = made
    names = tuple(f"client{k}" for k in range(1, 6))
    partition = Partition(internal=names, external=("test",), split=Split(train=1, val=0, test=0))
    assigned = partition.assign(found.samples)
    assert assigned.groupby(["role", "split"]).size().to_dict() == {
        ("external", "test"): 100,
        ("internal", "train"): 500,
    }
    assert assigned["sample"].str.match("train").tolist() == (assigned["role"] == "internal").tolist()


def test_a_miniature_is_the_same_to_the_byte(made: tuple[Dataset, Prepared], tmp_path: Path) -> None:
    dataset, found = made
    dataset.miniature(tmp_path)
    files = [p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) == {"cifar10": 7, "mnist": 4}[dataset.name]
    for path in files:
        assert (tmp_path / path).read_bytes() == (found.folder.parent / "raw" / path).read_bytes()


def test_a_miniature_shows_digits_that_can_be_told_apart_but_not_by_colour(
    made: tuple[Dataset, Prepared],
) -> None:
    """Chance is 0.1. Of MNIST's digits ink tells some, as in handwriting."""
    dataset, found = made
    images, label = found.images.astype(float), found.samples["label"].to_numpy()
    train = (found.samples["site"] != "test").to_numpy()

    def accuracy(features: np.ndarray) -> float:
        probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(features[train], label[train])
        return probe.score(features[~train], label[~train])

    colour = np.hstack([images.mean((1, 2)), images.std((1, 2))])
    ink = np.abs(images - np.median(images, axis=(1, 2), keepdims=True)).mean(-1)  # paper is the commonest colour
    assert accuracy(colour) < (0.3 if dataset.name == "cifar10" else 0.45)
    assert accuracy(ink.reshape(len(ink), -1)) > 0.6


def test_shapes_that_are_known_beforehand() -> None:
    assert Dataset.shape is None
    assert Camelyon17.shape == (3, 96, 96)


# --- CIFAR-10's raw files -------------------------------------------------------------------------------------------


def binary(raw: Path, batches: dict[str, tuple[np.ndarray, np.ndarray]]) -> Path:
    """The official layout: a byte for the label, then red, green and blue, each row by row."""
    folder = raw / "cifar-10-binary" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, (x, y) in batches.items():
        planes = [x[..., c].reshape(len(x), 1024) for c in range(3)]
        (folder / f"{name}.bin").write_bytes(np.hstack([y[:, None].astype(np.uint8), *planes]).tobytes())
    return folder


def some(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), np.arange(count) % 10


NAMES = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]


def test_records_are_read_by_plane_in_the_order_of_the_batches(tmp_path: Path) -> None:
    batches = {name: some(10 + k, k) for k, name in enumerate(NAMES)}
    binary(tmp_path, batches)
    opened = Cifar10().open(tmp_path)
    x, y = (np.concatenate([batch[part] for batch in batches.values()]) for part in (0, 1))
    np.testing.assert_array_equal([opened.image(i) for i in range(len(x))], x)
    assert opened.samples["label"].tolist() == y.tolist()
    assert (opened.samples["site"] == "test").tolist() == [False] * 60 + [True] * 15
    assert opened.samples["sample"].iloc[[0, 59, 60]].tolist() == ["train00000", "train00059", "test00000"]


@real_data.needs(CIFAR10)
def test_real_pixels_come_through(tmp_path: Path) -> None:
    """The first 932 images of each training batch and the first 846 test images."""
    with np.load(real_data.FOLDER / CIFAR10, allow_pickle=False) as real:
        x, y = (np.split(real[f"{part}_train"], 5) for part in "xy")
        batches = dict(zip(NAMES, [*zip(x, y, strict=True), (real["x_test"], real["y_test"])], strict=True))
    binary(tmp_path, batches)
    data = Data(dataset=Cifar10(), synthetic=False)
    prepare.prepare(data, tmp_path, tmp_path / "out")
    found = Prepared(tmp_path / "out")
    np.testing.assert_array_equal(found.images[:4660], np.concatenate(x))
    trained = found.samples["site"] != "test"
    assert trained.sum() == 4660
    for rows, counts in (
        (trained, [479, 479, 444, 448, 489, 435, 464, 477, 481, 464]),
        (~trained, [83, 70, 88, 84, 76, 79, 97, 87, 88, 94]),
    ):
        assert np.bincount(found.samples.loc[rows, "label"]).tolist() == counts
    assert found.classes[found.samples["label"][0]] == "frog", "the first image of data_batch_1 is a frog"


def test_the_archive_of_the_mirror_is_unpacked_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = binary(tmp_path / "made", {name: some(10, k) for k, name in enumerate(NAMES)})
    (mirror := tmp_path / "mirror").mkdir()
    with tarfile.open(mirror / "cifar-10-binary.tar.gz", "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    content = hashlib.sha256((mirror / "cifar-10-binary.tar.gz").read_bytes()).hexdigest()
    (real,) = Cifar10().sources()
    monkeypatch.setattr(
        Cifar10, "sources", lambda _: [Source(real.url, real.filename, sha256=content, unpack=real.unpack)]
    )
    found = prepared(Data(dataset=Cifar10(), synthetic=False), tmp_path, mirror)
    np.testing.assert_array_equal(found.images[50:], some(10, 5)[0])


def test_another_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"not it")
    with pytest.raises(UserError, match="size is 6, expected 170052171; check this file of the mirror"):
        prepare.obtain(Data(dataset=Cifar10(), synthetic=False), tmp_path / "raw", tmp_path)
    assert list((tmp_path / "raw").iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda file: file.unlink(), r"data_batch_3\.bin: no such file"),
        (lambda file: file.write_bytes(b""), r"data_batch_3\.bin: has 0 bytes"),
        (
            lambda file: file.write_bytes(file.read_bytes()[:-1]),
            r"data_batch_3\.bin: has 30729 bytes, which are not whole",
        ),
        (lambda file: file.write_bytes(b"\x0a" * 6146), r"data_batch_3\.bin: image 0 has label 10, expected 0 to 9"),
    ],
)
def test_spoiled_records_are_named(tmp_path: Path, spoil: Any, words: str) -> None:
    spoil(binary(tmp_path, {name: some(10, k) for k, name in enumerate(NAMES)}) / "data_batch_3.bin")
    with pytest.raises(UserError, match=words):
        Cifar10().open(tmp_path)


# --- MNIST's raw files ----------------------------------------------------------------------------------------------


def by_torchvision(raw: Path, folder: Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels as torchvision's own reader finds them in the same files."""
    (place := folder / "MNIST" / "raw").mkdir(parents=True, exist_ok=True)
    for file in raw.glob("*.gz"):
        (place / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    found = MNIST(str(folder), train=train)
    return found.data.numpy(), found.targets.numpy()


def check_against_torchvision(found: Prepared, raw: Path, folder: Path) -> None:
    external = (found.samples["site"] == "test").to_numpy()
    for rows, train in ((~external, True), (external, False)):
        x, y = by_torchvision(raw, folder, train)
        np.testing.assert_array_equal(found.images[rows][..., 0], x)
        np.testing.assert_array_equal(found.samples["label"][rows], y)


def test_torchvision_reads_the_same_from_the_miniature(tmp_path: Path) -> None:
    found = prepared(Data(dataset=Mnist(images=10), synthetic=True), tmp_path)
    assert found.images.shape == (120, 28, 28, 1)
    check_against_torchvision(found, tmp_path / "raw", tmp_path)


@real_data.needs("mnist")
def test_real_mnist_comes_through_the_mirror(tmp_path: Path) -> None:
    found = prepared(Data(dataset=Mnist(), synthetic=False), tmp_path, real_data.FOLDER / "mnist")
    counts = pd.crosstab(found.samples["site"], found.samples["label"])
    assert counts.sum(axis=1).to_dict() == {"test": 10_000} | {f"client{k}": 12_000 for k in range(1, 6)}
    assert counts.drop("test").sum().tolist() == MNIST_TRAIN
    assert counts.loc["test"].tolist() == MNIST_TEST
    assert found.samples["label"].iloc[:5].tolist() == [5, 0, 4, 1, 9]
    assert found.card["synthetic"] is False
    check_against_torchvision(found, tmp_path / "raw", tmp_path)


@real_data.needs("mnist")
def test_a_file_of_the_mirror_with_another_content_is_refused(tmp_path: Path) -> None:
    (mirror := tmp_path / "mirror").mkdir()
    for file in (real_data.FOLDER / "mnist").glob("*.gz"):
        (mirror / file.name).write_bytes(file.read_bytes())
    labels = mirror / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(labels.read_bytes()[:-1] + b"!")
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte\.gz: sha256 is [0-9a-f]{64}, expected f7ae60f9"):
        prepare.obtain(Data(dataset=Mnist(), synthetic=False), tmp_path / "raw", mirror)


def idx(values: list[int], *shape: int, kind: int = 8) -> bytes:
    return gzip.compress(struct.pack(f">HBB{len(shape)}i", 0, kind, len(shape), *shape) + bytes(values))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train-images-idx3-ubyte.gz", None, "no such file"),
        ("train-images-idx3-ubyte.gz", b"no gzip", "not a readable gzip file"),
        ("train-images-idx3-ubyte.gz", idx([0] * 784, 1, 28, 28)[:-9], "not a readable gzip file"),
        ("train-images-idx3-ubyte.gz", idx([0] * 784, 784), "is not an IDX file of bytes with 3 axes"),
        ("train-images-idx3-ubyte.gz", idx([0] * 784, 1, 28, 28, kind=13), "is not an IDX file of bytes with 3 axes"),
        ("train-images-idx3-ubyte.gz", idx([0] * 783, 1, 28, 28), r"has 783 bytes for an array of shape \(1, 28, 28\)"),
        ("train-images-idx3-ubyte.gz", idx([0] * 16, 1, 4, 4), r"array of shape \(1, 4, 4\), expected \(n, 28, 28\)"),
        ("t10k-labels-idx1-ubyte.gz", idx([1, 2, 3], 3), "has 3 labels for 20 images"),
        ("t10k-labels-idx1-ubyte.gz", idx([9] * 19 + [10], 20), "image 19 has label 10, expected 0 to 9"),
    ],
)
def test_a_spoiled_file_is_named(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    dataset = Mnist(images=10)
    dataset.miniature(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}: .*{words}") as caught:
        dataset.open(tmp_path)
    assert "\n" not in str(caught.value)
