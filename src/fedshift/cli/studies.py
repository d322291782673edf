"""Commands about studies as a whole: list, check, plan, status, repeat, accept, verify and clean."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict
from typing import Any, get_args

from .. import study
from ..analysis.published_words import require
from ..core import registry
from ..core.console import announce, say
from ..core.errors import UserError
from ..core.spelling import counted, noun
from ..datasets import Scale
from ..io.checksums import MISSING, remedy
from ..io.paths import Paths
from .data import inspected, moved, norms, partitions, problems, require_transforms, unknown_sites
from .group import Group, at_scale, call, heading, label, member, number_from, plans
from .projects import left_over


def add(group: Group) -> None:
    """Add the commands from `fedshift list` to `fedshift accept` to a group."""
    command = group.add(list_)
    kinds = [*(f"{kind}s" for kind in registry.KINDS), "studies"]
    command.add_argument("kind", nargs="?", choices=kinds, help="kind of plug-ins, or studies; default: all plug-ins")
    command = group.add(check, "study", every_scale=True)
    command.add_argument("--ids", action="store_true", help="also print the ids that other commands take")
    command = group.add(plan, "study", work="counting its jobs by a dry run of Snakemake")
    command.add_argument(
        "--probe", action="store_true", help="train for ten seconds to estimate hours that no finished run tells"
    )
    for_programs: dict[str, Any] = {"action": "store_true", "help": "print JSON, for programs"}
    command.add_argument("--json", **for_programs)
    command = group.add(status, "study", work="reading the state of its runs")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", **for_programs)
    form.add_argument("--watch", action="store_true", help="repeat until all runs are done or failed, or until Ctrl-C")
    interval = number_from(0.1, "a number of seconds")
    help_text = "with --watch, the seconds between two updates (default: %(default)s)"
    command.add_argument("--interval", type=interval, default=5.0, help=help_text)
    group.add(repeat, "study", "id")
    command = group.add(accept, "study", work="replaying the golden curves")
    command.add_argument("--reason", required=True, help="why results do not change; recorded with each run")


def list_(args: argparse.Namespace) -> None:
    """Print the names of plug-ins with their origins, or the names of studies."""
    if args.kind == "studies":
        print(*study.known(args.studies), sep="\n")
        return
    for kind in [args.kind.removesuffix("s")] if args.kind else registry.KINDS:
        origins = registry.origins(kind)
        width = max(map(len, origins))
        head = "" if args.kind else f"{kind:10}"
        for name in sorted(origins):
            print(f"{head}{name:{width}}  {origins[name]}")


def check(args: argparse.Namespace) -> None:
    """Check a study (or several, separated by commas, or all) and print every error at once.

    Raises UserErrors with all faults of the settings and of the user's tables.
    """
    from ..planning.call import require_own_name

    shown: set[str] = set()
    known = dict[str, study.Plan]()
    for scale in [args.scale] if args.scale else get_args(Scale):
        chosen = study.select(args.study, scale, args.studies, args.settings).values()
        announce(f"{label(chosen)}: checking settings, tables and what is prepared")
        for checked in chosen:
            before = known.setdefault(checked.name, checked)
            if before is not checked and (before.study, before.runs) == (checked.study, checked.runs):
                continue  # it is the same at every scale, and its table may be long
            checked.require_files()
            require(checked)
            require_own_name(checked, Paths())
            require_transforms(checked)
            seen = inspected(checked)
            where = f"{checked.path} at scale {scale}" if checked.scaled else str(checked.path)
            ways = noun(len(checked.inferences), "way")
            made = f"{len(checked.searches)} runs are searched: each is chosen among several trainings"
            searched = f"{checked.path}: {made}, {len(checked.trainings)} trainings in all"
            head = f"{where}: {counted(len(checked.runs), 'run')}, {len(checked.inferences)} {ways} of inference"
            for text in (
                head,
                *([searched] if checked.searches else []),
                *partitions(checked),
                *unknown_sites(checked),
                *_hints(checked),
                *norms(checked),
                *seen,
                *moved(checked, Paths()),
                *problems(checked, Paths()),
                *_unchecked(checked, Paths()),
            ):
                if text not in shown:
                    print(text)
                    shown.add(text)
            if args.ids:
                _print_ids(checked)


def _hints(plan: study.Plan) -> list[str]:
    """Return a line for each setting that may be unintended, such as an unchanged example title or no normalisation."""
    declared = plan.study
    hints = [(i.name, i.hint(len(declared.dataset.classes))) for i in plan.inferences.values()]
    if declared.two_classes:
        positive = declared.positive or declared.dataset.classes[1]
        hints.append(("positive", f"{positive!r} is the positive class: sensitivity is the share of it that is found"))
    if kept := " and ".join(left_over(declared)):
        hints.append((kept, "still as `fedshift new` wrote it: say what your study asks, since the page shows it"))
    first, leads = declared.metrics[0], declared.headline
    if first != leads and "headline" not in declared.model_fields_set:
        hints.append(("metrics", f"{leads} comes first on the page; to show {first} first, add headline: {first}"))
    if any(run.model.origin and "normalize" not in {t.name for t in run.transforms} for run in plan.runs.values()):
        hints.append(
            (
                "transforms",
                "do not include normalize, but the pretrained weights were trained on images that are normalised",
            )
        )
    return [f"{plan.path}: {name}: {hint}" for name, hint in hints if hint]


def _unchecked(plan: study.Plan, paths: Paths) -> list[str]:
    """Return a list with the line that names the checks for which data must be prepared first, or [] if they are."""
    unprepared = [data for key, data in plan.data.items() if not paths.data_files(key).card.exists()]
    if not unprepared:
        return []
    subjects = ["whether each image can be read", "copies", "images without contrast"]
    if not all(data.dataset.inputs() for data in unprepared):
        subjects.insert(0, "sites, classes and patients")
    return [f"  not checked before the data are prepared: {', '.join(subjects)}"]


def _print_ids(plan: study.Plan) -> None:
    """Print the ids of a study's data, partitions, runs and inferences, which other commands take."""
    for key, data in plan.data.items():
        print(f"  raw data {data.raw}, prepared {key}")
    for key in dict.fromkeys(run.partition_id for run in plan.runs.values()):
        print(f"  partition {key}")
    for key, run in plan.runs.items():
        print(f"  run {key}: {run.method}, bn {run.bn}, {run.partition.title}, seed {run.seed}")
        for candidate, values in run.tried().items():
            print(f"    candidate {candidate}: {', '.join(f'{name} {value}' for name, value in values.items())}")
    for key, inferences in plan.sweeps.items():
        members = f": {', '.join(inferences)}" if len(inferences) > 1 else ""
        print(f"  inference {key}{members}")


