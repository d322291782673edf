"""Effects of test-time adaptation at each site: collapse into one class, and the images that were kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import entr

from ..inferences import Inference
from ..study.run import Run
from .conditions import CONDITION, plain
from .numbers import IDS, Names
from .predictions import INFERENCE, Part, Predictions

MEASURES = ("spread", "spread_source", "top_share", "entropy", "agreement")
"""The numbers of a site that are not counts; each from 0 to 1."""
COUNTS = ("seen", "kept", "augmented", "steps", "resets", "asked")
"""Names of the counts that inferences may report for a site."""
COLUMNS = [*IDS, *CONDITION, "role", "site", *INFERENCE, "run", "seed", "n", *MEASURES]
COLUMNS += ["first_batch", "collapsed", *COUNTS]
SPREAD, SHARE, SHARE_OF_TWO = 0.5, 0.9, 0.95
"""Collapsed: a spread below this part of the baseline's, and a larger share of one class; the last with two classes."""
WINDOW, CERTAIN = 20, 0.95
"""Batches that are looked at together, and the share of one class from which they count as collapsed."""


def spread(p: np.ndarray) -> float:
    """Return the entropy of the mean of probabilities (n, classes), as a share of ln K: 0 is one class, 1 all alike."""
    return float(entr(p.mean(0)).sum() / math.log(p.shape[1]))


def entropy(p: np.ndarray) -> float:
    """Return the mean entropy of probabilities (n, classes), as a share of ln K."""
    return float(entr(p).sum(1).mean() / math.log(p.shape[1]))


def top_share(predicted: np.ndarray) -> float:
    """Return the share of the most predicted class among predicted classes (n,)."""
    return float(np.bincount(predicted).max() / len(predicted))


def collapsed(one: float, source: float, share: float, classes: int) -> bool | None:
    """Return whether predictions collapsed: their spread `one`, the baseline's, and the share of the commonest class.

    Both conditions must hold: a spread below half of the baseline's, and a share above 0.9, or 0.95 with two classes.
    Low entropy is not a criterion, since entropy falls in success, too. None where the baseline's spread is not known.
    """
    if math.isnan(source):
        return None
    return one < SPREAD * source and share > (SHARE_OF_TWO if classes == 2 else SHARE)


def first_batch(predicted: np.ndarray, batch_size: int) -> float:
    """Return the first batch, from 1, that ends WINDOW batches with a share above CERTAIN of one class; else NaN.

    `predicted` (n,) are the predicted classes in the order in which they were predicted.
    """
    batch = np.arange(len(predicted)) // batch_size
    counts = np.zeros((batch[-1] + 2, predicted.max() + 1))
    np.add.at(counts, (batch + 1, predicted), 1)
    sums = counts.cumsum(0)
    windows = sums[WINDOW:] - sums[:-WINDOW]
    ends = np.flatnonzero(windows.max(1) > CERTAIN * windows.sum(1))
    return float(ends[0] + WINDOW) if len(ends) else math.nan


def table(names: Names, predicted: Predictions) -> pd.DataFrame:
    """Return collapse.csv: a row for each run, site and inference but the baseline, from predictions alone.

    `spread` (of the baseline: `spread_source`) is the entropy of the mean prediction and `entropy` the mean entropy, as
    shares of ln K; `top_share` is the share of the most predicted class, and `agreement` that of images with the
    baseline's class. For `first_batch` and `collapsed` see there. COUNTS are what the inference counted: images that it
    saw, kept and augmented, its steps and resets, and the floats that it asked of each internal site. What is not known
    is empty.
    """
    rows = []
    for condition in names.conditions.values() if names.plan.study.task.has_probabilities else ():
        ids = {"condition_id": condition.id}
        for run in condition.runs.values():
            rows += [ids | row for row in _of_run(predicted, run, condition.inferences)]
    return names.table(rows, COLUMNS).astype(dict.fromkeys(("collapsed", *COUNTS), "Int64"))


def _of_run(predicted: Predictions, run: Run, inferences: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the rows of collapse.csv of one run: one for each inference that was predicted, and each site."""
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
    """Return the probabilities (n, classes) that the baseline gives to the samples of a site's predictions."""
    at_site = next(one for one in source if one.site == part.site)
    if at_site.samples is part.samples:
        return at_site.probability
    return at_site.probability[at_site.samples.get_indexer(part.samples)]


def _measured(p: np.ndarray, before: np.ndarray | None) -> dict[str, Any]:
    """Return the number of images, MEASURES and `collapsed` of a site's probabilities, and of the baseline's."""
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
    """Return the first batch with collapsed predictions; none where labelled images are left out of the order."""
    if inference.uses_labels:
        return {"first_batch": math.nan}
    predicted = part.probability.argmax(1)[np.argsort(stored.get_indexer(part.samples))]
    return {"first_batch": first_batch(predicted[inference.image_order(len(predicted))], inference.batch_size)}
