"""What happened in each round.

A line for people, a JSON line for programs, and the history that a resumed run goes on from.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.console import Progress, duration
from ..core.errors import UserError
from ..io.disk import disk_errors
from ..io.text import write_text

Row = dict[str, Any]


class RoundLog:
    """Appends a line for each round to standard error and to a JSON-lines file, whose checksum so far is `sum`.

    A JSON line holds round, loss (mean over clients), split and accuracy (by site), seconds, eta, and under `rows` the
    round's part of the history. Appending keeps the cost of a round independent of how many there were.
    """

    def __init__(self, path: Path, rounds: int) -> None:
        self.path, self.rounds = path, rounds
        self.sum = 0
        self.bar: Progress | None = None

    def read(self, until: int, checksum: int) -> list[Row]:
        """The history of rounds 1 to `until`. Raises UserError where it is not there as it was written."""
        with suppress(OSError):
            lines = self._lines(until)
            if len(lines) == until and zlib.crc32(b"".join(lines)) == checksum:
                return [row for line in lines for row in json.loads(line)["rows"]]
        raise UserError(self.path, f"does not hold rounds 1 to {until}")

    def _lines(self, until: int) -> list[bytes]:
        return self.path.read_bytes().splitlines(keepends=True)[:until] if until else []

    def start(self, done: int) -> None:
        """Begin after round `done`: lines of later rounds, which no checkpoint holds, are dropped."""
        self.first, self.clock = done, time.monotonic()
        kept = b"".join(self._lines(done))
        self.sum = zlib.crc32(kept)
        write_text(self.path, kept.decode())
        self.bar = Progress("rounds", self.rounds - done, "round") if sys.stderr.isatty() else None

    def append(self, number: int, rows: Iterable[Row]) -> None:
        """Log round `number`, durably."""
        rows = list(rows)
        trained = [r for r in rows if r["split"] == "train"]
        scored = [r for r in rows if r["split"] == "val"] or trained
        entry = {
            "round": number,
            "loss": sum(r["loss"] for r in trained) / len(trained),
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
            f"round {entry['round']}/{self.rounds}  loss {entry['loss']:.4f}  {entry['split']} accuracy {sites}  "
            f"{entry['seconds']:.1f} s  ETA {duration(entry['eta'])}"
        )
        if self.bar:
            self.bar.say(line)
            self.bar.update()
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar:
            self.bar.close()
