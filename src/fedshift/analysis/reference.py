"""The scores that a model without any knowledge reaches: by guessing, and by always giving the commonest class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from ..core.errors import UserError
from ..study.run import Run
from . import score
from .predictions import Predictions, Samples

PLACE = ["condition_id", "role", "site", "metric"]


def table(predicted: Predictions, samples: Samples) -> pd.DataFrame:
    """Return `chance` and `majority` by PLACE, for metrics that have a chance level.

    `chance` is that of a guess (see `Metric.chance`). `majority` is the score of giving the shares of the
    classes among the test labels of the site for every sample: for accuracy the share of the commonest class.
    """
    rows = []
    known: dict[str, dict[str, Run]] = defaultdict(dict)
    for run in predicted.plan.runs.values():
        known[run.condition][run.partition_id] = run
    levels: dict[tuple[str, ...], list[tuple[tuple[str, str, str], float, float]]] = {}
    for condition, runs in known.items():
        # Conditions on the same partitions have the same test images, and with them the same levels.
        key = next(iter(runs.values())).data.id, *runs
        if key not in levels:
            levels[key] = list(_by_site(predicted, samples, [*runs.values()]))
        rows += [(condition, *place, chance, majority) for place, chance, majority in levels[key]]
    return pd.DataFrame(rows, columns=[*PLACE, "chance", "majority"]).set_index(PLACE)


def _by_site(
    predicted: Predictions, samples: Samples, runs: Sequence[Run]
) -> Iterator[tuple[tuple[str, str, str], float, float]]:
    """Yield role, site and metric with both levels. Nothing where the partition or the labels cannot be read.

    `runs` has one run of each fold.
    """
    run = runs[0]
    try:
        assigned = pd.concat([predicted.partition(fold.partition_id) for fold in runs])
        labels = samples(run.data.id).reindex(columns=["sample", "label"])
    except UserError:
        return
    classes = len(run.data.dataset.classes)
    test = assigned[assigned["split"] == "test"].astype({"sample": str}).drop_duplicates("sample")
    rows = test.merge(labels.dropna().astype({"label": int}), on="sample")
    for place, label in rows.groupby(["role", "site"], sort=False)["label"]:
        role, site = map(str, place)
        shares = np.bincount(label, minlength=classes) / len(label)
        blind = np.tile(shares, (len(label), 1))
        for metric in score.metrics(predicted.plan):
            if not np.isnan(chance := metric.chance(shares)):
                yield (role, site, metric.name), chance, metric.value(label.to_numpy(), blind)
