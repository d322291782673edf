"""The invented study of `fake_study` with prediction sets, whose probabilities are known by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
from scored_study import results_of

from fedshift.analysis.study_results import StudyResults
from fedshift.study.plan import Run

SPLIT = {"train": 0.5, "val": 0.3, "test": 0.2}
RIGHT = {"centre0": 0.8, "centre3": 0.6}
"""The probability that internal sites give to the right class."""


def one_class(table: pd.DataFrame) -> pd.DataFrame:
    """Every second patient is ill, in all images."""
    return table.assign(label=table["patient"].str.rpartition("/")[2].astype(int) % 2)


def probable(table: pd.DataFrame) -> pd.Series:
    """The probability of the right class: outside 0.7 for three patients of four, and 0.3 for the fourth."""
    outside = np.where(table["sample"].str.split("/").str[1].astype(int) % 4 < 3, 0.7, 0.3)
    return table["site"].map(RIGHT).fillna(pd.Series(outside, table.index))


def predict(table: pd.DataFrame, run: Run, *_: Any) -> pd.DataFrame:
    p1 = np.where(table["label"] == 1, probable(table), 1 - probable(table))
    return table.assign(p0=1 - p1, p1=p1)[["sample", "site", "role", "label", "p0", "p1"]]


def made(
    root: Path, monkeypatch: pytest.MonkeyPatch, patients: int = 40, change: Any = one_class, **more: Any
) -> StudyResults:
    """A study of `patients` patients with two images each at two sites inside and one outside."""
    monkeypatch.setattr(fake_study, "PATIENTS", patients)
    monkeypatch.setattr(fake_study, "PER_PATIENT", 2)
    monkeypatch.setattr(fake_study, "predict", predict)
    settings: dict[str, Any] = {
        "runs": [{"algorithm": "fedavg"}],
        "seeds": [0, 1],
        "inferences": ["source"],
        "figures": [],
        "partition": {"internal": fake_study.INTERNAL, "external": ["centre1"], "split": SPLIT},
        "training": {"rounds": 4, "select": "last"},
        "conformal": {"alpha": 0.1},
    }
    return results_of(root, change=change, **settings | more)
