"""Commands that use trained runs: on your own images, or in another program."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.console import say
from ..io.checksums import require
from ..io.paths import Paths, RunFiles
from ..jobs.devices import one_gpu
from ..planning.files import read_by
from .group import Group, call, one_plan


def add(group: Group) -> None:
    """Add the commands apply and bundle."""
    command = group.add(apply, "run", "images", work="loading the network and its libraries")
    _add_inference(command, "results/applied")
    command.add_argument("--no-examples", action="store_true", help="show no images on the page")
    command.add_argument("--skip-unreadable", action="store_true", help="leave out and list files that are not images")
    command = group.add(bundle, "run", work="loading the network and its libraries")
    _add_inference(command, "results/bundles")


def _add_inference(command: argparse.ArgumentParser, folder: str) -> None:
    """Add the options that choose an inference, a client's network and a folder inside `folder`."""
    command.add_argument(
        "--inference", default="source", metavar="NAME", help="such as source or tsmobn (default: %(default)s)"
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="option of the inference: momentum=0.8"
    )
    command.add_argument(
        "--client", metavar="SITE", help="use the tensors that stayed at this client; default: the global network"
    )
    command.add_argument("--out", type=Path, metavar="DIR", help=f"folder to write; default: one in {folder}")


def apply(args: argparse.Namespace) -> None:
    """Predict your own images with a trained run."""
    from ..jobs.apply import apply as job
    from ..jobs.apply import chosen, find
    from ..page.applied import write

    inference = chosen(args.inference, args.set, args.client)
    options = {"threads": args.threads, "skip_unreadable": args.skip_unreadable, "examples": not args.no_examples}
    run = find(args.run, Paths())
    require(RunFiles(run).trained)
    with one_gpu():
        result = job(run, Path(args.images), inference, args.out, **options)
    say(f"wrote {result.out / 'predictions.csv'} and {write(result)}")


def bundle(args: argparse.Namespace) -> None:
    """Write a trained run as a MONAI bundle, which monai.bundle verifies and runs."""
    from ..export.bundle import export
    from ..jobs.apply import chosen, find

    folder = find(args.run, Paths())
    require(RunFiles(folder).trained)
    out = args.out or Paths().bundle(folder.resolve().name)
    say(f"wrote {export(folder, chosen(args.inference, args.set, args.client), out)}")


def add_exports(group: Group) -> None:
    """Add the command export."""
    command = group.add(export, "format", "study", work="exporting rounds and scores")
    command.add_argument("--to", metavar="WHERE", help="a tracking URI; default: a database in results/exports")


def export(args: argparse.Namespace) -> None:
    """Export rounds and scores of a study's runs to MLflow."""
    plan = one_plan(args)
    from ..export import mlflow

    require(read_by("export", plan, Paths()), lambda: call(args))
    runs = mlflow.trained(plan, Paths())
    say(mlflow.export(mlflow.accounts(plan, Paths(), runs), plan.name, args.to))
    left = len(plan.runs) - len(runs)
    if left:
        say(f"left out {left} of {len(plan.runs)} runs, which are not trained; see fedshift status")
