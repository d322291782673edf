"""Runs and their data, with the ids that name their folders, and searches over settings of the training.

A list of values in the settings is a search: each combination is trained, and a rule chooses one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ..algorithms import Algorithm, Training
from ..core import digest, registry
from ..core.errors import UserError
from ..core.plugin import Frozen
from ..core.registry import Plugin, validated
from ..data.partition import Partition
from ..datasets import Card
from ..nn.policies import BATCH
from ..tasks import CLASSIFICATION
from .fields import (
    AddonField,
    AlgorithmField,
    BNName,
    DatasetField,
    LazySchema,
    ModelField,
    NormsField,
    TaskField,
    TransformField,
    or_list,
)

Rule = Literal["validation", "oracle"]
"""Rules that choose: by validation images of the internal sites, or by test images of the external ones."""
ALONE = frozenset(
    (
        *("train", "class_weights", "select", "select_by", "select_at", "epochs_at"),
        *("watch_every", "training_loss_every", "training_loss_images"),
        *("precision", "channels_last", "deterministic"),
    )
)
"""Settings that have one value in a search. Those of LISTS are one value; the others do not belong to what is
learnt, or would compare values of different kinds."""
LISTS = frozenset({"train", "class_weights", "select_at"})
"""Settings whose one value may be a list."""
MOST = 100
"""The most combinations that one search may try."""


OPTION = "algorithm."
"""Prefix of the settings of an algorithm among those of a search; the others are settings of the training."""


class Search(Frozen):
    """A search: the settings that vary, each with its values in order, and the rule that chooses.

    They are settings of the training and, under names that begin with OPTION, of the algorithm.
    """

    rule: Rule
    values: dict[str, tuple[Any, ...]]

    def combinations(self) -> list[dict[str, Any]]:
        """Return every combination of the values, the last setting varying first."""
        return [dict(zip(self.values, values, strict=True)) for values in itertools.product(*self.values.values())]


def options(algorithms: Sequence[Algorithm]) -> dict[str, tuple[Any, ...]]:
    """Return the settings in which several algorithms of one kind differ, each with its values in order."""
    specs = [algorithm.spec() for algorithm in algorithms]
    differ = [key for key in specs[0] if any(spec[key] != specs[0][key] for spec in specs)]
    return {OPTION + key: tuple(dict.fromkeys(spec[key] for spec in specs)) for key in differ}


class _Separate(Training):
    """Training without the rules that compare settings: these are checked when a grid is merged with its study."""

    def _together(self) -> Training:  # type: ignore[override]
        return self


def varied(settings: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the settings of a training that are lists of values, but for a list with one value."""
    return {key: tuple(value) for key, value in settings.items() if _several(key, value) and len(value) > 1}


def trainings(settings: Mapping[str, Any], where: str) -> list[Training]:
    """Return the training of each combination of the values in `settings`. Raises UserErrors for wrong settings."""
    values = {key: tuple(value) for key, value in settings.items() if _several(key, value)}
    number = math.prod(map(len, values.values()))
    if number > MOST:
        raise UserError(where, f"its lists make {number} combinations, more than {MOST}", "shorten them")
    search = Search(rule="validation", values=values)
    return [validated(Training, {**settings, **chosen}, where) for chosen in search.combinations()]


def _several(key: str, value: Any) -> bool:
    return isinstance(value, list | tuple) and key not in ALONE


