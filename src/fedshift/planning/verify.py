"""Check of all files of a study: which are missing or are not as they were written, and what makes them again.

Snakemake compares times and settings. It cannot see a file that lost bits, or was replaced and got its old time back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import UserError
from ..io import identity
from ..io.checksums import MISSING, damage, recorded
from ..io.paths import Paths
from ..jobs.store import Kept, kept
from ..study.plan import Plan
from .files import SOURCES, Output, outputs


@dataclass(frozen=True)
class Checked:
    """The outputs of one job: what is wrong with each file, and the files without a recorded checksum."""

    output: Output
    faults: dict[Path, str]
    unrecorded: tuple[Path, ...]

    @property
    def begun(self) -> bool:
        """True where the job has written any of its files."""
        return len(self.faults) < len(self.output.every) or any(f.exists() or recorded(f) for f in self.faults)


def verify(plan: Plan, paths: Paths, threads: int = 1) -> list[Checked]:
    """Read every file of a study in full, and return what was found, job by job.

    The index of all studies is read too, if it is there and the study was run.
    """
    with ThreadPoolExecutor(threads) as pool:
        checked = list(pool.map(_checked, outputs(plan, paths)))
    index = paths.page("index")
    if index.exists() and any(one.begun for one in checked):
        checked.append(_checked(Output("index", (index,))))
    return checked


def _checked(output: Output) -> Checked:
    faults = {file: what for file in output.every if (what := damage(file, whole=True) or _exchanged(file, output))}
    unrecorded = tuple(file for file in output.every if file not in faults and not recorded(file))
    return Checked(output, faults, unrecorded)


def _exchanged(file: Path, output: Output) -> str:
    """Return how a file states other ids than those of its place; "" where it does not."""
    try:
        return identity.differs(file, **output.ids())
    except UserError as error:
        return error.what


def damaged_store(plan: Plan, paths: Paths) -> Iterator[tuple[Kept, str]]:
    """Yield the runs of a study whose second copy in the store is damaged, each with its first fault."""
    for run in plan.trainings:
        for entry in kept(paths, run):
            for file, what in entry.damage().items():
                yield entry, f"{file} {what}"
                break


def lines(checked: list[Checked]) -> list[str]:
    """Return a line for each fault, and one for each rule with files that have no recorded checksum."""
    out = [f"{file}: {fault} (rule {job.output.rule})" for job in checked for file, fault in job.faults.items()]
    unrecorded = Counter(job.output.rule for job in checked for _ in job.unrecorded)
    out += [
        f"{number} files of rule {rule} have no recorded checksum and were not checked: an earlier version wrote them"
        for rule, number in unrecorded.items()
    ]
    return out


def forced(checked: list[Checked]) -> list[Path]:
    """Return one file of each job that Snakemake must be forced to run again.

    A call of Snakemake makes results that are missing by itself, but neither data, partitions nor single figures.
    """
    files = []
    for job in checked:
        named = [file for file in job.faults if file in job.output.files]
        missing = all(job.faults[file] == MISSING for file in named)
        if job.faults and (not named or not missing or job.output.rule in SOURCES):
            files.append(next(iter(named), job.output.files[0]))
    return files
