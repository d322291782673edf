"""Groups of commands, and look-up of the studies, runs and datasets that their arguments name."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from .. import study
from ..core.console import announce
from ..core.errors import UserError, did_you_mean
from ..datasets import Scale
from ..io.checksums import record, require
from ..io.paths import STUDIES
from ..io.shipped import configuration
from ..jobs.record import write_usage
from ..study.calls import scale_of, written

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

HELP = {
    "study": "name of a study, or path to its YAML file",
    "id": "id of the raw data, dataset, partition or run; fedshift check --ids lists them",
    "run": "folder of a trained run, or its id under results/runs",
    "images": "a folder; or a CSV file with the column path and, if known, label, site and patient",
    "inference": "id of an inference, or of several that one job predicts; fedshift check --ids lists them",
    "figure": "name of a figure; fedshift list figures prints them",
    "format": "program to write for",
    "one": "name of a study, path to its YAML file, or a folder with scores.csv, such as results/studies/demo",
    "other": "the study or folder that the first is compared with",
}
"""Help of the positional arguments that several commands share."""
CHOICES = {"format": ("mlflow",)}
DIRECTORY = "work in this folder, from which all paths then count (default: the current folder)"
"""Help of the option `--directory`."""
SET = "a key of the study and another value for it, such as training.lr=0.01 or seeds=[0]; may be repeated"
"""Help of the option `--set`."""
PROJECT_SCALE = "that of config/config.yaml, or mini"
"""The scale of a command that is called without `--scale`, in words."""


class Group:
    """Commands that belong together, listed under one title by `fedshift --help`."""

    def __init__(self, title: str, commands: Commands) -> None:
        self.title = title
        self.commands = commands
        self.summaries: dict[str, str] = {}

    def add(
        self,
        call: Callable[[argparse.Namespace], int | None],
        *arguments: str,
        every_scale: bool = False,
        work: str = "",
    ) -> argparse.ArgumentParser:
        """Add a command that runs `call`, with positional `arguments` and the options that all commands have.

        Its name is that of the function, and its help the first paragraph of the docstring. `call` may return an exit
        code. A command that takes a study has the option `--scale`: see `take_project_scale`, or `every_scale` without
        it. `work` says what a command does that may take seconds before it prints anything; it is announced.
        """
        command = self.add_bare(call)
        command.add_argument("--studies", type=Path, default=STUDIES, help="folder of studies (default: %(default)s)")
        command.add_argument(
            "--plugins",
            type=Path,
            action="append",
            metavar="DIR",
            help="folder of plug-ins of your own, may be repeated (default: those that config/config.yaml names)",
        )
        command.add_argument("--threads", type=_positive, default=1, help="threads of this job (default: %(default)s)")
        command.add_argument("-d", "--directory", type=Path, metavar="DIR", help=DIRECTORY)
        for argument in arguments:
            command.add_argument(argument, help=HELP[argument], choices=CHOICES.get(argument))
        command.set_defaults(work=work)
        if "study" in arguments:
            self.add_scale(command, every_scale)
        return command

    def add_scale(self, command: argparse.ArgumentParser, every_scale: bool = False) -> None:
        """Add the options `--scale` and `--set`."""
        default = "every scale" if every_scale else PROJECT_SCALE
        command.add_argument("--scale", choices=get_args(Scale), help=f"default: {default}")
        self.add_settings(command)
        command.set_defaults(every_scale=every_scale)

    def add_settings(self, command: argparse.ArgumentParser) -> None:
        """Add the option `--set`."""
        command.add_argument("--set", dest="settings", action="append", metavar="KEY=VALUE", help=SET)

    def add_bare(self, call: Callable[[argparse.Namespace], int | None], **settings: Any) -> argparse.ArgumentParser:
        """Add a command without the options that all jobs have. `settings` are those of its parser."""
        name = call.__name__.rstrip("_").replace("_", "-")
        summary = " ".join((inspect.getdoc(call) or "").partition("\n\n")[0].split())
        self.summaries[name] = f"{summary[:1].lower()}{summary[1:]}".rstrip(".")
        command: argparse.ArgumentParser = self.commands.add_parser(name, description=summary, **settings)
        command.set_defaults(
            call=call, directory=None, threads=None, plugins=None, passes_on=False, every_scale=True, work=""
        )
        return command

    def help(self) -> str:
        """Return the title of the group, and a line for each command."""
        return "\n".join([f"{self.title}:", *(f"  {name:12} {text}" for name, text in self.summaries.items())])


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def number_from(least: float, what: str = "a number") -> Callable[[str], float]:
    """Return the type of an option whose value is a number, `least` or more."""

    def parsed(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not least <= number < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {least:g}")
        return number

    return parsed


def take_project_scale(args: argparse.Namespace) -> None:
    """Give a command without `--scale` or `--set` what `fedshift run` and Snakemake take in this folder."""
    if "settings" in args and args.settings is None:
        args.settings = configuration().get("set") or []
    if not args.every_scale and args.scale is None:
        args.scale = scale_of()


def plans(args: argparse.Namespace) -> dict[str, study.Plan]:
    """Return the plans of the studies that were named, by name, and announce the command's work on them."""
    chosen = study.select(args.study, args.scale, args.studies, args.settings)
    announce_work(args, label(chosen.values()))
    return chosen


