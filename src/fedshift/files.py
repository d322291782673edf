"""Readers and writers. What is written is there whole or not at all (see `disk`); what is unreadable is named."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .disk import atomic
from .errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch

YAML_LIMIT = 1_000_000
LARGEST = 2**63
"""Beyond every number that a YAML file may hold."""
UTF8 = "save it as UTF-8"


@contextlib.contextmanager
def _readable(path: Path, kind: str, *more: type[Exception]) -> Iterator[None]:
    """Turns the errors of a reader into a UserError about `path`."""
    errors: tuple[type[Exception], ...] = (OSError, ValueError, RecursionError, *more)
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(path, "no such file") from None
    except errors as error:
        remedy = UTF8 if isinstance(error, UnicodeDecodeError) and kind == "table" else ""
        raise UserError(path, f"not a readable {kind} file: {error}", remedy) from error


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, obj: Any) -> None:
    """Writes JSON, keys in the order given. NaN and infinity, which JSON lacks, are a ValueError."""
    write_text(path, json.dumps(obj, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    with _readable(path, "JSON"):
        return json.loads(Path(path).read_bytes())


def _is_csv(path: Path) -> bool:
    if Path(path).suffix not in (".csv", ".parquet"):
        raise UserError(path, "a table in an unknown format", "use .csv or .parquet")
    return Path(path).suffix == ".csv"


def write_table(path: Path, df: pd.DataFrame) -> None:
    """Writes a table, without its index, as CSV or Parquet by suffix. Floats keep all their digits."""
    is_csv = _is_csv(path)
    with atomic(path) as temporary:
        if is_csv:
            df.to_csv(temporary, index=False, lineterminator="\n")
        else:
            df.to_parquet(temporary, engine="pyarrow", index=False)


def read_table(path: Path, columns: Sequence[str] | None = None, *, text: bool = False) -> pd.DataFrame:
    """Reads a table, or the named columns of it in that order.

    In a CSV only an empty cell is missing: `NA` or `None` may well be the name of a hospital. With `text`, a CSV's
    other cells are taken as they stand, as by `read_texts`.
    """
    import pandas as pd
    import pyarrow.parquet as pq

    is_csv = _is_csv(path)
    if is_csv and text:
        found = read_texts(path).reset_index(drop=True)
        return found[_wanted(path, [*found.columns], columns)]
    with _readable(path, "table"):
        known = list(pd.read_csv(path, nrows=0).columns) if is_csv else pq.read_schema(path).names
        wanted = _wanted(path, known, columns)
        if not is_csv:
            return pd.read_parquet(path, engine="pyarrow", columns=wanted)
        options: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
        if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
            options["float_precision"] = "round_trip"  # later versions read all digits by themselves
        return pd.read_csv(path, usecols=wanted, **options)[wanted]


def _wanted(path: Path, known: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    wanted = list(known if columns is None else columns)
    if missing := [c for c in wanted if c not in known]:
        raise UserError(path, f"no column {', '.join(map(repr, missing))}", f"it has {', '.join(known)}")
    return wanted


def read_texts(path: Path, called: Callable[[str], str] = str) -> pd.DataFrame:
    """A table whose cells are text as it stands: `007` stays `007`, and only an empty cell is missing.

    `called` makes the name of a column of what its head says; columns without a name are left out. The index tells
    where a row stands: its `line` in a CSV, its `row` in Parquet. Raises UserError where a column stands twice, and,
    with the line, where a row of a CSV has more cells than the header.
    """
    import pandas as pd

    if _is_csv(path):
        return _csv_texts(path, called)
    table = read_table(path)
    names, texts = [called(str(c)) for c in table], table.astype(str).where(table.notna(), None)
    _require_names(path, names)
    return texts.set_axis(names, axis=1).set_axis(pd.RangeIndex(1, len(table) + 1, name="row"))


def _csv_texts(path: Path, called: Callable[[str], str]) -> pd.DataFrame:
    """`read_texts` of a CSV; pandas' own reader renames what stands twice, and shifts or drops what is too many."""
    import pandas as pd

    with _readable(path, "table"), Path(path).open(newline="", encoding="utf-8-sig") as file:
        rows = _rows(file)
        first, head = next(rows, (0, []))
        if not head:
            raise ValueError("it is empty")
        _require_names(f"{path}, line {first}", names := [called(name) for name in head])
        lines, columns = list[int](), [list[str | None]() for _ in names]
        for line, cells in rows:
            if len(cells) > len(names):
                what = f"has {len(cells)} cells, but the header has {len(names)}"
                raise UserError(f"{path}, line {line}", what, "put a cell that holds a comma into quotes")
            lines.append(line)
            for column, cell in itertools.zip_longest(columns, cells):
                column.append(cell or None)
    named = {name: column for name, column in zip(names, columns, strict=True) if name}
    return pd.DataFrame(named, index=pd.Index(lines, dtype="int64", name="line"))


