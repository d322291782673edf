"""Names of all files that pass between the steps of the workflow, and of the folders that hold them.

All other modules and the Snakefile take the path of a file from here. The classes below hold paths alone: they open no
file, and `{wildcards}` of Snakemake may stand in place of a name. RESULT_TABLES lists the tables of a study's results:
the workflow writes them, readers and downloads follow it. A further table is a module with the function `table` and its
COLUMNS, and one entry of the list.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .shipped import SHIPPED

IDS = ("condition_id", "inference_id")
"""The columns that identify a condition (algorithm x batch norm policy x settings) and an inference of a study."""
LEVELS = ("condition_id", "role", "site", "inference_id", "metric")
"""The columns that identify a score of a study, except for its seed."""
INFERENCE = ("inference", "momentum", "batch_size", "order")
"""The columns of scores.csv that describe an inference: its name and settings."""


@dataclass(frozen=True)
class ResultTable:
    """A table of numbers in the folder of a study: a CSV file, by its name without the ending.

    `worker` is the module of the package whose function `table` makes the rows; the names of the function's parameters
    say what it needs (see `page.summary`). No two rows agree in the columns `keys`. A table with a `title` is among the
    downloads of the page. `columns` are those that readers need, by default COLUMNS of the worker, and `text` the
    columns of text that no other table has.
    """

    name: str
    worker: str
    keys: tuple[str, ...] = ()
    title: str = ""
    columns: tuple[str, ...] = ()
    text: tuple[str, ...] = ()


SCORES = ResultTable(
    "scores",
    "analysis.score",
    ("run", "site", "role", *INFERENCE, "metric"),
    "All scores",
    columns=("run", "site", "role", *INFERENCE, "seed", "metric", "value", "n"),
)
"""Every score of a study, written by the rule `score`. All other tables are made from scores and predictions."""
DIVERGENCE = ResultTable(
    "divergence",
    "analysis.divergence",
    (*IDS, "role", "site", "run"),
    "Divergence of features",
    columns=(*IDS, "role", "site", "run", "seed", "n", "n_internal", "features", "a_distance", "mmd"),
)
"""The distance between features of external and internal sites, written by the rule `divergence` if a study asks for
it."""
SUMMARISED = (
    ResultTable("summary", "page.summary", LEVELS, "Summary"),
    ResultTable("effects", "analysis.effects", (*LEVELS, "quantity"), "Effects"),
    ResultTable("controls", "analysis.controls", ("quantity", "partition", *IDS, "role", "site", "metric"), "Controls"),
    ResultTable(
        "calibration", "analysis.calibration", (*IDS, "role", "site", "quantity", "bin"), "Calibration", text=("of",)
    ),
    ResultTable("collapse", "analysis.collapse", (*IDS, "role", "site", "run"), "Test-time adaptation"),
    ResultTable(
        "operating_points",
        "analysis.operating_point",
        (*IDS, "role", "site", "run"),
        "Operating points",
        text=("rule", "positive"),
    ),
    ResultTable(
        "conformal", "analysis.conformal", (*IDS, "role", "site", "class"), "Prediction sets", text=("class", "verdict")
    ),
    ResultTable(
        "comparisons",
        "analysis.comparisons",
        ("condition_id", "inference_id", "than_condition_id", "than_inference_id", "role", "site", "metric"),
        "Comparisons of conditions",
        text=("than_condition_id", "than_inference_id", "than_condition", "than_inference"),
    ),
    ResultTable(
        "comparison",
        "analysis.published_values",
        columns=("table", "published", "mean", "difference", "combined", "verdict", "reason"),
        text=("table", "method", "variant", "verdict"),
    ),
    ResultTable(
        "trends",
        "analysis.trends",
        title="Trends",
        columns=("claim", "sentence", "held", "mean_difference", "se", "sites_for", "sites", "doubt", "reason"),
        text=("better_ids", "than_ids", "claim", "sentence", "held", "doubt"),
    ),
    ResultTable(
        "hypotheses",
        "analysis.hypotheses",
        ("number", "without"),
        "Registered hypotheses",
        text=("at", "than_condition_id", "than_inference_id", "than_at", "claim", "direction", "answer"),
    ),
    ResultTable("unseen", "analysis.unseen", (*IDS, "trained_on", "metric")),
    ResultTable(
        "subgroups",
        "analysis.subgroups",
        (*IDS, "column", "group", "role", "metric"),
        "Subgroups",
        text=("column", "group"),
    ),
    ResultTable("net_benefit", "analysis.net_benefit", (*IDS, "role", "site", "threshold")),
)
"""The tables that the rule `report` makes from scores and predictions."""
RESULT_TABLES = {table.name: table for table in (SCORES, DIVERGENCE, *SUMMARISED)}
TEXT = (
    *("study", "run", *IDS, "algorithm", "bn", "addon", "held_out", "site", "role", "inference", "metric"),
    *("quantity", "condition", "reason", "partition"),
    *(column for table in SUMMARISED for column in table.text),
)
"""The columns of result tables that hold text. All others hold numbers."""


SOURCE = "source.json"
"""Name of the file, in a folder of raw files, that says which dataset they are."""
STUDIES = Path("config", "studies")
"""Folder of the studies of a project, unless another one is named."""


TABLES, FORMS = ("sites", "overview", "conditions", "comparison"), ("csv", "md", "tex")
"""Names of a study's tables for human readers, and the file formats in which each of them is written."""


