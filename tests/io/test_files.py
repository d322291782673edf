"""Readers and writers: whole or not at all, and errors that name the file."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from patience import PATIENCE

from fedshift.core.errors import UserError
from fedshift.io import disk
from fedshift.io.arrays import read_tensors, write_tensors
from fedshift.io.tables import read_table, read_texts, write_table
from fedshift.io.text import YAML_LIMIT, read_json, read_yaml, write_json, write_text

Usage = namedtuple("Usage", "total used free")


class FullDisk(io.BytesIO):
    """A file on a disk without room."""

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def python(code: str, *args: object, **kwargs: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, timeout=PATIENCE, **kwargs
    )


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(PATIENCE)
    return process.pid


# atomic


def test_atomic_writes_into_folders_it_creates(tmp_path):
    path = tmp_path / "a" / "b" / "text.csv"
    with disk.atomic(path) as temporary:
        assert temporary.parent == path.parent
        assert temporary.name.startswith(".")
        assert temporary.suffix == ".csv"
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert names(path.parent) == ["text.csv"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_in_atomic_leaves_the_old_content_and_nothing_else(tmp_path, error):
    path = tmp_path / "text.txt"
    path.write_text("old")
    with pytest.raises(error), disk.atomic(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["text.txt"]


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "text.txt"
    with disk.atomic(path) as one, disk.atomic(path) as two:
        assert one != two
        one.write_text("one")
        two.write_text("two")
    assert path.read_text() == "one", "the outer block ends last"


def test_a_full_disk_is_a_user_error(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"old")
    message = r"weights\.bin: no space left on the disk; free some space"
    with pytest.raises(UserError, match=message), disk.atomic(path) as temporary:
        temporary.write_bytes(b"half")
        FullDisk().write(b"more")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["weights.bin"]


def test_a_disk_found_full_only_at_the_flush_is_a_user_error(tmp_path, monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UserError, match="no space left"):
        write_text(tmp_path / "x.txt", "x")
    assert names(tmp_path) == []


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    """Read-only folders and file systems, and broken disks: the file is named, and not its temporary one."""
    for number, words in ((errno.EACCES, "denied"), (errno.EROFS, "read-only"), (errno.EIO, "input/output error")):
        said = rf"/x: cannot be written: {words}; check the path"
        with pytest.raises(UserError, match=said), disk.atomic(tmp_path / "x") as temporary:
            raise OSError(number, words, str(temporary))
        with pytest.raises(UserError, match=said), disk.atomic(tmp_path / "x"):
            raise OSError(number, words)
    assert list(tmp_path.iterdir()) == []


def test_errors_about_other_files_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError), disk.atomic(tmp_path / "x"):
        raise PermissionError(errno.EACCES, "denied", str(tmp_path / "other"))


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("old")
    code = """
