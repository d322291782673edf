"""Conformal prediction: promised at internal sites, by their validation patients, and measured everywhere.

Split conformal prediction (Vovk, Gammerman and Shafer 2005): the set of a new patient holds every class that is no
stranger than a quantile of the validation patients. Conformal risk control (Angelopoulos and others, ICLR 2024): the
mask of a structure holds every pixel that reaches the largest threshold at which little of it is missed. At a site that
took no part patients are not like these, and nothing is promised. The numbers are those of conformal.csv.
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
from ..study.declaration import Conformal
from ..study.plan import Plan
from ..study.run import Run
from ..tasks.segmentation import THRESHOLDS, Segmentation
from . import estimates
from .conditions import ALL, CONDITION, Condition
from .estimates import Bounds, Group
from .numbers import IDS, Names
from .predictions import INFERENCE, Clusters, Missing, Part, Predictions, Samples, clusters

MEASURES = ("coverage", "size", "decided", "several", "none")
"""Means over patients: the share of sets with the right class, their size, and the shares with 1, more and no class."""
COLUMNS = [*IDS, *CONDITION, "role", "site", "class", *INFERENCE, "calibrated", "batches", "quantile", "patients"]
COLUMNS += ["seeds", *MEASURES, *Bounds._fields, "verdict"]
OF_MASKS = ["size_low", "size_high", "without"]
"""Further columns of masks: the interval of the size, and the number of patients without the structure."""
HELD, BROKEN, OPEN = "held", "broken", "cannot tell"
UNPREDICTED, SEVERAL, TOO_FEW = "not predicted", "several classes", "no promise possible"
"""Why there is no number: no prediction of a validation image, a patient with images of two classes, too few units."""
Place = tuple[str, str, str]
"""Role, site, and the structure or `*`."""
TOLERANCE = 1e-12
"""Two ways to add the same probabilities may differ by less."""


def lac(p: np.ndarray) -> np.ndarray:
    """Return how strange each class is, (n, classes), as 1 - p: Sadinle, Lei and Wasserman, JASA 2019;114:223."""
    return 1 - p


def aps(p: np.ndarray) -> np.ndarray:
    """Return how strange each class is, (n, classes): the sum of its p and of all larger ones; of equal ones the first.

    That is the score of Romano, Sesia and Candès (NeurIPS 2020) without its random part (u = 1).
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


def controlled(losses: np.ndarray, thresholds: np.ndarray, alpha: float) -> float:
    """Return the largest threshold at which a new patient loses alpha or less in the mean over calibrations.

    `losses` (n, thresholds) of the units of calibration, from 0 to 1, do not fall with `thresholds`, which rise. By the
    theorem of Angelopoulos and others (ICLR 2024), (n mean + 1) / (n + 1) is alpha or less. Where no threshold is that
    low, it is minus infinity, whose mask is the whole image.
    """
    kept = losses.sum(0) + 1 <= alpha * (len(losses) + 1) + TOLERANCE
    return float(thresholds[kept].max(initial=-math.inf))


def least(alpha: float) -> int:
    """Return the fewest units of calibration with which alpha promises anything: 1 / alpha - 1, rounded up."""
    return math.ceil(1 / alpha - 1 - 1e-9)


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

    def calibrated(self, home: Sequence[Any], declared: Conformal) -> tuple[int, float]:
        """Return how many units calibrate, and the score up to which a class belongs to a set of these units.

        It is NaN where a patient has images of several classes.
        """
        scores = np.concatenate([[], *(one.score(declared.score) for one in home)])
        mixed = any((one.label < 0).any() for one in (self, *home))
        return len(scores), math.nan if mixed else quantile(scores, declared.alpha)

    def measured(self, threshold: float, declared: Conformal) -> Sets:
        """Return coverage and size of the prediction set of each unit, and whether it holds one class, several or none.

        A class belongs to a set if its score is at most `threshold`; `declared` names the score.
        """
        made = sets(declared.score, self.p, threshold)
        size = made.sum(1)
        covered = made[np.arange(len(size)), self.label]
        of_sets = np.stack([covered, size, size == 1, size > 1, size == 0], 1).astype(float)
        return Sets(of_sets, self.label, self.patient)