def one_spelling(file: Path) -> str:
    """Return the one text by which results refer to a file, whichever way its path is written.

    A file inside the working folder has its path relative to that folder, with links to folders resolved unless they
    lead outside of it; any other file has its absolute path.
    """
    here = Path.cwd()
    written = Path(os.path.normpath(here / file))
    real = file.parent.resolve() / file.name
    inside = [path.relative_to(here) for path in (real, written) if path.is_relative_to(here)]
    return str(inside[0] if inside else written)


def papers(studies: Path = STUDIES) -> Path:
    """Return the path of the list of published tables and figures: `papers.csv` beside the folder of studies.

    If there is no such file, return the path of the list that comes with fedshift.
    """
    own_list = studies.parent / "papers.csv"
    return own_list if own_list.exists() else SHIPPED / STUDIES.parent / own_list.name


def checksum(file: Path) -> Path:
    """Return the path of the hidden file beside a result that holds its recorded checksum (see `checksums`)."""
    return file.with_name(f".{file.name}.sha256")


def memory(data: Path) -> Path:
    """Return the path of the cache for digests of the user's own images, hidden beside the prepared data `data`."""
    return data.with_name(f".{data.name}.contents.json")


@dataclass(frozen=True)
class _Files:
    """Base of the classes that name the files in one `folder`."""

    folder: Path


class _Name(property):
    """A property that returns the path of the file `name` in an object's folder; `doc` says what the file holds."""

    def __init__(self, name: str, doc: str) -> None:
        super().__init__(lambda files: files.folder / name)
        self.__doc__ = doc

    if TYPE_CHECKING:

        def __get__(self, files: Any, owner: type | None = None) -> Path: ...  # type: ignore[override]


class _Named:
    """A property that returns a function from names, such as a run's id, to a path in an object's folder.

    `pattern` is the path with {} in place of each name; `doc` says what lies there.
    """

    def __init__(self, pattern: str, doc: str) -> None:
        self.pattern = pattern
        self.__doc__ = doc

    def __get__(self, files: Any, owner: type | None = None) -> Callable[..., Path]:
        def path(*names: str) -> Path:
            if len(names) != self.pattern.count("{}"):  # `format` alone ignores names that are too many
                raise TypeError(f"{self.pattern} takes {self.pattern.count('{}')} names, not {len(names)}")
            return files.folder / self.pattern.format(*names)

        return path


class DataFiles(_Files):
    """Files of a prepared dataset. `fedshift prepare` writes all of them at once."""

    images = _Name("images.npy", "All images as one array that can be memory-mapped.")
    masks = _Name("masks.npy", "The masks of all images as one array, in a dataset that is prepared for segmentation.")
    samples = _Name(
        "samples.parquet",
        "The table of samples: a row for each image, with its site, label, patient and further columns.",
    )
    pixels = _Name(
        "pixels.parquet",
        "The table of facts of each prepared image that checks need, such as a fingerprint to find copies.",
    )
    card = _Name("card.json", "The data card: source, licence, sizes, classes and checksums.")

    @property
    def written(self) -> tuple[Path, ...]:
        """All files of a prepared dataset: the outputs of the workflow's rule `prepare`."""
        return self.images, self.samples, self.pixels, self.card


class RunFiles(_Files):
    """Files of one run. `fedshift train` writes them, except for the predictions."""

    spec = _Name("spec.json", "All settings of the run, defaults included.")
    model = _Name("model.safetensors", "Tensors of the global network.")
    clients = _Name("clients.safetensors", "Tensors that stay at the clients, named CLIENT/NAME.")
    rounds = _Name(
        "rounds.parquet", "The table of rounds: losses, accuracies, floats moved and seconds, by site and split."
    )
    manifest = _Name(
        "manifest.json",
        "The provenance of the run: versions, digests, machine, seconds and the selected round. Written last.",
    )

    sums = _Name(
        "sums.parquet",
        "Sums over groups of test patients, of real sites that keep the rows of single images. Written by "
        "`fedshift serve`.",
    )

    @property
    def trained(self) -> tuple[Path, ...]:
        """All files of a finished training: the outputs of the workflow's rule `train`."""
        return self.spec, self.model, self.clients, self.rounds, self.manifest

    round_log = _Name("rounds.jsonl", "One JSON line for each round, appended while the training goes on.")
    checkpoint = _Name("checkpoint", "The folder of the checkpoint, which is removed when the training has ended.")
    state = _Name(
        "checkpoint/state.safetensors",
        "Tensors of the federation after the last round with a checkpoint, from which a stopped training goes on.",
    )
    lock = _Name("checkpoint/lock", "The file that a training keeps locked while it is at work.")

    predictions = _Named(
        "predictions-{}.parquet", "Predictions of test and validation images, by the name of the inferences of a job."
    )

    @property
    def every_prediction(self) -> list[Path]:
        """The existing tables of predictions of the run, also those that an earlier study asked for."""
        return sorted(self.folder.glob(self.predictions("*").name))


