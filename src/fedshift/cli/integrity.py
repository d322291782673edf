"""Commands that look after finished work: the check of all its files, and the removal of runs kept for nothing."""

from __future__ import annotations

import argparse

from ..core.console import announce
from ..core.errors import UserError
from ..io.checksums import MISSING, remedy
from ..io.paths import Paths
from .group import Group, at_scale, call, plans


def add(group: Group) -> None:
    """Add the commands verify and clean."""
    group.add(verify, "study", work="reading every file").add_argument(
        "--deep", action="store_true", help="also make partitions, scores, tables, figures and page again, and compare"
    )
    group.add(clean)


def verify(args: argparse.Namespace) -> None:
    """Read every file of a study and say which are missing or damaged; with --deep, which do not follow from others.

    Raises UserError where anything is.
    """
    chosen = plans(args)
    from ..planning.verify import damaged_store, forced, lines, named
    from ..planning.verify import verify as job

    checks = {name: job(plan, Paths(), args.threads) for name, plan in chosen.items()}
    checked = [one for name in checks for one in checks[name]]
    for line in dict.fromkeys(lines(checked)):
        print(line)
    for plan in chosen.values():
        for entry, what in damaged_store(plan, Paths()):
            print(f"{what} (a second copy of a run, which is not used any more: rm -r {entry.folder})")
    faults = {file: what for one in checked for file, what in one.faults.items()}
    if not any(one.begun for one in checked):
        raise UserError(args.study, f"was not run{at_scale(args)}: it has no files", call(args))
    if faults:
        missing = sum(what == MISSING for what in faults.values())
        problem = f"{len(faults) - missing} files are damaged or changed, {missing} are missing"
        raise UserError(args.study, problem, remedy(dict.fromkeys(forced(checked)), call(args)))
    if args.deep:
        announce("making partitions, scores, tables, figures and page again")
        from ..report.recheck import disagreements

        wrong = {file: what for plan in chosen.values() for file, what in disagreements(plan, Paths()).items()}
        for file, what in wrong.items():
            print(f"{file}: {what}")
        if wrong:
            problem = f"{len(wrong)} files do not agree with those that they are made of"
            raise UserError(args.study, problem, remedy(dict.fromkeys(forced(named(checked, wrong))), call(args)))
    number = len({file for one in checked for file in one.output.files})
    unknown = len({file for one in checked for file in one.unrecorded})
    as_written = f"and all but {unknown} were checked" if unknown else "and as they were written"
    print(f"{args.study}{at_scale(args)}: all {number} files are there {as_written}")


def clean(args: argparse.Namespace) -> None:
    """Remove the kept copies of runs that were trained again since, from results/store."""
    from ..jobs.store import superseded

    freed = 0
    for entry in list(superseded(Paths())):
        freed += entry.size
        entry.remove()
        print(f"removed {entry.folder}")
    left = f"{Paths().store} holds the finished runs that are current; rm -r {Paths().store} removes it all"
    print(f"{freed / 1e6:.1f} MB freed. {left}")
