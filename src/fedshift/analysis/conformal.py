"""Conformal prediction: sets or masks with a promised coverage at internal sites, and what they cover anywhere.

Split conformal prediction (Vovk, Gammerman and Shafer 2005): the prediction set of a new patient holds every class
whose nonconformity score is at most a quantile of the scores of validation patients. Conformal risk control
(Angelopoulos and others, ICLR 2024): the mask of a structure holds every pixel at or above the largest threshold at
which, on average, at most the share alpha of the structure is missed. Patients of an external site are not exchangeable
with the validation patients, so that nothing is promised there. The results are in conformal.csv.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import betaincinv

from ..core.rng import stream
from ..data.prepared import persons
from ..io.paths import IDS, INFERENCE
from ..study.declaration import Conformal
from ..study.plan import Plan
from ..study.run import Run
from ..tasks.segmentation import THRESHOLDS, Segmentation
from . import estimates
from .conditions import ALL, CONDITION, Condition
from .estimates import Bounds, Group
from .numbers import Names
from .predictions import Clusters, Missing, Part, Predictions, Samples, clusters

MEASURES = ("coverage", "size", "decided", "several", "none")
"""Columns of conformal.csv that are means over patients.

They are the share of sets with the right class, the number of classes in a set, and the shares of sets with one,
several and no class.
"""
COLUMNS = [*IDS, *CONDITION, "role", "site", "class", *INFERENCE, "calibrated", "batches", "quantile", "patients"]
COLUMNS += ["seeds", *MEASURES, *Bounds._fields, "verdict"]
OF_MASKS = ["size_low", "size_high", "without"]
"""Further columns for masks: the interval of the size, and the number of patients without the structure."""
HELD, BROKEN, OPEN = "held", "broken", "cannot tell"
"""Verdicts on the promised coverage."""
UNPREDICTED, SEVERAL, TOO_FEW = "not predicted", "several classes", "no promise possible"
"""Reasons why a row has no coverage.

