"""Digests of contents, and what their memory may not hide."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from fedshift.core import digest
from fedshift.io import checksums as module
from fedshift.io.checksums import contents

READ: list[str] = []


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the files that are read; take every file as settled."""
    READ.clear()
    real = digest.of_file
    monkeypatch.setattr(digest, "of_file", lambda file: READ.append(file.name) or real(file))
    monkeypatch.setattr(module, "SETTLED", 0)


def files(folder: Path) -> dict[str, Path]:
    for name in "ab":
        (folder / name).write_bytes(name.encode() * 9)
    time.sleep(0.02)  # more than a step in which file systems count time
    return {name: folder / name for name in "abc"}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


WHOLE = {"a": sha256(b"a" * 9), "b": sha256(b"b" * 9)}


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    three, memory = files(tmp_path), tmp_path / "memory.json"
    assert contents(three, memory) == contents(three, memory) == WHOLE
    assert sorted(READ) == ["a", "b"]
    os.utime(three["a"])
    assert contents(three, memory) == WHOLE
    assert sorted(READ) == ["a", "a", "b"], "touched: read again, and the same"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_change_with_the_old_size_and_time_is_seen(tmp_path: Path, replaced: bool) -> None:
    three, memory = files(tmp_path), tmp_path / "memory.json"
    contents(three, memory)
    before = three["a"].stat()
    if replaced:
        (tmp_path / "other").write_bytes(b"A" * 9)
        os.utime(tmp_path / "other", ns=(before.st_atime_ns, before.st_mtime_ns))
        (tmp_path / "other").rename(three["a"])
    else:
        three["a"].write_bytes(b"A" * 9)
        os.utime(three["a"], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert contents(three, memory) == {**WHOLE, "a": sha256(b"A" * 9)}


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLED", 60_000_000_000)
    three, memory = files(tmp_path), tmp_path / "memory.json"
    contents(three, memory)
    assert contents(three, memory) == WHOLE
    assert sorted(READ) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"a": 1}', '{"a": [[1, 2, 3, 4], "x"]}', '{"a": [["x"], 1]}'])
def test_a_damaged_memory_costs_time_alone(tmp_path: Path, text: str) -> None:
    three, memory = files(tmp_path), tmp_path / "memory.json"
    memory.write_text(text)
    assert contents(three, memory) == WHOLE
    assert contents(three) == WHOLE, "without a memory"
    assert set(json.loads(memory.read_text())) == {"a", "b"}


def test_a_memory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    assert contents(files(tmp_path), tmp_path / "a" / "memory.json") == WHOLE
