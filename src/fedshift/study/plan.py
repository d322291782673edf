"""The expansion of a study into runs, predictions and other jobs, and the look-up of studies by name.

Imports no torch: Snakemake imports this module while it builds the graph of jobs.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..algorithms import Algorithm, Training
from ..core import digest, registry
from ..core.errors import UserError, did_you_mean, require_none
from ..core.registry import Plugin, validated
from ..data.partition import Partition
from ..datasets import Dataset, Scale
from ..inferences import Inference
from ..io.paths import STUDIES
from ..io.shipped import SHIPPED
from ..transforms import Transform
from .declaration import Grid, Study, merge, read
from .published import table_path
from .run import Data, Run, Search, options, trainings, varied

OF_TWO_CLASSES = ("calibration", "roc")
"""Figures that the page of a study with two classes always has, after the figures that the study names."""
MOST = 20_000
"""The most runs that a study may have."""
VALIDATION = "-validation"
"""Suffix of the id of a prediction job that also predicts validation images, from which `conformal` calibrates
prediction sets for more than two classes or for masks."""


class Plan:
    """A study at a scale (mini or paper), expanded into runs, predictions and data, each by its id.

    Attributes
    ----------
    settings : settings of the command line that replace settings of the study's file, such as `training.lr=0.01`
    data : the datasets with their preparation
    runs : the runs whose predictions are scored: trainings, or choices among several trainings where a study searches
    candidates : the trainings among which searches choose
    inferences : the inferences (ways to predict a site)
    sweeps : the ids of the inferences that each prediction job makes, by the id of the job
    prediction_jobs : the id of the prediction job of each run, by the run's id
    oracles : the id of the prediction job by which a search with the rule `oracle` judges a candidate, by its id
    published : the files of published tables with which the study is compared
    """

    def __init__(self, name: str, path: Path, scale: Scale, study: Study, settings: Sequence[str] = ()) -> None:
        self.name = name
        self.path = path
        self.scale = scale
        self.study = study
        self.settings = tuple(settings)
        self.data: dict[str, Data] = {}
        self.runs: dict[str, Run] = {}
        self.candidates: dict[str, Run] = {}
        self.oracles: dict[str, str] = {}
        self.inferences: dict[str, Inference] = {}
        self.sweeps: dict[str, tuple[str, ...]] = {}
        self._asked: dict[str, dict[str, Inference]] = {}
        # Counted before they are made: ten lists of ten values would fill the memory.
        if sum(_number(study, grid) for grid in study.runs) > MOST:
            raise UserError(f"{path}.runs", f"are more than {MOST} runs", "divide them into several studies")
        # Faults of all grids are reported at once. Two grids may have the same fault.
        faults = [fault for n, grid in enumerate(study.runs) for fault in self._take_up(grid, f"{path}.runs.{n}")]
        require_none({str(fault): fault for fault in faults}.values())
        self.prediction_jobs = {run: self._job(list(members)) for run, members in self._asked.items()}
        self._require_one_set_of_folds()
        tables = study.published.tables if study.published else ()
        self.published = [table_path(table, path.parent) for table in tables]

    def _take_up(self, grid: Grid, where: str) -> list[UserError]:
        """Add the runs, data and prediction jobs of one entry of the study's `runs`, whose key is `where`.

        Returns the errors of its algorithms and add-ons. Raises UserError for any other error.
        """
        study = self.study
        data = self._data(grid, where)
        settings = _settings(study, grid)
        variants = trainings(settings, f"{where}.training")
        values = varied(settings)
        declared: list[Partition] = [
            validated(Partition, merge(p.model_dump(), grid.partition), f"{where}.partition") for p in study.partition
        ]
        partitions = [partition for declaration in declared for partition in declaration.each()]
        for client, partition in itertools.product(variants[0].epochs_at, partitions):
            partition.require_client(client, f"{self.path}.training.epochs_at")
        for training in variants:
            _require_validation(training, partitions, f"{self.path}.training")
        asked = list(itertools.chain(*(grid.inferences or study.inferences)))
        for inference, partition in itertools.product(asked, partitions):
            partition.require_client(inference.client, f"{where}.inferences")
        for inference, (algorithms, bn) in itertools.product(asked, _pairs(grid)):
            _require_network(inference, algorithms[0], bn, grid.norms or study.norms, f"{where}.inferences")
        members = {inference_id(inference): inference for inference in asked}
        self.inferences |= members
        for partition, (algorithms, bn), addon, seed in itertools.product(
            partitions, _pairs(grid), grid.addon, grid.seeds or study.seeds
        ):
            both = values | options([algorithm.canonical() for algorithm in algorithms])
            search = Search(rule=study.search, values=both) if both else None
            # The canonical algorithm: FedBN is FedAvg with local BN, so that both are one run with one id.
            run = Run(
                data=data,
                partition=partition,
                model=(grid.model or study.model).located(self.path.parent),
                transforms=tuple(t for t in _transforms(study, grid) if t.when != "prepare"),
                algorithm=algorithms[0].canonical(),
                bn=bn,
                addon=addon,
                training=variants[0],
                seed=seed,
                search=search,
                norms=grid.norms or study.norms,
            )
            self.runs[run.id] = run
            # Several grids may ask for one run, each with inferences of its own.
            self._asked.setdefault(run.id, {}).update(members)
            if search:
                require_choice(run, f"{where}.training")
                self.candidates |= run.candidates
                if search.rule == "oracle":
                    self.oracles |= dict.fromkeys(run.candidates, self._job(list(members)[:1]))
        classes = len(data.dataset.classes)
        return [fault for training in variants for fault in _faults(grid, training, classes, where)]

    def _require_one_set_of_folds(self) -> None:
        """Raise UserError if a study with cross-validation folds has several datasets or partitions.

        Numbers of a study with folds are means over the folds of one partition.
        """
        whole = {(run.data.source, run.partition.without_fold()) for run in self.runs.values()}
        if len(whole) > 1 and any(partition.split.folds for _, partition in whole):
            problem = "has folds, and the study has other data or partitions beside these"
            raise UserError(f"{self.path}.partition", problem, "divide it into several studies, or leave out folds")

    def _data(self, grid: Grid, where: str) -> Data:
        """Add the dataset of an entry of `runs` with its transforms of the step `prepare`, and return the Data.

        Raises UserError if dataset, task, control and transforms do not fit together.
        """
        study = self.study
        dataset = study.dataset
        if grid.dataset:
            dataset = registry.build("dataset", merge(dataset.spec(), grid.dataset), f"{where}.dataset")
        dataset = dataset.located(self.path.parent)
        if study.task.has_masks and not dataset.has_masks:
            problem = f"{study.task.name} needs masks, and {dataset.name} has none"
            raise UserError(f"{self.path}.task", problem, "choose a dataset with masks, or leave task out")
        if dataset.has_masks and not study.task.has_masks:
            problem = f"{dataset.name} has masks, and {study.task.name} needs a class of each image"
            raise UserError(f"{self.path}.task", problem, "say task: segmentation, or leave out masks")
        if study.control and not _has_images(dataset):
            problem = f"the samples of {dataset.name} are vectors, and a control sees colour and texture of images"
            raise UserError(f"{self.path}.control", problem, "leave it out")
        self._require_task(grid, where)
        prepare = tuple(t for t in _transforms(study, grid) if t.when == "prepare")
        synthetic = self.scale == "mini" and dataset.has_miniature
        data = Data(dataset=dataset, synthetic=synthetic, prepare=prepare, task=study.task)
        self.data[data.id] = data
        return data

    def _require_task(self, grid: Grid, where: str) -> None:
        """Raise UserError for a plug-in of an entry of `runs` that does not support the task of the study."""
        study = self.study
        plugins: list[Plugin] = [grid.model or study.model, *itertools.chain(*grid.algorithm)]
        plugins += [addon for addon in grid.addon if addon]
        plugins += itertools.chain(*(grid.inferences or study.inferences))
        for plugin in plugins:
            plugin.require_task(study.task.name, f"{where}.{plugin.kind}")
        metrics = {"headline": [study.headline], "metrics": study.metrics}
        for key, names in {**metrics, "figures": study.figures}.items():
            for name in names:
                plugin_class = registry.get("metric" if key in metrics else "figure", name)
                plugin_class.require_task(study.task.name, f"{self.path}.{key}")
        for transform in _transforms(study, grid):
            if study.task.has_masks and not transform.mask:
                problem = f"{transform.name} may move pixels in a way that a mask cannot follow"
                raise UserError(f"{self.path}.transforms", problem, "leave it out, or resize images when they are read")

    def _job(self, inferences: Sequence[str]) -> str:
        """Add a prediction job for the inferences with the given ids, and return the job's id, which names its file."""
        number = len(inferences)
        name = inferences[0] if number == 1 else f"{number}-inferences-{digest.of(sorted(inferences), 8)}"
        # Files of studies without prediction sets hold test images alone.
        if self.study.conformal and not self.study.two_classes:
            name += VALIDATION
        self.sweeps[name] = tuple(inferences)
        return name

    @property
    def trainings(self) -> dict[str, Run]:
        """Every training by its id: the runs without a search, and the candidates of the searches."""
        return {key: run for key, run in self.runs.items() if not run.search} | self.candidates

    @property
    def searches(self) -> dict[str, Run]:
        """The runs with a search, each of which is chosen among several trainings, by id."""
        return {key: run for key, run in self.runs.items() if run.search}

    @property
    def predicted(self) -> list[tuple[str, str]]:
        """The pair (run id, prediction job id) of every prediction, including those by which an oracle chooses."""
        return list(dict.fromkeys([*self.prediction_jobs.items(), *self.oracles.items()]))

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of all runs, each once, in the order of the runs."""
        return list(dict.fromkeys(run.partition for run in self.runs.values()))

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the page's figures: the study's own, followed for two classes by OF_TWO_CLASSES.

        Empty if the study names no figure.
        """
        named = self.study.figures
        return tuple(dict.fromkeys([*named, *OF_TWO_CLASSES])) if named and self.study.two_classes else named

    @property
    def controls(self) -> dict[str, Run]:
        """The first run on each partition with a control (a linear classifier without a network), by partition id."""
        runs: dict[str, Run] = {}
        for run in self.runs.values():
            if self.study.control is not False and _has_images(run.data.dataset):
                runs.setdefault(run.partition_id, run)
        return runs

    @property
    def measures_divergence(self) -> bool:
        """True if the study has the figure `divergence`, for which distances between sites' features are measured."""
        return "divergence" in self.study.figures

    def predictions(self, run: str) -> tuple[str, ...]:
        """Return the ids of the inferences by which a run, given by its id, is predicted."""
        return self.sweeps[self.prediction_jobs[run]]

    def require_files(self) -> None:
        """Raise UserErrors for tables, model weights and published tables that the study names but do not exist."""
        files = [("dataset", file) for data in self.data.values() for file in data.dataset.inputs()]
        files += {("model", file): None for run in self.runs.values() for file in run.model.inputs()}
        files += [("published.tables", file) for file in self.published]
        require_none(
            UserError(f"{self.path}.{key}", f"no such file: {file}", _from_here(file, self.path.parent))
            for key, file in files
            if not _exists(file)
        )

    @property
    def scaled(self) -> bool:
        """True if the study differs between scales. With a user's own data it is the same at every scale."""
        return self.study.dataset.has_miniature or any(self.study.scales.values())

    @property
    def label(self) -> str:
        """The study's name for messages: `study demo at scale mini`, or without a scale if all scales are the same."""
        return f"study {self.name} at scale {self.scale}" if self.scaled else f"study {self.name}"

    @functools.cached_property
    def view(self) -> str:
        """A digest of all of the study's keys. Its tables and page are written again when the digest changes."""
        declared = self.study.model_dump(mode="json")
        # A key of null would change the digests of all studies without prediction sets.
        if self.study.conformal is None:
            del declared["conformal"]
        return digest.of(declared)


