"""CIFAR-10-C: the official files, corruptions made from CIFAR-10's archive or own images, and the miniature."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_data
from patience import PATIENCE
from sklearn.linear_model import LogisticRegression

from fedshift import UserError
from fedshift.core.registry import build
from fedshift.data.partition import Partition, Split
from fedshift.data.prepared import Prepared
from fedshift.datasets import cifar10c
from fedshift.datasets._corruptions import CHUNK, EXTRA, NAMES, corrupt
from fedshift.datasets.cifar10 import Cifar10
from fedshift.datasets.cifar10c import Cifar10C
from fedshift.io.download import Source
from fedshift.jobs import prepare
from fedshift.study.run import Data

CIFAR10 = "cifar10/cifar10_exact.npz"


def some(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), (np.arange(n) * 7 % 10).astype(np.uint8)


def official(raw: Path, n: int = 12) -> Path:
    """The official layout, whose images encode corruption (red), severity (green) and number (blue)."""
    folder = raw / "CIFAR-10-C" / "CIFAR-10-C"
    folder.mkdir(parents=True)
    np.save(folder / "labels.npy", np.tile(some(n)[1], 5))
    for k, name in enumerate(NAMES + EXTRA):
        x = np.empty((5, n, 32, 32, 3), dtype=np.uint8)
        x[..., 0] = k
        x[..., 1] = np.arange(1, 6)[:, None, None, None]
        x[..., 2] = np.arange(n)[:, None, None]
        np.save(folder / f"{name}.npy", x.reshape(-1, 32, 32, 3))
    return folder


def archive(raw: Path, x: np.ndarray, y: np.ndarray) -> None:
    """CIFAR-10's own layout with these test images, and a training image a batch."""
    folder = raw / "cifar-10-binary" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    records = np.hstack([y[:, None], x.transpose(0, 3, 1, 2).reshape(len(x), -1)]).astype(np.uint8)
    (folder / "test_batch.bin").write_bytes(records.tobytes())
    for k in range(1, 6):
        (folder / f"data_batch_{k}.bin").write_bytes(bytes([k]) * 3073)


