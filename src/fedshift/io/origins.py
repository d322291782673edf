"""Origins of a dataset's raw files: servers that offer them, the Hugging Face Hub among them, and what was verified.

A dataset at the Hub holds its images in Parquet files (shards); they are written as the files of the original archive.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.console import say, track
from ..core.errors import UserError
from .download import USE_MIRROR, Source, SourceError, fetch
from .tables import read_table, write_table
from .text import require_regular

if TYPE_CHECKING:
    import pandas as pd

ENDPOINT = "HF_ENDPOINT"
"""Environment variable that names another server with the paths of the Hub; the Hub's own programs read it, too."""
ROWS = 64
"""Number of rows of a shard that are held in memory at once."""
BUFFER = 1 << 20
"""Bytes of a column that are read ahead: a row group is never held as a whole."""
NAME = "the copy at the Hugging Face Hub"
INDEX = "shards"
"""Name of the folder with a CSV file for each shard whose images were written."""
Row = dict[str, Any]
Place = Callable[[Row, int, Path], tuple[str, Row]]
"""Function from a row of a shard, its number and the shard to the path of the row's image ("" if it is not needed) and
the record of the row."""


@dataclass(frozen=True)
class Hub:
    """A dataset at the Hugging Face Hub, `owner/name`, at a revision (a full commit hash, so that it cannot change)."""

    dataset: str
    revision: str

    @property
    def page(self) -> str:
        """The address of the dataset's page at this revision."""
        return f"https://huggingface.co/datasets/{self.dataset}/tree/{self.revision}"

    def source(self, path: str, **known: Any) -> Source:
        """Return the file `path` of the dataset as a Source to download.

        `known` are further fields of Source, such as size and sha256. The server is the one in the environment variable
        HF_ENDPOINT if it is set. Raises UserError if that is not the address of a server.
        """
        server = os.environ.get(ENDPOINT, "").strip().rstrip("/") or "https://huggingface.co"
        if not server.startswith(("http://", "https://")):
            problem = f"{server!r} is not the address of a server"
            raise UserError(ENDPOINT, problem, "give one such as https://hub.example")
        url = f"{server}/datasets/{self.dataset}/resolve/{self.revision}/{path}"
        return Source(url, path.rpartition("/")[2], page=self.page, **known)

    def shards(self, split: str, count: int) -> list[Source]:
        """Return the sources of the `count` shards of a split, such as data/train-00000-of-00014.parquet."""
        return [self.source(f"data/{split}-{k:05}-of-{count:05}.parquet") for k in range(count)]


