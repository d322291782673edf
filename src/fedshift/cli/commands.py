"""What each command of `fedshift` does. Numeric libraries are loaded by the command that needs them."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from .. import study
from ..core import registry
from ..core.console import say
from ..core.errors import UserError, did_you_mean
from ..datasets import Scale
from ..io.paths import Paths
from ..jobs.accept import download_code, partition_code, prepare_code, train_code
from ..jobs.devices import one_gpu
from ..papers.pairs import require
from ..study import declaration

STUDIES = Path("config/studies")
"""Where studies are, if nothing else is said."""
TRACKERS = ("mlflow", "tensorboard")
"""What a study can be exported to."""


def _plans(args: argparse.Namespace) -> dict[str, study.Plan]:
    return study.select(args.study, args.scale, args.studies)


def _plan(args: argparse.Namespace) -> study.Plan:
    """The one study that was named."""
    return study.load(study.find(args.study, args.studies), args.scale)


def _member(args: argparse.Namespace, what: str, of: Callable[[study.Plan], dict[str, Any]]) -> Any:
    """The member of a study, or of several, that has the id given."""
    found = {key: value for plan in _plans(args).values() for key, value in of(plan).items()}
    if args.id not in found:
        raise UserError(
            f"study {args.study} at scale {args.scale}",
            f"has no {what} {args.id!r}",
            did_you_mean(args.id, found),
        )
    return found[args.id]


def list_(args: argparse.Namespace) -> None:
    names = (
        study.names(args.studies) if args.kind == "studies" else sorted(registry.discover(args.kind.removesuffix("s")))
    )
    for name in names:
        print(name)


def check(args: argparse.Namespace) -> None:
    for scale in [args.scale] if args.scale else get_args(Scale):
        for plan in study.select(args.study, scale, args.studies).values():
            _look(plan)
            print(f"{plan.path} at scale {scale}: {len(plan.runs)} runs, {len(plan.inferences)} ways of inference")
            if args.ids:
                _ids(plan)


def _look(plan: study.Plan) -> None:
    """See whether all files are there, all words of the papers known, and own data fit to be split and trained on."""
    plan.require_files()
    require(plan)
    own = {key: data.dataset.open(Path()).samples for key, data in plan.data.items() if data.dataset.inputs()}
    runs = [run for run in plan.runs.values() if run.data.id in own]
    parts = {run.partition_id: run.partition.assign(own[run.data.id]) for run in runs}
    for run in runs:
        part = parts[run.partition_id]
        for site, n in part[(part["role"] == "internal") & (part["split"] == "train")].groupby("site").size().items():
            run.training.require_batch(str(site), int(n))


def _ids(plan: study.Plan) -> None:
    """What jobs are called: the ids that the other commands take."""
    for key, data in plan.data.items():
        print(f"  raw data {data.raw}, prepared {key}")
    for key in dict.fromkeys(run.partition_id for run in plan.runs.values()):
        print(f"  partition {key}")
    for key, run in plan.runs.items():
        print(f"  run {key}: {run.algorithm.label}, bn {run.bn}, {run.partition.title}, seed {run.seed}")
    for key, of in plan.sweeps.items():
        print(f"  inference {key}" + (f": {', '.join(of)}" if len(of) > 1 else ""))


def plan_(args: argparse.Namespace) -> None:
    from ..planning.dag import upcoming
    from ..planning.plan import lines, survey

    plans = _plans(args)
    for plan in plans.values():
        plan.require_files()
    pending = upcoming({"study": args.study, "scale": args.scale, "studies": str(args.studies)})
    found = survey(plans, pending, Paths())
    print(json.dumps(found.plain(), indent=2) if args.json else "\n".join(lines(found)))


def status(args: argparse.Namespace) -> None:
    from ..planning.status import lines, plain, states

    found = states(_plans(args), Paths())
    folder = [] if args.studies == STUDIES else ["--studies", str(args.studies)]
    again = shlex.join(["fedshift", "train", args.study, "RUN", "--scale", args.scale, *folder])
    print(json.dumps(plain(found, again), indent=2) if args.json else "\n".join(lines(found, again)))


def accept(args: argparse.Namespace) -> None:
    """Accept today's code for what is finished of a study."""
    from ..jobs.accept import accept as job

    plans = _plans(args)
    accepted = Counter(made.rule for made in job(plans.values(), Paths(), args.reason))
    counts = ", ".join(f"{n} of rule {rule}" for rule, n in accepted.items())
    say(f"accepted as unchanged: {counts}" if counts else "nothing to accept: all that is finished is of today's code")


def download(args: argparse.Namespace) -> None:
    from ..jobs.prepare import obtain

    data = _member(args, "raw data", lambda plan: {d.raw: d for d in plan.data.values()})
    obtain(data, Paths().raw(data.raw), args.mirror, download_code(data))


