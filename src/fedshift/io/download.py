"""Files from a mirror directory or the network: resumable, verified, and unpacked without trust.

To unpack an archive writes nothing outside of its folder, no links and no devices, and either all of it or nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..core import digest
from ..core.console import Progress, say
from ..core.errors import UserError
from . import disk, text

if TYPE_CHECKING:
    import requests
    import urllib3

BACKOFF = 0.5  # seconds before the second try; doubles with each further one
TIMEOUT = (15, 60)  # seconds to connect, and between bytes
CHUNK = 1 << 20
PROGRESS = 1 << 20
"""Bytes that a broken-off try must have added for the count of tries to begin anew."""
LONGEST_WAIT = 120.0
"""Most seconds to wait before each try where a busy server asks for a wait (`Retry-After`)."""
UNTOLD = 4 << 30
"""Most bytes that are downloaded of a file whose size neither the server nor the dataset states."""
CONTACT = "FEDSHIFT_CONTACT"
"""Environment variable with a contact address that is sent to servers, such as mailto:me@example.org."""
SHA256 = re.compile(r"[0-9a-f]{64}")
MARKER = ".source.json"
USE_MIRROR = "put the file in a mirror directory and pass --config mirror=DIR"
MAGIC = {
    ".bz2": (b"BZh",),
    ".gz": (b"\x1f\x8b",),
    ".mat": (b"MATLAB",),
    ".npy": (b"\x93NUMPY",),
    ".npz": (b"PK",),
    ".parquet": (b"PAR1",),
    ".png": (b"\x89PNG",),
    ".xz": (b"\xfd7zXZ",),
    ".zip": (b"PK",),
}
"""The first bytes of files, by the ending of their names."""
PAGE = re.compile(rb"\s*(<!doctype\s+html|<html|<head)", re.IGNORECASE)
"""The start of a web page, which servers send in the place of files, for example to ask for a login."""


BOMB = 1.2
"""An archive may unpack to this many times its announced size before it is refused."""
DO_NOT_USE = "nothing was unpacked, do not use this archive"
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error, IndexError, OverflowError)
BAD_NAMES = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL)
"""Error numbers that names inside an archive cause. All others, such as a full disk, are not the archive's fault."""

Member = tuple[str, bool, int, Callable[[Path], Any]]
"""A member of an archive: its name, whether it is a plain file or a folder, its size in bytes, and the function that
writes it into a folder."""


class SourceError(UserError):
    """A download that failed or gave a wrong file; another address may give the right one."""


@dataclass(frozen=True)
class Source:
    """A file that can be downloaded from `url`, and what is known about its content.

    Where no address lasts, `url` is None: the file is looked for in the mirror directory alone, and `page` tells people
    where it comes from. `filename` is its name on the disk. `sha256` and `md5` are hex digits; `size` and
    `unpacked_size` are in bytes; `unpack` says that it is an archive to be unpacked. Raises UserError for an address
    that is not http or https, and for a name with a folder in it.
    """

    url: str | None
    filename: str
    sha256: str | None = None
    md5: str | None = None
    size: int | None = None
    unpack: bool = False
    unpacked_size: int | None = None
    page: str = ""

    def __post_init__(self) -> None:
        if self.url is not None and urlsplit(self.url).scheme not in ("http", "https"):
            raise UserError(self.url, "not a http or https address", USE_MIRROR)
        if self.filename in ("", ".", "..") or "/" in self.filename:
            raise UserError(repr(self.filename), "not a plain file name")

    @property
    def unpacked_name(self) -> str:
        """Return the name of the unpacked folder: `camelyon` for `camelyon.tar.gz`."""
        name = re.sub(r"(?<=.)(\.tar)?\.(tar|tgz|tbz2?|txz|gz|bz2|xz|zip)$", "", self.filename)
        return f"{name}.unpacked" if name == self.filename else name


