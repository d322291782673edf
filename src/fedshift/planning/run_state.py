"""The state of a run, read from its files alone: from any process or node, without disturbing the training."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from ..core.errors import UserError
from ..io.disk import try_lock
from ..io.paths import Paths, RunFiles
from ..jobs.accept import accepted_codes
from ..jobs.provenance import read_manifest
from ..study.run import Run

StateName = Literal["done", "running", "stopped", "failed", "waiting"]
QUIET = 60.0
"""Seconds without output that are normal, however short the rounds are."""
PIECE = 1 << 16
"""Bytes that are read from the end of a file at first; more are read if they hold no whole line."""
NORMAL = re.compile(r"round \d+/\d+ |resuming after round |starting anew: |stopped; start again |interrupted$|\s")
"""Last lines of a log when nothing went wrong; indented lines are the second halves of warnings."""
KILLED = re.compile(r"slurmstepd: |srun: |Killed|Terminated")
"""Last lines of a log when another program ended the job."""


@dataclass(frozen=True)
class State:
    """The state of one run. Rounds count from 1, times are in seconds; None stands for unknown or not applicable.

    Attributes
    ----------
    rounds : rounds of the whole training
    round, loss : last round that was trained, and its mean loss over clients
    logged : the numbers that plug-ins logged in that round, by name
    seconds_a_round, eta : mean time of a round since the process started, and time left
    silent : time since the run's files last changed
    checkpoint : last round that need not be trained again
    best_round, best_value : selected round, and its mean validation value
    seconds, finished : training time of a finished run, and when it finished
    changed : whether the run was trained with code other than today's
    message : last line of the log if it reports a problem, or what the run waits for
    log : path of the log
    """

    run: str
    held_out: str
    seed: int
    state: StateName
    rounds: int
    round: int | None = None
    loss: float | None = None
    logged: dict[str, float] = field(default_factory=dict)
    seconds_a_round: float | None = None
    eta: float | None = None
    silent: float | None = None
    checkpoint: int | None = None
    best_round: int | None = None
    best_value: float | None = None
    seconds: float | None = None
    finished: str | None = None
    changed: bool = False
    message: str = ""
    log: str = ""


def state_of(run: Run, paths: Paths, code: str = "") -> State:
    """Return the state of a run. `code` is the digest of the code that would train it today."""
    files = paths.run_files(run.id)
    log = paths.log("train", run.id)
    locked = is_locked(files.lock)
    if not locked and all(file.exists() for file in files.trained):
        return _done(run, files.manifest, code)
    entry = last_round(files.round_log)
    number, pace, eta = _pace(entry, run.training.rounds)
    times = [modified(path) for path in (files.round_log, files.lock, files.state, log)]
    latest = max((changed for changed in times if changed is not None), default=None)
    silent = None
    if latest is not None:
        silent = max(0.0, time.time() - latest)
    state = State(
        run.id,
        run.partition.title,
        run.seed,
        "running",
        run.training.rounds,
        round=number,
        loss=entry.get("loss"),
        logged=entry.get("logged", {}),
        seconds_a_round=pace,
        silent=silent,
        checkpoint=checkpoint_round(files),
        log=str(log),
    )
    last = last_line(log)
    fresh = silent is not None and silent < max(QUIET, 3 * (pace or 0))
    opening = log.exists() and not last
    closing = number == run.training.rounds and not _trouble(last)
    # Where the file system has no locks, the times of files and the last line of the log decide.
    if locked or (fresh and (locked is None or opening or closing)):
        if eta is not None:
            # The time since the last round counts, up to the length of a round.
            eta = max(0.0, eta - min(silent or 0, pace or 0))
        return replace(state, eta=eta)
    if _trouble(last):
        return replace(state, state="failed", message=last)
    if number or state.checkpoint or files.checkpoint.exists():
        killed = KILLED.match(last)
        return replace(state, state="stopped", message=last if killed else "")
    return replace(state, state="waiting", silent=None, message=_awaited(run, paths))


def _done(run: Run, file: Path, code: str) -> State:
    try:
        manifest = read_manifest(file)
    except UserError:
        manifest = {}
    return State(
        run.id,
        run.partition.title,
        run.seed,
        "done",
        run.training.rounds,
        round=manifest.get("rounds"),
        best_round=manifest.get("best_round"),
        best_value=manifest.get("best_value"),
        seconds=manifest.get("seconds"),
        finished=datetime.fromtimestamp(modified(file) or 0).isoformat(" ", "minutes"),
        changed=bool(code) and code not in (manifest.get("code"), *accepted_codes(manifest)),
    )


def modified(path: Path) -> float | None:
    """Return when a file was last modified, in seconds since 1970; None if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def is_locked(lock: Path) -> bool | None:
    """Return whether a process holds a lock file; None where the file system cannot tell.

    A shared lock is requested without waiting and released at once. The holder does not notice it, and a process that
    requests the lock at this moment tries again (`disk.locked`).
    """
    if lock.exists() and not lock.is_file():
        return None
    try:
        with lock.open("rb") as file:
            return not try_lock(file, shared=True)
    except FileNotFoundError:
        return False
    except OSError:
        return None


def checkpoint_round(files: RunFiles) -> int | None:
    """Return the last round of a run's checkpoint; None if there is none that can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(files.state, framework="numpy") as file:
            return int(json.loads(file.metadata()["progress"])["round"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def last_round(log: Path) -> dict[str, Any]:
    """Return the last whole line of rounds.jsonl as a mapping; empty if there is none."""
    size = PIECE
    while True:
        text, whole = tail(log, size)
        lines = text.split("\n")[:-1]  # without a line that is being written
        if not whole:
            lines = lines[1:]  # its beginning is cut off
        for line in reversed(lines):
            try:
                entry = json.loads(line)
                return {**entry, "round": int(entry["round"])}
            except (ValueError, KeyError, TypeError):
                continue
        if whole:
            return {}
        size *= 8


def last_line(log: Path) -> str:
    """Return the last line of a log that has a letter or a digit; empty if there is none."""
    text, _ = tail(log, PIECE)
    # A progress bar goes back to the start of its line; zeros are what a crash of the machine leaves.
    lines = text.replace("\r", "\n").replace("\0", "").split("\n")
    return next((line.rstrip() for line in reversed(lines) if any(c.isalnum() for c in line)), "")


def tail(path: Path, size: int) -> tuple[str, bool]:
    """Return at most `size` bytes from the end of a file, and whether these are the whole file."""
    if not path.is_file():
        return "", True
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - size))
            return file.read().decode(errors="replace"), end <= size
    except OSError:
        return "", True


def _trouble(line: str) -> bool:
    return bool(line) and not NORMAL.match(line) and not KILLED.match(line)


def _pace(entry: dict[str, Any], rounds: int) -> tuple[int | None, float | None, float | None]:
    """Return the number of the last logged round, mean seconds a round since the process started, and seconds left."""
    if not entry:
        return None, None, None
    number = entry["round"]
    eta = entry.get("eta")
    if eta is not None and number < rounds:
        return number, eta / (rounds - number), eta
    return number, entry.get("seconds"), eta


def _awaited(run: Run, paths: Paths) -> str:
    """Return what a run waits for: its data, with the last line of their log; its partition; or its turn."""
    if not paths.data_files(run.data.id).card.exists():
        for log in (paths.log("prepare", run.data.id), paths.log("download", run.data.raw)):
            line = last_line(log)
            if line:
                return f"its data ({line})"
        return "its data"
    if not paths.partition(run.partition_id).exists():
        return "its partition"
    return "its turn"
