"""The command that exports a study to an experiment tracker."""

from __future__ import annotations

import argparse

from ..core.console import say
from ..io.checksums import require
from ..io.paths import Paths
from ..planning.files import read_by
from .group import Group, call, one_plan


def add(group: Group) -> None:
    """Add the command export."""
    command = group.add(export, "format", "study", work="exporting rounds and scores")
    command.add_argument(
        "--to", metavar="WHERE", help="a tracking URI for mlflow, a folder for tensorboard; default: in results/exports"
    )


def export(args: argparse.Namespace) -> None:
    """Export rounds and scores of a study's runs to MLflow or TensorBoard."""
    plan = one_plan(args)
    from ..export import mlflow, tensorboard
    from ..export.account import accounts, trained

    tracker = {"mlflow": mlflow, "tensorboard": tensorboard}[args.format]
    require(read_by("export", plan, Paths()), lambda: call(args))
    runs = trained(plan, Paths())
    say(tracker.export(accounts(plan, Paths(), runs), plan.name, args.to))
    left = len(plan.runs) - len(runs)
    if left:
        say(f"left out {left} of {len(plan.runs)} runs, which are not trained; see fedshift status")
