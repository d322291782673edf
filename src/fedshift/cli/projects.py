"""Commands about projects of users' own: their files, and the call of Snakemake that runs a study in them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from ..core.console import announce, say
from ..core.errors import UserError, require_none
from ..datasets import Scale
from ..io.disk import atomic_folder
from ..io.shipped import SHIPPED, workflow_of
from ..io.text import write_text
from .group import HELP, PROJECT_SCALE, Group

TEMPLATES = Path(__file__).parent / "project"
"""The files of a new project. A file whose name begins with a dot there has none here."""
PROFILE = Path("profiles/default/config.yaml")
"""The profile that Snakemake loads by itself, by its path in the repository and in a project."""
HIDDEN = ("gitignore",)
"""Names that begin with a dot in a project."""
OF_CORES = ("--cores", "-c", "--jobs", "-j", "--profile")
"""Options of Snakemake that say how many jobs run at once."""
OF_CONFIG = ("--config", "-C")
"""The option of Snakemake that takes all settings at once: of two, only the second would count."""


def add(group: Group) -> None:
    """Add the commands new and run."""
    command = group.add_bare(new)
    command.add_argument("folder", type=Path, metavar="DIR", help="folder of the project; other files there stay")
    command = group.add_bare(
        run, allow_abbrev=False, usage="fedshift run STUDY [options] [-- any arguments of snakemake]"
    )
    command.set_defaults(passes_on=True)
    command.add_argument("study", metavar="STUDY", help=HELP["study"] + "; several separated by commas, or all")
    command.add_argument("--scale", choices=get_args(Scale), help=f"default: {PROJECT_SCALE}")
    command.add_argument("--cores", metavar="N", help="number of cores, or all (default: all)")
    command.add_argument("--mirror", metavar="DIR", help="folder that is searched for data files before the network is")
    command.add_argument("--studies", metavar="DIR", help="folder of studies (default: config/studies)")
    command.add_argument("--profile", metavar="NAME", help="a profile of fedshift, gpu or slurm, or any of Snakemake's")
    command.add_argument(
        "-d",
        "--directory",
        dest="folder",
        type=Path,
        metavar="DIR",
        help="work in this folder, which is made if needed, and from which all paths then count",
    )


def new(args: argparse.Namespace) -> None:
    """Write a project of your own: a study to edit, its settings and a Snakefile.

    Raises UserErrors, and writes nothing, where any of them is there.
    """
    files = dict(_files())
    there = [args.folder / name for name in files if os.path.lexists(args.folder / name)]
    require_none(UserError(file, "exists already", "name another folder, or remove this file") for file in there)
    if args.folder.exists():
        _write(args.folder, files)
    else:
        args.folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(args.folder) as folder:
            _write(folder, files)
    say(f"wrote {', '.join(files)} in {args.folder}")
    say(f"now edit {args.folder / 'config/studies/my-study.yaml'}; in {args.folder}, `fedshift run my-study` runs it")


def _files() -> Iterator[tuple[str, str]]:
    """Yield the path of each file of a new project, in its folder, and the content."""
    for file in sorted(TEMPLATES.rglob("*")):
        if file.is_file():
            name = file.relative_to(TEMPLATES)
            if name.name in HIDDEN:
                name = name.with_name(f".{name}")
            yield str(name), file.read_text(encoding="utf-8")
    # Plain `snakemake` finds it there: without `rerun-incomplete`, a call after a kill would end in an error.
    yield str(PROFILE), (SHIPPED / PROFILE).read_text(encoding="utf-8")


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / name, text)


def run(args: argparse.Namespace) -> None:
    """Run a study from its data to its page, by Snakemake, to which all further arguments go."""
    announce(f"{args.study}: Snakemake reads the study and counts its jobs")
    words = [sys.executable, "-m", "snakemake", *arguments(args)]
    sys.stdout.flush()
    os.execv(words[0], words)


def arguments(args: argparse.Namespace) -> list[str]:
    """Return the arguments of Snakemake for the command `run`."""
    folder = args.folder or Path()
    named = {"study": args.study, "scale": args.scale, "mirror": args.mirror, "studies": args.studies}
    config, rest = _merged([f"{key}={value}" for key, value in named.items() if value], args.rest)
    words = [*config, "--snakefile", str(workflow_of(folder).absolute())]
    words += ["--workflow-profile", str(_profile(folder, "default"))]
    if args.profile:
        words += ["--profile", str(_profile(folder, args.profile))]
    if args.folder:
        words += ["--directory", str(args.folder)]
    if args.cores or not (args.profile or any(map(_is_of_cores, rest))):
        words += ["--cores", args.cores or "all"]
    return [*words, *rest]


def _merged(settings: list[str], rest: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the option with the settings of a study, and the arguments that are passed on.

    Snakemake reads only the last of several options `--config`: the settings are added to one that is passed on.
    """
    words = list[str]()
    for word in rest:
        if word.startswith("--config="):
            words += word.split("=", 1)
        else:
            words.append(word)
    at = [number for number, word in enumerate(words) if word in OF_CONFIG]
    if not at:
        return ["--config", *settings], words
    return [], [*words[: at[-1] + 1], *settings, *words[at[-1] + 1 :]]


def _is_of_cores(word: str) -> bool:
    """Return whether an argument of Snakemake says how many jobs run at once: `--jobs 4`, `-c4`."""
    return word.partition("=")[0] in OF_CORES or word[:2] in OF_CORES


def _profile(folder: Path, name: str) -> Path:
    """Return the folder of a profile: one of the project, one that comes with fedshift, or what Snakemake knows."""
    places = (folder.absolute() / "profiles" / name, SHIPPED / "profiles" / name)
    return next((place for place in places if place.is_dir()), Path(name))
