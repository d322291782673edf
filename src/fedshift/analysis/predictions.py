"""The predictions of a study's runs, and the clusters of dependent samples (patients) behind intervals."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..core.errors import UserError
from ..data.prepared import persons, read_partition, read_samples
from ..inferences import COUNT
from ..io import identity
from ..io.paths import Paths
from ..io.tables import read_table
from ..study.plan import Plan
from ..study.run import Run
from ..tasks.segmentation import PLACES, THRESHOLDS, Segmentation
from .estimates import Group

TYPES: dict[str, Any] = {"momentum": "Float64", "batch_size": "Int64", "order": "Int64"}
"""Pandas types of the columns that are neither text nor plain floats."""
SITE = ["site", "role"]
NAMED = ["sample", *SITE]
"""The columns that identify a sample and its place in the partition."""
Samples = Callable[[str], "pd.DataFrame"]
"""A function that returns the table of samples of prepared data by the data's id.

`sample` and `site` are text. It raises UserError if the table cannot be read.
"""
SPLITS = ("test", "val")
"""The splits whose predictions are stored."""


class Missing(UserError):  # noqa: N818 - a study may lack some
    """Error for predictions that are missing or incomplete, or are not valid. A study may go on without them."""


def inferences(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the columns of scores.csv that describe each inference, by its id: name, momentum, batch_size and order.

    Changed settings without a column are added to the name, so that no two inferences of a study agree in all columns.
    """
    columns: dict[str, dict[str, Any]] = {}
    for name, inference in plan.inferences.items():
        shown = inference.score_columns()
        others = {k: v for k, v in inference.changed().items() if k not in shown or shown[k] != v}
        inside = ", ".join(f"{k}={v}" for k, v in others.items())
        columns[name] = {"inference": f"{inference.name}({inside})" if inside else inference.name, **shown}
    said = [tuple(about.values()) for about in columns.values()]
    for (name, about), words in zip(columns.items(), said, strict=True):
        if said.count(words) > 1:  # columns that say the same of different settings
            about["inference"] = plan.inferences[name].label
    return columns


class Part(NamedTuple):
    """The predictions of a run at one site.

    Attributes
    ----------
    site, role : name of the site and its role in the partition
    samples : names of the samples (n,); the same object for all runs that predict these samples
    label : true classes of the samples (n,)
    probability : predicted probabilities (n, classes). For a task with masks: its numbers (n, columns) with a row for
        each patient, or histograms of each image (see `Predictions.histograms`)
    counted : what the inference counted at the site, by name, such as optimiser steps
    """

    site: str
    role: str
    samples: pd.Index
    label: np.ndarray
    probability: np.ndarray
    counted: Mapping[str, float]


class _Kept(NamedTuple):
    """The predictions of a run, as they are kept in memory.

    Attributes
    ----------
    table : sample, site, role and label, shared by all runs with the same samples
    sites : for each site, the positions of its rows in the table, and its predictions without probabilities
    probability : the run's own probabilities, or other numbers (n, columns)
    """

    table: pd.DataFrame
    sites: list[tuple[np.ndarray, Part]]
    probability: np.ndarray


