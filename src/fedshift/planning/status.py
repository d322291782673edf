"""What `fedshift status` prints: the state of each run, such as running or failed, read from the run's files alone."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import IO, Any, Literal, get_args

from ..core.console import duration
from ..core.errors import UserError
from ..io.disk import try_lock
from ..io.paths import Paths, RunFiles
from ..jobs.accept import accepted_codes, train_code
from ..jobs.record import in_words, read_manifest
from ..study.plan import Plan
from ..study.run import Run

StateName = Literal["done", "running", "stopped", "failed", "waiting"]
QUIET = 60.0
"""Seconds without output after which a training may be considered stopped, or more if rounds are long."""
PIECE = 1 << 16
"""Bytes that are read from the end of a file at first. More are read if these contain no complete line."""
NORMAL = re.compile(r"round \d+/\d+ |resuming after round |starting anew: |stopped; start again |interrupted$|\s")
"""Last lines of a training's log if nothing went wrong. Indented lines are the second halves of warnings."""
KILLED = re.compile(r"slurmstepd: |srun: |Killed|Terminated")
"""Last lines of a training's log if another program killed the job."""


@dataclass(frozen=True)
class State:
    """The state of one run. Rounds count from 1, times are in seconds, and None means unknown or not applicable.

    Attributes
    ----------
    run, held_out, seed : the run's id, the title of its partition and its seed
    state : done, running, stopped (resumes from a checkpoint), failed or waiting
    rounds : the number of rounds of the whole training
    round, loss, logged : the last trained round, its mean loss over clients, and the numbers that plug-ins logged in it
    seconds_a_round : the mean duration of a round since the process started
    eta : the estimated time left
    silent : the time since the run's files last changed
    checkpoint : the last round in the checkpoint, after which a stopped training resumes
    best_round, best_value : the selected round and its mean validation value
    seconds, finished : the training time of a finished run, and the date and time of its end
    changed : True if a finished run was trained with other code than today's
    message : the last line of the log if it reports a problem, or what a waiting run waits for
    log : the path of the training's log
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
    """Return the state of a run from its files.

    `code` is the digest of the code that would train the run today; without it, `changed` is False.
    """
    files = paths.run_files(run.id)
    log = paths.log("train", run.id)
    locked = is_locked(files.lock)
    if not locked and all(file.exists() for file in files.trained):
        return _done(run, files.manifest, code)
    entry = last_round(files.round_log)
    number, pace, eta = _pace(entry, run.training.rounds)
    times = [modified(path) for path in (files.round_log, files.lock, files.state, log)]
    latest = max((changed for changed in times if changed is not None), default=None)
    silent = max(0.0, time.time() - latest) if latest is not None else None
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
    """Return the state of a finished run, read from its manifest `file`; `code` is as in `state_of`."""
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
    """Return the time at which a file was last modified, in seconds since 1970; None if it cannot be read."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def is_locked(lock: Path) -> bool | None:
    """Return True if a process holds a lock on a file, False if none does, and None if the file system has no locks.

    A shared lock is requested without waiting and released at once. A holder of the lock does not notice the request,
    and a process that requests the lock at this moment tries again (see `disk.locked`).
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
    """Return the number of the last round in a run's checkpoint, or None if no checkpoint can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(files.state, framework="numpy") as file:
            return int(json.loads(file.metadata()["progress"])["round"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def last_round(log: Path) -> dict[str, Any]:
    """Return the last complete line of a rounds.jsonl, `log`, as a dict; {} if there is none."""
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
    """Return the last line of a log that has a letter or a digit, or "" if there is none."""
    text, _ = tail(log, PIECE)
    # A progress bar goes back to the start of its line; zeros are what a crash of the machine leaves.
    lines = text.replace("\r", "\n").replace("\0", "").split("\n")
    return next((line.rstrip() for line in reversed(lines) if any(c.isalnum() for c in line)), "")


def tail(path: Path, size: int) -> tuple[str, bool]:
    """Return the text of at most `size` bytes from the end of a file, and True if this is the whole file.

    The text is "" if the file cannot be read.
    """
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
    """Return True if the last line of a log reports an error of the training, not its normal end or a kill."""
    return bool(line) and not NORMAL.match(line) and not KILLED.match(line)


def _pace(entry: dict[str, Any], rounds: int) -> tuple[int | None, float | None, float | None]:
    """Return the last logged round, the mean seconds per round, and the estimated seconds left.

    `entry` is the last line of rounds.jsonl, and `rounds` the number of rounds of the training. All are None without an
    entry; seconds are None if the entry has none.
    """
    if not entry:
        return None, None, None
    number = entry["round"]
    eta = entry.get("eta")
    if eta is not None and number < rounds:
        return number, eta / (rounds - number), eta
    return number, entry.get("seconds"), eta


def _awaited(run: Run, paths: Paths) -> str:
    """Return the text that says for what a run waits: its data (with the last line of their log), partition or turn."""
    if not paths.data_files(run.data.id).card.exists():
        for log in (paths.log("prepare", run.data.id), paths.log("download", run.data.raw)):
            line = last_line(log)
            if line:
                return f"its data ({line})"
        return "its data"
    if not paths.partition(run.partition_id).exists():
        return "its partition"
    return "its turn"


def states(plans: Mapping[str, Plan], paths: Paths) -> list[State]:
    """Return the state of each training of the studies, each training once."""
    runs = {key: run for plan in plans.values() for key, run in plan.trainings.items()}
    return [state_of(run, paths, train_code(run)) for run in runs.values()]


def plain(states: Sequence[State], again: str) -> dict[str, Any]:
    """Return the states of all runs as plain dicts and lists for JSON.

    `again` is the shell command that resumes one run, with RUN in place of its id.
    """
    return {"runs": [asdict(state) for state in states], "total": total(states), "resume": again}


def total(states: Sequence[State]) -> dict[str, Any]:
    """Return the number of runs in each state, and `eta`: the least seconds until all runs but failed ones are trained.

    `eta` assumes that as many runs are trained at once as now, and that rounds of waiting runs take the mean time of
    rounds so far. It is None if no run is running or no time is known.
    """
    running = [s for s in states if s.state == "running"]
    paces = [s.seconds_a_round for s in running if s.seconds_a_round is not None]
    paces += [s.seconds / s.round for s in states if s.seconds is not None and s.round]
    eta = None
    if running and paces:
        pace = fmean(paces)
        longest = max(_left(state, pace) for state in running)
        all_left = sum(_left(s, pace) for s in states if s.state in ("running", "stopped", "waiting"))
        eta = max(longest, all_left / len(running))
    counts = Counter(state.state for state in states)
    return {**{name: counts[name] for name in get_args(StateName)}, "eta": eta}


def _left(state: State, pace: float) -> float:
    """Return the seconds until a run is trained: its own estimate or, without one, `pace` seconds per round left."""
    return state.eta if state.eta is not None else pace * (state.rounds - (state.checkpoint or 0))


def lines(states: Sequence[State], again: str, unlock: str = "") -> list[str]:
    """Return the lines that `fedshift status` prints: one for each run, one for all, and advice.

    `again` is the shell command that trains one run, with RUN in place of its id. `unlock` is the shell command that
    unlocks the folder if Snakemake has locked it, or else "".
    """
    several = len({s.held_out for s in states}) > 1
    names = [f"{s.run}  {s.held_out}" if several else s.run for s in states]
    width = max(map(len, names), default=0)
    out = [
        f"{name:{width}}  seed {s.seed:<3} {s.state:8} {_words(s, again)}"
        for name, s in zip(names, states, strict=True)
    ]
    out.append(total_line(states))
    if changed := sum(s.changed for s in states):
        out.append(f"{changed} of the finished runs were trained with other code, and would be trained again")
    if any(state.state == "stopped" for state in states):
        out.append(f"Stopped runs resume with the next call of Snakemake, or by hand: {again}")
    if unlock and not any(state.state == "running" for state in states):
        killed = f"If it is not at work, since it was killed or the power failed, first unlock it: {unlock}"
        out.append(f"Snakemake has locked this folder. {killed}")
    return out


def total_line(states: Sequence[State]) -> str:
    """Return the line for all runs: the number of runs in each state, and the least time until all are trained."""
    counts = total(states)
    parts = [f"{counts[name]} {name}" for name in get_args(StateName) if counts[name]]
    if counts["eta"] is not None:
        parts.append(f"at least {duration(counts['eta'])} left, with {counts['running']} at once as now")
    return f"{len(states)} runs: {', '.join(parts)}"


def folder_is_locked(root: Path) -> bool:
    """Return True if Snakemake has locked a project folder, `root`: it is running there, or was killed."""
    return any((root / ".snakemake" / "locks").glob("*.lock"))


def _words(s: State, again: str) -> str:
    """Return the text that describes the state of one run; `again` is the command that trains RUN by hand."""
    resumes = f"resumes after round {s.checkpoint}" if s.checkpoint else "starts again from round 1"
    if s.state == "done":
        return _result(s)
    if s.state == "running":
        return _progress(s)
    if s.state == "failed":
        return f"{s.message} (see {s.log}); when this is fixed, it {resumes}: {again.replace('RUN', s.run)}"
    if s.state == "waiting":
        return f"for {s.message}"
    message = f" ({s.message})" if s.message else ""
    unseen = ", unless it is still running on another node, whose locks are not visible here" if _is_fresh(s) else ""
    return f"after round {s.round or 0}/{s.rounds}{_silence(s)}{message}; {resumes}{unseen}"


def _is_fresh(s: State) -> bool:
    """Return True if a run's files changed within QUIET seconds or within the time of three of its rounds."""
    return (s.silent or 0) <= max(QUIET, 3 * (s.seconds_a_round or 0))


def _result(s: State) -> str:
    """Return the text that describes a finished run: date, rounds, training time and best validation value."""
    words = f"{s.finished}, {s.round} rounds"
    if s.seconds is not None:
        words += f" in {duration(s.seconds)}"
    if s.best_value is not None:
        words += f", best {s.best_value:.4f} in round {s.best_round}"
    if s.changed:
        words += "; trained with other code"
    return words


def _progress(s: State) -> str:
    """Return the text that describes a running training: round, loss, seconds per round and time left."""
    words = "in its first round"
    if s.round is not None:
        words = f"round {s.round}/{s.rounds}"
        if s.loss is not None:
            words += f", loss {s.loss:.4f}{in_words(s.logged)}"
        if s.seconds_a_round is not None:
            digits = 1 if s.seconds_a_round >= 1 else 2
            words += f", {s.seconds_a_round:.{digits}f} s a round"
        if s.eta is not None:
            words += f", ETA {duration(s.eta)}"
    if not _is_fresh(s):
        words += _silence(s)
    return words


def _silence(s: State) -> str:
    """Return the text that says for how long a run has had no output, or "" if that is unknown."""
    return "" if s.silent is None else f", no output for {duration(s.silent)}"


LEFT_OUT = ("done", "waiting")
"""States whose runs are not shown on a terminal with too few lines for all runs."""


def watch(
    look: Callable[[], list[State]],
    again: str,
    interval: float = 5.0,
    out: IO[str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print the states that `look` returns every `interval` seconds, until all runs are done or failed, or Ctrl-C.

    On a terminal the lines are redrawn in place. Elsewhere the line for all runs is printed with the time of day, only
    when it has changed, so that a log stays short. `again` is the command that trains one run, with RUN in place of its
    id; `out` is the stream to print on (default: standard output), and `sleep` waits for some seconds.
    """
    out = out or sys.stdout
    shown: list[str] = []
    counts = ""
    try:
        while True:
            states = look()
            if out.isatty():
                # The cursor goes up to the first line that was drawn, and all below is erased.
                back = f"\x1b[{len(shown)}F\x1b[J" * bool(shown)
                shown = _screen(states, again)
                print(back + "\n".join(shown), file=out, flush=True)
            else:
                counts = _print_changes(states, counts, out)
            if all(state.state in ("done", "failed") for state in states):
                return
            sleep(interval)
    except KeyboardInterrupt:
        return


def _print_changes(states: list[State], before: str, out: IO[str]) -> str:
    """Print the line of all runs, and the runs that have failed, if the counts of states differ from `before`.

    Return the text of the counts, which is `before` of the next call.
    """
    line = total_line(states)
    counts = line.partition(", at least ")[0]
    if counts != before:
        print(f"{time.strftime('%H:%M:%S')}  {line}", file=out, flush=True)
        for state in states:
            if before and state.state == "failed":
                print(f"          {state.run} failed: {state.message}", file=out, flush=True)
    return counts


def _screen(states: list[State], again: str) -> list[str]:
    """Return the lines of `fedshift status`, shortened to the width and height of the terminal."""
    columns, height = shutil.get_terminal_size()
    head = f"{time.strftime('%H:%M:%S')}  Ctrl-C leaves; the runs go on."
    shown = [head, *lines(states, again)]
    if len(shown) >= height:
        busy = [line for state, line in zip(states, shown[1:], strict=False) if state.state not in LEFT_OUT]
        shown = [head, *busy[: max(0, height - 4)], total_line(states)]
    return [line[: columns - 1] for line in shown]