They are: validation images were not predicted, a patient has images of several classes, too few patients calibrate.
"""
Place = tuple[str, str, str]
"""Role, site, and the name of a structure, or `*` for all classes together."""
TOLERANCE = 1e-12
"""Tolerance of comparisons, for the rounding errors of sums of probabilities."""


def lac(p: np.ndarray) -> np.ndarray:
    """Return the nonconformity score 1 - p of each class, (n, classes), from probabilities of the same shape.

    The score is that of Sadinle, Lei and Wasserman, J Am Stat Assoc 2019;114:223.
    """
    return 1 - p


def aps(p: np.ndarray) -> np.ndarray:
    """Return the adaptive nonconformity score of each class, (n, classes), from probabilities of the same shape.

    It is the sum of the probability of a class and of all more probable ones (of equal ones, the first counts as more
    probable). That is the score of Romano, Sesia and Candès (NeurIPS 2020) without its random part (u = 1).
    """
    order = np.argsort(-p, axis=1, kind="stable")
    scores = np.empty_like(p)
    np.put_along_axis(scores, order, np.take_along_axis(p, order, 1).cumsum(1), 1)
    return scores


SCORES = {"lac": lac, "aps": aps}
"""Nonconformity scores by the name that a study gives in `conformal.score`."""


def rank(n: int, alpha: float) -> int:
    """Return the rank of the score that is the conformal quantile of n sorted scores, 1 for the smallest.

    It is the ceiling of (n + 1) (1 - alpha).
    """
    return math.ceil((n + 1) * (1 - alpha) - 1e-9)  # 19 + 1 times 0.9 must not be a little more than 18


def quantile(scores: np.ndarray, alpha: float) -> float:
    """Return the conformal quantile of the nonconformity scores (n,) of validation patients.

    A prediction set holds the classes with at most this score. It is infinite if n is below 1 / alpha - 1: then only
    the set of all classes keeps the promise.
    """
    k = rank(len(scores), alpha)
    if k > len(scores):
        return math.inf
    return float(np.sort(scores)[k - 1]) if k > 0 else -math.inf


def controlled(losses: np.ndarray, thresholds: np.ndarray, alpha: float) -> float:
    """Return the largest threshold at which a new patient loses `alpha` or less on average (conformal risk control).

    `losses` (n, thresholds), from 0 to 1, are the missed shares of a structure of n validation patients at `thresholds`
    (ascending); they never fall as the threshold rises. The condition is (n mean + 1) / (n + 1) <= alpha (Angelopoulos
    and others, ICLR 2024). Return minus infinity, whose mask is the whole image, if no threshold is low enough.
    """
    kept = losses.sum(0) + 1 <= alpha * (len(losses) + 1) + TOLERANCE
    return float(thresholds[kept].max(initial=-math.inf))


def least(alpha: float) -> int:
    """Return the fewest validation patients with which a promise is possible: 1 / alpha - 1, rounded up."""
    return math.ceil(1 / alpha - 1 - 1e-9)


def likely(n: int, alpha: float) -> tuple[float, float]:
    """Return the 5% and the 95% quantile of the coverage over random choices of n validation patients.

    Given the validation patients, the coverage of new patients is distributed as Beta(k, n + 1 - k), where k is
    `rank(n, alpha)`, which must be n or less.
    """
    k = rank(n, alpha)
    low, high = betaincinv(k, n + 1 - k, [0.05, 0.95])
    return float(low), float(high)


class Units(NamedTuple):
    """What prediction sets are made for at a site: patients, or one image of each.

    Attributes
    ----------
    label : true classes (n,); -1 for a patient with images of several classes
    p : predicted probabilities (n, classes)
    patient : numbers of the patients (n,)
    """

    label: np.ndarray
    p: np.ndarray
    patient: np.ndarray

    def score(self, name: str) -> np.ndarray:
        """Return the nonconformity score (n,) of each true class. `name` is a key of SCORES."""
        return SCORES[name](self.p)[np.arange(len(self.label)), self.label]

    def calibrated(self, home: Sequence[Any], declared: Conformal) -> tuple[int, float]:
        """Return the number of validation units, and the largest nonconformity score of a class in a prediction set.

        `home` holds the validation units (patients, or one image of each) of internal sites, and `declared` the score
        and alpha. The largest score is NaN if a patient has images of several classes.
        """
        scores = np.concatenate([[], *(one.score(declared.score) for one in home)])
        mixed = any((one.label < 0).any() for one in (self, *home))
        return len(scores), math.nan if mixed else quantile(scores, declared.alpha)

    def measured(self, threshold: float, declared: Conformal) -> Sets:
        """Return the prediction sets of these units: whether each holds the right class, and its number of classes.

        A class belongs to a set if its nonconformity score, named by `declared`, is at most `threshold`.
        """
        made = sets(declared.score, self.p, threshold)
        size = made.sum(1)
        covered = made[np.arange(len(size)), self.label]
        of_sets = np.stack([covered, size, size == 1, size > 1, size == 0], 1).astype(float)
        return Sets(of_sets, self.label, self.patient)


class Structure(NamedTuple):
    """Pixels of one structure in the masks of patients, at each threshold on its probability (THRESHOLDS).

    Pixels are summed over the images of a patient. Patients without the structure are left out: nothing of it can be
    missed, and they would dilute what is missed in others.

    Attributes
    ----------
    held : pixels of the structure inside the mask (n, thresholds)
    region : all pixels of the mask (n, thresholds)
    patient : numbers of the patients (n,)
    """

    held: np.ndarray
    region: np.ndarray
    patient: np.ndarray

    @classmethod
    def of_images(cls, counts: np.ndarray, patient: np.ndarray) -> Structure:
        """Return the structure in the masks of patients, from histograms of the probabilities of images.

        `counts` (n, 2, thresholds) has pixels inside and outside of the structure by probability, and `patient` (n,)
        the number of each image's patient.
        """
        numbers, images = np.unique(patient, return_inverse=True)
        sums = np.zeros((len(numbers), *counts.shape[1:]))
        np.add.at(sums, images, counts)
        # Summed from the highest threshold down: the pixels that reach each threshold.
        held, others = np.moveaxis(sums[..., ::-1].cumsum(-1)[..., ::-1], 1, 0)
        there = held[:, 0] > 0
        return cls(held[there], (held + others)[there], numbers[there])

    def calibrated(self, home: Sequence[Any], declared: Conformal) -> tuple[int, float]:
        """Return the number of validation patients, and the largest threshold that keeps the promise for them.

        `home` holds the structure in the masks of validation patients of internal sites, and `declared` the promised
        share.
        """
        losses = np.concatenate([np.empty((0, len(THRESHOLDS))), *(1 - one.held / one.held[:, :1] for one in home)])
        return len(losses), controlled(losses, THRESHOLDS, declared.alpha)

    def measured(self, threshold: float, declared: Conformal) -> Sets:
        """Return the masks at `threshold`: the share of the structure that each holds, and its relative size.

        The relative size is the size of the mask over the size of the structure.
        """
        at = np.searchsorted(THRESHOLDS, threshold)
        of_masks = np.full((len(self.patient), len(MEASURES)), math.nan)
        of_masks[:, :2] = np.stack([self.held[:, at], self.region[:, at]], 1) / self.held[:, :1]
        return Sets(of_masks, np.zeros(len(of_masks), dtype=int), self.patient)


def mean_of_images(images: Units, *_: str) -> Units:
    """Return, for each patient, the mean probabilities of the images and their class (-1 if they have several).

    A patient then gets one prediction set. `images` has the class, the probabilities and the patient of each image.
    """
    patient, first, number = np.unique(images.patient, return_index=True, return_inverse=True)
    label = images.label[first]
    mixed = np.bincount(number, images.label != label[number]) > 0
    means = np.stack([np.bincount(number, column) for column in images.p.T], 1) / np.bincount(number)[:, None]
    return Units(np.where(mixed, -1, label), means, patient)


def one_image(images: Units, *key: str) -> Units:
    """Return one random image of each patient, which gets a prediction set.

    `images` has the class, the probabilities and the patient of each image. `key`, the role and the name of the site,
    selects the random stream.
    """
    order = stream("conformal", *key).permutation(len(images.label))
    rows = order[np.unique(images.patient[order], return_index=True)[1]]
    return Units(*(values[rows] for values in images))


NOTHING = Structure(*(np.empty((0, len(THRESHOLDS))),) * 2, np.empty(0, dtype=int))
"""Masks of no patients, for runs without predictions of validation images."""
UNITS: dict[str, Callable[..., Units]] = {"patient": mean_of_images, "one": one_image}
"""Functions that make the units of prediction sets from all images of a site, by the setting `conformal.unit`."""


class Sets(NamedTuple):
    """Prediction sets, or masks, of some patients.

    Attributes
    ----------
    measures : MEASURES of each set (n, 5)
    label : true classes (n,)
    patient : numbers of the patients (n,)
    """

    measures: np.ndarray
    label: np.ndarray
    patient: np.ndarray

    def of(self, label: int) -> Sets:
        """Return the sets of patients with the true class `label`."""
        return Sets(*(values[self.label == label] for values in self))


def sets(score: str, p: np.ndarray, threshold: float) -> np.ndarray:
    """Return whether each class belongs to each prediction set, bool (n, classes); a set may be empty.

    `score` is a key of SCORES, `p` (n, classes) are probabilities, and `threshold` is the largest score in a set.
    """
    return SCORES[score](p) <= threshold + TOLERANCE


def verdict(low: float, high: float, declared: Conformal) -> str:
    """Return whether the promised coverage was held, broken, or cannot be told, from the interval of the coverage.

    `low` and `high` are its ends, NaN without an interval. Broken means that the interval lies below 1 - alpha, held
    that it lies above 1 - alpha - margin.
    """
    if low >= 1 - declared.alpha - declared.margin:
        return HELD
    return BROKEN if high < 1 - declared.alpha else OPEN


# ---- conformal.csv


def table(names: Names, predicted: Predictions, samples: Samples) -> pd.DataFrame:
    """Return conformal.csv: coverage and size of prediction sets, by condition, inference, site and class.

    The class `*` stands for all classes, and the verdict is about it, as the promise is. `calibrated` is the number of
    validation patients, `batches` the number of their batches at the internal site with fewest (0 if batches do not
    matter to the inference), and `quantile` the largest nonconformity score of a class in a set. Measures and
    `quantile` are means over trainings; `low` and `high` are the interval of the coverage. A row without a coverage has
    the reason in the place of the verdict. The table is empty for a study without `conformal`.

    For masks, `class` is a structure, each with a promise of its own. `coverage` is the share of the structure that
    masks hold, as mean over patients, `size` the size of masks over the true size, and `quantile` the threshold on the
    probability. The columns OF_MASKS follow.
    """
    plan = names.plan
    rows: list[dict[str, Any]] = []
    for condition in names.conditions.values() if plan.study.conformal else ():
        patients = clusters(samples, condition.run.data.id)
        for key in condition.inferences:
            ids = {"condition_id": condition.id, "inference_id": key}
            rows += [ids | row for row in _rows(predicted, condition, key, patients)]
    if not rows:
        return pd.DataFrame(columns=COLUMNS)
    columns = COLUMNS + OF_MASKS * plan.study.task.has_masks
    counts = dict.fromkeys(("calibrated", "batches", "patients", "seeds"), "int64")
    return names.described(pd.DataFrame(rows)).reindex(columns=columns).astype(counts)


def promised(run: Run) -> Sequence[str]:
    """Return what a run promises a coverage for: the structures of masks by name, or `*` for all classes."""
    task = run.data.task
    return task.names(run.data.dataset.classes) if isinstance(task, Segmentation) else [ALL]


def unpromised(plan: Plan, data: str, samples: pd.DataFrame, units: str) -> Iterator[str]:
    """Yield a warning if the alpha of a study is too small for the number of validation patients, before it runs.

    `samples` are the samples of the data with the id `data`, with the columns sample, site, label and patient. `units`
    is the word for patients in the warning. For masks the number is an upper limit, since some patients may lack the
    structure.
    """
    declared = plan.study.conformal
    if declared is None:
        return
    person = persons(samples)
    found: list[tuple[int, str]] = []
    for partition in dict.fromkeys(run.partition for run in plan.runs.values() if run.data.id == data):
        rows = partition.divide(samples)[0]
        val = rows[rows["split"] == "val"].merge(samples[["sample"]].assign(person=person), on="sample")
        each = val.groupby("site")["person"].nunique().reindex(partition.internal, fill_value=0)
        found += zip(each, each.index, strict=True) if declared.sites == "own" else [(each.sum(), "")]
    (fewest, site), needed = min(found), least(declared.alpha)
    if fewest < needed:
        where = f" at {site}" * bool(site)
        remedy = f"give {math.ceil(100 / (fewest + 1)) / 100:g} or more, or val a larger share"
        yield (
            f"conformal.alpha: {declared.alpha:g} needs {needed:,} validation {units}{where}, and there are "
            f"{fewest:,}: nothing can be promised; {remedy if fewest else 'give val a share'}"
        )


def _rows(predicted: Predictions, condition: Condition, key: str, patients: Clusters) -> Iterator[dict[str, Any]]:
    """Yield the rows of conformal.csv for one condition and inference (`key`).

    Seeds of which some fold is not predicted are left out.
    """
    study = predicted.plan.study
    assert study.conformal is not None
    trainings: dict[int, list[dict[Place, tuple[dict[str, Any], Sets]]]] = defaultdict(list)
    for run, parts in predicted.by_site(condition.runs.values(), key):
        trainings[run.seed].append(_training(predicted, run, key, parts, patients, study.conformal))
    folds = len(condition.runs) // len(condition.seeds)
    whole = {seed: each for seed, each in trainings.items() if len(each) == folds}
    tested = next(iter(whole.values()))[0] if whole else ()
    classes, scale = ((), "unit") if study.task.has_masks else (study.dataset.classes, "share")
    for (role, site), what in itertools.product(condition.sites(), promised(condition.run)):
        if (role, site, what) not in tested:
            continue
        trained = {seed: [fold[role, site, what] for fold in each] for seed, each in whole.items()}
        about = pd.DataFrame([row for each in trained.values() for row, _ in each])
        row: dict[str, Any] = {"role": role, "site": site, "class": what, "seeds": len(whole)}
        row |= {name: about[name].min() for name in ("calibrated", "batches")}
        row |= {"quantile": about["quantile"].mean(), "verdict": about["verdict"].max()}
        row["patients"] = len(np.unique(np.concatenate([*about["people"]])))
        if row["verdict"]:
            yield row
            continue
        # A patient outside, whom the models of all folds meet, has a row for each of them.
        sets_ = {seed: zip(*(one for _, one in each), strict=True) for seed, each in trained.items()}
        made = {seed: Sets(*map(np.concatenate, columns)) for seed, columns in sets_.items()}
        for k, name in enumerate([what, *classes], -1):
            of_class = {seed: one.of(k) if k >= 0 else one for seed, one in made.items()}
            if all(len(one.label) for one in of_class.values()):
                found = _over_trainings(of_class, patients.group(site), scale)
                judged = "" if k >= 0 else verdict(found["low"], found["high"], study.conformal)
                without = row["patients"] - found["patients"]
                yield row | found | {"class": name, "verdict": judged, "without": without}


def _over_trainings(each: dict[int, Sets], group: Group, scale: str = "share") -> dict[str, Any]:
    """Return coverage, size and the other MEASURES of prediction sets as means over trainings, with two intervals.

    The intervals are those of coverage and size. `each` maps a seed to the sets of its training, `group` is the data
    and site of the patients, and `scale` says how the interval of the coverage is made (see `Metric.scale`).
    """
    found = dict(zip(MEASURES, np.mean([one.measures.mean(0) for one in each.values()], 0).tolist(), strict=True))
    for column, (scale_, end, prefix) in enumerate(((scale, 1.0, ""), ("mean", math.inf, "size_"))):
        trainings = []
        for seed, one in each.items():
            values = one.measures[:, column]
            influence = (values - values.mean()) / len(values)
            trainings.append(estimates.single(float(values.mean()), influence, one.patient, group, seed, scale_))
        whole = estimates.over_trainings(trainings)
        found |= {prefix + name: value for name, value in whole.bounded((0.0, end))._asdict().items()}
    return found | {"patients": whole.patients}


def _training(
    predicted: Predictions, run: Run, key: str, test: Sequence[Part], patients: Clusters, declared: Conformal
) -> dict[Place, tuple[dict[str, Any], Sets]]:
    """Return, for each role, site and structure, the columns that one training gives to its row, and its sets or masks.

    The columns include the reason why there is no coverage, if so. `test` are the predictions of test images by site.
    The validation images that calibrate are predicted with the same inference, `key`.
    """
    names, masks = promised(run), run.data.task.has_masks
    read = predicted.histograms if masks else predicted.parts
    try:
        val, test = read(run, key, "val"), read(run, key)
    except Missing:
        val = []

    def units(part: Part) -> Sequence[Units | Structure]:
        people = patients.of(part.samples, part.site)
        if not val:
            return [NOTHING] * len(names)
        if masks:
            return [Structure.of_images(part.probability[:, k], people) for k in range(len(names))]
        return [UNITS[declared.unit](Units(part.label, part.probability, people), part.role, part.site)]

    at_home = {part.site: units(part) for part in val}
    how = predicted.plan.inferences[key]
    batches = -(-min((len(part.label) for part in val if how.batches_matter), default=0) // how.batch_size)
    made = {}
    for part in test:
        own = declared.sites == "own" and part.role == "internal"
        about = {"batches": batches, "people": patients.of(part.samples, part.site)}
        for k, (name, there) in enumerate(zip(names, units(part), strict=True)):
            chosen = [each[k] for site, each in at_home.items() if site == part.site or not own]
            number, threshold = there.calibrated(chosen, declared)
            why = SEVERAL if math.isnan(threshold) else TOO_FEW if math.isinf(threshold) else ""
            row = {"calibrated": number, "quantile": threshold, "verdict": why}
            if not val:
                row |= {"quantile": math.nan, "verdict": UNPREDICTED}
            made[part.role, part.site, name] = about | row, there.measured(threshold, declared)
    return made
