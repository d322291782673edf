"""How the runs of studies stand, for people: a line each, and one of them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, get_args

from ..core.console import duration
from ..io.paths import Paths
from ..jobs.accept import train_code
from ..study.plan import Plan
from .run_state import QUIET, Standing, State, look


def states(plans: Mapping[str, Plan], paths: Paths) -> list[State]:
    """How each run of some studies stands."""
    runs = {key: run for plan in plans.values() for key, run in plan.runs.items()}
    return [look(run, paths, train_code(run)) for run in runs.values()]


def plain(states: Iterable[State], again: str) -> dict[str, Any]:
    """All that is known, as mappings and lists. `again` is the command that trains RUN by hand."""
    states = list(states)
    return {"runs": [asdict(state) for state in states], "total": total(states), "resume": again}


def total(states: Iterable[State]) -> dict[str, Any]:
    """How many stand how, and the least time until all but the failed ones are trained.

    `eta` supposes as many at work at once as now, and that those which have not begun take a round as long as the
    others; None where nothing runs or nothing is known.
    """
    states = list(states)
    counts = Counter(state.state for state in states)
    running = [s for s in states if s.state == "running"]
    paces = [s.seconds_a_round for s in running if s.seconds_a_round is not None]
    paces += [s.seconds / s.round for s in states if s.seconds is not None and s.round]
    pace = sum(paces) / len(paces) if paces else None

    def left(state: State) -> float:
        return state.eta if state.eta is not None else (pace or 0) * (state.rounds - (state.checkpoint or 0))

    ahead = [left(s) for s in states if s.state in ("running", "stopped", "waiting")]
    longest = max(map(left, running), default=0.0)
    known = running and pace is not None
    return {
        **{name: counts[name] for name in get_args(Standing)},
        "eta": max(longest, sum(ahead) / len(running)) if known else None,
    }


def lines(states: Iterable[State], again: str) -> list[str]:
    """One line a run, and one of them all. `again` is the command that trains RUN by hand."""
    states = list(states)
    several = len({s.held_out for s in states}) > 1
    names = [f"{s.run}  {s.held_out}" if several else s.run for s in states]
    width = max(map(len, names), default=0)
    out = [
        f"{name:{width}}  seed {s.seed:<3} {s.state:8} {_words(s, again)}"
        for name, s in zip(names, states, strict=True)
    ]
    counts = total(states)
    told = [f"{counts[name]} {name}" for name in get_args(Standing) if counts[name]]
    if counts["eta"] is not None:
        told.append(f"trained in {duration(counts['eta'])} at least, {counts['running']} at once as now")
    out.append(f"{len(states)} runs: {', '.join(told)}")
    if changed := sum(s.changed for s in states):
        out.append(f"{changed} of those done were trained by other code than today's, and would train again")
    if counts["stopped"]:
        out.append(f"Stopped runs go on with the next call of Snakemake, or by hand: {again}")
    return out


def _words(s: State, again: str) -> str:
    """What a person reads of one run."""
    fresh = (s.silent or 0) <= max(QUIET, 3 * (s.seconds_a_round or 0))
    goes_on = f"goes on after round {s.checkpoint}" if s.checkpoint else "starts anew"
    if s.state == "done":
        took = f" in {duration(s.seconds)}" if s.seconds is not None else ""
        best = f", best {s.best_value:.4f} in round {s.best_round}" if s.best_value is not None else ""
        return f"{s.finished}, {s.round} rounds{took}{best}" + "; by other code" * s.changed
    if s.state == "running":
        return _progress(s) + ("" if fresh else _silence(s))
    if s.state == "stopped":
        said = f" ({s.said})" if s.said else ""
        unseen = ", unless it is at work on a node whose locks are not seen here" if fresh else ""
        return f"after round {s.round or 0}/{s.rounds}{_silence(s)}{said}; {goes_on}{unseen}"
    if s.state == "failed":
        return f"{s.said} ({s.log}); once mended it {goes_on}: {again.replace('RUN', s.run)}"
    return f"for {s.said}"


def _progress(s: State) -> str:
    if s.round is None:
        return "in its first round"
    loss = f", loss {s.loss:.4f}" if s.loss is not None else ""
    seconds = s.seconds_a_round
    pace = f", {seconds:.{1 if seconds >= 1 else 2}f} s a round" if seconds is not None else ""
    eta = f", ETA {duration(s.eta)}" if s.eta is not None else ""
    return f"round {s.round}/{s.rounds}{loss}{pace}{eta}"


def _silence(s: State) -> str:
    return f", no news for {duration(s.silent)}" if s.silent is not None else ""
