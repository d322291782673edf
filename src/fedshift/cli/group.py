"""Groups of commands with their common options, and look-up of the studies, runs and data that arguments name."""

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
    "id": "id of the raw data, prepared data, partition or run; fedshift check --ids lists them",
    "run": "folder of a trained run, or its id under results/runs",
    "images": "a folder; or a CSV file with the column path and, if known, label, site and patient",
    "inference": "id of an inference, or of a job with several inferences; fedshift check --ids lists them",
    "figure": "name of a figure; fedshift list figures prints them",
    "format": "program to write for",
    "one": "name of a study, path to its YAML file, or a folder with scores.csv, such as results/studies/demo",
    "other": "the study or folder that the first is compared with",
}
"""Help of the positional arguments that several commands share."""
CHOICES = {"format": ("mlflow",)}
"""Allowed values of positional arguments, by their names."""
DIRECTORY = "work in this folder, to which all paths are relative (default: the current folder)"
"""Help of the option `--directory`."""
SET = "replace a value of the study, such as training.lr=0.01 or seeds=[0]; may be repeated"
"""Help of the option `--set`."""
PROJECT_SCALE = "the scale in config/config.yaml, or mini"
"""Help text: the default of the option `--scale`."""


class Group:
    """Commands that `fedshift --help` lists under one title, and the functions that add commands to the parser.

    `commands` is argparse's collection of all commands.
    """

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
        """Add a command that runs the function `call`, with the options that all commands have, and return its parser.

        The command has the name of the function, and the first paragraph of its docstring as help. `call` may return an
        exit code. `arguments` are names of positional arguments (keys of HELP). With the argument `study`, the command
        has the options `--scale` and `--set`; without `--scale` it uses all scales if `every_scale` is True, or else
        the project's scale. `work` describes what takes seconds before any output, and is announced.
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
        """Add the options `--scale` and `--set` to a command; without `--scale` it uses all scales if `every_scale`."""
        default = "every scale" if every_scale else PROJECT_SCALE
        command.add_argument("--scale", choices=get_args(Scale), help=f"default: {default}")
        self.add_settings(command)
        command.set_defaults(every_scale=every_scale)

    def add_settings(self, command: argparse.ArgumentParser) -> None:
        """Add the option `--set`, which replaces values of the study, to a command."""
        command.add_argument("--set", dest="settings", action="append", metavar="KEY=VALUE", help=SET)

    def add_bare(self, call: Callable[[argparse.Namespace], int | None], **settings: Any) -> argparse.ArgumentParser:
        """Add a command without the options that all jobs have, and return its parser. `settings` are argparse's."""
        name = call.__name__.rstrip("_").replace("_", "-")
        summary = " ".join((inspect.getdoc(call) or "").partition("\n\n")[0].split())
        self.summaries[name] = f"{summary[:1].lower()}{summary[1:]}".rstrip(".")
        command: argparse.ArgumentParser = self.commands.add_parser(name, description=summary, **settings)
        command.set_defaults(
            call=call, directory=None, threads=None, plugins=None, passes_on=False, every_scale=True, work=""
        )
        return command

    def help(self) -> str:
        """Return the group's part of `fedshift --help`: its title, and a line for each command."""
        return "\n".join([f"{self.title}:", *(f"  {name:12} {text}" for name, text in self.summaries.items())])


def _positive(text: str) -> int:
    """Return the value of an option that is a whole number from 1. Raises argparse's error for other texts."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def number_from(least: float, what: str = "a number") -> Callable[[str], float]:
    """Return an argparse type for numbers of at least `least`; `what` names such a value in the error message."""

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
    """Set the arguments `scale` and `settings` of a command without these options to the values of config/config.yaml.

    `fedshift run` and Snakemake use the same values.
    """
    if "settings" in args and args.settings is None:
        args.settings = configuration().get("set") or []
    if not args.every_scale and args.scale is None:
        args.scale = scale_of()


def plans(args: argparse.Namespace) -> dict[str, study.Plan]:
    """Return the plans of the studies named by the argument `study`, by name, and announce the command's work."""
    chosen = study.select(args.study, args.scale, args.studies, args.settings)
    announce_work(args, label(chosen.values()))
    return chosen


def one_plan(args: argparse.Namespace) -> study.Plan:
    """Return the plan of the one study named by the argument `study`, and announce the command's work."""
    plan = study.load(study.find(args.study, args.studies), args.scale, args.settings)
    announce_work(args, label([plan]))
    return plan


def announce_work(args: argparse.Namespace, subject: str = "") -> None:
    """Print once what a command is about to do, after `subject`, such as the study; nothing for quick commands."""
    if args.work:
        announce(": ".join(filter(None, [subject, args.work])))
        args.work = ""


def label(chosen: Iterable[study.Plan]) -> str:
    """Return the name or the number of studies, with the scale if they depend on it: `study demo at scale mini`."""
    chosen = list(chosen)
    return chosen[0].label if len(chosen) == 1 else f"{len(chosen)} studies{_at_scale(chosen)}"


def heading(chosen: Iterable[study.Plan]) -> list[str]:
    """Return a list with the line that names studies and their scale, or [] if no study depends on the scale."""
    chosen = list(chosen)
    subject = label(chosen)
    return [f"{subject[0].upper()}{subject[1:]}:"] if _at_scale(chosen) else []


def _at_scale(chosen: Iterable[study.Plan]) -> str:
    """Return ` at scale NAME` for studies, or "" if none depends on the scale, as with a user's own data."""
    return next((f" at scale {plan.scale}" for plan in chosen if plan.scaled), "")


def at_scale(args: argparse.Namespace) -> str:
    """Return ` at scale NAME` for the studies named by the argument `study`, or "" if none depends on the scale."""
    return _at_scale(plans(args).values())


def call(args: argparse.Namespace) -> str:
    """Return the shell command that makes all files of the studies named by the argument `study`."""
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
    """Check the recorded checksums of the files that a job reads, run the block, and record checksums of `writes`.

    `usage` is the file to which the job's time and memory are written, if any. Raises UserErrors that name each damaged
    file and the command that makes it again.
    """
    require(reads, lambda: call(args))
    yield
    record(*writes)
    if usage:
        write_usage(usage)


def member(args: argparse.Namespace, kind: str, members: Callable[[study.Plan], Mapping[str, Any]]) -> Any:
    """Return the run, dataset or other part of the named studies that has the id `args.id`.

    `members` returns the candidates of a plan by id, and `kind` is their noun in the error. Raises UserError, which
    suggests the closest id, if none has the id.
    """
    by_id = {key: value for plan in plans(args).values() for key, value in members(plan).items()}
    if args.id not in by_id:
        where = f"study {args.study}{at_scale(args)}"
        raise UserError(where, f"has no {kind} {args.id!r}", did_you_mean(args.id, by_id))
    return by_id[args.id]
