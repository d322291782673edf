"""EATA: the Fisher information of a client by autograd, its pull, the limit that is ETA, and what travels."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from adapting import convolutions, decided, dense, equal, images, written_out
from predicting import INTERNAL, predicted, trained, written
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedshift import UserError
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import client_answer, mean_answer
from fedshift.inferences import Site
from fedshift.inferences.eata import EATA
from fedshift.inferences.eta import ETA
from fedshift.jobs.apply import require_network


def outputs_by_batch(method: ETA, model: nn.Module, batches: list[Tensor], fisher: Tensor | None) -> list[Tensor]:
    with method.on_site(copy.deepcopy(model), Site(lambda: iter(batches), answer=fisher)) as predict:
        return [predict(x) for x in batches]


def affine_of(model: nn.Sequential) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for i in (1, 6) for t in (model[i].weight, model[i].bias)]


def test_the_fisher_information_is_the_mean_over_batches_of_a_squared_mean_gradient() -> None:
    model, batches = convolutions(), images(6, 6, 6, shape=(1, 6, 6))
    affine = affine_of(model)
    expected = torch.zeros(14, dtype=torch.float64)
    for x in batches[:2]:  # 17 images are two whole batches of 6
        logits = written_out(model, x, affine)
        gradients = torch.autograd.grad(cross_entropy(logits, logits.detach().argmax(1)), affine)
        expected += torch.cat([g.flatten() for g in gradients]).square() / 2
    fisher = EATA(images=17, batch_size=6).at_client(copy.deepcopy(model), lambda: iter(batches))
    torch.testing.assert_close(fisher.double(), expected, rtol=0, atol=1e-12)


def test_a_client_shows_whole_shuffled_batches_of_its_images_and_keeps_its_model() -> None:
    model, (x,) = dense(), images(11)
    before = copy.deepcopy(model.state_dict())
    samples = TensorSamples(x, torch.zeros(11))
    seen: list[Tensor] = []

    class Looking(EATA):
        def at_client(self, model, batches):  # type: ignore[no-untyped-def]
            seen.extend(batches())
            return torch.zeros(0)

    client_answer(model, samples, Looking(batch_size=4))
    rows = torch.cat(seen)
    assert [len(batch) for batch in seen] == [4, 4]
    assert len({tuple(row.tolist()) for row in rows} & {tuple(row.tolist()) for row in x}) == 8
    assert not torch.equal(rows, x[:8])
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_the_mean_is_by_weights() -> None:
    mean = mean_answer({"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([5.0, 8.0])}, {"a": 0.75, "b": 0.25})
    assert mean.tolist() == [2.0, 2.0]


def test_steps_with_the_pull_by_hand() -> None:
    """The first step has no pull, since theta is theta0; the later ones add 2 c F (theta - theta0)."""
    model, batches, rate, weight = decided(), images(8, 8, 8, shape=(1, 6, 6)), 0.1, 3.0
    fisher = torch.linspace(0.1, 1.4, 14, dtype=torch.float64)
    affine = affine_of(model)
    start, parts, limit, expected = [t.detach() for t in affine], fisher.split([3, 3, 4, 4]), 0.85 * math.log(3), []
    for x in batches:
        logits = written_out(model, x, affine)
        expected.append(logits.detach())
        p = logits.softmax(1)
        h = -(p * p.log()).sum(1)
        h = h[h < limit]
        gradients = torch.autograd.grad(((limit - h.detach()).exp() * h).mean(), affine)
        pulls = [2 * weight * f * (t.detach() - t0) for f, t, t0 in zip(parts, affine, start, strict=True)]
        moved = zip(affine, gradients, pulls, strict=True)
        affine = [(t - rate * (g + pull)).detach().requires_grad_() for t, g, pull in moved]
    settings: dict[str, Any] = {"optimiser": "sgd", "beta": 0, "lr": rate, "threshold": 0.85, "similarity": 1}
    equal(outputs_by_batch(EATA(fisher=weight, **settings), model, batches, fisher), expected)
    assert not torch.allclose(expected[2], outputs_by_batch(ETA(**settings), model, batches, None)[2])


def test_without_weight_it_is_eta_bit_for_bit() -> None:
    model, batches = decided(), images(8, 8, 8, shape=(1, 6, 6))
    settings: dict[str, Any] = {"lr": 0.05, "threshold": 0.85, "similarity": 0.9}
    ours = outputs_by_batch(EATA(fisher=0, **settings), model, batches, torch.ones(14))
    assert all(map(torch.equal, ours, outputs_by_batch(ETA(**settings), model, batches, None)))


def test_without_an_answer_it_says_what_it_needs() -> None:
    with pytest.raises(UserError, match="needs the Fisher information of the internal sites"):
        outputs_by_batch(EATA(), dense(), images(4), None)


# ---- in a study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    names = [{"name": "eta", "lr": 0.2, "threshold": 2}, {"name": "eata", "lr": 0.2, "threshold": 2, "fisher": 1e4}]
    return trained(tmp_path_factory.mktemp("eata"), inferences=["source", *names])


def test_the_answer_is_of_training_images_alone_and_counted(study, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from fedshift.jobs import predict as job

    plan, paths = study
    run, asked = next(iter(plan.runs)), []
    monkeypatch.setattr(
        job, "client_answer", lambda model, samples, *_: asked.append(samples.rows) or torch.full((12,), 0.5)
    )
    table = predicted(plan, paths, run, next(key for key in plan.inferences if key.startswith("eata")))
    from fedshift.data.prepared import Prepared, read_partition

    partition = read_partition(paths.partition(plan.runs[run].partition_id))
    prepared = Prepared(paths.data(plan.runs[run].data.id))
    for site, rows in zip(INTERNAL, asked, strict=True):
        part = partition[(partition["site"] == site) & (partition["split"] == "train")]
        assert np.array_equal(rows, prepared.rows(part))
    assert set(table["count_asked"]) == {12}, "one float for each of 6 gammas and 6 betas"


def test_counts_are_columns_of_the_methods_that_count(study) -> None:  # type: ignore[no-untyped-def]
    plan, paths = study
    run, (source, eta, eata) = next(iter(plan.runs)), plan.inferences
    assert not [column for column in written(plan, paths, run, source) if column.startswith("count")]
    table = predicted(plan, paths, run, eata)
    for _, rows in table.groupby("site"):
        assert set(rows["count_seen"]) == {len(rows)}
        assert set(rows["count_kept"]) == {len(rows)}, "every entropy is below 2 ln K"
        assert set(rows["count_steps"]) == {math.ceil(len(rows) / 32)}
    both = predicted(plan, paths, run, source, eta)
    assert both.loc[both["inference"] == source, "count_kept"].isna().all()
    assert "count_asked" not in both


def test_a_run_cannot_be_applied_elsewhere_with_it(study) -> None:  # type: ignore[no-untyped-def]
    plan, _ = study
    with pytest.raises(UserError, match="eata needs numbers that the internal sites compute"):
        require_network(next(iter(plan.runs.values())), EATA())
