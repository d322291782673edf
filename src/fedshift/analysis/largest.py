"""Scores without the patients that have most test samples: whether a few of them decide a result."""

from __future__ import annotations

import functools
from collections import defaultdict

import numpy as np

from . import estimates, folds
from .clusters import Clusters
from .effects import Estimates
from .estimates import Estimate
from .folds import Whole
from .predictions import Part

Place = tuple[str, str, str]
"""Role, site and the id of an inference."""


class Without:
    """The scores of a study without the patients with most test samples, a `number` of them at each site."""

    def __init__(self, study: Estimates, number: int) -> None:
        self.study = study
        self.number = number

    def level(self, id_: str, role: str, inference: str, metric: str, site: str) -> Estimate | None:
        """Return the score of a condition at a site without its largest patients; None where there is none."""
        return self._of_condition(id_, metric).get((role, site, inference))

    @functools.cache  # noqa: B019 - lives as long as the table is made
    def _of_condition(self, id_: str, metric: str) -> dict[Place, Estimate]:
        condition = self.study.names.conditions[id_]
        people = self.study.clusters[condition.run.data.id]
        trainings: dict[Place, list[Estimate]] = defaultdict(list)
        for whole in sorted(folds.wholes([condition], self.study.predicted), key=lambda whole: whole.seed):
            _, role, site, inference = whole.level
            parts = self._fewer(whole, people)
            trainings[role, site, inference].append(
                folds.estimate(self.study.metrics[metric], parts, people, whole.seed)
            )
        return {place: estimates.over_trainings(parts) for place, parts in trainings.items()}

    def _fewer(self, whole: Whole, people: Clusters) -> list[Part]:
        """Return the predictions without those of the patients with most samples; of equal ones the first are left out.

        At an external site each fold predicts the same samples, so that no patient gains by it.
        """
        patients = [people.of(part.samples, part.site) for part in whole.parts]
        counts = np.bincount(np.concatenate(patients))
        largest = np.argsort(-counts, kind="stable")[: self.number]
        return [_rows(part, ~np.isin(patient, largest)) for part, patient in zip(whole.parts, patients, strict=True)]


def _rows(part: Part, kept: np.ndarray) -> Part:
    return part._replace(samples=part.samples[kept], label=part.label[kept], probability=part.probability[kept])
