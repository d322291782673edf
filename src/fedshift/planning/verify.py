"""What `fedshift verify` checks: which files of a study are missing, damaged or exchanged, and which jobs remake them.

Snakemake compares times and settings only, and so cannot notice a damaged file, or one replaced with its old time.
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

SILENT = "does not state the id of its run or data, as other files of this study do: another program wrote it"
"""The fault of a file that states no id."""


@dataclass(frozen=True)
class Checked:
    """The result of checking the output files of one job: `faults` maps a file to its fault.

    `unrecorded` are files without a recorded checksum, which could not be checked.
    """

    output: Output
    faults: dict[Path, str]
    unrecorded: tuple[Path, ...]
    silent: tuple[Path, ...] = ()
    """Undamaged files that do not state the id of their run or data."""
    states: bool = False
    """True if another file of the job states its id."""

    @property
    def begun(self) -> bool:
        """True if the job has written any of its files: a file or a recorded checksum exists."""
        return len(self.faults) < len(self.output.every) or any(f.exists() or recorded(f) for f in self.faults)


def verify(plan: Plan, paths: Paths, threads: int = 1) -> list[Checked]:
    """Read every file of a study in full, and return the faults of the files, job by job.

    A file is faulty if it is missing or damaged, states the id of another run or data, states no id although other
    files of the study do, or contains predictions that cannot be scored. The index page of all studies is checked too,
    if it exists and the study was run.
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
    """Check the output files of one job: their checksums, and the ids that they state."""
    faults = {file: what for file in output.every if (what := damage(file, whole=True) or _exchanged(file, output))}
    sound = [file for file in output.every if file not in faults]
    ids = output.ids() if sound else {}
    silent = [file for file in sound if identity.silent(file, ids)]
    states = bool(ids) and any(file.suffix in identity.STATING for file in sound if file not in silent)
    unrecorded = tuple(file for file in sound if not recorded(file))
    return Checked(output, faults, unrecorded, tuple(silent), states)


def _exchanged(file: Path, output: Output) -> str:
    """Return the fault of a file that states other ids than its path implies, or is unreadable; "" without a fault."""
    try:
        return identity.differs(file, **output.ids())
    except UserError as error:
        return error.what


def _add(checked: Iterable[Checked], faults: Iterable[tuple[Path, str]]) -> None:
    """Add the faults of files to the results of the jobs that write them, unless a file has a fault already."""
    found = dict(faults)
    for one in checked:
        for file in found.keys() & set(one.output.files):
            one.faults.setdefault(file, found[file])


def _unlike_kept(plan: Plan, paths: Paths) -> Iterator[tuple[Path, str]]:
    """Yield the files of finished runs that differ from the run's second copy in the store, each with its fault.

    A copy in the store belongs to the same training if at least three of its files (one of them the settings, which all
    trainings of a run share) equal the run's. A copy of another training of the run, on other data or code, is ignored.
    """
    for run in plan.trainings:
        ours = _recorded(paths.run_files(run))
        for entry in kept(paths, run):
            theirs = {} if entry.damage() else _recorded(entry.files)
            other = [name for name in ours if theirs.get(name, ours[name]) != ours[name]]
            # the settings of a run are those of all its trainings
            if other and len(ours) - len(other) > 2:
                for name in other:
                    yield paths.run(run) / name, f"differs from its second copy in {entry.folder}"


def _recorded(files: RunFiles) -> dict[str, str]:
    """Return the recorded checksums of a finished training's files, by file name; {} if a checksum is unreadable."""
    try:
        return {file.name: checksum_of(file) for file in files.trained if file.exists()}
    except UserError:  # named as a fault of the file
        return {}


def _unusable(plan: Plan, paths: Paths) -> Iterator[tuple[Path, str]]:
    """Yield each existing file of predictions that cannot be scored, with the reason.

    A partition that agrees with no predictions is yielded too, since either of them may have been changed.
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
    """Yield each second copy of a study's runs in the store that is damaged, with its first fault."""
    for run in plan.trainings:
        for entry in kept(paths, run):
            for file, what in entry.damage().items():
                yield entry, f"{file} {what}"
                break


def lines(checked: list[Checked]) -> list[str]:
    """Return a line for each fault, and a line for each rule with files that have no recorded checksum."""
    out = [f"{file}: {fault} (rule {job.output.rule})" for job in checked for file, fault in job.faults.items()]
    unrecorded = Counter(job.output.rule for job in checked for _ in job.unrecorded)
    out += [
        f"{number} files of rule {rule} have no recorded checksum and were not checked: an earlier version wrote them"
        for rule, number in unrecorded.items()
    ]
    return out


def named(checked: Iterable[Checked], faults: Mapping[Path, str]) -> list[Checked]:
    """Return the results of the jobs that write the files in `faults`, with these faults in place of their own."""
    jobs = (replace(one, faults={file: faults[file] for file in one.output.every if file in faults}) for one in checked)
    return [one for one in jobs if one.faults]


def forced(checked: list[Checked]) -> list[Path]:
    """Return one output file of each faulty job that Snakemake must be forced to run again.

    Snakemake makes missing results again by itself, but neither missing data and partitions nor single figures.
    """
    files = []
    for job in checked:
        named = [file for file in job.faults if file in job.output.files]
        missing = all(job.faults[file] == MISSING for file in named)
        if job.faults and (not named or not missing or job.output.rule in SOURCES):
            files.append(next(iter(named), job.output.files[0]))
    return files
