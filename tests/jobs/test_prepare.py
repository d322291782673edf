"""Preparation of large sets: bounded memory, and nothing done twice after a kill."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedshift.core.errors import UserError, UserErrors
from fedshift.data.looks import CROPS
from fedshift.data.prepared import Prepared
from fedshift.datasets import Card, Dataset, Opened
from fedshift.io.arrays import GrowingArray
from fedshift.io.tables import read_table
from fedshift.jobs import prepare
from fedshift.study.run import Data


class Counted(Dataset):
    """Images that are their own number. It counts those that were read, and fails at one if asked to."""

    name = "counted"  # type: ignore[misc]
    count: int = 3000
    side: int = 4
    vectors: bool = False
    lost: tuple[int, ...] = ()
    classes: tuple[str, ...] = ("a", "b")

    def card(self) -> Card:
        return Card("Counted", "", "", "", "")

    def fingerprint(self, memory: Path | None = None) -> str:
        return FINGERPRINT

    def open(self, raw: Path) -> Opened:
        numbers = np.arange(self.count)
        names = [f"{n:06}" for n in numbers]
        rows = {"sample": names, "site": "x", "label": numbers % 2, "patient": None}
        return Opened(pd.DataFrame(rows), self._image)

    def _image(self, i: int) -> np.ndarray:
        with LOCK:
            READ.append(i)
            if len(READ) == STOP_AFTER:
                raise KeyboardInterrupt
        if i in self.lost:
            raise UserError(f"{i}.png", "cannot be read as an image")
        if self.vectors:
            return np.full(self.side, i / 7, dtype=np.float32)
        return np.full((self.side, self.side, 3), i % 251, dtype=np.uint8)


LOCK = threading.Lock()
READ: list[int] = []
STOP_AFTER = 0
FINGERPRINT = ""


@pytest.fixture(autouse=True)
def _nothing_read() -> None:
    global STOP_AFTER
    READ.clear()
    STOP_AFTER = 0


def data(**given: Any) -> Data:
    return Data.model_construct(dataset=Counted(**given), synthetic=False, prepare=())


def interrupted(out: Path, after: int, **given: Any) -> None:
    global STOP_AFTER
    STOP_AFTER = after
    with pytest.raises(KeyboardInterrupt):
        prepare.prepare(data(**given), out, out)
    STOP_AFTER = 0
    READ.clear()


def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", after=prepare.PROBE + 1 + 2 * prepare.BLOCK + 300)
    assert not (tmp_path / "out").exists()
    prepare.prepare(data(), tmp_path, tmp_path / "out")
    assert set(range(1, 2 * prepare.BLOCK)).isdisjoint(READ)
    np.testing.assert_array_equal(Prepared(tmp_path / "out").images[:, 0, 0, 0], np.arange(3000) % 251)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_each_image_has_the_fingerprint_of_its_bytes(tmp_path: Path) -> None:
    """Those that an earlier process prepared, too; images 251 apart are equal."""
    interrupted(tmp_path / "out", after=prepare.PROBE + 1 + 2 * prepare.BLOCK + 300)
    prepare.prepare(data(), tmp_path, tmp_path / "out", threads=2)
    table = read_table(tmp_path / "out" / "pixels.parquet")
    assert table["sample"].tolist() == [f"{n:06}" for n in range(3000)]
    expected = [hashlib.sha256(bytes([n % 251]) * 48).hexdigest()[:32] for n in range(3000)]
    assert table["pixels"].tolist() == expected
    assert len(set(expected)) == 251
    assert table["flat"].all(), "each image has one grey level"
    assert table["grey"].all(), "and three equal channels"
    assert set(table["look"]) == {bytes(8 * len(CROPS))}, "and no pixel that is lighter than another"


def test_a_resumed_preparation_writes_the_bytes_of_one_that_ran_through(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", after=prepare.PROBE + 1 + 2 * prepare.BLOCK + 300)
    prepare.prepare(data(), tmp_path, tmp_path / "out")
    prepare.prepare(data(), tmp_path, tmp_path / "whole")
    for name in ("pixels.parquet", "samples.parquet", "images.npy"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_fingerprints_are_no_part_of_what_training_depends_on(tmp_path: Path) -> None:
    prepare.prepare(data(count=20), tmp_path, tmp_path / "out")
    made = Prepared(tmp_path / "out")
    assert set(made.card["checksums"]) == {"images.npy", "samples.parquet"}
    assert list(made.samples) == ["sample", "site", "label", "patient"]


@pytest.mark.parametrize("lost", [(0, 5, 1500, 2999), (7,)])
def test_every_image_that_cannot_be_read_is_named(tmp_path: Path, lost: tuple[int, ...]) -> None:
    with pytest.raises(UserErrors) as caught:
        prepare.prepare(data(lost=lost), tmp_path, tmp_path / "out", threads=2)
    assert str(caught.value).splitlines() == [f"{n}.png: cannot be read as an image" for n in lost]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("count", "lost"), [(3000, range(100, 3000, 10)), (290, range(290))])
def test_of_many_such_images_twenty_are_named_and_the_others_counted(tmp_path: Path, count: int, lost: range) -> None:
    with pytest.raises(UserErrors) as caught:
        prepare.prepare(data(count=count, lost=tuple(lost)), tmp_path, tmp_path / "out")
    *named, rest = str(caught.value).splitlines()
    assert named == [f"{n}.png: cannot be read as an image" for n in lost[:20]]
    assert rest == "images: 270 more like these"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changed", [{"count": 2999}, {"side": 5}])
def test_it_starts_anew_where_the_data_changed(tmp_path: Path, changed: dict[str, int]) -> None:
    interrupted(tmp_path / "out", after=2500)
    prepare.prepare(data(**changed), tmp_path, tmp_path / "out")
    assert set(READ) == set(range(changed.get("count", 3000)))


def test_it_starts_anew_where_the_code_changed(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", after=2500)
    prepare.prepare(data(), tmp_path, tmp_path / "out", code="other")
    assert set(READ) == set(range(3000))


def test_it_starts_anew_where_the_users_images_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same names, and none of those that are looked at again."""
    interrupted(tmp_path / "out", after=2500)
    monkeypatch.setitem(globals(), "FINGERPRINT", "other")
    prepare.prepare(data(), tmp_path, tmp_path / "out")
    assert set(READ) == set(range(3000))


