"""What `fedshift plan` prints: the jobs that Snakemake would run, and their hours, estimated from finished runs."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core import digest
from ..core.errors import UserError
from ..core.spelling import counted
from ..io.paths import Paths
from ..io.shipped import workflow_of
from ..io.text import read_json
from ..study.calls import dry_run
from ..study.plan import Plan
from ..study.run import Run, flat
from .call import RULES, outputs
from .status import State, state_of


@dataclass(frozen=True)
class Job:
    """A job that Snakemake would run: its rule, its wildcards' values joined by "-" (`id`), and the first reason."""

    rule: str
    id: str
    reason: str


class _Listener(logging.Handler):
    """A log handler that collects the jobs and the error messages of a dry run of Snakemake."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Add the job or the error message of one log record to `jobs` or `errors`; ignore other records."""
        from snakemake_interface_logger_plugins.common import LogEvent

        if getattr(record, "event", None) == LogEvent.JOB_INFO:
            job: Any = record
            reason = re.split("[:;]", str(job.reason))[0].strip().lower()
            self.jobs.append(Job(job.rule_name, "-".join(map(str, job.wildcards.values())), reason))
        elif record.levelno >= logging.ERROR:
            self.errors.append(record.getMessage())


@contextlib.contextmanager
def _no_new_folder(folder: Path) -> Iterator[None]:
    """After the block, remove the `folder` that a dry run of Snakemake leaves, unless it existed before.

    Subfolders with other files stay, since another call of Snakemake may have begun meanwhile.
    """
    existed = folder.exists()
    try:
        yield
    finally:
        if not existed:
            (folder / "iocache" / "latest.pkl").unlink(missing_ok=True)
            for path in sorted((*folder.rglob("*/"), folder), reverse=True):
                with contextlib.suppress(OSError):
                    path.rmdir()


def pending_jobs(config: Mapping[str, Any]) -> list[Job]:
    """Return the jobs that Snakemake would run now in the current folder with the settings `config`.

    A dry run finds them, which takes seconds and leaves no files. Raises UserError if there is no Snakefile, and if
    Snakemake fails.
    """
    from snakemake.api import SnakemakeApi
    from snakemake.logging import logger
    from snakemake.settings.types import ConfigSettings, DAGSettings, OutputSettings, ResourceSettings

    snakefile = workflow_of(Path())
    listener = _Listener()
    with (
        _no_new_folder(Path(".snakemake")),
        contextlib.redirect_stderr(io.StringIO()),
        SnakemakeApi(OutputSettings(dryrun=True)) as api,
    ):
        logger.addHandler(listener)
        try:
            workflow = api.workflow(
                resource_settings=ResourceSettings(cores=1),
                config_settings=ConfigSettings(config=dict(config)),
                snakefile=snakefile,
            )
            workflow.dag(DAGSettings()).execute_workflow(executor="dryrun")
        except Exception as error:
            messages = listener.errors or [str(error) or type(error).__name__]
            raise UserError(snakefile, f"Snakemake's dry run failed: {messages[-1]}", f"see {dry_run()}") from error
    return [job for job in listener.jobs if job.rule != "all"]


CONDITION = "median of finished runs of the same condition"
"""The source of an estimate from runs that differ in nothing but the seed."""
RELATED = "median of finished runs with the same dataset and network: rough"
MANY = 3
"""The most settings by which a new run may differ from a finished one and still be described by the difference."""
UNKNOWN = "no run with the same dataset and network has finished in this folder"


@dataclass(frozen=True)
class Count:
    """The number of jobs of a rule: all, finished (`cached`) and to run, and `why` they run: jobs by reason."""

    rule: str
    jobs: int
    cached: int
    to_run: int
    why: dict[str, int]


@dataclass(frozen=True)
class Need:
    """The estimated time that some jobs of a rule need together.

    `amount` is in hours of a GPU or of one CPU core, or None if unknown. `source` says on what the estimate is based,
    and `device` names the GPU or the CPU.
    """

    rule: str
    jobs: int
    amount: float | None
    source: str
    device: str = ""


@dataclass(frozen=True)
class Survey:
    """The jobs of studies by rule, and the hours of the trainings and predictions that would run.

    `at_work` is the number of runs being trained now, `going_on` of runs that resume from a checkpoint, and
    `may_end_early` of runs to train that have a patience. `new` maps the difference in settings between a run that was
    never trained and the most similar finished run to the number of such runs.
    """

    counts: list[Count]
    hours: list[Need]
    at_work: int
    going_on: int
    may_end_early: int
    new: Mapping[str, int] = field(default_factory=dict)


