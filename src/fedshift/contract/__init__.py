"""The contract: checks that every plug-in class must pass, by kind. docs/contract.md lists the rules for authors.

`fedshift test-plugin FILE` runs the checks on one plug-in, and tests/contract on all plug-ins that are found.
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
    """Yield the checks of a plug-in class: the checks that all plug-ins must pass, then the checks of its kind.

    Each check runs guarded (see `case.guarded`). `registry.discover` must find the class.
    """
    for case in (*of_every_kind(cls), *OF_KIND[cls.kind](cls)):
        yield dataclasses.replace(case, check=partial(guarded, cls, case.check))
