"""Predictions with personal networks and with layers at home: which tensors of a run's files predict which site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predicting import EXTERNAL, INTERNAL, by_hand, complaint, images_of, predicted, state_of, trained

from fedshift.analysis.predictions import inferences
from fedshift.inferences.source import Source

GLOBAL: dict[str, Any] = {"name": "source", "network": "global"}


@pytest.mark.parametrize("algorithm", ["ditto", "fedper"])
def test_internal_sites_are_predicted_with_their_own_network_or_with_the_global_one(
    tmp_path: Path, algorithm: str
) -> None:
    plan, paths = trained(tmp_path, runs=[{"algorithm": algorithm, "bn": "aggregated"}], inferences=["source", GLOBAL])
    (run,) = plan.runs
    own, shared = plan.inferences
    table = predicted(plan, paths, run, own, shared)
    assert [row["inference"] for row in inferences(plan).values()] == ["source", "source(network=global)"]
    for (site, how), part in table.groupby(["site", "inference"]):
        # the outside has no tensors of its own in the files, so that it stands for the global network
        whose = str(site) if how == own else EXTERNAL[0]
        expected = by_hand(state_of(paths, run, whose), images_of(plan, paths, run, part), plan.inferences[own])
        np.testing.assert_allclose(part[["p0", "p1"]].to_numpy(), expected, rtol=1e-3, atol=1e-5)
    wide = table.pivot(index=["site", "sample"], columns="inference", values="p1")
    apart = (wide[own] - wide[shared]).abs().groupby(level="site").max()
    assert apart[EXTERNAL].max() == 0
    assert apart[INTERNAL].min() > 1e-6


def test_lg_fedavg_predicts_internal_sites_alone(tmp_path: Path) -> None:
    plan, paths = trained(tmp_path, runs=[{"algorithm": "lg_fedavg"}])
    (run,) = plan.runs
    assert set(predicted(plan, paths, run, *plan.inferences)["site"]) == set(INTERNAL)


@pytest.mark.parametrize("algorithm", ["local", "lg_fedavg"])
def test_a_global_network_that_is_not_there_is_refused(tmp_path: Path, algorithm: str) -> None:
    line = complaint(tmp_path, runs=[{"algorithm": algorithm}], inferences=["source", GLOBAL])
    assert line.startswith(f"runs.0.inferences.network: is global, but with {algorithm} each client")


def test_the_network_of_one_client_cannot_be_the_global_one() -> None:
    with pytest.raises(ValueError, match="client asks for the network of one site"):
        Source(client="north", network="global")


def test_settings_shown_are_those_of_before_where_internal_sites_use_their_own() -> None:
    assert "network" not in Source().described()
    assert Source(network="global").described()["network"] == "global"


INITIAL = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
"""What a batch-norm layer begins with."""


@pytest.mark.parametrize(
    ("bn", "kept"),
    [
        ("local", {"weight", "bias", "running_mean", "running_var"}),
        ("local_statistics", {"running_mean", "running_var"}),
        ("aggregated", set()),
    ],
)
@pytest.mark.parametrize("inference", ["source", "tsmobn"])
def test_outside_batch_norm_can_be_the_initial_one(tmp_path: Path, bn: str, kept: set[str], inference: str) -> None:
    """Tensors that stay with clients are as before the training outside; at home nothing changes."""
    initial = {"name": inference, "external_bn": "initial"}
    plan, paths = trained(tmp_path, runs=[{"algorithm": "fedavg", "bn": bn}], inferences=[inference, initial])
    (run,) = plan.runs
    usual, other = plan.inferences
    table = predicted(plan, paths, run, usual, other)
    for (site, how), part in table.groupby(["site", "inference"]):
        state = state_of(paths, run, str(site))
        if how == other and site in EXTERNAL:
            layer = next(name.removesuffix("running_mean") for name in state if name.endswith("running_mean"))
            state |= {f"{layer}{name}": np.full_like(state[f"{layer}{name}"], INITIAL[name]) for name in kept}
        expected = by_hand(state, images_of(plan, paths, run, part), plan.inferences[usual])
        np.testing.assert_allclose(part[["p0", "p1"]].to_numpy(), expected, rtol=1e-3, atol=1e-5)
    assert "external_bn" not in Source().described()
