"""Invented predictions of several conditions, whose right answers are counted patient by patient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
from scored_study import results_of

from fedshift.analysis.study_results import StudyResults
from fedshift.study.plan import Run

METHODS = ("fedavg", "fedprox", "scaffold", "feddyn", "fednova", "fedadam", "moon", "feddc", "fedavg_alg2")
Right = Callable[[Run, str, int], int]
"""The number of right answers at a site for a patient: the first ones are right."""


def predict(monkeypatch: pytest.MonkeyPatch, right: Right, patients: int, samples: int) -> None:
    """Let every site have so many patients with so many samples each, of which the first ones are right."""

    def made(table: pd.DataFrame, run: Run, *_: Any) -> pd.DataFrame:
        number = table["patient"].str.rsplit("/", n=1).str[1].astype(int)
        count = [right(run, site, patient) for site, patient in zip(table["site"], number, strict=True)]
        correct = table.groupby("patient").cumcount() < np.array(count)
        table = table.assign(p1=np.where(correct == (table["label"] == 1), 0.8, 0.2))
        return table.assign(p0=1 - table["p1"])[["sample", "site", "role", "label", "p0", "p1"]]

    monkeypatch.setattr(fake_study, "PATIENTS", patients)
    monkeypatch.setattr(fake_study, "PER_PATIENT", samples)
    monkeypatch.setattr(fake_study, "predict", made)


def compared(
    root: Path, methods: Sequence[str] = METHODS[:2], external: Sequence[str] = ("x",), **changes: Any
) -> StudyResults:
    """Return the results of conditions that differ in their algorithm."""
    settings: dict[str, Any] = {
        "runs": [{"algorithm": list(methods), "bn": "aggregated"}],
        "partition": {"internal": ["a"], "external": list(external), "split": {"train": 0.4, "val": 0.1, "test": 0.5}},
        "inferences": ["source"],
        "metrics": ["accuracy"],
        "figures": [],
    }
    return results_of(root, **settings | changes)
