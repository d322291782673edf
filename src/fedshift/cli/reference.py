"""Commands that print generated documentation."""

from __future__ import annotations

import argparse
import json

from ..study import declaration
from .group import Group


def add(group: Group) -> None:
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
