"""The parser and the main function of the command line `fedshift`, which the workflow's rules and users call."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import __version__
from ..core import registry
from ..core.console import say
from ..core.errors import Interrupted, UserError, did_you_mean, out_of_memory
from ..core.process import LIMITS, OWN_THREADS
from ..io.paths import STUDIES
from ..io.shipped import plugin_folders
from ..study import known
from . import data, plugins, projects, runs, steps, studies
from .group import Group, announce_work, take_project_scale

SHELLS = {"bash": "~/.bashrc", "zsh": "~/.zshrc"}
"""The shells with completion, and the start-up file in which a user loads the completion script."""
SCRIPT = """\
{zsh}_fedshift() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "$command" in
{cases}
    esac
    case "$command" in
      {of_studies}) words="$words {shipped} $(cd {folder} 2>/dev/null && ls *.yaml 2>/dev/null | sed 's/\\.yaml$//')" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _fedshift fedshift
"""
"""The template of the completion script, for `str.format`."""
ZSH = """\
(( $+functions[compdef] )) || { autoload -U compinit && compinit; }
autoload -U +X bashcompinit && bashcompinit
"""
"""Lets zsh take completions that are written for bash."""


def add_completion(group: Group) -> None:
    """Add the command `fedshift completion` to a group."""
    command = group.add_bare(completion)
    command.add_argument("shell", choices=list(SHELLS), help="the shell that is to complete")
    command.set_defaults(group=group)


def completion(args: argparse.Namespace) -> None:
    """Print a script that lets a shell complete commands, options and names of studies.

    Its first line says how a shell loads it.
    """
    print(completion_script(args.shell, args.group.commands.choices), end="")


def completion_script(shell: str, commands: dict[str, argparse.ArgumentParser]) -> str:
    """Return the completion script of a shell (bash or zsh); `commands` maps a command to its parser."""
    options = {
        name: " ".join(sorted(word for word in parser._option_string_actions if word.startswith("--")))
        for name, parser in commands.items()
    }
    lines = [f'      {name}) words="{words}" ;;' for name, words in sorted(options.items())]
    named = [name for name, parser in commands.items() if any(a.dest == "study" for a in parser._actions)]
    loading = f'# eval "$(fedshift completion {shell})"   in {SHELLS[shell]}\n'
    text = SCRIPT.format(
        zsh=ZSH if shell == "zsh" else "",
        commands=" ".join(sorted(commands)),
        cases="\n".join(lines),
        of_studies="|".join(sorted(named)),
        shipped=" ".join(known(STUDIES / "of no project")),
        folder=STUDIES,
    )
    return loading + inspect.cleandoc(text) + "\n"


GROUPS = {
    "Projects": projects.add,
    "Studies and plans": studies.add,
    "Your own images, and bundles": runs.add,
    "Scans of a hospital": data.add_scans,
    "Whole slides": data.add_slides,
    "Scores, figures and pages": steps.add_reports,
    "Between real sites": runs.add_sites,
    "Exports": runs.add_exports,
    "Care of finished work": studies.add_care,
    "Data": data.add_sources,
    "Plug-ins of your own": plugins.add,
    "Steps from data to predictions, which run calls by itself": steps.add,
    "Documentation": plugins.add_documentation,
    "Your shell": add_completion,
}
"""The function that adds the commands of a group, by the group's title, in the order of `fedshift --help`."""
DESCRIPTION = """Federated-learning studies under feature shift.

A first study: fedshift new DIR; then in DIR, fedshift check my-study; fedshift plan my-study --probe tells the hours;
fedshift run my-study ends with a page. fedshift apply takes a trained run to other images."""
"""The first text of `fedshift --help`."""
MORE_MEMORY = "close other programs, use fewer threads, smaller batches, images or networks, or a larger machine"


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of all commands."""
    top = argparse.ArgumentParser(
        prog="fedshift",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    help_text = "one of the commands below; fedshift COMMAND --help lists its options"
    commands = top.add_subparsers(required=True, metavar="command", help=help_text)
    groups = [Group(title, commands) for title in GROUPS]
    for group in groups:
        GROUPS[group.title](group)
    top.epilog = "\n\n".join(group.help() for group in groups)
    return top


def commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the argument parser of each command, by its name, given the parser of all commands."""
    (action,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


def _parsed(top: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed arguments of a command; `rest` holds the arguments that it passes on to another program.

    Raises UserError for an unknown command.
    """
    words = sys.argv[1:] if argv is None else argv
    if words and not words[0].startswith("-") and words[0] not in commands(top):
        # argparse would print all commands there are
        raise UserError("fedshift", f"unknown command {words[0]!r}", did_you_mean(words[0], commands(top)))
    args, rest = top.parse_known_args(argv)
    if rest and not args.passes_on:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    args.rest = rest[1:] if rest[:1] == ["--"] else rest
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, given its arguments (default: those of the process), and return the exit code.

    The code is 0, or the command's own, such as 1 if `diff` finds differences; 2 for bad input, reported as one line on
    standard error; 130 after Ctrl-C and 143 after SIGTERM. An error in a user's plug-in prints its traceback and a line
    that names its file, and returns 1.
    """
    top = parser()
    try:
        args = _parsed(top, argv)
    except UserError as error:
        say(str(error))
        return error.exit_code
    if args.threads:
        # Numeric libraries read the limits of their pools of threads when they are loaded.
        os.environ.update(dict.fromkeys(LIMITS, "1" if args.call.__name__ in OWN_THREADS else str(args.threads)))
    code = 0
    _prepare_output()
    try:
        with _interrupts(), contextlib.chdir(args.directory or Path()):
            named = getattr(args, "plugins", ())  # a command without this option needs no plug-ins
            if named is None:
                named = plugin_folders()
            for folder in named:
                registry.add_folder(folder)
            take_project_scale(args)
            if not hasattr(args, "study"):
                announce_work(args)
            code = args.call(args) or 0
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        _drop_output()
    except UserError as error:
        say(str(error))
        return error.exit_code
    except OSError as error:
        say(str(_in_one_line(error, _name(args))))
        return UserError.exit_code
    except Interrupted as stop:
        say("stopped; start again to go on from the last round")
        return stop.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except Exception as error:
        if out_of_memory(error):
            say(str(UserError(f"fedshift {_name(args)}", "the memory does not suffice", MORE_MEMORY)))
            return UserError.exit_code
        place = registry.line_of(error)
        if not place:
            raise
        # The last line of a log is what the workflow shows of a failed job.
        traceback.print_exc()
        first, _, _ = str(error).strip().partition("\n")
        say(f"{place}: {type(error).__name__}: {first}")
        return 1
    return code


def _name(args: argparse.Namespace) -> str:
    """Return the name of the command's function."""
    return str(args.call.__name__.rstrip("_"))


def _in_one_line(error: OSError, command: str) -> UserError:
    """Return the UserError for an error of the operating system, with the file, the current folder or the output.

    Without a file's name, the error concerns the current folder, which was removed, or the command's output.
    """
    problem = error.strerror or str(error)
    if error.filename is not None:
        return UserError(error.filename, problem, "check the path and its permissions")
    if isinstance(error, FileNotFoundError):
        return UserError("the current folder", "does not exist any more", "change to another one")
    _drop_output()
    return UserError(f"fedshift {command}", problem, "free some space, or print elsewhere")


def _prepare_output() -> None:
    """Make standard output escape characters that it cannot encode, such as bytes of file names.

    A closed standard output or standard error is replaced by one that discards all text.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for all that follows
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Discard further standard output, so that Python does not raise an error again when it flushes at exit."""
    with contextlib.suppress(io.UnsupportedOperation):  # a stream without a descriptor, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """After Ctrl-C in the block, raise KeyboardInterrupt for any error: imported modules may turn it into another."""
    pressed = False

    def press(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield
    except Exception as error:
        if pressed:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
