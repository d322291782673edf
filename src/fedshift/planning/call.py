"""What the Snakefile needs: runs and data by id, files that rules read and write, arguments of jobs, final messages.

This module imports neither torch nor pandas, since Snakemake loads it before any job runs.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from ..analysis.published_words import of_ledger
from ..core.console import say_at_end
from ..core.errors import UserError
from ..core.plugin import Plugin
from ..io import identity
from ..io.paths import Paths, one_spelling
from ..io.text import read_json
from ..study.plan import Plan
from ..study.run import Run
from .status import NORMAL, PIECE, last_line, tail

RULES = (
    *("download", "prepare", "partition", "control", "train", "choose", "predict"),
    *("score", "ledger", "divergence", "report"),
)
"""The rules of the workflow that make a study, in the order of `outputs`."""
SOURCES = RULES[:3]
"""Rules whose missing files Snakemake makes again only if another job needs them."""


@dataclass(frozen=True)
class Output:
    """The files that one job of a rule writes."""

    rule: str
    files: tuple[Path, ...]
    ids: Callable[[], Mapping[str, str]] = dict
    """A function that returns the ids that the files must state about themselves, such as their run's; see
    `io.identity`."""
    beside: tuple[Path, ...] = ()
    """Further files that the job writes. Snakemake knows only their folder."""

    @property
    def every(self) -> tuple[Path, ...]:
        """All files that the job writes, `files` and `beside`."""
        return self.files + self.beside


def require_own_name(plan: Plan, paths: Paths) -> None:
    """Raise UserError if a study's page and tables were made from another YAML file of this name that still exists."""
    headline = paths.study_files(plan.name).headline
    other = read_json(headline).get("file") if headline.exists() else None
    # A file that was renamed or moved is no longer there, and its results are of no other study.
    if other and other != one_spelling(plan.path) and Path(other).is_file():
        problem = f"the name {plan.name!r} is already used by {other}: its page and tables would be replaced"
        raise UserError(plan.path, problem, f"rename one of the two files, or remove {headline.parent}")


def outputs(plan: Plan, paths: Paths) -> Iterator[Output]:
    """Yield the output files of each job of a study, from the download of its data to its page."""
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
    """Return the files that a finished study must have: the outputs of all its jobs except for data and partitions.

    If one of the files is missing, the next call of Snakemake makes it again.
    """
    return [file for output in outputs(plan, paths) if output.rule not in SOURCES for file in output.files]


def predictions(plan: Plan, paths: Paths) -> list[Path]:
    """Return the files with the predictions of all runs of a study."""
    return [paths.predictions(run, job) for run, job in plan.prediction_jobs.items()]


def read_by(rule: str, plan: Plan, paths: Paths) -> list[Path]:
    """Return the files that a rule reads and that other rules write for the study.

    `rule` is score, ledger, divergence, report, figure or export.
    """
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
    """Return the ids of all partitions of a study, each once, as the keys of a dict."""
    return dict.fromkeys(run.partition_id for run in plan.runs.values())


@contextmanager
def errors_end_the_call() -> Iterator[None]:
    """If the block raises UserError, end this process with the error's exit code, and print the error as last line."""
    try:
        yield
    except UserError as error:
        say_at_end([str(error)])
        sys.exit(error.exit_code)


class Call:
    """Everything that the studies of one Snakemake call contain, by the ids that occur in file names.

    Attributes
    ----------
    plans : the studies, by name
    config : the settings of the call, as in config/config.yaml
    plugins : the options that repeat the folders of plug-ins
    runs : the trainings, and the runs with a search that are chosen among trainings
    oracles : the id of the prediction job by whose results at external sites a search chooses, by training
    inferences : the inferences of each prediction job
    data, raw : the datasets, by the id of their prepared images and of their raw files
    partitions, controls : one run that uses each partition; `controls` has partitions with a control alone
    """

    def __init__(self, plans: Mapping[str, Plan], config: Mapping[str, Any], plugins: Sequence[Path]) -> None:
        self.plans = plans
        self.config = config
        self.plugins = "".join(f" --plugins {quote(str(folder))}" for folder in plugins)
        self.runs: dict[str, Run] = {}
        self.oracles: dict[str, str] = {}
        self.inferences: dict[str, list[Plugin]] = {}
        self.controls: dict[str, Run] = {}
        for plan in plans.values():
            self.runs |= plan.trainings | plan.searches
            self.oracles |= plan.oracles
            self.controls |= plan.controls
            for key, members in plan.sweeps.items():
                chosen = [plan.inferences[member] for member in members]
                # Inferences of one name have one code: each counts once in the identity of a job.
                self.inferences[key] = list({plugin.name: plugin for plugin in chosen}.values())
        self.data = {run.data.id: run.data for run in self.runs.values()}
        self.raw = {data.raw: data for data in self.data.values()}
        self.partitions = {run.partition_id: run for run in self.runs.values()}

    def run(self, key: str) -> Run:
        """Return the run with an id. Raises UserError for an unknown id."""
        if key not in self.runs:
            problem = "no study of this call has this run"
            raise UserError(f"run {key!r}", problem, "fedshift check STUDY --ids lists all ids")
        return self.runs[key]

    @property
    def studies(self) -> str:
        """The command-line arguments that name all studies of this call, with scale, folder, plug-ins and settings."""
        study = quote(str(self.config["study"]))
        folder = quote(str(self.config["studies"]))
        return f"{study} --scale {self.config['scale']} --studies {folder}{self.plugins}{self.settings}"

    def study(self, name: str) -> str:
        """Return the command-line arguments that name one study of this call, with scale, plug-ins and settings."""
        return f"{quote(str(self.plans[name].path))} --scale {self.config['scale']}{self.plugins}{self.settings}"

    @property
    def settings(self) -> str:
        """The options `--set` of this call, which replace values of the studies' files; "" without any."""
        return "".join(f" --set {quote(setting)}" for setting in self.config.get("set") or ())

    @property
    def mirror(self) -> str:
        """The option `--mirror` with the folder of data files, or "" if the call names none."""
        return f"--mirror {quote(str(self.config['mirror']))}" if self.config["mirror"] else ""

    @property
    def launch(self) -> str:
        """The words after `python -m` that start a training in several processes, or "" if one process trains."""
        processes = int(self.config["processes"])
        return "" if processes == 1 else f"torch.distributed.run --standalone --nproc-per-node={processes} -m"

    def slow_libraries(self, runs: Iterable[str]) -> list[str]:
        """Return the names of the slow modules that trainings import, given the ids of runs; [] without runs."""
        named = [name for key in runs for plugin in self.run(key).plugins for name in ("torch", *plugin.libraries)]
        return list(dict.fromkeys(named))


