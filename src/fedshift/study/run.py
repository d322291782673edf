"""Runs (trainings) and their datasets, with the ids that name their folders, and searches over settings.

A list of values for a setting is a search: a network is trained with each combination, and a rule chooses one of them.
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
"""Rules by which a search chooses a training: the value on validation images of the internal sites, or (oracle) the
result on test images of the external sites."""
ALONE = frozenset(
    (
        *("train", "class_weights", "select", "select_by", "select_at", "epochs_at"),
        *("watch_every", "training_loss_every", "training_loss_images"),
        *("precision", "channels_last", "deterministic"),
    )
)
"""Settings of the training that a search cannot vary: a list is their one value (LISTS), they are no
hyper-parameters, such as the precision, or they would make the compared values different in kind."""
LISTS = frozenset({"train", "class_weights", "select_at"})
"""Settings of ALONE whose one value may itself be a list."""
MOST = 100
"""The most combinations that one search may try."""


OPTION = "algorithm."
"""Prefix that marks settings of the algorithm among the settings of a search; all others are of the training."""


class Search(Frozen):
    """A search: `values` maps each setting that varies to its values in order, and `rule` chooses among the trainings.

    Settings are of the training or, if their names begin with OPTION, of the algorithm.
    """

    rule: Rule
    values: dict[str, tuple[Any, ...]]

    def combinations(self) -> list[dict[str, Any]]:
        """Return every combination of the values, each as setting to value; the last setting varies fastest."""
        return [dict(zip(self.values, values, strict=True)) for values in itertools.product(*self.values.values())]


def options(algorithms: Sequence[Algorithm]) -> dict[str, tuple[Any, ...]]:
    """Return the settings in which instances of one algorithm differ, each with OPTION before its name and its values.

    The values are distinct and in the order of the algorithms.
    """
    specs = [algorithm.spec() for algorithm in algorithms]
    differ = [key for key in specs[0] if any(spec[key] != specs[0][key] for spec in specs)]
    return {OPTION + key: tuple(dict.fromkeys(spec[key] for spec in specs)) for key in differ}


class _Separate(Training):
    """Settings of a training, checked one by one. Rules between settings are checked later, on the merged settings."""

    def _together(self) -> Training:  # type: ignore[override]
        """Return the training unchanged, in place of the checks of Training that compare several settings."""
        return self


def varied(settings: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the settings of a training that a search varies, each with its values: lists of two or more values."""
    return {key: tuple(value) for key, value in settings.items() if _several(key, value) and len(value) > 1}


def trainings(settings: Mapping[str, Any], where: str) -> list[Training]:
    """Return a Training for each combination of the values that `settings` list.

    Raises UserErrors, with the key `where`, for wrong settings and for more than MOST combinations.
    """
    values = {key: tuple(value) for key, value in settings.items() if _several(key, value)}
    number = math.prod(map(len, values.values()))
    if number > MOST:
        raise UserError(where, f"its lists make {number} combinations, more than {MOST}", "shorten them")
    search = Search(rule="validation", values=values)
    return [validated(Training, {**settings, **chosen}, where) for chosen in search.combinations()]


def _several(key: str, value: Any) -> bool:
    """Return True if the value of a training setting is a list of values to search, not a list that is one value."""
    return isinstance(value, list | tuple) and key not in ALONE


