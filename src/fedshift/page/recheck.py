"""Checks that a study's results agree with one another, by computing derived files again and comparing them.

A checksum shows that a file is as it was recorded. It cannot show that somebody changed the file and recorded a new
checksum.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..analysis.divergence import unasked
from ..analysis.predictions import SPLITS, Missing, Predictions
from ..analysis.score import COLUMNS, score
from ..analysis.study_results import draw, load
from ..core.errors import UserError, UserErrors
from ..data.prepared import read_partition, read_samples
from ..io.arrays import map_array
from ..io.paths import Paths
from ..io.tables import read_table
from ..io.text import read_json, readable
from ..jobs.prepare import seen
from ..planning.call import outputs
from ..study.plan import Plan
from ..study.run import Data
from .page import write
from .summary import summarise

Fault = tuple[Path, str]
"""The path of a file, and what is wrong with it."""
RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""Tolerances of comparisons: sums over samples may differ in their last digits on another machine."""
UNCHECKED = ("control", "ledger", "divergence")
"""Workflow rules whose files enter the tables, figures and page, but are not recomputed themselves."""
OTHER = "is not what the results give: it was changed, or another version of fedshift made it"
"""What is wrong with a table, figure or page that differs from the recomputed one."""


@dataclass(frozen=True)
class _Apart(Paths):
    """The files of a project, with tables, figures and pages replaced by those of a temporary folder."""

    apart: Path = Path()

    def study(self, study: str) -> Path:
        return self.apart / study

    def page(self, study: str) -> Path:
        return self.apart / f"{study}.html"


def disagreements(plan: Plan, paths: Paths) -> dict[Path, str]:
    """Map each file that disagrees with the files it is made from to what is wrong with it; empty if all agree.

    These steps are repeated: digests of image pixels; the assignment of samples to sites and splits; labels of
    predictions; scores from predictions; tables, figures and the page from scores. Rows of divergence.csv are only
    compared with the study. If two files disagree and either may be wrong, both are named. The first step that finds a
    fault ends the check, since all later steps build on its files.
    """
    with tempfile.TemporaryDirectory() as folder:
        for check in (_pixels, _partitions, _labels, _scores, _divergence, _reported):
            found: dict[Path, str] = {}
            for file, what in _faults(check, plan, _Apart(paths.root, Path(folder)), paths):
                found.setdefault(file, what)
            if found:
                return found
    return {}


def _faults(
    check: Callable[[Plan, _Apart, Paths], Iterator[Fault]], plan: Plan, anew: _Apart, paths: Paths
) -> Iterator[Fault]:
    """Yield the faults that a check finds. A file that cannot be read is a fault, too.

    `anew` has the paths of recomputed files, and `paths` those of the recorded ones.
    """
    try:
        yield from check(plan, anew, paths)
    except UserErrors as several:
        yield from ((Path(error.where), error.what) for error in several.errors)
    except UserError as error:
        yield Path(error.where), error.what


def _pixels(plan: Plan, anew: _Apart, paths: Paths) -> Iterator[Fault]:
    for data in plan.data:
        files = paths.data_files(data)
        if not (files.images.exists() and files.pixels.exists()):
            continue
        kept = read_table(files.pixels)
        right = pd.DataFrame(map(seen, map_array(files.images)), columns=["pixels", "flat", "grey", "look"])
        columns = [column for column in right if column in kept]
        if any(right[column].tolist() != kept[column].tolist() for column in columns):
            yield files.images, "does not agree with pixels.parquet: one of the two was changed"
            yield files.pixels, "does not follow from the images"


def _partitions(plan: Plan, anew: _Apart, paths: Paths) -> Iterator[Fault]:
    for run in {run.partition_id: run for run in plan.runs.values()}.values():
        file, samples = paths.partition(run.partition_id), paths.data_files(run.data.id).samples
        if not (file.exists() and samples.exists()):
            continue
        table = read_samples(samples)
        try:
            right = run.partition.assign(table).astype(str)
        except UserError as error:
            yield samples, f"cannot be split as the partition records it: {error.what}"
            continue
        if not right.equals(read_partition(file).astype(str)[right.columns]):
            yield samples, "does not agree with the partition: one of the two was changed"
            yield file, "does not follow from the samples: a sample has another site, role or split"


def _labels(plan: Plan, anew: _Apart, paths: Paths) -> Iterator[Fault]:
    for data in plan.data.values():
        samples = paths.data_files(data.id).samples
        if not samples.exists():
            continue
        labels = read_samples(samples).set_index("sample")["label"]
        compared = dict(_relabelled(plan, paths, data, labels))
        wrong = {file: what for file, what in compared.items() if what}
        # Where all predictions have other labels, it may be the samples that were changed.
        if wrong and len(wrong) == len(compared):
            yield samples, "has other labels than all predictions: one of the two was changed"
        yield from wrong.items()


