"""Check of all files of a study: which are missing or are not as they were written, and what makes them again.

Snakemake compares times and settings. It cannot see a file that lost bits, or was replaced and got its old time back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ..analysis.predictions import Missing, Predictions
from ..core.errors import UserError
from ..io import identity
from ..io.checksums import MISSING, checksum_of, damage, recorded
from ..io.paths import Paths, RunFiles
from ..jobs.accept import Kept, kept
from ..study.plan import Plan
from .call import SOURCES, Output, outputs

SILENT = "does not say what it was written for, as other files of this study do: another program wrote it"
"""Fault of a file without identity."""


@dataclass(frozen=True)
class Checked:
    """The outputs of one job: what is wrong with each file, and the files without a recorded checksum."""

    output: Output
    faults: dict[Path, str]
    unrecorded: tuple[Path, ...]
    silent: tuple[Path, ...] = ()
    """Sound files that do not state what they were written for."""
    states: bool = False
    """True where another of them does."""

    @property
    def begun(self) -> bool:
        """True where the job has written any of its files."""
        return len(self.faults) < len(self.output.every) or any(f.exists() or recorded(f) for f in self.faults)


def verify(plan: Plan, paths: Paths, threads: int = 1) -> list[Checked]:
    """Read every file of a study in full, and return what was found, job by job.

    A file is at fault where it is missing, damaged or in the place of another one, where it does not state what it was
    written for and other files of the study do, and where it holds predictions that cannot be scored. The index of all
    studies is read too, if it is there and the study was run.
    """
    with ThreadPoolExecutor(threads) as pool:
        checked = list(pool.map(_checked, outputs(plan, paths)))
    if any(one.states for one in checked):
        for one in checked:
            one.faults.update(dict.fromkeys(one.silent, SILENT))
    sources = [one for one in checked if one.output.rule in SOURCES]
    if not any(one.faults for one in sources):
        _add(checked, _unusable(plan, paths))
    _add(checked, _unlike_kept(plan, paths))
    index = paths.page("index")
    if index.exists() and any(one.begun for one in checked):
        checked.append(_checked(Output("index", (index,))))
    return checked


def _checked(output: Output) -> Checked:
    faults = {file: what for file in output.every if (what := damage(file, whole=True) or _exchanged(file, output))}
    sound = [file for file in output.every if file not in faults]
    ids = output.ids() if sound else {}
    silent = [file for file in sound if identity.silent(file, ids)]
    states = bool(ids) and any(file.suffix in identity.STATING for file in sound if file not in silent)
    unrecorded = tuple(file for file in sound if not recorded(file))
    return Checked(output, faults, unrecorded, tuple(silent), states)


def _exchanged(file: Path, output: Output) -> str:
    """Return how a file states other ids than those of its place; "" where it does not."""
    try:
        return identity.differs(file, **output.ids())
    except UserError as error:
        return error.what


def _add(checked: Iterable[Checked], faults: Iterable[tuple[Path, str]]) -> None:
    """Add faults to the jobs that write the files, where these have none yet."""
    found = dict(faults)
    for one in checked:
        for file in found.keys() & set(one.output.files):
            one.faults.setdefault(file, found[file])


def _unlike_kept(plan: Plan, paths: Paths) -> Iterator[tuple[Path, str]]:
    """Yield the files of finished runs that are others than those of the run's second copy in the store.

    Two files of a training of other data or code are never those of the run, so two that are make a second copy of it.
    """
    for run in plan.trainings:
        ours = _recorded(paths.run_files(run))
        for entry in kept(paths, run):
            theirs = {} if entry.damage() else _recorded(entry.files)
            other = [name for name in ours if theirs.get(name, ours[name]) != ours[name]]
            # the settings of a run are those of all its trainings
            if other and len(ours) - len(other) > 2:
                for name in other:
                    yield paths.run(run) / name, f"is another than its second copy in {entry.folder}"


def _recorded(files: RunFiles) -> dict[str, str]:
    """Return the recorded checksums of the files of a finished training, by their names; none where one is damaged."""
    try:
        return {file.name: checksum_of(file) for file in files.trained if file.exists()}
    except UserError:  # named as a fault of the file
        return {}


def _unusable(plan: Plan, paths: Paths) -> Iterator[tuple[Path, str]]:
    """Yield each file of predictions that is there and that `score` leaves out, with the reason.

    A partition with which no predictions agree may be what was changed, and is named too.
    """
    agrees: dict[str, bool] = {}
    for name, run in plan.runs.items():
        file = paths.predictions(name, plan.prediction_jobs[name])
        if not file.exists():
            continue
        # one run at a time: the predictions of all may not fit into the memory
        predicted = Predictions(plan, paths)
        try:
            for key in plan.predictions(name):
                predicted.parts(run, key)
            agrees[run.partition_id] = True
        except UserError as error:
            if Path(error.where) == (partition := paths.partition(run.partition_id)):
                yield partition, error.what
                continue
            yield file, f"cannot be scored: {error.what}"
            if isinstance(error, Missing):
                agrees.setdefault(run.partition_id, False)
    for key, whole in agrees.items():
        if not whole:
            yield paths.partition(key), "agrees with no predictions: one of the two was changed"


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


def named(checked: Iterable[Checked], faults: Mapping[Path, str]) -> list[Checked]:
    """Return the jobs that write some files, with the faults of these alone."""
    jobs = (replace(one, faults={file: faults[file] for file in one.output.every if file in faults}) for one in checked)
    return [one for one in jobs if one.faults]


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
