"""Conformal prediction sets: promised at the internal sites, by their validation patients, and measured everywhere.

Split conformal prediction (Vovk, Gammerman and Shafer 2005): the set of a new patient holds every class that is no
stranger than a quantile of the validation patients. At a site that took no part the patients are not like these, and
nothing is promised there. The numbers are those of conformal.csv.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import betaincinv

from ..core.rng import stream
from ..study.analysis_plan import Conformal
from ..study.run import Run
from . import estimates
from .conditions import ALL, CONDITION, Condition
from .estimates import Bounds, Group
from .names import IDS, Names
from .predictions import INFERENCE, Clusters, Missing, Part, Predictions, Samples, clusters

MEASURES = ("coverage", "size", "decided", "several", "none")
"""Means over patients: the share of sets with the right class, their size, and the shares with 1, more and no class."""
COLUMNS = [*IDS, *CONDITION, "role", "site", "class", *INFERENCE, "calibrated", "batches", "quantile", "patients"]
COLUMNS += ["seeds", *MEASURES, *Bounds._fields, "verdict"]
HELD, BROKEN, OPEN = "held", "broken", "cannot tell"
UNPREDICTED, SEVERAL, TOO_FEW = "not predicted", "several classes", "no promise possible"
"""Why there is no number: no prediction of a validation image, a patient with images of two classes, too few units."""
TOLERANCE = 1e-12
"""Two ways to add the same probabilities may differ by less."""


def lac(p: np.ndarray) -> np.ndarray:
    """Return how strange each class is, (n, classes), as 1 - p: Sadinle, Lei and Wasserman, JASA 2019;114:223."""
    return 1 - p


def aps(p: np.ndarray) -> np.ndarray:
    """Return how strange each class is, (n, classes): the sum of its p and of all larger ones.

    That is the score of Romano, Sesia and Candès (NeurIPS 2020) without its random part (u = 1). Of equal
    probabilities the first class comes first.
    """
    order = np.argsort(-p, axis=1, kind="stable")
    scores = np.empty_like(p)
    np.put_along_axis(scores, order, np.take_along_axis(p, order, 1).cumsum(1), 1)
    return scores


SCORES = {"lac": lac, "aps": aps}


def rank(n: int, alpha: float) -> int:
    """Return which of n scores, counted from the smallest as 1, is the quantile: the ceiling of (n + 1) (1 - alpha)."""
    return math.ceil((n + 1) * (1 - alpha) - 1e-9)  # 19 + 1 times 0.9 must not be a little more than 18


def quantile(scores: np.ndarray, alpha: float) -> float:
    """Return the score up to which a class belongs to a set, from the scores (n,) of calibration.

    It is infinite where n is below 1 / alpha - 1: then only the set of all classes keeps the promise.
    """
    k = rank(len(scores), alpha)
    if k > len(scores):
        return math.inf
    return float(np.sort(scores)[k - 1]) if k > 0 else -math.inf


def likely(n: int, alpha: float) -> tuple[float, float]:
    """Return the coverage that 5 % of calibrations with n units stay below, and that which 95 % stay below.

    Given one calibration, coverage is Beta(k, n + 1 - k), with k of `rank`; needs k of n or less.
    """
    k = rank(n, alpha)
    low, high = betaincinv(k, n + 1 - k, [0.05, 0.95])
    return float(low), float(high)


class Units(NamedTuple):
    """What sets are made for: classes (n,), probabilities (n, classes) and numbers of patients (n,)."""

    label: np.ndarray
    p: np.ndarray
    patient: np.ndarray

    def score(self, name: str) -> np.ndarray:
        """Return how strange the own class of each is, (n,)."""
        return SCORES[name](self.p)[np.arange(len(self.label)), self.label]


def mean_of_images(images: Units, *_: str) -> Units:
    """Return the patients with the mean probabilities of their images, and the class -1 where images have several."""
    patient, first, number = np.unique(images.patient, return_index=True, return_inverse=True)
    label = images.label[first]
    mixed = np.bincount(number, images.label != label[number]) > 0
    means = np.stack([np.bincount(number, column) for column in images.p.T], 1) / np.bincount(number)[:, None]
    return Units(np.where(mixed, -1, label), means, patient)


def one_image(images: Units, *key: str) -> Units:
    """Return one image of each patient, drawn from the stream of a key."""
    order = stream("conformal", *key).permutation(len(images.label))
    rows = order[np.unique(images.patient[order], return_index=True)[1]]
    return Units(*(values[rows] for values in images))


UNITS: dict[str, Callable[..., Units]] = {"patient": mean_of_images, "one": one_image}
"""What sets are made for, by the setting `unit`, from all images of a site, its role and its name."""


class Sets(NamedTuple):
    """MEASURES of the sets of some patients (n, 5), their classes (n,) and the numbers of the patients (n,)."""

    measures: np.ndarray
    label: np.ndarray
    patient: np.ndarray

    def of(self, label: int) -> Sets:
        """Return the patients of one class."""
        return Sets(*(values[self.label == label] for values in self))


def sets(score: str, p: np.ndarray, threshold: float) -> np.ndarray:
    """Return which classes belong to each set, (n, classes); a set may have none."""
    return SCORES[score](p) <= threshold + TOLERANCE


def measured(score: str, units: Units, threshold: float) -> Sets:
    """Return the sets of some patients."""
    made = sets(score, units.p, threshold)
    size = made.sum(1)
    covered = made[np.arange(len(size)), units.label]
    return Sets(np.stack([covered, size, size == 1, size > 1, size == 0], 1).astype(float), units.label, units.patient)


def verdict(low: float, high: float, declared: Conformal) -> str:
    """Return whether the promise was held, from the interval of the coverage (NaN for none)."""
    if low >= 1 - declared.alpha - declared.margin:
        return HELD
    return BROKEN if high < 1 - declared.alpha else OPEN


# ---- conformal.csv


def table(names: Names, predicted: Predictions, samples: Samples) -> pd.DataFrame:
    """Return conformal.csv: MEASURES of each condition, inference and site, for all classes (`*`) and for each.

    `calibrated` is the number of validation patients, `batches` those of the internal site with fewest (0 where they do
    not matter), and `quantile` the score up to which a class belongs to a set, mean over trainings. Measures are means
    over trainings; the interval of the coverage is that of other shares (see `estimates`). The verdict is on all
    classes, as the promise is; without a number it says why. The table is empty for a study without prediction sets.
    """
    rows: list[dict[str, Any]] = []
    for condition in names.conditions.values() if names.plan.study.conformal else ():
        patients = clusters(samples, condition.run.data.id)
        for key in condition.inferences:
            ids = {"condition_id": condition.id, "inference_id": key}
            rows += [ids | row for row in _rows(predicted, condition, key, patients)]
    if not rows:
        return pd.DataFrame(columns=COLUMNS)
    counts = dict.fromkeys(("calibrated", "batches", "patients", "seeds"), "int64")
    return names.described(pd.DataFrame(rows)).reindex(columns=COLUMNS).astype(counts)


def _rows(predicted: Predictions, condition: Condition, key: str, patients: Clusters) -> Iterator[dict[str, Any]]:
    """Yield the rows of one condition and inference, from the seeds that all folds have."""
    study = predicted.plan.study
    assert study.conformal is not None
    trainings: dict[int, list[dict[tuple[str, str], tuple[dict[str, Any], Sets]]]] = defaultdict(list)
    for run, parts in predicted.by_site(condition.runs.values(), key):
        trainings[run.seed].append(_training(predicted, run, key, parts, patients, study.conformal))
    folds = len(condition.runs) // len(condition.seeds)
    whole = {seed: each for seed, each in trainings.items() if len(each) == folds}
    tested = next(iter(whole.values()))[0] if whole else ()
    for role, site in (place for place in condition.sites() if place in tested):
        about = pd.DataFrame([fold[role, site][0] for each in whole.values() for fold in each])
        row: dict[str, Any] = {"role": role, "site": site, "class": ALL, "seeds": len(whole)}
        row |= {name: about[name].min() for name in ("calibrated", "batches", "patients")}
        row |= {"quantile": about["quantile"].mean(), "verdict": about["verdict"].max()}
        if row["verdict"]:
            yield row
            continue
        # A patient outside, whom the models of all folds meet, has a row for each of them.
        parts_ = {seed: zip(*(fold[role, site][1] for fold in each), strict=True) for seed, each in whole.items()}
        made = {seed: Sets(*map(np.concatenate, columns)) for seed, columns in parts_.items()}
        for k, name in enumerate([ALL, *study.dataset.classes], -1):
            of_class = {seed: one.of(k) if k >= 0 else one for seed, one in made.items()}
            if all(len(one.label) for one in of_class.values()):
                found = _over_trainings(of_class, patients.group(site))
                judged = "" if k >= 0 else verdict(found["low"], found["high"], study.conformal)
                yield row | found | {"class": name, "verdict": judged}


def _over_trainings(each: dict[int, Sets], group: Group) -> dict[str, Any]:
    """Return MEASURES with the interval of the coverage, from the sets of each seed."""
    means = np.mean([one.measures.mean(0) for one in each.values()], 0).tolist()
    trainings = []
    for seed, one in each.items():
        covered, share = one.measures[:, 0], float(one.measures[:, 0].mean())
        influence = (covered - share) / len(covered)
        trainings.append(estimates.single(share, influence, one.patient, group, seed, "share"))
    coverage = estimates.over_trainings(trainings)
    found = dict(zip(MEASURES, means, strict=True)) | coverage.bounded((0.0, 1.0))._asdict()
    return found | {"patients": coverage.patients}


def _training(
    predicted: Predictions, run: Run, key: str, test: Sequence[Part], patients: Clusters, declared: Conformal
) -> dict[tuple[str, str], tuple[dict[str, Any], Sets]]:
    """Return by role and site what one training gives to the row, with the reason for no number, and its sets.

    The same inference that predicts the test images predicts those that calibrate.
    """

    def units(part: Part) -> Units:
        images = Units(part.label, part.probability, patients.of(part.samples, part.site))
        return UNITS[declared.unit](images, part.role, part.site)

    try:
        val = predicted.parts(run, key, "val")
    except Missing:
        val = []
    at_home = {part.site: units(part) for part in val}
    mixed = any((one.label < 0).any() for one in at_home.values())
    how = predicted.plan.inferences[key]
    batches = -(-min((len(part.label) for part in val if how.batches_matter), default=0) // how.batch_size)
    made = {}
    for part in test:
        own = declared.sites == "own" and part.role == "internal"
        chosen = [one for site, one in at_home.items() if site == part.site or not own]
        scores = np.concatenate([[], *(one.score(declared.score) for one in chosen)])
        threshold, there = quantile(scores, declared.alpha), units(part)
        why = TOO_FEW if math.isinf(threshold) else ""
        why = UNPREDICTED if not val else SEVERAL if mixed or (there.label < 0).any() else why
        row: dict[str, Any] = {"calibrated": len(scores), "batches": batches, "patients": len(there.patient)}
        row |= {"quantile": threshold if why in ("", TOO_FEW) else math.nan, "verdict": why}
        made[part.role, part.site] = row, measured(declared.score, there, threshold)
    return made
