"""Files from a mirror directory or the network: resumable, verified, and unpacked without trust."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..core import digest
from ..core.console import Progress, say
from ..core.errors import UserError
from . import disk, text
from .archive import unpack

if TYPE_CHECKING:
    import requests

BACKOFF = 0.5  # seconds before the second try; doubles with each further one
TIMEOUT = (15, 60)  # seconds to connect, and between bytes
CHUNK = 1 << 20
MARKER = ".source.json"
USE_MIRROR = "put the file in a mirror directory and pass --config mirror=DIR"


@dataclass(frozen=True)
class Source:
    """A file that can be downloaded from `url`, and what is known about its content.

    Where no address is permanent, `url` is None: the file is looked for in the mirror alone, and `page` tells people
    where it comes from. `size` and `unpacked_size` are in bytes.
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
        return name if name != self.filename else f"{name}.unpacked"


def fetch(source: Source, folder: Path, mirror: Path | None, *, retries: int = 5) -> Path:
    """Get a file, verify it, and return its path in `folder`; for an archive, that of the folder with its content.

    A file that is already there is verified and used. Else it is taken from `mirror`, and last from the network. A
    downloaded archive is removed once it is unpacked; one in the mirror stays. Raises UserError for a file that cannot
    be found, or whose size or checksum is wrong.
    """
    target, unpacked = folder / source.filename, folder / source.unpacked_name
    identity = {"content": source.sha256 or source.md5 or source.url}
    if source.unpack and unpacked.exists():
        if not (unpacked / MARKER).is_file():
            raise UserError(unpacked, f"was not unpacked from {source.filename}", "move it away")
        if identity["content"] and text.read_json(unpacked / MARKER) == identity:
            return unpacked
    archive = _obtain(source, target, mirror, retries)
    if not source.unpack:
        return archive
    with disk.atomic_folder(unpacked) as new:
        unpack(archive, new, source.unpacked_size)
        text.write_json(new / MARKER, identity)
    if archive == target:
        target.unlink()
    return unpacked


def _obtain(source: Source, target: Path, mirror: Path | None, retries: int) -> Path:
    if mirror is not None and not mirror.is_dir():
        raise UserError(mirror, "no such mirror directory", "check --config mirror=DIR")
    if target.is_file():
        _verify(target, source, "delete it and start again")
        return target
    if mirror is None or not (original := mirror / source.filename).is_file():
        if source.url is None:
            where = f", from {source.page}" if source.page else ""
            raise UserError(source.filename, f"no lasting address is known: get it by hand{where}", USE_MIRROR)
        _download(source, source.url, target, retries)
        return target
    _verify(original, source, "check this file of the mirror, or get it again")
    if source.unpack:
        return original
    disk.require_space(target.parent, original.stat().st_size)
    with disk.atomic(target) as temporary:
        shutil.copyfile(original, temporary)
    return target


def _verify(path: Path, source: Source, remedy: str) -> None:
    for kind in ("size", "sha256", "md5"):
        expected = getattr(source, kind)
        if expected is not None:
            value = str(path.stat().st_size) if kind == "size" else digest.of_file(path, kind)
            if value != str(expected).lower():
                raise UserError(path, f"{kind} is {value}, expected {expected}", remedy)


class _BrokenOffError(Exception):
    """The connection ended before the file did."""


def _download(source: Source, url: str, target: Path, retries: int) -> None:
    part, state = (target.with_name(f".{source.filename}.{end}") for end in ("part", "part.json"))
    target.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(retries + 1):
        try:
            _continue(source, url, part, state, retries)
            break
        except _BrokenOffError as error:
            if attempt == retries:
                what = f"{source.filename} broke off {attempt + 1} times, at last because {error}"
                raise UserError(url, what, f"start again to resume, or {USE_MIRROR}") from error
            say(f"{source.filename}: {error}; trying again")
            time.sleep(BACKOFF * 2**attempt)
    try:
        _verify(part, source, f"the download was deleted: get it again, or {USE_MIRROR}")
    except UserError as error:
        part.unlink()
        raise UserError(target, error.what, error.remedy) from None
    finally:
        state.unlink(missing_ok=True)
    disk.commit(part, target)


