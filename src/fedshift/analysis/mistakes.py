"""The wrong predictions that a study is most sure of, at each external site."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..figures import Mistake, SiteMistakes
from ..io.arrays import map_array
from . import predictions
from .findings import Findings
from .predictions import Predictions, Samples


def worst(findings: Findings, predicted: Predictions, samples: Samples, each: int) -> Iterator[SiteMistakes]:
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
        key = findings.level_inference(condition)
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
            wrong = _wrong(part)
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


def _wrong(table: pd.DataFrame) -> pd.DataFrame:
    """Return the wrong predictions, the most confident first; equally confident ones by the name of the sample."""
    wrong = table.loc[table["predicted"] != table["label"], ["sample", "label", "predicted", "probability"]]
    return wrong.sort_values(["probability", "sample"], ascending=[False, True])
