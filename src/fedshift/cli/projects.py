"""The commands new and run: they write the files of a user's project, and call Snakemake to run a study in it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

from ..core.console import announce, say
from ..core.errors import UserError, did_you_mean, require_none
from ..datasets import Scale
from ..datasets._own_rows import ROLES
from ..io.disk import atomic_folder, require_writable
from ..io.paths import STUDIES
from ..io.shipped import SHIPPED, workflow_of
from ..io.text import read_yaml, write_text
from ..study import load
from ..study.calls import in_config
from ..study.declaration import Study
from .group import HELP, PROJECT_SCALE, Group

TEMPLATES = Path(__file__).parent / "project"
"""The folder with the files of a new project. Names in HIDDEN get a dot in front when they are written."""
PROFILE = Path("profiles/default/config.yaml")
"""The path, in the repository and in a project, of the profile that Snakemake loads by default."""
HIDDEN = ("gitignore",)
"""Names of template files that begin with a dot in a project."""
WRITTEN = (".snakemake", "results", "reports", "resources")
"""Folders of a project into which Snakemake and its jobs write."""
OF_CORES = ("--cores", "-c", "--jobs", "-j", "--profile")
"""Options of Snakemake that say how many jobs run at once."""
OF_CONFIG = ("--config", "-C")
"""Snakemake's option with all settings. If it occurs twice, Snakemake uses the second only."""


def add(group: Group) -> None:
    """Add the commands `fedshift new` and `fedshift run` to a group."""
    command = group.add_bare(new)
    what = "folder of the project; other files in it stay. With --table also the file of a study to write, NAME.yaml"
    command.add_argument("folder", type=Path, metavar="DIR", help=what)
    command.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="your own images: a table (CSV of any delimiter, Excel, Parquet), or a folder of images or of scans; "
        "writes a study of them that is ready to run",
    )
    command.add_argument(
        "--labels", type=Path, metavar="CSV", help="table of labels for a folder of scans, as for the command table"
    )
    command.add_argument(
        "--column",
        type=_column,
        action="append",
        default=[],
        metavar="ROLE=NAME",
        help=f"role of a column whose name does not say it: {', '.join(ROLES)}; may be repeated",
    )
    command.add_argument("--yes", action="store_true", help="ask no questions: take the defaults, and print them")
    command = group.add_bare(
        run, allow_abbrev=False, usage="fedshift run STUDY [options] [-- any arguments of snakemake]"
    )
    command.set_defaults(passes_on=True)
    command.add_argument("study", metavar="STUDY", help=HELP["study"] + "; several separated by commas, or all")
    command.add_argument("--scale", choices=get_args(Scale), help=f"default: {PROJECT_SCALE}")
    group.add_settings(command)
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
        help="work in this folder, to which all paths are relative; it is made if it does not exist",
    )


def new(args: argparse.Namespace) -> None:
    """Write a project of your own: a study to edit, its settings and a Snakefile.

    Raises UserErrors, and writes nothing, if any of the files exists.
    """
    if args.table is not None:
        _new_of_images(args)
        return
    files = dict(_files())
    _require_free(args.folder, files)
    if args.folder.exists():
        _write(args.folder, files)
    else:
        args.folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(args.folder) as folder:
            _write(folder, files)
    say(f"wrote {', '.join(files)} in {args.folder}")
    say(f"now edit {args.folder / 'config/studies/my-study.yaml'}; in {args.folder}, `fedshift run my-study` runs it")


def _require_free(folder: Path, names: Iterable[str]) -> None:
    """Raise UserErrors for the files, named relative to a folder, that exist already."""
    there = [folder / name for name in names if os.path.lexists(folder / name)]
    require_none(UserError(file, "exists already", "name another folder, or remove this file") for file in there)


def _new_of_images(args: argparse.Namespace) -> None:
    """Write a study of the user's own images: in a new project, or the study alone if `args.folder` is a YAML file."""
    from ..jobs.found_images import find, list_folder
    from ..jobs.proposed_study import propose, text

    source: Path = args.table.absolute()
    if not source.exists():
        raise UserError(args.table, "no such file or folder", "name a table, or a folder of images")
    alone = args.folder.suffix in (".yaml", ".yml")
    top = args.folder.parent if alone else args.folder
    name = args.folder.stem if alone else args.folder.resolve().name
    study = Path(args.folder.name) if alone else STUDIES / f"{name}.yaml"
    listing = Path(f"{name}.csv" if alone else "images.csv")
    files = {} if alone else _project(name)
    _require_free(top, [*files, str(study), *([str(listing)] if source.is_dir() else [])])
    answers = list[str]()
    choose = _asked if sys.stdin.isatty() and not args.yes else _taken(answers)
    announce(f"{args.table}: looking at the table, and at the files that it names")
    with ExitStack() as stack:
        place = top
        if not top.exists():
            top.parent.mkdir(parents=True, exist_ok=True)
            place = stack.enter_context(atomic_folder(top))
        if source.is_dir():
            undone = stack.enter_context(ExitStack())  # after an error, the table of the folder is removed
            undone.callback((place / listing).unlink, missing_ok=True)
            found = list_folder(source, place / listing, place / "pseudonyms.key", args.labels, choose)
            proposal = propose(found, (place / study).parent, choose)
            undone.pop_all()
        else:
            found = find(source, dict(args.column), choose)
            proposal = propose(found, (place / study).parent, choose)
        _write(place, files | {str(study): text(proposal, name)})
        try:
            load(place / study, "mini")  # what was written can be read, before the folder has its name
        except UserError as error:
            raise UserError(top / study, f"cannot be written as a study: {error.what}", error.remedy) from None
    for line in (*found.told, *(f"  taken: {line}" for line in (*answers, *proposal.reasons))):
        say(line)
    say(f"wrote {top / study}")
    from .data import inspected

    try:
        print(*inspected(load(top / study, "mini")), sep="\n")
    except UserError as error:
        say(str(error))
        say(f"the study is not ready: mend these in {args.table} or in {top / study}, then fedshift check {name}")
        return
    where = "" if alone else f"in {top}: "
    say(f"{where}`fedshift plan {name} --probe` tells the hours, `fedshift run {name}` ends with reports/{name}.html")


