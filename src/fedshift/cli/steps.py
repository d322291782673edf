"""Commands that are one step of the workflow each, from raw data to predictions: Snakemake calls them."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.errors import UserError, did_you_mean
from ..io.checksums import require
from ..io.paths import Paths
from ..jobs.accept import download_code, partition_code, prepare_code, train_code
from ..jobs.devices import one_gpu
from .group import Group, call, checked, member, plans


def add(group: Group) -> None:
    """Add the commands download, prepare, partition, control, train, choose and predict."""
    command = group.add(download, "study", "id", work="getting raw files")
    command.add_argument("--mirror", type=Path, help="folder to copy files from, if they are there")
    group.add(prepare, "study", "id", work="preparing images")
    group.add(partition, "study", "id", work="dividing samples")
    group.add(control, "study", "id", work="fitting the control")
    group.add(train, "study", "id", work="opening images and network of a training")
    group.add(choose, "study", "id", work="comparing the trainings of a search")
    group.add(predict, "study", "id", "inference", work="opening images and network of a prediction")


def download(args: argparse.Namespace) -> None:
    """Download raw files, from a mirror or the official source."""
    data = member(args, "raw data", lambda plan: {d.raw: d for d in plan.data.values()})
    from ..jobs.prepare import obtain

    with checked(args, (), [Paths().source(data.raw)]):
        obtain(data, Paths().raw(data.raw), args.mirror, download_code(data))


def prepare(args: argparse.Namespace) -> None:
    """Write the memory-mapped arrays of a dataset."""
    data = member(args, "dataset", lambda plan: plan.data)
    from ..jobs.prepare import prepare as job

    reads = [Paths().source(data.raw)]
    writes = Paths().data_files(data.id).written
    with checked(args, reads, writes, Paths().benchmark("prepare", data.id)):
        job(data, Paths().raw(data.raw), Paths().data(data.id), args.threads, prepare_code(data))


def partition(args: argparse.Namespace) -> None:
    """Assign samples to roles and splits."""
    run = member(args, "partition", lambda plan: {run.partition_id: run for run in plan.runs.values()})
    from ..jobs.assign import assign

    samples = Paths().data_files(run.data.id).samples
    out = Paths().partition(args.id)
    with checked(args, [samples], [out]):
        assign(run, samples, out, partition_code())


def control(args: argparse.Namespace) -> None:
    """Predict with a linear classifier, without a network."""
    run = member(args, "partition with a control", lambda plan: plan.controls)
    from ..jobs.control import control as job

    reads = [*Paths().data_files(run.data.id).written, Paths().partition(args.id)]
    out = Paths().control(args.id)
    with checked(args, reads, [out], Paths().benchmark("control", args.id)):
        job(run, Paths(), out)


def train(args: argparse.Namespace) -> None:
    """Train one run, or resume it."""
    run = member(args, "run", lambda plan: plan.trainings)
    from ..jobs.train import train as job

    reads = [*Paths().data_files(run.data.id).written, Paths().partition(run.partition_id)]
    with checked(args, reads, usage=Paths().benchmark("train", run.id)), one_gpu():
        job(run, Paths(), code=train_code(run), threads=args.threads, keep=True)


def choose(args: argparse.Namespace) -> None:
    """Choose the best training of a search."""
    plan, run = member(args, "search", lambda plan: {key: (plan, run) for key, run in plan.searches.items()})
    from ..jobs.choose import choose as job
    from ..jobs.choose import oracle

    sweep = next((plan.oracles[key] for key in run.candidates if run.search.rule == "oracle"), "")
    inferences = {key: plan.inferences[key] for key in plan.sweeps.get(sweep, ())}
    looks = oracle(plan.study.headline, sweep, inferences) if sweep else None
    reads = [file for key in run.candidates for file in Paths().run_files(key).trained]
    reads += [Paths().predictions(key, sweep) for key in run.candidates if sweep]
    with checked(args, reads):
        job(run, Paths(), looks)


def predict(args: argparse.Namespace) -> None:
    """Predict all test images with one run, under one inference or several."""
    sweeps = {
        key: {inference: plan.inferences[inference] for inference in inferences}
        for plan in plans(args).values()
        for key, inferences in plan.sweeps.items()
    }
    if args.inference not in sweeps:
        raise UserError("inference", f"no study asks for {args.inference!r}", did_you_mean(args.inference, sweeps))
    from ..jobs.predict import load_run
    from ..jobs.predict import predict as job

    files = Paths().run_files(args.id)
    out = Paths().predictions(args.id, args.inference)
    require(files.trained, lambda: call(args))
    run = load_run(files.folder)
    # The files of a choice are those of the chosen training.
    named = [args.id, *(key for plan in plans(args).values() if args.id in plan.searches for key in plan.candidates)]
    if run.id not in named:
        raise UserError(files.spec, f"is that of run {run.id}", f"remove it, and make it again: {call(args)}")
    if not Paths().data_files(run.data.id).card.exists():
        raise UserError(files.spec, f"names the data {run.data.id}, which are not prepared", call(args))
    reads = [*Paths().data_files(run.data.id).written, Paths().partition(run.partition_id)]
    benchmark = Paths().benchmark("predict", f"{args.id}-{args.inference}")
    with checked(args, reads, [out], benchmark), one_gpu():
        job(files.folder, sweeps[args.inference], Paths(), out, threads=args.threads)
