"""The plan of a call of Snakemake: jobs by rule, time and disk space, and the source of each estimate."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..io.paths import Paths
from ..papers.words import of_ledger
from ..study.plan import Plan
from ..study.run import Run
from . import disk as sizes
from .dag import MISSING, Job
from .hours import Clock, timed
from .run_state import State, state_of
from .sample_counts import SampleCounts


@dataclass(frozen=True)
class Count:
    """Jobs of a rule: how many there are, how many of them need not run, and Snakemake's reasons to run the others."""

    rule: str
    jobs: int
    cached: int
    to_run: int
    why: dict[str, int]


@dataclass(frozen=True)
class Need:
    """Hours or bytes that some jobs of a rule need together.

    Attributes
    ----------
    amount : hours of a GPU or of one core of a CPU, or bytes; None where unknown
    source : source of the estimate
    device : name of the device that hours are for; "" where it was not recorded
    """

    rule: str
    jobs: int
    amount: float | None
    source: str
    device: str = ""


@dataclass(frozen=True)
class Survey:
    """Jobs of studies, and what those that would run need.

    Attributes
    ----------
    counts : jobs by rule
    hours, bytes : needs of the jobs that would run
    free_bytes : free space of the disk
    at_work : runs to train that are being trained now
    going_on : runs to train that resume from a checkpoint
    may_end_early : runs to train that have a patience
    """

    counts: list[Count]
    hours: list[Need]
    bytes: list[Need]
    free_bytes: int
    at_work: int
    going_on: int
    may_end_early: int

    def plain(self) -> dict[str, Any]:
        """Return all fields as mappings and lists."""
        return asdict(self)


@dataclass(frozen=True)
class Prediction:
    """A prediction job of a run, with one or several inferences."""

    run: Run
    sweep: str
    inferences: int


def survey(plans: Mapping[str, Plan], pending: Sequence[Job], paths: Paths) -> Survey:
    """Return the jobs of studies, and the hours and bytes that the `pending` ones need."""
    runs = {key: run for plan in plans.values() for key, run in (plan.runs | plan.candidates).items()}
    predictions = {
        f"{run}-{sweep}": Prediction(runs[run], sweep, len(plan.sweeps[sweep]))
        for plan in plans.values()
        for run, sweep in plan.predicted
    }
    states = {job.id: state_of(runs[job.id], paths) for job in pending if job.rule == "train"}
    counts, known = SampleCounts(paths), list(timed(runs, states, paths))
    models = sizes.Models((one.run for one in known), counts, paths)
    missing = [job for job in pending if job.reason == MISSING]
    return Survey(
        counts=[_count(rule, jobs, pending) for rule, jobs in job_counts(plans).items() if jobs],
        hours=_gathered(_hours(pending, states, runs, predictions, Clock(known, counts, paths))),
        bytes=_gathered(_bytes(missing, runs, predictions, models, counts)),
        free_bytes=shutil.disk_usage(paths.root).free,
        at_work=sum(state.state == "running" for state in states.values()),
        going_on=sum(state.state != "running" and _left(state) < 1 for state in states.values()),
        may_end_early=sum(runs[key].training.patience is not None for key in states),
    )


def job_counts(plans: Mapping[str, Plan]) -> dict[str, int]:
    """Return the number of jobs of each rule that studies need in all."""
    runs = {key: run for plan in plans.values() for key, run in plan.runs.items()}
    return {
        "download": len({run.data.raw for run in runs.values()}),
        "prepare": len({run.data.id for run in runs.values()}),
        "partition": len({run.partition_id for run in runs.values()}),
        "control": len({key for plan in plans.values() for key in plan.controls}),
        "train": len({key for plan in plans.values() for key in plan.trainings}),
        "choose": len({key for plan in plans.values() for key in plan.searches}),
        "predict": len({job for plan in plans.values() for job in plan.predicted}),
        "score": len(plans),
        "ledger": sum(map(of_ledger, plans.values())),
        "summarise": len(plans),
        "figure": sum(len(plan.study.figures) for plan in plans.values()),
        "page": len(plans),
        "index": 1,
    }


def _count(rule: str, jobs: int, pending: Iterable[Job]) -> Count:
    why = Counter(job.reason for job in pending if job.rule == rule)
    return Count(rule, jobs, jobs - why.total(), why.total(), dict(why))


def _left(state: State) -> float:
    """Return the share of a run's rounds that is left to train, if its checkpoint has the same code and data."""
    passed = {"running": state.round, "done": 0}.get(state.state, state.checkpoint)
    return 1 - (passed or 0) / state.rounds


