"""The images that a model gets most wrong at each site: the surest wrong predictions, and the worst masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..figures import Mistake, OutlinedImage, SiteMistakes, SiteOutlines
from ..figures._base import no_cases
from ..io.arrays import map_array
from ..io.images import decoded
from ..study.run import Run
from ..tasks.segmentation import COUNTS, NUMBERS, Segmentation, dice_of_images
from . import predictions
from .conditions import Condition
from .findings import Findings
from .predictions import Predictions, Samples


def surest_mistakes(findings: Findings, predicted: Predictions, samples: Samples, each: int) -> Iterator[SiteMistakes]:
    """Yield at most `each` mistakes of every external site: the wrong predictions with the highest probability.

    A site is predicted by the first condition of the study that is tested there, with the inference whose levels the
    page reports. Probabilities are means over the trainings whose predictions can be read; the predicted class is that
    with the highest mean. Nothing is yielded where the data are not images of two dimensions.
    """
    done = set[str]()
    for condition in findings.conditions:
        wanted = [s for s in condition.partition.external if s in condition.run.tested and s not in done]
        if not wanted:
            continue
        key = condition.level_inference
        tables = [table for _, table in predicted.readable(condition.runs.values(), key)]
        images = predicted.paths.data_files(condition.run.data.id).images
        if not tables or not images.exists() or (array := map_array(images)).ndim != 4:
            continue
        rows = pd.Index(samples(condition.run.data.id)["sample"])
        outside = _means([table[table["role"] == "external"] for table in tables])
        for site in wanted:
            part = outside[outside["site"] == site]
            if part.empty:
                continue
            done.add(site)
            wrong = part.loc[part["predicted"] != part["label"], ["sample", "label", "predicted", "probability"]]
            # equally confident ones by the name of the sample
            wrong = wrong.sort_values(["probability", "sample"], ascending=[False, True])
            # Of each training by itself, as the tables count: the mean probabilities make fewer mistakes.
            each_wrong = [_errors(table[(table["role"] == "external") & (table["site"] == site)]) for table in tables]
            shown = [
                Mistake(np.asarray(array[rows.get_loc(sample)]), label, predicted, probability)
                for sample, label, predicted, probability in wrong.head(each).itertuples(index=False, name=None)
            ]
            titles = findings.full(condition), findings.name(key)
            yield SiteMistakes(site, *titles, len(tables), round(float(np.mean(each_wrong))), len(part), tuple(shown))


def _means(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the mean probabilities of each sample over several tables, with the class that is predicted."""
    classes = predictions.probabilities(tables[0])
    both = pd.concat(tables).groupby(["site", "sample", "label"], sort=True, as_index=False)[classes].mean()
    shares = both[classes].to_numpy(dtype=float)
    return both.assign(predicted=shares.argmax(axis=1), probability=shares.max(axis=1))


def _errors(table: pd.DataFrame) -> int:
    """Return the number of wrong predictions of one training."""
    said = table[predictions.probabilities(table)].to_numpy(dtype=float).argmax(axis=1)
    return int((said != table["label"].to_numpy()).sum())


class _Predicted(NamedTuple):
    """A site, its role, and what predicts it."""

    site: str
    role: str
    condition: Condition
    run: Run
    key: str


def _sites(findings: Findings, predicted: Predictions, done: set[str]) -> Iterator[_Predicted]:
    """Yield every site with what predicts it: external sites, then internal ones.

    A site is yielded again, by another condition, until the caller adds it to `done`.

    A site is predicted by the first condition of the study that is tested there, with the inference whose levels the
    page reports, and by its first training whose predictions can be read. A site that is external in one partition and
    internal in another is shown as external.
    """
    for role in ("external", "internal"):
        for condition in findings.conditions:
            wanted = [s for s in getattr(condition.partition, role) if s in condition.run.tested and s not in done]
            if not wanted:
                continue
            key = condition.level_inference
            run = next((run for run, _ in predicted.by_site(condition.runs.values(), key)), None)
            if run is None:
                continue  # score() lists it in missing.json
            for site in wanted:
                yield _Predicted(site, role, condition, run, key)


def worst_masks(findings: Findings, predicted: Predictions, samples: Samples, each: int) -> Iterator[SiteOutlines]:
    """Yield at most `each` images of every site with the lowest Dice of the image; see `_sites`.

    Nothing is yielded for another task than segmentation.
    """
    task = findings.plan.study.task
    if not isinstance(task, Segmentation):
        return
    tables: dict[tuple[str, str], pd.DataFrame] = {}
    done = set[str]()
    for site, role, condition, run, key in _sites(findings, predicted, done):
        if (run.id, key) not in tables:
            table = predicted.masks(run, key)
            counts = _counts(table[task.columns(run.data.dataset.classes)].to_numpy(dtype=float))
            tables[run.id, key] = table.assign(dice=dice_of_images(counts))
        table = tables[run.id, key]
        part = table[(table["site"] == site) & (table["role"] == role)].dropna(subset="dice")
        if part["mask"].isna().all():
            continue
        done.add(site)
        shown = part.dropna(subset="mask").sort_values(["dice", "sample"])[:each]
        images = tuple(_outlined(shown, run, predicted, samples, task, key))
        titles = findings.full(condition), findings.name(key)
        yield SiteOutlines(site, role, *titles, run.seed, len(part), images)


def cases(findings: Findings, predicted: Predictions) -> pd.DataFrame:
    """Return every patient of each site that has a Dice; see `Results.cases` and `_sites`."""
    tables = [no_cases()]
    done = set[str]()
    sites = _sites(findings, predicted, done) if isinstance(findings.plan.study.task, Segmentation) else ()
    for site, role, _, run, key in sites:
        done.add(site)
        (part,) = (part for part in predicted.parts(run, key) if (part.site, part.role) == (site, role))
        counts = _counts(part.probability)
        tp, fp, fn = np.moveaxis(counts, -1, 0)
        missed, false_alarm = (tp + fn > 0) & (tp + fp == 0), (tp + fn == 0) & (fp > 0)
        columns = {"dice": dice_of_images(counts), "missed": missed.any(1), "false_alarm": false_alarm.any(1)}
        tables.append(pd.DataFrame({"role": role, "site": site, "case": part.samples, **columns}).dropna(subset="dice"))
    return pd.concat(tables[1:] or tables, ignore_index=True)


def _counts(numbers: np.ndarray) -> np.ndarray:
    """Return true positive, false positive and false negative pixels (n, structures, 3) of kept counts (n, columns)."""
    return numbers.reshape(len(numbers), -1, len(NUMBERS))[:, :, : len(COUNTS)]


def _outlined(
    shown: pd.DataFrame, run: Run, predicted: Predictions, samples: Samples, task: Segmentation, key: str
) -> Iterator[OutlinedImage]:
    """Yield each image with its reference and its predicted mask, by structure."""
    files = predicted.paths.data_files(run.data.id)
    images, masks = map_array(files.images), map_array(files.masks)
    rows = pd.Index(samples(run.data.id)["sample"]).get_indexer(shown["sample"])
    where = predicted.paths.predictions(run.id, predicted.plan.prediction_jobs[run.id])
    structures = task.scored(len(run.data.dataset.classes))
    for row, content, score in zip(rows, shown["mask"], shown["dice"], strict=True):
        both = [np.asarray(masks[row]), decoded(content, masks.shape[1:], where)]
        reference, found = (np.stack([np.isin(mask, classes) for classes in structures]) for mask in both)
        yield OutlinedImage(np.asarray(images[row]), reference, found, float(score))