def _pairs(grid: Grid) -> Iterator[tuple[tuple[Algorithm, ...], str]]:
    """Yield a pair (algorithms, BN policy) for each algorithm and BN policy of an entry of `runs`.

    `algorithms` has one member or, if settings list values, one for each combination, among which a search chooses.
    """
    for algorithms in grid.algorithm:
        for bn in grid.bn or algorithms[0].policies[:1]:
            yield algorithms, bn


def _has_images(dataset: Dataset) -> bool:
    """Return True if the samples of a dataset are images, False if they are vectors."""
    return dataset.shape is None or len(dataset.shape) == 3


def _number(study: Study, grid: Grid) -> int:
    """Return the number of trainings that an entry of `runs` expands into."""
    partitions = sum(len(partition.each()) for partition in study.partition)
    tried = math.prod(map(len, varied(_settings(study, grid)).values()))
    methods = sum(len(algorithms) for algorithms, _ in _pairs(grid))
    return tried * partitions * methods * len(grid.addon) * len(grid.seeds or study.seeds)


def _faults(grid: Grid, training: Training, classes: int, where: str) -> Iterator[UserError]:
    """Yield an error for each algorithm or add-on of an entry of `runs` that refuses the training or the BN policy.

    `classes` is the number of classes, which class weights must match, and `where` the key of the entry.
    """
    checks = [
        functools.partial(algorithm.require, training, bn)
        for algorithms, bn in _pairs(grid)
        for algorithm in algorithms
    ]
    checks += [functools.partial(addon.require, training) for addon in grid.addon if addon]
    checks += [functools.partial(training.require_classes, classes)]
    for check in checks:
        try:
            check()
        except UserError as e:
            yield UserError(f"{where}.{e.where}", e.what, e.remedy)


