"""The invented study of `fake_study` with its scores and tables, each made once for the same arguments."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import fake_study
import once
from fake_study import ShareRight

from fedshift.analysis import score
from fedshift.analysis.findings import Findings
from fedshift.analysis.study_results import StudyResults, draw, load
from fedshift.io.paths import SUMMARISED, Paths
from fedshift.io.tables import write_table
from fedshift.page import page, summary
from fedshift.study.plan import Plan


def scored(root: Path, share_right: ShareRight = fake_study.helps, **changes: Any) -> tuple[Plan, Paths]:
    """Write everything up to scores.csv; see `fake_study.build`."""

    def make(folder: Path) -> None:
        score.score(*fake_study.build(folder, share_right, **changes))

    plan = fake_study.plan(root, **fake_study.of_study(changes))
    once.written(root, (share_right, fake_study.of_scores(changes), fake_study.state()), make)
    return plan, Paths(root)


def summarised(root: Path, share_right: ShareRight = fake_study.helps, **changes: Any) -> tuple[Plan, Paths]:
    """Write everything up to the tables for people; see `fake_study.build`."""

    def make(folder: Path) -> None:
        summary.summarise(load(*scored(folder, share_right, **changes)))

    plan = fake_study.plan(root, **fake_study.of_study(changes))
    once.written(root, (share_right, changes, fake_study.state()), make)
    return plan, Paths(root)


class _MadeWhenAsked(StudyResults):
    """Results of which each table is written when it is first asked for, since few tests ask for all."""

    @functools.cached_property
    def _inputs(self) -> summary.Inputs:
        return summary.Inputs(self)

    def content(self, name: str) -> bytes:
        """Return the bytes of a file of the study's folder."""
        for table in SUMMARISED:
            path = self.files.result(table.name)
            if path.name == name and not path.exists():
                write_table(path, self._inputs.asked(table, "table"))
        return super().content(name)

    @functools.cached_property
    def findings(self) -> Findings:
        """The numbers of the study, from numbers.parquet."""
        if not self.files.numbers.exists():
            write_table(self.files.numbers, self._inputs.numbers.frame)
        return super().findings


def results_of(root: Path, share_right: ShareRight = fake_study.helps, **changes: Any) -> StudyResults:
    """Return results of which no table is written yet but scores.csv; see `fake_study.build`."""
    return _MadeWhenAsked(*scored(root, share_right, **changes))


def reported(root: Path, share_right: ShareRight = fake_study.helps, **changes: Any) -> tuple[Plan, Paths, str]:
    """Write everything up to the page, and return the page, too; see `fake_study.build`."""
    plan, paths = scored(root, share_right, **changes)
    return plan, paths, page_of(plan, paths)


def page_of(plan: Plan, paths: Paths) -> str:
    """Write tables, figures and page of a study with scores, as `fedshift report` does, and return the page."""
    results = load(plan, paths)
    summary.summarise(results)
    for name in plan.figures:
        draw(results, name)
    return page.write(results).read_text(encoding="utf-8")
