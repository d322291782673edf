"""Several places for one dataset: tried in turn, and the error of a dead one names the others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer, serving

from fedshift.core.errors import UserError
from fedshift.io import download
from fedshift.io.download import Source
from fedshift.io.origins import Origin, Receipt, obtain

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "BACKOFF", 0)
    with serving() as running:
        running.files = {"/a": CONTENT, "/b": CONTENT}
        yield running


def origins(server: FileServer, **known: object) -> list[Origin]:
    sources = {name: Source(f"{server.url}/{name}", f"{name}.bin", **known) for name in "ab"}
    return [Origin("the archive", (sources["a"],)), Origin("the copy", (sources["b"],), folders=("data", "."))]


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_the_first_is_used_and_the_receipt_says_what_was_verified(server: FileServer, tmp_path: Path) -> None:
    known = hashlib.sha256(CONTENT).hexdigest()
    receipt = obtain(origins(server, sha256=known), tmp_path / "1", None)
    assert receipt == Receipt("the archive", ("published checksum of a.bin",))
    receipt = obtain(origins(server, size=len(CONTENT)), tmp_path / "2", None)
    assert receipt.verified == ("published size of a.bin",)
    assert receipt.unverified == ("content of a.bin: no checksum is published",)
    assert server.paths() == ["/a", "/a"]


@pytest.mark.parametrize("fault", [["404"], ["500"] * 9, ["429"] * 9, ["half"] * 99])
def test_a_dead_source_is_passed_over_and_said(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: list[str]
) -> None:
    server.faults["/a"] = fault
    assert obtain(origins(server), tmp_path, None).origin == "the copy"
    assert (tmp_path / "b.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["b.bin"], "what the dead source sent is removed"
    assert "the archive does not give the files" in capsys.readouterr().err


def test_a_wrong_file_is_passed_over_too(server: FileServer, tmp_path: Path) -> None:
    server.files["/a"] = b"<html>Log in</html>"
    assert obtain(origins(server), tmp_path, None).origin == "the copy"


def test_if_all_are_dead_one_line_names_all(server: FileServer, tmp_path: Path) -> None:
    server.files = {}
    with pytest.raises(UserError) as caught:
        obtain(origins(server), tmp_path, None)
    (line,) = str(caught.value).splitlines()
    assert line == (
        f"2 sources: none of them gives the files: the archive ({server.url}/a: cannot get a.bin: 404 Not Found); "
        f"the copy ({server.url}/b: cannot get b.bin: 404 Not Found); "
        "put the file in a mirror directory and pass --config mirror=DIR"
    )


def test_one_source_alone_keeps_its_own_error(server: FileServer, tmp_path: Path) -> None:
    server.files = {}
    with pytest.raises(UserError, match=r"/a: cannot get a\.bin: 404 Not Found; put the file in a mirror directory"):
        obtain(origins(server)[:1], tmp_path, None)


def test_the_mirror_decides(server: FileServer, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "b.bin").write_bytes(CONTENT)
    assert obtain(origins(server), tmp_path / "raw", mirror).origin == "the copy"
    assert server.seen == []


def test_a_wrong_file_of_the_mirror_ends_it(server: FileServer, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "a.bin").write_bytes(b"other")
    with pytest.raises(UserError, match=r"mirror/a\.bin: size is 5, expected 10240; check this file of the mirror"):
        obtain(origins(server, size=len(CONTENT)), tmp_path / "raw", mirror)
    assert server.seen == []


def test_what_was_begun_goes_on_even_if_the_first_lives_again(server: FileServer, tmp_path: Path) -> None:
    server.faults = {"/a": ["404"], "/b": ["half"] + ["500"] * 9}
    with pytest.raises(UserError, match="2 sources"):
        obtain(origins(server), tmp_path, None)
    server.faults = {}
    server.seen.clear()
    assert obtain(origins(server), tmp_path, None).origin == "the copy"
    assert [(path, headers.get("range")) for _, path, headers in server.seen] == [("/b", "bytes=5120-")]
    assert (tmp_path / "b.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_begins_again(server: FileServer, tmp_path: Path) -> None:
    server.faults, server.ranges = {"/a": ["half"]}, False
    assert obtain(origins(server), tmp_path, None).origin == "the archive"
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
