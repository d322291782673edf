"""Damage to the files of a finished study: each must be noticed by the next command that reads the file, or by verify.

`python tests/faults/damage.py`, or `make faults`. Every file that a rule writes is flipped in one bit, cut, emptied and
deleted, each with a new time and with the old one. `fedshift verify` must
name the file. Each command that reads it must refuse, name it and the call that mends it, and change no file.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import small
from harm import DAMAGES, damage

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.io.paths import Paths
from fedshift.planning.call import Output, outputs

NAME = "study.yaml"
SCALELESS = ("index",)
IN_FOLDERS = ("tables", "partitions", "controls")
"""Folders whose files have names that occur elsewhere."""


READERS = {
    "download": ("prepare",),
    "prepare": ("control", "train", "predict"),
    "partition": ("control", "train", "predict", "score", "report"),
    "control": ("report",),
    "predict": ("score", "report", "figure"),
    "report": ("figure",),
}
"""The commands that read what a rule writes, where they are the same for all its files."""
READERS_OF = {
    "samples.parquet": ("partition", "control", "train", "predict", "score", "report", "figure"),
    "pixels.parquet": ("report",),
    "card.json": ("control", "train", "predict", "report"),
    "spec.json": ("predict",),
    "model.safetensors": ("predict",),
    "clients.safetensors": ("predict",),
    "rounds.parquet": ("report", "figure"),
    "manifest.json": ("report",),
    "scores.csv": ("report", "figure"),
    "missing.json": ("report",),
    "headline.json": (),
    "study.html": (),
}
"""The commands that read a file, by its name."""


@dataclass
class Table:
    """Who noticed what, by the file's name and the damage; `silent` lists what nobody noticed."""

    noticed: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    trials: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = ["| file | " + " | ".join(DAMAGES) + " |", "|---|" + "---|" * len(DAMAGES)]
        for name, by in self.noticed.items():
            cells = [", ".join(dict.fromkeys(by.get(kind, []))) for kind in DAMAGES]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        counts = ", ".join(f"{number} {kind}" for kind, number in self.trials.items())
        return "\n".join([*lines, "", f"{counts}; {len(self.silent)} not noticed", *self.silent])


class Finished:
    """A finished study in a folder of its own, which is the working folder inside `here`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        small.images(root / "images")
        (root / NAME).write_text(small.STUDY)
        with self.here():
            self.plan = study.load(Path(NAME), "paper")
            (self.run,) = self.plan.runs.values()
            self.words: dict[str, list[str]] = {}
            for words in small.commands(self.plan, NAME):
                self.words[words[0]] = words
            self.words["verify"] = ["verify", NAME]
            for command in self.words:
                code, said = self.call(command)
                if code != 0:
                    raise RuntimeError(f"{command} ends with {code}: {said}")
            self.outputs = list(outputs(self.plan, Paths()))

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        with contextlib.chdir(self.root):
            yield

    def call(self, command: str, *options: str) -> tuple[int, str]:
        """Return the exit code of a command, and all that it printed."""
        scale = [] if command in SCALELESS else ["--scale", "paper"]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            code = cli.main([*self.words[command], *options, *scale])
        return code, out.getvalue()

    def contents(self) -> dict[Path, bytes]:
        """Return the bytes of all results. Records of checksums and logs of rounds do not count."""
        every = [path for folder in ("results", "reports", "resources") for path in Path(folder).rglob("*")]
        return {path: path.read_bytes() for path in every if path.is_file() and not path.name.startswith(".")}

    @contextlib.contextmanager
    def damaged(self, file: Path, kind: str, keep_time: bool) -> Iterator[None]:
        """Damage a file inside the context, with a new time or with its old one; put it back with its time after it."""
        before, content = file.stat(), file.read_bytes()
        damage(file, kind, keep_time)
        try:
            yield
        finally:
            file.write_bytes(content)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    def trial(self, file: Path, kind: str, keep_time: bool, commands: tuple[str, ...], table: Table) -> None:
        """Damage one file, and see which commands notice it."""
        table.trials[kind] += 1
        name = f"{file.parent.name}/{file.name}" if file.parent.name in IN_FOLDERS else file.name
        row = table.noticed.setdefault(name, {}).setdefault(kind, [])
        with self.damaged(file, kind, keep_time):
            before = self.contents()
            for command in (*commands, "verify"):
                if kind == "delete" and command != "verify":
                    continue  # what absence means is the reader's matter
                what = f"{file}, {kind}, {'old' if keep_time else 'new'} time: {command}"
                try:
                    code, said = self.call(command)
                except Exception as error:
                    table.silent.append(f"{what}: a traceback: {error!r}")
                    continue
                mends = f"--forcerun {file}" in said or (kind == "delete" and "make it again: fedshift run" in said)
                if code == 2 and str(file) in said and mends:
                    row.append(command)
                else:
                    table.silent.append(f"{what} ends with {code}: {said[-300:]}")
            if self.contents() != before:
                table.silent.append(f"{file}, {kind}: files were changed")


def readers(output: Output, file: Path) -> tuple[str, ...]:
    """Return the commands that read a file, without `verify`."""
    return READERS_OF.get(file.name, READERS.get(output.rule, ()))


def main() -> int:
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        finished = Finished(Path(folder))
        with finished.here():
            for output in finished.outputs:
                for file in output.files:
                    for kind in DAMAGES:
                        for keep_time in (False, True):
                            finished.trial(file, kind, keep_time, readers(output, file), table)
    print(table)
    return 1 if table.silent else 0


if __name__ == "__main__":
    sys.exit(main())
