"""What a call of Snakemake would do for some studies: jobs by rule, time and disk, and whence each estimate comes."""

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
from .run_state import State, look
from .sample_counts import Amounts


@dataclass(frozen=True)
class Count:
    """Jobs of a rule, how many of them need not run, and why the others do, as Snakemake says."""

    rule: str
    jobs: int
    cached: int
    to_run: int
    why: dict[str, int]


@dataclass(frozen=True)
class Need:
    """What jobs of a rule need together, estimated in one way: hours, or bytes; None where that is unknown.

    Hours are those of a GPU, or of one core of a CPU; `device` is "" where it was not recorded.
    """

    rule: str
    jobs: int
    amount: float | None
    source: str
    device: str = ""


@dataclass(frozen=True)
class Survey:
    """Of the runs to train, so many are at work, go on from a checkpoint, or may end early for lack of patience."""

    counts: list[Count]
    hours: list[Need]
    bytes: list[Need]
    free_bytes: int
    at_work: int
    going_on: int
    may_end_early: int

    def plain(self) -> dict[str, Any]:
        """The same as mappings and lists."""
        return asdict(self)


@dataclass(frozen=True)
class Prediction:
    """A job of one or several inferences of a run."""

    run: Run
    sweep: str
    inferences: int


def survey(plans: Mapping[str, Plan], pending: Sequence[Job], paths: Paths) -> Survey:
    """What some studies ask for, what of it is there, and what the `pending` jobs take."""
    runs = {key: run for plan in plans.values() for key, run in plan.runs.items()}
    predictions = {
        f"{run}-{sweep}": Prediction(runs[run], sweep, len(plan.sweeps[sweep]))
        for plan in plans.values()
        for run, sweeps in plan.asked.items()
        for sweep in sweeps
    }
    states = {job.id: look(runs[job.id], paths) for job in pending if job.rule == "train"}
    amounts, known = Amounts(paths), list(timed(runs, states, paths))
    models = sizes.Models((one.run for one in known), amounts, paths)
    missing = [job for job in pending if job.reason == MISSING]
    return Survey(
        counts=[_count(rule, jobs, pending) for rule, jobs in asked(plans).items() if jobs],
        hours=_gathered(_hours(pending, states, runs, predictions, Clock(known, amounts, paths))),
        bytes=_gathered(_bytes(missing, runs, predictions, models, amounts)),
        free_bytes=shutil.disk_usage(paths.root).free,
        at_work=sum(state.state == "running" for state in states.values()),
        going_on=sum(state.state != "running" and _left(state) < 1 for state in states.values()),
        may_end_early=sum(runs[key].training.patience is not None for key in states),
    )


def asked(plans: Mapping[str, Plan]) -> dict[str, int]:
    """How many jobs of each rule some studies need in all."""
    runs = {key: run for plan in plans.values() for key, run in plan.runs.items()}
    return {
        "download": len({run.data.raw for run in runs.values()}),
        "prepare": len({run.data.id for run in runs.values()}),
        "partition": len({run.partition_id for run in runs.values()}),
        "train": len(runs),
        "predict": len({(run, sweep) for plan in plans.values() for run, of in plan.asked.items() for sweep in of}),
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
    """The share of a run's rounds that is still to be trained, if its checkpoint is of the same code and data."""
    passed = {"running": state.round, "done": 0}.get(state.state, state.checkpoint)
    return 1 - (passed or 0) / state.rounds


def _hours(
    pending: Iterable[Job],
    states: Mapping[str, State],
    runs: Mapping[str, Run],
    predictions: Mapping[str, Prediction],
    clock: Clock,
) -> Iterator[Need]:
    """Of trainings and predictions, job by job. The other rules are not timed."""
    for job in pending:
        if job.rule == "train":
            found, share = clock.train(runs[job.id]), _left(states[job.id])
        elif job.rule == "predict":
            one = predictions[job.id]
            found, share = clock.predict(one.run, one.sweep, one.inferences), 1.0
        else:
            continue
        hours = None if found.seconds is None else found.seconds * share / 3600
        yield Need(job.rule, 1, hours, found.source, found.device)


def _bytes(
    missing: Iterable[Job],
    runs: Mapping[str, Run],
    predictions: Mapping[str, Prediction],
    models: sizes.Models,
    amounts: Amounts,
) -> Iterator[Need]:
    """Of files that are not there yet, job by job. Tables and pages are too small to count."""
    data = {run.data.raw: run.data for run in runs.values()}
    for job in missing:
        if job.rule == "download":
            size = sizes.raw(data[job.id])
        elif job.rule == "prepare":
            size = sizes.ARRAYS
        elif job.rule == "train":
            size = models.of(runs[job.id])
        elif job.rule == "predict":
            one = predictions[job.id]
            size = sizes.predictions(one.run, amounts.tested(one.run), one.inferences)
        else:
            continue
        if size.bytes != 0:
            yield Need(job.rule, 1, size.bytes, size.source)


def _gathered(needs: Iterable[Need]) -> list[Need]:
    """Those of one rule, source and device as one."""
    found: dict[tuple[str, str, str], Need] = {}
    for need in needs:
        key = need.rule, need.source, need.device
        so_far = found.get(key, replace(need, jobs=0, amount=None if need.amount is None else 0.0))
        amount = None if need.amount is None else need.amount + (so_far.amount or 0)
        found[key] = replace(so_far, jobs=so_far.jobs + 1, amount=amount)
    return list(found.values())


def lines(found: Survey) -> Iterator[str]:
    """A survey for people: a table of jobs, then what they take and how that is known."""
    yield f"{'rule':10} {'jobs':>6} {'cached':>7} {'to run':>7}"
    for c in found.counts:
        why = ", ".join(f"{n} {reason}" for reason, n in c.why.items())
        yield f"{c.rule:10} {c.jobs:6} {c.cached:7} {c.to_run:7}   {why}".rstrip()
    sums = [sum(getattr(c, key) for c in found.counts) for key in ("jobs", "cached", "to_run")]
    yield "{:10} {:6} {:7} {:7}".format("all", *sums)
    if found.at_work or found.going_on:
        at_work = f"Runs to train that are at work now: {found.at_work}"
        yield f"{at_work}; that go on from a checkpoint, if code and data are as they were: {found.going_on}."
    yield from _part("Time of training and prediction", found.hours, _hours_in_words)
    if found.may_end_early:
        yield f"  runs with patience, which may end early and count in full: {found.may_end_early}"
    yield from _part("Disk", found.bytes, _bytes_in_words)
    needed = sum(need.amount or 0 for need in found.bytes)
    yield f"  free: {_bytes_in_words(found.free_bytes)}" + ", too little" * (needed > found.free_bytes)


def _part(title: str, needs: Sequence[Need], in_words: Callable[[float, str], str]) -> Iterator[str]:
    """A sum for each kind of device, and what it is made of. Where a part is unknown, the sum is a lower bound."""
    sums: dict[str, float] = {}
    for need in needs:
        if need.amount is not None:
            sums[need.device] = sums.get(need.device, 0) + need.amount
    least = "at least " if sums and any(need.amount is None for need in needs) else ""
    told = " and ".join(in_words(amount, device) for device, amount in sums.items())
    yield f"{title}: {least}{told or ('unknown' if needs else 'none')}"
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
