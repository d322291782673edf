"""Images from the Parquet shards of a copy at the Hugging Face Hub, written as the files of the original archive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.console import track
from ..core.errors import UserError
from ..io.download import Source, fetch
from ..io.origins import number_of_rows, rows
from ..io.tables import read_table, write_table

if TYPE_CHECKING:
    import pandas as pd

NAME = "the copy at the Hugging Face Hub"
INDEX = "shards"
"""The folder that remembers which shards were written."""
Row = dict[str, Any]
Place = Callable[[Row, int, Path], tuple[str, Row]]
"""Returns, for a row, its number and its shard, the path of the image (empty: not needed) and the record of the row."""


def write_images(
    source: Source, folder: Path, mirror: Path | None, columns: Sequence[str], place: Place
) -> pd.DataFrame:
    """Write the images of a shard into `folder`, with their bytes as they are, and return a record of each row.

    `columns` are those that `place` reads beside `image`; it raises ValueError for a row that does not belong to the
    dataset. A downloaded shard lies beside `folder`, and is removed once it is written, or where it is damaged. A shard
    that was written is not asked for again. Raises UserError that names the row for a shard that is damaged.
    """
    import pandas as pd

    index = folder / INDEX / f"{source.filename}.csv"
    # a kill between two shards loses one of them, and not the whole download
    if index.exists():
        return read_table(index)
    shard = fetch(source, folder.parent, mirror, copy=False)
    downloaded = shard.parent == folder.parent
    remedy = "check this file of the mirror, or get it again"
    if downloaded:
        remedy = "it was deleted: start again to get it anew"
    try:
        written = _written(shard, folder, columns, place, remedy)
        table = pd.DataFrame(track(written, f"unpack {shard.name}", number_of_rows(shard, remedy), "images"))
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
    """Write each image of a shard, and yield the record of its row."""
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
