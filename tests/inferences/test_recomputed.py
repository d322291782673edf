"""Inference `recomputed` against NumPy, float64: layer by layer over all sites' training images, and in a study."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapting import convolutions, images
from numpy.typing import NDArray
from predicting import INTERNAL, by_hand, complaint, images_of, load, predicted, state_of, trained, written
from test_shared_layers import Twice
from torch import Tensor, nn
from toy import Noted, clients, network

from fedshift import Federation, UserError
from fedshift.analysis import score, study_results
from fedshift.data.prepared import read_partition
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import client_answer, federation_answer, probabilities
from fedshift.inferences import Site
from fedshift.inferences.population import Population
from fedshift.inferences.recomputed import Recomputed
from fedshift.inferences.source import Source
from fedshift.io.paths import Paths
from fedshift.jobs.apply import require_network
from fedshift.page import page, summary
from fedshift.study.plan import Plan

Array = NDArray[np.float64]
EPS = 1e-5
EXACT: Any = {"rtol": 1e-12, "atol": 1e-12}


def samples(x: Tensor) -> Noted:
    return Noted(x, torch.zeros(len(x), dtype=torch.long))


def answered(model: nn.Module, sites: Mapping[str, TensorSamples], equal: bool = False, **settings: Any) -> Tensor:
    """What a federation answers, by numbers of images or with equal sites: mean and mean square of each layer."""
    sizes = {name: 1 if equal else len(site) for name, site in sites.items()}
    weights = {name: size / sum(sizes.values()) for name, size in sizes.items()}
    inference = Recomputed(**settings)
    return federation_answer(
        inference,
        lambda known: {name: client_answer(model, site, inference, known=known) for name, site in sites.items()},
        weights,
    )


def statistics(answer: Tensor, *channels: int) -> list[tuple[Array, Array]]:
    """Mean and biased variance of each layer."""
    parts = [part.numpy() for part in answer.split([c for c in channels for _ in range(2)])]
    return [(mean, square - mean**2) for mean, square in zip(parts[::2], parts[1::2], strict=True)]


def outputs(model: nn.Module, x: Tensor, answer: Tensor) -> Array:
    return probabilities(model, samples(x), Recomputed(), site=Site(answer=answer))


# ---- by hand


@pytest.mark.parametrize(("equal", "mean", "var"), [(False, 2, 8), (True, 3, 10)])
def test_means_apart_are_part_of_the_pooled_variance(equal: bool, mean: float, var: float) -> None:
    """30 values of mean 1 and variance 4, 10 of mean 5 and variance 8; the mean of the variances would be 5 or 6."""
    north = 1 + 2 * torch.tensor([-1.0, 1.0]).double().repeat(15)[:, None]
    south = 5 + 8**0.5 * torch.tensor([-1.0, 1.0]).double().repeat(5)[:, None]
    model = nn.Sequential(nn.BatchNorm1d(1)).double()
    answer = answered(model, {"north": samples(north), "south": samples(south)}, equal)
    ((m, v),) = statistics(answer, 1)
    np.testing.assert_allclose([m[0], v[0]], [mean, var], **EXACT)


def test_the_second_layer_is_measured_behind_the_pooled_first() -> None:
    """Inputs 0, 2 and 4, 6: behind mean 3 and variance 5, ReLU leaves 0, 0, 1, 3 over the root of 5.

    Each site by its own statistics would give (.5, .25).
    """
    model = nn.Sequential(nn.BatchNorm1d(1, eps=0), nn.ReLU(), nn.BatchNorm1d(1, eps=0)).double()
    sites = {"a": samples(torch.tensor([[0.0], [2.0]]).double()), "b": samples(torch.tensor([[4.0], [6.0]]).double())}
    first, second = statistics(answered(model, sites), 1, 1)
    np.testing.assert_allclose(first, [[3], [5]], **EXACT)
    np.testing.assert_allclose(second, [[1 / 5**0.5], [0.3]], **EXACT)


class Oracle:
    """`adapting.convolutions` in NumPy, with batch norm by the moments of all images that `measure` is given."""

    def __init__(self, model: nn.Sequential) -> None:
        self.p = {name: value.numpy() for name, value in model.state_dict().items()}

    def normal(self, h: Array, layer: str) -> Array:
        """Normalise (rows, channels) by the statistics of a layer, which are measured on `h` if there are none."""
        if layer not in self.statistics:
            self.statistics[layer] = h.mean(0), ((h - h.mean(0)) ** 2).mean(0)
        mean, var = self.statistics[layer]
        return self.p[f"{layer}.weight"] * (h - mean) / np.sqrt(var + EPS) + self.p[f"{layer}.bias"]

    def logits(self, x: Array) -> Array:
        windows = np.lib.stride_tricks.sliding_window_view(x[:, 0], (3, 3), (1, 2))  # (n, 4, 4, 3, 3)
        h = np.einsum("nijkl,ckl->nijc", windows, self.p["0.weight"][:, 0]) + self.p["0.bias"]
        h = np.maximum(self.normal(h.reshape(-1, 3), "1"), 0).reshape(h.shape).transpose(0, 3, 1, 2).reshape(len(x), -1)
        h = np.maximum(self.normal(h @ self.p["5.weight"].T + self.p["5.bias"], "6"), 0)
        return h @ self.p["8.weight"].T + self.p["8.bias"]

    def measure(self, x: Array) -> Oracle:
        self.statistics: dict[str, tuple[Array, Array]] = {}
        self.logits(x)
        return self

    def probabilities(self, x: Array) -> Array:
        odds = np.exp(self.logits(x))
        return odds / odds.sum(1, keepdims=True)


@pytest.mark.parametrize("batch_size", [1, 4, 256])
def test_a_network_is_that_of_numpy_layer_by_layer_whatever_the_batches(batch_size: int) -> None:
    model, (*given, outside) = convolutions(), images(5, 9, 7, 11, shape=(1, 6, 6))
    sites = {name: samples((k + 1) * x + k) for k, (name, x) in enumerate(zip("abc", given, strict=True))}
    oracle = Oracle(model).measure(torch.cat([site.x for site in sites.values()]).numpy())
    answer = answered(model, sites, batch_size=batch_size)
    for ours, known in zip(statistics(answer, 3, 4), oracle.statistics.values(), strict=True):
        np.testing.assert_allclose(ours, known, **EXACT)
    p = outputs(model, outside, answer)
    np.testing.assert_allclose(p, oracle.probabilities(outside.numpy()), **EXACT)
    assert np.abs(p - probabilities(model, samples(outside), Source())).max() > 0.01


# ---- what algebra says


def test_one_site_has_the_statistics_of_its_population() -> None:
    """With one batch, `population` is exact, and it may look at the very images of the training."""
    model, (x,) = convolutions(), images(13, shape=(1, 6, 6))
    expected = probabilities(model, samples(x), Population(batch_size=13))
    np.testing.assert_allclose(outputs(model, x, answered(model, {"a": samples(x)}, batch_size=5)), expected, **EXACT)


def test_identical_sites_have_the_statistics_of_each() -> None:
    model, (x,) = convolutions(), images(8, shape=(1, 6, 6))
    alone = answered(model, {"a": samples(x)})
    torch.testing.assert_close(answered(model, dict.fromkeys("abc", samples(x)), equal=True), alone, **EXACT)


def test_exact_statistics_stay() -> None:
    model, (x, outside) = convolutions(), images(13, 9, shape=(1, 6, 6))
    answer = answered(model, {"a": samples(x[:4]), "b": samples(x[4:])})
    for layer, (mean, var) in zip((model[1], model[6]), statistics(answer, 3, 4), strict=True):
        layer.running_mean.copy_(torch.from_numpy(mean))
        layer.running_var.copy_(torch.from_numpy(var))
    expected = probabilities(model, samples(outside), Source())
    np.testing.assert_allclose(outputs(model, outside, answer), expected, **EXACT)


def test_a_layer_that_is_used_twice_has_statistics_of_each_use() -> None:
    (x,) = images(9, shape=(3,))
    expected = probabilities(Twice().eval(), samples(x), Population(batch_size=9))
    answer = answered(Twice(), {"a": samples(x[:2]), "b": samples(x[2:])})
    assert len(answer) == 2 * 2 * 4
    np.testing.assert_allclose(outputs(Twice(), x, answer), expected, **EXACT)


def test_each_image_is_seen_once_for_each_layer_and_the_model_stays() -> None:
    model, (x,) = convolutions().train(), images(11, shape=(1, 6, 6))
    before, site = copy.deepcopy(model.state_dict()), samples(x)
    answered(model, {"a": site}, batch_size=4)
    sizes = [len(index) for index in site.taken]
    assert sizes == [4, 4, 3, 4, 4, 3, 4], "two layers, then a batch that finds no third"
    for start in (0, 3):
        assert sorted(torch.cat(site.taken[start : start + 3]).tolist()) == list(range(11))
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_without_batch_norm_it_is_source() -> None:
    x = clients()["a"][0]
    federation = Federation(network("group norm"), clients()).run(1)
    assert np.array_equal(federation.predict(x, inference="recomputed"), federation.predict(x, inference="source"))


# ---- where it has no meaning


@pytest.mark.parametrize("bn", ["local", "local_statistics"])
def test_statistics_that_stay_at_home_are_refused(bn: str, tmp_path: Path) -> None:
    said = complaint(tmp_path, runs=[{"algorithm": "fedavg", "bn": bn}], inferences=["source", "recomputed"])
    refused = f"recomputed has no meaning with bn '{bn}': the server averages no running statistics"
    assert said == f"runs.0.inferences: {refused}; give this policy its own inferences"
    with pytest.raises(UserError, match=refused):
        Federation(network(), clients(), bn=bn).run(1).predict(clients()["a"][0], inference="recomputed")
    for averaged in ({"bn": "local_affine"}, {"bn": bn, "norms": "group"}):
        assert load(tmp_path, runs=[{"algorithm": "fedavg"} | averaged], inferences=["recomputed"]).runs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runs": [{"algorithm": "local"}]}, "is global, but with local"),
        ({"inferences": [{"name": "recomputed", "client": "north"}]}, "is global, but client asks"),
        ({"inferences": [{"name": "recomputed", "network": "own"}]}, "network"),
        ({"inferences": [{"name": "recomputed", "personalise": {"steps": 2}}]}, "changes the network"),
    ],
)
def test_other_networks_than_the_averaged_one_are_refused(changes: Any, words: str, tmp_path: Path) -> None:
    given = {"runs": [{"algorithm": "fedavg"}], "inferences": ["recomputed"]} | changes
    said = complaint(tmp_path, **given)
    assert words in said
    assert len(said.splitlines()) == 1


def test_without_an_answer_it_says_what_it_needs() -> None:
    with (
        pytest.raises(UserError, match="needs statistics of the internal sites' training images"),
        Recomputed().on_site(convolutions(), Site()),
    ):
        pass


# ---- in a federation, and in a study


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_a_federation_predicts_all_sites_with_its_averaged_network(algorithm: str) -> None:
    """Images of the sites weigh as in the training; a personal network plays no part."""
    federation = Federation(network(), clients(), algorithm=algorithm, training={"rounds": 2, "lr": 0.1}).run()
    x = clients()["a"][0]
    answer = answered(federation.model(), {name: samples(x) for name, (x, _) in clients().items()})
    expected = outputs(federation.model(), x, answer)
    for site in (None, "a"):
        np.testing.assert_allclose(federation.predict(x, inference="recomputed", site=site), expected, **EXACT)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Paths]:
    return trained(
        tmp_path_factory.mktemp("recomputed"),
        runs=[{"algorithm": ["fedavg", "fixbn"]}],
        transforms=["scale_intensity", "flip"],
        inferences=["source", "recomputed", "tsmobn"],
    )


def test_a_run_is_predicted_by_the_pooled_statistics_of_its_training_images(study: tuple[Plan, Paths]) -> None:
    """Against NumPy: no image is flipped, none of a test split enters, and a channel costs two floats."""
    plan, paths = study
    for run, spec in plan.runs.items():
        state = state_of(paths, run, "far")
        rows = read_partition(paths.partition(spec.partition_id))
        rows = rows[(rows["split"] == "train") & rows["site"].isin(INTERNAL)]
        h = images_of(plan, paths, run, rows) @ state["1.weight"].T + state["1.bias"]
        moved = state | {"2.running_mean": h.mean(0), "2.running_var": h.var(0)}
        table = predicted(plan, paths, run, "recomputed")
        assert set(table["count_asked"]) == {2 * 6}
        for _, part in table.groupby("site"):
            x = images_of(plan, paths, run, part)
            expected = by_hand(moved, x, Source())
            np.testing.assert_allclose(part[["p0", "p1"]], expected, rtol=0, atol=1e-6)
            assert np.abs(by_hand(state, x, Source()) - expected).max() > 1e-4


def test_a_page_shows_it_between_source_and_tsmobn(study: tuple[Plan, Paths]) -> None:
    plan, paths = study
    for run, job in plan.prediction_jobs.items():
        written(plan, paths, run, *plan.inferences)
        (paths.root / "predictions.parquet").replace(paths.predictions(run, job))
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    scores = study_results.load(plan, paths).table("scores")
    assert set(scores["inference"]) == {"source", "recomputed", "tsmobn"}
    assert len(scores[scores["inference"] == "recomputed"]) == len(scores) / 3
    collapse = study_results.load(plan, paths).table("collapse")
    assert set(collapse.loc[collapse["inference"] == "recomputed", "asked"]) == {12}
    assert json.loads(paths.study_files(plan.name).folder.joinpath("missing.json").read_text()) == []
    text = page.write(study_results.load(plan, paths)).read_text()
    findings = study_results.load(plan, paths).findings
    assert all(findings.name(key) in text for key in plan.inferences)
    assert {condition.compared_inference for condition in findings.conditions} == {"tsmobn"}
    assert "adapted (recomputed" not in text, "it uses nothing of the tested site"


def test_a_run_cannot_be_applied_elsewhere_with_it(study: tuple[Plan, Paths]) -> None:
    plan, _ = study
    with pytest.raises(UserError, match="recomputed needs numbers that the internal sites compute"):
        require_network(next(iter(plan.runs.values())), Recomputed())
