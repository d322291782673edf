"""Inferences that first take gradient steps on labelled images of a site: steps, scores, and what is reported."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
import torch
from fake_study import predictions_of
from numpy.typing import NDArray
from predicting import by_hand, trained
from torch import nn
from toy import differing

from fedshift.analysis import score, study_results
from fedshift.analysis.conditions import plain
from fedshift.analysis.findings import LABELS
from fedshift.analysis.numbers import Names
from fedshift.data.prepared import Prepared
from fedshift.data.samples import TensorSamples
from fedshift.inferences import Inference, Personalise
from fedshift.io.arrays import read_tensors
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table
from fedshift.jobs.predict import predict
from fedshift.page import page, summary
from fedshift.page.sections import concerns
from fedshift.page.summary import overview
from fedshift.study.plan import Plan

Array = NDArray[np.float64]
FEATURES, HIDDEN, CLASSES, EPS = 5, 4, 3, 1e-5
PRECISION: Any = {"rtol": 1e-11, "atol": 1e-12}
SITES = ("north", "south", "far")


# ---- the steps


def network() -> nn.Sequential:
    """Linear, BN, tanh, linear, with statistics that are not the initial ones; the last bias is not trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)
        )
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) / 2)
    model[3].bias.requires_grad_(False)
    return model.double()


