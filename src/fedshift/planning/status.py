"""The state of the runs of studies in words: a line for each run and one for all, once or again and again."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import IO, Any, get_args

from ..core.console import duration
from ..io.paths import Paths
from ..jobs.accept import train_code
from ..jobs.round_log import in_words
from ..study.plan import Plan
from .run_state import QUIET, State, StateName, state_of


def states(plans: Mapping[str, Plan], paths: Paths) -> list[State]:
    """Return the state of each training of studies."""
    runs = {key: run for plan in plans.values() for key, run in plan.trainings.items()}
    return [state_of(run, paths, train_code(run)) for run in runs.values()]


def plain(states: Iterable[State], again: str) -> dict[str, Any]:
    """Return all states as mappings and lists. `again` is the command that trains RUN by hand."""
    states = list(states)
    return {"runs": [asdict(state) for state in states], "total": total(states), "resume": again}


def total(states: Iterable[State]) -> dict[str, Any]:
    """Return the number of runs in each state, and `eta`, the least time until all but the failed ones are trained.

    `eta` (seconds) assumes that as many runs are trained at once as now, and that rounds of the other runs take as long
    as those of runs so far. It is None where nothing is running or no time is known.
    """
    states = list(states)
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
    """Return the seconds that a run needs until it is trained, if a round takes `pace` seconds in other runs."""
    if state.eta is not None:
        return state.eta
    return pace * (state.rounds - (state.checkpoint or 0))


def lines(states: Iterable[State], again: str, unlock: str = "") -> list[str]:
    """Return a line for each run, and one for all.

    `again` is the command that trains RUN by hand. `unlock` is the command that unlocks the folder, given where
    Snakemake has locked it: it is at work there, or was killed before it could unlock it.
    """
    states = list(states)
    names = [s.run for s in states]
    if len({s.held_out for s in states}) > 1:
        names = [f"{s.run}  {s.held_out}" for s in states]
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


def total_line(states: Iterable[State]) -> str:
    """Return the line for all runs: how many are in each state, and the least time that is left."""
    states = list(states)
    counts = total(states)
    parts = [f"{counts[name]} {name}" for name in get_args(StateName) if counts[name]]
    if counts["eta"] is not None:
        parts.append(f"at least {duration(counts['eta'])} left, with {counts['running']} at once as now")
    return f"{len(states)} runs: {', '.join(parts)}"


def is_locked(root: Path) -> bool:
    """Return whether Snakemake has locked a folder."""
    return any((root / ".snakemake" / "locks").glob("*.lock"))


def _words(s: State, again: str) -> str:
    """Return the state of one run in words."""
    resumes = "starts again from round 1"
    if s.checkpoint:
        resumes = f"resumes after round {s.checkpoint}"
    if s.state == "done":
        return _result(s)
    if s.state == "running":
        return _progress(s)
    if s.state == "failed":
        return f"{s.message} (see {s.log}); when this is fixed, it {resumes}: {again.replace('RUN', s.run)}"
    if s.state == "waiting":
        return f"for {s.message}"
    message = ""
    if s.message:
        message = f" ({s.message})"
    unseen = ""
    if _is_fresh(s):
        unseen = ", unless it is still running on another node, whose locks are not visible here"
    return f"after round {s.round or 0}/{s.rounds}{_silence(s)}{message}; {resumes}{unseen}"


def _is_fresh(s: State) -> bool:
    """Return whether a run's files have changed lately, by the length of its rounds."""
    return (s.silent or 0) <= max(QUIET, 3 * (s.seconds_a_round or 0))


def _result(s: State) -> str:
    words = f"{s.finished}, {s.round} rounds"
    if s.seconds is not None:
        words += f" in {duration(s.seconds)}"
    if s.best_value is not None:
        words += f", best {s.best_value:.4f} in round {s.best_round}"
    if s.changed:
        words += "; trained with other code"
    return words


def _progress(s: State) -> str:
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
    if s.silent is None:
        return ""
    return f", no output for {duration(s.silent)}"


LEFT_OUT = ("done", "waiting")
"""States that are left out on a terminal with too few lines for all runs."""


def watch(
    look: Callable[[], list[State]],
    again: str,
    interval: float = 5.0,
    out: IO[str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show the states that `look` returns every `interval` seconds, until all runs are done or failed, or Ctrl-C.

    On a terminal the lines are drawn in place. Elsewhere the line for all runs is printed with the time of day, and
    only when it has changed, so that a log stays short. `again` is the command that trains RUN by hand.
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
    """Print the number of runs in each state, with those that have failed, unless it is `before`. Return it."""
    line = total_line(states)
    counts = line.partition(", at least ")[0]
    if counts != before:
        print(f"{time.strftime('%H:%M:%S')}  {line}", file=out, flush=True)
        for state in states:
            if before and state.state == "failed":
                print(f"          {state.run} failed: {state.message}", file=out, flush=True)
    return counts


def _screen(states: list[State], again: str) -> list[str]:
    """Return the lines of `fedshift status`, cut to the size of the terminal."""
    columns, height = shutil.get_terminal_size()
    head = f"{time.strftime('%H:%M:%S')}  Ctrl-C leaves; the runs go on."
    shown = [head, *lines(states, again)]
    if len(shown) >= height:
        busy = [line for state, line in zip(states, shown[1:], strict=False) if state.state not in LEFT_OUT]
        shown = [head, *busy[: max(0, height - 4)], total_line(states)]
    return [line[: columns - 1] for line in shown]
