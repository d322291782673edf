"""Studies opened by name: their settings, their runs, and the results that exist."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..analysis.conditions import CONDITION, Condition, conditions
from ..core.errors import UserError, did_you_mean
from ..datasets import Scale
from ..io.checksums import require
from ..io.paths import RESULT_TABLES, STUDIES, Paths, RunFiles, StudyFiles
from ..io.shipped import inside
from ..io.tables import read_table
from ..io.text import readable
from ..study import plan as plans

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from ..study.run import Run
    from .runs import TrainedRun


def load_study(
    study: str | Path, scale: Scale = "mini", *, project: str | Path = ".", studies: str | Path = STUDIES
) -> LoadedStudy:
    """Read a study, check it and expand it to its runs. Nothing is run, and nothing is written.

    Parameters
    ----------
    study : name of a study, or path to its YAML file
    scale : `mini` or `paper`, where the study makes a difference between them
    project : folder of the project: the other paths count from it, its own plug-ins are found, and results lie in it
    studies : folder of the studies that are named; those that come with fedshift are found, too

    Returns
    -------
    The study.

    Raises
    ------
    UserError
        For an unknown study, and for every wrong key of its file: one line for each.

    Examples
    --------
    >>> import fedshift
    >>> study = fedshift.load_study("my-study")
    >>> study.title
    'Does a model of two hospitals hold up in a third?'
    >>> len(study.runs), [condition.title for condition in study.conditions.values()]
    (2, ['FedAvg, local BN'])
    """
    with inside(Path(project)):
        return LoadedStudy(plans.load(plans.find(str(study), Path(studies)), scale), Path.cwd())


def results(study: str | Path | LoadedStudy) -> StudyTables:
    """Open the results of a study as data frames.

    Parameters
    ----------
    study : folder of a study's results, such as `results/studies/demo` or a copy of it; or, where the current folder is
        that of the project, the study's name, or what `load_study` returned

    Returns
    -------
    The tables of the study, each of which is read when it is first asked for.

    Raises
    ------
    UserError
        Where the folder does not exist. A table that is missing or damaged is reported when it is asked for.

    Examples
    --------
    >>> import fedshift
    >>> scores = fedshift.results("results/studies/my-study").scores
    >>> accuracy = scores[scores["metric"] == "accuracy"].pivot_table("value", "inference", "role")
    >>> accuracy.shape, list(accuracy)
    ((2, 2), ['external', 'internal'])
    >>> fedshift.results("my-studdy")
    Traceback (most recent call last):
    fedshift.core.errors.UserError: my-studdy: no such folder, and no results of a study of this name; did you mean ...
    """
    if isinstance(study, LoadedStudy):
        return study.results()
    folders = [Path(study), Paths().study(str(study))]
    for folder in folders:
        if folder.is_dir():
            return StudyTables(folder)
    names = [files.folder.name for files in Paths().every_study()]
    problem = "no such folder, and no results of a study of this name"
    raise UserError(study, problem, did_you_mean(str(study), names))


@dataclass(frozen=True, repr=False)
class LoadedStudy:
    """A study at one scale, `mini` or `paper`, expanded to its runs. `load_study` opens one.

    Attributes
    ----------
    plan : the study, expanded to all jobs that it needs
    root : folder of the project, where results lie

    Examples
    --------
    >>> import fedshift
    >>> study = fedshift.load_study("my-study")
    >>> study
    LoadedStudy('my-study', 2 runs)
    >>> [(run.algorithm.name, run.bn, run.seed) for run in study.runs.values()]
    [('fedavg', 'local', 0), ('fedavg', 'local', 1)]
    >>> study.open_run(next(iter(study.runs))).spec["seed"]
    0
    >>> sorted(study.results().scores["inference"].unique())
    ['source', 'tsmobn']
    """

    plan: plans.Plan
    root: Path

    def __repr__(self) -> str:
        return f"LoadedStudy({self.plan.name!r}, {len(self.runs)} runs)"

    @property
    def name(self) -> str:
        """The name of the study: that of its file, without the ending."""
        return self.plan.name

    @property
    def title(self) -> str:
        """The title of the study."""
        return self.plan.study.title

    @property
    def question(self) -> str:
        """The question that the study answers; it may be empty."""
        return self.plan.study.question

    @property
    def runs(self) -> Mapping[str, Run]:
        """The runs by their ids, which name folders of results/runs."""
        return self.plan.runs

    @property
    def conditions(self) -> Mapping[str, Condition]:
        """The conditions (algorithm x batch-norm policy x settings) by id; runs of one differ in their seed only."""
        return conditions(self.plan)

    def open_run(self, run: str, *, device: torch.device | str = "cpu") -> TrainedRun:
        """Open a trained run by its id; see `fedshift.open_run`. Raises UserError where it is not there."""
        from .runs import open_run

        if run not in self.runs:
            raise UserError(self.plan.label, f"has no run {run!r}", did_you_mean(run, self.runs))
        return open_run(Paths(self.root).run(run), device=device)

    def results(self) -> StudyTables:
        """Return the results of the study; see `fedshift.results`. Raises UserError where there are none."""
        folder = Paths(self.root).study(self.name)
        if not folder.is_dir():
            raise UserError(folder, "no such folder", "run the study first")
        return StudyTables(folder)


class StudyTables:
    """The results of a study, as the workflow wrote them. `results` opens them.

    Each file is read when it is first asked for, once, and against its recorded checksum.

    Parameters
    ----------
    folder : folder of the study's results, such as `results/studies/demo`

    Attributes
    ----------
    folder : folder of the study's results

    Raises
    ------
    UserError
        By each attribute, for a file that is missing, damaged or of another kind. The message is one line.

    Examples
    --------
    >>> import fedshift
    >>> tables = fedshift.results("my-study")
    >>> tables.scores[["site", "inference", "metric", "n"]].head(2).values.tolist()
    [['far', 'source', 'accuracy', 40], ['far', 'source', 'auc', 40]]
    >>> list(tables.overview)[:2]
    ['Condition', 'Inference']
    >>> list(tables.table("calibration"))[:3]
    ['condition_id', 'inference_id', 'algorithm']
    """

    def __init__(self, folder: Path) -> None:
        # Absolute, since files are read later, when another folder may be the current one.
        self.folder = folder.absolute()
        self._files = StudyFiles(self.folder)

    def __repr__(self) -> str:
        return f"StudyTables({str(self.folder)!r})"

    @property
    def names(self) -> list[str]:
        """The names of the tables that the study has, which `table` takes."""
        return [name for name in RESULT_TABLES if self._files.result(name).is_file()]

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of numbers by the name of its file, such as `calibration` or `operating_points`.

        Raises UserError for an unknown name, and for a file that is missing or damaged.

        Examples
        --------
        >>> import fedshift
        >>> fedshift.results("my-study").table("calibratio")
        Traceback (most recent call last):
        fedshift.core.errors.UserError: table: unknown table 'calibratio'; did you mean 'calibration'?
        """
        from ..analysis.study_results import parsed

        if name not in RESULT_TABLES:
            raise UserError("table", f"unknown table {name!r}", did_you_mean(name, RESULT_TABLES))
        path = self.folder / f"{name}.csv"
        self._require(path)
        with readable(path, "table"):
            content = path.read_bytes()
        return parsed(name, content, path)

    def _require(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(path, "no such file", "score and report the study first")
        require([path])

    def _shown(self, name: str) -> pd.DataFrame:
        """Return the table `name` as the page shows it, with all cells as text."""
        path = self._files.table(name, "csv")
        self._require(path)
        return read_table(path, text=True)

    @functools.cached_property
    def scores(self) -> pd.DataFrame:
        """Every score: a row for each run, inference, site and metric, with `value` and `n`."""
        return self.table("scores")

    @functools.cached_property
    def summary(self) -> pd.DataFrame:
        """Means, deviations and intervals over seeds: a row for each condition, inference, site and metric."""
        return self.table("summary")

    @functools.cached_property
    def effects(self) -> pd.DataFrame:
        """A data frame with a level, gap or gain in each row, and its intervals over trainings and patients.

        A level is a score; a gap or loss is the mean of the internal sites minus a value of external ones; a gain is
        what an inference adds to the baseline inference.
        """
        return self.table("effects")

    @functools.cached_property
    def comparisons(self) -> pd.DataFrame:
        """Paired differences between conditions, with intervals and p values."""
        return self.table("comparisons")

    @functools.cached_property
    def comparison(self) -> pd.DataFrame:
        """Our numbers beside the published ones; without rows where the study names no published table."""
        return self.table("comparison")

    @functools.cached_property
    def overview(self) -> pd.DataFrame:
        """The page's first table, as text: a row for each condition and inference."""
        return self._shown("overview")

    @functools.cached_property
    def sites(self) -> pd.DataFrame:
        """The page's table of sites, as text: a row for each condition and site."""
        return self._shown("sites")

    @functools.cached_property
    def conditions(self) -> pd.DataFrame:
        """The page's table that compares conditions, as text."""
        return self._shown("conditions")

    @functools.cached_property
    def rounds(self) -> pd.DataFrame:
        """The rounds of all scored runs: run, seed, algorithm, bn, addon, held_out, and the columns of each run.

        They are read from the folders of the runs, in `../../runs` as seen from the study's folder.
        """
        import pandas as pd

        from ..jobs.record import read_rounds

        columns = ["run", "seed", *CONDITION]
        parts = []
        for row in self.scores.drop_duplicates("run")[columns].to_dict("records"):
            path = RunFiles(self.folder.parent.parent / "runs" / str(row["run"])).rounds
            require([path])
            parts.append(read_rounds(path).assign(**{str(name): value for name, value in row.items()}))
        rounds = pd.concat(parts, ignore_index=True)
        return rounds[[*columns, *(column for column in rounds if column not in columns)]]
