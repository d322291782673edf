"""The invented study of `fake_study` with its scores and tables, each made once for the same arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_study
import once
from fake_study import ShareRight

from fedshift.analysis import score
from fedshift.analysis.results import load
from fedshift.io.paths import Paths
from fedshift.report import summary
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