class Structure(NamedTuple):
    """The pixels of a structure that the mask of each THRESHOLD holds, and all that it holds, (n, thresholds).

    Pixels are added up over the images of a patient. Of a patient without the structure nothing can be missed: these
    are left out, since they would dilute what others miss. `patient` (n,) are the numbers of the others.
    """

    held: np.ndarray
    region: np.ndarray
    patient: np.ndarray

    @classmethod
    def of_images(cls, counts: np.ndarray, patient: np.ndarray) -> Structure:
        """Return the patients from histograms of images (n, 2, thresholds), with the number of each image's patient."""
        numbers, images = np.unique(patient, return_inverse=True)
        sums = np.zeros((len(numbers), *counts.shape[1:]))
        np.add.at(sums, images, counts)
        held, others = np.moveaxis(sums[..., ::-1].cumsum(-1)[..., ::-1], 1, 0)
        there = held[:, 0] > 0
        return cls(held[there], (held + others)[there], numbers[there])

    def calibrated(self, home: Sequence[Any], declared: Conformal) -> tuple[int, float]:
        """Return how many patients calibrate, and the threshold of a mask."""
        losses = np.concatenate([np.empty((0, len(THRESHOLDS))), *(1 - one.held / one.held[:, :1] for one in home)])
        return len(losses), controlled(losses, THRESHOLDS, declared.alpha)

    def measured(self, threshold: float, declared: Conformal) -> Sets:
        """Return the share of the structure that each mask holds as coverage, and its size over the true one."""
        at = np.searchsorted(THRESHOLDS, threshold)
        of_masks = np.full((len(self.patient), len(MEASURES)), math.nan)
        of_masks[:, :2] = np.stack([self.held[:, at], self.region[:, at]], 1) / self.held[:, :1]
        return Sets(of_masks, np.zeros(len(of_masks), dtype=int), self.patient)


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


NOTHING = Structure(*(np.empty((0, len(THRESHOLDS))),) * 2, np.empty(0, dtype=int))
UNITS: dict[str, Callable[..., Units]] = {"patient": mean_of_images, "one": one_image}
"""What sets are made for, by the setting `unit`, from all images of a site, its role and its name."""


class Sets(NamedTuple):
    """MEASURES of the sets, or masks, of some patients (n, 5), their classes (n,) and numbers of the patients (n,)."""

    measures: np.ndarray
    label: np.ndarray
    patient: np.ndarray

    def of(self, label: int) -> Sets:
        """Return the patients of one class."""
        return Sets(*(values[self.label == label] for values in self))


def sets(score: str, p: np.ndarray, threshold: float) -> np.ndarray:
    """Return which classes belong to each set, (n, classes); a set may have none."""
    return SCORES[score](p) <= threshold + TOLERANCE


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
    classes, as the promise is; without a number it says why. The table is empty for a study without `conformal`.

    Of masks, `class` is a structure, each with a promise of its own. Its `coverage` is the share that masks hold, in
    the mean over patients, `size` the size of masks over the true one, and `quantile` the threshold of masks; columns
    OF_MASKS follow.
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
    """Return what has a promise of its own: each structure of a mask, or all classes together."""
    task = run.data.task
    return task.names(run.data.dataset.classes) if isinstance(task, Segmentation) else [ALL]


def unpromised(plan: Plan, data: str, samples: pd.DataFrame, units: str) -> Iterator[str]:
    """Yield, before a study runs, why its alpha promises nothing with the validation patients of a dataset.

    `samples` are those of the dataset with the id `data`, with the columns sample, site, label and patient; `units`
    names patients. Of masks, patients may lack the structure, so that there are fewer than are told here.
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
    """Yield the rows of one condition and inference, from the seeds that all folds have."""
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
    """Return MEASURES with the intervals of coverage and size, from the sets of each seed."""
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
    """Return what one training gives to the row of each place, with the reason for no number, and its sets.

    The same inference that predicts the test images predicts those that calibrate.
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