def plan(args: argparse.Namespace) -> None:
    """Print the jobs of a study that would run now, and an estimate of their hours."""
    chosen = plans(args)
    from ..planning.plan import lines, pending_jobs, survey
    from ..study.calls import fedshift

    for one in chosen.values():
        one.require_files()
    config: dict[str, Any] = {"study": args.study, "scale": args.scale, "studies": str(args.studies)}
    config["set"] = args.settings
    if args.plugins is not None:
        config["plugins"] = [str(folder) for folder in args.plugins]
    pending = pending_jobs(config)
    probe = None
    if args.probe:
        announce("loading the libraries of a training")
        from ..planning.probe import Prober

        probe = Prober(Paths(), args.threads).train
    result = survey(chosen, pending, Paths(), probe)
    if args.json:
        print(json.dumps(asdict(result), indent=2))
    else:
        probing = "" if args.probe else fedshift(["plan", args.study, "--probe"], chosen, args.studies)
        print("\n".join([*heading(chosen.values()), *lines(result, probing)]))


def status(args: argparse.Namespace) -> None:
    """Print the state of each run of a study: done, running, stopped, failed or waiting."""
    chosen = plans(args)
    from ..planning.status import folder_is_locked, lines, plain, states, watch
    from ..study.calls import fedshift, unlock

    paths = Paths()
    again = fedshift(["train", args.study, "RUN"], chosen, args.studies)
    if args.watch:
        watch(lambda: states(chosen, paths), again, args.interval)
        return
    runs = states(chosen, paths)
    if args.json:
        print(json.dumps(plain(runs, again), indent=2))
        return
    remedy = unlock() if folder_is_locked(paths.root) else ""
    print("\n".join([*heading(chosen.values()), *lines(runs, again, remedy)]))


def repeat(args: argparse.Namespace) -> None:
    """Print the shell command that trains and predicts one run of a study alone."""
    from ..study.calls import one_run

    run = member(args, "run", lambda plan: {key: (plan, key) for key in plan.runs})
    print(one_run(run[0], Paths(), run[1]))


def accept(args: argparse.Namespace) -> None:
    """Accept finished work after a change of code that does not change results, so that it is not done again."""
    chosen = plans(args)
    from ..jobs.accept import accept as job

    accepted = Counter(made.rule for made in job(chosen.values(), Paths(), args.reason))
    counts = ", ".join(f"{count} of rule {rule}" for rule, count in accepted.items())
    nothing = "nothing to accept: the current code made all finished work"
    say(f"accepted as unchanged: {counts}" if counts else nothing)


def add_care(group: Group) -> None:
    """Add the commands `fedshift verify` and `fedshift clean` to a group."""
    group.add(verify, "study", work="reading every file").add_argument(
        "--deep",
        action="store_true",
        help="also make partitions, scores, tables, figures and page again, and compare them with the files",
    )
    group.add(clean)


def verify(args: argparse.Namespace) -> None:
    """Read every file of a study and print which are missing or damaged; with --deep, which do not follow from others.

    Raises UserError if a file is missing, damaged or does not follow from others.
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
        from ..page.recheck import disagreements

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
    """Remove copies in results/store of runs that have been trained again since."""
    from ..jobs.accept import superseded

    freed = 0
    for entry in list(superseded(Paths())):
        freed += entry.size
        entry.remove()
        print(f"removed {entry.folder}")
    left = f"{Paths().store} holds the finished runs that are current; rm -r {Paths().store} removes it all"
    print(f"{freed / 1e6:.1f} MB freed. {left}")
