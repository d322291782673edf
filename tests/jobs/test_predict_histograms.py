"""Predictions of masks for `conformal`: histograms and validation images beside what is kept without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import disc_study
import numpy as np
import pandas as pd
from fake_study import predictions_of

from fedshift.io.tables import read_table
from fedshift.tasks.segmentation import THRESHOLDS

TRAINING = {"training": disc_study.STUDY["training"] | {"select": "last"}}
CHANGES: dict[str, Any] = {"conformal": {"alpha": 0.3}, **TRAINING}


def predicted(root: Path, **changes: Any) -> tuple[str, pd.DataFrame]:
    """The name of the file of the only run, and its content."""
    plan, paths = disc_study.finished(root, **changes)
    (run,) = plan.runs
    file = predictions_of(plan, paths, run)
    return file.name, read_table(file)


def test_histograms_hold_the_masks_of_the_most_probable_class(tmp_path: Path) -> None:
    """With two classes, the most probable one is the disc where its probability reaches 0.5."""
    name, table = predicted(tmp_path, **CHANGES)
    assert name.endswith("-validation.parquet")
    assert set(table.loc[table["split"] == "val", "site"]) == {"north", "south"}
    inside, outside = (np.array([*table[f"{place}_disc"]]) for place in ("inside", "outside"))
    assert inside.shape == outside.shape == (len(table), len(THRESHOLDS))
    assert (inside.sum(1) == table["tp_disc"] + table["fn_disc"]).all()
    assert (inside.sum(1) + outside.sum(1) == 16 * 16).all()
    half = int(np.flatnonzero(np.isclose(THRESHOLDS, 0.5))[0])
    assert (inside[:, half:].sum(1) == table["tp_disc"]).all()
    assert (outside[:, half:].sum(1) == table["fp_disc"]).all()
    assert table["tp_disc"].sum() > 0 and table["fn_disc"].sum() > 0


def test_without_conformal_predictions_keep_every_bit(tmp_path: Path) -> None:
    _, more = predicted(tmp_path / "with", **CHANGES)
    name, less = predicted(tmp_path / "without", **TRAINING)
    assert "validation" not in name and set(less["split"]) == {"test"}
    assert not [column for column in less if str(column).startswith(("inside", "outside"))]
    test = more[more["split"] == "test"].reset_index(drop=True)
    pd.testing.assert_frame_equal(test[less.columns], less, check_exact=True)