def one_plan(args: argparse.Namespace) -> study.Plan:
    """Return the plan of the one study that was named, and announce the command's work on it."""
    plan = study.load(study.find(args.study, args.studies), args.scale, args.settings)
    announce_work(args, label([plan]))
    return plan


def announce_work(args: argparse.Namespace, subject: str = "") -> None:
    """Say once what a command is about to do, and with which study at which scale."""
    if args.work:
        announce(": ".join(filter(None, [subject, args.work])))
        args.work = ""


def label(chosen: Iterable[study.Plan]) -> str:
    """Return studies in words, with the scale where it makes a difference: `study demo at scale mini`."""
    chosen = list(chosen)
    return chosen[0].label if len(chosen) == 1 else f"{len(chosen)} studies{_at_scale(chosen)}"


def heading(chosen: Iterable[study.Plan]) -> list[str]:
    """Return the line that names studies and their scale above what is printed; none where there are no scales."""
    chosen = list(chosen)
    subject = label(chosen)
    return [f"{subject[0].upper()}{subject[1:]}:"] if _at_scale(chosen) else []


def _at_scale(chosen: Iterable[study.Plan]) -> str:
    """Return the scale of studies in words; nothing where it makes a difference in none of them, as with own data."""
    return next((f" at scale {plan.scale}" for plan in chosen if plan.scaled), "")


def at_scale(args: argparse.Namespace) -> str:
    """Return the scale of the named studies in words; nothing where it makes a difference in none of them."""
    return _at_scale(plans(args).values())


def call(args: argparse.Namespace) -> str:
    """Return the call of Snakemake that makes the studies which a command names."""
    settings = {}
    if at_scale(args):
        settings["scale"] = args.scale
    if args.studies != STUDIES:
        settings["studies"] = str(args.studies)
    return written(args.study, settings, changes=args.settings)


@contextmanager
def checked(
    args: argparse.Namespace, reads: Iterable[Path], writes: Iterable[Path] = (), usage: Path | None = None
) -> Iterator[None]:
    """Check the recorded checksums of files that a job reads, and record those of the files that it wrote.

    `usage` is the file for the job's time and memory, if they are wanted.

    Raises UserErrors that name each damaged file and the call of Snakemake which makes it again.
    """
    require(reads, lambda: call(args))
    yield
    record(*writes)
    if usage:
        write_usage(usage)


def member(args: argparse.Namespace, kind: str, members: Callable[[study.Plan], Mapping[str, Any]]) -> Any:
    """Return the member of the named studies that has the id `args.id`. Raises UserError if there is none.

    `kind` is what the error calls such a member; `members` returns those of a plan, by id.
    """
    by_id = {key: value for plan in plans(args).values() for key, value in members(plan).items()}
    if args.id not in by_id:
        where = f"study {args.study}{at_scale(args)}"
        raise UserError(where, f"has no {kind} {args.id!r}", did_you_mean(args.id, by_id))
    return by_id[args.id]
