"""Predictions of sites that several networks predict together: which tensors of a run's files, and how they join."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from predicting import EXTERNAL, INTERNAL, by_hand, complaint, images_of, load, predicted, state_of, trained
from torch.nn.functional import cross_entropy
from toy import clients, network

from fedshift import Federation, UserError
from fedshift.core.registry import build
from fedshift.export.bundle import export
from fedshift.inferences.source import Source
from fedshift.io.arrays import read_tensors, write_tensors

GLOBAL: dict[str, Any] = {"name": "source", "network": "global"}
ENSEMBLE: dict[str, Any] = {"name": "lg_fedavg", "ensemble": True}


@pytest.mark.parametrize("bn", ["aggregated", "local"])
def test_a_client_is_predicted_with_the_mixture_of_its_networks(tmp_path: Path, bn: str) -> None:
    """Under local BN the client's copy of the global network has statistics of its own, which are in the files too."""
    algorithm = {"name": "apfl", "alpha": 0.25}
    changes: dict[str, Any] = {"training": {"rounds": 2, "batch_size": 8, "lr": 0.5}}
    plan, paths = trained(tmp_path, runs=[{"algorithm": algorithm, "bn": bn}], inferences=["source", GLOBAL], **changes)
    (run,) = plan.runs
    own, shared = plan.inferences
    tensors, known = read_tensors(paths.run(run) / "clients.safetensors")
    assert json.loads(known["blends"])["north"] == {"of": "logits", "networks": {"north": 0.25, "north/1": 0.75}}
    assert any(name == "north/1/2.running_mean" for name in tensors) is (bn == "local")
    assert "north/1/1.weight" not in tensors, "what the client shares with the model is not written twice"
    for (site, how), part in predicted(plan, paths, run, own, shared).groupby(["site", "inference"]):
        images, inference = images_of(plan, paths, run, part), plan.inferences[own]
        mixed = how == own and site in INTERNAL
        names = {str(site): 0.25, f"{site}/1": 0.75} if mixed else {EXTERNAL[0]: 1.0}
        states = {name: state_of(paths, run, name) for name in names}
        if mixed:  # keys of the second network begin with the name of the first
            states[str(site)] = {k: v for k, v in states[str(site)].items() if not k.startswith("1/")}
        logits = sum(w * np.log(by_hand(states[name], images, inference)) for name, w in names.items())
        expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        np.testing.assert_allclose(part[["p0", "p1"]].to_numpy(), expected, rtol=1e-3, atol=1e-5)
        if mixed:
            alone = by_hand(states[str(site)], images, inference)
            assert abs(part[["p0", "p1"]].to_numpy() - alone).max() > 1e-3


def test_an_external_site_is_predicted_with_the_networks_of_all_clients(tmp_path: Path) -> None:
    plan, paths = trained(tmp_path, runs=[{"algorithm": ENSEMBLE}], inferences=["source", GLOBAL])
    (run,) = plan.runs
    own, shared = plan.inferences
    table = predicted(plan, paths, run, own, shared)
    assert set(table["site"]) == {*INTERNAL, *EXTERNAL}
    for (site, how), part in table.groupby(["site", "inference"]):
        images = images_of(plan, paths, run, part)
        each = {name: by_hand(state_of(paths, run, name), images, plan.inferences[own]) for name in INTERNAL}
        expected = each[str(site)] if how == own and site in INTERNAL else np.mean([*each.values()], axis=0)
        np.testing.assert_allclose(part[["p0", "p1"]].to_numpy(), expected, rtol=1e-3, atol=1e-5)
        assert abs(each["north"] - each["south"]).max() > 1e-3
    clients = paths.run(run) / "clients.safetensors"
    tensors, known = read_tensors(clients)
    blends = json.loads(known["blends"])
    for wrong in (
        "[",
        "[1]",
        '{"": {"of": "logits", "networks": {"north": "1"}}}',
        known["blends"].replace("prob", ""),
    ):
        write_tensors(clients, tensors, {"blends": wrong})
        with pytest.raises(UserError, match="does not say which networks predict a site together"):
            predicted(plan, paths, run, own)
    assert blends == {"": {"of": "probabilities", "networks": {"north": 0.5, "south": 0.5}}}
    write_tensors(clients, tensors, known)
    with pytest.raises(UserError, match="several networks predict together, and a bundle holds one"):
        export(paths.run(run), Source(), tmp_path / "bundle")


def test_the_curve_of_an_external_site_is_that_of_the_ensemble() -> None:
    """Clients that have not trained yet, since only some take part in a round, are no part of it."""
    site: dict[str, Any] = clients({"out": 12}, seed=4)
    training = {"rounds": 1, "batch_size": 4, "watch_every": 1, "participation": 0.67, "select": "last", "lr": 0.1}
    trained = Federation(network(), clients(), watched=site, algorithm=ENSEMBLE, training=training).run()
    drawn = [row["site"] for row in trained.history if row["split"] == "train"]
    (row,) = [row for row in trained.history if row["split"] == "test"]
    (x, y), model, probabilities = site["out"], network().eval(), []
    for name in drawn:
        model.load_state_dict(trained.client_state(name))
        probabilities.append(model(x).detach().softmax(1))
    mean = torch.stack(probabilities).mean(0)
    assert len(drawn) == 2
    assert row["loss"] == pytest.approx(float(cross_entropy(mean.log(), y)), rel=1e-10)
    assert float((probabilities[0] - probabilities[1]).abs().max()) > 1e-3
    known = trained.networks()
    assert (list(known.names), list(known.weights), known.of) == (sorted(drawn), [0.5, 0.5], "probabilities")


def test_training_does_not_depend_on_the_ensemble_and_ids_of_earlier_studies_stay() -> None:
    """Identities without the setting are those of before it was there."""
    assert build("algorithm", "lg_fedavg").identity() == {"name": "lg_fedavg"}
    assert build("algorithm", ENSEMBLE).identity() == {"name": "lg_fedavg", "ensemble": True}
    one, two = (
        Federation(network(), clients(), algorithm=algorithm, training={"rounds": 2, "batch_size": 4}).run()
        for algorithm in ("lg_fedavg", ENSEMBLE)
    )
    assert all(torch.equal(one.tensors()[k], two.tensors()[k]) for k in one.tensors())


@pytest.mark.parametrize(
    ("algorithm", "inference", "refused"),
    [
        ("apfl", "t3a", True),
        ("apfl", {"name": "t3a", "network": "global"}, False),
        (ENSEMBLE, "lame", True),
        (ENSEMBLE, "eata", True),
        (ENSEMBLE, {"name": "lame", "client": "north"}, False),
        ("apfl", "tent", False),
    ],
)
def test_inferences_that_work_on_one_network_are_refused(
    tmp_path: Path, algorithm: Any, inference: Any, refused: bool
) -> None:
    study: dict[str, Any] = {"runs": [{"algorithm": algorithm}], "inferences": ["source", inference]}
    if refused:
        assert "several predict a site together" in complaint(tmp_path, **study)
    else:
        assert len(load(tmp_path, **study).inferences) == 2