def survey(
    plans: Mapping[str, Plan],
    pending: Sequence[Job],
    paths: Paths,
    probe: Callable[[Run, int], Need] | None = None,
) -> Survey:
    """Count the jobs of studies, and estimate the hours that their `pending` jobs need.

    If no finished run allows an estimate of a training, `probe` estimates it from the run and the number of rounds.
    """
    runs = {key: run for plan in plans.values() for key, run in (plan.runs | plan.candidates).items()}
    predictions = {f"{run}-{sweep}": (run, sweep) for plan in plans.values() for run, sweep in plan.predicted}
    states = {job.id: state_of(runs[job.id], paths) for job in pending if job.rule == "train"}
    clock = Clock(paths)
    # Jobs of other rules take seconds and are left out.
    needs = [clock.train(runs[key].spec, _rounds_left(state)) for key, state in states.items()]
    if probe:
        needs = [
            need if need.amount is not None else probe(runs[key], _rounds_left(state))
            for need, (key, state) in zip(needs, states.items(), strict=True)
        ]
    for job in pending:
        if job.rule == "predict":
            run, sweep = predictions[job.id]
            needs.append(clock.predict(runs[run].spec, sweep))
    counts = []
    for rule, jobs in job_counts(plans).items():
        why = Counter(job.reason for job in pending if job.rule == rule)
        if jobs:
            counts.append(Count(rule, jobs, jobs - why.total(), why.total(), dict(why)))
    return Survey(
        counts=counts,
        hours=_sums(needs),
        at_work=sum(state.state == "running" for state in states.values()),
        going_on=sum(state.state != "running" and _rounds_left(state) < state.rounds for state in states.values()),
        may_end_early=sum(runs[key].training.patience is not None for key in states),
        new=Counter(filter(None, (clock.difference(runs[key].spec) for key, s in states.items() if s.state != "done"))),
    )


def job_counts(plans: Mapping[str, Plan]) -> dict[str, int]:
    """Return the number of jobs of each rule that studies have in total, finished or not."""
    made = {(output.rule, output.files) for plan in plans.values() for output in outputs(plan, Paths())}
    counts = Counter(rule for rule, _ in made)
    return {rule: counts[rule] for rule in RULES} | {"index": 1}


def _rounds_left(state: State) -> int:
    """Return the number of rounds that a pending training has left, if code and data still match its checkpoint."""
    if state.state == "done":  # it would be trained anew
        return state.rounds
    if state.state == "running":
        return state.rounds - (state.round or 0)
    return state.rounds - (state.checkpoint or 0)


class Clock:
    """Estimates of hours from the times of the finished runs in a project folder."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.conditions = dict[str, dict[str, Any]]()
        """The settings of finished runs by dotted path, one entry for all runs that differ in nothing but the seed."""
        self.differences = dict[str, str]()
        """Cached results of `difference`, by condition (a digest of all settings but the seed)."""
        self.finished: dict[str, list[tuple[str, float, str]]] = defaultdict(list)
        """The run id, the seconds of a round and the device of finished runs, by each of their keys (see `_keys`)."""
        for files in paths.every_run():
            try:
                manifest = read_json(files.manifest)
                device = str(manifest["device"])
                seconds = float(manifest["seconds"])
                if device.startswith("CPU"):
                    seconds *= int(manifest["threads"])  # CPU-hours are those of one core
                spec = read_json(files.spec)
                self.conditions[_keys(spec)[CONDITION]] = flat({**spec, "seed": None})
                for key in _keys(spec).values():
                    self.finished[key].append((files.folder.name, seconds / int(manifest["rounds"]), device))
            except (UserError, KeyError, TypeError, ValueError, ZeroDivisionError):
                continue  # not finished, or written by an earlier version

    def train(self, spec: Mapping[str, Any], rounds: int) -> Need:
        """Estimate the hours of `rounds` rounds of the training with the specification `spec`, from similar runs."""
        for source, key in _keys(spec).items():
            times = [(seconds, device) for _, seconds, device in self.finished[key]]
            if times:
                return _median("train", times, source, rounds)
        return Need("train", 1, None, UNKNOWN)

    def difference(self, spec: Mapping[str, Any]) -> str:
        """Return the settings in which a run differs from the most similar finished run, as text.

        Return "" if no run has finished, or if more than MANY settings differ.
        """
        condition = _keys(spec)[CONDITION]
        if not self.conditions:
            return ""
        if condition in self.conditions:
            return "another seed"
        if condition not in self.differences:
            wanted = flat({**spec, "seed": None})
            found = (
                [key for key in sorted({*wanted, *old}) if wanted.get(key) != old.get(key)]
                for old in self.conditions.values()
            )
            keys, old = min(zip(found, self.conditions.values(), strict=True), key=lambda pair: len(pair[0]))
            said = [f"{k} is {json.dumps(wanted.get(k))}, and was {json.dumps(old.get(k))}" for k in keys]
            self.differences[condition] = ", ".join(said) if len(said) <= MANY else ""
        return self.differences[condition]

    def predict(self, spec: Mapping[str, Any], sweep: str) -> Need:
        """Estimate the hours of the prediction job `sweep` of a run, from similar runs with the same inferences."""
        for source, key in _keys(spec).items():
            times = []
            for run, _, device in self.finished[key]:
                seconds = _measured(self.paths.benchmark("predict", f"{run}-{sweep}"), device)
                if seconds is not None:
                    times.append((seconds, device))
            if times:
                return _median("predict", times, source)
        return Need("predict", 1, None, UNKNOWN)


def _keys(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return digests of settings that are equal for runs of similar duration, most similar first.

    The keys say on what an estimate from such runs is based: CONDITION, then RELATED.
    """
    return {CONDITION: digest.of({**spec, "seed": None}), RELATED: digest.of([spec["data"], spec["model"]])}


