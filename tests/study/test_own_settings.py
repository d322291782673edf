"""Studies of the papers say in their notes which of their settings the paper does not have."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fedshift import study
from fedshift.study.plan import Plan

FOLDER = Path(__file__).parents[2] / "config" / "studies"
PAPERS = [name for name in study.names(FOLDER) if name.startswith(("fedbn-", "tsmobn-", "unifed-", "fedtan-"))]


@functools.cache
def planned(name: str) -> Plan:
    """Return a study of the papers, which both tests below look at."""
    return study.load(FOLDER / f"{name}.yaml", "paper")


def step(name: str) -> Callable[[Plan], bool]:
    """Return the function that tells whether a study has a step between stored image and network."""
    return lambda plan: any(transform.name == name for run in plan.runs.values() for transform in run.transforms)


def limited(plan: Plan) -> bool:
    return plan.study.dataset.name in ("office_caltech10", "domainnet10") and plan.name.startswith("fedtan")


def restarts(plan: Plan) -> bool:
    """Return whether centralised training has momentum and rounds of single steps."""
    return any(
        run.algorithm.name == "pooled" and run.training.momentum and run.training.local_steps
        for run in plan.runs.values()
    )


def any_training(name: str, *values: object) -> Callable[[Plan], bool]:
    return lambda plan: any(getattr(run.training, name) in values for run in plan.runs.values())


def outside(plan: Plan) -> bool:
    """Return whether FedBN, as it is, predicts sites that never train."""
    inside = plan.name.startswith(("tsmobn", "unifed"))
    local = [run for run in plan.runs.values() if run.algorithm.name == "fedavg" and run.bn == "local"]
    return inside and any(run.partition.external for run in local)


OURS: dict[str, tuple[Callable[[Plan], bool], str]] = {
    "flips": (step("flip"), r"flip"),
    "rotations": (step("rotate"), r"rotat"),
    "crops": (step("random_crop"), r"crop"),
    "normalisation": (step("normalize"), r"normalis|mean and deviation"),
    "batches with replacement": (any_training("replacement", True), r"with replacement"),
    "the last round": (any_training("select", "last"), r"last (of \d+ )?round"),
    "severity": (lambda plan: plan.study.dataset.name == "cifar10c", r"severity"),
    "FedBN's number of training images": (limited, r"\b(62|105) training images"),
    "momentum that starts anew": (restarts, r"momentum begins at zero"),
    "FedBN outside": (outside, r"external_bn: initial"),
    "images of 28x28 digits in -1..1": (
        lambda plan: plan.study.dataset.name in ("digits_five", "digits_dg", "morpho_mnist"),
        r"-1 ?(\.\.|to) ?1",
    ),
    "group norm": (
        lambda plan: any(run.model.spec().get("norm") == "group" for run in plan.runs.values()),
        r"[Gg]roup",
    ),
    "rounds on MNIST": (lambda plan: plan.study.dataset.name == "mnist", r"number of rounds"),
}
"""Settings that no paper has, or that another paper has: which studies have one, and what their notes must say."""
STATED = {("severity", "tsmobn-table1"), ("severity", "tsmobn-table4")}
"""Settings that the paper of a study does state."""


@pytest.mark.parametrize("name", PAPERS)
def test_what_no_paper_has_stands_in_the_notes(name: str) -> None:
    plan = planned(name)
    notes = " ".join(plan.study.notes)
    for setting, (has_it, words) in OURS.items():
        if has_it(plan) and (setting, name) not in STATED:
            assert re.search(words, notes), (
                f"{name} has {setting}, and its notes do not say that this is its own choice"
            )


def test_each_of_these_settings_is_in_use() -> None:
    """A setting that no study has any more is no longer checked."""
    plans = [planned(name) for name in PAPERS]
    for setting, (has_it, _) in OURS.items():
        assert any(has_it(plan) for plan in plans), setting