class StudyFiles(_Files):
    """Files of one study at one scale: tables for programs, and figures and tables for people."""

    scores = _Name(
        "scores.csv", "Every score: a row for each run, inference, site and metric. Written by `fedshift score`."
    )
    missing = _Name(
        "missing.json",
        "The runs and inferences that have no predictions, with the reason. Written by `fedshift score`.",
    )
    ledger = _Name("ledger.csv", "The traffic of each condition, as measured. Written by `fedshift ledger --write`.")
    divergence = _Name("divergence.csv", "The divergence of features between sites. Written by `fedshift divergence`.")
    summary = _Name("summary.csv", "Means, deviations and intervals over seeds. Written by `fedshift report`.")
    numbers = _Name(
        "numbers.parquet",
        "Every mean, difference and slope with its intervals, in one table. Written by `fedshift report`.",
    )
    headline = _Name(
        "headline.json", "The outcome in a few numbers, for the index of all studies. Written by `fedshift report`."
    )

    result = _Named("{}.csv", "A table of numbers by its name among RESULT_TABLES.")
    table = _Named("tables/{}.{}", "A table for people by its name and form: csv, md or tex. Written by `report`.")
    figures = _Name("figures", "The folder of the figures. Written by `fedshift report`.")
    figure = _Named("figures/{}.svg", "A figure by its name. Written by `report`, and by `figure` alone.")

    @property
    def summarised(self) -> tuple[Path, ...]:
        """The tables that `fedshift report` writes: for programs (see RESULT_TABLES), and for human readers."""
        people = (self.table(name, form) for name in TABLES for form in FORMS)
        return self.numbers, *(self.result(table.name) for table in SUMMARISED), *people

    @property
    def reported(self) -> tuple[Path, ...]:
        """The files that `fedshift report` writes into the study's folder, beside the figures."""
        return *self.summarised, self.headline


TRAINED = tuple(path.name for path in RunFiles(Path()).trained)
"""Names of the files of a finished training."""


@dataclass(frozen=True)
class Paths:
    """All files of the project in the folder `root`, by ids of data, partitions and runs or by names of studies."""

    root: Path = Path()

    @property
    def folder(self) -> Path:
        """The folder of the project, to which all paths are relative."""
        return self.root

    results = _Name("results", "The folder of all that is computed; the raw data and the pages lie elsewhere.")
    store = _Name("results/store", "Second copies of finished runs: a folder for each run, in it for each input.")
    accepted = _Name(
        "results/accepted.json", "The ledger of changes of code that a person accepted (`fedshift accept`)."
    )
    exports = _Name("results/exports", "The folder of what `fedshift export` writes, if no other place is named.")

    raw = _Named("resources/{}", "The folder of a dataset's raw files. Filled by `fedshift download`.")
    source = _Named(f"resources/{{}}/{SOURCE}", "The file that says which dataset the raw files are. Written last.")
    data = _Named("results/data/{}", "The folder of a prepared dataset.")
    partition = _Named("results/partitions/{}.parquet", "The roles and splits of samples, by `fedshift partition`.")
    control = _Named(
        "results/controls/{}.parquet", "Predictions of a linear classifier on a partition, by `fedshift control`."
    )
    run = _Named("results/runs/{}", "The folder of a run.")
    predictions = _Named(
        "results/runs/{}/predictions-{}.parquet", "Predictions of a run, by its id and the name of the inferences."
    )
    study = _Named("results/studies/{}", "The folder of a study's scores, tables and figures.")
    page = _Named("reports/{}.html", "The page of a study, or of all studies where its name is index.")
    log = _Named("results/logs/{}/{}.log", "The log of a job, by its rule and its wildcards joined by a hyphen.")
    benchmark = _Named(
        "results/benchmarks/{}/{}.tsv", "Seconds and memory of a job, written by itself (`jobs.record`)."
    )
    applied = _Named("results/applied/{}", "The folder of what `fedshift apply` writes about a run by default.")
    bundle = _Named("results/bundles/{}", "The folder of the MONAI bundle of a run by default.")

    def data_files(self, data: str) -> DataFiles:
        """Return the paths of the files of a prepared dataset, given its id."""
        return DataFiles(self.data(data))

    def run_files(self, run: str) -> RunFiles:
        """Return the paths of the files of a run, given its id."""
        return RunFiles(self.run(run))

    def every_run(self) -> list[RunFiles]:
        """Return the paths of the files of all runs whose folders exist, in the order of their ids."""
        return [RunFiles(folder) for folder in sorted((self.results / "runs").glob("*/"))]

    def study_files(self, study: str) -> StudyFiles:
        """Return the paths of the files that the workflow writes for a study, given its name."""
        return StudyFiles(self.study(study))

    def every_study(self) -> list[StudyFiles]:
        """Return the paths of the files of all studies whose folders exist, in the order of their names."""
        return [StudyFiles(folder) for folder in sorted((self.results / "studies").glob("*/"))]
