"""Forgeries of every file of a finished study: what `fedshift verify` says, and what it says with `--deep`.

`python tests/faults/forge.py [FILE]` prints a table, for files whose paths have FILE in them, and ends with 1 where a
forgery is not noticed. A forged file has a new record of its checksum, unless the name of the forgery says otherwise.
Whoever changes a file and records it anew is found only by what follows from other files.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import misread
import numpy as np
import pandas as pd
import small

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.io import checksums
from fedshift.io.arrays import read_tensors, write_tensors
from fedshift.io.paths import Paths, checksum
from fedshift.io.tables import read_table, write_table
from fedshift.io.text import write_json
from fedshift.planning.call import outputs

Change = Callable[[Path], None]
NAME = "study.yaml"


class SkippedError(Exception):
    """A forgery that does not apply to a file."""


def edited(file: Path) -> None:
    """One value is another one: the last number of a table, a tensor, a text or a picture."""
    if file.suffix in (".parquet", ".csv"):
        in_table(file, lambda table: altered(table, lambda value: value / 2 + 0.3))
    elif file.suffix == ".safetensors":
        tensors, metadata = read_tensors(file)
        name = next((key for key, value in tensors.items() if value.is_floating_point()), None)
        if name is None:
            raise SkippedError
        write_tensors(file, tensors | {name: tensors[name] + 1}, metadata)
    elif file.suffix == ".npy":
        array = np.load(file)
        array.flat[0] = 255 - array.flat[0]
        np.save(file, array)
    else:
        text = file.read_text(encoding="utf-8")
        digits = list(re.finditer(r"\d", text))
        if not digits:
            raise SkippedError
        at = digits[len(digits) // 2].start()
        file.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :], encoding="utf-8")


def altered(table: pd.DataFrame, change: Callable[[float], float]) -> pd.DataFrame:
    """A table in which the first number of its last column with fractions is another one."""
    numbers = [column for column in table if table[column].dtype.kind == "f" and table[column].notna().any()]
    if not numbers:
        raise SkippedError
    row = table[numbers[-1]].first_valid_index()
    table.loc[row, numbers[-1]] = change(table.loc[row, numbers[-1]])
    return table


def in_table(file: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    if file.suffix not in (".parquet", ".csv"):
        raise SkippedError
    table = read_table(file)
    about = dict(table.attrs)
    if not len(table):
        raise SkippedError
    table = change(table)
    table.attrs = about
    write_table(file, table)


def other_site(table: pd.DataFrame) -> pd.DataFrame:
    if "site" not in table:
        raise SkippedError
    table.loc[0, "site"] = next(site for site in ("A", "B") if site != table.loc[0, "site"])
    return table


def anonymous(file: Path) -> None:
    """The same numbers, written by another program, which knows nothing of identities."""
    if file.suffix != ".parquet":
        raise SkippedError
    edited(file)
    unnamed(file)


def unnamed(file: Path) -> None:
    """The same table, written by another program."""
    table = read_table(file)
    table.attrs = {}
    table.to_parquet(file, index=False)


def of_another_run(file: Path) -> None:
    if file.parent.parent.name != "runs":
        raise SkippedError
    other = next(folder for folder in file.parent.parent.iterdir() if folder != file.parent)
    shutil.copyfile(other / file.name, file)
    shutil.copyfile(checksum(other / file.name), checksum(file))


FORGERIES: dict[str, Change] = {
    "edited, old record": edited,
    "edited": edited,
    "edited by another program": anonymous,
    "removed": Path.unlink,
    "of another run": of_another_run,
    "rows doubled": lambda file: in_table(file, lambda table: pd.concat([table, table], ignore_index=True)),
    "rows dropped": lambda file: in_table(file, lambda table: table.iloc[: len(table) // 2]),
    "NaN": lambda file: in_table(file, lambda table: altered(table, lambda value: float("nan"))),
    "another site": lambda file: in_table(file, other_site),
}
AS_IT_WAS = ("edited, old record", "removed", "of another run")
"""Forgeries whose record of a checksum is not made anew."""


def one_patient(file: Path) -> None:
    in_table(file, lambda table: table.assign(patient="the same"))


def json_value(*keys: str, value: Any) -> Change:
    def change(file: Path) -> None:
        content = json.loads(file.read_text())
        inner = content
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        write_json(file, content)

    return change


def better(file: Path) -> None:
    """The probability of the right class is higher, and that of the other lower, for every image."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        right = table["label"].to_numpy() == 1
        table["p1"] = np.where(right, 0.99, 0.01)
        table["p0"] = 1 - table["p1"]
        return table

    in_table(file, change)


def better_column(column: str) -> Change:
    return lambda file: in_table(file, lambda table: table.assign(**{column: table[column] * 0.9}))