def _require_network(inference: Inference, algorithm: Algorithm, bn: str, norms: Sequence[str], where: str) -> None:
    """Raise UserError, with the key `where`, if an inference is impossible with the networks that an algorithm trains.

    It may need one network or a global one, or running statistics that the BN policy and `norms` do not give.
    """
    several = {"internal": inference.network == "own", "external": not inference.client}.get(algorithm.blended, False)
    if several and (inference.asks or inference.needs_one_network):
        problem = f"{inference.name} works on one network, and with {algorithm.name} several predict a site together"
        raise UserError(where, problem, "give this algorithm its own inferences")
    if inference.network == "global" and not algorithm.collaboration.has_global_model:
        problem = f"is global, but with {algorithm.name} {algorithm.collaboration.apart}"
        raise UserError(f"{where}.network", problem, "leave it out, or give this algorithm its own inferences")
    inference.require_policy(bn, norms, where)


def _transforms(study: Study, grid: Grid) -> tuple[Transform, ...]:
    """Return the transforms of an entry of `runs`: its own, or else the study's."""
    return study.transforms if grid.transforms is None else grid.transforms


def _settings(study: Study, grid: Grid) -> dict[str, Any]:
    """Return the training settings of an entry of `runs`: the study's, replaced by its own.

    The default of `select_by`, the metric that selects a round, is the study's headline metric.
    """
    settings = {**study.training, **grid.training}
    return settings | {"select_by": settings.get("select_by") or study.headline}