def test_rows_that_did_not_reach_the_disk_whole_are_written_again(tmp_path: Path) -> None:
    first = GrowingArray(tmp_path / "a.npy", (10, 3), np.dtype(np.float32), "same")
    first.append(np.ones((4, 3), np.float32))
    first.close()
    with (tmp_path / "a.npy").open("ab") as file:
        file.write(b"half a row")
    second = GrowingArray(tmp_path / "a.npy", (10, 3), np.dtype(np.float32), "same")
    assert second.rows == 4
    second.append(np.full((6, 3), 2, np.float32))
    second.move(tmp_path / "b.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), np.repeat([1, 2], [4, 6])[:, None] * np.ones(3))
    assert [p.name for p in tmp_path.iterdir()] == ["b.npy"]


def test_rows_that_somebody_cut_off_are_written_again(tmp_path: Path) -> None:
    """The file has fewer rows than are recorded, which would be filled up with black images."""
    first = GrowingArray(tmp_path / "a.npy", (10, 3), np.dtype(np.uint8), "same")
    first.append(np.ones((4, 3), np.uint8))
    first.close()
    os.truncate(tmp_path / "a.npy", (tmp_path / "a.npy").stat().st_size - 1)
    assert GrowingArray(tmp_path / "a.npy", (10, 3), np.dtype(np.uint8), "same").rows == 0


def test_a_kill_before_the_first_block_leaves_nothing_to_trip_over(tmp_path: Path) -> None:
    GrowingArray(tmp_path / "a.npy", (2, 3), np.dtype(np.uint8), "same").close()
    again = GrowingArray(tmp_path / "a.npy", (2, 3), np.dtype(np.uint8), "same")
    assert again.rows == 0
    again.append(np.full((2, 3), 7, np.uint8))
    again.move(tmp_path / "b.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), np.full((2, 3), 7))


def test_an_array_that_is_not_whole_is_not_put_in_place(tmp_path: Path) -> None:
    array = GrowingArray(tmp_path / "a.npy", (10, 3), np.dtype(np.uint8), "same")
    array.append(np.zeros((9, 3), np.uint8))
    with pytest.raises(RuntimeError, match="9 of 10 rows"):
        array.move(tmp_path / "b.npy")


def test_vectors_are_prepared_as_they_are(tmp_path: Path) -> None:
    prepare.prepare(data(vectors=True, count=20, side=6), tmp_path, tmp_path / "out")
    made = Prepared(tmp_path / "out")
    assert made.shape == (6,)
    np.testing.assert_array_equal(made.images, np.repeat(np.arange(20) / 7, 6).reshape(20, 6).astype(np.float32))


def test_it_tells_disk_and_time_before_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare.prepare(data(), tmp_path, tmp_path / "out")
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("3000 images to prepare: 0.00 GB of disk, about 0:0")


def test_it_does_not_start_where_the_disk_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 3000 * 48 - 1})
    monkeypatch.setattr("fedshift.io.disk.shutil.disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="of disk space"):
        prepare.prepare(data(), tmp_path, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


MEMORY = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_prepare import data
from fedshift.jobs import prepare
def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
prepare.prepare(data(count=2000, side=96), Path({out!r}), Path({out!r}) / "small")
before = used()
prepare.prepare(data(count=8000, side=96), Path({out!r}), Path({out!r}) / "large")
print(json.dumps([before, used()]))
"""


def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    """6,000 images more are 166 MB more; two blocks in flight are 57 MB."""
    text = MEMORY.format(tests=str(Path(__file__).parent), out=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout.splitlines()[-1])
    assert after - before < 100
    assert (tmp_path / "large" / "images.npy").stat().st_size > 8_000 * 96 * 96 * 3
