"""Copies of datasets at the Hugging Face Hub: addresses at a pinned revision, and Parquet shards in bounded memory."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from .download import Source
from .guards import require_regular

ENDPOINT = "HF_ENDPOINT"
"""Variable of the environment that names another server with the same paths, as the Hub's own programs read it."""
ROWS = 64
"""Rows of a shard that are held in memory at once."""
BUFFER = 1 << 20
"""Bytes of a column that are read ahead: a row group is never held as a whole."""


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
        """Return the file `path` of the dataset. `known` are further fields of Source, such as size and sha256.

        The address is that of the environment variable HF_ENDPOINT if it is set. Raises UserError if that is not the
        address of a server.
        """
        server = os.environ.get(ENDPOINT, "").strip().rstrip("/") or "https://huggingface.co"
        if not server.startswith(("http://", "https://")):
            raise UserError(
                ENDPOINT, f"{server!r} is not the address of a server", "give one such as https://hub.example"
            )
        url = f"{server}/datasets/{self.dataset}/resolve/{self.revision}/{path}"
        return Source(url, path.rpartition("/")[2], page=self.page, **known)

    def shards(self, split: str, count: int) -> list[Source]:
        """Return the shards of a split, as the Hub names them: data/train-00000-of-00014.parquet and so on."""
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


def number_of_rows(shard: Path, remedy: str = "delete it and start again") -> int:
    """Return the number of rows of a Parquet shard, which its end tells."""
    import pyarrow.parquet as pq

    require_regular(shard)
    with _damage(shard, "", remedy):
        return int(pq.read_metadata(shard).num_rows)


def class_names(shard: Path, column: str) -> list[str]:
    """Return the names of the classes 0, 1, ... of a column, which the Hub writes into the head of a shard."""
    import pyarrow.parquet as pq

    with _damage(shard, "", "delete it and start again"):
        head = json.loads((pq.read_schema(shard).metadata or {})[b"huggingface"])
        return [str(name) for name in head["info"]["features"][column]["names"]]


@contextlib.contextmanager
def _damage(shard: Path, place: str, remedy: str) -> Iterator[None]:
    """Raise UserError about a shard where Arrow, whose errors are of many classes, cannot read it."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(shard, "no such file", remedy) from None
    except MemoryError:
        raise
    except Exception as error:
        raise UserError(shard, f"{place}cannot be read: {str(error)[:200] or type(error).__name__}", remedy) from error