def _relabelled(plan: Plan, paths: Paths, data: Data, labels: pd.Series) -> Iterator[Fault]:
    """Yield each file of predictions for `data`, with what is wrong with its labels, or ''.

    The text names the first inference method whose labels differ from those of the samples. `labels` are the labels of
    the samples, indexed by sample.
    """
    for name, run in plan.runs.items():
        file = paths.predictions(name, plan.prediction_jobs[name])
        if run.data.id != data.id or not file.exists():
            continue
        predicted, wrong = Predictions(plan, paths), ""
        for key in plan.predictions(name):
            for split in SPLITS:
                try:
                    parts = predicted.parts(run, key, split)
                except Missing:  # `verify` names those of test images; validation images may be left out
                    continue
                if any((labels.reindex(part.samples).to_numpy() != part.label).any() for part in parts):
                    wrong = wrong or f"{key}: a label differs from the samples"
        yield file, wrong


def _scores(plan: Plan, anew: _Apart, paths: Paths) -> Iterator[Fault]:
    files = paths.study_files(plan.name)
    if not files.scores.exists():
        return
    right, found = read_table(score(plan, anew)), read_table(files.scores)
    if files.missing.exists() and read_json(files.missing) != read_json(anew.study_files(plan.name).missing):
        yield files.missing, "does not follow from the predictions: it lists others than those that cannot be scored"
    if _same(found, right):
        return
    runs = _other_scores(found, right)
    of = f", of run {runs[0]}" if len(runs) == 1 else f", of {len(runs)} runs" if runs else ""
    yield files.scores, f"does not follow from the predictions: a score differs{of}"
    for name in runs:
        file = paths.predictions(name, plan.prediction_jobs[name]) if name in plan.runs else files.scores
        if file.exists():
            yield file, "gives scores that differ from scores.csv: one of the two was changed"


def _divergence(plan: Plan, anew: _Apart, paths: Paths) -> Iterator[Fault]:
    file = paths.study_files(plan.name).divergence
    if file.exists() and (row := unasked(plan, read_table(file))):
        yield file, f"has a row that does not follow from the study, or has it twice: {row}"


def _same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Return True if two tables are equal, up to the last digits of their numbers."""
    try:
        pd.testing.assert_frame_equal(one, other, check_exact=False, rtol=RELATIVE, atol=ABSOLUTE)
    except AssertionError:
        return False
    return True


def _other_scores(one: pd.DataFrame, other: pd.DataFrame) -> list[str]:
    """Return the runs whose scores differ between two tables; empty if only the form of the tables differs."""
    keys = [column for column in COLUMNS if column not in ("value", "n")]
    if not {*COLUMNS} <= {*one.columns}:
        return []
    sides = [table[COLUMNS].astype(dict.fromkeys(keys, str)) for table in (one, other)]
    rows = sides[0].merge(sides[1], "outer", keys, indicator=True)
    same = rows["_merge"] == "both"
    for column in ("value", "n"):
        first, second = (pd.to_numeric(rows[f"{column}_{side}"], errors="coerce") for side in "xy")
        same &= np.isclose(first, second, RELATIVE, ABSOLUTE, equal_nan=True)
    return list(dict.fromkeys(rows.loc[~same, "run"]))


def _reported(plan: Plan, anew: _Apart, paths: Paths) -> Iterator[Fault]:
    """Yield the tables, figures and page that differ from recomputed ones.

    Traffic, controls and feature divergence are not recomputed: if anything differs, their files are yielded as well.
    `anew` has the paths of the recomputed files.
    """
    files, new = paths.study_files(plan.name), anew.study_files(plan.name)
    if not paths.page(plan.name).exists():
        return
    for file in (files.scores, files.missing, files.ledger, files.divergence):
        if file.exists():
            shutil.copyfile(file, new.folder / file.name)
    results = load(plan, anew)
    summarise(results)
    for name in plan.figures:
        draw(results, name)
    write(results)
    pairs = [(paths.page(plan.name), anew.page(plan.name)), *zip(files.reported, new.reported, strict=True)]
    pairs += [(files.figure(name), new.figure(name)) for name in plan.figures]
    wrong = [file for file, right in pairs if file.exists() and not _alike(file, right)]
    yield from ((file, OTHER) for file in wrong)
    for job in outputs(plan, paths):
        if wrong and job.rule in UNCHECKED:
            yield from ((file, "was not computed again, and may be the file that was changed") for file in job.files)


def _alike(file: Path, right: Path) -> bool:
    """Return True if two files agree: tables up to the last digits of numbers, other files byte by byte."""
    with readable(file, "result"):
        if file.read_bytes() == right.read_bytes():
            return True
    try:
        return file.suffix in (".csv", ".parquet") and _same(read_table(file), read_table(right))
    except UserError:
        return False
