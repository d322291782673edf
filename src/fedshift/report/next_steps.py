"""What an author may change in the YAML of a study whose answer is open: a line for each reason that has one."""

from __future__ import annotations

import json
from collections.abc import Callable

from ..analysis.comparisons import FEWEST_TRAININGS
from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.verdict import Reason, Verdict

UNEQUAL = 0.1
"""Classes are unequal where the commonest one has so much more than an equal share."""
FEWEST_SITES = 3
"""With fewer internal sites, none of them can be kept out of the training."""


def _folds(findings: Findings, condition: Condition, judged: Verdict, late: bool) -> str:
    """Return folds, which test every patient of an internal site once, where these leave the answer open."""
    outside = findings.effect("level", condition, findings.level_inference(condition), "external")
    fewer = not judged.home.patients > outside.patients
    return "" if condition.partition.split.folds or not fewer else "partition: { split: { folds: 5 } }"


def _seeds(findings: Findings, condition: Condition, judged: Verdict, late: bool) -> str:
    enough = len(condition.seeds) >= FEWEST_TRAININGS
    return "" if enough else f"seeds: {json.dumps(list(range(FEWEST_TRAININGS)))}"


def _weights(findings: Findings, condition: Condition, judged: Verdict, late: bool) -> str:
    """Return the weights with which a rare class counts as much as a common one."""
    equal = 1 / max(len(findings.plan.study.dataset.classes), 2)
    key = findings.level_inference(condition)
    most = [findings.value(condition, role, site, key, "accuracy").majority for role, site in condition.sites()]
    unequal = any(share > equal + UNEQUAL for share in most)
    weighed = condition.run.training.class_weights is not None
    return "training: { class_weights: balanced }" if unequal and not weighed else ""


def _rounds(findings: Findings, condition: Condition, judged: Verdict, late: bool) -> str:
    return f"training: {{ rounds: {2 * condition.run.training.rounds} }}" if late else ""


def _outside(findings: Findings, condition: Condition, judged: Verdict, late: bool) -> str:
    inside = condition.partition.internal
    if len(inside) < FEWEST_SITES:
        return ""
    lists = (json.dumps(list(sites), ensure_ascii=False) for sites in (inside[:-1], inside[-1:]))
    return "partition: {{ internal: {}, external: {} }}".format(*lists)


def _tests(findings: Findings, condition: Condition, judged: Verdict, late: bool) -> str:
    return "partition: { split: { train: 0.6, val: 0.2, test: 0.2 } }"


Step = Callable[[Findings, Condition, Verdict, bool], str]
STEPS: dict[Reason, tuple[Step, ...]] = {
    Reason.HOME_FAILS: (_weights, _rounds),
    Reason.HOME_IN_DOUBT: (_weights, _rounds, _folds, _seeds),
    Reason.HOME_WITHOUT_INTERVAL: (_folds,),
    Reason.WITHOUT_INTERVAL: (_folds,),
    Reason.WEAK_AT_HOME: (_weights, _rounds),
    Reason.TOO_WIDE: (_seeds, _folds),
    Reason.NO_EXTERNAL_SITE: (_outside,),
    Reason.HOME_UNTESTED: (_tests,),
}
"""What may help for a reason, in the order in which it is tried. An answer that is not open needs none."""


def next_step(findings: Findings, condition: Condition, judged: Verdict, late: bool) -> str:
    """Return a line of YAML that may settle what is open; empty where no setting would.

    `late` says that trainings may not have converged.
    """
    steps = STEPS.get(judged.reason, ()) if judged.reason else ()
    return next(filter(None, (step(findings, condition, judged, late) for step in steps)), "")