def prepare(args: argparse.Namespace) -> None:
    from ..jobs.prepare import prepare as run

    data = _member(args, "dataset", lambda plan: plan.data)
    run(data, Paths().raw(data.raw), Paths().data(data.id), args.threads, prepare_code(data))


def partition(args: argparse.Namespace) -> None:
    from ..io.tables import read_table, write_table

    of = _member(args, "partition", lambda plan: {run.partition_id: run for run in plan.runs.values()})
    samples = read_table(Paths().data(of.data.id) / "samples.parquet")
    table = of.partition.assign(samples)
    table.attrs["code"] = partition_code()
    write_table(Paths().partition(args.id), table)


def train(args: argparse.Namespace) -> None:
    run = _member(args, "run", lambda plan: plan.runs)
    from ..jobs.train import train as job

    with one_gpu():
        job(run, Paths(), code=train_code(run), threads=args.threads)


def predict(args: argparse.Namespace) -> None:
    plans = _plans(args).values()
    sweeps = {key: {i: plan.inferences[i] for i in of} for plan in plans for key, of in plan.sweeps.items()}
    if args.inference not in sweeps:
        raise UserError("inference", f"no study asks for {args.inference!r}", did_you_mean(args.inference, sweeps))
    from ..jobs.predict import predict as job

    out = Paths().predictions(args.id, args.inference)
    with one_gpu():
        job(Paths().run(args.id), sweeps[args.inference], Paths(), out, threads=args.threads)


def apply(args: argparse.Namespace) -> None:
    """A trained run on images of one's own: predictions.csv and a page."""
    from ..jobs.apply import apply as job
    from ..jobs.apply import chosen, find
    from ..report.applied import write

    inference = chosen(args.inference, args.set, args.client)
    options = {"threads": args.threads, "skip_unreadable": args.skip_unreadable, "examples": not args.no_examples}
    with one_gpu():
        found = job(find(args.run, Paths()), Path(args.images), inference, args.out, **options)
    say(f"wrote {found.out / 'predictions.csv'} and {write(found)}")


def bundle(args: argparse.Namespace) -> None:
    from ..export.bundle import export
    from ..jobs.apply import chosen, find

    folder = find(args.run, Paths())
    out = args.out or Path("results", "bundles", folder.resolve().name)
    say(f"wrote {export(folder, chosen(args.inference, args.set, args.client), out)}")


def export(args: argparse.Namespace) -> None:
    """The rounds and scores of a study's runs, those that are trained, for a tracker."""
    from ..export import mlflow, tensorboard
    from ..export.account import accounts, trained

    plan, tracker = _plan(args), {"mlflow": mlflow, "tensorboard": tensorboard}[args.format]
    runs = trained(plan, Paths())
    say(tracker.export(accounts(plan, Paths(), runs), plan.name, args.to))
    if left := len(plan.runs) - len(runs):
        say(f"left out {left} of {len(plan.runs)} runs, which are not trained; fedshift status tells of each")


def score(args: argparse.Namespace) -> None:
    from ..analysis.score import score as job

    say(f"wrote {job(_plan(args), Paths())}")


def summarise(args: argparse.Namespace) -> None:
    from ..report.summary import summarise as job

    say(f"wrote {job(_plan(args), Paths())}")


def figure(args: argparse.Namespace) -> None:
    from ..analysis.results import draw

    say(f"wrote {draw(_plan(args), Paths(), args.figure)}")


def page(args: argparse.Namespace) -> None:
    from ..report.page import write

    plan = _plan(args)
    say(f"wrote {write(plan, Paths(), Paths().page(plan.name))}")


def report(args: argparse.Namespace) -> None:
    """Score, summarise, draw and write the page of what is there, be it incomplete."""
    score(args)
    summarise(args)
    for name in _plan(args).study.figures:
        figure(argparse.Namespace(**vars(args) | {"figure": name}))
    page(args)


def ledger(args: argparse.Namespace) -> None:
    """Tables for people, in Markdown, and the notes of the study; or ledger.csv for the summary."""
    from ..planning.communication import tables, write

    plan = _plan(args)
    if args.write:
        say(f"wrote {write(plan, Paths())}")
        return
    for table in tables(plan, Paths()):
        print(table.md())
    for note in plan.study.notes:
        print(f"Note: {note}")


def index(args: argparse.Namespace) -> None:
    from ..report.gallery import write

    say(f"wrote {write(args.studies, Paths())}")


def algorithms(args: argparse.Namespace) -> None:
    from .catalogue import algorithms as page

    print(page(), end="")


def schema(args: argparse.Namespace) -> None:
    print(json.dumps(declaration.schema(), indent=2))
