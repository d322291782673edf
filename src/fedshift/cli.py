"""The command line `fedshift`: what the workflow's rules call, and what people call by hand on the same files."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from . import registry, study
from .claims import require
from .dataset import Scale
from .devices import one_gpu
from .errors import Interrupted, UserError, did_you_mean
from .paths import Paths
from .progress import say

KINDS = ("algorithm", "dataset", "model", "addon", "inference", "metric", "figure", "transform")
STUDIES = Path("config/studies")


def _threads(n: int) -> None:
    """Before any numeric library is loaded: no pool larger than what the job was given."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(n)


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
    from .planning import lines, survey
    from .upcoming import upcoming

    plans = _plans(args)
    for plan in plans.values():
        plan.require_files()
    pending = upcoming({"study": args.study, "scale": args.scale, "studies": str(args.studies)})
    found = survey(plans, pending, Paths())
    print(json.dumps(found.plain(), indent=2) if args.json else "\n".join(lines(found)))


def status(args: argparse.Namespace) -> None:
    from .status import lines, plain, states

    found = states(_plans(args), Paths())
    folder = [] if args.studies == STUDIES else ["--studies", str(args.studies)]
    again = shlex.join(["fedshift", "train", args.study, "RUN", "--scale", args.scale, *folder])
    print(json.dumps(plain(found, again), indent=2) if args.json else "\n".join(lines(found, again)))


def download(args: argparse.Namespace) -> None:
    from .prepare import obtain

    data = _member(args, "raw data", lambda plan: {d.raw: d for d in plan.data.values()})
    obtain(data, Paths().raw(data.raw), args.mirror)


def prepare(args: argparse.Namespace) -> None:
    from .prepare import prepare as run

    data = _member(args, "dataset", lambda plan: plan.data)
    code = study.code("prepare", data.dataset, *data.prepare)
    run(data, Paths().raw(data.raw), Paths().data(data.id), args.threads, code)


def partition(args: argparse.Namespace) -> None:
    from .files import read_table, write_table

    of = _member(args, "partition", lambda plan: {run.partition_id: run for run in plan.runs.values()})
    samples = read_table(Paths().data(of.data.id) / "samples.parquet")
    write_table(Paths().partition(args.id), of.partition.assign(samples))


def train(args: argparse.Namespace) -> None:
    run = _member(args, "run", lambda plan: plan.runs)
    from .train import train as job

    with one_gpu():
        job(run, Paths(), code=study.code("train", *run.plugins), threads=args.threads)


def predict(args: argparse.Namespace) -> None:
    plans = _plans(args).values()
    sweeps = {key: {i: plan.inferences[i] for i in of} for plan in plans for key, of in plan.sweeps.items()}
    if args.inference not in sweeps:
        raise UserError("inference", f"no study asks for {args.inference!r}", did_you_mean(args.inference, sweeps))
    from .predict import predict as job

    out = Paths().predictions(args.id, args.inference)
    with one_gpu():
        job(Paths().run(args.id), sweeps[args.inference], Paths(), out, threads=args.threads)


def apply(args: argparse.Namespace) -> None:
    """A trained run on images of one's own: predictions.csv and a page."""
    from .apply import apply as job
    from .apply import chosen, find
    from .report.applied import write

    inference = chosen(args.inference, args.set, args.client)
    options = {"threads": args.threads, "skip_unreadable": args.skip_unreadable, "examples": not args.no_examples}
    with one_gpu():
        found = job(find(args.run, Paths()), Path(args.images), inference, args.out, **options)
    say(f"wrote {found.out / 'predictions.csv'} and {write(found)}")


def score(args: argparse.Namespace) -> None:
    from .report.score import score as job

    say(f"wrote {job(_plan(args), Paths())}")


def summarise(args: argparse.Namespace) -> None:
    from .report.summary import summarise as job

    say(f"wrote {job(_plan(args), Paths())}")


def figure(args: argparse.Namespace) -> None:
    from .report.results import draw

    say(f"wrote {draw(_plan(args), Paths(), args.figure)}")


def page(args: argparse.Namespace) -> None:
    from .report.page import write

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
    from .report.communication import tables, write

    plan = _plan(args)
    if args.write:
        say(f"wrote {write(plan, Paths())}")
        return
    for table in tables(plan, Paths()):
        print(table.md())
    for note in plan.study.notes:
        print(f"Note: {note}")


def index(args: argparse.Namespace) -> None:
    from .report.gallery import write

    say(f"wrote {write(args.studies, Paths())}")


