"""The predictions of a study's runs, and which of their samples depend on each other and count together."""

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

INFERENCE = ["inference", "momentum", "batch_size", "order"]
"""The columns of scores.csv that describe an inference in words."""
TYPES: dict[str, Any] = {"momentum": "Float64", "batch_size": "Int64", "order": "Int64"}
"""Types of the columns that are neither text nor plain floats."""
SITE = ["site", "role"]
NAMED = ["sample", *SITE]
"""The columns that name a sample and where it is."""
Samples = Callable[[str], "pd.DataFrame"]
"""Returns samples.parquet of prepared data by their id, with sample and site as text, or raises UserError."""
SPLITS = ("test", "val")
"""The splits of which predictions are kept."""


class Missing(UserError):  # noqa: N818 - a study may lack some
    """Predictions that are not there, or that do not hold all test samples with finite probabilities."""


def inferences(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return, by its id, the columns that describe each inference: name, momentum, batch_size and order.

    Changed settings without a column are added to the name, so that no two inferences of a study agree
    in all columns.
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
    label : classes of the samples (n,)
    probability : predicted probabilities (n, classes); of a task with masks, its numbers (n, columns), a row a patient,
        or histograms of an image (see `Predictions.histograms`)
    counted : what the inference counted at the site, by name
    """

    site: str
    role: str
    samples: pd.Index
    label: np.ndarray
    probability: np.ndarray
    counted: Mapping[str, float]


class _Kept(NamedTuple):
    """Predictions: columns that runs share, the rows of each site in them, and the run's own numbers (n, columns)."""

    table: pd.DataFrame
    sites: list[tuple[np.ndarray, Part]]
    probability: np.ndarray


class Predictions:
    """The predictions of a study's runs. Each file is read when it is first needed, and once only.

    Columns that agree between runs (sample, site, role and label) are kept once, so that a further run adds the memory
    of its probabilities alone.
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
        """Return the predictions of a run: sample, site, role, label, p0, p1, ... of every test sample, sorted.

        What the inference counted at a site stands in columns `count_...`.
        Test samples whose labels the model was adapted to are left out. With `split` val, returns the validation
        samples of internal sites instead, without sites that were not predicted. Raises Missing where the file is not
        there or is incomplete, or has no samples of the split, and UserError where it cannot be read.
        """
        kept = self._kept(run, inference, split)
        return kept.table.assign(**{f"p{k}": column for k, column in enumerate(kept.probability.T)})

    def parts(self, run: Run, inference: str, split: str = "test") -> list[Part]:
        """Return the predictions of a run by site, in the order of sites; see `read`, whose errors it raises."""
        kept = self._kept(run, inference, split)
        return [part._replace(probability=kept.probability[rows]) for rows, part in kept.sites]

    def _kept(self, run: Run, inference: str, split: str) -> _Kept:
        """Return predictions, which are loaded when they are first asked for. Raises Missing and UserError."""
        if (run.id, inference, split) not in self._known:
            self._load(run)
        kept = self._known[run.id, inference, split]
        if isinstance(kept, Missing):
            raise kept
        return kept

    def masks(self, run: Run, inference: str) -> pd.DataFrame:
        """Return sample, site, role, the task's columns and mask of each test image, sorted by site and sample.

        A mask is the content of a PNG file, and missing where it was not kept; so is the whole column in files of
        earlier versions. Raises Missing and UserError as `read`.
        """
        self._kept(run, inference, "test")
        path = self._path(run)
        table = self._checked(_read(path), path, run, inference, "test")
        return table.reindex(columns=[*NAMED, *self.columns(run), "mask"])

    def histograms(self, run: Run, inference: str, split: str = "test") -> list[Part]:
        """Return the predictions of masks by site, a row an image, with histograms in the place of numbers.

        They are those of `tasks.segmentation.histograms`, (n, structures, 2, thresholds). Raises Missing also for a
        file without them, and UserError as `read`.
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
        """Return the names of the numbers that are kept of an image."""
        return self.plan.study.task.columns(run.data.dataset.classes)

    def partition(self, id_: str) -> pd.DataFrame:
        """Return the table of a partition. Raises UserError where it cannot be read."""
        if id_ not in self._partitions:
            identity.require(self.paths.partition(id_), partition=id_)
            self._partitions[id_] = read_partition(self.paths.partition(id_))
        return self._partitions[id_]

    def _wanted(self, id_: str, split: str, sites: Collection[str]) -> pd.DataFrame:
        """Return sample, site and role of a partition's split at some sites, sorted as predictions are."""
        key = id_, split, frozenset(sites)
        if key not in self._splits:
            table = self.partition(id_)
            rows = table[(table["split"] == split) & table["site"].astype(str).isin(sites)][NAMED]
            self._splits[key] = rows.astype(str).sort_values(["site", "sample"], ignore_index=True)
        return self._splits[key]

    def readable(self, runs: Iterable[Run], inference: str) -> Iterator[tuple[Run, pd.DataFrame]]:
        """Yield each run whose test predictions are all there, and these. Raises UserError for an unreadable file."""
        yield from ((run, self.read(run, inference)) for run in runs if self._has(run, inference))

    def by_site(self, runs: Iterable[Run], inference: str) -> Iterator[tuple[Run, list[Part]]]:
        """Yield each run that has all test predictions, with them by site; see `readable`."""
        yield from ((run, self.parts(run, inference)) for run in runs if self._has(run, inference))

    def _has(self, run: Run, inference: str) -> bool:
        """Return whether all test predictions are there. Raises UserError for a file that is unreadable."""
        try:
            self._kept(run, inference, "test")
        except Missing:
            return False  # score() lists it in missing.json
        return True

    def every(self, runs: Iterable[Run]) -> Iterator[tuple[Run, str]]:
        """Yield run and inference of all inferences of `runs` that have all test predictions."""
        for run in runs:
            yield from ((run, inference) for inference in self.plan.predictions(run.id) if self._has(run, inference))

    def _path(self, run: Run) -> Path:
        return self.paths.predictions(run.id, self.plan.prediction_jobs[run.id])

    def _load(self, run: Run) -> None:
        """Keep all that the predictions of a run hold, or why they cannot be used."""
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
        """Return the rows of one inference and split of a file, sorted."""
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
        """Return the order in which the rows of a file are sorted by site and sample, and `names` in that order.

        Runs and inferences predict the same samples, one as another: what is found of some of them holds for all.
        Raises Missing where samples are not those of the partition.
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
        """Return what is wrong with sorted predictions that lack samples, have others, or some twice; else nothing."""
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
        """Return a row for each patient from rows of images, sorted, where the task has masks; else the rows.

        It is named after the patient's first image. An image of an unknown patient stands alone.
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
    """Return the table in a file, its texts as Python's own: rows of these are chosen and compared much faster."""
    table = read_table(path)
    return table.astype(dict.fromkeys(table.select_dtypes("str").columns, object))


def divided(table: pd.DataFrame, counted: Sequence[str]) -> list[tuple[np.ndarray, Part]]:
    """Return the rows of each site, with what runs share. `counted` are columns of what an inference counted there."""
    sites = []
    for (site, role), rows in table.groupby(SITE, sort=False):
        counts = {name.removeprefix(COUNT): float(rows[name].iloc[0]) for name in counted if rows[name].notna().iloc[0]}
        samples = rows.set_index("sample").index
        label = rows["label"].to_numpy()
        sites.append((rows.index.to_numpy(), Part(str(site), str(role), samples, label, np.empty((0, 0)), counts)))
    return sites


def probabilities(table: pd.DataFrame) -> list[str]:
    """Return the columns p0, p1, ... in this order."""
    return list(itertools.takewhile(table.__contains__, (f"p{k}" for k in itertools.count())))


def why_absent(paths: Paths, run: str) -> str:
    """Return how far a run without predictions came."""
    files = paths.run_files(run)
    if files.manifest.exists():
        return "trained, but not predicted"
    if files.checkpoint.exists():
        return "training stopped before its end; its checkpoint is kept"
    return "not trained, or failed before the first checkpoint"


class Clusters:
    """The cluster of each sample of a dataset: its patient or, where sites show the same images, its source image.

    `by_sample` is the cluster by the name of the sample of the `data` with this id, missing where unknown: such a
    sample stands alone. `shared` says whether several sites hold samples of one cluster.
    """

    def __init__(self, data: str, by_sample: pd.Series, shared: bool) -> None:
        self.data = data
        self.by_sample = by_sample
        self.shared = shared
        self._numbers: dict[Group, dict[str, int]] = defaultdict(dict)
        self._known: dict[tuple[int, str], tuple[pd.Index, np.ndarray]] = {}

    def group(self, site: str) -> Group:
        """Return the group of the clusters of a site. Patients of two sites are two, also if they have one name."""
        return self.data, "" if self.shared else site

    def of(self, samples: pd.Index, site: str) -> np.ndarray:
        """Return the number of the cluster of each sample of a site (n,).

        Numbers count from 0 in each group, in the order in which clusters are asked for. For the same `samples` the
        same array is returned, so do not change it.
        """
        key = id(samples), site
        if key not in self._known:
            names = self.by_sample.reindex(samples).fillna(samples.to_series()).astype(str)
            numbers = self._numbers[self.group(site)]
            found = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=int)
            self._known[key] = samples, found  # as long as the object is kept, no other one has its id
        return self._known[key][1]


def clusters(samples: Samples, data: str) -> Clusters:
    """Return the clusters of prepared data; every sample stands alone where its table cannot be read."""
    try:
        table = samples(data)
    except UserError:
        return Clusters(data, pd.Series(dtype=object), shared=False)
    shared = "base" in table
    groups = table.set_index("sample")["base" if shared else "patient"].astype(object)
    return Clusters(data, groups.where(groups.isna(), groups.astype(str)), shared)