def fetch(source: Source, folder: Path, mirror: Path | None, *, retries: int = 5, copy: bool = True) -> Path:
    """Get a file, verify it, and return its path in `folder`; for an archive, the path of its unpacked folder.

    A file that is already in `folder` is verified and used. Else it is taken from the directory `mirror`, and last from
    the network, with up to `retries` further tries. A downloaded archive is removed once it is unpacked; one in the
    mirror stays. A file of the mirror is copied; without `copy`, its path in the mirror is returned. If several
    processes want one file, one gets it and the others wait. Raises SourceError if the network does not give the file,
    and UserError for a web page in the place of data, and for a wrong size or checksum.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / source.filename
    unpacked = folder / source.unpacked_name
    identity = {"content": source.sha256 or source.md5 or source.url}
    wait = f"{source.filename}: another process gets this file; waiting for it"
    with disk.in_turn(folder / f".{source.filename}.lock", lambda: say(wait)):
        if source.unpack and unpacked.exists():
            if not (unpacked / MARKER).is_file():
                raise UserError(unpacked, f"was not unpacked from {source.filename}", "move it away")
            if identity["content"] and text.read_json(unpacked / MARKER) == identity:
                return unpacked
        archive = _obtain(source, target, mirror, retries, copy)
        if not source.unpack:
            return archive
        with disk.atomic_folder(unpacked) as new:
            unpack(archive, new, source.unpacked_size)
            text.write_json(new / MARKER, identity)
        if archive == target:
            target.unlink()
    return unpacked


def _obtain(source: Source, target: Path, mirror: Path | None, retries: int, copy: bool) -> Path:
    if mirror is not None and not mirror.is_dir():
        raise UserError(mirror, "no such mirror directory", "check --config mirror=DIR")
    if target.is_file():
        _verify(target, source, "delete it and start again")
        return target
    if mirror is None or not (original := mirror / source.filename).is_file():
        if source.url is None:
            page = f", from {source.page}" if source.page else ""
            raise SourceError(source.filename, f"no lasting address is known: get it by hand{page}", USE_MIRROR)
        _download(source, source.url, target, retries)
        return target
    _verify(original, source, "check this file of the mirror, or get it again")
    if source.unpack or not copy:
        return original
    disk.require_space(target.parent, original.stat().st_size)
    with disk.atomic(target) as temporary:
        shutil.copyfile(original, temporary)
    return target


def _verify(path: Path, source: Source, remedy: str) -> None:
    """Raise UserError if a file is a web page, or has another size or checksum than `source` states.

    If `source` states no checksum, raise it also for an empty file, and for a file whose first bytes do not fit the
    ending of its name.
    """
    with path.open("rb") as file:
        start = file.read(512)
    suffix = Path(source.filename).suffix.lower()
    if PAGE.match(start) and suffix not in (".html", ".htm"):
        raise UserError(path, "is a web page, and not the data", remedy)
    size = path.stat().st_size
    if source.size is not None and size != source.size:
        raise UserError(path, f"size is {size}, expected {source.size}", remedy)
    for kind in ("sha256", "md5"):
        expected = getattr(source, kind)
        if expected is not None:
            value = digest.of_file(path, kind)
            if value != expected.lower():
                raise UserError(path, f"{kind} is {value}, expected {expected}", remedy)
    if source.sha256 or source.md5:
        return
    if not start:
        raise UserError(path, "is empty", remedy)
    if not source.unpack and suffix in MAGIC and not start.startswith(MAGIC[suffix]):
        raise UserError(path, f"does not begin as a {suffix} file does", remedy)


class _BrokenOffError(Exception):
    """A connection that ended before the whole file had arrived. The next try continues the file."""


def _download(source: Source, url: str, target: Path, retries: int) -> None:
    part, state = (target.with_name(f".{source.filename}.{end}") for end in ("part", "part.json"))
    target.parent.mkdir(parents=True, exist_ok=True)
    tries = 0
    while True:
        before = _size(part)
        try:
            _continue(source, url, part, state, retries)
            break
        except _BrokenOffError as error:
            tries += 1
            if _size(part) - before >= PROGRESS:
                tries = 1
            if tries > retries:
                times = f"{tries} times, at last" if tries > 1 else "once,"
                problem = f"{source.filename} broke off {times} because {error}"
                raise SourceError(url, problem, f"start again to resume, or {USE_MIRROR}") from error
            say(f"{source.filename}: {error}; trying again")
            time.sleep(BACKOFF * 2 ** (tries - 1))
    told = None
    with contextlib.suppress(UserError, OSError, KeyError, TypeError):
        told = text.read_json(state)["sha256"]
    if not source.sha256 and isinstance(told, str) and SHA256.fullmatch(told):
        # the server told it when the download began
        source = dataclasses.replace(source, sha256=told)
    try:
        _verify(part, source, f"the download was deleted: get it again, or {USE_MIRROR}")
    except UserError as error:
        part.unlink()
        raise SourceError(target, error.what, error.remedy) from None
    finally:
        state.unlink(missing_ok=True)
    disk.commit(part, target)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _continue(source: Source, url: str, part: Path, state: Path, retries: int) -> None:
    """Append the missing bytes of the file at `url` to the partial file `part`.

    `state` is the JSON file that records which version of the remote file `part` belongs to. Raises _BrokenOffError if
    bytes are still missing, and SourceError if the file cannot be the right one.
    """
    have, version, total = _resumable(url, part, state)
    if have and have == total:
        return
    with _get(source.filename, url, have, version, retries) as response:
        if response.status_code == 200:
            have = 0
            total = _told_size(source, url, response)
            part.unlink(missing_ok=True)
            facts = {"url": url, "version": _version(response), "total": total, "sha256": _linked_sha256(response)}
            text.write_json(state, facts)
        elif not _fits(response, have, version, total):
            state.unlink(missing_ok=True)
            raise _BrokenOffError("the file changed on the server")
        if source.size is not None and total != source.size:
            problem = f"{source.filename} has {total} bytes on the server, expected {source.size}"
            raise SourceError(url, problem, USE_MIRROR)
        unpacked = (source.unpacked_size or 0) if source.unpack else 0
        disk.require_space(part.parent, (total or 0) - have + unpacked)
        bar = Progress(f"download {source.filename}", (total or have) - have, "B")
        if not _append(response, part, bar, (total or UNTOLD) - have):
            part.unlink()
            state.unlink(missing_ok=True)
            limit = f"{total} bytes that it should have" if total else f"{UNTOLD} bytes allowed if its size is unknown"
            raise SourceError(url, f"{source.filename} has more than the {limit}: it was deleted", USE_MIRROR)
    if total is not None and part.stat().st_size != total:
        raise _BrokenOffError(f"{part.stat().st_size} of {total} bytes arrived")


def _told_size(source: Source, url: str, response: requests.Response) -> int | None:
    """Return the size of the whole file in bytes from the response or, failing that, from the dataset; None if unknown.

    Raises SourceError if nothing would tell a complete file from a connection that broke off.
    """
    told = response.headers.get("Content-Length", "").strip()
    if told and not (told.isascii() and told.isdecimal()):
        raise SourceError(url, f"the server states the size of {source.filename} as {told[:40]!r}", USE_MIRROR)
    if told:
        return int(told)
    ends = "chunked" in response.headers.get("Transfer-Encoding", "").lower() or source.unpack
    if source.size is None and not (ends or source.sha256 or source.md5):
        problem = f"the server does not state the size of {source.filename}: a part could be taken for the whole"
        raise SourceError(url, problem, USE_MIRROR)
    return source.size


def _append(response: requests.Response, part: Path, progress: Progress, most: int) -> bool:
    """Append the body of a response to `part`, at most `most` bytes. Return False if the server sends more."""
    import urllib3

    with disk.disk_errors(part), part.open("ab") as file, progress as bar:
        try:
            for chunk in response.raw.stream(CHUNK, decode_content=False):
                file.write(chunk[:most])
                bar.update(len(chunk))
                most = most - len(chunk)
                if most < 0:
                    return False
        except urllib3.exceptions.HTTPError as error:
            raise _BrokenOffError(f"the connection was lost: {error}") from error
    return True


def _resumable(url: str, part: Path, state: Path) -> tuple[int, str, int | None]:
    """Return the bytes of the partial file, and the version and total size of the remote file.

    Return 0, "" and None if there is no partial file of this address.
    """
    with contextlib.suppress(UserError, OSError, KeyError, TypeError, ValueError):
        facts = text.read_json(state)
        version, total = facts["version"], facts["total"]
        if facts["url"] == url and isinstance(version, str) and version.isprintable() and int(total) == total > 0:
            return part.stat().st_size, version, total
    return 0, "", None


def _reason(error: Exception) -> str:
    """Return the message of a failed request without the address and class names that libraries put around it."""
    inner = getattr((*error.args, None)[0], "reason", None)
    return re.sub(r"^\w+\(host=[^)]*\): ", "", str(inner or error)) or type(error).__name__


def _linked_sha256(response: requests.Response) -> str | None:
    """Return the SHA-256 that the Hugging Face Hub states of a large file, before it redirects; None without one."""
    tags = [answer.headers.get("X-Linked-ETag", "").strip('"') for answer in (*response.history, response)]
    return next((tag for tag in tags if SHA256.fullmatch(tag)), None)


def _version(response: requests.Response) -> str | None:
    """Return a remote file's version for the header If-Range: its strong ETag, or else its date; None without both."""
    etag = response.headers.get("ETag", "W/")
    return response.headers.get("Last-Modified") if etag.startswith("W/") else etag


