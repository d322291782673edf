"""The command line `fedshift`: what the workflow's rules call, and what people call by hand on the same files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from ..core.console import say
from ..core.errors import Interrupted, UserError
from ..core.registry import KINDS
from ..datasets import Scale
from . import commands


def _threads(n: int) -> None:
    """Before any numeric library is loaded: no pool larger than what the job was given."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(n)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="fedshift", description="Federated-learning studies under feature shift.")
    known = top.add_subparsers(required=True, metavar="command")

    def add(
        call: Callable[[argparse.Namespace], None],
        name: str,
        text: str,
        *words: str,
        scale: str | None = "mini",
    ) -> Any:
        command = known.add_parser(name, help=text, description=text)
        command.set_defaults(call=call)
        command.add_argument(
            "--studies", type=Path, default=commands.STUDIES, help="folder of studies (default: %(default)s)"
        )
        command.add_argument("--threads", type=_positive, default=1, help="this job's (default: %(default)s)")
        helps = {
            "study": "name, or path to a YAML",
            "id": f"of what to {name}; fedshift check --ids lists them",
            "run": "a trained run's folder, or its id under results/runs",
            "images": "a folder; or a CSV with the column path and, if known, label, site and patient",
        }
        choices = {"format": commands.TRACKERS}
        for word in words:
            command.add_argument(word, help=helps.get(word), choices=choices.get(word))
        if "study" in words:
            command.add_argument("--scale", default=scale, choices=get_args(Scale), help="default: %(default)s")
        return command

    listing = add(commands.list_, "list", "names of plug-ins or studies, one a line")
    listing.add_argument("kind", choices=[*(f"{k}s" for k in KINDS), "studies"])
    checking = add(
        commands.check,
        "check",
        "every error of a study at once; also of several with commas between, or all",
        "study",
        scale=None,
    )
    checking.add_argument("--ids", action="store_true", help="list the ids that the other commands take")
    planning = add(
        commands.plan_,
        "plan",
        "which jobs of a study (or several with commas between, or all) would run, and the time and disk they take",
        "study",
    )
    watching = add(
        commands.status,
        "status",
        "each run of a study (or several, or all): done, running, stopped, failed, waiting",
        "study",
    )
    for command in (planning, watching):
        command.add_argument("--json", action="store_true", help="the same for programs")
    accepting = add(
        commands.accept,
        "accept",
        "keep what is finished of a study after a change of code that leaves results",
        "study",
    )
    accepting.add_argument("--reason", required=True, help="why results stay as they are; kept with each run")
    downloading = add(
        commands.download, "download", "obtain raw files, from the mirror or the official source", "study", "id"
    )
    downloading.add_argument("--mirror", type=Path, help="directory that is looked at before the network")
    add(commands.prepare, "prepare", "write a dataset's memory-mapped arrays", "study", "id")
    add(commands.partition, "partition", "assign samples to roles and splits", "study", "id")
    add(commands.train, "train", "train one run, or go on with it", "study", "id")
    add(
        commands.predict,
        "predict",
        "predict all test images with one run and one inference",
        "study",
        "id",
        "inference",
    )
    applying = add(commands.apply, "apply", "predict images of your own with a trained run", "run", "images")
    bundling = add(
        commands.bundle, "bundle", "a trained run as a MONAI bundle, which monai.bundle verifies and runs", "run"
    )
    for command, place in ((applying, "applied"), (bundling, "bundles")):
        command.add_argument(
            "--inference", default="source", metavar="NAME", help="such as source or tsmobn (default: %(default)s)"
        )
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="of the inference: momentum=0.8"
        )
        command.add_argument(
            "--client", metavar="SITE", help="with what stayed at this client; default: the global network"
        )
        command.add_argument("--out", type=Path, metavar="DIR", help=f"default: a folder of its own in results/{place}")
    applying.add_argument("--no-examples", action="store_true", help="show no images on the page")
    applying.add_argument(
        "--skip-unreadable", action="store_true", help="leave out files that are no images, and list them"
    )
    exporting = add(
        commands.export, "export", "rounds and scores of a study's runs for MLflow or TensorBoard", "format", "study"
    )
    exporting.add_argument(
        "--to", metavar="WHERE", help="a tracking URI for mlflow, a folder for tensorboard; default: in results/exports"
    )
    add(commands.score, "score", "scores.csv of a study", "study")
    add(commands.summarise, "summarise", "summary.csv and the tables of a study", "study")
    add(commands.figure, "figure", "one figure of a study", "study", "figure")
    add(commands.page, "page", "the study's page", "study")
    add(
        commands.report, "report", "score, summarise, figures and page of what there is, when some runs failed", "study"
    )
    ledgers = add(
        commands.ledger,
        "ledger",
        "what each condition of a study sends: floats, messages and bytes",
        "study",
        scale="paper",
    )
    ledgers.add_argument("--write", action="store_true", help="write the study's ledger.csv, and print nothing")
    add(commands.index, "index", "reports/index.html: all studies, what they reproduce and how it turned out")
    add(commands.algorithms, "algorithms", "docs/algorithms.md: what each algorithm does, sends and keeps")
    add(commands.schema, "schema", "the JSON schema of a study's file")
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
