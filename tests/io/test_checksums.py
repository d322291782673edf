"""Recorded checksums notice every change of a file, and read large files only where they may have changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fedshift.core.errors import UserError
from fedshift.io import checksums
from fedshift.io.paths import checksum


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a table.csv"
    path.write_bytes(b"site,value\nA,0.5\n")
    checksums.record(path)
    return path


def test_the_record_is_a_line_of_sha256sum(file: Path) -> None:
    line, remark = checksum(file).read_text().splitlines()
    assert line == f"{hashlib.sha256(file.read_bytes()).hexdigest()}  a table.csv"
    assert remark.startswith(f"# {file.stat().st_size} ")
    assert checksum(file).name == ".a table.csv.sha256"


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="has no sha256sum")
def test_sha256sum_checks_the_record(file: Path) -> None:
    command = ["sha256sum", "--check", "--strict", checksum(file).name]
    assert subprocess.run(command, cwd=file.parent, capture_output=True).returncode == 0
    file.write_bytes(b"other")
    assert subprocess.run(command, cwd=file.parent, capture_output=True).returncode == 1


def flip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3] + b"6\n\n")


def cut(path: Path) -> None:
    os.truncate(path, 5)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def replace(path: Path) -> None:
    other = path.with_name("other")
    flip_of = path.read_bytes()
    other.write_bytes(flip_of[:-2] + b"7\n")
    other.replace(path)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("keep_time", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flip, "is damaged or was changed"),
        (cut, "is damaged or was changed"),
        (empty, "is empty"),
        (replace, "is damaged or was changed"),
        (Path.unlink, "is missing"),
    ],
)
def test_every_change_is_noticed(
    change, words: str, keep_time: bool, large: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "LARGE", 1 if large else 1 << 24)
    before = file.stat()
    assert checksums.damage(file) == ""
    change(file)
    if keep_time and file.exists():
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert words in checksums.damage(file)
    assert words in checksums.damage(file, whole=True)


def test_a_large_file_is_read_once_after_its_time_changed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "LARGE", 1)
    read: list[Path] = []
    of_file = checksums.digest.of_file
    monkeypatch.setattr(checksums.digest, "of_file", lambda path: read.append(path) or of_file(path))
    assert checksums.damage(file) == ""
    assert read == []
    os.utime(file)
    assert checksums.damage(file) == checksums.damage(file) == ""
    assert read == [file]
    assert checksums.damage(file, whole=True) == ""
    assert read == [file, file]


def test_a_small_file_is_always_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits that a disk loses by itself change neither size nor times."""
    monkeypatch.setattr(checksums, "stamp", lambda path: [1, 2, 3, 4])
    checksums.record(file)
    flip(file)
    assert "is damaged" in checksums.damage(file)


def test_a_file_of_an_earlier_version_has_no_record_and_is_taken(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("a\n")
    assert not checksums.recorded(tmp_path / "old.csv")
    assert checksums.damage(tmp_path / "old.csv") == ""


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff\xfe", b"0" * 64 + b"  another.csv\n"])
def test_a_damaged_record_is_noticed(content: bytes, file: Path) -> None:
    checksum(file).write_bytes(content)
    assert "has no readable checksum" in checksums.damage(file)


def test_the_error_names_each_file_and_the_call_that_mends_it(file: Path, tmp_path: Path) -> None:
    checksums.require([file, tmp_path / "absent"])
    flip(file)
    with pytest.raises(UserError) as caught:
        checksums.require([file], lambda: "snakemake --cores all --config study=demo scale=mini")
    assert str(caught.value).startswith(f"{file}: is damaged or was changed")
    wanted = f"make it again: snakemake --cores all --config study=demo scale=mini --forcerun '{file}'"
    assert str(caught.value).endswith(wanted)


def test_a_file_that_is_written_empty_is_whole(tmp_path: Path) -> None:
    (tmp_path / "none.csv").touch()
    checksums.record(tmp_path / "none.csv")
    assert checksums.damage(tmp_path / "none.csv") == ""
