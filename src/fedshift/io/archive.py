"""Unpacking of archives that are not trusted: nothing outside the folder, no links, no devices, all or nothing."""

from __future__ import annotations

import contextlib
import errno
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..core.console import Progress
from ..core.errors import UserError
from . import disk

CHUNK = 1 << 20
BOMB = 1.2
"""An archive may grow to this many times its announced size."""
DO_NOT_USE = "nothing was unpacked, do not use this archive"
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error, IndexError, OverflowError)
BAD_NAMES = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL)
"""Error numbers that names of members cause. All others, such as a full disk, are not the archive's fault."""

Member = tuple[str, bool, int, Callable[[Path], Any]]
"""Name, whether it is a plain file or a folder, size in bytes, and the function that writes it into a folder."""


def extract(archive: Path, folder: Path, *, unpacked_size: int | None = None) -> None:
    """Unpack a tar (of any compression) or zip archive to `folder`, completely or not at all.

    Raises UserError for members that would be written elsewhere, for links, devices and sparse files, and for an
    archive that is damaged, or that grows far beyond `unpacked_size` bytes.
    """
    with disk.atomic_folder(folder) as new:
        unpack(archive, new, unpacked_size)


def unpack(archive: Path, folder: Path, unpacked_size: int | None) -> None:
    """Unpack into `folder`. Where this raises, the caller must discard the folder."""
    if not archive.is_file():
        raise UserError(archive, "no such file")
    disk.require_space(folder, unpacked_size or 0)
    total = 0
    bar = Progress(f"unpack {archive.name}", archive.stat().st_size, "B")
    with _damage(archive), archive.open("rb") as file, bar:
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
def _damage(archive: Path) -> Iterator[None]:
    """Raise UserError about `archive` where a reader of archives raises any error because of bad content."""
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