def rows(shard: Path, columns: Sequence[str], remedy: str = "delete it and start again") -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet shard in their order, as mappings from the columns to values.

    An image is a mapping with `bytes` and `path`. Memory holds ROWS rows and one page of each column, however large the
    row groups are. Raises UserError, with the row group, for content that is damaged, and for a column that is not
    there.
    """
    import pyarrow.parquet as pq

    require_regular(shard)
    with _damage(shard, "", remedy):
        file = pq.ParquetFile(shard, pre_buffer=False, buffer_size=BUFFER, page_checksum_verification=True)
    with file:
        names = file.schema_arrow.names
        missing = [name for name in columns if name not in names]
        if missing:
            problem = f"no column {', '.join(map(repr, missing))}: it has {', '.join(names)}"
            raise UserError(shard, problem, "check that it is a shard of this dataset")
        for group in range(file.num_row_groups):
            batches = file.iter_batches(ROWS, row_groups=[group], columns=list(columns), use_threads=False)
            while True:
                # only the reading is guarded: what a caller does with a row raises its own errors
                with _damage(shard, f"row group {group} ", remedy):
                    batch = next(batches, None)
                    found = [] if batch is None else batch.to_pylist()
                if not found:
                    break
                yield from found


def class_names(shard: Path, column: str) -> list[str]:
    """Return the names of the classes 0, 1, ... in a column of labels, from a shard's metadata of the Hub.

    Raises UserError if they cannot be read.
    """
    import pyarrow.parquet as pq

    with _damage(shard, "", "delete it and start again"):
        head = json.loads((pq.read_schema(shard).metadata or {})[b"huggingface"])
        return [str(name) for name in head["info"]["features"][column]["names"]]


@contextlib.contextmanager
def _damage(shard: Path, place: str, remedy: str) -> Iterator[None]:
    """Turn any error of the block, in which Arrow reads a shard, into UserError: Arrow's errors are of many classes.

    `place`, such as `row group 3 `, begins what the message says.
    """
    try:
        yield
    except FileNotFoundError:
        raise UserError(shard, "no such file", remedy) from None
    except MemoryError:
        raise
    except Exception as error:
        raise UserError(shard, f"{place}cannot be read: {str(error)[:200] or type(error).__name__}", remedy) from error


def write_images(
    source: Source, folder: Path, mirror: Path | None, columns: Sequence[str], place: Place
) -> pd.DataFrame:
    """Write the images of a shard into `folder`, with their bytes as they are, and return a table of their records.

    `place` returns the path and the record of a row; it reads the `columns` beside the column `image`, and raises
    ValueError for a row that does not belong to the dataset. The shard is taken from `mirror` or downloaded. A
    downloaded shard lies beside `folder`, and is removed once its images are written, or if it is damaged. A shard
    whose images were written before is not downloaded again. Raises UserError that names the row for a shard that is
    damaged.
    """
    import pandas as pd
    import pyarrow.parquet as pq

    index = folder / INDEX / f"{source.filename}.csv"
    # a kill between two shards loses one of them, and not the whole download
    if index.exists():
        return read_table(index)
    shard = fetch(source, folder.parent, mirror, copy=False)
    downloaded = shard.parent == folder.parent
    deleted = "it was deleted: start again to get it anew"
    remedy = deleted if downloaded else "check this file of the mirror, or get it again"
    try:
        require_regular(shard)
        with _damage(shard, "", remedy):
            number = int(pq.read_metadata(shard).num_rows)
        written = _written(shard, folder, columns, place, remedy)
        table = pd.DataFrame(track(written, f"unpack {shard.name}", number, "images"))
        # the index says that all images of this shard are on the disk
        os.sync()
        write_table(index, table)
    except UserError:
        if downloaded:
            shard.unlink(missing_ok=True)
        raise
    if downloaded:
        shard.unlink(missing_ok=True)
    return table


def _written(shard: Path, folder: Path, columns: Sequence[str], place: Place, remedy: str) -> Iterator[Row]:
    """Write the image of each row of a shard into `folder`, and yield the record of the row; see `write_images`."""
    for number, row in enumerate(rows(shard, ["image", *columns], remedy)):
        try:
            content = (row["image"] or {}).get("bytes")
            if not content:
                raise ValueError("has no image")
            path, record = place(row, number, shard)
        except (TypeError, AttributeError) as error:
            raise UserError(f"{shard}, row {number}", f"is damaged: {error}", remedy) from None
        except ValueError as error:
            raise UserError(f"{shard}, row {number}", str(error), remedy) from None
        if path:
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        yield record


@dataclass(frozen=True)
class Receipt:
    """A record of where raw files came from, what about them was verified, and what was not."""

    origin: str
    verified: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()

    def also(self, verified: str) -> Receipt:
        """Return a copy of this record that lists one more thing as verified."""
        return replace(self, verified=(*self.verified, verified))


@dataclass(frozen=True)
class Origin:
    """A place that holds all raw files of a dataset: the server of its authors, or a copy. Messages call it `name`.

    `take` gets the files, given the folder of raw files and the mirror directory, and returns a Receipt; if it is None,
    all `sources` are fetched. `licence` is the licence of this copy, if it is not that of the dataset. `folders` are
    the folders of the mirror directory in which the files may lie. `traces` are names in the folder of raw files that
    show, like partly downloaded sources, that a download from this origin has begun.
    """

    name: str
    sources: tuple[Source, ...]
    take: Callable[[Path, Path | None], Receipt] | None = None
    licence: str = ""
    folders: tuple[str, ...] = (".",)
    traces: tuple[str, ...] = ()

    def get(self, raw: Path, mirror: Path | None) -> Receipt:
        """Put the files into the folder `raw`, and return what was verified of them.

        Raises SourceError if the network does not give a file, and UserError for other faults.
        """
        if self.take:
            return self.take(raw, mirror)
        for source in self.sources:
            fetch(source, raw, mirror)
        return Receipt(self.name, *checked(self.sources))

    def shelf(self, mirror: Path | None) -> Path | None:
        """Return the folder of the mirror directory that holds files of this origin, or else that directory itself.

        Return None without a mirror.
        """
        if mirror is None:
            return None
        holding = (mirror / folder for folder in self.folders)
        return next((folder for folder in holding if any((folder / s.filename).exists() for s in self.sources)), mirror)

    def in_mirror(self, mirror: Path | None) -> bool:
        """Return whether the mirror directory holds a file of this origin."""
        folder = self.shelf(mirror)
        return folder is not None and any((folder / source.filename).exists() for source in self.sources)

    def begun(self, raw: Path) -> list[Path]:
        """Return the existing files and folders in `raw` that an unfinished download from this origin has left."""
        parts = [f".{source.filename}.{end}" for source in self.sources for end in ("part", "part.json")]
        return [raw / name for name in (*self.traces, *parts) if (raw / name).exists()]


def checked(sources: Sequence[Source]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what `fetch` verifies of the files `sources`, and what it cannot verify: two tuples of phrases."""
    sums = [source for source in sources if source.sha256 or source.md5]
    sizes = [source for source in sources if source.size is not None and source not in sums]
    neither = [source for source in sources if source not in (*sums, *sizes)]
    verified = [f"published checksum of {names}" for names in _named(sums)]
    verified += [f"published size of {names}" for names in _named(sizes)]
    unverified = [f"content of {names}: no checksum is published" for names in _named([*sizes, *neither])]
    return tuple(verified), tuple(unverified)


