"""MedMNIST: npz files with three parts, checked counts, and the miniatures in their layout."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedshift import UserError
from fedshift.core.registry import build
from fedshift.data.partition import Partition
from fedshift.data.prepared import Prepared
from fedshift.datasets import Dataset
from fedshift.datasets.fed_isic2019 import FedIsic2019
from fedshift.datasets.medmnist import PARTS, SETS, MedMnist, Subset
from fedshift.io.download import Source
from fedshift.jobs import prepare
from fedshift.study.run import Data

TOTALS = {  # images of each set, as the page of MedMNIST gives them
    "pathmnist": 107_180,
    "dermamnist": 10_015,
    "octmnist": 109_309,
    "pneumoniamnist": 5_856,
    "retinamnist": 1_600,
    "breastmnist": 780,
    "bloodmnist": 17_092,
    "tissuemnist": 236_386,
    "organamnist": 58_830,
    "organcmnist": 23_583,
    "organsmnist": 25_211,
}
CLASSES = {"pathmnist": 9, "dermamnist": 7, "octmnist": 4, "retinamnist": 5, "bloodmnist": 8, "tissuemnist": 8}


def drawn(counts: tuple[int, ...] = (6, 3, 2), grey: bool = True) -> dict[str, np.ndarray]:
    """Return the arrays of a file with random images of two classes."""
    rng, arrays = np.random.default_rng(0), {}
    for part, count in zip(PARTS, counts, strict=True):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, 28, 28) if grey else (count, 28, 28, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % 2)[:, None].astype(np.uint8)
    return arrays


def written(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    np.savez(folder / "breastmnist.npz", **{k: v for k, v in (drawn() | changes).items() if v is not None})
    return folder


# ---- what is known of the sets


def test_the_counts_of_the_parts_add_up_to_those_of_the_sets() -> None:
    assert {name: sum(facts.counts) for name, facts in SETS.items()} == TOTALS
    assert set(get_args(Subset)) == set(TOTALS)
    for name, facts in SETS.items():
        assert len(facts.classes) == CLASSES.get(name, 11 if name.startswith("organ") else 2)
    sums = [md5 for facts in SETS.values() for md5 in facts.md5.values()]
    assert len(set(sums)) == len(sums) == 22


def test_only_dermamnist_is_not_for_commerce() -> None:
    licences = {name: MedMnist(subset=name).card().licence for name in get_args(Subset)}
    assert licences.pop("dermamnist") == "CC BY-NC 4.0"
    assert set(licences.values()) == {"CC BY 4.0"}


def test_the_address_and_the_checksum_are_those_of_the_side() -> None:
    (small,), (large,) = (MedMnist(subset="bloodmnist", size=size).sources() for size in (28, 64))
    assert small.url == "https://zenodo.org/records/10519652/files/bloodmnist.npz?download=1"
    assert (large.filename, large.md5) == ("bloodmnist_64.npz", "2b94928a2ae4916078ca51e05b6b800b")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"subset": "chestmnist"}, r"subset: chestmnist has several labels for each image.*; choose one of pathmnist,"),
        ({"subset": "lungmnist"}, r"subset: unknown value 'lungmnist'; did you mean 'bloodmnist'"),
        ({"subset": "octmnist", "classes": ["a", "b"]}, r"classes: 2 names for the 4 classes of octmnist; name all"),
        ({"size": 128}, r"size: unknown value 128; did you mean '28'"),
    ],
)
def test_a_set_that_is_not_offered_is_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        build("dataset", {"name": "medmnist", **settings})
    assert "\n" not in str(caught.value)


def test_a_set_brings_the_names_of_its_classes_and_takes_others() -> None:
    assert MedMnist(subset="pneumoniamnist").classes == ("normal", "pneumonia")
    assert MedMnist(subset="pneumoniamnist", classes=("well", "ill")).classes == ("well", "ill")


# ---- files


@pytest.mark.parametrize(("subset", "grey"), [("breastmnist", True), ("dermamnist", False)])
def test_parts_are_sites_in_stored_order_and_grey_images_get_three_channels(
    tmp_path: Path, subset: Any, grey: bool
) -> None:
    arrays = drawn(grey=grey)
    np.savez(tmp_path / f"{subset}.npz", **arrays)
    opened = MedMnist(subset=subset).open(tmp_path)
    assert opened.samples["site"].tolist() == ["train"] * 6 + ["val"] * 3 + ["test"] * 2
    assert opened.samples["label"].tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1]
    assert opened.samples["sample"].iloc[[0, 8, 10]].tolist() == ["train000000", "val000002", "test000001"]
    assert opened.samples["patient"].isna().all()
    for i, part, n in ((5, "train", 5), (6, "val", 0), (10, "test", 1)):
        stored = arrays[f"{part}_images"][n]
        np.testing.assert_array_equal(opened.image(i), np.stack([stored] * 3, axis=-1) if grey else stored)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"val_labels": None}, r"breastmnist\.npz: has no array 'val_labels'; it has train_images, "),
        ({"val_images": np.zeros((3, 28, 28))}, r"'val_images' is float64 of shape \(3, 28, 28\), expected uint8 of"),
        (
            {"test_images": np.zeros((2, 64, 64), np.uint8)},
            r"'test_images' is uint8 of shape \(2, 64, 64\), expected uint8 of shape \(n, 28, 28\); obtain it again",
        ),
        ({"test_labels": np.zeros((2, 14), np.uint8)}, r"'test_labels' is uint8 of shape \(2, 14\), expected .*\(2, 1"),
        ({"train_labels": np.full((6, 1), 2)}, r"part train: image 0 has label 2, expected 0 to 1; obtain it again"),
        ({"train_labels": np.array([[{}]] * 6)}, r"breastmnist\.npz: not a readable npz file: Object arrays cannot be"),
    ],
)
def test_arrays_that_are_no_medmnist_are_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        MedMnist(subset="breastmnist").open(written(tmp_path, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (Path.unlink, r"breastmnist\.npz: no such file"),
        (lambda file: file.write_bytes(b""), r"breastmnist\.npz: not a readable npz file"),
        (lambda file: file.write_bytes(file.read_bytes()[:-200]), r"breastmnist\.npz: not a readable npz file"),
        (lambda file: np.save(file.open("wb"), np.zeros(3)), r"breastmnist\.npz: not a readable npz file"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, spoil: Callable[[Path], Any], words: str) -> None:
    spoil(written(tmp_path) / "breastmnist.npz")
    with pytest.raises(UserError, match=words) as caught:
        MedMnist(subset="breastmnist").open(tmp_path)
    assert "\n" not in str(caught.value)


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    data = Data(dataset=MedMnist(subset="breastmnist"), synthetic=False)
    with pytest.raises(UserError, match=r"breastmnist\.npz: md5 is [0-9a-f]{32}, expected 750601b1f35ba3300ea97c75"):
        prepare.obtain(data, tmp_path / "raw", written(tmp_path / "mirror"))
    assert not (tmp_path / "raw" / "breastmnist.npz").exists()


@pytest.mark.parametrize("val", [78, 77])
def test_the_images_of_each_part_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, val: int) -> None:
    mirror = written(tmp_path / "mirror", **drawn((546, val, 156)))
    md5 = hashlib.md5((mirror / "breastmnist.npz").read_bytes()).hexdigest()
    monkeypatch.setattr(MedMnist, "sources", lambda _: [Source(None, "breastmnist.npz", md5=md5)])
    dataset = MedMnist(subset="breastmnist")
    if val == 78:
        dataset.download(tmp_path / "raw", mirror)
        assert dataset.open(tmp_path / "raw").samples["site"].value_counts().to_dict() == {
            "train": 546,
            "test": 156,
            "val": 78,
        }
        return
    with pytest.raises(UserError, match=r"raw/breastmnist\.npz: part val has 77 images, expected 78; obtain it again"):
        dataset.download(tmp_path / "raw", mirror)


# ---- miniatures


def test_a_miniature_is_prepared_and_its_parts_are_dealt_to_clients(tmp_path: Path) -> None:
    data = Data(dataset=MedMnist(subset="organsmnist", images=8), synthetic=True)
    prepare.obtain(data, tmp_path / "raw", None)
    prepare.prepare(data, tmp_path / "raw", tmp_path / "out", threads=2)
    made = Prepared(tmp_path / "out")
    assert made.images.shape == (11 * (8 + 2 + 4), 28, 28, 3)
    assert (made.images == made.images[..., :1]).all(), "the set is grey"
    partition = Partition.model_validate(
        {"internal": ["a", "b"], "deal": {"sites": ["train", "val"], "labels": 0.5}, "external": ["test"]}
    )
    roles = partition.assign(made.samples).groupby(["role", "site"]).size()
    assert roles["internal"].sum() == 110
    assert roles["external"].to_dict() == {"test": 44}


@pytest.mark.parametrize("subset", get_args(Subset))
def test_every_set_has_a_miniature_with_all_classes_in_each_part(tmp_path: Path, subset: Any) -> None:
    dataset = MedMnist(subset=subset, images=8)
    dataset.miniature(tmp_path)
    samples = dataset.open(tmp_path).samples
    counts = samples.groupby(["site", "label"]).size().unstack()
    assert counts.loc[list(PARTS)].to_numpy().tolist() == [[n] * len(dataset.classes) for n in (8, 2, 4)]


@pytest.mark.parametrize("dataset", [MedMnist(images=24), FedIsic2019(size=24, lesions=4)], ids=lambda d: d.name)
def test_labels_of_a_miniature_show_in_shapes_and_not_in_colours(tmp_path: Path, dataset: Dataset) -> None:
    """Chance is 1/9 and 1/8. Some digits have more ink than others."""
    dataset.miniature(tmp_path)
    opened = dataset.open(tmp_path)
    images = np.stack([opened.image(i) for i in range(len(opened.samples))]).astype(float)
    label, fold = opened.samples["label"].to_numpy(), np.arange(len(images)) // len(dataset.classes) % 3

    def accuracy(features: np.ndarray) -> float:
        probe = make_pipeline(StandardScaler(), RidgeClassifier(alpha=100))
        return probe.fit(features[fold > 0], label[fold > 0]).score(features[fold == 0], label[fold == 0])

    ink = np.abs(images - np.median(images, axis=(1, 2), keepdims=True)).mean(-1)
    found = accuracy(np.hstack([images.mean((1, 2)), images.std((1, 2))])), accuracy(ink.reshape(len(ink), -1))
    assert found[0] < 0.4
    assert found[1] > 0.6