def _continue(source: Source, url: str, part: Path, state: Path, retries: int) -> None:
    """Append the missing bytes to `part`. `state` records which version of the remote file it belongs to."""
    have, version, total = _resumable(url, part, state)
    if have and have == total:
        return
    with _get(source.filename, url, have, version, retries) as response:
        if response.status_code == 200:
            length = response.headers.get("Content-Length")
            have, total = 0, int(length) if length else None
            part.unlink(missing_ok=True)
            text.write_json(state, {"url": url, "version": _version(response), "total": total})
        elif not _fits(response, have, version, total):
            state.unlink(missing_ok=True)
            raise _BrokenOffError("the file changed on the server")
        if source.size is not None and total not in (None, source.size):
            what = f"{source.filename} has {total} bytes there, expected {source.size}"
            raise UserError(url, what, USE_MIRROR)
        unpacked = source.unpacked_size if source.unpack else None
        disk.require_space(part.parent, (total or 0) - have + (unpacked or 0))
        _append(response, part, Progress(f"download {source.filename}", (total or have) - have, "B"))
    if total is not None and part.stat().st_size != total:
        raise _BrokenOffError(f"{part.stat().st_size} of {total} bytes arrived")


def _append(response: requests.Response, part: Path, progress: Progress) -> None:
    import urllib3

    with disk.disk_errors(part), part.open("ab") as file, progress as bar:
        try:
            for chunk in response.raw.stream(CHUNK, decode_content=False):
                file.write(chunk)
                bar.update(len(chunk))
        except urllib3.exceptions.HTTPError as error:
            raise _BrokenOffError(f"the connection was lost: {error}") from error


def _resumable(url: str, part: Path, state: Path) -> tuple[int, str, int | None]:
    """Return how many bytes are there to continue from, and the version and total size of their file."""
    with contextlib.suppress(UserError, OSError, KeyError, TypeError):
        known = text.read_json(state)
        if known["url"] == url and known["version"] and known["total"]:
            return part.stat().st_size, known["version"], known["total"]
    return 0, "", None


def _version(response: requests.Response) -> str | None:
    """Return a version that the header If-Range accepts: a strong ETag, or a date."""
    etag = response.headers.get("ETag", "W/")
    return response.headers.get("Last-Modified") if etag.startswith("W/") else etag


def _fits(response: requests.Response, have: int, version: str, total: int | None) -> bool:
    """Return whether an answer continues where the part ends, in the same version of the file."""
    place = response.headers.get("Content-Range", "")
    here = place.startswith(f"bytes {have}-") and place.endswith(f"/{total}")
    return response.status_code == 206 and here and _version(response) in (None, version)


@contextlib.contextmanager
def _get(name: str, url: str, have: int, version: str, retries: int) -> Iterator[requests.Response]:
    """Give the server's answer: 200, 206 (the rest) or 416 (no such rest). Raises UserError for all others."""
    import requests
    from urllib3 import Retry

    headers = {"Accept-Encoding": "identity"}  # the bytes as they are, to be counted and resumed
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    with requests.Session() as session:
        retry = Retry(
            total=retries,
            backoff_factor=BACKOFF,
            status_forcelist=(429, 500, 502, 503, 504),
            respect_retry_after_header=False,  # it may ask for hours
        )
        for scheme in ("http://", "https://"):
            session.mount(scheme, requests.adapters.HTTPAdapter(max_retries=retry))
        try:
            response = session.get(url, headers=headers, stream=True, timeout=TIMEOUT)
        except requests.RequestException as error:
            raise UserError(url, f"cannot get {name}: {error}", USE_MIRROR) from error
        with response:
            if response.status_code not in (200, 206, 416):
                what = f"cannot get {name}: {response.status_code} {response.reason}"
                raise UserError(url, what, USE_MIRROR)
            yield response