class Noted(TensorSamples):
    """Samples that note which of them were asked for."""

    def __init__(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        x = torch.from_numpy(rng.normal(1, 2, (n, FEATURES)))
        super().__init__(x, torch.from_numpy(rng.integers(0, CLASSES, n)))
        self.taken: list[Array] = []

    def batch(self, index: Array, rng: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        assert rng is None, "images are taken as they are"
        self.taken.append(index.copy())
        return super().batch(index)


def stepped(state: dict[str, Array], x: Array, y: Array, lr: float, steps: int) -> dict[str, Array]:
    """SGD on mean cross-entropy, batch norm by the batch: every derivative written out."""
    w1, b1, gamma, beta, w2 = (state[k].copy() for k in ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight"))
    for _ in range(steps):
        a = x @ w1.T + b1
        root = np.sqrt(a.var(0) + EPS)
        z = (a - a.mean(0)) / root
        h = np.tanh(gamma * z + beta)
        logits = h @ w2.T + state["3.bias"]
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        d_logits = (p - np.eye(CLASSES)[y]) / len(x)
        d_out = (d_logits @ w2) * (1 - h**2)
        d_z = d_out * gamma
        d_a = (d_z - d_z.mean(0) - z * (d_z * z).mean(0)) / root
        w2 -= lr * d_logits.T @ h
        gamma -= lr * (d_out * z).sum(0)
        beta -= lr * d_out.sum(0)
        w1 -= lr * d_a.T @ x
        b1 -= lr * d_a.sum(0)
    return state | {"0.weight": w1, "0.bias": b1, "1.weight": gamma, "1.bias": beta, "3.weight": w2}


def arrays(model: nn.Module) -> dict[str, Array]:
    return {k: v.detach().double().numpy().copy() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("source", ["val", "test_excluded", "test_included"])
@pytest.mark.parametrize("steps", [1, 3])
def test_steps_by_hand(steps: int, source: Any) -> None:
    """All trained tensors move as SGD moves them; running statistics, counters and what is frozen stay."""
    how = Personalise(source=source, steps=steps, batch_size=8, lr=0.3)
    model, test, val = network(), Noted(20, 0), Noted(11, 1)
    before = arrays(model)
    how.adapt(model, test, val, "far")
    given, other = (val, test) if source == "val" else (test, val)
    (first, *rest), none = given.taken, other.taken
    assert not none
    assert len(set(first.tolist())) == 8
    assert len(rest) == steps - 1
    assert all(np.array_equal(first, again) for again in rest), "the same images at every step"
    expected = stepped(before, given.x[first].numpy(), given.y[first].numpy(), 0.3, steps)
    after = arrays(model)
    assert after.keys() == expected.keys()
    for name, tensor in after.items():
        np.testing.assert_allclose(tensor, expected[name], **PRECISION, err_msg=name)
        if name != "0.bias":  # batch norm takes it away again
            moved = name in ("0.weight", "1.weight", "1.bias", "3.weight")
            assert np.array_equal(tensor, before[name]) != moved
    assert all(p.grad is None for p in model.parameters())
    assert all(m.track_running_stats for m in model.modules() if isinstance(m, nn.BatchNorm1d))


@pytest.mark.parametrize(
    ("source", "vals", "marked"),
    [("val", 11, 0), ("val", 0, 8), ("test_excluded", 11, 8), ("test_included", 11, 0), ("test_included", 0, 0)],
)
def test_what_must_not_be_scored_are_the_test_images_it_was_adapted_to(source: Any, vals: int, marked: int) -> None:
    how = Personalise(source=source, batch_size=8)
    test, val = Noted(20, 0), Noted(vals, 1)
    seen = how.adapt(network(), test, val, "far")
    assert seen.dtype == bool
    assert (len(seen), int(seen.sum())) == (20, marked)
    if marked:
        assert set(np.flatnonzero(seen)) == set(test.taken[0])


def test_no_more_images_than_there_are() -> None:
    test = Noted(5, 0)
    seen = Personalise(source="test_excluded", batch_size=32).adapt(network(), test, Noted(0, 1), "far")
    assert seen.all()
    assert sorted(test.taken[0]) == list(range(5))


def test_the_draw_depends_on_seed_and_site_and_not_on_the_model() -> None:
    def drawn(seed: int, site: str, model: nn.Module) -> list[int]:
        test = Noted(40, 0)
        Personalise(source="test_excluded", batch_size=8, seed=seed).adapt(model, test, Noted(0, 1), site)
        return list(test.taken[0])

    wider = nn.Sequential(nn.Linear(FEATURES, 9), nn.ReLU(), nn.Linear(9, CLASSES)).double()
    expected = drawn(0, "far", network())
    torch.manual_seed(123)
    assert drawn(0, "far", wider) == expected
    assert drawn(1, "far", network()) != expected
    assert drawn(0, "near", network()) != expected


def test_dropout_in_the_steps_is_the_same_each_time_and_leaves_torch_alone() -> None:
    def once() -> dict[str, torch.Tensor]:
        model = nn.Sequential(nn.Dropout(0.5), *network())
        Personalise(source="test_excluded", steps=2, lr=0.3).adapt(model, Noted(20, 0), Noted(0, 1), "far")
        return model.state_dict()

    one, state = once(), torch.get_rng_state()
    two = once()
    assert not differing(one, two)
    assert torch.equal(torch.get_rng_state(), state)
    still = nn.Sequential(nn.Identity(), *network())
    Personalise(source="test_excluded", steps=2, lr=0.3).adapt(still, Noted(20, 0), Noted(0, 1), "far")
    assert "1.weight" in differing(one, still.state_dict())


# ---- predictions of a run


def how(source: str, **settings: Any) -> dict[str, Any]:
    return {"source": source, "steps": 2, "batch_size": 8, "lr": 0.5} | settings


EXCLUDED: dict[str, Any] = {"name": "source", "personalise": how("test_excluded")}
ASKED: list[dict[str, Any]] = [
    {"name": "source", "personalise": [how("test_excluded"), None, how("val"), how("test_included")]},
    {"name": "tsmobn", "personalise": how("test_excluded")},
]
"""Five inferences, of which the second takes no labels."""


def project(root: Path, **changes: Any) -> tuple[Plan, Paths]:
    """A trained run, predicted; 60 images a site, of which internal ones test 20 and validate 10."""
    plan, paths = trained(root, **changes)
    for run in plan.runs:
        predict(paths.run(run), plan.inferences, paths, predictions_of(plan, paths, run))
    return plan, paths


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Paths]:
    return project(tmp_path_factory.mktemp("made"), inferences=ASKED)


def written(plan: Plan, paths: Paths, name: str) -> pd.DataFrame:
    (run,) = plan.runs
    table = read_table(predictions_of(plan, paths, run)).query("split == 'test'")
    return table[table["inference"] == name] if "inference" in table else table


def adapted(plan: Plan, paths: Paths, site: str, inference: Inference) -> tuple[nn.Module, TensorSamples, list[bool]]:
    """Return a model loaded again and adapted to one site, the site's test images, and which of them it has seen."""
    (run,) = plan.runs.values()
    folder, prepared = paths.run(run.id), Prepared(paths.data(run.data.id))
    shared, own = (read_tensors(folder / f"{n}.safetensors")[0] for n in ("model", "clients"))
    model = run.model.build(prepared.shape, 2)
    model.load_state_dict({k: own.get(f"{site}/{k}", v) for k, v in shared.items()})
    partition = read_table(paths.partition(run.partition_id)).query(f"site == '{site}'")

    def part(split: str) -> TensorSamples:
        rows = prepared.rows(partition[partition["split"] == split])
        x = torch.from_numpy(prepared.images[rows]).permute(0, 3, 1, 2).float() / 255
        return TensorSamples(x, torch.from_numpy(prepared.samples["label"].to_numpy()[rows]))

    test, seen = part("test"), np.zeros(0, dtype=bool)
    if inference.uses_labels:
        seen = inference.adapt_to_labels(model, test, part("val"), site)
    return model, test, seen.tolist()


@pytest.mark.parametrize("position", range(5))
def test_each_site_is_predicted_by_the_model_adapted_to_it_alone(made: tuple[Plan, Paths], position: int) -> None:
    """A model is first adapted, and then TsmoBN gives it test statistics. No site starts from what another left."""
    plan, paths = made
    name, inference = list(plan.inferences.items())[position]
    table = written(plan, paths, name)
    others = [written(plan, paths, n).set_index("sample")["p1"] for n in plan.inferences if n != name]
    for site in SITES:
        mine = table[table["site"] == site]
        model, test, seen = adapted(plan, paths, site, inference)
        state = {k: v.double().numpy() for k, v in model.state_dict().items()}
        expected = by_hand(state, test.x.flatten(1).numpy(), inference)
        np.testing.assert_allclose(mine[["p0", "p1"]], expected, rtol=1e-3, atol=1e-5)
        if inference.personalise:
            assert mine["adapted"].astype(bool).tolist() == seen
        found = mine.set_index("sample")["p1"]
        apart = [(found - other[found.index]).abs().max() for other in others]
        assert sum(gap > 1e-3 for gap in apart) >= 2, "of the four, at most two were adapted to the same images"


# ---- scores


def sizes(plan: Plan, paths: Paths) -> dict[str, dict[str, int]]:
    """Images scored, by inference and site."""
    table = score.read_table(score.score(plan, paths))
    keyed = Names(plan).identified(table[table["metric"] == "accuracy"])
    return {str(key): dict(zip(part["site"], part["n"], strict=True)) for key, part in keyed.groupby("inference_id")}


def test_images_it_was_adapted_to_stay_in_the_file_and_out_of_the_scores(made: tuple[Plan, Paths]) -> None:
    plan, paths = made
    everything = {"north": 20, "south": 20, "far": 60}
    excluded, source, val, included, tsmobn = plan.inferences
    fallen = {site: n - 8 for site, n in everything.items()}
    assert sizes(plan, paths) == {
        source: everything,
        val: everything | {"far": 52},  # an external site has no validation images
        excluded: fallen,
        included: everything,
        tsmobn: fallen,
    }
    assert score.missing(plan, paths) == []
    for name in plan.inferences:
        counts = written(plan, paths, name)["site"].value_counts().to_dict()
        assert counts == everything


def test_scores_are_those_of_the_images_that_are_left(made: tuple[Plan, Paths]) -> None:
    plan, paths = made
    name = next(iter(plan.inferences))
    table = written(plan, paths, name)
    left = table[~table["adapted"].astype(bool)]
    right = (left["p1"] > left["p0"]) == (left["label"] == 1)
    expected = right.groupby(left["site"]).mean().to_dict()
    scores = Names(plan).identified(score.read_table(score.score(plan, paths)))
    mine = scores[(scores["inference_id"] == name) & (scores["metric"] == "accuracy")]
    assert dict(zip(mine["site"], mine["value"], strict=True)) == pytest.approx(expected)


def test_the_draw_is_the_same_for_all_runs(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}]
    plan, paths = project(tmp_path, runs=runs, seeds=[0, 1], inferences=[EXCLUDED])
    (name,) = plan.inferences
    drawn = []
    for run in plan.runs:
        table = read_table(paths.predictions(run, name))
        drawn.append(set(table.loc[table["adapted"], "sample"]))
    assert len(drawn) == 4
    assert len(drawn[0]) == 3 * 8
    assert all(other == drawn[0] for other in drawn)


# ---- what is reported


def test_the_page_names_what_uses_labels_and_says_that_it_is_not_comparable(made: tuple[Plan, Paths]) -> None:
    plan, paths = made
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    findings = study_results.load(plan, paths).findings
    names = [findings.name(key) for key in plan.inferences]
    assert [LABELS in name for name in names] == [True, False, True, True, True]
    assert len(set(names)) == 5
    assert {row[1] for row in overview(findings).rows} == set(names)
    told = [concern.text for concern in concerns(study_results.load(plan, paths), [], [])]
    for name, (key, inference) in zip(names, plan.inferences.items(), strict=True):
        mine = [line for line in told if line.startswith(f"{name} first takes")]
        assert len(mine) == bool(inference.personalise), key
        for line in mine:
            assert "2 gradient steps on up to 8 labelled images of the site" in line
            assert "not comparable with what needs no labels" in line
            leaks = "test_included" in str(inference.personalise)
            assert ("these images are scored too: it has seen their answers" in line) == leaks
            assert ("which are not scored" in line) != leaks
    text = page.write(study_results.load(plan, paths)).read_text()
    assert all(name in text for name in names)


@pytest.mark.parametrize("place", range(3))
def test_what_uses_labels_is_never_the_baseline(tmp_path: Path, place: int) -> None:
    given: list[Any] = ["tsmobn", "source"]
    given.insert(place, EXCLUDED)
    plan, paths = fake_study.build(tmp_path, inferences=given, seeds=[0])
    assert plain(plan) == "source"
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    findings = study_results.load(plan, paths).findings
    assert findings.baseline == "source"
    assert findings.gain(findings.conditions[0], "tsmobn", "external").mean == pytest.approx(0.2)


def test_without_plain_source_there_is_no_baseline(tmp_path: Path) -> None:
    for given in itertools.permutations(["tsmobn", EXCLUDED]):
        plan = fake_study.plan(tmp_path, inferences=list(given))
        assert plain(plan) is None
