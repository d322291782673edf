"""The files that the rules of the workflow write for a study, and those that each rule reads.

Imports no pandas: Snakemake asks here for the files that a finished study consists of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from ..analysis.published_words import of_ledger
from ..core.errors import UserError
from ..io import identity
from ..io.paths import Paths
from ..io.text import read_json
from ..study.plan import Plan

SOURCES = ("download", "prepare", "partition")
"""Rules whose files are made again where a job needs them, and not because they are gone."""


@dataclass(frozen=True)
class Output:
    """The files that one job of a rule writes."""

    rule: str
    files: tuple[Path, ...]
    ids: Callable[[], Mapping[str, str]] = dict
    """Returns what the files state about themselves; see `io.identity`."""
    beside: tuple[Path, ...] = ()
    """Files that the job writes too, and whose folder alone is named to Snakemake."""

    @property
    def every(self) -> tuple[Path, ...]:
        """All files that the job writes."""
        return self.files + self.beside


def require_own_name(plan: Plan, paths: Paths) -> None:
    """Raise UserError where the page and the tables under the name of a study are those of another file."""
    from ..io.paths import one_spelling

    headline = paths.study_files(plan.name).headline
    other = read_json(headline).get("file") if headline.exists() else None
    # A file that was renamed or moved is no longer there, and its results are of no other study.
    if other and other != one_spelling(plan.path) and Path(other).is_file():
        problem = f"the study {plan.name!r} is already that of {other}: its page and tables would be replaced"
        raise UserError(plan.path, problem, f"rename one of the two files, or remove {headline.parent}")


def outputs(plan: Plan, paths: Paths) -> Iterator[Output]:
    """Yield the outputs of all jobs of a study, from the source of its data to its page."""
    study = paths.study_files(plan.name)
    yield from (Output("download", (paths.source(raw),)) for raw in dict.fromkeys(d.raw for d in plan.data.values()))
    for key in plan.data:
        yield Output("prepare", paths.data_files(key).written, partial(dict, data=key))
    for key in _partitions(plan):
        yield Output("partition", (paths.partition(key),), partial(dict, partition=key))
    for key in plan.controls:
        yield Output("control", (paths.control(key),), partial(dict, partition=key))
    for run in plan.trainings:
        yield Output("train", paths.run_files(run).trained, partial(identity.of_run, paths.run_files(run)))
    # The files of a choice are those of the chosen training, and state its id.
    yield from (Output("choose", paths.run_files(run).trained) for run in plan.searches)
    for run, job in plan.predicted:
        ids = partial(identity.of_predictions, paths.run_files(run), plan.sweeps[job])
        yield Output("predict", (paths.predictions(run, job),), ids)
    yield Output("score", (study.scores, study.missing))
    if of_ledger(plan):
        yield Output("ledger", (study.ledger,))
    if plan.measures_divergence:
        yield Output("divergence", (study.divergence,))
    yield Output("report", (paths.page(plan.name), *study.reported), beside=tuple(map(study.figure, plan.figures)))


def finished(plan: Plan, paths: Paths) -> list[Path]:
    """Return the files that a finished study keeps: all but data and partitions, which can be made again at any time.

    If one is gone, the next call of Snakemake makes it again.
    """
    made = (output.files for output in outputs(plan, paths) if output.rule not in SOURCES)
    return [*chain(*made)]


def predictions(plan: Plan, paths: Paths) -> list[Path]:
    """Return the tables of predictions of all runs."""
    return [paths.predictions(run, job) for run, job in plan.prediction_jobs.items()]


def read_by(rule: str, plan: Plan, paths: Paths) -> list[Path]:
    """Return the files of a study that a rule from `score` on reads, as far as other rules write them."""
    study = paths.study_files(plan.name)
    data = [paths.data_files(key) for key in plan.data]
    images = [files.images for files in data]
    tables = [files.samples for files in data]
    pixels = [files.pixels for files in data]
    cards = [files.card for files in data]
    partitions = [paths.partition(key) for key in _partitions(plan)]
    runs = [paths.run_files(run) for run in plan.runs]
    rounds = [run.rounds for run in runs]
    manifests = [run.manifest for run in runs]
    scored = [study.scores, study.missing]
    controls = [paths.control(key) for key in plan.controls]
    predicted = predictions(plan, paths)
    reported = [
        *(*scored, study.ledger, study.divergence, *predicted, *controls, *rounds, *manifests),
        *(*images, *tables, *pixels, *cards, *partitions),
    ]
    return {
        "score": [*predicted, *tables, *partitions],
        "ledger": images,
        "divergence": [*images, *tables, *cards, *partitions, *(file for run in runs for file in run.trained)],
        "report": reported,
        "figure": [*reported, *study.summarised],
        "export": [*scored, *rounds, *manifests, *(run.spec for run in runs)],
    }[rule]


def _partitions(plan: Plan) -> dict[str, None]:
    return dict.fromkeys(run.partition_id for run in plan.runs.values())
