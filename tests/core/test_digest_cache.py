"""Digests of code are computed once for each state of the sources, and are right whatever the cache folder holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedshift.core import digest, digest_cache
from fedshift.core.digest_cache import MOST, DigestCache

MODULES = ["fedshift.core.rng", "fedshift.metrics.auc"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, for a process that has computed nothing yet."""
    monkeypatch.setattr(digest_cache, "user_cache_path", lambda _: tmp_path / "cache")
    _anew()
    yield tmp_path / "cache"
    _anew()


def _anew() -> None:
    digest._computed_before.cache_clear()
    digest._installed.cache_clear()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[str]]:
    """The modules whose code was followed, which parses the sources."""
    calls: list[frozenset[str]] = []

    class Counted(digest.Code):
        def _digest(self, entry: frozenset[str]) -> str:
            calls.append(entry)
            return super()._digest(entry)

    monkeypatch.setattr(digest, "Code", Counted)
    return calls


def test_the_next_process_parses_nothing(folder: Path, parsed: list[frozenset[str]]) -> None:
    first = digest.of_code(MODULES)
    assert first == digest.Code(digest.ROOT).digest(frozenset(MODULES))
    parsed.clear()
    _anew()
    assert digest.of_code(reversed(MODULES)) == first
    assert parsed == []
    assert digest.of_code(MODULES[:1]) != first
    assert parsed == [frozenset(MODULES[:1])]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"fedshift.core.rng": 1}', '{"fedshift.core.rng": "ffff"}', "\0"])
def test_a_damaged_file_counts_as_none(folder: Path, content: str) -> None:
    right = digest.of_code(MODULES[:1])
    (file,) = folder.iterdir()
    file.write_text(content)
    _anew()
    assert digest.of_code(MODULES[:1]) == right


def test_without_a_folder_to_write_in(folder: Path, parsed: list[frozenset[str]]) -> None:
    folder.write_text("a file lies where the folder should be")
    first = digest.of_code(MODULES)
    _anew()
    assert digest.of_code(MODULES) == first
    assert len(parsed) == 2


def test_a_change_of_any_source_is_another_state(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "package" / "room").mkdir(parents=True)
    (one := tmp_path / "package" / "one.py").write_text("x = 1\n")
    DigestCache(tmp_path / "package").put(["package.one"], "0123456789ab")
    assert DigestCache(tmp_path / "package").get(["package.one"]) == "0123456789ab"
    os.utime(one, (0, 0))
    assert DigestCache(tmp_path / "package").get(["package.one"]) == "0123456789ab"
    one.write_text("x = 2\n")
    assert DigestCache(tmp_path / "package").get(["package.one"]) is None
    one.write_text("x = 1\n")
    (tmp_path / "package" / "room" / "two.py").write_text("")
    assert DigestCache(tmp_path / "package").get(["package.one"]) is None


def test_plug_ins_from_outside_are_always_followed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parsed: list[frozenset[str]]
) -> None:
    """Their files are not among those that the cache compares."""
    (tmp_path / "kept_nowhere.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    first = digest.of_code(["kept_nowhere"])
    (tmp_path / "kept_nowhere.py").write_text("x = 2\n")
    _anew()
    assert digest.of_code(["kept_nowhere"]) != first
    assert not folder.exists()


def test_files_of_old_sources_are_removed(folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for number in range(MOST + 3):
        (package / "one.py").write_text(f"x = {number}\n")
        cache = DigestCache(package)
        cache.put(["package.one"], f"{number:012x}")
        os.utime(cache.path, (number, number))
    assert len(list(folder.iterdir())) == MOST
    assert cache.path.exists()