def _project(name: str) -> dict[str, str]:
    """Return the contents of a new project's files by path, without the study; the settings name the study `name`."""
    files = dict(_files())
    example = files.pop(str(STUDIES / "my-study.yaml"))
    assert example
    config = "config/config.yaml"
    return files | {config: files[config].replace("study: my-study", f"study: {json.dumps(name, ensure_ascii=False)}")}


def _column(words: str) -> tuple[str, str]:
    """Return (role, column name) of the option `--column ROLE=NAME`. Raises argparse's error for other texts."""
    role, _, name = words.partition("=")
    if role not in ROLES or not name:
        raise argparse.ArgumentTypeError(f"{words!r} is not ROLE=NAME, with a role of {', '.join(ROLES)}")
    return role, name


def _taken(answers: list[str]) -> Callable[[str, Sequence[str], str], str]:
    """Return a function that answers each question with its default, and adds question and answer to `answers`."""

    def choose(question: str, options: Sequence[str], default: str) -> str:
        answers.append(f"{question} {default}")
        return default

    return choose


def _asked(question: str, options: Sequence[str], default: str) -> str:
    """Ask a question in the terminal and return the answer; an empty answer is the default.

    Repeat the question until the answer is one of `options`, unless these are empty.
    """
    listed = ", ".join(options)
    say(f"{question} ({listed})" if options else question)
    while True:
        answer = input(f"[{default}] ").strip() or default
        if not options or answer in options:
            return answer
        say(did_you_mean(answer, options))


def _files() -> Iterator[tuple[str, str]]:
    """Yield the path, relative to the project's folder, and the content of each file of a new project."""
    for file in sorted(TEMPLATES.rglob("*")):
        if file.is_file():
            name = file.relative_to(TEMPLATES)
            if name.name in HIDDEN:
                name = name.with_name(f".{name}")
            yield str(name), file.read_text(encoding="utf-8")
    # Plain `snakemake` finds it there: without `rerun-incomplete`, a call after a kill would end in an error.
    yield str(PROFILE), (SHIPPED / PROFILE).read_text(encoding="utf-8")


def left_over(study: Study) -> list[str]:
    """Return the keys among title and question that a study has not changed from the example of `fedshift new`."""
    written = [read_yaml(file) for file in sorted((TEMPLATES / STUDIES).glob("*.yaml"))]
    return [key for key in ("title", "question") if any(getattr(study, key) == words.get(key) for words in written)]


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write text files into a folder; `files` maps a path relative to the folder to its content."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / name, text)


def run(args: argparse.Namespace) -> None:
    """Run a study from its data to its page, by Snakemake, which gets all further arguments.

    Raises UserErrors for folders of the project that cannot be written, since Snakemake's message would say less.
    """
    require_none(_unwritable(args.folder or Path()))
    announce(f"{args.study}: Snakemake reads the study and counts its jobs")
    words = [sys.executable, "-m", "snakemake", *arguments(args)]
    sys.stdout.flush()
    os.execv(words[0], words)


def _unwritable(project: Path) -> Iterator[UserError]:
    """Yield an error for each folder of a project that is not writable; only one if the project's folder is not."""
    for name in ("", *WRITTEN):
        try:
            require_writable(project / name)
        except UserError as error:
            yield error
            if not name:
                return


def arguments(args: argparse.Namespace) -> list[str]:
    """Return the command-line arguments with which `fedshift run` calls Snakemake."""
    folder = args.folder or Path()
    named = {"study": args.study, "scale": args.scale, "mirror": args.mirror, "studies": args.studies}
    settings = [f"{key}={value}" for key, value in named.items() if value]
    config, rest = _merged([*settings, *in_config(args.settings or ())], args.rest)
    words = [*config, "--snakefile", str(workflow_of(folder).absolute())]
    words += ["--workflow-profile", str(_profile(folder, "default"))]
    if args.profile:
        words += ["--profile", str(_profile(folder, args.profile))]
    if args.folder:
        words += ["--directory", str(args.folder)]
    # `--jobs=4` or `-c4`
    of_cores = any(word.partition("=")[0] in OF_CORES or word[:2] in OF_CORES for word in rest)
    if args.cores or not (args.profile or of_cores):
        words += ["--cores", args.cores or "all"]
    return [*words, *rest]


def _merged(settings: list[str], rest: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the option `--config` with the settings of a study, and the arguments `rest` that are passed on.

    Snakemake reads only the last of several options `--config`. If `rest` has one, the settings are inserted there, and
    the first list is empty.
    """
    words = [part for word in rest for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    at = [number for number, word in enumerate(words) if word in OF_CONFIG]
    if not at:
        return ["--config", *settings], words
    return [], [*words[: at[-1] + 1], *settings, *words[at[-1] + 1 :]]


def _profile(folder: Path, name: str) -> Path:
    """Return the folder of a Snakemake profile: of the project `folder`, or else of fedshift.

    Return the bare name, which Snakemake looks up itself, if neither has the profile.
    """
    places = (folder.absolute() / "profiles" / name, SHIPPED / "profiles" / name)
    return next((place for place in places if place.is_dir()), Path(name))