def own(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def prepared(data: Data, folder: Path) -> Prepared:
    prepare.obtain(data, folder / "raw", None)
    prepare.prepare(data, folder / "raw", folder / "out", threads=2)
    return Prepared(folder / "out")


# --- the official files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("severity", [1, 2, 5])
@pytest.mark.parametrize("extra", [False, True])
def test_a_severity_is_its_fifth_of_the_rows(extra: bool, severity: int, tmp_path: Path) -> None:
    official(tmp_path)
    opened = Cifar10C(severity=severity, extra=extra).open(tmp_path)
    sites = (*NAMES, *(EXTRA if extra else ()))
    assert list(dict.fromkeys(opened.samples["site"])) == list(sites)
    assert len(opened.samples) == 12 * len(sites)
    for i, row in enumerate(opened.samples.itertuples()):
        image = opened.image(i)
        assert (image.shape, image.dtype) == ((32, 32, 3), np.uint8)
        assert image[0, 0].tolist() == [sites.index(row.site), severity, row.base]
        assert row.label == row.base * 7 % 10
    assert opened.samples["sample"].is_unique
    assert opened.samples["patient"].isna().all()
    assert opened.samples["sample"].iloc[[0, 12]].tolist() == ["gaussian_noise/00000", "shot_noise/00000"]


def test_a_base_image_has_one_split_at_all_sites_and_is_whole_at_external_ones(tmp_path: Path) -> None:
    official(tmp_path, n=50)
    samples = Cifar10C(severity=3).open(tmp_path).samples
    partition = Partition(internal=NAMES[:10], external=NAMES[10:], split=Split())
    assigned = partition.assign(samples).merge(samples[["sample", "base"]])
    inside = assigned[assigned["role"] == "internal"]
    assert (inside.groupby("base")["split"].nunique() == 1).all()
    assert inside.groupby("split").size().to_dict() == {"train": 350, "val": 50, "test": 100}
    assert (assigned[assigned["role"] == "external"].groupby("site").size() == 50).all()


def test_the_source_is_the_record_of_zenodo() -> None:
    (source,) = Cifar10C().sources()
    assert source.url == "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar"
    assert (source.size, source.md5) == (2_918_471_680, "56bf5dcef84df0e2308c6dcbcbbd8499")
    assert source.unpack


def test_the_archive_of_the_mirror_is_unpacked_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = official(tmp_path / "made")
    (mirror := tmp_path / "mirror").mkdir()
    with tarfile.open(mirror / "CIFAR-10-C.tar", "w") as tar:
        tar.add(folder, arcname=folder.name)
    (real,) = Cifar10C().sources()
    monkeypatch.setattr(Cifar10C, "sources", lambda _: [Source(real.url, real.filename, unpack=True)])
    prepare.obtain(Data(dataset=Cifar10C(), synthetic=False), tmp_path / "raw", mirror)
    assert Cifar10C().open(tmp_path / "raw").image(17)[0, 0].tolist() == [1, 1, 5]


def test_another_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "CIFAR-10-C.tar").write_bytes(b"not it")
    data = Data(dataset=Cifar10C(), synthetic=False)
    with pytest.raises(UserError, match=r"CIFAR-10-C\.tar: size is 6, expected 2918471680; check this file"):
        prepare.obtain(data, tmp_path / "raw", tmp_path)
    (real,) = Cifar10C().sources()
    monkeypatch.setattr(Cifar10C, "sources", lambda _: [Source(real.url, real.filename, md5=real.md5, unpack=True)])
    with pytest.raises(UserError, match=r"tar: md5 is [0-9a-f]{32}, expected 56bf5dcef84df0e2308c6dcbcbbd8499"):
        prepare.obtain(data, tmp_path / "raw", tmp_path)
    assert list((tmp_path / "raw").iterdir()) == []


def replaced(array: np.ndarray, **values: Any) -> np.ndarray:
    out = array.copy()
    for at, value in values.items():
        out[int(at.removeprefix("at"))] = value
    return out


