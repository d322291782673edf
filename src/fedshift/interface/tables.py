"""The tables of a study's results, as data frames."""

from __future__ import annotations

import functools
from pathlib import Path

import pandas as pd

from ..analysis.conditions import CONDITION
from ..analysis.results import parsed
from ..core.errors import UserError, did_you_mean
from ..io.checksums import require
from ..io.paths import RunFiles, StudyFiles
from ..io.result_tables import RESULT_TABLES
from ..io.tables import read_table
from ..io.text import readable
from ..jobs.round_log import read_rounds


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
        """Return a table for people, whose cells are text."""
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
        """Levels, gaps and gains with their intervals over trainings and patients."""
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

        They are read from `../../runs` beside the study's folder.
        """
        columns = ["run", "seed", *CONDITION]
        parts = []
        for row in self.scores.drop_duplicates("run")[columns].to_dict("records"):
            path = RunFiles(self.folder.parent.parent / "runs" / str(row["run"])).rounds
            require([path])
            parts.append(read_rounds(path).assign(**{str(name): value for name, value in row.items()}))
        rounds = pd.concat(parts, ignore_index=True)
        return rounds[[*columns, *(column for column in rounds if column not in columns)]]
