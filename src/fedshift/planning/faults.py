"""The faults that ended jobs of the workflow, collected from the jobs' logs, as the last lines of a call.

Imports neither torch nor pandas: Snakemake loads it before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..core.console import say_at_end
from .run_state import NORMAL, PIECE, last_line, tail

FAILED = re.compile(r"^ +log: (.+) \(check log file\(s\) for error details\)$", re.MULTILINE)
"""A line of Snakemake's log about a failed job, with the path of the job's own log."""
FAULT = re.compile(r"\S.*?: \S")
"""A line that says where something is wrong, and what."""
PROGRESS = re.compile(r".*\(\d+%\)|wrote ")
WHOLE = 1 << 30
"""More bytes than a log has."""
MOST = 5
"""Lines that are shown of one log."""


def say_last(logs: Iterable[str | Path]) -> None:
    """Print the faults of failed jobs when this process ends, after everything that Snakemake prints itself."""
    say_at_end(faults(map(Path, logs)))


def faults(logs: Iterable[Path]) -> list[str]:
    """Return the faults of the failed jobs that Snakemake's logs name: each once, below the logs that it stands in.

    Empty if the logs name no failed job.
    """
    failed = dict.fromkeys(name for log in logs for name in FAILED.findall(tail(log, WHOLE)[0]))
    places: dict[tuple[str, ...], list[str]] = {}
    for name in failed:
        places.setdefault(tuple(_faults(Path(name))), []).append(name)
    if not places:
        return []
    jobs = f"{len(failed)} jobs"
    if len(failed) == 1:
        jobs = "One job"
    block = ["", f"{jobs} failed. Finished work is kept: when this is corrected, the same call goes on from there."]
    for lines, names in places.items():
        title = names[0]
        if len(names) > 1:
            title += f", and {len(names) - 1} more with the same fault"
        block += [f"{title}:", *(f"  {line}" for line in lines or ("its log is empty",))]
    return block


def _faults(log: Path) -> list[str]:
    """Return the last lines of a job's log that report a fault; of a traceback, and of other logs, the last line."""
    text, _ = tail(log, PIECE)
    lines = [line.rstrip() for line in text.splitlines() if any(c.isalnum() for c in line)]
    if any(line.startswith("Traceback ") for line in lines):
        lines = lines[-1:]
    last: list[str] = []
    for line in reversed(lines):
        if NORMAL.match(line) or PROGRESS.match(line) or not FAULT.match(line) or len(last) == MOST:
            break
        last.insert(0, line)
    return last or [line for line in [last_line(log)] if line]