NAMED: dict[tuple[str, str], Change] = {
    ("samples.parquet", "all of one patient"): one_patient,
    ("pixels.parquet", "no contrast"): lambda file: in_table(file, lambda table: table.assign(flat=True)),
    ("predictions", "all of them right"): better,
    ("rounds.parquet", "lower losses"): better_column("loss"),
    ("summary.csv", "other means"): better_column("mean"),
    ("effects.csv", "other means"): better_column("mean"),
    ("headline.json", "another answer"): json_value("lead", value="It works everywhere."),
    ("card.json", "other classes"): json_value("classes", value=["well", "ill"]),
    ("manifest.json", "another commit"): json_value("git", value={"commit": "0" * 40, "dirty": False}),
}
"""Forgeries of one file, by a part of its name."""

TRUSTED = {"source.json", "card.json"}
"""Files whose other numbers nothing shows where the record is made anew. docs/what-can-go-wrong.md names them."""


class Forger:
    """A finished study in a folder, whose files are forged one after the other, and then put back."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / NAME).exists():
            small.images(root / "images", size=8, each=20)
            (root / NAME).write_text(misread.STUDY)
        with self.here():
            plan = study.load(Path(NAME), "paper")
            if not Paths().page("index").exists():
                for words in small.commands(plan, NAME):
                    if (code := cli.main(words)) != 0:
                        raise RuntimeError(f"{words} ends with {code}")
            self.outputs = list(outputs(plan, Paths()))

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        with contextlib.chdir(self.root):
            yield

    def verify(self, *options: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            code = cli.main(["verify", NAME, *options])
        return code, out.getvalue()

    @contextlib.contextmanager
    def forged(self, file: Path, change: Change, record: bool = True) -> Iterator[None]:
        """Forge a file inside the context, and put it back, with its record and its time."""
        record_file = checksum(file)
        content, recorded, times = file.read_bytes(), record_file.read_bytes(), file.stat()
        try:
            change(file)
            if record:
                checksums.record(file)
            yield
        finally:
            file.write_bytes(content)
            record_file.write_bytes(recorded)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def said(self, forgeries: Mapping[Path, Change], how: str) -> tuple[str, str]:
        """Return what notices some forged files, `verify`, `deep` or `nothing`, and all that was said."""
        with contextlib.ExitStack() as stack:
            for file, change in forgeries.items():
                stack.enter_context(self.forged(file, change, how not in AS_IT_WAS))
            for word, options in (("verify", ()), ("deep", ("--deep",))):
                code, said = self.verify(*options)
                if code:
                    return word, said
        return "nothing", said

    def applies(self, change: Change, file: Path) -> bool:
        """Return whether a file can be forged in a way."""
        try:
            with self.forged(file, change, record=False):
                return True
        except SkippedError:
            return False

    def trials(self, only: str = "") -> Iterator[tuple[Path, str, str]]:
        """Yield a file, how it was forged and what notices it; of several runs, for the first.

        All that the report writes is forged at the same time, and each of its files must be named.
        """
        files = {file: output.rule for output in self.outputs for file in output.every if only in str(file)}
        reported = [file for file, rule in files.items() if rule == "report"]
        for how, change in FORGERIES.items():
            at_once = [file for file in reported if self.applies(change, file)]
            if at_once:
                word, said = self.said(dict.fromkeys(at_once, change), how)
                yield from ((file, how, word if f"{file}: " in said else "nothing") for file in at_once)
        seen = set()
        for file, rule in files.items():
            if rule == "report" or (rule, file.name) in seen:
                continue
            seen.add((rule, file.name))
            further = {how: change for (part, how), change in NAMED.items() if part in file.name}
            for how, change in (FORGERIES | further).items():
                if self.applies(change, file):
                    word, said = self.said({file: change}, how)
                    yield file, how, word if f"{file}: " in said else "nothing"


def table(found: list[tuple[Path, str, str]]) -> str:
    """Return the table of files and forgeries, in Markdown."""
    kinds = list(dict.fromkeys(how for _, how, _ in found))
    said = {(file, how): what for file, how, what in found}
    lines = [f"| file | {' | '.join(kinds)} |", "|---|" + "---|" * len(kinds)]
    for file in dict.fromkeys(file for file, _, _ in found):
        cells = [said.get((file, how), "") for how in kinds]
        lines.append(f"| {file.parent.name}/{file.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(only: str = "") -> int:
    with tempfile.TemporaryDirectory() as folder:
        forger = Forger(Path(folder))
        with forger.here():
            found = list(forger.trials(only))
    print(table(found))
    wrong = [f"{file}, {how}" for file, how, what in found if what == "nothing" and file.name not in TRUSTED]
    print(f"{len(found)} forgeries, {len(wrong)} not noticed of files that are not taken on trust", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