class Predictions:
    """The predictions of a study's runs. Each file is read once, when it is first needed.

    The columns sample, site, role and label are kept once for all runs in which they are equal, so that a further run
    only adds the memory of its probabilities.
    """

    def __init__(self, plan: Plan, paths: Paths) -> None:
        self.plan = plan
        self.paths = paths
        self._partitions: dict[str, pd.DataFrame] = {}
        self._splits: dict[tuple[str, str, frozenset[str]], pd.DataFrame] = {}
        self._known: dict[tuple[str, str, str], _Kept | Missing] = {}
        self._shared: dict[tuple[str, str], list[_Kept]] = defaultdict(list)
        self._orders: dict[tuple[str, str, tuple[str, ...]], list[tuple[pd.DataFrame, np.ndarray, pd.DataFrame]]]
        self._orders = defaultdict(list)

    def read(self, run: Run, inference: str, split: str = "test") -> pd.DataFrame:
        """Return the predictions of a run: sample, site, role, label, p0, p1, ... of every test sample.

        Rows are sorted by site and sample. Numbers that the inference counted at a site are in columns `count_...`.
        Test samples whose labels the model was adapted to are left out. With `split` "val", return the validation
        samples of internal sites instead, without sites that were not predicted. Raises Missing if the file is missing
        or incomplete, or has no samples of the split, and UserError if it cannot be read.
        """
        kept = self._kept(run, inference, split)
        return kept.table.assign(**{f"p{k}": column for k, column in enumerate(kept.probability.T)})

    def parts(self, run: Run, inference: str, split: str = "test") -> list[Part]:
        """Return the predictions of a run by site, in the order of sites. Raises the same errors as `read`."""
        kept = self._kept(run, inference, split)
        return [part._replace(probability=kept.probability[rows]) for rows, part in kept.sites]

    def _kept(self, run: Run, inference: str, split: str) -> _Kept:
        """Return predictions from memory, and load them first if needed. Raises the same errors as `read`."""
        if (run.id, inference, split) not in self._known:
            self._load(run)
        kept = self._known[run.id, inference, split]
        if isinstance(kept, Missing):
            raise kept
        return kept

    def masks(self, run: Run, inference: str) -> pd.DataFrame:
        """Return the predicted masks of a run: sample, site, role, the task's numbers and `mask` of each test image.

        Rows are sorted by site and sample. A mask is the content of a PNG file. It is missing if it was not stored, and
        for all images in files of earlier versions. Raises the same errors as `read`.
        """
        self._kept(run, inference, "test")
        path = self._path(run)
        table = self._checked(_read(path), path, run, inference, "test")
        return table.reindex(columns=[*NAMED, *self.columns(run), "mask"])

    def histograms(self, run: Run, inference: str, split: str = "test") -> list[Part]:
        """Return the predictions of masks by site, with histograms of the probabilities of each image as numbers.

        Histograms are (n, structures, 2, thresholds), as `tasks.segmentation.histograms` returns them. Raises Missing
        also for a file without them, and otherwise the same errors as `read`.
        """
        self._kept(run, inference, split)
        path, task = self._path(run), self.plan.study.task
        assert isinstance(task, Segmentation)
        # Read again: the histograms of all runs may not fit into the memory.
        table = self._checked(_read(path), path, run, inference, split)
        columns = [f"{place}_{name}" for name in task.names(run.data.dataset.classes) for place in PLACES]
        try:
            stacked = np.array([[*table[column]] for column in columns], dtype=np.int64)
            counts = stacked.reshape(len(columns) // 2, len(PLACES), len(table), len(THRESHOLDS)).transpose(2, 0, 1, 3)
        except (KeyError, TypeError, ValueError):
            raise Missing(path, "holds no histograms of the probabilities of structures") from None
        return [part._replace(probability=counts[rows]) for rows, part in divided(table, [])]

    def columns(self, run: Run) -> list[str]:
        """Return the names of the columns of numbers that are stored for an image, such as p0, p1, ..."""
        return self.plan.study.task.columns(run.data.dataset.classes)

    def partition(self, id_: str) -> pd.DataFrame:
        """Return the table of a partition. Raises UserError where it cannot be read."""
        if id_ not in self._partitions:
            identity.require(self.paths.partition(id_), partition=id_)
            self._partitions[id_] = read_partition(self.paths.partition(id_))
        return self._partitions[id_]

    def _wanted(self, id_: str, split: str, sites: Collection[str]) -> pd.DataFrame:
        """Return sample, site and role of the samples in one split of a partition, at some sites, sorted.

        `id_` is the id of the partition.
        """
        key = id_, split, frozenset(sites)
        if key not in self._splits:
            table = self.partition(id_)
            rows = table[(table["split"] == split) & table["site"].astype(str).isin(sites)][NAMED]
            self._splits[key] = rows.astype(str).sort_values(["site", "sample"], ignore_index=True)
        return self._splits[key]

    def readable(self, runs: Iterable[Run], inference: str) -> Iterator[tuple[Run, pd.DataFrame]]:
        """Yield each run that has all test predictions, with its predictions as a table.

        Raises UserError for a file that cannot be read.
        """
        yield from ((run, self.read(run, inference)) for run in runs if self._has(run, inference))

    def by_site(self, runs: Iterable[Run], inference: str) -> Iterator[tuple[Run, list[Part]]]:
        """Yield each run that has all test predictions, with its predictions by site.

        Raises UserError for a file that cannot be read.
        """
        yield from ((run, self.parts(run, inference)) for run in runs if self._has(run, inference))

    def _has(self, run: Run, inference: str) -> bool:
        """Return whether a run has all test predictions. Raises UserError for a file that cannot be read."""
        try:
            self._kept(run, inference, "test")
        except Missing:
            return False  # score() lists it in missing.json
        return True

    def every(self, runs: Iterable[Run]) -> Iterator[tuple[Run, str]]:
        """Yield each run with each id of an inference for which it has all test predictions."""
        for run in runs:
            yield from ((run, inference) for inference in self.plan.predictions(run.id) if self._has(run, inference))

    def _path(self, run: Run) -> Path:
        """Return the path of the file with the predictions of a run."""
        return self.paths.predictions(run.id, self.plan.prediction_jobs[run.id])

    def _load(self, run: Run) -> None:
        """Read all predictions of a run into memory, or keep the error that says why they cannot be used."""
        path = self._path(run)
        # A file is read once for all its inferences and splits: reading it again costs more than keeping its parts.
        members = self.plan.predictions(run.id)
        table = None
        if path.exists():
            identity.require(path, **identity.of_predictions(self.paths.run_files(run.id), members))
            table = _read(path)
        for key, split in itertools.product(members, SPLITS):
            try:
                if table is None:
                    raise Missing(path, why_absent(self.paths, run.id))
                rows = self._checked(table, path, run, key, split)
            except Missing as error:
                self._known[run.id, key, split] = error
            else:
                self._known[run.id, key, split] = self._keep(run, split, rows)

    def _checked(self, table: pd.DataFrame, path: Path, run: Run, inference: str, split: str) -> pd.DataFrame:
        """Return the rows of one inference and split of a file, sorted.

        Raises Missing if they are absent, incomplete or not valid, and UserError if the file lacks a column.
        """
        chosen = np.ones(len(table), dtype=bool)
        if "inference" in table:  # several in one file
            chosen = (table["inference"] == inference).to_numpy()
            extra = [c for c in table if str(c).startswith(COUNT) or c == "adapted"]
            table = table.drop(columns=[c for c in extra if table[c][chosen].isna().all()])  # another inference's
        if "split" in table or split != "test":
            chosen = chosen & (table["split"] == split).to_numpy() if "split" in table else np.zeros_like(chosen)
        table = table[chosen]
        columns = self.columns(run)
        if absent := [c for c in (*NAMED, "label") if c not in table]:
            raise UserError(path, f"no column {', '.join(absent)}")
        if not len(table):
            raise Missing(
                path, "holds no predictions" if split == "test" else f"holds no predictions of the split {split}"
            )
        if absent := [c for c in columns if c not in table]:
            raise Missing(path, f"has no column {absent[0]} of predictions")
        if fault := self.plan.study.task.fault(table[columns].to_numpy(dtype=float), table["label"].to_numpy()):
            raise Missing(path, fault)
        order, names = self._sorted(path, run, table[NAMED], split)
        others = table.drop(columns=[*NAMED, "inference", "split"], errors="ignore").iloc[order]
        table = names.join(others.astype({"label": int}).set_axis(names.index))
        if "adapted" in table:
            table = table[~table["adapted"].astype(bool)].reset_index(drop=True)
        return table

    def _sorted(self, path: Path, run: Run, names: pd.DataFrame, split: str) -> tuple[np.ndarray, pd.DataFrame]:
        """Return the order that sorts the rows of a file by site and sample, and their names in that order.

        Runs and inferences predict the same samples in the same order, so that a known order is used again. `names` has
        the columns sample, site and role. Raises Missing if samples are not those of the partition.
        """
        names = names.reset_index(drop=True)
        alike = self._orders[run.partition_id, split, run.tested]
        for known, order, table in alike:
            if names.equals(known):
                return order, table
        # In one order for all runs, so that equal columns are equal objects and can be shared.
        table = names.astype(str).sort_values(["site", "sample"])
        order = table.index.to_numpy()
        table = table.reset_index(drop=True)
        if partial := self._not_whole(run, table, split):
            raise Missing(path, partial)
        alike.append((names, order, table))
        return order, table

    def _not_whole(self, run: Run, table: pd.DataFrame, split: str) -> str:
        """Return what is wrong with sorted predictions: missing, wrong or duplicate samples.

        Return "" if they are complete.
        """
        if table["sample"].duplicated().any():
            return f"sample {table.loc[table['sample'].duplicated(), 'sample'].iloc[0]!r} is predicted twice"
        partition = self.paths.partition(run.partition_id)
        if not partition.exists():
            return f"its partition {partition.name} is missing"
        # Validation images of a site may be left out, where they are too few for the statistics of a batch.
        sites = run.tested if split == "test" else tuple(table["site"].unique())
        wanted = self._wanted(run.partition_id, split, sites)
        if table[NAMED].equals(wanted):
            return ""
        wanted = wanted.set_index("sample")
        members = set(wanted.index)
        predicted = set(table["sample"])
        if members - predicted:
            return f"partial: {len(members - predicted)} of {len(members)} {split} samples are not predicted"
        if others := len(predicted - members):
            return f"{others} samples are not {split} samples of the partition"
        for column in SITE:
            if (table["sample"].map(wanted[column]) != table[column]).any():
                return f"a sample has another {column} than in the partition"
        return ""

    def by_patient(self, run: Run, rows: pd.DataFrame) -> pd.DataFrame:
        """Return predictions with a row for each patient, for a task with masks; otherwise return the rows unchanged.

        A patient is named after the first image. An image of an unknown patient counts as a patient.
        """
        if not self.plan.study.task.has_masks:
            return rows
        columns = self.columns(run)
        samples = read_samples(self.paths.data_files(run.data.id).samples).set_index("sample")["patient"]
        patient = samples.reindex(rows["sample"]).reset_index(drop=True)
        names = rows["site"] + "/" + persons(rows.assign(patient=patient)).astype(str)
        number = names.map({name: k for k, name in enumerate(dict.fromkeys(names))}).to_numpy()
        out = rows[~names.duplicated()].reset_index(drop=True)
        out[columns] = self.plan.study.task.of_patients(rows[columns].to_numpy(dtype=float), number)
        return out

    def _keep(self, run: Run, split: str, rows: pd.DataFrame) -> _Kept:
        """Return checked predictions (`rows`) for memory, sharing the table of another run if that is equal."""
        rows = self.by_patient(run, rows)
        counted = [column for column in rows.columns if column.startswith(COUNT)]
        table, numbers = rows[[*NAMED, "label", *counted]], rows[self.columns(run)].to_numpy(dtype=float)
        alike = self._shared[run.partition_id, split]
        shared = next((one for one in alike if table.equals(one.table)), None)
        if shared is None:
            shared = _Kept(table, divided(table, counted), np.empty((0, 0)))
            alike.append(shared)
        return shared._replace(probability=numbers)


def _read(path: Path) -> pd.DataFrame:
    """Return the table in a file, with text as Python strings, which are compared much faster."""
    table = read_table(path)
    return table.astype(dict.fromkeys(table.select_dtypes("str").columns, object))


def divided(table: pd.DataFrame, counted: Sequence[str]) -> list[tuple[np.ndarray, Part]]:
    """Return, for each site, the positions of its rows in a table of predictions, and its predictions.

    The predictions have samples and labels, but no probabilities yet. `counted` are the columns with numbers that the
    inference counted at the site.
    """
    sites = []
    for (site, role), rows in table.groupby(SITE, sort=False):
        counts = {name.removeprefix(COUNT): float(rows[name].iloc[0]) for name in counted if rows[name].notna().iloc[0]}
        samples = rows.set_index("sample").index
        label = rows["label"].to_numpy()
        sites.append((rows.index.to_numpy(), Part(str(site), str(role), samples, label, np.empty((0, 0)), counts)))
    return sites


def probabilities(table: pd.DataFrame) -> list[str]:
    """Return the names of the columns p0, p1, ... that a table has, in this order."""
    return list(itertools.takewhile(table.__contains__, (f"p{k}" for k in itertools.count())))


def why_absent(paths: Paths, run: str) -> str:
    """Return the reason why a run has no predictions: how far its training came."""
    files = paths.run_files(run)
    if files.manifest.exists():
        return "trained, but not predicted"
    if files.checkpoint.exists():
        return "training stopped before its end; its checkpoint is kept"
    return "not trained, or failed before the first checkpoint"


class Clusters:
    """The cluster of dependent samples that each sample of a dataset belongs to, which intervals resample as a whole.

    A cluster is a patient or, if several sites show the same images, a source image.

    Attributes
    ----------
    data : the id of the prepared data
    by_sample : the cluster by the name of the sample; a sample whose cluster is missing is a cluster of its own
    shared : True if several sites have samples of the same cluster
    """

    def __init__(self, data: str, by_sample: pd.Series, shared: bool) -> None:
        self.data = data
        self.by_sample = by_sample
        self.shared = shared
        self._numbers: dict[Group, dict[str, int]] = defaultdict(dict)
        self._known: dict[tuple[int, str], tuple[pd.Index, np.ndarray]] = {}

    def group(self, site: str) -> Group:
        """Return the group (data and site) whose clusters are independent of those of other groups.

        Patients of two sites count as two, also if they have the same id. The site is empty if sites share clusters.
        """
        return self.data, "" if self.shared else site

    def of(self, samples: pd.Index, site: str) -> np.ndarray:
        """Return the number (n,) of the cluster of each sample of a site.

        Numbers count from 0 in each group, in the order in which clusters are first asked for. The same array is
        returned for the same `samples` object, so do not change it.
        """
        key = id(samples), site
        if key not in self._known:
            names = self.by_sample.reindex(samples).fillna(samples.to_series()).astype(str)
            numbers = self._numbers[self.group(site)]
            found = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=int)
            self._known[key] = samples, found  # as long as the object is kept, no other one has its id
        return self._known[key][1]


def clusters(samples: Samples, data: str) -> Clusters:
    """Return the clusters of prepared data.

    Every sample is a cluster of its own if the table of samples cannot be read.
    """
    try:
        table = samples(data)
    except UserError:
        return Clusters(data, pd.Series(dtype=object), shared=False)
    shared = "base" in table
    groups = table.set_index("sample")["base" if shared else "patient"].astype(object)
    return Clusters(data, groups.where(groups.isna(), groups.astype(str)), shared)
