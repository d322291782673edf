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

SEEDS = 10
TRAINED, CHOSEN_AT, TESTED = {"centre0", "centre3", "centre4"}, ("centre1",), ("centre2",)


def rules(findings: Findings) -> list[str]:
    """Return one line about WILDS' rules for a study of Camelyon17; nothing for any other dataset."""
    if not isinstance(findings.plan.study.dataset, Camelyon17):
        return []
    departures = list(_departures(findings))
    verdict = (
        f"non-standard, because {'; '.join(departures)}" if departures else "standard, as far as fedshift can tell"
    )
    text = f"{verdict[:1].upper()}{verdict[1:]}. This is no official entry, which takes WILDS' own evaluator."
    if any(data.synthetic for data in findings.plan.data.values()):
        text = f"They do not apply to synthetic images. On the real images, these settings would be {verdict}."
    return [text]


def _departures(findings: Findings) -> Iterator[str]:
    """Yield each way in which a study departs from the rules of a standard entry."""
    plan = findings.plan
    names = {key: findings.name(key) for key in plan.inferences}
    if any(run.algorithm.collaboration.count(len(TRAINED)) > 1 for run in plan.runs.values()):
        yield "training is federated, a protocol of its own"
    if (seeds := min(len(condition.runs) for condition in findings.conditions)) < SEEDS:
        yield f"there {'is one seed' if seeds == 1 else f'are {seeds} seeds'}, fewer than the {SEEDS} for Camelyon17"
    for part in plan.partitions:
        if set(part.internal) != TRAINED or part.external != TESTED or part.split.train < 1 or part.truncate:
            yield "the split is not the official one (training at centres 0, 3 and 4, test at centre 2)"
            break
    if any(run.data.dataset.model_dump().get("id_val") for run in plan.runs.values()):
        yield "the patches that WILDS keeps for in-distribution validation train too"
    if any(run.training.select != "last" and run.training.select_at != CHOSEN_AT for run in plan.runs.values()):
        yield "the round is not chosen at centre 1"
    inferences = plan.inferences.items()
    if batches := [names[key] for key, how in inferences if how.score_columns()["batch_size"]]:
        yield f"{listed(batches)} {'take' if len(batches) > 1 else 'takes'} statistics of test images, without labels"
    if labelled := [names[key] for key, how in inferences if how.uses_labels]:
        yield f"{listed(labelled)} {'use' if len(labelled) > 1 else 'uses'} labels of the test centre"
