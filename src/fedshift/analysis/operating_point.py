"""Operating points of studies with two classes: a threshold from validation samples is applied at all sites."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..io.paths import IDS, INFERENCE
from ..study.declaration import Study, Threshold
from . import estimates
from .conditions import ALL, CONDITION, Condition
from .estimates import Estimate, Group
from .numbers import Names
from .predictions import Clusters, Missing, Part, Predictions, Samples, clusters
from .values import NAN, Value

COUNTS = ("tp", "fp", "fn", "tn")
"""True and false positives, false and true negatives."""
RATES = {
    "sensitivity": ("tp", "tp fn"),
    "specificity": ("tn", "tn fp"),
    "ppv": ("tp", "tp fp"),
    "npv": ("tn", "tn fn"),
    "prevalence": ("tp fn", "tp fp fn tn"),
    "flag_rate": ("tp fp", "tp fp fn tn"),
}
"""Each rate as numerator and denominator: the counts that are added up in either of them."""
DRIFTS = ("sensitivity", "specificity")
"""The rates whose difference to the validation samples is reported."""
VALIDATION = "validation"
"""Value of the column `role` for the validation samples of all internal sites together."""
GROUPS = 10
"""The most groups of validation patients of the jackknife, which chooses the threshold without each group in turn."""
COLUMNS = [
    *(*IDS, *CONDITION, "role", "site", *INFERENCE),
    *("run", "seed", "rule", "positive", "threshold", "patients", "samples", *COUNTS),
    *(f"{rate}{bound}" for rate in RATES for bound in ("", "_low", "_high")),
    *(f"{rate}_drift" for rate in DRIFTS),
]
_ABOVE, _BELOW = (
    np.array([[count in names[part].split() for names in RATES.values()] for count in COUNTS], dtype=float)
    for part in (0, 1)
)


def _reached(positive: np.ndarray, score: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """Return the counts of true and false positives, false and true negatives at each threshold, (thresholds, 4).

    `positive` and `score` (n,) are the true classes (bool) and the scores of samples.
    """
    sides = (np.sort(score[positive]), np.sort(score[~positive]))
    tp, fp = (len(side) - np.searchsorted(side, threshold) for side in sides)
    return np.stack([tp, fp, len(sides[0]) - tp, len(sides[1]) - fp], 1)


def choose(rule: Threshold, positive: np.ndarray, score: np.ndarray) -> float:
    """Return the threshold that a rule chooses from the true classes (bool) and scores (n,) of validation samples.

    value : the declared threshold, whatever the samples
    specificity : the smallest observed score with at least this specificity; infinite if none has it
    sensitivity : the largest observed score with at least this sensitivity
    youden : the observed score with the largest sensitivity + specificity - 1, the smallest of equal ones

    Return NaN if the samples lack a class and the rule needs them.
    """
    if rule.value is not None:
        return rule.value
    positive = np.asarray(positive, dtype=bool)
    score = np.asarray(score, dtype=float)
    if not 0 < positive.sum() < len(positive):
        return NAN
    threshold = np.unique(score)
    tp, fp, fn, tn = _reached(positive, score, threshold).T
    fit = {
        "specificity": threshold[tn / (tn + fp) >= rule.level][:1],
        "sensitivity": threshold[tp / (tp + fn) >= rule.level][-1:],
        "youden": threshold[[np.argmax(tp * tn - fp * fn)]],  # J times both numbers: exact ties
    }[rule.rule]
    return float(fit[0]) if len(fit) else math.inf


def chosen_without(rule: Threshold, positive: np.ndarray, score: np.ndarray, people: np.ndarray) -> np.ndarray:
    """Return the thresholds (groups,) that a rule chooses without each group of validation patients in turn.

    They serve a jackknife. `positive`, `score` and `people` (n,) are true class (bool), score and patient of each
    sample. There are 10 groups (GROUPS), or as many as patients if these are fewer. Groups have equally many patients
    with a positive sample, up to one. Return an empty array for a rule that needs no samples.
    """
    if rule.value is not None:
        return np.empty(0)
    positive = np.asarray(positive, dtype=bool)
    _, people = np.unique(people, return_inverse=True)
    group = np.empty(people.max(initial=-1) + 1, dtype=int)
    # Patients without a positive sample first, then those with one, are dealt to the groups in turn.
    group[np.argsort(np.bincount(people, positive) > 0, kind="stable")] = np.arange(len(group)) % GROUPS
    kept = [group[people] != g for g in range(min(GROUPS, len(group)))]
    return np.array([choose(rule, positive[rows], score[rows]) for rows in kept])


def choice(positive: np.ndarray, score: np.ndarray, without: np.ndarray) -> np.ndarray:
    """Return the influence of each group of validation patients on the six RATES of samples, through the threshold.

    The result is (groups, 6). `positive` and `score` (n,) are the true classes (bool) and scores of the samples, and
    `without` (groups,) the thresholds that are chosen without one group of validation patients (see `chosen_without`).
    The sum of squares over groups is the grouped jackknife variance, which also holds for thresholds that are quantiles
    (Shao and Wu, Ann Stat 1989;17:1176). A rate is NaN if it is not defined without one of the groups.
    """
    if not len(without):
        return np.empty((0, len(RATES)))
    found = rates(_reached(np.asarray(positive, dtype=bool), np.asarray(score), without).astype(float))
    found[np.isnan(without)] = np.nan
    return np.sqrt(1 - 1 / len(without)) * (found.mean(0) - found)


def counted(positive: np.ndarray, score: np.ndarray, threshold: float) -> np.ndarray:
    """Return which of COUNTS each sample adds to, as 0 or 1, (n, 4); NaN throughout if the threshold is NaN.

    COUNTS are true and false positives, false and true negatives. `positive` and `score` (n,) are the true class (bool)
    and the score of each sample.
    """
    if np.isnan(threshold):
        return np.full((len(positive), 4), np.nan)
    positive = np.asarray(positive, dtype=bool)
    flagged = np.asarray(score) >= threshold
    cells = [positive & flagged, ~positive & flagged, positive & ~flagged, ~positive & ~flagged]
    return np.stack(cells, 1).astype(float)


def rates(counts: np.ndarray) -> np.ndarray:
    """Return the rates (..., 6) of counts (..., 4); NaN if the denominator is 0.

    Counts are true and false positives, false and true negatives. Rates are sensitivity, specificity, PPV, NPV,
    prevalence and the share of samples that are flagged as positive.
    """
    above = counts @ _ABOVE
    below = counts @ _BELOW
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def bounds(
    counts: np.ndarray, people: np.ndarray, group: Group = ("", ""), choices: np.ndarray | None = None
) -> np.ndarray:
    """Return the 95% intervals (2, 6) of the six RATES, as means over trainings, at a site.

    `counts` (trainings, samples, 4) say which of COUNTS each sample adds to. `people` are the patients of the samples
    (samples,), and `group` says whose patients they are. Intervals are over patients and trainings, each training with
    its own threshold, and equal those of the metrics of the same name at the threshold 0.5; see `estimates`.

    Other validation patients would give another threshold. `choices` (trainings, groups, 6) are the influences of
    groups of validation patients, who are no patients of the samples (see `choice`). Without it, thresholds count as
    fixed.
    """
    return _bounds(_trained(counts, people, group), choices)


def _trained(counts: np.ndarray, people: np.ndarray, group: Group) -> list[list[Estimate]]:
    """Return the estimates of the six RATES for each training.

    `counts` (trainings, samples, 4) say which of COUNTS each sample adds to, and `people` (samples,) are the patients.
    """
    above = counts @ _ABOVE
    below = counts @ _BELOW
    mean = rates(counts.sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):  # nothing below the line, and thus no rate
        # A sample moves a ratio of sums by what it adds above the line beyond the rate of what it adds below.
        moved = (above - mean[:, None] * below) / below.sum(1, keepdims=True)
    moved = np.where(below > 0, moved, np.nan)
    return [
        [estimates.single(mean[n, k], moved[n, :, k], people, group, n, "share") for k in range(len(RATES))]
        for n in range(len(counts))
    ]


def _bounds(trainings: Sequence[Sequence[Estimate]], choices: np.ndarray | None) -> np.ndarray:
    """Return the 95% intervals (2, 6) of RATES as means over `trainings`, given the six estimates of each training.

    `choices` (trainings, groups, 6) are the influences of validation patients through the threshold, None if it is
    fixed.
    """
    out = []
    for k, of_rate in enumerate(zip(*trainings, strict=True)):
        rate = estimates.over_trainings(of_rate)
        if choices is not None and choices.size and rate.parts:
            size = min(choices.shape[1], GROUPS)
            chosen = estimates.Part(choices[..., k], 0, size, size - 1.0)
            rate = replace(rate, parts={**rate.parts, ("", VALIDATION): chosen})
        low, high, *_ = rate.bounded((0.0, 1.0))
        out.append((low, high))
    return np.array(out).T


def positive_class(study: Study) -> int:
    """Return the index of the positive class of a study with two classes: the declared one, else the second."""
    return study.dataset.classes.index(study.positive) if study.positive is not None else 1


def table(names: Names, predicted: Predictions, samples: Samples) -> pd.DataFrame:
    """Return operating_points.csv: counts and rates at the threshold of each training.

    There is a row for each condition, inference, site and training. The column `role` is internal, external, or
    `validation` for the samples that chose the threshold, of all internal sites together. A row with `run` "*" has
    means over trainings of counts, rates and `threshold`, and their bounds in the columns `_low` and `_high` (see
    `bounds`). A column `_drift` is a rate minus the same rate of the validation samples. The table is empty for studies
    with more than two classes.
    """
    rows: list[dict[str, Any]] = []
    for condition in names.conditions.values() if names.plan.study.two_classes else ():
        patients = clusters(samples, condition.run.data.id)
        for key in condition.inferences:
            rows += _rows(predicted, condition, key, patients)
    return names.table(rows, COLUMNS).astype({"seed": "Int64"})


class Point(NamedTuple):
    """The operating point of a condition and inference at a site, as means over trainings.

    Attributes
    ----------
    thresholds : the threshold of each training
    patients, samples : numbers of patients and samples; a sample without a known patient counts as a patient
    counts : mean numbers of true and false positives, false and true negatives
    rates : means of RATES with their intervals
    drifts : sensitivity and specificity minus those of the validation samples
    """

    thresholds: tuple[float, ...]
    patients: int
    samples: int
    counts: dict[str, float]
    rates: dict[str, Value]
    drifts: dict[str, float]

    @property
    def only(self) -> str:
        """The name of the rate that is defined if all samples are of one class: sensitivity or specificity.

        It is empty if there are samples of both classes.
        """
        return {1.0: "sensitivity", 0.0: "specificity"}.get(self.rates["prevalence"].mean, "")


def predictive_values(point: Point, prevalence: float) -> tuple[Value, Value]:
    """Return the positive and the negative predictive value at another prevalence, from sensitivity and specificity.

    PPV = se pi / (se pi + (1 - sp) (1 - pi)) at the prevalence pi; NPV is the same for the other class. Both grow with
    either rate. So their bounds are taken at both lower and at both upper bounds of the rates, which is conservative,
    however the rates depend on each other. NaN if a rate is not defined, or no sample would be called positive (for the
    NPV, negative).
    """

    def predictive(own: Value, other: Value, share: float) -> Value:
        right, wrong = ([getattr(rate, end) for end in ("mean", "low", "high")] for rate in (own, other))
        called = [(r * share, (1 - w) * (1 - share)) for r, w in zip(right, wrong, strict=True)]
        mean, low, high = (r / (r + w) if r + w > 0 else NAN for r, w in called)
        return Value(mean, NAN, own.seeds, low, high)

    sensitivity, specificity = (point.rates[name] for name in DRIFTS)
    return predictive(sensitivity, specificity, prevalence), predictive(specificity, sensitivity, 1 - prevalence)


Points = dict[tuple[str, str, str, str], Point]
"""Operating points by the ids of condition and inference, role and site."""


def points(table: pd.DataFrame) -> Points:
    """Return the operating points in operating_points.csv, by condition, inference, role and site."""
    found: Points = {}
    places: dict[tuple[str, str, str, str], dict[str, dict[Hashable, Any]]] = defaultdict(dict)
    for row in table.to_dict("records"):
        condition, inference, role, site = (row[name] for name in (*IDS, "role", "site"))
        places[condition, inference, role, site][row["run"]] = row
    for place, rows in places.items():
        whole = rows.pop(ALL)
        trainings = [*rows.values()]
        rates = {name: _rate(name, whole, trainings) for name in RATES}
        drifts = {name: float(whole[f"{name}_drift"]) for name in DRIFTS}
        counts = {name: float(whole[name]) for name in COUNTS}
        thresholds = tuple(row["threshold"] for row in trainings)
        found[place] = Point(thresholds, int(whole["patients"]), int(whole["samples"]), counts, rates, drifts)
    return found


def _rate(name: str, whole: Mapping[Hashable, Any], each: Sequence[Mapping[Hashable, Any]]) -> Value:
    """Return a rate with its standard deviation over trainings and its bounds.

    `whole` is the row of the mean over trainings, and `each` are the rows of single trainings.
    """
    low, high = (float(whole[f"{name}_{end}"]) for end in ("low", "high"))
    defined = [row[name] for row in each if not math.isnan(row[name])]
    std = float(np.std(defined, ddof=1)) if len(defined) > 1 else NAN
    return Value(float(whole[name]), std, len(each), low, high, int(whole["samples"]), NAN, NAN, low, high)


class Scored(NamedTuple):
    """The samples of a site with their scores.

    Attributes
    ----------
    positive : whether samples are of the positive class (n,)
    score : probabilities of the positive class (n,)
    patient : numbers of the patients (n,)
    group : data and site whose patients these are
    """

    positive: np.ndarray
    score: np.ndarray
    patient: np.ndarray
    group: Group


def scored(study: Study, part: Part, patients: Clusters) -> Scored:
    """Return the predictions of a site (`part`) as true classes, scores and patients."""
    positive = positive_class(study)
    people = patients.of(part.samples, part.site)
    return Scored(part.label == positive, part.probability[:, positive], people, patients.group(part.site))


def together(places: Sequence[Scored]) -> Scored:
    """Return the samples of several sites as one set. Patients of different groups stay different patients."""
    if not places:
        return Scored(np.empty(0, dtype=bool), np.empty(0), np.empty(0, dtype=int), ("", ""))
    groups = [*dict.fromkeys(place.group for place in places)]
    people = [place.patient * len(groups) + groups.index(place.group) for place in places]
    positive, score = (np.concatenate(side) for side in zip(*(place[:2] for place in places), strict=True))
    return Scored(positive, score, np.concatenate(people), ("", ""))


class _Training(NamedTuple):
    """The threshold of one training, and its samples by role and site, with the validation samples first.

    `without` are the thresholds that are chosen without groups of validation patients (see `chosen_without`).
    """

    threshold: float
    without: np.ndarray
    places: dict[tuple[str, str], Scored]


def _trainings(
    predicted: Predictions, condition: Condition, key: str, patients: Clusters
) -> Iterator[tuple[str, _Training]]:
    """Yield the id of each run of a condition, with the threshold that it chose and its validation and test samples.

    `predicted` are the predictions of the study, `key` the id of the inference, and `patients` numbers the patients of
    samples. Runs without predictions are left out.
    """
    study = predicted.plan.study
    for run, test in predicted.by_site(condition.runs.values(), key):
        try:
            val = predicted.parts(run, key, "val")
        except Missing:
            val = []
        home = together([scored(study, part, patients) for part in val])
        places = {(VALIDATION, ALL): home}
        places |= {(part.role, part.site): scored(study, part, patients) for part in test}
        threshold = choose(study.threshold, home.positive, home.score)
        without = chosen_without(study.threshold, home.positive, home.score, home.patient)
        yield run.id, _Training(threshold, without, places)


def _rows(predicted: Predictions, condition: Condition, key: str, patients: Clusters) -> Iterator[dict[str, Any]]:
    """Yield the rows of one condition and inference (`key`): for each site, one for each training, then their mean."""
    study = predicted.plan.study
    trainings = dict(_trainings(predicted, condition, key, patients))
    thresholds = np.array([training.threshold for training in trainings.values()])
    groups = {**{name: [n] for n, name in enumerate(trainings)}, ALL: [*range(len(trainings))]}
    home: dict[str, np.ndarray] = {}
    for role, site in next(iter(trainings.values())).places if trainings else ():
        parts = [training.places[role, site] for training in trainings.values()]
        counts, people = _stacked(parts, thresholds)
        choices = _choices([*trainings.values()], (role, site)) if role != VALIDATION else None
        trained = _trained(counts, people, parts[0].group)
        for name, members in groups.items():
            mean = rates(counts[members].sum(1)).mean(0)
            change = mean - home.setdefault(name, mean)  # validation comes first
            low, high = _bounds([trained[n] for n in members], None if choices is None else choices[members])
            yield {
                **{"condition_id": condition.id, "inference_id": key, "role": role, "site": site, "run": name},
                "seed": condition.runs[name].seed if name != ALL else None,
                "rule": study.threshold.label,
                "positive": study.dataset.classes[positive_class(study)],
                "threshold": float(thresholds[members].mean()),
                "patients": len(np.unique(np.concatenate([parts[n].patient for n in members]))),
                "samples": len(parts[members[0]].patient),
                **dict(zip(COUNTS, counts[members].sum(1).mean(0), strict=True)),
                **dict(zip(RATES, mean, strict=True)),
                **dict(zip((f"{rate}_low" for rate in RATES), low, strict=True)),
                **dict(zip((f"{rate}_high" for rate in RATES), high, strict=True)),
                **{f"{rate}_drift": change[[*RATES].index(rate)] for rate in DRIFTS if role != VALIDATION},
            }


def _choices(trainings: Sequence[_Training], place: tuple[str, str]) -> np.ndarray:
    """Return the influences (trainings, groups, 6) of validation patients on the rates at a place (role and site).

    Trainings on the same fold share their validation patients. Trainings on another fold have others, whose influence
    on them is 0. See `choice`.
    """
    homes = [training.places[VALIDATION, ALL].patient.tobytes() for training in trainings]
    sizes = {home: len(training.without) for home, training in zip(homes, trainings, strict=True)}
    ends = dict(zip(sizes, itertools.accumulate(sizes.values()), strict=True))
    out = np.zeros((len(trainings), sum(sizes.values()), len(RATES)))
    for row, home, one in zip(out, homes, trainings, strict=True):
        row[ends[home] - sizes[home] : ends[home]] = choice(
            one.places[place].positive, one.places[place].score, one.without
        )
    return out


def _stacked(parts: Sequence[Scored], thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts (trainings, samples, 4) at one site, and the number of each sample's patient (samples,).

    `parts` are the samples of each training, and `thresholds` (trainings,) their thresholds. Trainings on the same fold
    predict the same samples. The samples of another fold count 0 in them.
    """
    places: dict[bytes, slice] = {}
    patients: list[np.ndarray] = []
    for part in parts:
        if part.patient.tobytes() not in places:
            first = sum(map(len, patients))
            places[part.patient.tobytes()] = slice(first, first + len(part.patient))
            patients.append(part.patient)
    _, people = np.unique(np.concatenate(patients), return_inverse=True)
    stacked = np.zeros((len(parts), len(people), len(COUNTS)))
    for n, (part, threshold) in enumerate(zip(parts, thresholds, strict=True)):
        stacked[n, places[part.patient.tobytes()]] = counted(part.positive, part.score, threshold)
    return stacked, people