def _rows(file: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV, each with the line that it begins on. Blank lines are passed over."""
    reader, line = csv.reader(file, strict=True), 1
    try:
        for cells in reader:
            if len(cells) > 1 or "".join(cells).strip():
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"line {line}: {error}") from None


def _require_names(where: object, names: list[str]) -> None:
    """Raise UserError for a header that does not name columns, each once."""
    if "\0" in "".join(names):
        raise UserError(where, "not a readable table file: every other byte is 0, as in UTF-16", UTF8)
    for mark, word in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and mark in names[0]:
            raise UserError(where, f"has {word} between its columns", "separate them with commas")
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise UserError(where, f"the column {twice[0]!r} stands twice", "rename one of them")


def require_own(out: Path, marker: str, option: str) -> None:
    """Raise UserError for a folder, or a file, that holds anything which the file `marker` in it does not list.

    `option` is how another folder is chosen.
    """
    if not out.exists():
        return
    known = read_json(out / marker) if (out / marker).is_file() else None
    listed = known.get("files") if isinstance(known, dict) else None
    own = {marker, *map(str, listed if isinstance(listed, list) else ())}
    found = (path.relative_to(out).as_posix() for path in out.rglob("*")) if out.is_dir() else iter((out.name,))
    if foreign := next((name for name in found if name not in own), ""):
        what = f"holds {foreign}, which fedshift did not write there"
        raise UserError(out, what, f"choose another folder with {option}, or remove it yourself")


def map_array(path: Path) -> np.ndarray:
    """The array of a .npy file, memory-mapped. What holds Python objects is refused unread."""
    import numpy as np

    with _readable(path, "array", EOFError):
        found: np.ndarray = np.load(path, mmap_mode="r")  # by default it refuses pickles
        if not hasattr(found, "shape"):
            raise ValueError("an archive of several")
        return found


def read_yaml(path: Path) -> Any:
    """The content of a YAML file: plain data, as JSON has it; no anchors or aliases, no key twice, at most 1 MB."""
    import yaml

    def refuse(node: Any, what: str) -> UserError:
        return UserError(f"{path}, line {node.start_mark.line + 1}", what)

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            if getattr(event, "anchor", None) is not None:
                raise refuse(event, "anchors and aliases (& and *) are not allowed; write the value out")
            return super().compose_node(parent, index)

        def compose_mapping_node(self, anchor: Any) -> Any:
            node, seen = super().compose_mapping_node(anchor), set()
            for key, _ in node.value:
                if (name := str(key.value)) in seen:
                    raise refuse(key, f"the key {name!r} appears twice; remove one")
                seen.add(name)
            return node

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            value = super().construct_object(node, deep)
            if not isinstance(value, dict | list | str | int | float | None):
                raise refuse(node, f"a {type(value).__name__} is not allowed; put text in quotes")
            if isinstance(value, str) and self.NON_PRINTABLE.search(value):
                raise refuse(node, "a character that cannot be printed")
            if isinstance(value, int | float) and not abs(value) < LARGEST:
                raise refuse(node, "not a number, or too large a one")
            return value

    with _readable(path, "YAML", yaml.YAMLError, KeyError, AttributeError):
        if (size := Path(path).stat().st_size) > YAML_LIMIT:
            raise UserError(path, f"{size} bytes are too many for a YAML file (limit {YAML_LIMIT})")
        try:
            return yaml.load(Path(path).read_bytes(), Loader)
        except yaml.MarkedYAMLError as error:
            if error.problem_mark is None:
                raise
            where = f"{path}, line {error.problem_mark.line + 1}"
            raise UserError(where, f"not valid YAML: {error.problem}") from error


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Writes tensors as safetensors, with a checksum: equal tensors and metadata, equal bytes."""
    import torch
    from safetensors.torch import save

    own = {"memory_format": torch.contiguous_format}  # tensors that share memory are not accepted
    content = save({k: tensors[k].detach().cpu().clone(**own) for k in sorted(tensors)})
    # metadata are added here: the library lists them in an order that differs from process to process
    end = 8 + int.from_bytes(content[:8], "little")
    data = memoryview(content)[end:]
    header = json.loads(content[8:end]) | {_META: dict(sorted(metadata.items()))}
    header[_META][_SUM] = _checksum(header, data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(data)


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors (on the CPU) and the metadata of a file that `write_tensors` wrote.

    Raises UserError where it is no safetensors file, or not the bytes that were written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    with _readable(path, "safetensors", SafetensorError, KeyError, TypeError, AttributeError):
        content = Path(path).read_bytes()
        tensors = load(content)
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        metadata = header.get(_META, {})
        if _SUM not in metadata:
            raise UserError(path, "has no checksum: another program, or an earlier version, wrote it", "make it anew")
        if metadata.pop(_SUM) != _checksum(header, memoryview(content)[end:]):
            raise UserError(path, "is damaged: its checksum does not agree", "remove it and make it anew")
        return {k: tensors[k] for k in sorted(tensors)}, metadata


_META, _SUM = "__metadata__", "crc32"


def _checksum(header: dict[str, Any], data: memoryview) -> str:
    """Of a safetensors file, apart from where the checksum itself stands."""
    return f"{zlib.crc32(data, zlib.crc32(json.dumps(header, sort_keys=True).encode())):08x}"
