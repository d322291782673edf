"""Downloads against a real server on the loopback interface that misbehaves on demand; hostile archives."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import shutil
import stat
import tarfile
import threading
import time
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from patience import PATIENCE
from urllib3.util import retry

from fedshift.core.errors import UserError
from fedshift.io import download as fetching
from fedshift.io.disk import atomic_folder
from fedshift.io.download import Source, fetch, unpack

Usage = namedtuple("Usage", "total used free")
CONTENT = np.random.default_rng(0).bytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content`. Each request takes the next word off `script`; without one it behaves.

    drop: half of what was asked for, then the connection ends. ignore: Range is not honoured, nor
    announced. splice: Range is honoured though If-Range says not to. A number: that status, and the words after it as
    Retry-After. piece N: N bytes, then the connection ends. untold: no Content-Length; short: only half; endless: no
    end either. length WORDS: that as Content-Length. waited: when `waited` is set.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.etag, self.modified = CONTENT, '"one"', ""
        self.waited = threading.Event()
        self.script: list[str] = []
        self.seen: list[dict[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/data.bin"

    def handle_error(self, *args: object) -> None:
        pass  # clients that hang up are what these tests are about

    @property
    def ranges(self) -> list[str | None]:
        return [headers.get("range") for headers in self.seen]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        headers = {k.lower(): v for k, v in self.headers.items()}
        server.seen.append(headers)
        word = server.script.pop(0) if server.script else ""
        word, _, rest = word.partition(" ")
        if word.isdigit():
            self.send_response(int(word))
            self.send_header("Content-Length", "0")
            if rest:
                self.send_header("Retry-After", rest)
            self.end_headers()
            return
        current = headers.get("if-range") in (server.etag, server.modified) or word == "splice"
        start = 0
        if "range" in headers and current and word != "ignore":
            start = int(headers["range"].removeprefix("bytes=").rstrip("-"))
        body, total = server.content[start:], len(server.content)
        if start and start >= total:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{total}")
            body = b""
        elif start:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        if word == "waited":
            server.waited.wait(PATIENCE)
        if word not in ("untold", "endless"):
            told = rest if word == "length" else str(len(body))
            self._headers_buffer.append(f"Content-Length: {told}\r\n".encode())
        if server.etag:
            self.send_header("ETag", server.etag)
        if server.modified:
            self.send_header("Last-Modified", server.modified)
        self.end_headers()
        half = len(body) // 2
        if word in ("drop", "piece", "untold", "endless"):
            self.close_connection = True
        if word in ("drop", "piece"):
            self.wfile.write(body[: int(rest or half)])
        elif word == "endless":
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(body)
        elif rest == "and short":
            self.wfile.write(body[:half])
        else:
            self.wfile.write(body)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetching, "BACKOFF", 0)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join(PATIENCE)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def interrupted(server: Server, folder: Path, **known: object) -> Source:
    """A download that broke off in the middle, for good."""
    server.script = ["drop"]
    source = Source(server.url, "data.bin", **known)
    with pytest.raises(UserError, match="start again to resume"):
        fetch(source, folder, None, retries=0)
    assert names(folder) == [".data.bin.part", ".data.bin.part.json"]
    assert (folder / ".data.bin.part").read_bytes() == CONTENT[:1_500_000]
    server.seen.clear()
    return source


# downloads


def test_download_is_verified_and_used_again(server, tmp_path):
    folder = tmp_path / "new" / "folder"
    source = Source(server.url, "data.bin", sha256=SHA256.upper(), md5=MD5, size=len(CONTENT))
    assert fetch(source, folder, None) == folder / "data.bin"
    assert fetch(source, folder, None) == folder / "data.bin"
    assert (folder / "data.bin").read_bytes() == CONTENT
    assert names(folder) == ["data.bin"]
    assert len(server.seen) == 1
    assert server.seen[0]["accept-encoding"] == "identity"


def test_a_dropped_connection_is_resumed(server, tmp_path):
    server.script = ["drop", "drop"]
    path = fetch(Source(server.url, "data.bin"), tmp_path, None)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1500000-", "bytes=2250000-"]
    assert server.seen[1]["if-range"] == '"one"'
    assert names(tmp_path) == ["data.bin"]


def test_a_later_start_resumes(server, tmp_path):
    source = interrupted(server, tmp_path, sha256=SHA256)
    assert fetch(source, tmp_path, None).read_bytes() == CONTENT
    assert server.ranges == ["bytes=1500000-"]


def test_a_later_start_resumes_by_date(server, tmp_path):
    server.etag, server.modified = 'W/"weak"', "Mon, 01 Jan 2024 00:00:00 GMT"
    source = interrupted(server, tmp_path)
    assert fetch(source, tmp_path, None).read_bytes() == CONTENT
    assert server.ranges == ["bytes=1500000-"]
    assert server.seen[0]["if-range"] == server.modified


def test_a_part_that_is_complete_needs_no_request(server, tmp_path):
    source = interrupted(server, tmp_path, sha256=SHA256)
    (tmp_path / ".data.bin.part").write_bytes(CONTENT)
    assert fetch(source, tmp_path, None).read_bytes() == CONTENT
    assert server.seen == []


def test_no_more_tries_than_allowed(server, tmp_path):
    server.script = ["drop"] * 10
    with pytest.raises(UserError, match=r"data\.bin broke off 3 times.*pass --config mirror=DIR"):
        fetch(Source(server.url, "data.bin"), tmp_path, None, retries=2)
    assert len(server.seen) == 3


def test_a_changed_file_is_not_spliced(server, tmp_path):
    source = interrupted(server, tmp_path)
    server.content, server.etag = CONTENT[::-1], '"two"'
    assert fetch(source, tmp_path, None).read_bytes() == CONTENT[::-1]
    assert server.ranges == ["bytes=1500000-"]


def test_a_server_that_splices_a_changed_file_is_found_out(server, tmp_path):
    source = interrupted(server, tmp_path)
    server.content, server.etag, server.script = CONTENT[::-1], '"two"', ["splice"]
    assert fetch(source, tmp_path, None).read_bytes() == CONTENT[::-1]
    assert server.ranges == ["bytes=1500000-", None]


def test_a_file_that_shrank_is_fetched_from_the_start(server, tmp_path):
    source = interrupted(server, tmp_path)
    server.content, server.script = CONTENT[:1000], ["splice"]
    assert fetch(source, tmp_path, None).read_bytes() == CONTENT[:1000]
    assert server.ranges == ["bytes=1500000-", None]


def test_a_server_that_ignores_range_starts_from_zero(server, tmp_path):
    source = interrupted(server, tmp_path)
    server.script = ["ignore"]
    assert fetch(source, tmp_path, None).read_bytes() == CONTENT
    assert server.ranges == ["bytes=1500000-"]


def test_a_server_without_versions_starts_from_zero(server, tmp_path):
    server.etag = ""
    source = interrupted(server, tmp_path)
    assert fetch(source, tmp_path, None).read_bytes() == CONTENT
    assert server.ranges == [None]


@pytest.mark.parametrize("state", [b"", b"[]", b'{"url": 1}', b"{"])
def test_a_damaged_side_file_means_from_zero(server, tmp_path, state):
    source = interrupted(server, tmp_path)
    (tmp_path / ".data.bin.part.json").write_bytes(state)
    assert fetch(source, tmp_path, None).read_bytes() == CONTENT
    assert server.ranges == [None]


def test_another_url_does_not_continue_the_part(server, tmp_path):
    interrupted(server, tmp_path)
    assert fetch(Source(server.url + "?v=2", "data.bin"), tmp_path, None).read_bytes() == CONTENT
    assert server.ranges == [None]


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.script = ["503", "503"]
    assert fetch(Source(server.url, "data.bin"), tmp_path, None).read_bytes() == CONTENT
    assert len(server.seen) == 3


def test_a_server_that_stays_busy_is_a_user_error(server, tmp_path):
    server.script = ["503"] * 10
    with pytest.raises(UserError, match=r"cannot get data\.bin.*503.*pass --config mirror=DIR"):
        fetch(Source(server.url, "data.bin"), tmp_path, None, retries=2)
    assert len(server.seen) == 3


def test_a_missing_remote_file_is_a_user_error(server, tmp_path):
    server.script = ["404"]
    with pytest.raises(UserError, match=r"data\.bin: 404 .*put the file in a mirror directory") as caught:
        fetch(Source(server.url, "data.bin"), tmp_path, None)
    assert caught.value.where == server.url
    assert len(server.seen) == 1
    assert names(tmp_path) == []


def test_no_network_is_a_user_error(server, tmp_path):
    server.server_close()
    server.url = server.url.replace(str(server.server_port), "1")
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1/data\.bin: cannot get data\.bin.*mirror=DIR"):
        fetch(Source(server.url, "data.bin"), tmp_path, None, retries=1)


@pytest.mark.parametrize(
    ("known", "what"),
    [
        ({"sha256": "0" * 64}, f"sha256 is {SHA256}, expected 000"),
        ({"md5": "1" * 32}, f"md5 is {MD5}, expected 111"),
    ],
)
def test_a_wrong_checksum_deletes_the_download(server, tmp_path, known, what):
    with pytest.raises(UserError, match=rf"data\.bin: {what}.*get it again"):
        fetch(Source(server.url, "data.bin", **known), tmp_path, None)
    assert names(tmp_path) == []


def test_a_wrong_size_is_seen_before_the_download(server, tmp_path):
    with pytest.raises(UserError, match=r"has 3000000 bytes on the server, expected 7"):
        fetch(Source(server.url, "data.bin", size=7), tmp_path, None)
    assert not (tmp_path / "data.bin").exists()


def test_a_wrong_file_that_is_there_already_is_not_used(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"other")
    with pytest.raises(UserError, match=r"data\.bin: sha256 is .*; delete it and start again"):
        fetch(Source(server.url, "data.bin", sha256=SHA256), tmp_path, None)
    assert server.seen == []
    assert (tmp_path / "data.bin").read_bytes() == b"other"


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data.bin", ""])
def test_only_http(url):
    with pytest.raises(UserError, match="not a http or https address"):
        Source(url, "data.bin")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/abs", "a/b"])
def test_only_plain_file_names(name):
    with pytest.raises(UserError, match="not a plain file name"):
        Source("https://example.org/x", name)


# disk space


def test_a_download_that_will_not_fit_is_not_begun(server, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(0, 0, len(CONTENT) + 10))
    roomy = Source(server.url, "data.bin")
    assert fetch(roomy, tmp_path / "1", None).exists()
    packed = Source(server.url, "data.zip", unpack=True, unpacked_size=11)
    with pytest.raises(UserError, match=r"needs .* MB of disk space, .* MB are free"):
        fetch(packed, tmp_path / "2", None)
    assert not (tmp_path / "2" / ".data.zip.part").exists()


def test_a_disk_that_fills_up_during_the_download(server, tmp_path, monkeypatch):
    class FullDisk(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(self, mode="r", *args, **kwargs):
        return FullDisk() if mode == "ab" else plain(self, mode, *args, **kwargs)

    plain = Path.open
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match="no space left on the disk"):
        fetch(Source(server.url, "data.bin"), tmp_path, None)
    assert not (tmp_path / "data.bin").exists()


# mirror


@pytest.fixture
def mirror(tmp_path) -> Path:
    folder = tmp_path / "mirror"
    folder.mkdir()
    (folder / "data.bin").write_bytes(CONTENT)
    return folder


def test_the_mirror_is_looked_at_first(server, tmp_path, mirror):
    path = fetch(Source(server.url, "data.bin", sha256=SHA256), tmp_path / "data", mirror)
    assert server.seen == []
    assert path.read_bytes() == CONTENT
    assert not path.is_symlink()
    (mirror / "data.bin").write_bytes(b"changed later")
    assert path.read_bytes() == CONTENT, "a copy, not a link"
    assert names(tmp_path / "data") == ["data.bin"]


def test_a_file_the_mirror_lacks_is_downloaded(server, tmp_path, mirror):
    (mirror / "data.bin").unlink()
    assert fetch(Source(server.url, "data.bin"), tmp_path / "data", mirror).read_bytes() == CONTENT
    assert len(server.seen) == 1


def test_a_wrong_file_in_the_mirror_stays_and_is_named(server, tmp_path, mirror):
    (mirror / "data.bin").write_bytes(b"other")
    with pytest.raises(
        UserError, match=r"mirror/data\.bin: size is 5, expected 3000000; check this file of the mirror"
    ):
        fetch(Source(server.url, "data.bin", sha256=SHA256, size=len(CONTENT)), tmp_path / "data", mirror)
    assert server.seen == []
    assert (mirror / "data.bin").read_bytes() == b"other"
    assert names(tmp_path / "data") == []


def test_a_mirror_that_is_not_there(server, tmp_path):
    with pytest.raises(UserError, match=r"nowhere: no such mirror directory; check --config mirror=DIR"):
        fetch(Source(server.url, "data.bin"), tmp_path, tmp_path / "nowhere")
    assert server.seen == []


# archives


def member(name: str, content: bytes = b"content", kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content) if kind == tarfile.REGTYPE else 0
    return info


def tar(path: Path, *members: tarfile.TarInfo, mode: str = "w", content: bytes = b"content") -> Path:
    with tarfile.open(path, mode) as archive:
        for info in members:
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return path


GOOD = (member("top", kind=tarfile.DIRTYPE), member("top/a.txt"), member("./top/deep/b.txt"))


def extract(archive: Path, folder: Path, unpacked_size: int | None = None) -> None:
    """Unpack as `fetch` does: completely or not at all."""
    with atomic_folder(folder) as new:
        unpack(archive, new, unpacked_size)


def unpacked(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tar_of_any_compression(tmp_path, mode):
    archive = tar(tmp_path / "x.archive", *GOOD, mode=mode)
    extract(archive, tmp_path / "out" / "x")
    assert unpacked(tmp_path / "out" / "x") == {"top/a.txt": b"content", "top/deep/b.txt": b"content"}
    assert names(tmp_path / "out") == ["x"]


def test_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("top")
        archive.writestr("top/a.txt", "content")
    extract(tmp_path / "x.zip", tmp_path / "x")
    assert unpacked(tmp_path / "x") == {"top/a.txt": b"content"}


def test_a_zip_with_backslashes_has_folders(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(zip_member("top\\"), "")
        archive.writestr(zip_member("top\\deep\\a.txt"), "content")
    extract(tmp_path / "x.zip", tmp_path / "x")
    assert unpacked(tmp_path / "x") == {"top/deep/a.txt": b"content"}


def test_a_folder_that_is_there_is_replaced(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "old").write_text("old")
    extract(tar(tmp_path / "x.tar", member("new")), tmp_path / "x")
    assert names(tmp_path / "x") == ["new"]


BAD = [
    member("../outside.txt"),
    member("top/../../outside.txt"),
    member("..\\outside.txt"),
    member("/abs.txt"),
    member("top/link", kind=tarfile.SYMTYPE, link="/etc"),
    member("top/link", kind=tarfile.SYMTYPE, link="a.txt"),
    member("top/hard", kind=tarfile.LNKTYPE, link="top/a.txt"),
    member("top/null", kind=tarfile.CHRTYPE),
    member("top/disk", kind=tarfile.BLKTYPE),
    member("top/fifo", kind=tarfile.FIFOTYPE),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda m: f"{m.name}-{m.type.decode()}")
def test_a_hostile_tar_member_is_refused_and_nothing_is_unpacked(tmp_path, bad):
    archive = tar(tmp_path / "x.tar", *GOOD, bad)
    folder = tmp_path / "out" / "x"
    with pytest.raises(UserError) as caught:
        extract(archive, folder)
    assert caught.value.where == str(archive)
    assert repr(bad.name) in caught.value.what
    assert "nothing was unpacked" in caught.value.remedy
    assert names(tmp_path) == ["out", "x.tar"]
    assert names(tmp_path / "out") == []


def zip_member(name: str, mode: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize(
    "bad",
    [
        zip_member("../outside.txt"),
        zip_member("top/../../outside.txt"),
        zip_member("/abs.txt"),
        zip_member("..\\outside.txt"),
        zip_member("top/link", stat.S_IFLNK | 0o777),
        zip_member("top/fifo", stat.S_IFIFO | 0o644),
    ],
    ids=lambda m: f"{m.filename}-{m.external_attr:x}",
)
def test_a_hostile_zip_member_is_refused_and_nothing_is_unpacked(tmp_path, bad):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("good.txt", "good")
        archive.writestr(bad, "/etc")
    folder = tmp_path / "out" / "x"
    with pytest.raises(
        UserError, match=r"x\.zip: member '.*' (leads out of the folder|is a link or a device, or sparse)"
    ):
        extract(tmp_path / "x.zip", folder)
    assert names(tmp_path) == ["out", "x.zip"]
    assert names(tmp_path / "out") == []


def test_a_refused_archive_leaves_the_old_folder(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "old").write_text("old")
    with pytest.raises(UserError):
        extract(tar(tmp_path / "x.tar", *GOOD, BAD[0]), tmp_path / "x")
    assert unpacked(tmp_path / "x") == {"old": b"old"}
    assert names(tmp_path) == ["x", "x.tar"]


def noise(path: Path, mode: str) -> Path:
    """An archive of two files that do not compress."""
    content = CONTENT[:300_000]
    return tar(path, member("a", content), member("b", content), mode=mode, content=content)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("share", [0, 0.0001, 0.3, 0.7, 0.99])
def test_a_truncated_tar_is_named(tmp_path, mode, share):
    archive = noise(tmp_path / "x.tar", mode)
    archive.write_bytes(archive.read_bytes()[: int(archive.stat().st_size * share)])
    with pytest.raises(UserError, match=r"x\.tar: damaged, or neither tar nor zip"):
        extract(archive, tmp_path / "x")
    assert names(tmp_path) == ["x.tar"]


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_flipped_bits_in_a_compressed_tar_are_found(tmp_path, mode):
    archive = noise(tmp_path / "x.tar", mode)
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 0x10
    archive.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.tar: damaged"):
        extract(archive, tmp_path / "x")
    assert names(tmp_path) == ["x.tar"]


def test_the_checksum_behind_the_end_of_the_members_is_looked_at(tmp_path):
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(gzip.compress(tar(tmp_path / "x.tar", *GOOD).read_bytes())[:-8] + bytes(8))
    with pytest.raises(UserError, match=r"damaged.*CRC"):
        extract(archive, tmp_path / "x")


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path):
    archive = tar(tmp_path / "x.tar", member("a"), member("b"))
    content = bytearray(archive.read_bytes())
    content[1024] ^= 0xFF  # the first letter of the second name: the checksum of the header is now wrong
    archive.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged.*end mark"):
        extract(archive, tmp_path / "x")


def test_a_damaged_zip_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", CONTENT)
    whole = (tmp_path / "x.zip").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0x10
    for content in (whole[: len(whole) // 2], bytes(flipped), b"", b"neither"):
        (tmp_path / "x.zip").write_bytes(content)
        with pytest.raises(UserError, match=r"x\.zip: damaged, or neither tar nor zip"):
            extract(tmp_path / "x.zip", tmp_path / "x")
    assert names(tmp_path) == ["x.zip"]


def test_members_that_clash_are_damage(tmp_path):
    with pytest.raises(UserError, match=r"x\.tar: damaged"):
        extract(tar(tmp_path / "x.tar", member("a"), member("a/b")), tmp_path / "x")


def test_a_missing_archive_is_named(tmp_path):
    with pytest.raises(UserError, match=r"x\.tar: no such file"):
        extract(tmp_path / "x.tar", tmp_path / "x")
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_bomb_is_not_unpacked(tmp_path, kind):
    path = tmp_path / f"x.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for i in range(10):
                archive.writestr(f"{i}", bytes(1_000_000))
    else:
        zeros = bytes(1_000_000)
        tar(path, *(member(f"{i}", zeros) for i in range(10)), mode="w:gz", content=zeros)
    assert path.stat().st_size < 100_000
    with pytest.raises(UserError, match=rf"x\.{kind}: unpacks to 3000000 bytes or more, expected 2000000"):
        extract(path, tmp_path / "x", unpacked_size=2_000_000)
    assert names(tmp_path) == [path.name]
    extract(path, tmp_path / "x", unpacked_size=9_000_000)
    assert len(names(tmp_path / "x")) == 10


@pytest.mark.parametrize("announced", [None, 2000])
def test_an_archive_that_does_not_fit_is_not_unpacked(tmp_path, monkeypatch, announced):
    archive = tar(tmp_path / "x.tar", member("a", bytes(2000)), content=bytes(2000))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(0, 0, 1999))
    with pytest.raises(UserError, match="of disk space"):
        extract(archive, tmp_path / "x", unpacked_size=announced)
    assert names(tmp_path) == ["x.tar"]


# fetch and unpack


@pytest.mark.parametrize(
    ("filename", "folder"),
    [
        ("x.tar.gz", "x"),
        ("x.tgz", "x"),
        ("x.v1.0.zip", "x.v1.0"),
        ("x.tar", "x"),
        ("x", "x.unpacked"),
        (".zip", ".zip.unpacked"),
    ],
)
def test_the_folder_is_named_after_the_archive(filename, folder):
    assert Source("https://example.org/x", filename).unpacked_name == folder


def packed(server: Server, tmp_path: Path) -> Source:
    server.content = tar(tmp_path / "source.tar.gz", *GOOD, mode="w:gz").read_bytes()
    digest = hashlib.sha256(server.content).hexdigest()
    return Source(server.url, "x.tar.gz", sha256=digest, unpack=True, unpacked_size=14)


def test_fetch_and_unpack_once(server, tmp_path):
    source, data = packed(server, tmp_path), tmp_path / "data"
    for _ in range(2):
        assert fetch(source, data, None) == data / "x"
    assert (data / "x" / "top" / "a.txt").read_bytes() == b"content"
    assert names(data) == ["x"]
    assert len(server.seen) == 1


def test_another_version_replaces_what_was_unpacked(server, tmp_path):
    data = tmp_path / "data"
    fetch(packed(server, tmp_path), data, None)
    server.content = tar(tmp_path / "two.tar", member("two")).read_bytes()
    fetch(Source(server.url, "x.tar.gz", unpack=True), data, None)
    assert set(unpacked(data / "x")) == {"two", ".source.json"}


def test_unpack_straight_from_the_mirror(server, tmp_path):
    source, mirror, data = packed(server, tmp_path), tmp_path / "mirror", tmp_path / "data"
    mirror.mkdir()
    (mirror / "x.tar.gz").write_bytes(server.content)
    assert fetch(source, data, mirror) == data / "x"
    assert (data / "x" / "top" / "a.txt").read_bytes() == b"content"
    assert names(mirror) == ["x.tar.gz"]
    assert names(data) == ["x"]
    assert server.seen == []


def test_a_folder_of_the_user_is_not_replaced(server, tmp_path):
    source, own = packed(server, tmp_path), tmp_path / "data" / "x"
    own.mkdir(parents=True)
    (own / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"data/x: was not unpacked from x\.tar\.gz; move it away"):
        fetch(source, tmp_path / "data", None)
    assert unpacked(own) == {"mine.txt": b"mine"}
    assert server.seen == []


# sparse files


def sparse(path: Path, size: int) -> Path:
    """A tar of two blocks with one file of `size` bytes, all of them a hole, as GNU tar writes it."""
    info = tarfile.TarInfo("hole")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = f"{size:011o}\0".encode()  # its size with the hole
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    path.write_bytes(bytes(header) + bytes(tarfile.RECORDSIZE - 512))
    return path


def test_a_sparse_file_is_refused(tmp_path):
    path = sparse(tmp_path / "x.tar", 8_000_000_000)
    with tarfile.open(path) as archive:
        assert archive.next().size == 8_000_000_000, "the test holds what it says"
    with pytest.raises(UserError, match="member 'hole' is a link or a device, or sparse"):
        extract(path, tmp_path / "x")
    assert names(tmp_path) == ["x.tar"]


# servers that mean harm, or are at their end


def test_no_more_is_read_than_the_dataset_tells(server, tmp_path):
    server.script = ["untold"]
    with pytest.raises(UserError, match=r"has more than the 1000 bytes that it should have: it was deleted"):
        fetch(Source(server.url, "data.bin", size=1000), tmp_path, None)
    assert names(tmp_path) == []


def test_a_stream_without_an_end_is_left(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "UNTOLD", 2_000_000)
    server.script = ["endless"]
    with pytest.raises(UserError, match=r"more than the 2000000 bytes allowed if its size is unknown: it was deleted"):
        fetch(Source(server.url, "data.bin", sha256=SHA256), tmp_path, None)
    assert names(tmp_path) == []


def test_a_file_without_a_told_size_is_whole_if_its_checksum_agrees(server, tmp_path):
    server.script = ["untold"]
    assert fetch(Source(server.url, "data.bin", sha256=SHA256), tmp_path, None).read_bytes() == CONTENT


def test_a_part_is_not_taken_for_the_whole(server, tmp_path):
    """Where the server tells no size, the end of a connection is the end of the file, or a fault."""
    server.script = ["untold"]
    with pytest.raises(UserError, match=r"does not state the size of data\.bin: a part could be taken for the whole"):
        fetch(Source(server.url, "data.bin"), tmp_path, None)
    server.script = ["untold and short"] * 3
    with pytest.raises(UserError, match=r"broke off 3 times, at last because 2625000 of 3000000 bytes arrived"):
        fetch(Source(server.url, "data.bin", size=len(CONTENT)), tmp_path / "2", None, retries=2)
    assert not (tmp_path / "2" / "data.bin").exists()


@pytest.mark.parametrize("told", ["abc", "-5", "1e3", "٣"])
def test_a_size_that_is_no_number_is_one_line(server, tmp_path, told):
    server.script = [f"length {told}"]
    with pytest.raises(
        UserError, match=r"data\.bin: .*(states the size of data\.bin as|cannot get data\.bin)"
    ) as caught:
        fetch(Source(server.url, "data.bin"), tmp_path, None)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """The seconds that the client would have waited before it asked a busy server again."""
    pauses: list[float] = []
    monkeypatch.setattr(retry, "time", SimpleNamespace(time=time.time, sleep=pauses.append))
    return pauses


def test_a_busy_server_is_given_the_time_that_it_asks_for(server, tmp_path, capsys, pauses):
    server.script = ["429 7"]
    assert fetch(Source(server.url, "data.bin"), tmp_path, None).read_bytes() == CONTENT
    assert pauses == [7]
    assert "data.bin: the server is busy (status 429); trying again in 7 s" in capsys.readouterr().err


@pytest.mark.parametrize("asked", ["86400", "Fri, 31 Dec 2100 23:59:59 GMT", "soon"])
def test_but_not_hours(server, tmp_path, pauses, asked):
    server.script = [f"503 {asked}"]
    assert fetch(Source(server.url, "data.bin"), tmp_path, None).read_bytes() == CONTENT
    assert pauses == ([] if asked == "soon" else [fetching.LONGEST_WAIT])


def test_tries_count_anew_after_progress(server, tmp_path, monkeypatch):
    """Six drops with one retry each: every connection brings a sixth of the file."""
    monkeypatch.setattr(fetching, "PROGRESS", 500_000)
    server.script = ["piece 500000"] * 5
    assert fetch(Source(server.url, "data.bin"), tmp_path, None, retries=1).read_bytes() == CONTENT
    assert server.ranges == [None, *(f"bytes={n}-" for n in range(500_000, 3_000_000, 500_000))]
    server.script = ["piece 499999"] * 5
    with pytest.raises(UserError, match="broke off 2 times"):
        fetch(Source(server.url, "data.bin"), tmp_path / "2", None, retries=1)


@pytest.mark.parametrize("page", [b"<!DOCTYPE html><title>Log in</title>", b"\n<html>", b"<HEAD>"])
@pytest.mark.parametrize("known", [{}, {"sha256": SHA256}, {"unpack": True}], ids=str)
def test_a_web_page_is_not_data(server, tmp_path, page, known):
    server.content = page
    with pytest.raises(UserError, match=r"data\.bin: is a web page, and not the data; the download was deleted"):
        fetch(Source(server.url, "data.bin", **known), tmp_path / "data", None)
    assert names(tmp_path / "data") == []
    (tmp_path / "data.bin").write_bytes(page)
    with pytest.raises(UserError, match="is a web page, and not the data; check this file of the mirror"):
        fetch(Source(server.url, "data.bin", **known), tmp_path / "data", tmp_path)


@pytest.mark.parametrize(("name", "start"), [("x.npz", b"PK\3\4"), ("x.bz2", b"BZh9"), ("x.MAT", b"MATLAB 5.0")])
def test_without_a_checksum_a_file_must_begin_as_its_kind_does(server, tmp_path, name, start):
    for server.content, words in ((b"", "is empty"), (b"not found", "does not begin as a")):
        with pytest.raises(UserError, match=rf"{name}: {words}"):
            fetch(Source(server.url, name), tmp_path, None)
    assert names(tmp_path) == []
    server.content = start + bytes(10)
    assert fetch(Source(server.url, name), tmp_path, None).read_bytes() == server.content


def test_two_at_once_get_one_file(server, tmp_path, monkeypatch):
    """The second waits for the first, and uses its file. The server answers when somebody waits."""

    def say(line):
        said.append(line)
        if "waiting" in line:
            server.waited.set()

    said: list[str] = []
    monkeypatch.setattr(fetching, "say", say)
    server.script = ["waited", "waited"]
    source = packed(server, tmp_path)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: fetch(source, tmp_path / "data", None), range(4)))
    assert found == [tmp_path / "data" / "x"] * 4
    assert names(tmp_path / "data") == ["x"]
    assert unpacked(tmp_path / "data" / "x")["top/a.txt"] == b"content"
    assert len(server.seen) == 1
    assert "x.tar.gz: another process gets this file; waiting for it" in said