def _each_alone(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings after checking each value alone. Raises UserErrors for wrong values and empty lists."""
    for key, value in settings.items():
        if key in ALONE and key not in LISTS and isinstance(value, list):
            raise UserError(f".{key}", "is a list, but this setting cannot be searched", "give one value")
        if _several(key, value):
            if not value:
                raise UserError(f".{key}", "is an empty list", "give at least one value")
            if len(set(map(repr, value))) < len(value):
                raise UserError(f".{key}", "has a value twice", "leave out one of the two")
    several = {key: value for key, value in settings.items() if _several(key, value)}
    # One value of each list at a time: rules between settings are checked when the grid is merged with its study.
    validated(_Separate, {**settings, **{key: value[0] for key, value in several.items()}}, "")
    for key, value in several.items():
        for further in value[1:]:
            validated(_Separate, {key: further}, "")
    return settings


def _training_schema() -> dict[str, Any]:
    """Return the schema of the settings of a training, most of which may be lists of values."""
    properties = Training.model_json_schema()["properties"]
    properties |= {key: or_list(value) for key, value in properties.items() if key not in ALONE}
    return {"type": "object", "properties": properties, "additionalProperties": False}


TrainingField = Annotated[dict[str, Any], AfterValidator(_each_alone), LazySchema(_training_schema)]
"""Settings of a training. A list of values is a search: each combination of values is trained, and one is chosen."""


class Data(Frozen):
    """A dataset, and the transforms that are applied to its images once. Its ids name folders.

    Images that are `synthetic` are those of the miniature, drawn by this project; they give no scientific result.
    """

    dataset: DatasetField
    synthetic: bool
    prepare: tuple[TransformField, ...] = ()
    task: TaskField = CLASSIFICATION

    @property
    def card(self) -> Card:
        """The data card of the miniature or of the real set, in the words of the study as it is now."""
        return self.dataset.miniature_card() if self.synthetic else self.dataset.card()

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of raw images, (channels, height, width), or (features,); None where none is stated."""
        side = getattr(self.dataset, "size", None)  # of datasets that bring their images to one size
        return self.dataset.shape or (side and (3, side, side))

    @functools.cached_property
    def raw(self) -> str:
        """The id of the raw files: the name of their folder."""
        not_raw = {*self.dataset.reading_fields, "masks"}
        files = {k: v for k, v in self._source.items() if k not in not_raw}
        return f"{self.dataset.identity_name}-{digest.of(files)}"

    @functools.cached_property
    def id(self) -> str:
        """The id of the prepared images: the name of their folder."""
        return f"{self.dataset.identity_name}-{digest.of([self._source, [t.identity() for t in self.prepare]])}"

    @functools.cached_property
    def source(self) -> str:
        """The id of the images before the transforms of preparation: data that share it show the same patients."""
        return digest.of(self._source)

    @functools.cached_property
    def _source(self) -> dict[str, Any]:
        # Settings of the miniature alone leave the ids of real data as they are.
        settings = self.dataset.identity()
        if not self.synthetic:
            settings = {key: value for key, value in settings.items() if key not in self.dataset.miniature_fields}
        # Masks are prepared beside images. A key that says classification would change the ids of all data.
        masks = {"masks": True} if self.task.has_masks else {}
        return {"synthetic": self.synthetic, **settings, **masks}


class Run(Frozen):
    """One training, or with a `search` the one that a rule chooses among several.

    Before the choice, `training` of a searched run is that of the first combination of values.
    Runs with equal settings have the same id and are trained once, whichever studies ask for them. Titles and other
    texts for readers do not count.
    """

    data: Data
    partition: Partition
    model: ModelField
    transforms: tuple[TransformField, ...]
    algorithm: AlgorithmField
    bn: BNName
    addon: AddonField | None
    training: Training
    seed: int = Field(ge=0)
    search: Search | None = None
    norms: NormsField = BATCH

    @functools.cached_property
    def spec(self) -> dict[str, Any]:
        """All fields, defaults included, as plain data. Settings that a search varies have a list of values."""
        plain = self.model_dump(mode="json", exclude={"search"})
        if self.data.task == CLASSIFICATION:
            del plain["data"]["task"]
        if self.norms == BATCH:
            del plain["norms"]
        if self.search:
            for key, values in self.search.values.items():
                part = "algorithm" if key.startswith(OPTION) else "training"
                plain[part] |= {key.removeprefix(OPTION): list(values)}
            plain["search"] = self.search.rule
        return plain

    @functools.cached_property
    def candidates(self) -> dict[str, Run]:
        """The trainings among which a search chooses, by id and in the order of its values; empty without a search."""
        if not self.search:
            return {}
        fields = {name: getattr(self, name) for name in type(self).model_fields} | {"search": None}
        runs = []
        for chosen in self.search.combinations():
            options = {key.removeprefix(OPTION): v for key, v in chosen.items() if key.startswith(OPTION)}
            settings = {key: v for key, v in chosen.items() if not key.startswith(OPTION)}
            fields["algorithm"] = registry.build("algorithm", self.algorithm.spec() | options)
            runs.append(Run(**fields | {"training": Training(**self.training.model_dump() | settings)}))
        return {run.id: run for run in runs}

    def tried(self) -> dict[str, dict[str, Any]]:
        """Return the values of the varied settings that each candidate of a search is trained with, by its id."""
        if not self.search:
            return {}
        paths = {name: name if name.startswith(OPTION) else f"training.{name}" for name in self.search.values}
        return {key: {name: run.settings[path] for name, path in paths.items()} for key, run in self.candidates.items()}

    @property
    def method(self) -> str:
        """The algorithm with the settings that differ from their defaults; `chosen` where a search varies one."""
        varied = self.search.values if self.search else {}
        words = {key.removeprefix(OPTION): "chosen" for key in varied if key.startswith(OPTION)}
        return self.algorithm.labelled(words)

    @property
    def methods(self) -> list[str]:
        """The names of the algorithm and of the add-on, if there is one."""
        return [plugin.name for plugin in (self.algorithm, self.addon) if plugin]

    @property
    def trainings(self) -> list[Training]:
        """The settings of each training behind this run: one, or those of all candidates of a search."""
        return [run.training for run in self.candidates.values()] or [self.training]

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """All fields by dotted path: `training.batch_size`, `partition.limit.train`, ..."""
        return flat(self.spec)

    @functools.cached_property
    def id(self) -> str:
        """The name of the run's folder, from its identity."""
        return self._named({**self._but_for_the_seed, "seed": self.seed})

    @functools.cached_property
    def condition(self) -> str:
        """The id that this run shares with all runs that differ from it in the seed, and in the fold, only."""
        whole = self.partition.without_fold().identity(self.data.id)
        return self._named({**self._but_for_the_seed, "partition": whole})

    def _named(self, parts: dict[str, Any]) -> str:
        return "-".join([self.algorithm.name, self.bn, *(["search"] if self.search else []), digest.of(parts)])

    @functools.cached_property
    def _but_for_the_seed(self) -> dict[str, Any]:
        parts: dict[str, Any] = {
            "data": self.data.id,
            "partition": self.partition_id,
            "model": self.model.identity(),
            "transforms": [t.identity() for t in self.transforms],
            "algorithm": self.algorithm.identity(),
            "bn": self.bn,
            "addon": self.addon and self.addon.identity(),
            "training": self.training.identity(),
        }
        if self.data.task != CLASSIFICATION:
            parts["task"] = self.data.task.identity()
        if self.norms != BATCH:
            parts["norms"] = list(self.norms)
        # A key of null would change the ids of all runs without a search.
        if self.search:
            parts["search"] = self.search.model_dump(mode="json")
        return parts

    @functools.cached_property
    def partition_id(self) -> str:
        """The id of the partition of this dataset: the name of its file."""
        return self.partition.identity(self.data.id)

    @property
    def tested(self) -> tuple[str, ...]:
        """The sites that are predicted: without the external ones if each client trains alone."""
        return self.algorithm.collaboration.tested(self.partition.internal, self.partition.external)

    @property
    def plugins(self) -> list[Plugin]:
        """All plug-ins that shape the trained network: a metric too, if rounds are selected by it."""
        plugins = [self.model, self.algorithm, *self.transforms]
        if self.data.task != CLASSIFICATION:
            plugins.append(self.data.task)
        if self.addon:
            plugins.append(self.addon)
        if self.training.criterion:
            plugins.append(registry.build("metric", self.training.criterion))
        return plugins


def flat(spec: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return all values of the specification of a run by their dotted paths, as in `Run.settings`."""
    values: dict[str, Any] = {}
    for key, value in spec.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return values
