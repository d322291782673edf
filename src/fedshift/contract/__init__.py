"""Checks that every plug-in must pass, each run on one class: docs/contract.md says what authors must know of them.

`fedshift test-plugin FILE` runs them on a plug-in of your own, and tests/contract on all that are found.
Expected numbers of a single method belong into that method's test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..core.plugin import Plugin
from . import addons, algorithms, datasets, figures, inferences, metrics, models, transforms
from .case import Broken, Case, guarded, of_every_kind

__all__ = ["Broken", "Case", "cases"]

OF_KIND: dict[str, Callable[[Any], Iterator[Case]]] = {
    "algorithm": algorithms.cases,
    "addon": addons.cases,
    "model": models.cases,
    "inference": inferences.cases,
    "metric": metrics.cases,
    "transform": transforms.cases,
    "figure": figures.cases,
    "dataset": datasets.cases,
}


def cases(cls: type[Plugin]) -> Iterator[Case]:
    """Yield what a plug-in must satisfy: the cases of every kind, and those of its kind.

    The plug-in must be one that `registry.discover` finds.
    """
    for case in (*of_every_kind(cls), *OF_KIND[cls.kind](cls)):
        yield dataclasses.replace(case, check=partial(guarded, cls, case.check))
