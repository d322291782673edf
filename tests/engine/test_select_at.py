"""Rounds that are chosen at sites which neither train nor test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedshift import Federation
from fedshift.algorithms import Training
from fedshift.core.errors import UserError

Sites = dict[str, tuple[Tensor, Tensor]]
SETTINGS: dict[str, Any] = {"rounds": 6, "batch_size": 4, "lr": 0.5, "select_at": ["far", "third"]}


def site(seed: int, centre: float, n: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    return torch.randn(n, 3, generator=generator) + centre + y[:, None], y


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


CLIENTS: Sites = {"a": site(1, 0), "b": site(2, 0.5)}
OUTSIDE: Sites = {"far": site(3, 1.5), "third": site(4, -1.0, 10)}


def federation(validation: Sites, bn: str = "local", algorithm: str = "fedavg", **changes: Any) -> Federation:
    training = {**SETTINGS, **changes}
    return Federation(network(), CLIENTS, validation=validation, algorithm=algorithm, bn=bn, training=training)


@pytest.mark.parametrize("bn", ["aggregated", "local"])
def test_the_round_with_the_best_mean_at_these_sites_is_kept(bn: str) -> None:
    """Losses of every round in NumPy, from the global network of that round; each site counts alike."""
    losses = list[float]()

    def note(trained: Federation) -> None:
        last = Federation(network(), CLIENTS, bn=bn, training={"select": "last", "rounds": 6, "batch_size": 4})
        last.restore(trained.tensors(), trained.progress() | {"selected": None})
        model = network()
        model.load_state_dict(last.global_state())
        each = []
        for x, y in OUTSIDE.values():
            logits = model.eval()(x).detach().double().numpy()
            p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            each.append(-np.log(p[np.arange(len(y)), y.numpy()]).mean())
        losses.append(float(np.mean(each)))

    trained = federation(OUTSIDE | {"a": site(9, 5)}, bn, select_by="loss").run(after_round=note)
    assert trained.selected
    assert len(set(losses)) == 6
    assert trained.selected.round == 1 + int(np.argmin(losses))
    assert trained.selected.values == pytest.approx([min(losses)], rel=1e-5)
    assert {row["site"] for row in trained.history if row["split"] == "val"} == {"far", "third"}


def test_nothing_but_the_choice_depends_on_these_sites() -> None:
    chosen, last = federation(OUTSIDE).run(), federation({}, select="last", select_at=[]).run()
    for name, tensor in last.rounds.server.state.items():
        assert torch.equal(tensor, chosen.rounds.server.state[name])
    assert torch.equal(chosen.rounds.server.shared, last.rounds.server.shared)
    assert chosen.ledger() == last.ledger()


@pytest.mark.parametrize(
    ("validation", "changes", "words"),
    [
        ({"far": site(3, 1)}, {}, "site 'third' has no validation samples"),
        (OUTSIDE, {"select_at": ["a"]}, "'a' is a client; name sites that do not train"),
        (OUTSIDE, {"algorithm": "local"}, "needs a global network, and with local"),
        (OUTSIDE, {"select": "last"}, "chooses the round, but select is last"),
        ({**OUTSIDE, "thrid": site(4, 0)}, {}, "'thrid' is not a client"),
    ],
)
def test_what_cannot_choose_is_one_line(validation: Sites, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        federation(validation, **changes)


def test_studies_without_it_keep_their_ids() -> None:
    assert "select_at" not in Training().identity()
    assert Training(select_at=("far",)).identity()["select_at"] == ["far"]
