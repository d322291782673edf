"""A study: one YAML, turned into runs. Imports no torch: Snakemake imports this while it builds the DAG."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, Field

from . import digest, registry
from .dataset import Scale
from .errors import UserError, UserErrors, did_you_mean
from .fields import (
    MANY,
    AddonField,
    AlgorithmField,
    BNName,
    DatasetField,
    FigureName,
    InferenceField,
    MetricName,
    ModelField,
    TransformField,
)
from .files import read_yaml
from .inference import Inference
from .papers import Published, Trend, file
from .partition import Partition
from .registry import Plugin, validated
from .run import Data, Frozen, Run
from .training import Training

MOST = 20_000
"""Runs of a study."""


class _Settings(Training):
    """Training without the rules by which settings go together: they are held against the whole."""

    def _together(self) -> Training:  # type: ignore[override]
        return self


def _setting(values: dict[str, Any]) -> dict[str, Any]:
    """Some settings of the training, each checked by itself."""
    validated(_Settings, values, registry.HERE)
    return values


class Grid(Frozen):
    """Some runs of a study: each key one value, or a list of values, of which every combination is run."""

    algorithm: Annotated[tuple[AlgorithmField, ...], Field(min_length=1), *MANY]
    bn: Annotated[tuple[BNName, ...], Field(min_length=1), *MANY] | None = Field(
        None, description="default: what each algorithm asks for"
    )
    addon: Annotated[tuple[AddonField | None, ...], Field(min_length=1), *MANY] = (None,)
    model: ModelField | None = Field(None, description="default: the study's model")
    dataset: dict[str, Any] = Field({}, description="settings that differ from the study's dataset")
    partition: dict[str, Any] = Field({}, description="settings that differ from the study's partitions")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, min_length=1, description="default: the study's"
    )
    training: Annotated[dict[str, Any], AfterValidator(_setting)] = Field(
        {}, description="settings that differ from the study's training"
    )
    inferences: tuple[InferenceField, ...] | None = Field(
        None, min_length=1, description="default: the study's inferences"
    )


class Study(Frozen):
    """What is asked, of which data, by which runs, and how it is shown."""

    title: str = Field(description="one line")
    question: str = Field("", description="what the reader wants to know")
    notes: tuple[str, ...] = Field((), description="caveats and decisions shown on the page")
    dataset: DatasetField
    partition: Annotated[tuple[Partition, ...], *MANY] = Field(
        min_length=1, description="one, or several, each trained on"
    )
    model: ModelField
    transforms: tuple[TransformField, ...] = ()
    training: Training = Training()
    runs: tuple[Grid, ...] = Field(min_length=1)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), min_length=1)
    inferences: tuple[InferenceField, ...] = Field(
        min_length=1, description="a setting that is a list stands for an inference each, predicted in one job"
    )
    metrics: tuple[MetricName, ...] = (
        "accuracy",
        "balanced_accuracy",
        "auc",
        "sensitivity",
        "specificity",
        "brier",
        "ece",
    )
    headline: MetricName = Field("accuracy", description="the metric that the page leads with")
    figures: tuple[FigureName, ...] = ("convergence", "patches", "sites")
    reproduces: tuple[str, ...] = Field((), description="tables and figures of papers: ids of config/papers.csv")
    published: Published | None = Field(None, description="printed tables, and what their words stand for")
    trends: tuple[Trend, ...] = Field((), description="what the papers claim, and is held against our numbers")
    scales: dict[Scale, dict[str, Any]] = Field(
        {}, description="what differs at a scale; merged into the study, key by key"
    )


class Plan:
    """A study at a scale: its runs and the files they need, by id."""

    def __init__(self, name: str, path: Path, scale: Scale, study: Study) -> None:
        self.name, self.path, self.scale, self.study = name, path, scale, study
        prepare = tuple(t for t in study.transforms if t.when == "prepare")
        later = tuple(t for t in study.transforms if t.when != "prepare")
        self.data: dict[str, Data] = {}
        self.runs: dict[str, Run] = {}
        self.inferences: dict[str, Inference] = {}
        self.sweeps: dict[str, tuple[str, ...]] = {}
        self.asked: dict[str, list[str]] = {}
        faults: list[UserError] = []
        number = 0
        for n, grid in enumerate(study.runs):
            settings = {**study.training.model_dump(), **grid.training}
            training: Training = validated(Training, settings, f"{path}.runs.{n}.training")
            dataset = study.dataset
            if grid.dataset:
                changed = merge(dataset.spec(), grid.dataset)
                dataset = registry.build("dataset", changed, f"{path}.runs.{n}.dataset")
            data = Data(dataset=dataset, synthetic=scale == "mini" and dataset.has_miniature, prepare=prepare)
            self.data[data.id] = data
            partitions: list[Partition] = [
                validated(Partition, merge(p.model_dump(), grid.partition), f"{path}.runs.{n}.partition")
                for p in study.partition
            ]
            _validates(training, partitions, f"{path}.training")
            sweeps = [self._sweep(sweep) for sweep in grid.inferences or study.inferences]
            for name in {i for sweep in sweeps for i in self.sweeps[sweep]}:
                for partition in partitions:
                    partition.require_client(self.inferences[name].client, f"{path}.runs.{n}.inferences")
            pairs = [(a, bn) for a in grid.algorithm for bn in grid.bn or a.policies[:1]]
            number += len(partitions) * len(pairs) * len(grid.addon) * len(grid.seeds or study.seeds)
            if number > MOST:
                raise UserError(f"{path}.runs", f"stand for more than {MOST} runs", "make several studies of them")
            for algorithm, bn in pairs:
                try:
                    algorithm.require(training, bn)
                except UserError as e:
                    faults.append(UserError(f"{path}.runs.{n}.{e.where}", e.what, e.remedy))
            for partition, (algorithm, bn), addon, seed in itertools.product(
                partitions, pairs, grid.addon, grid.seeds or study.seeds
            ):
                run = Run(
                    data=data,
                    partition=partition,
                    model=grid.model or study.model,
                    transforms=later,
                    algorithm=algorithm.canonical(),
                    bn=bn,
                    addon=addon,
                    training=training,
                    seed=seed,
                )
                self.runs[run.id] = run
                asked = self.asked.setdefault(run.id, [])
                asked += [sweep for sweep in sweeps if sweep not in asked]
        if faults:
            raise UserErrors({str(fault): fault for fault in faults}.values())
        self.published = [file(name, path.parent) for name in study.published.tables] if study.published else []

    def _sweep(self, sweep: tuple[Inference, ...]) -> str:
        """Take up the inferences of one prediction job. Returns its id, which names its file."""
        members = {inference_id(i): i for i in sweep}
        self.inferences |= members
        name = f"{sweep[0].name}-sweep-{digest.of(sorted(members), 8)}" if len(members) > 1 else next(iter(members))
        self.sweeps[name] = tuple(members)
        return name

    @property
    def partitions(self) -> list[Partition]:
        """Those of all runs, each once, in their order."""
        return list(dict.fromkeys(run.partition for run in self.runs.values()))

    def predictions(self, run: str) -> dict[str, str]:
        """The inferences asked of a run, and the id of the job that makes each."""
        found: dict[str, str] = {}
        for sweep in self.asked[run]:
            for inference in self.sweeps[sweep]:
                found.setdefault(inference, sweep)
        return found

    def require_files(self) -> None:
        """Raise UserErrors for files that the study names and that are not there."""
        given = [("dataset", file) for data in self.data.values() for file in data.dataset.inputs()]
        given += [("published.tables", file) for file in self.published]
        lost = [(key, file) for key, file in given if not _there(file)]
        if lost:
            raise UserErrors(UserError(f"{self.path}.{key}", f"no such file: {file}") for key, file in lost)

    @functools.cached_property
    def view(self) -> str:
        """A digest of all that the study says, comments apart: its tables and page are made anew when it changes."""
        return digest.of(self.study.model_dump(mode="json"))


def _there(file: Path) -> bool:
    """Whether it is a file that can be reached: a name may be too long, or a folder closed."""
    try:
        return file.is_file()
    except OSError:
        return False


def _validates(training: Training, partitions: Sequence[Partition], where: str) -> None:
    if training.select == "best_validation" and any(p.split.val == 0 for p in partitions):
        raise UserError(
            f"{where}.select",
            "is best_validation, but partition.split leaves nothing to validate on",
            "say select: last, or give val a share",
        )


def code(stage: str, *plugins: Plugin | type[Plugin]) -> str:
    """A digest of the code behind a job: the module of its stage, its plug-ins, and all they import."""
    return digest.of_code([f"{__package__}.{stage}", *(p.__module__ for p in plugins)])


def inference_id(inference: Inference) -> str:
    """The name, with a digest of the settings where they differ from the defaults: part of a file's name."""
    changed = inference.model_dump(mode="json", exclude_defaults=True)
    return f"{inference.name}-{digest.of(changed, 8)}" if changed else inference.name


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, mappings key by key, all else replaced."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        deep = (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and value.get("name", old.get("name")) == old.get("name")
        )
        out[key] = merge(old, value) if deep else value  # type: ignore[arg-type]
    return out


