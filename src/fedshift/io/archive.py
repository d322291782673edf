"""Unpacking of archives that are not trusted: nothing outside the folder, no links, no devices, all or nothing."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..core.console import Progress
from ..core.errors import UserError
from ..core.limits import Limit
from . import disk

CHUNK = 1 << 20
BOMB = 1.2  # an archive may grow to this many times its announced size
RATIO: Limit[int] = 100
"""An archive whose unpacked size is not announced may grow to this many times its own size, and ALLOWANCE."""
ALLOWANCE: Limit[int] = 1 << 30
"""Bytes that any archive may unpack to."""
ENTRIES: Limit[int] = 2_000_000
"""Most files and folders in an archive."""
HEADER: Limit[int] = 1 << 20
"""Most bytes of a name or of another extra header in a tar, which are held in memory at once."""
DO_NOT_USE = "nothing was unpacked, do not use this archive"
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error, IndexError, OverflowError)


def extract(archive: Path, folder: Path, *, unpacked_size: int | None = None) -> None:
    """Unpack a tar (of any compression) or zip archive to `folder`, completely or not at all.

    Raises UserError for members that would be written elsewhere, for links, devices and sparse files, and for an
    archive that is damaged, has more than ENTRIES members, or grows far beyond `unpacked_size` bytes (where that is
    None, beyond what images and text compress to).
    """
    with disk.atomic_folder(folder) as new:
        unpack(archive, new, unpacked_size)


def unpack(archive: Path, folder: Path, unpacked_size: int | None) -> None:
    """Unpack into `folder`. Where this raises, the caller must discard the folder."""
    if not archive.is_file():
        raise UserError(archive, "no such file")
    disk.require_space(folder, unpacked_size or 0)
    total, members = 0, 0
    known = unpacked_size is not None
    expected = unpacked_size if unpacked_size is not None else ALLOWANCE + RATIO * archive.stat().st_size
    with _damage(archive), _watched(archive) as file:
        is_zip = not _is_tar(file) and zipfile.is_zipfile(file)
        file.seek(0)
        for name, plain, size, write in _zip(file) if is_zip else _tar(file):
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts:
                raise UserError(archive, f"member {name!r} leads out of the folder", DO_NOT_USE)
            if not plain:
                raise UserError(archive, f"member {name!r} is a link or a device, or sparse", DO_NOT_USE)
            total, members = total + size, members + 1
            if members > ENTRIES:
                raise UserError(archive, f"has more than {ENTRIES} members", DO_NOT_USE)
            if total > expected * (BOMB if known else 1):
                what = f"unpacks to {total} bytes or more, expected {'' if known else 'at most '}{expected}"
                raise UserError(archive, what, DO_NOT_USE)
            disk.require_space(folder, size)
            write(folder)


class _Watched(io.FileIO):
    """A file that shows on a progress bar how far it was read."""

    def __init__(self, path: Path, bar: Progress) -> None:
        super().__init__(path)
        self.bar = bar

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self.bar.update(self.tell() - self.bar.done)
        return count


@contextlib.contextmanager
def _watched(path: Path) -> Iterator[IO[bytes]]:
    bar = Progress(f"unpack {path.name}", path.stat().st_size, "B")
    with bar, io.BufferedReader(_Watched(path, bar), CHUNK) as file:
        yield file


Member = tuple[str, bool, int, Callable[[Path], Any]]  # name, plain file or folder?, size, writer


class _Bounded:
    """The content of a tar, of which no more than HEADER bytes are read at once: only headers ask for more."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def read(self, size: int) -> bytes:
        if size > max(HEADER, CHUNK):
            raise tarfile.ReadError(f"a header of {size} bytes")
        content: bytes = self.file.read(size)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _Tar(tarfile.TarFile):
    """A tar whose headers are bounded."""

    def __init__(self, name: Any = None, mode: Any = "r", fileobj: Any = None, **options: Any) -> None:
        super().__init__(name, mode, _Bounded(fileobj), **options)


def _is_tar(file: IO[bytes]) -> bool:
    """Return whether a file begins as a tar does, of any compression."""
    try:
        _Tar.open(fileobj=file).close()
    except tarfile.TarError:
        return False
    finally:
        file.seek(0)
    return True


def _tar(file: IO[bytes]) -> Iterator[Member]:
    tar: Any
    with _Tar.open(fileobj=file) as tar:
        while (member := tar.next()) is not None:
            write = functools.partial(tar.extract, member, filter="data")
            plain = (member.isreg() or member.isdir()) and not member.issparse()
            yield member.name, plain, member.size, write
            tar.members.clear()  # or half a million of them stay in memory
        # tarfile takes a damaged header for the end: look for the true end, and for the checksum behind it
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("no end mark where the members end")
        while tar.fileobj.read(CHUNK):
            pass


def _zip(file: IO[bytes]) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        if len(archive.infolist()) > ENTRIES:
            raise zipfile.BadZipFile(f"more than {ENTRIES} members")
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
            info.filename = info.filename.replace("\\", "/")  # as some programs of Windows write it
            yield info.filename, plain, info.file_size, functools.partial(archive.extract, info)


@contextlib.contextmanager
def _damage(archive: Path) -> Iterator[None]:
    """Raise UserError about `archive` where a reader of archives raises any error because of bad content."""
    try:
        yield
    except UserError:
        raise
    except (OSError, EOFError, RuntimeError, ValueError, *DAMAGE) as error:
        known = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL)
        if isinstance(error, OSError) and error.errno not in (None, *known):  # None: the decompressors set none
            raise
        what = f"damaged, or neither tar nor zip: {error}"
        raise UserError(archive, what, "delete it and get it again") from error
