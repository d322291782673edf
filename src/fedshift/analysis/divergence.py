"""The distance between network features of internal and external sites, under each inference: divergence.csv."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..inferences import Inference
from ..io.paths import IDS, INFERENCE, Paths
from ..io.tables import write_table
from ..jobs.predict import SiteFeatures, features
from ..study.plan import Plan
from . import study_results
from .conditions import CONDITION, Condition, plain
from .numbers import Names
from .predictions import Clusters, clusters

EACH = 200
"""The most images of a site, and of all internal sites together, whose features are compared."""
FOLDS = 5
HOME = "internal"
"""Key of the features of internal sites, which are predicted with the network as trained."""
COLUMNS = [*IDS, *CONDITION, "role", "site", *INFERENCE, "run", "seed"]
COLUMNS += ["n", "n_internal", "features", "a_distance", "mmd"]


def write(plan: Plan, paths: Paths, threads: int = 1) -> Path:
    """Write divergence.csv of a study, and return its path; runs that are not trained yet are left out.

    Features are the inputs of the network's last layer. A row compares the test images of a site with those of the
    internal sites together, by `a_distance` and `mmd`: an external site under each inference without labels and, for
    comparison, each internal site with the other internal sites. Internal images are predicted with the inference
    `source`. Without test images, validation images stand for internal sites.
    """
    names = Names(plan)
    samples = study_results.load(plan, paths).samples
    rows: list[dict[str, Any]] = []
    for condition in names.conditions.values():
        patients = clusters(samples, condition.run.data.id)
        for name, run in condition.runs.items():
            files = paths.run_files(name)
            if files.manifest.exists():
                seen = list(features(files.folder, _asked(plan, condition), paths, EACH, threads))
                about = {"condition_id": condition.id, "run": name, "seed": run.seed}
                rows += [about | row for row in _rows(seen, patients, plain(plan) or condition.inferences[0])]
    out = paths.study_files(plan.name).divergence
    write_table(out, names.table(rows, COLUMNS))
    return out


def unasked(plan: Plan, table: pd.DataFrame) -> str:
    """Return a description of the first row of divergence.csv that does not belong to the study, or is a duplicate.

    Return "" if every row belongs to a run, site and inference of the study.
    """
    names = Names(plan)
    asked = set()
    for condition in names.conditions.values():
        baseline = plain(plan) or condition.inferences[0]
        for key, (_, sites) in _asked(plan, condition).items():
            role, inference = _place(key, baseline)
            asked |= {(run, role, site, inference) for run in condition.runs for site in sites}
    for row in table[["run", "role", "site", "inference_id"]].astype(str).itertuples(index=False, name=None):
        if row not in asked:
            return f"{row[0]}, {row[1]} site {row[2]}, inference {row[3]}"
        asked.remove(row)
    return ""


def _asked(plan: Plan, condition: Condition) -> dict[str, tuple[Inference, tuple[str, ...]]]:
    """Return the inferences whose features are compared, each with the sites that it predicts.

    The key `internal` (HOME) stands for internal sites, other keys are ids of inferences.
    """
    sites = tuple(site for site in condition.partition.external if site in condition.run.tested)
    unlabelled = [key for key in condition.inferences if not plan.inferences[key].uses_labels]
    asked = {key: (plan.inferences[key], sites) for key in unlabelled}
    return {HOME: (registry.build("inference", "source"), tuple(condition.partition.internal))} | asked


def _place(key: str, baseline: str) -> tuple[str, str]:
    """Return the role and the id of the inference for rows of features with `key`.

    The key is `internal`, for which the baseline's id is returned, or the id of an inference at external sites.
    """
    return ("internal", baseline) if key == HOME else ("external", key)


def _rows(seen: Sequence[SiteFeatures], known: Clusters, baseline: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of divergence.csv of one run.

    `seen` are the features of its sites, `known` the patients of the images, and `baseline` the id of the inference
    that rows of internal sites get.
    """
    home = [part for part in seen if part.inference == HOME]
    for part in seen:
        inside = [internal for internal in home if internal.site != part.site]
        if not inside:
            continue
        x, of_x = part.values, _groups([part], known)
        most = -(-EACH // len(inside))
        few = [one._replace(samples=one.samples[:most], values=one.values[:most]) for one in inside]
        y, of_y = np.concatenate([internal.values for internal in few]), _groups(few, known)
        role, inference = _place(part.inference, baseline)
        about: dict[str, Any] = {"inference_id": inference, "role": role, "site": part.site}
        about |= {"n": len(x), "n_internal": len(y), "features": x.shape[1]}
        yield about | {"a_distance": a_distance(x, y, of_x, of_y), "mmd": mmd(x, y)}


def _groups(parts: Sequence[SiteFeatures], known: Clusters) -> np.ndarray:
    """Return a text (n,) that identifies the patient, or the source image, of each image of some sites."""
    return np.array(
        [f"{known.group(one.site)} {n}" for one in parts for n in known.of(pd.Index(one.samples), one.site)]
    )


def a_distance(x: np.ndarray, y: np.ndarray, of_x: np.ndarray, of_y: np.ndarray) -> float:
    """Return the proxy A-distance 2 (1 - 2 err) of features x (n, d) and y (m, d): about 0 if alike, 2 if separable.

    `err` is the balanced error rate of a logistic regression on standardised features that tells x from y, in
    cross-validation that keeps each patient (`of_x` (n,), `of_y` (m,)) in one fold. A value below 0 means that it did
    worse than guessing, by chance. NaN if one side has a single patient (Ben-David et al., NIPS 2006).
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folds = min(FOLDS, len(np.unique(of_x)), len(np.unique(of_y)))
    if folds < 2:
        return float("nan")
    values, group = np.concatenate([x, y]), np.concatenate([of_x, of_y])
    side = np.repeat([0, 1], [len(x), len(y)])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, class_weight="balanced", max_iter=1000))
    parts = StratifiedGroupKFold(folds, shuffle=True, random_state=0)
    if any(len(np.unique(side[train])) < 2 for train, _ in parts.split(values, side, group)):
        return float("nan")
    wrong = cross_val_predict(model, values, side, groups=group, cv=parts) != side
    error = (wrong[side == 0].mean() + wrong[side == 1].mean()) / 2
    return float(2 * (1 - 2 * error))


def mmd(x: np.ndarray, y: np.ndarray) -> float:
    """Return the unbiased squared maximum mean discrepancy (MMD) of features x (n, d) and y (m, d).

    The kernel is exp(-|a - b|^2 / (2 s^2)), where s is the median distance over all pairs of the n + m images. Its
    expectation is 0 for equal distributions, so that it can be negative. NaN with fewer than two images on a side
    (Gretton et al., A kernel two-sample test, JMLR 2012, lemma 6).
    """
    if min(len(x), len(y)) < 2:
        return float("nan")
    values = np.concatenate([x, y])
    lengths = (values**2).sum(axis=1)
    squares = np.maximum(lengths[:, None] + lengths - 2 * values @ values.T, 0)
    # The median of squares of an even number of pairs is another one than the square of the median.
    width = float(np.median(np.sqrt(squares[np.triu_indices(len(values), 1)])))
    if width == 0:
        return 0.0 if not squares.any() else float("nan")
    kernel = np.exp(-squares / (2 * width**2))
    n, m = len(x), len(y)
    within = [(part.sum() - len(part)) / (len(part) * (len(part) - 1)) for part in (kernel[:n, :n], kernel[n:, n:])]
    return float(sum(within) - 2 * kernel[:n, n:].sum() / (n * m))