def _each_alone(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a training unchanged, after checking each value and each member of a list by itself.

    Raises UserErrors for wrong values, for empty lists, and for lists of settings that cannot be searched.
    """
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
    """Return the JSON schema of the settings of a training, most of which may be lists of values."""
    properties = Training.model_json_schema()["properties"]
    properties |= {key: or_list(value) for key, value in properties.items() if key not in ALONE}
    return {"type": "object", "properties": properties, "additionalProperties": False}


TrainingField = Annotated[dict[str, Any], AfterValidator(_each_alone), LazySchema(_training_schema)]
"""Settings of a training. A list of values is a search: each combination of values is trained, and one is chosen."""


class Data(Frozen):
    """A dataset with the transforms `prepare`, which are applied to its images once, and the ids that name its folders.

    If `synthetic` is True, the images are the miniature's: random images drawn by fedshift, without scientific meaning.
    """

    dataset: DatasetField
    synthetic: bool
    prepare: tuple[TransformField, ...] = ()
    task: TaskField = CLASSIFICATION

    @property
    def card(self) -> Card:
        """The data card (title, source, licence, ...) of the miniature or of the real dataset."""
        return self.dataset.miniature_card() if self.synthetic else self.dataset.card()

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of images (channels, height, width) or vectors (features,), or None if the dataset states none."""
        side = getattr(self.dataset, "size", None)  # of datasets that bring their images to one size
        return self.dataset.shape or (side and (3, side, side))

    @functools.cached_property
    def raw(self) -> str:
        """The id of the raw files, which names their folder below `resources/`."""
        not_raw = {*self.dataset.reading_fields, "masks"}
        files = {k: v for k, v in self._source.items() if k not in not_raw}
        return f"{self.dataset.identity_name}-{digest.of(files)}"

    @functools.cached_property
    def id(self) -> str:
        """The id of the prepared images, which names their folder below `results/data/`."""
        return f"{self.dataset.identity_name}-{digest.of([self._source, [t.identity() for t in self.prepare]])}"

    @functools.cached_property
    def source(self) -> str:
        """The digest of the images before the transforms `prepare`: data with equal digests show the same patients."""
        return digest.of(self._source)

    @functools.cached_property
    def _source(self) -> dict[str, Any]:
        """The settings that determine the images before the transforms `prepare`, from which the ids are made."""
        # Settings of the miniature alone leave the ids of real data as they are.
        settings = self.dataset.identity()
        if not self.synthetic:
            settings = {key: value for key, value in settings.items() if key not in self.dataset.miniature_fields}
        # Masks are prepared beside images. A key that says classification would change the ids of all data.
        masks = {"masks": True} if self.task.has_masks else {}
        return {"synthetic": self.synthetic, **settings, **masks}


class Run(Frozen):
    """One training with its settings or, with a `search`, the one that a rule chooses among several trainings.

    Before the choice, `training` holds the first combination of the values that are searched. Runs with equal settings
    have the same id and are trained once, even if several studies need them. Titles and other texts for readers do not
    count.
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
        """The specification of the run: all fields, defaults included, as plain data for JSON.

        A setting that a search varies has a list of values. The task, norms and search are left out at their defaults.
        """
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
        """The trainings among which the search chooses, by id, in the order of its values; {} without a search."""
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
        """Return the values of the searched settings for each candidate training, by its id; {} without a search."""
        if not self.search:
            return {}
        paths = {name: name if name.startswith(OPTION) else f"training.{name}" for name in self.search.values}
        return {key: {name: run.settings[path] for name, path in paths.items()} for key, run in self.candidates.items()}

    @property
    def method(self) -> str:
        """The algorithm's name with settings that differ from their defaults: `fedprox(mu=0.1)`.

        A setting that a search varies has the value `chosen`.
        """
        varied = self.search.values if self.search else {}
        words = {key.removeprefix(OPTION): "chosen" for key in varied if key.startswith(OPTION)}
        return self.algorithm.labelled(words)

    @property
    def methods(self) -> list[str]:
        """The names of the algorithm and of the add-on, if there is one."""
        return [plugin.name for plugin in (self.algorithm, self.addon) if plugin]

    @property
    def trainings(self) -> list[Training]:
        """The training settings of this run: a list of one or, with a search, of one for each candidate."""
        return [run.training for run in self.candidates.values()] or [self.training]

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """All values of the run's specification by dotted path, such as `training.batch_size`."""
        return flat(self.spec)

    @functools.cached_property
    def id(self) -> str:
        """The id of the run, which names its folder: algorithm, BN policy and a digest of all settings."""
        return self._named({**self._but_for_the_seed, "seed": self.seed})

    @functools.cached_property
    def condition(self) -> str:
        """The id that is the same for all runs that differ in nothing but the seed and the cross-validation fold."""
        whole = self.partition.without_fold().identity(self.data.id)
        return self._named({**self._but_for_the_seed, "partition": whole})

    def _named(self, parts: dict[str, Any]) -> str:
        """Return an id made of the algorithm's name, the BN policy and a digest of `parts`."""
        return "-".join([self.algorithm.name, self.bn, *(["search"] if self.search else []), digest.of(parts)])

    @functools.cached_property
    def _but_for_the_seed(self) -> dict[str, Any]:
        """All settings that influence the trained network, except for the seed, as plain data for a digest."""
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
        """The id of the partition applied to this run's dataset, which names the partition's file."""
        return self.partition.identity(self.data.id)

    @property
    def tested(self) -> tuple[str, ...]:
        """The sites whose test images are predicted. External sites are left out if each client trains alone."""
        return self.algorithm.collaboration.tested(self.partition.internal, self.partition.external)

    @property
    def plugins(self) -> list[Plugin]:
        """All plug-ins that influence the trained network, including the metric by which a round is selected."""
        plugins = [self.model, self.algorithm, *self.transforms]
        if self.data.task != CLASSIFICATION:
            plugins.append(self.data.task)
        if self.addon:
            plugins.append(self.addon)
        if self.training.criterion:
            plugins.append(registry.build("metric", self.training.criterion))
        return plugins


def flat(spec: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return all values of nested mappings by dotted path, as in `Run.settings`; each path begins with `prefix`."""
    values: dict[str, Any] = {}
    for key, value in spec.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return values
