"""Commands for those who extend fedshift: the checks of a plug-in, and generated documentation."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..core import registry
from ..core.places import line_of
from ..study import declaration
from .group import Group

if TYPE_CHECKING:
    from ..contract import Case


def add(group: Group) -> None:
    """Add the command test-plugin."""
    command = group.add(test_plugin, work="loading the checks of a plug-in")
    command.add_argument(
        "file", type=Path, metavar="FILE", help="Python file with the plug-in, such as plugins/half.py"
    )


def test_plugin(args: argparse.Namespace) -> int:
    """Check one plug-in by everything that its kind must satisfy.

    Returns 1 if one fails.
    """
    from ..contract import cases

    cls = registry.add_file(args.file)
    print(f"{cls.kind} {cls.name}: {cls.summary()}")
    results = []
    first = dict[str, str]()
    for case in cases(cls):
        words = _fault(case, Path(inspect.getfile(cls)).parent)
        result = "passed"
        if words:
            result = "noted" if case.advice else "failed"
            case_of_words = first.setdefault(words, case.title)
            words = f": {words}" if case_of_words == case.title else f": as in {case_of_words!r}"
        results.append(result != "failed")
        print(f"{result:<8}{case.title}{words}", flush=True)
    print(f"{sum(results)} of {len(results)} checks passed")
    return int(not all(results))


def _fault(case: Case, folder: Path) -> str:
    """Return what is wrong in a case, with the line of an error in the plug-in's folder; nothing if all is well."""
    from ..contract import Broken

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # notes on small networks, which tell an author nothing
            case.check()
    except Broken as error:
        return " ".join(str(error).split())
    except Exception as error:
        place = line_of(error, folder)
        return " ".join(f"{type(error).__name__}: {error}{place and f' ({place})'}".split())
    return ""


def add_documentation(group: Group) -> None:
    """Add the commands algorithms and schema."""
    group.add(algorithms, work="measuring what each algorithm sends")
    group.add(schema, work="describing all keys")


def algorithms(args: argparse.Namespace) -> None:
    """Print docs/algorithms.md: what each algorithm does, sends and keeps."""
    from .catalogue import algorithms as page

    print(page(), end="")


def schema(args: argparse.Namespace) -> None:
    """Print the JSON schema of a study's YAML file."""
    print(json.dumps(declaration.schema(), indent=2))