def require_choice(run: Run, where: str) -> None:
    """Raise UserError, with the key `where`, if the values by which a search would choose do not exist.

    The rule `oracle` needs external sites, and the rule `validation` needs validation samples.
    """
    if run.search and run.search.rule == "oracle":
        if not run.partition.external or not run.algorithm.collaboration.has_global_model:
            problem = "an oracle chooses by results at external sites, and this run has none"
            raise UserError(where, problem, "set search: validation, or give this algorithm one value")
    elif run.training.select == "last" or (run.partition.split.val == 0 and not run.training.select_at):
        problem = "a list of values is a search, which chooses by the validation value of the round that was kept"
        raise UserError(where, problem, "set select: best_validation and give val a share, or give one value")


def _require_validation(training: Training, partitions: Sequence[Partition], where: str) -> None:
    """Raise UserError if a round is selected by validation, but a partition has no validation samples for it.

    Also raise it if a site of `select_at`, which only selects the round, trains or is tested in a partition.
    """
    for partition in partitions:
        taken = [site for site in training.select_at if site in (*partition.sources, *partition.external)]
        if taken:
            problem = f"{taken[0]!r} trains or tests in the partition, and a site that chooses rounds can do neither"
            raise UserError(f"{where}.select_at", problem, "leave it out of the partition, or out of select_at")
    if training.select == "best_validation" and not training.select_at and any(p.split.val == 0 for p in partitions):
        problem = "is best_validation, but partition.split leaves nothing to validate on"
        raise UserError(f"{where}.select", problem, "set select: last, or give val a share")


