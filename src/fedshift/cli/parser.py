"""The command line `fedshift`: what the workflow's rules call, and what people call by hand on the same files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..core.console import say
from ..core.errors import Interrupted, UserError
from . import exports, integrity, reference, reports, steps, studies, trained
from .group import Group

GROUPS = {
    "Studies and plans": studies.add,
    "Steps of the workflow, from data to predictions": steps.add,
    "Scores, figures and pages": reports.add,
    "Care of finished work": integrity.add,
    "Your own images, and bundles": trained.add,
    "Exports": exports.add,
    "Documentation": reference.add,
}
"""Functions that add the commands of a group to it, by the title of the group, in the order of `--help`."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="fedshift",
        description="Federated-learning studies under feature shift.",
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


def _limit_threads(threads: int) -> None:
    """Limit the thread pools of numeric libraries, which read these variables when they are loaded."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, or 1 if `diff` finds differences; 2 for bad input; 130 or 143 when asked to stop.

    Bad input is one line on standard error.
    """
    args = parser().parse_args(argv)
    _limit_threads(args.threads)
    code = 0
    try:
        code = args.call(args) or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
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
    return code
