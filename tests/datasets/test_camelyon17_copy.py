"""Camelyon17 from Parquet shards in the layout of its copy: the same data as from the archive, and faults in one line.

The shards are made here, with RGBA PNG files, a `validation` of two kinds of centres, and several row groups.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_server import FileServer, serving
from PIL import Image

from fedshift.core.errors import UserError, UserErrors
from fedshift.datasets import camelyon17
from fedshift.datasets.camelyon17 import (
    COLUMNS,
    FOLDER,
    HUB,
    RELEASE,
    WILDS,
    Camelyon17,
    Counts,
    faults,
    patch_file,
)
from fedshift.io import download
from fedshift.io.download import Source
from fedshift.io.text import read_json
from fedshift.jobs import prepare
from fedshift.study.run import Data

EACH = 6  # patches of a centre: two patients, both labels
COUNTS = Counts(patches=dict.fromkeys(range(5), (3, 3)), patients=dict.fromkeys(range(5), 2), splits=(15, 3))
SPLITS = {"train": (2, 15), "validation": (1, 9), "test": (1, 6)}
REAL = camelyon17.SPLITS
DATA = Data(dataset=Camelyon17(), synthetic=False)


def metadata() -> pd.DataFrame:
    """The rows of the archive's metadata.csv; one patch of each training centre is in id_val."""
    rows = [
        {
            "patient": 20 * centre + n % 2,
            "node": centre,
            "x_coord": 32 * n,
            "y_coord": 64 * n,
            "tumor": n // 2 % 2 if n < 4 else n % 2,
            "slide": 10 * centre + n % 2,
            "center": centre,
            "split": int(n == 5 and centre not in (1, 2)),
        }
        for n in range(EACH)
        for centre in range(5)
    ]
    return pd.DataFrame(rows)


def png(seed: int, size: int = 96) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 4), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()


def write_shards(folder: Path, table: pd.DataFrame, images: dict[int, bytes]) -> Path:
    """Write the shards of the copy: rows in another order than image_id, in row groups of three rows."""
    folder.mkdir(parents=True, exist_ok=True)
    named = table.rename(columns={"tumor": "label"}).assign(image_id=table.index)
    test, held_out = named["center"] == 2, (named["center"] == 1) | (named["split"] == 1)
    parts = {"train": named[~test & ~held_out], "validation": named[held_out & ~test], "test": named[test]}
    for name, rows in parts.items():
        shards = HUB.shards(name, SPLITS[name][0])
        for k, shard in enumerate(shards):
            part = rows[::-1][k :: len(shards)].drop(columns="split")
            cells = [{"bytes": images[i], "path": None} for i in part.index]
            content = pa.table({"image": cells, **{c: part[c].to_list() for c in part}})
            pq.write_table(
                content, folder / shard.filename, row_group_size=3, use_dictionary=False, write_page_checksum=True
            )
    return folder


@pytest.fixture(scope="module")
def images() -> dict[int, bytes]:
    return {i: png(i) for i in range(5 * EACH)}


