"""What Snakemake's logger plug-in says of the runs of a call, and of its pages at the end.

Imports neither torch nor pandas: Snakemake loads it before anything runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.console import say_at_end
from ..study.run import Run

MOST = 5
"""Pages that are named at the end."""


def in_words(runs: Mapping[str, Run]) -> dict[str, str]:
    """Return what the ids of runs and of their partitions stand for; runs that words leave alike keep their id too."""
    words = {key: _run(run) for key, run in runs.items()}
    counts = Counter(words.values())
    partitions = {run.partition_id: f"{run.data.dataset.name}, {_held_out(run)}" for run in runs.values()}
    return partitions | {key: text if counts[text] == 1 else f"{text} ({key})" for key, text in words.items()}


def _run(run: Run) -> str:
    method = run.algorithm.name
    if run.addon:
        method += f" + {run.addon.name}"
    return f"{method}, bn {run.bn}, {_held_out(run)}, seed {run.seed}"


def _held_out(run: Run) -> str:
    if not run.partition.title:
        return "no site held out"
    return f"held out {run.partition.title}"


def say_pages(pages: Sequence[Path], index: Path) -> None:
    """Print where the pages of a call are when this process ends: each, or the list of all pages for more than a few.

    It is printed after everything that Snakemake prints itself.
    """
    if len(pages) > MOST:
        say_at_end([f"{len(pages)} pages, all listed in {index.absolute()}"])
    else:
        say_at_end(f"The page: {page.absolute()}" for page in pages)