def _median(rule: str, times: list[tuple[float, str]], source: str, rounds: int = 1) -> Need:
    """Return the time of one job of a rule: the median of pairs (seconds, device), times the number of rounds."""
    # The lower of two middle values is the time of a job, whose device goes with it.
    seconds, device = statistics.median_low(times)
    return Need(rule, 1, seconds * rounds / 3600, source, device)


def _measured(benchmark: Path, device: str) -> float | None:
    """Return the seconds in a job's benchmark file: CPU time of all cores on a CPU, elapsed time on a GPU.

    Return None if the file does not exist or cannot be read.
    """
    try:
        row = list(csv.DictReader(benchmark.read_text(encoding="utf-8").splitlines(), delimiter="\t"))[-1]
        return float(row["cpu_time" if device.startswith("CPU") else "s"])
    except (OSError, KeyError, ValueError, TypeError, IndexError):
        return None


def _sums(needs: Sequence[Need]) -> list[Need]:
    """Return the needs with the hours of equal rule, source and device added up; the sum is None if one is unknown."""
    groups: dict[tuple[str, str, str], list[Need]] = {}
    for need in needs:
        groups.setdefault((need.rule, need.source, need.device), []).append(need)
    sums = []
    for (rule, source, device), group in groups.items():
        hours = [need.amount for need in group]
        sums.append(Need(rule, len(group), None if None in hours else sum(filter(None, hours)), source, device))
    return sums


def lines(survey: Survey, probing: str = "") -> Iterator[str]:
    """Yield the lines that `fedshift plan` prints: a table of jobs, then the hours of training and prediction.

    `probing` is the shell command that estimates unknown hours of trainings, or "" if it has been tried.
    """
    yield f"{'rule':10} {'jobs':>6} {'cached':>7} {'to run':>7}"
    for c in survey.counts:
        why = ", ".join(f"{n} {reason}" for reason, n in c.why.items())
        yield f"{c.rule:10} {c.jobs:6} {c.cached:7} {c.to_run:7}   {why}".rstrip()
    sums = [sum(getattr(c, key) for c in survey.counts) for key in ("jobs", "cached", "to_run")]
    yield "{:10} {:6} {:7} {:7}".format("all", *sums)
    if survey.at_work or survey.going_on:
        resumed = f"resume from a checkpoint (if code and data have not changed): {survey.going_on}"
        yield f"Runs to train: running now: {survey.at_work}; {resumed}."
    for difference, number in survey.new.items():
        yield f"  never trained before: {counted(number, 'run')}; unlike the most similar finished run: {difference}"
    totals: dict[str, float] = defaultdict(float)
    for need in survey.hours:
        if need.amount is not None:
            totals[need.device] += need.amount
    total = " and ".join(_in_words(amount, device) for device, amount in totals.items())
    if total and any(need.amount is None for need in survey.hours):
        total = f"at least {total}"
    total = total or ("unknown" if survey.hours else "none")
    yield f"Time for training and prediction: {total}"
    for need in survey.hours:
        amount = _in_words(need.amount, need.device)
        yield f"  {need.rule:8} {need.jobs:6}   {amount:16} {need.source}"
    if probing and any(need.rule == "train" and need.amount is None for need in survey.hours):
        yield f"To estimate the time of a first training, train it for some seconds: {probing}"
    if survey.may_end_early:
        yield f"  runs that may end early because of their patience, and are counted in full: {survey.may_end_early}"


def _in_words(hours: float | None, device: str) -> str:
    """Return hours as text: `1.50 CPU-hours`, `0.50 GPU-minutes (NVIDIA H100)` or `unknown`."""
    if hours is None:
        return "unknown"
    amount = f"{60 * hours:.2f} {{}}-minutes" if hours < 0.1 else f"{hours:.2f} {{}}-hours"
    return amount.format("CPU") if device.startswith("CPU") else f"{amount.format('GPU')} ({device})"
