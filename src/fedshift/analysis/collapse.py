"""Signs that test-time adaptation failed at a site, such as collapse into one class: collapse.csv."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import entr

from ..inferences import Inference
from ..io.paths import IDS, INFERENCE
from ..study.run import Run
from .conditions import CONDITION, plain
from .numbers import Names
from .predictions import Part, Predictions

MEASURES = ("spread", "spread_source", "top_share", "entropy", "agreement")
"""Columns of collapse.csv that describe the predictions at a site, each from 0 to 1 (see `table`)."""
COUNTS = ("seen", "kept", "augmented", "steps", "resets", "asked")
"""Columns of collapse.csv with what an inference may count at a site, such as `steps`, its optimiser steps."""
COLUMNS = [*IDS, *CONDITION, "role", "site", *INFERENCE, "run", "seed", "n", *MEASURES]
COLUMNS += ["first_batch", "collapsed", *COUNTS]
SPREAD, SHARE, SHARE_OF_TWO = 0.5, 0.9, 0.95
"""Limits for `collapsed`, as ratio of spreads and as share of one class, the last for studies with two classes."""
WINDOW, CERTAIN = 20, 0.95
"""The number of batches that `first_batch` joins, and the share of one class above which they count as collapsed."""


def spread(p: np.ndarray) -> float:
    """Return the entropy of the mean prediction over ln K: 0 if all are one class, 1 if all classes are as frequent.

    `p` (n, K) are the predicted probabilities of n images and K classes.
    """
    return float(entr(p.mean(0)).sum() / math.log(p.shape[1]))


def entropy(p: np.ndarray) -> float:
    """Return the mean over images of the entropy of their predictions over ln K, from 0 (certain) to 1 (no idea).

    `p` (n, K) are the predicted probabilities of n images and K classes.
    """
    return float(entr(p).sum(1).mean() / math.log(p.shape[1]))


def top_share(predicted: np.ndarray) -> float:
    """Return the share of the class that is predicted most often. `predicted` (n,) are the predicted classes."""
    return float(np.bincount(predicted).max() / len(predicted))


def collapsed(one: float, source: float, share: float, classes: int) -> bool | None:
    """Return whether the predictions of a site collapsed into one class.

    Two things must hold. First, `one`, the spread of the predictions (the entropy of their mean), is below half of
    `source`, the spread of the baseline inference. Second, `share`, the share of the most predicted class, is above
    0.9, or above 0.95 with two `classes`. A low entropy of single predictions is no criterion, since a successful
    adaptation lowers it too. Return None if the spread of the baseline is not known (NaN).
    """
    if math.isnan(source):
        return None
    return one < SPREAD * source and share > (SHARE_OF_TWO if classes == 2 else SHARE)


def first_batch(predicted: np.ndarray, batch_size: int) -> float:
    """Return the number, from 1, of the first batch that ends a run of 20 batches with mostly one class; else NaN.

    Mostly means that more than 95% of the predictions in these batches are of one class. `predicted` (n,) are the
    predicted classes in the order in which images were predicted.
    """
    batch = np.arange(len(predicted)) // batch_size
    counts = np.zeros((batch[-1] + 2, predicted.max() + 1))
    np.add.at(counts, (batch + 1, predicted), 1)
    sums = counts.cumsum(0)  # row k counts the predictions of all batches before batch k, from 0
    windows = sums[WINDOW:] - sums[:-WINDOW]
    ends = np.flatnonzero(windows.max(1) > CERTAIN * windows.sum(1))
    return float(ends[0] + WINDOW) if len(ends) else math.nan


def table(names: Names, predicted: Predictions) -> pd.DataFrame:
    """Return collapse.csv: a row for each run, site and inference other than the baseline, from stored predictions.

    `spread` is the entropy of the mean prediction, and `spread_source` the same of the baseline inference; `entropy` is
    the mean entropy, all three over ln K for K classes. `top_share` is the share of the most predicted class, and
    `agreement` the share of images to which the baseline gives the same class. `first_batch` and `collapsed` are the
    results of the functions with these names. COUNTS are numbers that the inference counted: images that it saw, used
    for adaptation and augmented, its steps and resets, and the floats that it asked of each internal site. Unknown
    values are empty.
    """
    rows = []
    for condition in names.conditions.values() if names.plan.study.task.has_probabilities else ():
        ids = {"condition_id": condition.id}
        for run in condition.runs.values():
            rows += [ids | row for row in _of_run(predicted, run, condition.inferences)]
    return names.table(rows, COLUMNS).astype(dict.fromkeys(("collapsed", *COUNTS), "Int64"))


def _of_run(predicted: Predictions, run: Run, inferences: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the rows of collapse.csv of one run: one for each site and each of `inferences` that has predictions.

    The baseline inference has no rows, since the others are compared with it.
    """
    plan = predicted.plan
    tables = {key: parts for key in inferences for _, parts in predicted.by_site([run], key)}
    source = tables.pop(plain(plan) or "", None)
    if not tables:
        return
    stored = pd.Index(predicted.partition(run.partition_id)["sample"].astype(str))
    for key, parts in tables.items():
        for part in parts:
            before = None if source is None else _baseline(part, source)
            place = {"inference_id": key, "role": part.role, "site": part.site, "run": run.id, "seed": run.seed}
            counted = {name: int(part.counted[name]) for name in COUNTS if name in part.counted}
            yield place | _measured(part.probability, before) | counted | _found(part, stored, plan.inferences[key])


def _baseline(part: Part, source: list[Part]) -> np.ndarray:
    """Return the probabilities (n, classes) that the baseline gives to the samples of `part`, a site's predictions.

    `source` holds the baseline's predictions of all sites. Rows are in the order of the samples of `part`.
    """
    at_site = next(one for one in source if one.site == part.site)
    if at_site.samples is part.samples:
        return at_site.probability
    return at_site.probability[at_site.samples.get_indexer(part.samples)]


def _measured(p: np.ndarray, before: np.ndarray | None) -> dict[str, Any]:
    """Return the columns of collapse.csv that describe predictions at a site: their number, MEASURES and `collapsed`.

    `p` (n, classes) are the predicted probabilities, and `before` the baseline's for the same images, None if unknown.
    """
    predicted = p.argmax(1)
    source = math.nan if before is None else spread(before)
    one = spread(p)
    share = top_share(predicted)
    return {
        "n": len(p),
        "spread": one,
        "spread_source": source,
        "top_share": share,
        "entropy": entropy(p),
        "agreement": math.nan if before is None else float((before.argmax(1) == predicted).mean()),
        "collapsed": collapsed(one, source, share, p.shape[1]),
    }


def _found(part: Part, stored: pd.Index, inference: Inference) -> dict[str, float]:
    """Return the column `first_batch` of a site's predictions; NaN for an inference that adapts to labelled images.

    Such images are left out of the predictions, so that the order of the batches is not known. `stored` are the names
    of all samples in the order of the partition.
    """
    if inference.uses_labels:
        return {"first_batch": math.nan}
    predicted = part.probability.argmax(1)[np.argsort(stored.get_indexer(part.samples))]
    return {"first_batch": first_batch(predicted[inference.image_order(len(predicted))], inference.batch_size)}