import os, pathlib, signal, sys
from fedshift.io import disk
with disk.atomic(pathlib.Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert python(code, path).returncode == -signal.SIGKILL
    assert path.read_text() == "old"


# atomic_folder


def test_atomic_folder_replaces_the_whole_folder(tmp_path):
    path = tmp_path / "deep" / "data"
    for content in ("old", "new"):
        with disk.atomic_folder(path) as new:
            assert new.parent == path.parent
            assert list(new.iterdir()) == []
            (new / f"{content}.txt").write_text(content)
    assert names(path) == ["new.txt"]
    assert names(path.parent) == ["data"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_in_atomic_folder_leaves_the_old_folder_and_nothing_else(tmp_path, error):
    path = tmp_path / "data"
    path.mkdir()
    (path / "old.txt").write_text("old")
    with pytest.raises(error), disk.atomic_folder(path) as new:
        (new / "half").mkdir()
        (new / "half" / "x").write_text("x")
        raise error
    assert names(tmp_path) == ["data"]
    assert (path / "old.txt").read_text() == "old"


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    path = tmp_path / "data"
    path.mkdir()
    (path / "old.txt").write_text("old")
    rename = Path.rename
    with pytest.raises(UserError, match="data: cannot be written: refused"), disk.atomic_folder(path) as new:

        def refuse(self, target):
            if self == new:
                raise OSError(errno.EIO, "refused")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", refuse)
    assert names(tmp_path) == ["data"]
    assert names(path) == ["old.txt"]


def test_atomic_folder_on_a_full_disk(tmp_path):
    with pytest.raises(UserError, match="data: no space left"), disk.atomic_folder(tmp_path / "data"):
        FullDisk().write(b"x")
    assert names(tmp_path) == []


def test_leftovers_of_dead_processes_are_removed_those_of_living_ones_and_others_stay(tmp_path):
    path, other = tmp_path / "data", tmp_path / "other"
    dead = dead_pid()
    stale, elsewhere = (p.with_name(f".{p.name}{disk._mark()}{dead}-00") for p in (path, other))
    living = path.with_name(f".{path.name}{disk._mark()}{os.getppid()}-00")
    for folder in (stale, elsewhere, living):
        folder.mkdir()
        (folder / "x").write_text("x")
    with disk.atomic_folder(path):
        pass
    assert names(tmp_path) == sorted(["data", elsewhere.name, living.name])


# space


def test_require_space_says_what_is_needed_and_what_is_free(tmp_path, monkeypatch):
    asked = []

    def usage(folder):
        asked.append(Path(folder))
        return Usage(10e9, 9e9, 1e9)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    folder = tmp_path / "not" / "yet" / "there"
    disk.require_space(folder, 10**9)
    with pytest.raises(UserError, match=r"there: needs 2\.50 GB of disk space, 1\.00 GB are free; free some"):
        disk.require_space(folder, 2_500_000_000)
    assert asked == [tmp_path, tmp_path], "the nearest folder that exists is asked"


# text and JSON


def test_text_and_json_round_trip(tmp_path):
    write_text(tmp_path / "t.txt", "é\nβ\r\n")
    assert (tmp_path / "t.txt").read_bytes() == "é\nβ\r\n".encode()
    content = {"z": 1, "a": [1.5, None, "é"]}
    write_json(tmp_path / "j.json", content)
    assert read_json(tmp_path / "j.json") == content
    text = (tmp_path / "j.json").read_text()
    assert text.endswith("}\n")
    assert text.startswith('{\n  "z": 1,\n  "a": [')


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_without_nan(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "j.json", {"x": value})
    assert names(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe\x00x", b"[" * 100_000])
def test_bad_json_names_the_file(tmp_path, content):
    (tmp_path / "j.json").write_bytes(content)
    with pytest.raises(UserError, match=r"j\.json: not a readable JSON file"):
        read_json(tmp_path / "j.json")


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (read_json, "a.json"),
        (read_yaml, "a.yaml"),
        (read_table, "a.csv"),
        (read_table, "a.parquet"),
        (read_tensors, "a.safetensors"),
    ],
)
def test_a_missing_file_is_named(tmp_path, read, name):
    with pytest.raises(UserError, match=re.escape(f"{name}: no such file")):
        read(tmp_path / name)


# tables


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    numbers = rng.random(500) * 10.0 ** rng.integers(-300, 300, 500)
    numbers[:3] = np.nan, np.inf, 0.1 + 0.2
    return pd.DataFrame({"x": numbers, "n": np.arange(500), "hospital": ["NA", "None"] * 250})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_round_trip_exactly(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    write_table(path, frame())
    pd.testing.assert_frame_equal(read_table(path), frame(), check_exact=True)
    assert list(read_table(path, ["hospital", "x"]).columns) == ["hospital", "x"]
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_equal_tables_are_equal_bytes(tmp_path, suffix):
    one, two = tmp_path / f"1.{suffix}", tmp_path / f"2.{suffix}"
    write_table(one, frame())
    write_table(two, frame())
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_missing_column_is_named(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    write_table(path, frame())
    with pytest.raises(UserError, match=rf"t\.{suffix}: no column 'hospitl'; it has x, n, hospital"):
        read_table(path, ["x", "hospitl"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("e.csv", b""),
        ("u.csv", b"a\n\xff\n"),
        ("r.csv", b'a,b\n1,"2\n'),
        ("t.parquet", b"PAR1"),
        ("e.parquet", b""),
    ],
)
def test_a_bad_table_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"{name}: not a readable table")):
        read_table(tmp_path / name)


def test_texts_are_the_cells_of_a_table_and_the_lines_that_they_stand_on(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbfA,,b\r\n\r\n007,x,NA\r\n"1\r\n2",,""\r\n  \r\n3\r\n')
    found = read_texts(path, str.casefold)
    assert found.index.tolist() == [3, 4, 7]
    assert found.index.name == "line"
    assert found.fillna("missing").to_dict("list") == {"a": ["007", "1\r\n2", "3"], "b": ["NA", "missing", "missing"]}
    path.write_bytes(b"A,b\n01,2\n\n,x\n")
    plain = read_table(path, ["b", "A"], text=True).fillna("missing")
    assert plain.to_dict("list") == {"b": ["2", "x"], "A": ["01", "missing"]}
    assert plain.index.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n\n1,2,3\n", "t.csv, line 4: has 3 cells, but the header has 2; put a cell that holds a comma into"),
        ("a,b,a\n1,2,3\n", "t.csv, line 1: the column 'a' appears twice; rename one of them"),
        ("a;b\n1;2;3\n", "t.csv, line 2: has 3 cells, but the header has 2; put a cell that holds a semicolon into"),
        ("sep=;\na;b\n1;2\n3;4;5\n", "t.csv, line 4: has 3 cells, but the header has 2"),
        ("# of 3 May\na,b\n1,2\n", "t.csv, line 2: has 2 cells, but the header has 1; line 1 seems to be no header"),
        ('a,b\n1,"2\n', "t.csv: not a readable table file: line 2: unexpected end of data"),
        ("\n\n", "t.csv: not a readable table file: it is empty"),
    ],
)
def test_what_no_table_of_texts_can_mean_is_refused(tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    for read in (read_texts, lambda path: read_table(path, ["a", "b"], text=True)):
        with pytest.raises(UserError) as caught:
            read(tmp_path / "t.csv")
        assert words in str(caught.value)


CELLS = {"Datei": ["a;1.png", "b.png", "c.png"], "Größe": ["0,35", "007", None], "Klinik": ["NA", "St. Mary, X", "Y"]}


@pytest.mark.parametrize(
    ("name", "delimiter", "above", "encoding"),
    [
        ("t.csv", ",", "", "utf-8"),
        ("t.csv", ";", "", "utf-8-sig"),
        ("t.csv", ";", "sep=;\r\n", "utf-8"),
        ("t.csv", ";", '"sep=;"\n', "utf-16"),
        ("t.csv", "|", "", "utf-8"),
        ("t.csv", ";", "", "windows-1252"),
        ("t.tsv", "\t", "", "utf-16"),
        ("t.txt", "\t", "", "utf-8"),
    ],
)
def test_a_table_is_read_as_programs_write_it(tmp_path, name, delimiter, above, encoding):
    path = tmp_path / name
    with path.open("w", newline="", encoding=encoding) as file:
        file.write(above)
        pd.DataFrame(CELLS).to_csv(file, sep=delimiter, index=False)
    found = read_texts(path, encoding=encoding if encoding.startswith("windows") else "utf-8")
    assert found.astype(object).where(found.notna(), None).to_dict("list") == CELLS
    first = 3 if above else 2
    assert found.index.tolist() == [first, first + 1, first + 2]


def test_a_table_of_excel_keeps_what_its_cells_say(tmp_path):
    """Whole numbers are whole, texts with zeros in front stay, blank rows count for the place of those below."""
    openpyxl = pytest.importorskip("openpyxl", reason="reading Excel needs openpyxl")
    book = openpyxl.Workbook()
    for row in ([], ["Datei", "Nr", None, "Klinik"], ["a.png", 12, "x", "NA"], [], ["b.png", "007", None, None]):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    found = read_texts(tmp_path / "t.xlsx")
    assert found.astype(object).where(found.notna(), None).to_dict("list") == {
        "Datei": ["a.png", "b.png"], "Nr": ["12", "007"], "Klinik": ["NA", None]
    }  # fmt: skip
    assert (found.index.name, found.index.tolist()) == ("row", [3, 5])
    (tmp_path / "t.xlsx").write_text("no workbook")
    with pytest.raises(UserError, match=r"t\.xlsx: not a readable Excel file"):
        read_texts(tmp_path / "t.xlsx")


def test_excel_without_its_reader_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(UserError, match=r"^reading .*t\.xlsx: needs packages that are not installed \(openpyxl\)"):
        read_texts(tmp_path / "t.xlsx")


def test_a_truncated_parquet_file_is_named(tmp_path):
    path = tmp_path / "t.parquet"
    write_table(path, frame())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"t\.parquet: not a readable table"):
        read_table(path)


def test_unknown_table_format(tmp_path):
    with pytest.raises(UserError, match=r"t\.xlsx: .*use \.csv or \.parquet"):
        write_table(tmp_path / "t.xlsx", frame())
    with pytest.raises(UserError, match=r"t\.xlsx: .*use \.csv or \.parquet"):
        read_table(tmp_path / "t.xlsx")


# YAML


def yaml(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_yaml_is_plain_data(tmp_path):
    text = "a: 1\nb: [x, 2.5, null]\nc: {a: 1, b: true}\n"
    expected = {"a": 1, "b": ["x", 2.5, None], "c": {"a": 1, "b": True}}
    assert read_yaml(yaml(tmp_path, text)) == expected
    assert read_yaml(yaml(tmp_path, "")) is None


def bomb() -> str:
    lines = ["a0: &a0 [lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (bomb(), 1, "anchors and aliases"),
        ("a: 1\nb: *x\n", 2, "anchors and aliases"),
        ("a: 1\nb:\n  c: &x {d: 1}\n", 3, "anchors and aliases"),
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' appears twice"),
        ("a:\n  b: 1\n  b: 1\n", 3, "the key 'b' appears twice"),
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "not valid YAML"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", 1, "not valid YAML"),
        ("? [a]\n: 1\n", 1, "not valid YAML"),
    ],
)
def test_bad_yaml_is_one_line_with_its_place(tmp_path, text, line, what):
    with pytest.raises(UserError, match=rf"c\.yaml, line {line}: {what}") as caught:
        read_yaml(yaml(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert caught.value.where == f"{tmp_path / 'c.yaml'}, line {line}", "said once, not wrapped again"


def test_time_to_read_yaml_grows_with_its_keys_and_not_with_their_square(tmp_path: Path) -> None:
    """Eight times as many keys would take 64 times as long if each were compared with all before it.

    Processor time counts, the least of three: other work on the machine empties the processor's caches.
    """

    def least(keys: int) -> float:
        path, seconds = yaml(tmp_path, "".join(f"k{i}: 1\n" for i in range(keys))), []
        for _ in range(3):
            began = time.process_time()
            assert len(read_yaml(path)) == keys
            seconds.append(time.process_time() - began)
        return min(seconds)

    assert least(40_000) < 25 * least(5_000)


@pytest.mark.parametrize("text", ["a: 2001-13-45", "a: !!bool x", "a: !!timestamp x", "a: \x07", b"a: \xff\xfe"])
def test_yaml_that_breaks_the_parser_names_the_file(tmp_path, text):
    with pytest.raises(UserError, match=r"c\.yaml: not a readable YAML file"):
        read_yaml(yaml(tmp_path, text))


@pytest.mark.parametrize("deep", ["[" * 50_000, "- " * 50_000, "{a: " * 50_000])
def test_values_too_deep_inside_each_other_are_refused(tmp_path, deep):
    with pytest.raises(UserError, match=r"c\.yaml, line 1: more than 100 lists or mappings inside each other"):
        read_yaml(yaml(tmp_path, deep))
    assert read_yaml(yaml(tmp_path, "[" * 100 + "]" * 100))


def test_a_huge_yaml_file_is_not_read(tmp_path):
    path = yaml(tmp_path, "#" * (YAML_LIMIT + 1))
    with pytest.raises(UserError, match=r"c\.yaml: 1000001 bytes are too many"):
        read_yaml(path)
    path.write_text("#" * YAML_LIMIT)
    assert read_yaml(path) is None


# tensors


def tensors() -> dict[str, torch.Tensor]:
    shared = torch.arange(6.0).reshape(2, 3)
    return {"b.weight": shared.T, "a.bias": shared[0], "n": torch.tensor(3), "empty": torch.zeros(0, 2)}


METADATA = {"round": "3", "algorithm": "fedbn", "note": "é", "seed": "0", "model": "densenet"}


def test_tensors_round_trip(tmp_path):
    path = tmp_path / "w.safetensors"
    given = tensors()
    given["b.weight"].requires_grad_()
    write_tensors(path, given, METADATA)
    found, metadata = read_tensors(path)
    assert metadata == METADATA
    assert list(found) == sorted(given)
    for name, tensor in given.items():
        assert torch.equal(found[name], tensor.detach())
        assert found[name].dtype == tensor.dtype
    assert names(tmp_path) == [path.name]


def test_tensors_without_metadata(tmp_path):
    write_tensors(tmp_path / "w.safetensors", {"a": torch.ones(1)}, {})
    assert read_tensors(tmp_path / "w.safetensors")[1] == {}


def test_any_flipped_bit_in_tensors_is_noticed(tmp_path):
    path, rng = tmp_path / "w.safetensors", np.random.default_rng(0)
    write_tensors(path, {"a": torch.arange(6.0), "b": torch.ones(3)}, METADATA)
    content = path.read_bytes()
    for place in range(len(content)):
        spoilt = bytearray(content)
        spoilt[place] ^= 1 << rng.integers(8)
        path.write_bytes(spoilt)
        with pytest.raises(UserError, match=re.escape(str(path))):
            read_tensors(path)


def test_equal_tensors_are_equal_bytes_in_any_order(tmp_path):
    paths = [tmp_path / f"{i}.safetensors" for i in range(6)]
    for path in paths[:3]:
        write_tensors(path, {"a": torch.zeros(2), "b": torch.ones(3)}, METADATA)
    for path in paths[3:]:
        write_tensors(path, {"b": torch.ones(3), "a": torch.zeros(2)}, dict(reversed(METADATA.items())))
    assert len({path.read_bytes() for path in paths}) == 1


def test_other_readers_understand_the_file(tmp_path):
    from safetensors.torch import load_file

    write_tensors(tmp_path / "w.safetensors", tensors(), METADATA)
    found = load_file(tmp_path / "w.safetensors")
    assert torch.equal(found["b.weight"], tensors()["b.weight"])


@pytest.mark.parametrize("keep", [0, 4, 40, -1])
def test_truncated_tensors_are_named(tmp_path, keep):
    path = tmp_path / "w.safetensors"
    write_tensors(path, tensors(), METADATA)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"w\.safetensors: not a readable safetensors file"):
        read_tensors(path)


def test_the_modules_import_cheaply():
    code = """
import sys, fedshift.io.tables, fedshift.io.download
print(sorted({"torch", "pandas", "yaml", "requests", "safetensors", "pyarrow"} & set(sys.modules)))
"""
    assert python(code, check=True).stdout.strip() == b"[]"


def test_who_only_looks_at_a_lock_for_a_moment_is_waited_for(tmp_path, monkeypatch):
    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            fcntl.flock(looking, fcntl.LOCK_UN)

    pauses: list[float] = []
    path = tmp_path / "lock"
    path.touch()
    with path.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(disk, "time", SimpleNamespace(sleep=pause))
        with disk.locked(path):
            assert len(pauses) == 3


def test_a_lock_is_held_by_one_process_and_freed_when_it_ends(tmp_path):
    path = tmp_path / "run" / "lock"
    with disk.locked(path):
        other = f"from pathlib import Path; from fedshift.io import disk\nwith disk.locked(Path({str(path)!r})): pass"
        done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
        assert "another process is at work here" in done.stderr
    with disk.locked(path):
        pass


def test_a_disk_without_locks_is_one_line(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    words = r"run: its file system has no locks: .*; mount it with flock, or choose"
    with pytest.raises(UserError, match=words), disk.locked(tmp_path / "run" / "lock"):
        raise AssertionError("nothing is to be done there")


def test_texts_that_a_spreadsheet_would_run_are_inert_in_a_csv_and_come_back(tmp_path: Path) -> None:
    texts = ["=1+1", "'=x", "''-y", "'tis", "-", "@a", "plain", None]
    table = pd.DataFrame({"site": texts, "n": [-1.5] * len(texts)})
    write_table(tmp_path / "t.csv", table)
    cells = [line.partition(",")[0] for line in (tmp_path / "t.csv").read_text().splitlines()[1:]]
    assert cells == ["'=1+1", "''=x", "'''-y", "'tis", "'-", "'@a", "plain", ""]
    for read in (read_table(tmp_path / "t.csv"), read_table(tmp_path / "t.csv", text=True)):
        assert [None if pd.isna(cell) else cell for cell in read["site"]] == texts
    write_table(tmp_path / "t.parquet", table)
    assert read_table(tmp_path / "t.parquet")["site"].tolist()[0] == "=1+1"
