"""A call of Snakemake: members by id, the files that rules write and read, arguments of jobs, what it says.

Imports neither torch nor pandas: Snakemake loads it before anything runs.
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
"""The rules of a study, in the order of `outputs`."""
SOURCES = RULES[:3]
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
    return [file for output in outputs(plan, paths) if output.rule not in SOURCES for file in output.files]


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


@contextmanager
def errors_end_the_call() -> Iterator[None]:
    """End the call where the block raises UserError, with its exit code, and its words as the last line."""
    try:
        yield
    except UserError as error:
        say_at_end([str(error)])
        sys.exit(error.exit_code)


class Call:
    """The members of all studies of a call, by the ids that stand in the names of files.

    `runs` are trainings, and choices among trainings; `oracles` has the prediction job by which a search chooses with
    the results at external sites, for each run; `inferences` those of each prediction job; `data` and `raw` prepared
    and raw datasets; `partitions` a run that uses each, and `controls` the same where the study has a control.
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
        """Return a run. Raises UserError for an unknown id."""
        if key not in self.runs:
            problem = "no study of this call has this run"
            raise UserError(f"run {key!r}", problem, "fedshift check STUDY --ids lists all ids")
        return self.runs[key]

    @property
    def studies(self) -> str:
        """The arguments that name all studies of this call."""
        study = quote(str(self.config["study"]))
        folder = quote(str(self.config["studies"]))
        return f"{study} --scale {self.config['scale']} --studies {folder}{self.plugins}{self.settings}"

    def study(self, name: str) -> str:
        """Return the arguments that name the study of a page."""
        return f"{quote(str(self.plans[name].path))} --scale {self.config['scale']}{self.plugins}{self.settings}"

    @property
    def settings(self) -> str:
        """The options that repeat the settings of this call."""
        return "".join(f" --set {quote(setting)}" for setting in self.config.get("set") or ())

    @property
    def mirror(self) -> str:
        """The option for a mirror of the data files, if there is one."""
        return f"--mirror {quote(str(self.config['mirror']))}" if self.config["mirror"] else ""

    @property
    def launch(self) -> str:
        """How Python starts a training of several processes, which share its clients; nothing for one process."""
        processes = int(self.config["processes"])
        return "" if processes == 1 else f"torch.distributed.run --standalone --nproc-per-node={processes} -m"

    def slow_libraries(self, runs: Iterable[str]) -> list[str]:
        """Return the names of slow modules that the trainings of runs import; none without a training."""
        named = [name for key in runs for plugin in self.run(key).plugins for name in ("torch", *plugin.libraries)]
        return list(dict.fromkeys(named))


DEFAULT_RATE = (100, 1)
"""Snakemake's limit, if none is given: so many jobs in so many seconds."""


def lift_default_limit(workflow: Any) -> None:
    """Take the default limit on the rate of jobs from a workflow that runs its jobs on this machine.

    With any limit, Snakemake (seen in 9.27) starts a timer each time it has looked for jobs to run, and looks again
    when it ends: each job that ends adds a look a second, a fifth of all processor time in a study of 375 jobs.
    """
    limiter = workflow.scheduler.job_rate_limiter
    if limiter and workflow.local_exec and (limiter.max_jobs, limiter.timespan) == DEFAULT_RATE:
        workflow.scheduler.job_rate_limiter = None


MOST_PAGES = 5
"""Pages that are named at the end."""


def in_words(runs: Mapping[str, Run]) -> dict[str, str]:
    """Return what the ids of runs and of their partitions stand for; runs that words leave alike keep their id too."""
    words = {
        key: f"{' + '.join(run.methods)}, bn {run.bn}, {_held_out(run)}, seed {run.seed}" for key, run in runs.items()
    }
    counts = Counter(words.values())
    partitions = {run.partition_id: f"{run.data.dataset.name}, {_held_out(run)}" for run in runs.values()}
    return partitions | {key: text if counts[text] == 1 else f"{text} ({key})" for key, text in words.items()}


def _held_out(run: Run) -> str:
    return f"held out {run.partition.title}" if run.partition.title else "no site held out"


def say_pages(pages: Sequence[Path], index: Path) -> None:
    """Print where the pages of a call are when this process ends: each, or the list of all pages for more than a few.

    It is printed after everything that Snakemake prints itself.
    """
    if len(pages) > MOST_PAGES:
        say_at_end([f"{len(pages)} pages, all listed in {index.absolute()}"])
    else:
        say_at_end(f"The page: {page.absolute()}" for page in pages)


FAILED = re.compile(r"^ +log: (.+) \(check log file\(s\) for error details\)$", re.MULTILINE)
"""A line of Snakemake's log about a failed job, with the path of the job's own log."""
FAULT = re.compile(r"\S.*?: \S")
"""A line that says where something is wrong, and what."""
PROGRESS = re.compile(r".*\(\d+%\)|wrote ")
WHOLE = 1 << 30
"""More bytes than a log has."""
MOST_LINES = 5
"""Lines that are shown of one log."""


def say_last(logs: Iterable[str | Path]) -> None:
    """Print the errors of failed jobs at the end of this process, after Snakemake's own; `logs` are its log files."""
    say_at_end(faults(map(Path, logs)))


def faults(logs: Iterable[Path]) -> list[str]:
    """Return the faults of the failed jobs in Snakemake's logs, each once, below the names of the jobs' own logs."""
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
    """Return the last lines of a job's log that report a fault; of a traceback, and of other logs, the last line."""
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
