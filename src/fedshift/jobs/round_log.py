"""The log of rounds: a line for people, a JSON line for programs, and the history from which a run resumes."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..algorithms import LOGGED
from ..core.console import Progress, duration
from ..core.errors import UserError
from ..io.disk import disk_errors
from ..io.tables import read_table
from ..io.text import require_columns, write_text

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
ROUNDS = {"round": "whole numbers", "site": "text", "split": "text"}
ROUNDS |= dict.fromkeys(("loss", "accuracy", "seconds", "floats_down", "floats_up"), "numbers")
"""The columns of rounds.parquet, and what they hold."""


def read_rounds(path: Path) -> pd.DataFrame:
    """Return the table of a run's rounds. Raises UserError for a file of other content."""
    table = read_table(path)
    require_columns(path, table, ROUNDS, "copy the run's folder anew, or train the run again")
    return table


class RoundLog:
    """Log that appends a line for each round to standard error and to a JSON-lines file.

    `sum` is the checksum of the file so far. A JSON line holds round, loss (mean over clients), the numbers that
    plug-ins log (means over the clients that have them), split and accuracy (by site), seconds, eta, and under `rows`
    the round's part of the history. Lines are appended, so the cost of a round does not depend on the number of rounds
    before.
    """

    def __init__(self, path: Path, rounds: int) -> None:
        self.path, self.rounds = path, rounds
        self.sum = 0
        self.bar: Progress | None = None

    def read(self, until: int, checksum: int) -> list[Row]:
        """Return the history of rounds 1 to `until`.

        Raises UserError if the file does not hold them, or if they have another checksum.
        """
        with suppress(OSError):
            lines = self._lines(until)
            if len(lines) == until and zlib.crc32(b"".join(lines)) == checksum:
                return [row for line in lines for row in json.loads(line)["rows"]]
        raise UserError(self.path, f"does not hold rounds 1 to {until}")

    def _lines(self, until: int) -> list[bytes]:
        # before the first round the file need not be there
        return self.path.read_bytes().splitlines(keepends=True)[:until] if until else []

    def start(self, done: int) -> None:
        """Begin after round `done`, and drop the lines of later rounds, which no checkpoint holds."""
        self.first = done
        self.clock = time.monotonic()
        lines = b"".join(self._lines(done))
        self.sum = zlib.crc32(lines)
        write_text(self.path, lines.decode())
        self.bar = Progress("rounds", self.rounds - done, "round") if sys.stderr.isatty() else None

    def append(self, number: int, rows: Iterable[Row]) -> None:
        """Log round `number`, and flush it to disk."""
        rows = list(rows)
        training = [r for r in rows if r["split"] == "train"]
        scored = [r for r in rows if r["split"] == "val"] or training
        entry = {
            "round": number,
            "loss": sum(r["loss"] for r in training) / len(training),
            "logged": _logged(training),
            "split": scored[0]["split"],
            "accuracy": {r["site"]: r["accuracy"] for r in scored},
            "seconds": sum(r["seconds"] for r in rows),
            "eta": (time.monotonic() - self.clock) / (number - self.first) * (self.rounds - number),
            "rows": rows,
        }
        line = json.dumps(entry).encode() + b"\n"
        with disk_errors(self.path), self.path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.sum = zlib.crc32(line, self.sum)
        self._say(entry)

    def _say(self, entry: Row) -> None:
        sites = ", ".join(f"{site} {value:.3f}" for site, value in entry["accuracy"].items())
        line = (
            f"round {entry['round']}/{self.rounds}  loss {entry['loss']:.4f}{in_words(entry['logged'])}  "
            f"{entry['split']} accuracy {sites}  {entry['seconds']:.1f} s  ETA {duration(entry['eta'])}"
        )
        if self.bar:
            self.bar.say(line)
            self.bar.update()
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the progress bar, if there is one."""
        if self.bar:
            self.bar.close()


def in_words(logged: Mapping[str, float]) -> str:
    """Return the numbers that plug-ins log, as they follow a loss in a line."""
    return "".join(f", {name} {value:.4g}" for name, value in logged.items())


def _logged(rows: Iterable[Row]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for column, value in row.items():
            if column.startswith(LOGGED):
                values.setdefault(column.removeprefix(LOGGED), []).append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
