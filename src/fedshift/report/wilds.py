"""The rules of the WILDS benchmark for Camelyon17, and how a study departs from them.

Rules: https://wilds.stanford.edu/submit (Koh et al. 2021). The official split trains on centres 0, 3 and 4, validates
on centre 1 and tests on centre 2; 10 seeds; batch norm takes no statistics of test images, and neither labels nor
statistics of test data influence a standard entry.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..analysis.findings import Findings
from ..analysis.values import listed
from ..datasets.camelyon17 import Camelyon17
from .phrases import capital, verb

SEEDS = 10
TRAINED, CHOSEN_AT, TESTED = {"centre0", "centre3", "centre4"}, ("centre1",), ("centre2",)


def rules(findings: Findings) -> list[str]:
    """Return one line about WILDS' rules for a study of Camelyon17; nothing for any other dataset."""
    if not isinstance(findings.plan.study.dataset, Camelyon17):
        return []
    departures = list(_departures(findings))
    verdict = "standard, as far as fedshift can tell"
    if departures:
        verdict = f"non-standard, because {'; '.join(departures)}"
    if any(data.synthetic for data in findings.plan.data.values()):
        return [f"They do not apply to synthetic images. On the real images, these settings would be {verdict}."]
    return [f"{capital(verdict)}. This is not an official entry, which takes WILDS' own evaluator."]


def _departures(findings: Findings) -> Iterator[str]:
    """Yield each way in which a study departs from the rules of a standard entry."""
    plan = findings.plan
    names = {key: findings.name(key) for key in plan.inferences}
    if any(run.algorithm.collaboration.count(len(TRAINED)) > 1 for run in plan.runs.values()):
        yield "training is federated, which is another protocol"
    seeds = min(len(condition.seeds) for condition in findings.conditions)
    if seeds < SEEDS:
        there_are = {1: "there is one seed"}.get(seeds, f"there are {seeds} seeds")
        yield f"{there_are}, fewer than the {SEEDS} for Camelyon17"
    for part in plan.partitions:
        # one partition that departs is enough; the sentence does not name it
        if set(part.internal) != TRAINED or part.external != TESTED or part.split.train < 1 or part.truncate:
            yield "the split is not the official one (training at centres 0, 3 and 4, test at centre 2)"
            break
    if any(run.data.dataset.model_dump().get("id_val") for run in plan.runs.values()):
        yield "the patches that WILDS keeps for in-distribution validation train too"
    if any(run.training.select != "last" and run.training.select_at != CHOSEN_AT for run in plan.runs.values()):
        yield "the round is not chosen at centre 1"
    batches = [names[key] for key, inference in plan.inferences.items() if inference.score_columns()["batch_size"]]
    if batches:
        yield f"{listed(batches)} {verb(len(batches), 'take')} statistics of test images, without labels"
    labelled = [names[key] for key, inference in plan.inferences.items() if inference.uses_labels]
    if labelled:
        yield f"{listed(labelled)} {verb(len(labelled), 'use')} labels of the test centre"
