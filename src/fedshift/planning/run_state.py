"""How a run stands, by its files alone: from any process or node, and without disturbing one at work."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from ..core.errors import UserError
from ..io.disk import try_lock
from ..io.paths import TRAINED, Paths
from ..io.text import read_json
from ..jobs.accept import accepted_codes
from ..study.run import Run

Standing = Literal["done", "running", "stopped", "failed", "waiting"]
QUIET = 60.0
"""Seconds without news that are nothing to speak of, however short the rounds."""
PIECE = 1 << 16
"""Bytes that are read from the end of a file at first."""
OWN_WORDS = re.compile(r"round \d+/\d+ |resuming after round |starting anew: |stopped; start again |interrupted$|\s")
"""What a log may end with when nothing went wrong; indented lines are the second halves of warnings."""
KILLED = re.compile(r"slurmstepd: |srun: |Killed|Terminated")
"""What it ends with when someone else ended the job."""


@dataclass(frozen=True)
class State:
    """Of one run: rounds counted from 1, times in seconds; None where it does not apply or is not known.

    `checkpoint` is the last round that need not be trained again, `silent` how long there has been no news, `said` the
    log's last line where it tells of trouble, or what is waited for. `changed`: trained by other code than today's.
    """

    run: str
    held_out: str
    seed: int
    state: Standing
    rounds: int
    round: int | None = None
    loss: float | None = None
    seconds_a_round: float | None = None
    eta: float | None = None
    silent: float | None = None
    checkpoint: int | None = None
    best_round: int | None = None
    best_value: float | None = None
    seconds: float | None = None
    finished: str | None = None
    changed: bool = False
    said: str = ""
    log: str = ""


def look(run: Run, paths: Paths, code: str = "") -> State:
    """How a run stands. `code` is the digest of the code that would train it today."""
    folder, log = paths.run(run.id), log_of(paths, "train", run.id)
    at_work = held(folder / "checkpoint" / "lock")
    if not at_work and all((folder / name).exists() for name in TRAINED):
        return _done(run, folder / "manifest.json", code)
    entry = last_round(folder / "rounds.jsonl")
    number, pace, eta = _pace(entry, run.training.rounds)
    news = [folder / "rounds.jsonl", *(folder / "checkpoint" / name for name in ("lock", "state.safetensors")), log]
    times = [t for path in news if (t := touched(path)) is not None]
    silent = max(0.0, time.time() - max(times)) if times else None
    state = State(
        run.id,
        run.partition.title,
        run.seed,
        "running",
        run.training.rounds,
        round=number,
        loss=entry.get("loss"),
        seconds_a_round=pace,
        silent=silent,
        checkpoint=after(folder),
        log=str(log),
    )
    last, fresh = last_line(log), silent is not None and silent < max(QUIET, 3 * (pace or 0))
    opening = log.exists() and not last
    closing = number == run.training.rounds and not _trouble(last)
    if at_work or (fresh and (at_work is None or opening or closing)):
        return replace(state, eta=None if eta is None else max(0.0, eta - min(silent or 0, pace or 0)))
    if _trouble(last):
        return replace(state, state="failed", said=last)
    if number or state.checkpoint or (folder / "checkpoint").exists():
        return replace(state, state="stopped", said=last if KILLED.match(last) else "")
    return replace(state, state="waiting", silent=None, said=_awaited(run, paths))


def _done(run: Run, file: Path, code: str) -> State:
    try:
        told = dict(read_json(file))
    except (UserError, TypeError, ValueError):
        told = {}
    return State(
        run.id,
        run.partition.title,
        run.seed,
        "done",
        run.training.rounds,
        round=told.get("rounds"),
        best_round=told.get("best_round"),
        best_value=told.get("best_value"),
        seconds=told.get("seconds"),
        finished=datetime.fromtimestamp(touched(file) or 0).isoformat(" ", "minutes"),
        changed=bool(code) and code not in (told.get("code"), *accepted_codes(told)),
    )


def touched(path: Path) -> float | None:
    """When a file was changed last, in seconds since 1970; None where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def held(lock: Path) -> bool | None:
    """Whether a process holds a lock file; None where the file system does not tell.

    A shared lock is asked for, without waiting, and given back at once: one who holds the lock does not notice, and one
    who asks for it at that moment asks again (`disk.locked`).
    """
    try:
        with lock.open("rb") as file:
            return not try_lock(file, shared=True)
    except FileNotFoundError:
        return False
    except OSError:
        return None


def after(folder: Path) -> int | None:
    """The round after which a run would go on, by its checkpoint; None where there is none that can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / "checkpoint" / "state.safetensors", framework="numpy") as file:
            return int(json.loads(file.metadata()["progress"])["round"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def last_round(log: Path) -> dict[str, Any]:
    """The last whole line of rounds.jsonl; empty where there is none. One that is being written does not count."""
    size = PIECE
    while True:
        text, whole = _tail(log, size)
        for line in reversed(text.split("\n")[0 if whole else 1 : -1]):
            try:
                entry = json.loads(line)
                return {**entry, "round": int(entry["round"])}
            except (ValueError, KeyError, TypeError):
                continue
        if whole:
            return {}
        size *= 8


def last_line(log: Path) -> str:
    """The last line with any words in it of what a job said; empty where it said nothing."""
    lines = _tail(log, PIECE)[0].replace("\r", "\n").replace("\0", "").split("\n")
    return next((line.rstrip() for line in reversed(lines) if any(c.isalnum() for c in line)), "")


def _tail(path: Path, size: int) -> tuple[str, bool]:
    """At most `size` bytes from the end of a file, and whether that is all of it."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - size))
            return file.read().decode(errors="replace"), end <= size
    except OSError:
        return "", True


def _trouble(line: str) -> bool:
    return bool(line) and not OWN_WORDS.match(line) and not KILLED.match(line)


def _pace(entry: dict[str, Any], rounds: int) -> tuple[int | None, float | None, float | None]:
    """Of the last round that was told of: its number, seconds a round since this process began, and seconds left."""
    if not entry:
        return None, None, None
    number, eta = entry["round"], entry.get("eta")
    if eta is not None and number < rounds:
        return number, eta / (rounds - number), eta
    return number, entry.get("seconds"), eta


def log_of(paths: Paths, rule: str, name: str) -> Path:
    """Where the workflow keeps what a job said."""
    return paths.root / "results" / "logs" / rule / f"{name}.log"


def _awaited(run: Run, paths: Paths) -> str:
    """What a run waits for; of its data, also how far they are."""
    if not (paths.data(run.data.id) / "card.json").exists():
        jobs = ("prepare", run.data.id), ("download", run.data.raw)
        said = next(filter(None, (last_line(log_of(paths, *job)) for job in jobs)), "")
        return f"its data ({said})" if said else "its data"
    return "its turn" if paths.partition(run.partition_id).exists() else "its partition"