def find(name: str, folder: Path) -> Path:
    """The file of a study: a path, or a name in the folder of studies."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    path = folder / f"{name}.yaml"
    if not path.exists():
        raise UserError("study", f"unknown study {name!r}", did_you_mean(name, names(folder)))
    return path


def names(folder: Path) -> list[str]:
    """All studies in a folder."""
    return sorted(p.stem for p in Path(folder).glob("*.yaml"))


def load(path: Path, scale: Scale) -> Plan:
    """Read, check and expand a study. Raises UserErrors that name the file and every wrong key."""
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise UserError(path, "is not a mapping of keys", "see docs/add-a-study.md")
    if path.stem == "index":
        raise UserError(path, "reports/index.html is the index of all studies", "rename the file")
    if not re.fullmatch(r"\w[\w.+ -]{0,99}", path.stem):
        what = "names files and rules: up to 100 letters, digits, spaces and .+-_, of which the first is no mark"
        raise UserError(path, what, "rename the file")
    if scale not in get_args(Scale):
        raise UserError("scale", f"unknown scale {scale!r}", did_you_mean(str(scale), get_args(Scale)))
    scales = raw.get("scales") or {}
    if not isinstance(scales, dict) or not all(isinstance(v, dict) for v in scales.values()):
        raise UserError(f"{path}.scales", "is not a mapping of scale to keys")
    over = scales.get(scale, {})
    study: Study = validated(Study, _scaled(merge(raw, over), over), str(path))
    return Plan(path.stem, path, scale, study)


def _scaled(study: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """What a scale says of training, dataset and partition holds for all runs, whatever they say themselves."""
    if "runs" in over or not isinstance(study.get("runs"), list):
        return study
    held = {key: over[key] for key in ("training", "dataset", "partition") if isinstance(over.get(key), Mapping)}

    def laid_on(grid: Any) -> Any:
        if not isinstance(grid, Mapping):
            return grid
        said = {key: grid[key] for key in held if isinstance(grid.get(key), Mapping)}
        return {**grid, **{key: merge(own, held[key]) for key, own in said.items()}}

    return study | {"runs": [laid_on(grid) for grid in study["runs"]]}


def select(names_: str, scale: Scale, folder: Path) -> dict[str, Plan]:
    """The plans of `all` studies, or of those named with commas between."""
    wanted = names(folder) if names_ == "all" else [n.strip() for n in names_.split(",")]
    plans: dict[str, Plan] = {}
    for path in (find(n, folder) for n in wanted):
        if path.stem in plans:
            raise UserError(
                path, f"a second study named {path.stem!r}", "they would share one page: rename one of the files"
            )
        plans[path.stem] = load(path, scale)
    return plans


def schema() -> dict[str, Any]:
    """The JSON schema of a study's YAML, plug-ins and all, for editors and for `config/study.schema.json`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Study.model_json_schema()}