LABELS = np.tile(some(12)[1], 5)
X = np.zeros((60, 32, 32, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("fog", None, "no such file; obtain the archive again"),
        ("fog", b"", "not a readable array file: "),
        ("fog", b"no array", "not a readable array file: "),
        ("fog", -1, "not a readable array file: mmap length is greater than file size"),
        ("fog", np.array([{"a": 1}]), "not a readable array file: "),
        ("fog", X[:59], r"is uint8 \(59, 32, 32, 3\), expected uint8 \(60, 32, 32, 3\)"),
        ("fog", X.transpose(0, 3, 1, 2), r"is uint8 \(60, 3, 32, 32\), expected uint8 \(60, 32, 32, 3\)"),
        ("fog", X.astype(np.float32), r"is float32 \(60, 32, 32, 3\), expected uint8"),
        ("labels", None, "no such file; obtain the archive again"),
        ("labels", -1, "not a readable array file: "),
        ("labels", LABELS[:59], r"is uint8 \(59,\), expected whole numbers \(n,\), n a multiple of 5"),
        ("labels", LABELS[:0], r"is uint8 \(0,\), expected whole numbers"),
        ("labels", LABELS[:, None], r"is uint8 \(60, 1\), expected whole numbers"),
        ("labels", LABELS / 2, r"is float64 \(60,\), expected whole numbers"),
        ("labels", replaced(LABELS, at41=10), "image 41 has label 10, expected 0 to 9"),
        ("labels", replaced(LABELS.astype(int), at2=-1), "image 2 has label -1, expected 0 to 9"),
        (
            "labels",
            replaced(LABELS, at30=(LABELS[30] + 1) % 10),
            "the labels of severity 3 are not those of severity 1",
        ),
    ],
)
def test_a_spoiled_file_is_named(name: str, content: Any, words: str, tmp_path: Path) -> None:
    file = official(tmp_path) / f"{name}.npy"
    if content is None:
        file.unlink()
    elif isinstance(content, int):
        file.write_bytes(file.read_bytes()[:content])
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.save(file, content)
    with pytest.raises(UserError, match=rf"CIFAR-10-C/{name}\.npy: {words}") as caught:
        Cifar10C().open(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_asked_for_may_be_missing(tmp_path: Path) -> None:
    (official(tmp_path) / "spatter.npy").unlink()
    Cifar10C().open(tmp_path)
    with pytest.raises(UserError, match=r"spatter\.npy: no such file"):
        Cifar10C(extra=True).open(tmp_path)


# --- corruptions made here ------------------------------------------------------------------------------------------


def test_the_test_images_of_the_archive_are_corrupted(tmp_path: Path) -> None:
    x, y = some(2 * CHUNK + 3)
    archive(tmp_path, x, y)
    opened = Cifar10C(source="generated", severity=4, seed=2).open(tmp_path)
    assert opened.samples["label"].tolist() == y.tolist() * 15
    assert opened.samples["base"].tolist() == list(range(len(x))) * 15
    for name in ("gaussian_noise", "glass_blur", "jpeg_compression"):
        rows = np.flatnonzero(opened.samples["site"] == name)
        np.testing.assert_array_equal([opened.image(int(i)) for i in rows], corrupt(x, name, 4, seed=2))


def test_images_may_be_asked_for_in_any_order_by_any_thread(tmp_path: Path) -> None:
    x, y = some(CHUNK + 40)
    images = own(tmp_path / "own.npz", x=x, y=y)
    opened = Cifar10C(source="generated", images=images, extra=True).open(tmp_path)
    sites = NAMES + EXTRA
    rows = np.random.default_rng(0).permutation(len(opened.samples))[:200]
    rows[::4] = rows[::4] // len(x) * len(x)  # first ones, which are made in parts
    expected = {site: corrupt(x, site, 1) for site in sites}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(opened.image, rows.tolist()))
    for i, image in zip(rows, found, strict=True):
        np.testing.assert_array_equal(image, expected[sites[i // len(x)]][i % len(x)])


class Counted:
    """Stands in for `corrupt`, and notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def __call__(self, images: np.ndarray, name: str, severity: int, seed: int, first: int) -> np.ndarray:
        self.asked.append((name, first, len(images)))
        return images


def test_images_that_are_read_in_order_are_made_in_parts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = some(2 * CHUNK + 1)
    opened = Cifar10C(source="generated", images=own(tmp_path / "own.npz", x=x, y=y)).open(tmp_path)
    monkeypatch.setattr(cifar10c, "corrupt", counted := Counted())
    for i in range(len(opened.samples)):
        assert np.array_equal(opened.image(i), x[i % len(x)])
    parts = ((0, CHUNK), (CHUNK, CHUNK), (2 * CHUNK, 1))
    assert sorted(counted.asked) == sorted((name, *part) for name in NAMES for part in parts)


def test_a_single_image_is_made_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = some(2 * CHUNK)
    opened = Cifar10C(source="generated", images=own(tmp_path / "own.npz", x=x, y=y)).open(tmp_path)
    monkeypatch.setattr(cifar10c, "corrupt", counted := Counted())
    for i in (5, 2 * CHUNK + 300, 7):
        assert np.array_equal(opened.image(i), x[i % len(x)])
    assert counted.asked == [(NAMES[0], 5, 1), (NAMES[1], 300, 1), (NAMES[0], 7, 1)]


def test_own_images_are_listed_without_being_corrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command `check` opens them before there are any raw files."""
    x, y = some(30)
    dataset = Cifar10C(source="generated", images=own(tmp_path / "own.npz", x=x, y=y))
    monkeypatch.setattr(cifar10c, "corrupt", lambda *_: pytest.fail("corrupted"))
    assert len(dataset.open(Path()).samples) == 450
    assert (list(dataset.inputs()), list(dataset.sources())) == ([tmp_path / "own.npz"], [])
    assert not dataset.has_miniature and Cifar10C(source="generated").has_miniature


def test_own_images_go_with_generated_alone() -> None:
    with pytest.raises(UserError, match=r"\.images: are given, but the official files are asked for; say source: gen"):
        build("dataset", {"name": "cifar10c", "images": "own.npz"})


GIVEN, CLASS = some(12)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file; correct dataset.images"),
        (b"no archive", "not a readable npz file: "),
        ({"x": GIVEN}, "has no array 'y'; it has x"),
        ({"x": GIVEN[:, :28], "y": CLASS}, r"x is uint8 \(12, 28, 32, 3\), expected uint8 \(n, 32, 32, 3\)"),
        ({"x": GIVEN / 255, "y": CLASS}, r"x is float64 \(12, 32, 32, 3\), expected uint8"),
        ({"x": GIVEN[:0], "y": CLASS[:0]}, r"x is uint8 \(0, 32, 32, 3\)"),
        ({"x": GIVEN, "y": CLASS[:11]}, r"y is uint8 \(11,\), expected whole numbers \(12,\)"),
        ({"x": GIVEN, "y": CLASS / 2}, r"y is float64 \(12,\), expected whole numbers"),
        ({"x": GIVEN, "y": replaced(CLASS, at3=77)}, "image 3 has label 77, expected 0 to 9"),
        ({"x": GIVEN, "y": np.array(list("abcdefghijkl"), dtype=object)}, "not a readable npz file: Object arrays"),
    ],
)
def test_an_own_file_that_cannot_be_used_is_named(content: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        own(path, **content)
    with pytest.raises(UserError, match=rf"own\.npz: {words}") as caught:
        Cifar10C(source="generated", images=path).open(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_truncated_own_file_is_named(tmp_path: Path) -> None:
    path = own(tmp_path / "own.npz", x=GIVEN, y=CLASS)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"own\.npz: not a readable npz file: "):
        Cifar10C(source="generated", images=path).open(tmp_path)


# --- identities and cards -------------------------------------------------------------------------------------------


def test_what_is_only_read_differently_is_not_obtained_again() -> None:
    def data(synthetic: bool = False, **settings: Any) -> Data:
        return Data(dataset=Cifar10C(**settings), synthetic=synthetic)

    for source in ("official", "generated"):
        for synthetic in (False, True):
            plain = data(synthetic, source=source)
            for change in ({"severity": 2}, {"extra": True}, {"seed": 1}):
                other = data(synthetic, source=source, **change)
                assert (other.raw, other.id == plain.id) == (plain.raw, False)
    assert data().raw != data(source="generated").raw
    assert data(bases=20).id == data().id
    assert data(synthetic=True, bases=20).raw != data(synthetic=True).raw


def test_cards_tell_the_published_files_from_those_made_here() -> None:
    official, generated = Cifar10C(severity=2).card(), Cifar10C(source="generated").card()
    assert (official.version, official.licence) == ("severity 2", "CC BY 4.0")
    assert "Hendrycks & Dietterich 2019" in official.citation
    assert "fedshift" not in official.caveat + official.title
    for words in ("not the published files", "frost uses drawn textures"):
        assert words in generated.caveat
    assert generated.source == Cifar10().card().source
    assert Cifar10C(source="generated", images=Path("own.npz")).card().source == "own.npz"
    assert "share one split" in official.caveat and "share one split" in generated.caveat


def test_classes_and_files_are_those_of_cifar10() -> None:
    assert Cifar10C().classes == Cifar10().classes
    assert list(Cifar10C(source="generated").sources()) == list(Cifar10().sources())


def test_the_plugin_is_known_without_scipy_and_torch() -> None:
    code = "import sys, fedshift.datasets.cifar10c; print(*{'scipy', 'torch', 'PIL', 'pandas'} & {*sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert run.stdout.split() == []


# --- the miniature --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["official", "generated"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    data = Data(dataset=Cifar10C(source=request.param, severity=2), synthetic=True)
    return prepared(data, tmp_path_factory.mktemp(request.param))


def test_a_miniature_is_prepared_end_to_end(made: Prepared) -> None:
    assert (made.shape, made.images.shape) == (Cifar10C.shape, (900, 32, 32, 3))
    assert made.samples["site"].value_counts().to_dict() == dict.fromkeys(NAMES, 60)
    for _, rows in made.samples.groupby("site"):
        assert np.bincount(rows["label"]).tolist() == [6] * 10
        assert rows["base"].tolist() == list(range(60))
    assert made.card["synthetic"] is True and made.card["source"] == "drawn by fedshift"


def test_both_miniatures_show_the_same(made: Prepared, tmp_path: Path) -> None:
    """Both show the test images of CIFAR-10's miniature, at the severity that is asked for."""
    clean = Cifar10(images=30)
    clean.miniature(tmp_path)
    opened = clean.open(tmp_path)
    x = np.stack([opened.image(int(i)) for i in np.flatnonzero(opened.samples["site"] == "test")])
    expected = [corrupt(x, name, 2) for name in NAMES]
    np.testing.assert_array_equal(made.images, np.concatenate(expected))


def test_a_miniature_has_the_official_layout_and_is_the_same_to_the_byte(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        Cifar10C(bases=20, severity=1 if folder == "one" else 5).miniature(tmp_path / folder)
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*") if p.is_file())
    assert [str(f) for f in files] == [f"CIFAR-10-C/CIFAR-10-C/{n}.npy" for n in sorted([*NAMES, *EXTRA, "labels"])]
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()
    x = np.load(tmp_path / "one" / "CIFAR-10-C" / "CIFAR-10-C" / "contrast.npy")
    assert x.shape == (100, 32, 32, 3)
    spread = x.reshape(5, -1).std(axis=1)
    assert (np.diff(spread) < 0).all(), "severities follow one another"


def test_the_labels_of_a_miniature_are_not_told_by_colour(made: Prepared) -> None:
    """Chance is 0.1; bases are held out, since each appears at all sites."""
    x, y = made.images.astype(float), made.samples["label"].to_numpy()
    features = np.hstack([x.mean(axis=(1, 2)), x.std(axis=(1, 2))])
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    train = (made.samples["base"] < 40).to_numpy()
    probe = LogisticRegression(max_iter=2000).fit(features[train], y[train])
    assert probe.score(features[~train], y[~train]) < 0.3


# --- real images ----------------------------------------------------------------------------------------------------


@real_data.needs(CIFAR10)
def test_a_part_of_the_real_test_images_makes_all_sites(tmp_path: Path) -> None:
    with np.load(real_data.FOLDER / CIFAR10, allow_pickle=False) as file:
        x, y = file["x_test"][:100], file["y_test"][:100]
    dataset = Cifar10C(source="generated", images=own(tmp_path / "own.npz", x=x, y=y), extra=True)
    found = prepared(Data(dataset=dataset, synthetic=False), tmp_path)
    assert found.samples["site"].nunique() == 19
    assert found.samples["label"].tolist() == y.tolist() * 19
    assert found.classes[int(found.samples["label"][0])] == "cat", "the first test image of CIFAR-10 is a cat"
    away = np.abs(found.images.reshape(19, 100, -1).astype(float) - x.reshape(100, -1)).mean(axis=(1, 2))
    assert ((away > 0.5) & (away < 40)).all(), "at severity 1 all are recognisable"
    sites = list(dict.fromkeys(found.samples["site"]))
    assert 8 < away[sites.index("brightness")] < 0.05 * 255, "the brightest channel grows by that, others by less"
