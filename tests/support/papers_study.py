"""The invented study beside an invented table of a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_study
import pandas as pd
from scored_study import scored

from fedshift.analysis import published_values, score, trends
from fedshift.analysis.published_values import Values
from fedshift.analysis.published_words import Words
from fedshift.analysis.study_results import load
from fedshift.io.paths import Paths
from fedshift.io.tables import write_table
from fedshift.io.text import write_text
from fedshift.page import summary
from fedshift.study.plan import Plan

HEAD = "study,method,variant,site,metric,value,std\n"
WORDS: dict[str, Any] = {
    "FedBN": {"algorithm": "fedavg", "bn": "local"},
    "base": {"inference": "source"},
    "H4": {"site": "centre1"},
}


def by_seed(run, inference, site, role):  # type: ignore[no-untyped-def]
    """0.9 inside. Outside 0.5, 0.6, 0.7 over seeds; 0.2 more with TsmoBN, 0.1 more with local BN."""
    if role == "internal":
        return 0.9
    return 0.5 + 0.1 * run.seed + (0.2 if inference == "tsmobn" else 0) + (0.1 if run.bn == "local" else 0)


def table(root: Path, rows: str, name: str = "fake-table1") -> None:
    """Write a published table: `method,variant,site,value,std` a line."""
    lines = []
    for row in rows.split():
        method, variant, site, value, std = row.split(",")
        lines.append(f"{name},{method},{variant},{site},accuracy_percent,{value},{std}\n")
    write_text(root / "config" / "published" / f"{name}.csv", HEAD + "".join(lines))


def beside_paper(root: Path, rows: str = "", **changes: Any) -> tuple[Plan, Paths]:
    """Write all tables of the study, as if at scale paper with real data."""
    plan, paths = scored_beside(root, rows, **changes)
    summary.summarise(load(plan, paths))
    return plan, paths


def compared(root: Path, rows: str = "", **changes: Any) -> tuple[Plan, Paths]:
    """Write comparison.csv and trends.csv alone, as `beside_paper` does."""
    plan, paths = scored_beside(root, rows, **changes)
    results = load(plan, paths)
    words, values, files = Words(plan), Values(results), paths.study_files(plan.name)
    blind = score.blind(results.predictions, results.samples)
    write_table(files.result("comparison"), published_values.table(words, values))
    write_table(files.result("trends"), trends.table(words, values, blind))
    return plan, paths


def scored_beside(
    root: Path, rows: str, scale: Any = "paper", share_right: fake_study.ShareRight = by_seed, **changes: Any
) -> tuple[Plan, Paths]:
    """Write everything up to scores.csv of the study, as if at scale paper with real data."""
    if rows:
        table(root, rows)
        changes = {"published": {"tables": "fake-table1", "words": WORDS}} | changes
    plan, paths = scored(
        root, share_right, **({"synthetic": False, "figures": [], "metrics": ["accuracy", "brier"]} | changes)
    )
    plan.scale = scale
    return plan, paths


def read(plan: Plan, paths: Paths, name: str) -> pd.DataFrame:
    return score.read_table(paths.study(plan.name) / f"{name}.csv")
