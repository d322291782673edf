"""The time and memory that a job used, in the form of Snakemake's benchmark files.

Snakemake's own `benchmark` measures the processes below a job's shell. A job that was forked from a warm process is not
one of them, so each job measures itself.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

from .text import write_text

_STARTED = time.monotonic()
MEBIBYTE = 1024**2 if sys.platform == "darwin" else 1024
"""A mebibyte in the unit of `ru_maxrss`: bytes on macOS, kibibytes on Linux."""


def write_usage(path: Path) -> None:
    """Write seconds, peak memory (MiB) and CPU seconds of this process so far as TSV, with Snakemake's column names.

    Of the processes that share a training, the first writes, and multiplies its CPU seconds by their number.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = (used.ru_utime + used.ru_stime) * int(os.environ.get("WORLD_SIZE", "1"))
    seconds = time.monotonic() - _STARTED
    write_text(path, f"s\tmax_rss\tcpu_time\n{seconds:.2f}\t{used.ru_maxrss / MEBIBYTE:.1f}\t{cpu:.2f}\n")