def _hours(
    pending: Iterable[Job],
    states: Mapping[str, State],
    runs: Mapping[str, Run],
    predictions: Mapping[str, Prediction],
    clock: Clock,
) -> Iterator[Need]:
    """Yield the hours of each training and prediction. Jobs of other rules are not timed."""
    for job in pending:
        if job.rule == "train":
            estimate, share = clock.train(runs[job.id]), _left(states[job.id])
        elif job.rule == "predict":
            one = predictions[job.id]
            estimate, share = clock.predict(one.run, one.sweep, one.inferences), 1.0
        else:
            continue
        hours = None if estimate.seconds is None else estimate.seconds * share / 3600
        yield Need(job.rule, 1, hours, estimate.source, estimate.device)


def _bytes(
    missing: Iterable[Job],
    runs: Mapping[str, Run],
    predictions: Mapping[str, Prediction],
    models: sizes.Models,
    counts: SampleCounts,
) -> Iterator[Need]:
    """Yield the bytes of each job whose files do not exist yet. Tables and pages are too small to count."""
    data = {run.data.raw: run.data for run in runs.values()}
    for job in missing:
        if job.rule == "download":
            size = sizes.raw(data[job.id])
        elif job.rule == "prepare":
            size = sizes.ARRAYS
        elif job.rule == "train":
            size = models.size(runs[job.id])
        elif job.rule == "predict":
            one = predictions[job.id]
            size = sizes.predictions(one.run, counts.predicted(one.run), one.inferences)
        else:
            continue
        if size.bytes != 0:
            yield Need(job.rule, 1, size.bytes, size.source)


def _gathered(needs: Iterable[Need]) -> list[Need]:
    """Return needs in which those of one rule, source and device are added up."""
    sums: dict[tuple[str, str, str], Need] = {}
    for need in needs:
        key = need.rule, need.source, need.device
        so_far = sums.get(key, replace(need, jobs=0, amount=None if need.amount is None else 0.0))
        amount = None if need.amount is None else need.amount + (so_far.amount or 0)
        sums[key] = replace(so_far, jobs=so_far.jobs + 1, amount=amount)
    return list(sums.values())


def lines(survey: Survey) -> Iterator[str]:
    """Yield the lines of a plan: a table of jobs, then what they need and the source of each estimate."""
    yield f"{'rule':10} {'jobs':>6} {'cached':>7} {'to run':>7}"
    for c in survey.counts:
        why = ", ".join(f"{n} {reason}" for reason, n in c.why.items())
        yield f"{c.rule:10} {c.jobs:6} {c.cached:7} {c.to_run:7}   {why}".rstrip()
    sums = [sum(getattr(c, key) for c in survey.counts) for key in ("jobs", "cached", "to_run")]
    yield "{:10} {:6} {:7} {:7}".format("all", *sums)
    if survey.at_work or survey.going_on:
        resumed = f"resume from a checkpoint (if code and data have not changed): {survey.going_on}"
        yield f"Runs to train: running now: {survey.at_work}; {resumed}."
    yield from _part("Time for training and prediction", survey.hours, _hours_in_words)
    if survey.may_end_early:
        yield f"  runs that may end early because of their patience, and are counted in full: {survey.may_end_early}"
    yield from _part("Disk space", survey.bytes, _bytes_in_words)
    needed = sum(need.amount or 0 for need in survey.bytes)
    yield f"  free: {_bytes_in_words(survey.free_bytes)}" + ", which is too little" * (needed > survey.free_bytes)


def _part(title: str, needs: Sequence[Need], in_words: Callable[[float, str], str]) -> Iterator[str]:
    """Yield the sum of needs for each device, then each need. Where one is unknown, the sum is a lower bound."""
    sums: dict[str, float] = {}
    for need in needs:
        if need.amount is not None:
            sums[need.device] = sums.get(need.device, 0) + need.amount
    least = "at least " if sums and any(need.amount is None for need in needs) else ""
    total = " and ".join(in_words(amount, device) for device, amount in sums.items())
    yield f"{title}: {least}{total or ('unknown' if needs else 'none')}"
    for need in needs:
        amount = "unknown" if need.amount is None else in_words(need.amount, need.device)
        yield f"  {need.rule:8} {need.jobs:6}   {amount:16} {need.source}"


def _hours_in_words(hours: float, device: str) -> str:
    amount, unit = (hours, "hours") if hours >= 0.1 else (60 * hours, "minutes")
    if device.startswith("CPU"):
        return f"{amount:.2f} CPU-{unit}"
    return f"{amount:.2f} GPU-{unit} ({device})" if device else f"{amount:.2f} {unit} (device not recorded)"


def _bytes_in_words(n: float, _: str = "") -> str:
    return f"{n / 1e9:.2f} GB" if n >= 1e8 else f"{n / 1e6:.2f} MB"
