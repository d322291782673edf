"""Studies opened by name: their settings, their runs, and the results that exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..analysis.conditions import Condition, conditions
from ..core.errors import UserError, did_you_mean
from ..datasets import Scale
from ..io.paths import STUDIES, Paths
from ..io.project import inside
from ..study import plan as plans

if TYPE_CHECKING:
    import torch

    from ..study.run import Run
    from .runs import TrainedRun
    from .tables import StudyTables


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
    from .tables import StudyTables

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
    """A study at a scale. `load_study` opens one.

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
        """The conditions by their ids: runs that differ in their seed only."""
        return conditions(self.plan)

    def open_run(self, run: str, *, device: torch.device | str = "cpu") -> TrainedRun:
        """Open a trained run by its id; see `fedshift.open_run`. Raises UserError where it is not there."""
        from .runs import open_run

        if run not in self.runs:
            raise UserError(self.plan.label, f"has no run {run!r}", did_you_mean(run, self.runs))
        return open_run(Paths(self.root).run(run), device=device)

    def results(self) -> StudyTables:
        """Return the results of the study; see `fedshift.results`. Raises UserError where there are none."""
        from .tables import StudyTables

        folder = Paths(self.root).study(self.name)
        if not folder.is_dir():
            raise UserError(folder, "no such folder", "run the study first")
        return StudyTables(folder)