DEFAULT_RATE = (100, 1)
"""Snakemake's default limit on the rate of jobs: (number of jobs, seconds)."""


def lift_default_limit(workflow: Any) -> None:
    """Remove Snakemake's default limit on the rate of jobs, if the workflow runs its jobs on this machine.

    With any limit, Snakemake (seen in 9.27) starts a timer after each search for jobs to run, and searches again when
    the timer ends. Each finished job thus adds one search a second, which took a fifth of all processor time in a study
    of 375 jobs.
    """
    limiter = workflow.scheduler.job_rate_limiter
    if limiter and workflow.local_exec and (limiter.max_jobs, limiter.timespan) == DEFAULT_RATE:
        workflow.scheduler.job_rate_limiter = None


MOST_PAGES = 5
"""The most pages whose paths are printed at the end of a call."""


def in_words(runs: Mapping[str, Run]) -> dict[str, str]:
    """Return a description of each run and of each partition, by id: algorithm, BN policy, held-out site and seed.

    If several runs have the same description, the id is added to it.
    """
    words = {
        key: f"{' + '.join(run.methods)}, bn {run.bn}, {_held_out(run)}, seed {run.seed}" for key, run in runs.items()
    }
    counts = Counter(words.values())
    partitions = {run.partition_id: f"{run.data.dataset.name}, {_held_out(run)}" for run in runs.values()}
    return partitions | {key: text if counts[text] == 1 else f"{text} ({key})" for key, text in words.items()}


def _held_out(run: Run) -> str:
    """Return the text that names the site that a run's partition holds out, if there is one."""
    return f"held out {run.partition.title}" if run.partition.title else "no site held out"


def say_pages(pages: Sequence[Path], index: Path) -> None:
    """Print the path of each page of a call when this process ends, after Snakemake's own output.

    For more than MOST_PAGES pages, print their number and the path of `index`, the page that lists all.
    """
    if len(pages) > MOST_PAGES:
        say_at_end([f"{len(pages)} pages, all listed in {index.absolute()}"])
    else:
        say_at_end(f"The page: {page.absolute()}" for page in pages)


FAILED = re.compile(r"^ +log: (.+) \(check log file\(s\) for error details\)$", re.MULTILINE)
"""The line of Snakemake's log about a failed job, which has the path of the job's own log."""
FAULT = re.compile(r"\S.*?: \S")
"""A line of the form `WHERE: WHAT`, as errors are printed."""
PROGRESS = re.compile(r".*\(\d+%\)|wrote ")
"""Lines about progress, which report no error."""
WHOLE = 1 << 30
"""A number of bytes larger than any log."""
MOST_LINES = 5
"""The most lines of one log that are shown."""


def say_last(logs: Iterable[str | Path]) -> None:
    """Print the errors of failed jobs when this process ends, after Snakemake's output. `logs` are Snakemake's logs."""
    say_at_end(faults(map(Path, logs)))


def faults(logs: Iterable[Path]) -> list[str]:
    """Return lines that report the errors of all failed jobs in Snakemake's logs; [] if no job failed.

    Each error is listed once, below the path of a job's own log and the number of further jobs with the same error.
    """
    failed = dict.fromkeys(name for log in logs for name in FAILED.findall(tail(log, WHOLE)[0]))
    if not failed:
        return []
    places: dict[tuple[str, ...], list[str]] = {}
    for name in failed:
        places.setdefault(tuple(_faults(Path(name))), []).append(name)
    jobs = "One job" if len(failed) == 1 else f"{len(failed)} jobs"
    block = ["", f"{jobs} failed. Finished work is kept: when this is corrected, the same call goes on from there."]
    for lines, names in places.items():
        title = names[0] + (f", and {len(names) - 1} more with the same fault" if len(names) > 1 else "")
        block += [f"{title}:", *(f"  {line}" for line in lines or ("its log is empty",))]
    return block


def _faults(log: Path) -> list[str]:
    """Return the lines at the end of a job's log that report errors; only the last line if it has a traceback.

    Return the last line of the log if no line has the form of an error, and [] if the log is empty.
    """
    text, _ = tail(log, PIECE)
    lines = [line.rstrip() for line in text.splitlines() if any(c.isalnum() for c in line)]
    if any(line.startswith("Traceback ") for line in lines):
        lines = lines[-1:]
    last: list[str] = []
    for line in reversed(lines):
        if NORMAL.match(line) or PROGRESS.match(line) or not FAULT.match(line) or len(last) == MOST_LINES:
            break
        last.insert(0, line)
    return last or [line for line in [last_line(log)] if line]
