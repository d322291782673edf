"""One training, and the data that it is made on. Imports no torch."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ..algorithms import Training
from ..core import digest
from ..core.registry import Plugin
from ..data.partition import Partition
from ..datasets import Card
from .fields import AddonField, AlgorithmField, BNName, DatasetField, ModelField, TransformField


class Frozen(BaseModel):
    """Plain data that does not change and knows all its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Data(Frozen):
    """A dataset with what is done to its images once. Its ids name folders.

    `synthetic` means the miniature: images drawn by this project, of which no result comes.
    """

    dataset: DatasetField
    synthetic: bool
    prepare: tuple[TransformField, ...] = ()

    @property
    def card(self) -> Card:
        """Of the miniature or of the real set; as the study words it now, whenever it was prepared."""
        return self.dataset.miniature_card() if self.synthetic else self.dataset.card()

    @functools.cached_property
    def raw(self) -> str:
        """Name of the folder of raw files."""
        return f"{self.dataset.name}-{digest.of(self._files)}"

    @functools.cached_property
    def id(self) -> str:
        return f"{self.dataset.name}-{digest.of([self._source, [t.identity() for t in self.prepare]])}"

    @functools.cached_property
    def _source(self) -> dict[str, Any]:
        unused = frozenset() if self.synthetic else self.dataset.of_miniature
        return {"synthetic": self.synthetic, **{k: v for k, v in self.dataset.identity().items() if k not in unused}}

    @functools.cached_property
    def _files(self) -> dict[str, Any]:
        return {k: v for k, v in self._source.items() if k not in self.dataset.of_reading}


class Run(Frozen):
    """One training. Equal runs are one, whichever studies ask for them; words that only people read do not count."""

    data: Data
    partition: Partition
    model: ModelField
    transforms: tuple[TransformField, ...]
    algorithm: AlgorithmField
    bn: BNName
    addon: AddonField | None
    training: Training
    seed: int = Field(ge=0)

    @functools.cached_property
    def spec(self) -> dict[str, Any]:
        """All settings, defaults included, as plain data."""
        return self.model_dump(mode="json")

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The same by dotted path: `training.batch_size`, `partition.limit.train`, ..."""
        return dict(_flat(self.spec))

    @functools.cached_property
    def id(self) -> str:
        """The name of the run's folder, from its identity."""
        return self._named({**self._but_for_the_seed, "seed": self.seed})

    @functools.cached_property
    def condition(self) -> str:
        """The id that this run shares with all runs that differ from it in the seed only."""
        return self._named(self._but_for_the_seed)

    def _named(self, parts: dict[str, Any]) -> str:
        return f"{self.algorithm.name}-{self.bn}-{digest.of(parts)}"

    @functools.cached_property
    def _but_for_the_seed(self) -> dict[str, Any]:
        return {
            "data": self.data.id,
            "partition": self.partition_id,
            "model": self.model.identity(),
            "transforms": [t.identity() for t in self.transforms],
            "algorithm": self.algorithm.identity(),
            "bn": self.bn,
            "addon": self.addon.identity() if self.addon else None,
            "training": self.training.model_dump(mode="json"),
        }

    @functools.cached_property
    def partition_id(self) -> str:
        return self.partition.identity(self.data.id)

    @property
    def tested(self) -> tuple[str, ...]:
        """The sites that are predicted: no external ones where each client trains alone."""
        return (*self.partition.internal, *(() if self.algorithm.isolated else self.partition.external))

    @property
    def plugins(self) -> list[Plugin]:
        """All plug-ins that take part in training, and in prediction, which needs the same network."""
        return [self.model, self.algorithm, *self.transforms, *([self.addon] if self.addon else [])]


def _flat(spec: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as one, with dotted paths."""
    for key, value in spec.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