@pytest.fixture(scope="module")
def shards(images: dict[int, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards") / "data", metadata(), images)


@pytest.fixture(scope="module")
def archive(images: dict[int, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mirror with the unpacked archive."""
    mirror = tmp_path_factory.mktemp("archive")
    table = metadata().astype({"patient": object})
    table["patient"] = table["patient"].map("{:03d}".format)
    for i, row in enumerate(table.to_dict("records")):
        file = mirror / FOLDER / patch_file(row)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(images[i])
    table.to_csv(mirror / FOLDER / "metadata.csv")
    (mirror / FOLDER / RELEASE).write_text("")
    return mirror


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camelyon17, "WILDS", COUNTS)
    monkeypatch.setattr(camelyon17, "SPLITS", SPLITS)
    monkeypatch.setattr(download, "BACKOFF", 0)
    monkeypatch.setattr(camelyon17, "SIZE", 10_000)


@pytest.fixture
def server(shards: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """The Hub; WILDS' own server answers 500."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        url = f"{running.url}/bundle"
        monkeypatch.setattr(Camelyon17, "sources", lambda self: [Source(url, f"{FOLDER}.tar.gz", size=7, unpack=True)])
        running.files = {path(f.name): f.read_bytes() for f in shards.iterdir()}
        running.faults["/bundle"] = ["500"] * 99
        yield running


def path(name: str) -> str:
    return f"/datasets/{HUB.dataset}/resolve/{HUB.revision}/data/{name}"


def leaves(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.png")}


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_the_copy_gives_the_same_prepared_data_as_the_archive(
    server: FileServer, archive: Path, tmp_path: Path
) -> None:
    prepare.obtain(DATA, tmp_path / "1", archive)
    prepare.obtain(DATA, tmp_path / "2", None)
    assert leaves(tmp_path / "2" / FOLDER) == leaves(archive / FOLDER), "PNG bytes as they are in the shards"
    assert (tmp_path / "2" / FOLDER / "metadata.csv").read_bytes() == (archive / FOLDER / "metadata.csv").read_bytes()
    for source in "12":
        prepare.prepare(DATA, tmp_path / source, tmp_path / f"out{source}")
    for file in ("images.npy", "samples.parquet", "pixels.parquet"):
        assert (tmp_path / "out1" / file).read_bytes() == (tmp_path / "out2" / file).read_bytes(), file
    first, second = (read_json(tmp_path / f"out{source}" / "card.json") for source in "12")
    assert first["received"]["origin"] == f"the folder {FOLDER} of the mirror"
    assert second["received"] == read_json(tmp_path / "2" / "source.json")["received"]
    assert second["received"]["origin"].startswith("the copy at the Hugging Face Hub (https://huggingface.co/datasets/")
    assert second["received"]["verified"] == [
        "rows per split, and image_id without gaps",
        "every PNG is whole and has 96x96 pixels",
        "counts per centre, label, patient and split, which are those of WILDS",
    ]
    assert "pixels: not compared with the official images" in second["received"]["unverified"]
    assert names(tmp_path / "2") == [FOLDER, "source.json"], "no shard and no part is left"
    server.seen.clear()
    prepare.obtain(DATA, tmp_path / "2", None)
    assert server.seen == [], "a finished folder is used again"
    assert read_json(tmp_path / "2" / "source.json")["received"] == second["received"]


@pytest.mark.parametrize("place", [".", "data", "Camelyon17-WILDS/data"])
def test_shards_in_the_mirror_are_read_where_they_lie(shards: Path, tmp_path: Path, place: str) -> None:
    mirror, raw = tmp_path / "mirror", tmp_path / "raw"
    shutil.copytree(shards, mirror / place, dirs_exist_ok=True)
    prepare.obtain(DATA, raw, mirror)
    assert len(leaves(raw / FOLDER)) == 5 * EACH
    assert len([*mirror.rglob("*.parquet")]) == 4
    assert names(raw) == [FOLDER, "source.json"]


def test_an_interrupted_download_goes_on_where_it_was(server: FileServer, tmp_path: Path) -> None:
    first, second = (path(shard.filename) for shard in HUB.shards("train", 2))
    server.faults[second] = ["half", *["503"] * 99]
    with pytest.raises(UserError, match="2 sources: none of them gives the files"):
        prepare.obtain(DATA, tmp_path, None)
    assert not (tmp_path / FOLDER).exists()
    server.faults.pop(second)
    server.seen.clear()
    prepare.obtain(DATA, tmp_path, None)
    asked = {path: headers.get("range") for _, path, headers in server.seen}
    assert first not in asked, "its images are there"
    assert asked[second] == f"bytes={len(server.files[second]) // 2}-"
    assert "/bundle" not in asked, "what was begun goes on"
    assert len(leaves(tmp_path / FOLDER)) == 5 * EACH


def test_a_missing_shard_is_one_line_that_names_both_sources(server: FileServer, tmp_path: Path) -> None:
    missing = path("train-00001-of-00002.parquet")
    del server.files[missing]
    with pytest.raises(UserError) as caught:
        prepare.obtain(DATA, tmp_path, None)
    (line,) = str(caught.value).splitlines()
    assert f"WILDS' archive ({server.url}/bundle: cannot get {FOLDER}.tar.gz: " in line
    assert f"the copy at the Hugging Face Hub ({server.url}{missing}: cannot get train-00001-of-00002.parquet: 404" in (
        line
    )
    assert line.endswith("put the file in a mirror directory and pass --config mirror=DIR")


def corrupted(shard: Path) -> None:
    """Change a byte in the images of the second row group."""
    content, column = bytearray(shard.read_bytes()), pq.read_metadata(shard).row_group(1).column(0)
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 0xFF
    shard.write_bytes(content)


def test_a_damaged_row_group_of_the_mirror_is_one_line_and_finished_shards_stay(shards: Path, tmp_path: Path) -> None:
    mirror = shutil.copytree(shards, tmp_path / "mirror")
    shard = mirror / "train-00001-of-00002.parquet"
    corrupted(shard)
    with pytest.raises(UserError, match=r"train-00001-of-00002\.parquet: row group 1 cannot be read: .*mirror") as seen:
        prepare.obtain(DATA, tmp_path / "raw", mirror)
    assert len(str(seen.value).splitlines()) == 1
    assert shard.exists()
    shutil.copy(shards / shard.name, shard)
    (mirror / "train-00000-of-00002.parquet").write_bytes(b"not looked at again")
    prepare.obtain(DATA, tmp_path / "raw", mirror)
    assert len(leaves(tmp_path / "raw" / FOLDER)) == 5 * EACH


def test_a_damaged_shard_that_was_downloaded_is_got_anew(server: FileServer, shards: Path, tmp_path: Path) -> None:
    bad = tmp_path / "test-00000-of-00001.parquet"
    shutil.copy(shards / bad.name, bad)
    corrupted(bad)
    good, server.files[path(bad.name)] = server.files[path(bad.name)], bad.read_bytes()
    with pytest.raises(UserError, match=r"row group 1 cannot be read: .*it was deleted: start again to get it anew"):
        prepare.obtain(DATA, tmp_path / "raw", None)
    assert not (tmp_path / "raw" / bad.name).exists()
    server.files[path(bad.name)] = good
    prepare.obtain(DATA, tmp_path / "raw", None)
    assert len(leaves(tmp_path / "raw" / FOLDER)) == 5 * EACH


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (png(0)[:-20], "row 2: is damaged: its image is not a whole PNG file"),
        (png(0, 95), "row 2: has an image of 95x95 pixels, expected 96x96"),
        (b"", "row 2: has no image"),
        (b"\xff\xd8\xff" + png(0)[3:], "row 2: is damaged: its image is not a whole PNG file"),
        (bytes([*png(0)[:60], png(0)[60] ^ 1, *png(0)[61:]]), "row 2: is damaged: its image is not a whole PNG file"),
    ],
    ids=["cut off", "another size", "empty", "another kind", "a flipped bit"],
)
def test_an_image_that_is_no_patch(images: dict[int, bytes], tmp_path: Path, content: bytes, words: str) -> None:
    table = metadata()
    third = table[table["center"] == 2].index[::-1][2]
    mirror = write_shards(tmp_path / "mirror", table, images | {third: content})
    with pytest.raises(UserError, match=rf"test-00000-of-00001\.parquet, {words}"):
        prepare.obtain(DATA, tmp_path / "raw", mirror)


def changed(**values: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Return a change of row 1, which is of centre 1."""
    return lambda table: table.assign(**{k: table[k].where(table.index != 1, v) for k, v in values.items()})


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (changed(tumor=1), ["centre 1 has 2 patches with label 0, expected 3", "centre 1 has 4 patches with label 1"]),
        (changed(patient=29), ["centre 1 has 3 patients, expected 2"]),
        (changed(slide=20), ["patient 20 and slide 20 do not belong to centre 1 (rows like this: 1)"]),
        (
            lambda table: table.assign(split=table["split"].where(table.index != 25, 0)),
            ["the split train has 16 patches, expected 15", "the split id_val has 2 patches, expected 3"],
        ),
        (changed(x_coord=192, y_coord=384), []),
        (changed(x_coord=64, y_coord=128), ["a patch appears twice: patient 20, node 1, x_coord 64, y_coord 128"]),
        (changed(tumor=0.5), ["the column 'tumor' must hold only whole numbers"]),
    ],
)
def test_each_wrong_count_is_a_line(change: Callable[[pd.DataFrame], pd.DataFrame], lines: list[str]) -> None:
    assert list(faults(metadata(), COUNTS)) == []
    found = list(faults(change(metadata()), COUNTS))
    assert len(found) == len(lines)
    assert all(line.startswith(words) for line, words in zip(found, lines, strict=True)), found


def test_a_copy_with_a_wrong_count_is_not_used(images: dict[int, bytes], tmp_path: Path) -> None:
    table = metadata()
    mirror = write_shards(tmp_path / "mirror", table.drop(index=2), images)  # a patch of centre 2
    with pytest.raises(UserErrors) as caught:
        prepare.obtain(DATA, tmp_path / "raw", mirror)
    faulty = [error.what for error in caught.value.errors]
    assert faulty == [
        "the split test has 5 rows, expected 6",
        "image_id is not 0 to 28, each once",
        "centre 2 has 2 patches with label 0, expected 3",
    ]
    assert not (tmp_path / "raw" / FOLDER).exists()


def test_the_official_table_is_compared_where_the_mirror_has_it(shards: Path, archive: Path, tmp_path: Path) -> None:
    mirror = shutil.copytree(shards, tmp_path / "mirror" / "data").parent
    official = archive / FOLDER / "metadata.csv"
    shutil.copy(official, mirror)
    prepare.obtain(DATA, tmp_path / "raw", mirror)
    received = read_json(tmp_path / "raw" / "source.json")["received"]
    assert "place, label, centre and slide of every row, by the metadata.csv in the mirror" in received["verified"]
    assert not any("order" in text for text in received["unverified"])
    frame = pd.read_csv(official, index_col=0)
    frame.iloc[[3, 4]] = frame.iloc[[4, 3]].to_numpy()
    frame.to_csv(mirror / "metadata.csv")
    with pytest.raises(UserError, match=r"metadata\.csv: differs from the copy in 2 rows, first in row 5"):
        prepare.obtain(DATA, tmp_path / "other", mirror)


def test_without_id_val_the_training_centres_have_wilds_training_patches_alone(archive: Path, tmp_path: Path) -> None:
    prepare.obtain(DATA, tmp_path, archive)
    whole, part = (Camelyon17(id_val=value).open(tmp_path) for value in (True, False))
    table = metadata()
    rows = np.flatnonzero((table["split"] == 0) | table["center"].isin([1, 2]))
    pd.testing.assert_frame_equal(part.samples, whole.samples.iloc[rows].reset_index(drop=True))
    assert len(part.samples) == len(table) - 3
    assert part.samples["site"].value_counts().to_dict() == {f"centre{c}": 5 if c in (0, 3, 4) else 6 for c in range(5)}
    np.testing.assert_array_equal(part.image(len(rows) - 1), whole.image(int(rows[-1])))


def test_the_published_counts_add_up() -> None:
    assert sum(map(sum, WILDS.patches.values())) == 455_954
    assert sum(WILDS.patients.values()) == 43
    assert sum(WILDS.splits) == sum(sum(WILDS.patches[c]) for c in (0, 3, 4))
    rows = {"train": WILDS.splits[0], "validation": WILDS.splits[1] + sum(WILDS.patches[1]), "test": 85_054}
    assert rows == {"train": 302_436, "validation": 68_464, "test": sum(WILDS.patches[2])}
    assert set(metadata()) == set(COLUMNS)


def test_the_whole_copy_has_21_shards_of_one_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camelyon17, "SPLITS", REAL)
    shards = camelyon17.shards()
    assert {name: len(sources) for name, sources in shards.items()} == {"train": 14, "validation": 3, "test": 4}
    real = [source for sources in shards.values() for source in sources]
    assert len({source.filename for source in real}) == 21
    assert all(f"/resolve/{HUB.revision}/data/" in str(source.url) for source in real)
