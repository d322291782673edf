"""Whether the tables of a study agree with one another: what follows from other files is made again and compared.

A checksum tells that a file is as it was recorded. It cannot tell that somebody changed the file and recorded it anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from ..analysis.predictions import SPLITS, Missing, Predictions
from ..analysis.score import score
from ..core.errors import UserError
from ..data.prepared import read_partition, read_samples
from ..io.paths import Paths
from ..io.tables import read_table
from ..study.plan import Plan


def disagreements(plan: Plan, paths: Paths) -> Iterator[tuple[Path, str]]:
    """Yield each file that does not follow from the files before it, with what is wrong.

    Partitions are assigned again from the samples, which finds a patient in two splits; labels of predictions are
    compared with the samples; and scores are computed again from predictions. Files that are not there are left out.
    """
    for check in (_partitions, _labels, _scores):
        try:
            yield from check(plan, paths)
        except UserError as error:
            yield Path(error.where), error.what


def _partitions(plan: Plan, paths: Paths) -> Iterator[tuple[Path, str]]:
    for run in {run.partition_id: run for run in plan.runs.values()}.values():
        file, samples = paths.partition(run.partition_id), paths.data_files(run.data.id).samples
        if not (file.exists() and samples.exists()):
            continue
        right, found = (t.astype(str) for t in (run.partition.assign(read_samples(samples)), read_partition(file)))
        if not right.equals(found[right.columns]):
            yield file, "does not follow from the samples: a sample has another site, role or split"


def _labels(plan: Plan, paths: Paths) -> Iterator[tuple[Path, str]]:
    predicted = Predictions(plan, paths)
    for name, run in plan.runs.items():
        samples = paths.data_files(run.data.id).samples
        if not samples.exists():
            continue
        labels = read_samples(samples).set_index("sample")["label"]
        for key in plan.predictions(name):
            for split in SPLITS:
                try:
                    parts = predicted.parts(run, key, split)
                except Missing:  # `score` lists them
                    continue
                if any((labels.reindex(part.samples).to_numpy() != part.label).any() for part in parts):
                    yield (
                        paths.predictions(name, plan.prediction_jobs[name]),
                        f"{key}: a label is another than in the samples",
                    )


def _scores(plan: Plan, paths: Paths) -> Iterator[tuple[Path, str]]:
    file = paths.study_files(plan.name).scores
    if not file.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        right = read_table(score(plan, paths, Path(folder, "scores.csv")))
    found = read_table(file)
    try:
        # Sums over samples may differ in their last digits on another machine.
        pd.testing.assert_frame_equal(found, right, check_exact=False, rtol=1e-9, atol=1e-12)
    except AssertionError:
        yield file, "does not follow from the predictions: a score is another one"
