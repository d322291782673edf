"""BN policies: what is averaged, what never leaves a client, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import SIZES, TRAVELS, clients, differing, kinds, network

from fedshift import Federation, Training
from fedshift.models.mlp import MLP

SETTINGS = Training(rounds=3, batch_size=4, lr=0.05)
KINDS = ("affine", "weights", "statistics")


def trained(bn: str, norm: str = "batch norm", rounds: int = 3, **options: Any) -> Federation:
    return Federation(network(norm), clients(), bn=bn, **{"training": SETTINGS, **options}).run(rounds)


def pick(state: dict[str, Tensor], *which: str) -> dict[str, Tensor]:
    return {k: state[k] for kind in which for k in kinds(network())[kind]}


@pytest.mark.parametrize("bn", TRAVELS)
def test_clients_agree_on_what_travels_and_on_nothing_else(bn: str) -> None:
    """Tensors that stay differ between clients after the first round; the global ones are their plain mean."""
    federation = trained(bn)
    states = {name: federation.client_state(name) for name in SIZES}
    for kind in KINDS:
        for name in kinds(network())[kind]:
            values = [state[name] for state in states.values()]
            if kind in TRAVELS[bn]:
                assert all(torch.equal(v, federation.global_state()[name]) for v in values), name
            else:
                assert not any(torch.equal(values[i], values[j]) for i, j in ((0, 1), (0, 2), (1, 2))), name
                expected = (values[0] + values[1] + values[2]) / 3
                torch.testing.assert_close(federation.global_state()[name], expected, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("bn", TRAVELS)
def test_names_of_what_stays(bn: str) -> None:
    expected = [n for kind in KINDS if kind not in TRAVELS[bn] for n in kinds(network())[kind]]
    kept = Federation(network(), clients(), bn=bn).trainer.own_names
    assert kept == (expected + kinds(network())["counters"] if expected else [])


def test_a_clients_batch_norm_never_meets_another_clients_data() -> None:
    """Under `local`, in the first round, client a's BN is that of client a trained alone."""
    together = trained("local", rounds=1)
    alone = Federation(network(), {"a": clients()["a"]}, bn="local", training=SETTINGS).run(1)
    one, two = (pick(f.client_state("a"), "affine", "statistics", "counters") for f in (together, alone))
    assert not differing(one, two)


def test_silobn_trains_the_very_weights_of_fedavg() -> None:
    """Running statistics take no part in training: the trained tensors are the same bits, the statistics are not."""
    fedavg, silobn = trained("aggregated"), trained("local_statistics")
    assert not differing(*(pick(f.global_state(), "affine", "weights") for f in (fedavg, silobn)))
    for name in SIZES:
        assert not differing(*(pick(f.client_state(name), "affine", "weights") for f in (fedavg, silobn)))
        statistics = [pick(f.client_state(name), "statistics") for f in (fedavg, silobn)]
        assert len(differing(*statistics)) == len(statistics[0])


def test_local_affine_trains_the_very_weights_of_fedbn() -> None:
    """Weights agree where gamma and beta stay at home."""
    fedbn, mills = trained("local"), trained("local_affine")
    for name in SIZES:
        assert not differing(*(pick(f.client_state(name), "affine", "weights") for f in (fedbn, mills)))
    assert differing(*(pick(f.client_state("a"), "statistics") for f in (fedbn, mills)))


@pytest.mark.parametrize("norm", ["group norm", "no norm"])
def test_without_batch_norm_all_policies_are_one(norm: str) -> None:
    expected = trained("aggregated", norm)
    for bn in TRAVELS:
        got = trained(bn, norm)
        assert got.trainer.own_names == []
        assert got.ledger() == expected.ledger()
        assert not differing(got.global_state(), expected.global_state())
        assert not differing(got.client_state("b"), expected.global_state())


@pytest.mark.parametrize("bn", TRAVELS)
def test_counters_are_counted_and_never_averaged(bn: str) -> None:
    """13, 22 and 9 samples in batches of 4 are 3 (the last of 5), 6 and 2 batches a round."""
    federation = trained(bn)
    for name, steps in {"a": 3, "b": 6, "c": 2}.items():
        got = pick(federation.client_state(name), "counters")
        assert [(int(v), v.dtype) for v in got.values()] == 2 * [(3 * steps, torch.int64)]
    assert {int(v) for v in pick(federation.global_state(), "counters").values()} == {9}, "the first client's"


P, W, S = 23_920, 23_860, 60


@pytest.mark.parametrize(
    ("bn", "floats"), [("aggregated", P + S), ("local", W), ("local_statistics", P), ("local_affine", W + S)]
)
def test_the_ledger_counts_every_float_that_moves(bn: str, floats: int) -> None:
    """784-30-10 has P = 784*30 + 30 + 30*10 + 10 + 2*30 trained floats, of which 2*30 are BN's, and 2*30 statistics."""
    generator = torch.Generator().manual_seed(0)
    data = {k: (torch.rand(6, 1, 28, 28, generator=generator), torch.arange(6)) for k in "abcd"}
    model = MLP().build((1, 28, 28), 10)
    federation = Federation(model, data, validation=data, bn=bn, training={"batch_size": 6}).run(3)
    moved = {"down": 3 * 4 * floats, "down_broadcast": 3 * floats, "up": 3 * 4 * floats, "messages": 3}
    assert federation.ledger() == moved
    assert {(r["floats_down"], r["floats_up"]) for r in federation.history if r["split"] == "train"} == {
        (floats, floats)
    }


def test_the_mean_of_variances_is_not_the_pooled_variance() -> None:
    """Running variances are averaged arithmetically, as published: the clients' distance in mean is lost."""
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1, momentum=1.0), nn.Linear(1, 2)).double()
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    data = {"a": (x, torch.tensor([0, 1])), "b": (3 * x + 10, torch.tensor([0, 1]))}
    state = Federation(model, data, training={"batch_size": 2}).run(1).global_state()
    assert state["1.running_mean"].tolist() == [5.0]
    assert state["1.running_var"].tolist() == [(2 + 18) / 2]  # n - 1 below: 2 and 18; pooled they would be far more
