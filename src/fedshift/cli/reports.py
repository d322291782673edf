"""Commands that make scores, tables, figures and pages of a study from its predictions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from .. import study
from ..core.console import say
from ..datasets import Scale
from ..io.checksums import record
from ..io.paths import Paths
from ..planning.files import read_by
from .group import Group, checked, one_plan


def add(group: Group) -> None:
    """Add the commands score, summarise, figure, page, report, ledger, diff and index."""
    group.add(score, "score", "write scores.csv of a study", "study")
    group.add(summarise, "summarise", "write summary.csv and the tables of a study", "study")
    group.add(figure, "figure", "draw one figure of a study", "study", "figure")
    group.add(page, "page", "write the page of a study", "study")
    group.add(
        report, "report", "score, summarise, draw and write the page of what there is; runs may be missing", "study"
    )
    command = group.add(
        ledger,
        "ledger",
        "print what each condition of a study sends: floats, messages and bytes",
        "study",
        scale="paper",
    )
    command.add_argument("--write", action="store_true", help="write the study's ledger.csv, and print nothing")
    command = group.add(
        diff,
        "diff",
        "print how two studies, or two folders of results, differ: runs, settings and scores",
        "one",
        "other",
    )
    command.add_argument(
        "--scale", default="mini", choices=get_args(Scale), help="scale of studies (default: %(default)s)"
    )
    command.add_argument(
        "--threshold", type=_distance, default=0.0, help="ignore scores that differ by no more (default: %(default)s)"
    )
    group.add(index, "index", "write reports/index.html: all studies, what they reproduce and the outcome")


def score(args: argparse.Namespace) -> None:
    """Write the scores of a study."""
    from ..analysis.score import score as job

    plan = one_plan(args)
    files = Paths().study_files(plan.name)
    with checked(args, read_by("score", plan, Paths()), [files.scores, files.missing]):
        say(f"wrote {job(plan, Paths())}")


def summarise(args: argparse.Namespace) -> None:
    """Write the summary and the tables of a study."""
    from ..report.summary import summarise as job

    plan = one_plan(args)
    with checked(args, read_by("summarise", plan, Paths()), Paths().study_files(plan.name).summarised):
        say(f"wrote {job(plan, Paths())}")


def figure(args: argparse.Namespace) -> None:
    """Draw a figure of a study."""
    from ..analysis.results import draw

    plan = one_plan(args)
    with checked(args, read_by("figure", plan, Paths()), [Paths().study_files(plan.name).figure(args.figure)]):
        say(f"wrote {draw(plan, Paths(), args.figure)}")


def page(args: argparse.Namespace) -> None:
    """Write the page of a study."""
    from ..report.page import write

    plan = one_plan(args)
    out = Paths().page(plan.name)
    with checked(args, read_by("page", plan, Paths()), [out, Paths().study_files(plan.name).headline]):
        say(f"wrote {write(plan, Paths(), out)}")


def report(args: argparse.Namespace) -> None:
    """Score, summarise, draw and write the page of what there is. Runs may be missing."""
    score(args)
    summarise(args)
    for name in one_plan(args).study.figures:
        figure(argparse.Namespace(**vars(args) | {"figure": name}))
    page(args)


def ledger(args: argparse.Namespace) -> None:
    """Print the traffic tables of a study in Markdown, with its notes; or write ledger.csv for the summary."""
    from ..planning.communication import tables, write

    plan = one_plan(args)
    if args.write:
        with checked(args, read_by("ledger", plan, Paths()), [Paths().study_files(plan.name).ledger]):
            say(f"wrote {write(plan, Paths())}")
        return
    for table in tables(plan, Paths()):
        print(table.md())
    for note in plan.study.notes:
        print(f"Note: {note}")


def diff(args: argparse.Namespace) -> int:
    """Print how two sides differ, one line each. Returns 1 if they do."""
    from ..analysis import diff as sides

    def side(name: str) -> sides.Side:
        if Path(name).is_dir():
            return sides.of_folder(Path(name))
        return sides.of_study(name, study.load(study.find(name, args.studies), args.scale), Paths())

    one, other = side(args.one), side(args.other)
    for note in sides.notes(one, other):
        say(note)
    lines = list(sides.differences(one, other, args.threshold))
    print("\n".join(lines) if lines else "no differences")
    return 1 if lines else 0


def _distance(text: str) -> float:
    try:
        distance = float(text)
    except ValueError:
        distance = -1.0
    if not 0 <= distance < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return distance


def index(args: argparse.Namespace) -> None:
    """Write the index of all studies."""
    from ..report.gallery import write

    out = write(args.studies, Paths())
    record(out)
    say(f"wrote {out}")