def _fits(response: requests.Response, have: int, version: str, total: int | None) -> bool:
    """Return whether a response continues a partial file of `have` bytes, with the same version and total size."""
    place = response.headers.get("Content-Range", "")
    here = place.startswith(f"bytes {have}-") and place.endswith(f"/{total}")
    return response.status_code == 206 and here and _version(response) in (None, version)


@contextlib.contextmanager
def _get(name: str, url: str, have: int, version: str, retries: int) -> Iterator[requests.Response]:
    """Yield the response to a request for a file from byte `have` on, with status 200, 206 or 416.

    Status 200 brings the whole file, 206 the missing part, and 416 says that the file has no bytes from `have` on.
    `version` is that of the partial file, and `name` the file's name in messages. Raises SourceError for any other
    status.
    """
    import requests
    import urllib3

    # the program names itself, since some servers refuse those of common libraries
    words = ["federated-learning studies in medical imaging", os.environ.get(CONTACT, "").strip()]
    # files are asked for as they are, to be counted and resumed
    headers = {"Accept-Encoding": "identity", "User-Agent": f"fedshift ({'; '.join(filter(None, words))})"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    with requests.Session() as session:
        retry = _retry(name, retries)
        for scheme in ("http://", "https://"):
            session.mount(scheme, requests.adapters.HTTPAdapter(max_retries=retry))
        try:
            response = session.get(url, headers=headers, stream=True, timeout=TIMEOUT)
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            raise SourceError(url, f"cannot get {name}: {_reason(error)}", USE_MIRROR) from error
        with response:
            if response.status_code not in (200, 206, 416):
                problem = f"cannot get {name}: {response.status_code} {response.reason}"
                raise SourceError(url, problem, USE_MIRROR)
            yield response


def _retry(name: str, retries: int) -> urllib3.Retry:
    """Return urllib3's rule for asking a busy server again: after the time that it states, or growing pauses.

    A stated time is cut at LONGEST_WAIT seconds; pauses begin at BACKOFF and double.
    """
    import urllib3

    class Patient(urllib3.Retry):
        def get_retry_after(self, response: Any) -> float | None:
            try:
                asked_for = super().get_retry_after(response)
            except urllib3.exceptions.InvalidHeader:
                return None
            if not asked_for:
                return asked_for
            seconds = min(asked_for, LONGEST_WAIT)
            say(f"{name}: the server is busy (status {response.status}); trying again in {seconds:.0f} s")
            return seconds

    return Patient(total=retries, backoff_factor=BACKOFF, status_forcelist=(429, 500, 502, 503, 504))


def unpack(archive: Path, folder: Path, unpacked_size: int | None) -> None:
    """Unpack a tar (of any compression) or zip archive into `folder`. If this raises, the caller must discard `folder`.

    Raises UserError for members that would be written elsewhere, for links, devices and sparse files, and for an
    archive that is damaged, or that grows far beyond `unpacked_size` bytes.
    """
    if not archive.is_file():
        raise UserError(archive, "no such file")
    disk.require_space(folder, unpacked_size or 0)
    total = 0
    bar = Progress(f"unpack {archive.name}", archive.stat().st_size, "B")
    with _unpacking(archive), archive.open("rb") as file, bar:
        for name, plain, size, write in _members(file):
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts:
                raise UserError(archive, f"member {name!r} leads out of the folder", DO_NOT_USE)
            if not plain:
                raise UserError(archive, f"member {name!r} is a link or a device, or sparse", DO_NOT_USE)
            total += size
            if unpacked_size is not None and total > BOMB * unpacked_size:
                problem = f"unpacks to {total} bytes or more, expected {unpacked_size}"
                raise UserError(archive, problem, DO_NOT_USE)
            disk.require_space(folder, size)
            write(folder)
            bar.update(max(file.tell() - bar.done, 0))
        bar.update(bar.total - bar.done)


def _members(file: IO[bytes]) -> Iterator[Member]:
    # tar is tried first, since one that ends with a zip also looks like a zip
    is_tar = tarfile.is_tarfile(file)
    file.seek(0)
    return _zip(file) if not is_tar and zipfile.is_zipfile(file) else _tar(file)


def _tar(file: IO[bytes]) -> Iterator[Member]:
    tar: Any
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
        while (member := tar.next()) is not None:
            plain = (member.isreg() or member.isdir()) and not member.issparse()
            yield member.name, plain, member.size, partial(tar.extract, member, filter="data")
            # tarfile keeps every member that it has read: half a million of them would fill the memory
            tar.members.clear()
        # tarfile takes a damaged header for the end: look for the true end, and for the checksum behind it
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("no end mark where the members end")
        while tar.fileobj.read(CHUNK):
            pass


def _zip(file: IO[bytes]) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
            # some programs of Windows write backslashes between folders
            info.filename = info.filename.replace("\\", "/")
            yield info.filename, plain, info.file_size, partial(archive.extract, info)


@contextlib.contextmanager
def _unpacking(archive: Path) -> Iterator[None]:
    """Turn errors of the block that bad content of `archive` can cause into UserError; other errors pass."""
    try:
        yield
    except UserError:
        raise
    except (OSError, EOFError, RuntimeError, ValueError, *DAMAGE) as error:
        # the decompressors raise OSError without a number
        if isinstance(error, OSError) and error.errno not in (None, *BAD_NAMES):
            raise
        problem = f"damaged, or neither tar nor zip: {error}"
        raise UserError(archive, problem, "delete it and get it again") from error