def algorithms(args: argparse.Namespace) -> None:
    from .report.catalogue import algorithms as page

    print(page(), end="")


def schema(args: argparse.Namespace) -> None:
    print(json.dumps(study.schema(), indent=2))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="fedshift", description="Federated-learning studies under feature shift.")
    commands = top.add_subparsers(required=True, metavar="command")

    def add(
        call: Callable[[argparse.Namespace], None],
        name: str,
        text: str,
        *words: str,
        scale: str | None = "mini",
    ) -> Any:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(call=call)
        command.add_argument("--studies", type=Path, default=STUDIES, help="folder of studies (default: %(default)s)")
        command.add_argument("--threads", type=_positive, default=1, help="this job's (default: %(default)s)")
        helps = {
            "study": "name, or path to a YAML",
            "id": f"of what to {name}; fedshift check --ids lists them",
            "run": "a trained run's folder, or its id under results/runs",
            "images": "a folder; or a CSV with the column path and, if known, label, site and patient",
        }
        for word in words:
            command.add_argument(word, help=helps.get(word))
        if "study" in words:
            command.add_argument("--scale", default=scale, choices=get_args(Scale), help="default: %(default)s")
        return command

    listing = add(list_, "list", "names of plug-ins or studies, one a line")
    listing.add_argument("kind", choices=[*(f"{k}s" for k in KINDS), "studies"])
    checking = add(
        check,
        "check",
        "every error of a study at once; also of several with commas between, or all",
        "study",
        scale=None,
    )
    checking.add_argument("--ids", action="store_true", help="list the ids that the other commands take")
    planning = add(
        plan_,
        "plan",
        "which jobs of a study (or several with commas between, or all) would run, and the time and disk they take",
        "study",
    )
    watching = add(
        status, "status", "each run of a study (or several, or all): done, running, stopped, failed, waiting", "study"
    )
    for command in (planning, watching):
        command.add_argument("--json", action="store_true", help="the same for programs")
    downloading = add(download, "download", "obtain raw files, from the mirror or the official source", "study", "id")
    downloading.add_argument("--mirror", type=Path, help="directory that is looked at before the network")
    add(prepare, "prepare", "write a dataset's memory-mapped arrays", "study", "id")
    add(partition, "partition", "assign samples to roles and splits", "study", "id")
    add(train, "train", "train one run, or go on with it", "study", "id")
    add(
        predict,
        "predict",
        "predict all test images with one run and one inference",
        "study",
        "id",
        "inference",
    )
    applying = add(apply, "apply", "predict images of your own with a trained run", "run", "images")
    applying.add_argument(
        "--inference", default="source", metavar="NAME", help="such as source or tsmobn (default: %(default)s)"
    )
    applying.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of the inference: momentum=0.8"
    )
    applying.add_argument(
        "--client", metavar="SITE", help="with what stayed at this client; default: the global network"
    )
    applying.add_argument("--out", type=Path, metavar="DIR", help="default: a folder of its own in results/applied")
    applying.add_argument("--no-examples", action="store_true", help="show no images on the page")
    applying.add_argument(
        "--skip-unreadable", action="store_true", help="leave out files that are no images, and list them"
    )
    add(score, "score", "scores.csv of a study", "study")
    add(summarise, "summarise", "summary.csv and the tables of a study", "study")
    add(figure, "figure", "one figure of a study", "study", "figure")
    add(page, "page", "the study's page", "study")
    add(report, "report", "score, summarise, figures and page of what there is, when some runs failed", "study")
    ledgers = add(
        ledger, "ledger", "what each condition of a study sends: floats, messages and bytes", "study", scale="paper"
    )
    ledgers.add_argument("--write", action="store_true", help="write the study's ledger.csv, and print nothing")
    add(index, "index", "reports/index.html: all studies, what they reproduce and how it turned out")
    add(algorithms, "algorithms", "docs/algorithms.md: what each algorithm does, sends and keeps")
    add(schema, "schema", "the JSON schema of a study's file")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, 2 for bad input (one line on standard error), 143 when asked to stop."""
    args = parser().parse_args(argv)
    _threads(args.threads)
    try:
        args.call(args)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UserError as error:
        say(str(error))
        return error.exit_code
    except OSError as error:
        if error.filename is None:
            raise
        say(str(UserError(error.filename, error.strerror or str(error), "check the path and its permissions")))
        return UserError.exit_code
    except Interrupted as stop:
        say("stopped; start again to go on from the last round")
        return stop.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0