def _named(sources: Sequence[Source]) -> list[str]:
    """Return one phrase for the files in a list: the name of a single file, or their number; [] for no files."""
    return [f"{len(sources)} files"] if len(sources) > 1 else [source.filename for source in sources]


def obtain(origins: Sequence[Origin], raw: Path, mirror: Path | None) -> Receipt:
    """Put the raw files of a dataset into `raw` from the first origin that gives them, and return what was verified.

    Origins of which the mirror directory holds a file come first, then those with an unfinished download, then the
    others in their order. Raises UserError that names every origin if none gives its files, and at once for any other
    fault than a dead source, such as a full disk or a wrong file in the mirror.
    """
    order = sorted(origins, key=lambda origin: (not origin.in_mirror(mirror), not origin.begun(raw)))
    dead: dict[str, SourceError] = {}
    for k, origin in enumerate(order):
        try:
            receipt = origin.get(raw, mirror)
        except SourceError as fault:
            dead[origin.name] = fault
            if k + 1 < len(order):
                say(f"{origin.name} does not give the files ({fault.where}: {fault.what}); trying {order[k + 1].name}")
            continue
        _forget(origins, origin, raw)
        return receipt
    if len(dead) == 1:
        raise next(iter(dead.values()))
    whys = "; ".join(f"{name} ({fault.where}: {fault.what})" for name, fault in dead.items())
    raise UserError(f"{len(dead)} sources", f"none of them gives the files: {whys}", USE_MIRROR)


def _forget(origins: Sequence[Origin], used: Origin, raw: Path) -> None:
    """Remove the unfinished downloads from origins other than `used` in `raw`: they may be many gigabytes."""
    needed = {*used.begun(raw), *(raw / source.filename for source in used.sources)}
    begun = {path for origin in origins if origin is not used for path in origin.begun(raw)}
    for path in begun - needed:
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