def _exists(file: Path) -> bool:
    """Return True if a path is an existing file; False also if its name is too long or its folder not readable."""
    try:
        return file.is_file()
    except OSError:
        return False


def _from_here(file: Path, folder: Path) -> str:
    """Return a remedy for a missing file whose path counts from the working folder instead of the study's `folder`.

    Return "" if the file does not exist from the working folder either.
    """
    written = os.path.relpath(file, folder)
    if file.is_absolute() != folder.is_absolute() or not _exists(Path(written)):
        return ""
    return f"paths count from the folder of the study: write {os.path.relpath(written, folder)}"


def inference_id(inference: Inference) -> str:
    """Return the id of an inference: its name and, if settings differ from their defaults, a digest of these."""
    changed = inference.model_dump(mode="json", exclude_defaults=True)
    return f"{inference.name}-{digest.of(changed, 8)}" if changed else inference.name


def find(name: str, folder: Path) -> Path:
    """Return the YAML file of a study, given its path, or its name in `folder` or among fedshift's own studies.

    Raises UserError, which suggests the closest name, for an unknown name. A path is returned unchecked.
    """
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    path = named(name, folder)
    if path is None:
        raise UserError("study", f"unknown study {name!r}", did_you_mean(name, known(folder)))
    return path


def named(name: str, folder: Path) -> Path | None:
    """Return the YAML file of the study with a name in `folder` or else among fedshift's own; None if there is none."""
    files = (place / f"{name}.yaml" for place in (folder, SHIPPED / STUDIES))
    return next((file for file in files if file.exists()), None)


def names(folder: Path) -> list[str]:
    """Return the sorted names of all studies (YAML files) in a folder."""
    return sorted(p.stem for p in Path(folder).glob("*.yaml"))


def known(folder: Path) -> list[str]:
    """Return the sorted names of all studies in a folder and of all studies that come with fedshift."""
    return sorted({*names(folder), *names(SHIPPED / STUDIES)})


def load(path: Path, scale: Scale, settings: Sequence[str] = ()) -> Plan:
    """Read a study's YAML file at a scale, check it and expand it into a Plan.

    `settings` replace settings of the file, such as `training.lr=0.01`. Raises UserErrors that name the file and every
    wrong key.
    """
    declared = read(path, scale, settings)
    if path.stem == "index":
        raise UserError(path, "reports/index.html is the index of all studies", "rename the file")
    if not re.fullmatch(r"\w[\w.+ -]{0,99}", path.stem):
        allowed = "use up to 100 letters, digits, spaces and .+-_, and begin with a letter or digit"
        raise UserError(path, f"cannot name a study: {allowed}", "rename the file")
    return Plan(path.stem, path, scale, declared, settings)


def select(names_: str, scale: Scale, folder: Path, settings: Sequence[str] = ()) -> dict[str, Plan]:
    """Return the plans of several studies by name. `names_` is a list of names separated by commas, or `all`.

    `all` means the studies in `folder` or, if it has none, the studies that come with fedshift. `settings` replace
    settings of each file. Raises UserError for an unknown name, for two studies of one name and for wrong keys.
    """
    wanted = names(folder) or known(folder) if names_ == "all" else [name.strip() for name in names_.split(",")]
    plans: dict[str, Plan] = {}
    for path in (find(n, folder) for n in wanted):
        if path.stem in plans:
            remedy = "they would share one page: rename one of the files"
            raise UserError(path, f"a second study named {path.stem!r}", remedy)
        plans[path.stem] = load(path, scale, settings)
    return plans
