"""What both sides know of a run's messages beforehand is what sites and server really send, for every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import ADDONS, ALGORITHMS, Combination
from in_memory import InMemory
from rotation import of_day
from toy import CLASSES, SHAPE, clients

from fedshift.core.errors import UserError
from fedshift.engine.coordinator import Coordinator
from fedshift.engine.local_training import LocalTrainer
from fedshift.engine.messages import Message, MessageForms
from fedshift.engine.specification import Specification
from fedshift.hospitals.agreed import rehearsed

TRIED = [Combination(name, bn) for name in sorted(ALGORITHMS) if name != "pooled" for bn in ALGORITHMS[name].policies]
TRIED += [Combination("scaffold", "local", addon) for addon in ADDONS if addon]
ROUNDS = 4


def opened(combination: Combination, **training: Any) -> Specification:
    settings = combination.settings
    settings["training"] = settings["training"] | {"rounds": ROUNDS} | training
    return Specification.open(combination.network(), **settings)


def forms_of(specification: Specification, sites: int = 3) -> MessageForms:
    return rehearsed(specification, SHAPE, CLASSES, sites)


def trained(combination: Combination, folder: Path, **training: Any) -> Coordinator:
    """A run whose sites and server refuse every tensor that is not known beforehand."""
    forms = forms_of(opened(combination, **training))
    sites = InMemory(lambda: opened(combination, **training), clients(), folder, kept=True, validation=clients(seed=1))
    sites.forms = forms
    return Coordinator.open(sites.opened(), sites, forms=forms).run()


@pytest.mark.parametrize("combination", of_day(TRIED, 4), ids=str)
def test_no_message_of_an_honest_run_is_refused(combination: Combination, tmp_path: Path) -> None:
    assert trained(combination, tmp_path).missing == []


@pytest.mark.parametrize(
    "training",
    [
        {"participation": 0.67},
        {"equal_steps": True, "weights": "uniform"},
        {"class_weights": "balanced"},
        {"running_variance": "pooled"},
        {"training_loss_every": 2, "select": "best_validation", "select_by": "loss", "patience": 1},
        {"select": "best_validation", "select_by": "auc"},
        {"epochs_at": {"b": 2}, "optimiser": "adam", "batch_size": 4},
    ],
    ids=lambda training: next(iter(training)),
)
def test_settings_of_training_change_no_names(training: dict[str, Any], tmp_path: Path) -> None:
    assert trained(Combination("fedap", "local"), tmp_path, **training).missing == []


def test_a_joint_step_that_ends_before_the_last_round_is_known(tmp_path: Path) -> None:
    """FedTAN-II exchanges means in its first rounds alone: both kinds of rounds are rehearsed."""
    forms = forms_of(opened(Combination("fedtan2", ALGORITHMS["fedtan2"].policies[0])))
    assert forms.means > 0
    names = [{*known} for known in forms.questions["train"]]
    assert {"received"} in names
    assert any("mean/0" in known for known in names)


def test_the_forms_of_scaffold_are_its_network_and_its_control_variate() -> None:
    specification = opened(Combination("scaffold", "aggregated"))
    forms = forms_of(specification)
    shared = LocalTrainer(specification, specification.training, torch.device("cpu"), False).shared
    (asked,), (answered,) = forms.questions["train"], forms.answers["train", 0]
    form = tuple(shared.shape), shared.dtype
    assert asked.keys() == {"received", "broadcast/c"}
    assert asked["received"] == answered["shared"] == form
    with pytest.raises(UserError, match="has tensors d, shared, expected c, shared"):
        forms.require_answer(Message("train", {}, {}), Message("train", {}, {"shared": shared, "d": shared}))
