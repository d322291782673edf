"""A control without a network: a linear classifier of a few numbers, on the partition of a study's runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core.console import say
from ..core.errors import UserError
from ..data.prepared import Prepared
from ..io.paths import Paths
from ..io.tables import read_table, write_table
from ..study.run import Run
from . import colour_texture, pixel_filters

if TYPE_CHECKING:
    import pandas as pd

# The modules are named here, and not imported by name, so that an edit in one of them runs the controls again.
WORKERS = {"colour_texture": colour_texture.predictions, "pixel_filters": pixel_filters.predictions}
"""What predicts the test images, by the name that a task gives its control."""


def control(run: Run, paths: Paths, out: Path) -> None:
    """Write `out`: sample, site, role, label, and the task's columns for the test images of all sites of the partition.

    Features of the training images of all internal sites together are standardised, and a logistic regression with an
    L2 penalty is fitted to them (scikit-learn). The penalty is the one of `linear_classifier.CS` with the least log
    loss on the validation images of the internal sites. Images are those that training reads, before the transforms of
    training. Every call writes the same. Raises UserError where the samples are not images.
    """
    prepared = Prepared(paths.data(run.data.id))
    if prepared.images.ndim != 4:
        raise UserError(prepared.folder, "holds no images, so it has no control", "set control: false in the study")
    partition = read_table(paths.partition(run.partition_id))
    rows = prepared.rows(partition)
    split = partition["split"].to_numpy()
    train, val, test = (split == name for name in ("train", "val", "test"))
    task = run.data.task
    values, facts = WORKERS[task.control.worker](task, prepared, rows[train], rows[val], rows[test])
    table: pd.DataFrame = partition.loc[test, ["sample", "site", "role"]].reset_index(drop=True)
    label = prepared.samples["label"].to_numpy()[rows[test]].astype(np.int64)
    columns = task.columns(run.data.dataset.classes)
    table = table.assign(label=label, **dict(zip(columns, values.T, strict=True)))
    table.attrs = {**facts, "partition": run.partition_id}
    write_table(out, table)
    chosen = ", ".join(f"{name} = {value:g}" for name, value in facts.items())
    say(f"control: {train.sum()} images to train on, {chosen}")
