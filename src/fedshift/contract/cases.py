"""All cases of a plug-in: those of every kind, and those of its own kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..core.plugin import Plugin
from . import addons, algorithms, datasets, every, figures, inferences, metrics, models, transforms
from .case import Case

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
    """Yield what a plug-in must satisfy. It must be one that `registry.discover` finds."""
    yield from every.cases(cls)
    yield from OF_KIND[cls.kind](cls)
