"""The images whose masks are predicted worst, at each site."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..figures import OutlinedImage, SiteOutlines
from ..io.arrays import map_array
from ..io.png import decoded
from ..study.run import Run
from ..tasks.segmentation import COUNTS, NUMBERS, Segmentation, dice_of_images
from .findings import Findings
from .predictions import Missing, Predictions, Samples


def worst(findings: Findings, predicted: Predictions, samples: Samples, each: int) -> Iterator[SiteOutlines]:
    """Yield at most `each` images of every site with the lowest Dice of the image: external sites, then internal ones.

    A site is predicted by the first condition of the study that is tested there, with the inference whose levels the
    page reports, and by its first training whose predictions can be read. A site that is external in one partition and
    internal in another is shown as external. Nothing is yielded for another task than segmentation.
    """
    task = findings.plan.study.task
    if not isinstance(task, Segmentation):
        return
    done = set[str]()
    for role in ("external", "internal"):
        for condition in findings.conditions:
            wanted = [s for s in getattr(condition.partition, role) if s in condition.run.tested and s not in done]
            if not wanted:
                continue
            key = findings.level_inference(condition)
            for run in condition.runs.values():
                try:
                    table = predicted.masks(run, key)
                except Missing:
                    continue  # score() lists it in missing.json
                break
            else:
                continue
            counts = table[task.columns(run.data.dataset.classes)].to_numpy(dtype=float)
            counts = counts.reshape(len(table), -1, len(NUMBERS))[:, :, : len(COUNTS)]
            table = table.assign(dice=dice_of_images(counts))
            for site in wanted:
                part = table[(table["site"] == site) & (table["role"] == role)].dropna(subset="dice")
                if part["mask"].isna().all():
                    continue
                done.add(site)
                shown = part.dropna(subset="mask").sort_values(["dice", "sample"])[:each]
                images = tuple(_outlined(shown, run, predicted, samples, task, key))
                titles = findings.full(condition), findings.name(key)
                yield SiteOutlines(site, role, *titles, run.seed, len(part), images)


def _outlined(
    shown: pd.DataFrame, run: Run, predicted: Predictions, samples: Samples, task: Segmentation, key: str
) -> Iterator[OutlinedImage]:
    """Yield each image with its reference and its predicted mask, by structure."""
    files = predicted.paths.data_files(run.data.id)
    images, masks = map_array(files.images), map_array(files.masks)
    rows = pd.Index(samples(run.data.id)["sample"]).get_indexer(shown["sample"])
    where = predicted.paths.predictions(run.id, predicted.plan.predictions(run.id)[key])
    structures = task.scored(len(run.data.dataset.classes))
    for row, content, score in zip(rows, shown["mask"], shown["dice"], strict=True):
        both = [np.asarray(masks[row]), decoded(content, masks.shape[1:], where)]
        reference, found = (np.stack([np.isin(mask, classes) for classes in structures]) for mask in both)
        yield OutlinedImage(np.asarray(images[row]), reference, found, float(score))
