"""Every plug-in must satisfy these tests, whoever adds it: they run over all that discovery finds.

docs/contract.md and the page of each kind (docs/add-a-*.md) list every requirement. Tables in this file hold settings
of known plug-ins only; a plug-in without an entry is checked with its defaults, by general rules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from invented import made as results_of
from invented import moment, row
from pydantic import ValidationError
from torch import nn
from toy import BATCH_NORMS, CLASSES, LARGE, NORMS, SHAPE, TRAVELS, clients, differing, fingerprint, network

from fedshift import Federation, UserError
from fedshift.addons import extended
from fedshift.algorithms import Algorithm, Local
from fedshift.core.registry import KINDS, Plugin, build, discover
from fedshift.core.rng import stream
from fedshift.data.samples import TensorSamples
from fedshift.engine.local_training import HARMLESS, gradients_together
from fedshift.engine.prediction import client_answer, probabilities
from fedshift.figures._canvas import INK
from fedshift.inferences import Inference, Personalise, Site
from fedshift.io.tensors import read_tensors, write_tensors
from fedshift.models import Model, initialise
from fedshift.nn.bn_policy import POLICIES
from fedshift.transforms import shape_after

PLUGINS = [(kind, name) for kind in KINDS for name in discover(kind)]


def named(kind: str) -> Any:
    return pytest.mark.parametrize("name", discover(kind))


def every(cls: type[Plugin]) -> dict[str, Any]:
    """Values for the fields that have no default: the first of their examples, else a path."""
    required = {k: field for k, field in cls.model_fields.items() if field.is_required()}
    return {k: (field.examples or ["images.csv"])[0] for k, field in required.items()}


def made(kind: str, name: str) -> Any:
    return build(kind, {"name": name, **every(discover(kind)[name])})


# ---- all kinds


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
class TestPlugin:
    def test_it_is_built_from_its_name(self, kind: str, name: str) -> None:
        plugin = made(kind, name) if every(discover(kind)[name]) else build(kind, name)
        assert type(plugin) is discover(kind)[name]
        assert (plugin.kind, plugin.name) == (kind, name)

    def test_it_says_what_it_is(self, kind: str, name: str) -> None:
        cls = discover(kind)[name]
        assert vars(cls).get("__doc__"), f"{name} needs a docstring of its own, see docs/contract.md"
        assert len(cls.summary()) > 10, f"the first line of {name}'s docstring is too short, see docs/contract.md"
        undescribed = [k for k, field in cls.model_fields.items() if not field.description]
        assert undescribed == [], f"settings of {name} need Field(description=...), see docs/contract.md"

    def test_its_settings_survive_as_plain_data(self, kind: str, name: str) -> None:
        plugin = made(kind, name)
        assert build(kind, plugin.spec()) == plugin
        assert build(kind, plugin.spec()).spec() == plugin.spec()
        assert set(plugin.spec()) == {"name", *type(plugin).model_fields}

    def test_it_cannot_be_changed(self, kind: str, name: str) -> None:
        plugin = made(kind, name)
        for field in type(plugin).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(plugin, field, getattr(plugin, field))
        with pytest.raises(ValidationError, match=r"frozen|no field"):
            plugin.something = 1

    def test_an_unknown_key_is_refused_with_the_closest_known_one(self, kind: str, name: str) -> None:
        cls = discover(kind)[name]
        for field in cls.model_fields or ["settin"]:
            with pytest.raises(UserError) as caught:
                build(kind, {"name": name, **every(cls), f"{field}g": 1})
            assert f"unknown key '{field}g'" in str(caught.value)
            assert (f"did you mean {field!r}?" if cls.model_fields else "known: none") in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_is_refused(kind: str) -> None:
    for name in discover(kind):
        with pytest.raises(UserError, match=rf"unknown {kind} '{name}x'; did you mean '{name}'\?"):
            build(kind, f"{name}x")
    with pytest.raises(UserError, match=rf"unknown {kind} 'qqqqqqqq'; known: "):
        build(kind, "qqqqqqqq")


# ---- algorithms

SETTINGS = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.02}
SHORT: dict[str, dict[str, Any]] = {"fedtan2": {"exchange_rounds": 2}, "fedrep": {"head_epochs": 1}}
"""Settings of known algorithms that make three rounds worth testing; others run with their defaults."""
COMBINED = [(name, bn) for name, cls in discover("algorithm").items() for bn in cls.policies]
REFUSED = [(name, bn) for name in discover("algorithm") for bn in POLICIES if (name, bn) not in COMBINED]


def federation(algorithm: str, bn: str, norm: str = "batch norm", names: str = "abc", **options: Any) -> Federation:
    given = clients()
    return Federation(
        network(norm, dropout=0.2),
        {name: given[name] for name in names},
        validation={name: given[name] for name in names},
        algorithm={"name": algorithm, **SHORT.get(algorithm, {})},
        bn=bn,
        **{"training": SETTINGS, **options},
    )


def _pools(algorithm: Any) -> bool:
    """Return whether all sites make one client."""
    return bool(algorithm.collaboration.count(2) == 1)


def state_of(trained: Federation, client: str) -> dict[str, torch.Tensor]:
    """Return the final state of a client; where data are pooled, that is everybody's model."""
    return trained.global_state() if _pools(trained.algorithm) else trained.client_state(client)


@pytest.mark.parametrize(("name", "bn"), COMBINED)
@pytest.mark.parametrize("norm", [*NORMS, LARGE])
def test_every_algorithm_under_every_policy_on_every_norm(norm: str, name: str, bn: str) -> None:
    """Finite, the same bits after a resume and in any order of clients, and no trace in the global generators."""
    generators = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - it is what is checked
    options = {} if norm == "batch norm" else {"training": SETTINGS | {"local_epochs": 1}}
    trained = federation(name, bn, norm, **options).run(2)
    start = network(norm).state_dict()
    assert all(v.isfinite().all() for v in trained.tensors().values())
    assert all(math.isfinite(row["loss"]) for row in trained.history)
    assert not torch.equal(trained.global_state()["0.weight"], start["0.weight"]), "it learns"
    network(norm).load_state_dict(trained.global_state())
    network(norm).load_state_dict(state_of(trained, "b"))

    saved = trained.tensors(), trained.progress()
    whole = trained.run()
    resumed = federation(name, bn, norm, **options)
    resumed.restore(*saved)
    changed = differing(resumed.run().tensors(), whole.tensors())
    assert not changed, f"{name}: other bits after a resume; keep in server_state or client_state what must last"
    changed = differing(federation(name, bn, norm, names="cab", **options).run().tensors(), whole.tensors())
    assert not changed, f"{name}: the order of clients changes bits, see docs/add-an-algorithm.md"
    assert torch.equal(torch.random.get_rng_state(), generators[0]), f"{name} drew from torch's global generator"
    assert np.array_equal(np.random.get_state()[1], generators[1])  # noqa: NPY002


class NoGradient(Algorithm):
    """An algorithm whose pass leaves a gradient of zero."""

    def backward(self, local: Local, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = super().backward(local, x, y)
        local.all_grad.zero_()
        return logits


@pytest.mark.parametrize("norm", [*NORMS, LARGE])
def test_a_hook_that_is_overridden_takes_effect_on_networks_of_any_size(norm: str) -> None:
    model, data = network(norm), {"b": clients()["b"]}  # a mean over one client is exact
    assert (sum(p.numel() for p in model.parameters()) / len([*model.parameters()]) > 100_000) is (norm == LARGE)
    trained = Federation(model, data, algorithm=NoGradient(), training=SETTINGS).run(2)
    before, after = dict(model.named_parameters()), trained.global_state()
    assert all(torch.equal(after[name], parameter) for name, parameter in before.items())
    moved = Federation(model, data, training=SETTINGS).run(2).global_state()
    weights = {name: value for name, value in before.items() if name.endswith("weight")}  # BN takes some biases out
    assert not any(torch.equal(moved[name], weight) for name, weight in weights.items())


def test_every_public_hook_is_either_known_to_be_harmless_or_keeps_gradients_together() -> None:
    """A hook that is added later is safe: only names that are listed are exempt."""
    hooks = {name for name, hook in vars(Algorithm).items() if callable(hook) and not name.startswith("_")}
    assert hooks - HARMLESS == {"gradient", "backward", "correct", "phases"}
    assert hooks >= HARMLESS
    for name in sorted(hooks):
        own = type("Own", (Algorithm,), {name: lambda self, *words: None, "__module__": "own"})
        assert gradients_together(own()) is (name not in HARMLESS)


@pytest.mark.parametrize(("name", "bn"), COMBINED)
def test_every_algorithm_resumes_to_the_same_bits_with_a_part_of_the_clients(name: str, bn: str) -> None:
    """Clients come and go: what they keep waits for them, through a file without pickle."""
    training = {**SETTINGS, "participation": 0.6, "rounds": 4}
    whole = federation(name, bn, training=training)
    for _ in range(2):
        whole.round()
    with tempfile.TemporaryDirectory() as folder:
        write_tensors(Path(folder, "state.safetensors"), whole.tensors(), {})
        saved = read_tensors(Path(folder, "state.safetensors"))[0], whole.progress()
    resumed = federation(name, bn, training=training)
    resumed.restore(*saved)
    assert not differing(resumed.run().tensors(), whole.run().tensors())


@pytest.mark.parametrize(("name", "bn"), REFUSED)
def test_a_combination_without_meaning_is_refused_in_a_line_that_says_why(name: str, bn: str) -> None:
    cls = discover("algorithm")[name]
    with pytest.raises(UserError) as caught:
        federation(name, bn)
    assert str(caught.value).count("\n") == 0
    assert cls.why in str(caught.value)
    assert cls.policies[0] in str(caught.value)


@pytest.mark.parametrize(("name", "bn"), COMBINED)
def test_every_algorithm_leaves_at_home_what_the_policy_keeps(name: str, bn: str) -> None:
    """A client's own tensors do not depend on how many clients there are, in the first round."""
    if _pools(made("algorithm", name)):
        return  # nobody has anything of his own
    training = {**SETTINGS, "weights": "uniform"}  # FedDC's local work depends on a client's share of samples
    together = federation(name, bn, training=training).run(1)
    kept = together.trainer.own_names
    if "affine" not in TRAVELS[bn]:
        assert {"1.weight", "1.bias"} <= set(kept)
    alone = federation(name, bn, names="b", training=training).run(1)
    one, two = (f.client_state("b") for f in (together, alone))
    assert not differing({k: one[k] for k in kept}, {k: two[k] for k in kept})


# ---- add-ons


@pytest.mark.parametrize("bn", ["aggregated", "local"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "scaffold", "moon", "perfedavg"])
@named("addon")
def test_every_add_on_with_algorithms(name: str, algorithm: str, bn: str) -> None:
    """Finite, the same bits after a resume and in any order of clients, and no trace in the global generator."""
    options: dict[str, Any] = {"bn": bn, "addon": made("addon", name)}
    generator = torch.random.get_rng_state()
    trained = federation(algorithm, **options).run(2)
    assert all(v.isfinite().all() for v in trained.tensors().values())
    assert all(math.isfinite(row["loss"]) for row in trained.history)
    saved, whole = (trained.tensors(), trained.progress()), trained.run()
    resumed = federation(algorithm, **options)
    resumed.restore(*saved)
    assert not differing(resumed.run().tensors(), whole.tensors())
    assert not differing(federation(algorithm, names="cab", **options).run().tensors(), whole.tensors())
    assert torch.equal(torch.random.get_rng_state(), generator)


@named("addon")
def test_every_add_on_leaves_a_network_that_answers_any_batch(name: str) -> None:
    """Its heads start from the seed alone, and add nothing to the logits' shape."""
    addon = made("addon", name)
    one, same = (extended(addon, network(), seed=1).eval() for _ in range(2))
    assert not differing(one.state_dict(), same.state_dict())
    assert set(addon.stays(one)) <= {name for name, _ in one.named_parameters()}
    assert one(clients()["a"][0][:2]).shape == (2, CLASSES)


# ---- models


MODEL_SHAPES = ((3, 96, 96), (3, 28, 28), (3, 32, 32), (10,))
"""Inputs that a model is offered; it is tested on the first that it takes."""
WITH_BATCH_NORM = {"alexnet_bn", "densenet121", "densenet_small", "digit_cnn", "mlp", "resnet20", "two_layer"}
"""Models that are known to have batch norm by default; others may have none."""


def accepted(name: str) -> tuple[int, ...]:
    """The first shape that a model takes. It refuses others by UserError."""
    for shape in MODEL_SHAPES:
        with contextlib.suppress(UserError):
            initialise(made("model", name), shape, CLASSES, seed=0)
            return shape
    raise AssertionError(f"{name} takes none of {MODEL_SHAPES}, see docs/add-a-model.md")


@named("model")
class TestModel:
    @pytest.fixture(autouse=True)
    def _shape(self, name: str) -> None:
        self.shape = accepted(name)

    def test_it_maps_images_to_logits(self, name: str) -> None:
        model = initialise(made("model", name), self.shape, CLASSES, seed=0).eval()
        with torch.no_grad():
            assert model(torch.zeros(2, *self.shape)).shape == (2, CLASSES)

    def test_its_weights_depend_on_the_seed_alone(self, name: str) -> None:
        before = torch.random.get_rng_state()
        plugin: Model = made("model", name)
        one = initialise(plugin, self.shape, CLASSES, seed=0).state_dict()
        assert torch.equal(torch.random.get_rng_state(), before)
        torch.rand(5)
        assert not differing(initialise(plugin, self.shape, CLASSES, seed=0).state_dict(), one)
        assert differing(initialise(plugin, self.shape, CLASSES, seed=1).state_dict(), one)

    def test_all_its_batch_norm_stays_at_home_under_local(self, name: str) -> None:
        model = initialise(made("model", name), self.shape, CLASSES, seed=0)
        expected = {
            f"{path}.{leaf}"
            for path, layer in model.named_modules()
            if isinstance(layer, BATCH_NORMS)
            for leaf in layer.state_dict()
        }
        assert expected or name not in WITH_BATCH_NORM
        data = {"a": (torch.zeros(2, *self.shape), torch.arange(2))}
        assert set(Federation(model, data, bn="local").trainer.own_names) == expected


# ---- inferences


class Failing(TensorSamples):
    """Samples whose third batch cannot be read."""

    read = 0

    def batch(self, index: np.ndarray, rng: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        self.read += 1
        if self.read == 3:
            raise OSError
        return super().batch(index)


def inferred(name: str, model: nn.Module, client: str, samples: type[TensorSamples] = TensorSamples) -> np.ndarray:
    """Probabilities of a client's images in batches of 5."""
    inference = made("inference", name).model_copy(update={"batch_size": 5})
    internal = TensorSamples(*clients()["c"])
    answer = client_answer(model, internal, inference) if inference.asks else None
    site = Site(greys=((0.0,), (1.0,)), answer=answer)
    return probabilities(model, samples(*clients()[client]), inference, site=site)


@named("inference")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_every_inference_leaves_every_bit_of_the_model(fails: bool, train: bool, norm: str, name: str) -> None:
    """Tensors, gradients, modes, hooks and forward passes; also after an error in the middle of a site."""
    model = network(norm, dropout=0.2).train(train)
    model(clients()["a"][0]).sum().backward()
    before, generator = fingerprint(model), torch.random.get_rng_state()
    if fails:
        with pytest.raises(OSError):
            inferred(name, model, "b", Failing)
    else:
        assert np.isfinite(inferred(name, model, "b")).all()
    assert fingerprint(model) == before
    assert torch.is_grad_enabled()
    assert torch.equal(torch.random.get_rng_state(), generator)


@named("inference")
@pytest.mark.parametrize("norm", NORMS)
def test_every_inference_predicts_a_site_as_if_it_were_alone(norm: str, name: str) -> None:
    model = network(norm, dropout=0.2)
    first, other = inferred(name, model, "b"), inferred(name, model, "a")
    assert np.array_equal(inferred(name, model, "b"), first)
    assert np.array_equal(inferred(name, network(norm, dropout=0.2), "a"), other)
    np.testing.assert_allclose(first.sum(1), 1)


@named("inference")
def test_every_inference_says_what_scores_need(name: str) -> None:
    inference: Inference = made("inference", name)
    assert set(inference.score_columns()) == {"momentum", "batch_size", "order"}
    assert (inference.uses_labels, inference.labels_used, inference.caveat("it")) == (False, "", "")
    asked = inference.model_copy(update={"personalise": Personalise()})
    assert asked.uses_labels
    assert asked.labels_used == "val, steps 1, batch 32, lr 0.01, seed 0"
    assert asked.caveat("it").startswith("it first takes 1 gradient step on up to 32 labelled images of the site")


# ---- metrics

DEGENERATE = {
    "one sample": (np.array([1]), np.array([[0.3, 0.7]])),
    "one class": (np.array([0, 0, 0]), np.array([[0.3, 0.7], [0.9, 0.1], [0.5, 0.5]])),
    "all alike": (np.array([0, 1, 0]), np.full((3, 2), 0.5)),
    "sure and wrong": (np.array([0, 1]), np.array([[0.0, 1.0], [1.0, 0.0]])),
    "sure and right": (np.array([0, 1]), np.array([[1.0, 0.0], [0.0, 1.0]])),
    "a class without samples": (np.array([0, 2, 2]), np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])),
    "a class never predicted": (np.array([0, 1, 2]), np.array([[0.6, 0.4, 0.0], [0.4, 0.6, 0.0], [0.6, 0.4, 0.0]])),
}


@named("metric")
@pytest.mark.parametrize("case", DEGENERATE)
def test_every_metric_is_a_number_or_nan_and_never_infinite(case: str, name: str) -> None:
    metric = made("metric", name)
    label, probability = (x.copy() for x in DEGENERATE[case])
    value = metric.value(label, probability)
    assert isinstance(value, float)
    assert not math.isinf(value)
    if metric.percent and not math.isnan(value):
        assert 0 <= value <= 1
    assert np.array_equal(label, DEGENERATE[case][0])
    assert np.array_equal(probability, DEGENERATE[case][1])


@named("metric")
def test_every_metric_does_not_depend_on_the_order_of_samples(name: str) -> None:
    rng = np.random.default_rng(0)
    label, probability = rng.integers(0, 2, 40), rng.dirichlet([1, 1], 40)
    shuffled = rng.permutation(40)
    metric = made("metric", name)
    assert metric.value(label[shuffled], probability[shuffled]) == pytest.approx(metric.value(label, probability))


@named("metric")
def test_every_metric_knows_what_is_better(name: str) -> None:
    """A predictor that is sure and right is not beaten by one that is sure and wrong."""
    metric = made("metric", name)
    right, wrong = (metric.value(*DEGENERATE[case]) for case in ("sure and right", "sure and wrong"))
    assert (right > wrong) if metric.higher_is_better else (right < wrong)
    assert metric.title


# ---- transforms

GIVEN: dict[str, dict[str, Any]] = {"normalize": {"mean": [0.5], "std": [0.5]}, "resize": {"size": 12}}
"""Settings of known transforms that fit any number of channels; others run with their defaults."""
KNOWN_TRANSFORMS = {"flip", "macenko", "normalize", "random_crop", "resize", "rotate", "rotate90", "scale_intensity"}
"""Transforms that take any number of channels and, all but `resize`, keep height and width."""


@named("transform")
@pytest.mark.parametrize("shape", [(4, 3, 8, 8), (1, 3, 8, 8), (3, 1, 6, 6)])
def test_every_transform_keeps_shape_and_type_and_is_keyed(shape: tuple[int, ...], name: str) -> None:
    transform = build("transform", {"name": name, **every(discover("transform")[name]), **GIVEN.get(name, {})})
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 255
    before, generator = x.clone(), torch.random.get_rng_state()
    try:
        one, same = (transform.apply(x, stream(0, "test")) for _ in range(2))
    except UserError:
        assert name not in KNOWN_TRANSFORMS, "it takes any number of channels"
        assert shape[1] != 3, f"{name} must take images of three channels, see docs/add-a-transform.md"
        return
    _, *side = shape_after((transform,), shape[1:])
    if name in KNOWN_TRANSFORMS:
        assert side == ([12, 12] if name == "resize" else list(shape[2:]))
    assert (one.shape, one.dtype, type(one)) == ((*x.shape[:2], *side), x.dtype, torch.Tensor)
    assert torch.equal(one, same), f"{name} must draw from the generator that it is given, and from no other"
    assert torch.equal(x, before), f"{name} changed its argument"
    assert torch.equal(torch.random.get_rng_state(), generator), f"{name} drew from torch's global generator"


@named("transform")
def test_every_transform_keeps_the_form_of_stored_images(name: str) -> None:
    transform = made("transform", name)
    image = np.random.default_rng(0).integers(0, 256, (16, 12, 3), dtype=np.uint8)
    before = image.copy()
    one, same = (transform.prepare(image) for _ in range(2))
    assert (one.shape, one.dtype) == (image.shape, np.uint8)
    assert np.array_equal(one, same)
    assert np.array_equal(image, before)
    assert transform.when in ("prepare", "train", "always")
    if transform.when != "prepare":
        assert np.array_equal(one, image), "it acts later, on batches"


@named("transform")
def test_transforms_that_always_act_draw_nothing(name: str) -> None:
    """They act in prediction too, where no randomness is given."""
    transform = made("transform", name)
    if transform.when == "always":
        x = torch.rand(2, 3, 8, 8) * 255
        assert torch.equal(transform.apply(x, stream(1)), transform.apply(x, stream(2)))


# ---- figures

NASTY = '<b>"&$x</b>'


@named("figure")
@pytest.mark.parametrize("what", ["scores", "nothing", "lost sites", "undefined values"])
def test_every_figure_is_deterministic_and_draws_any_results(what: str, name: str) -> None:
    """Well-formed, the same bytes each time, coloured by the page; names that are markup stay text."""
    figure = made("figure", name)
    scores = [row("FedAvg", site, 0.8, role) for site, role in ((NASTY, "internal"), ("east", "external"))]
    rounds = [moment(number, site, "train", 1 / number) for number in (1, 2) for site in (NASTY, "west")]
    results = results_of(scores, rounds, {"FedAvg-0": {"training.lr": 0.1}})
    if what == "nothing":
        empty = (results.scores.iloc[:0], results.rounds.iloc[:0])
        results = dataclasses.replace(results, scores=empty[0], rounds=empty[1], internal=(), external=())
    if what == "lost sites":
        results = dataclasses.replace(results, internal=(*results.internal, "x"), external=("y", *results.external))
    if what == "undefined values":
        undefined = results.scores.assign(value=float("nan")), results.rounds.assign(loss=float("nan"))
        results = dataclasses.replace(results, scores=undefined[0], rounds=undefined[1])
    text = figure.draw(results)
    assert figure.draw(results) == text, f"{name} draws other bytes the second time, see docs/add-a-figure.md"
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert (root[0].text or "").startswith(f"{figure.title}: {figure.caption(results)[:20]}")
    assert figure.title
    assert "<b>" not in text
    assert INK not in text
    assert len(text) < 200_000


# ---- datasets

SMALL: dict[str, dict[str, Any]] = {"camelyon17": {"patches": 40}, "digits_five": {"images": 10}}
"""Settings of known datasets that make their miniatures small; others are drawn with their defaults."""


@named("dataset")
def test_every_dataset_says_where_it_is_from(name: str) -> None:
    dataset = made("dataset", name)
    card = dataset.card()
    assert all((card.title, card.source, card.licence)), f"the card of {name} is not complete"
    assert len(dataset.classes) >= 2


@named("dataset")
def test_every_miniature_is_read_as_documented(name: str, tmp_path: Path) -> None:
    """The table of samples, images of one form, and the same bytes each time."""
    dataset = build("dataset", {"name": name, **every(discover("dataset")[name]), **SMALL.get(name, {})})
    if not dataset.has_miniature:
        return
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        dataset.miniature(tmp_path / folder)
    files = [f.relative_to(tmp_path / "one") for f in sorted((tmp_path / "one").rglob("*")) if f.is_file()]
    assert files, f"the miniature of {name} writes no file"
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), f"{name}: {file}"
    opened = dataset.open(tmp_path / "one")
    samples = opened.samples
    assert samples["sample"].is_unique
    assert samples["label"].between(0, len(dataset.classes) - 1).all()
    assert samples["site"].value_counts().min() > 1
    assert "patient" in samples
    first = opened.image(0)
    assert (first.dtype, first.ndim) in ((np.uint8, 3), (np.float32, 1))
    assert np.array_equal(opened.image(0), first)
    assert {opened.image(i).shape for i in (0, len(samples) // 2, len(samples) - 1)} == {first.shape}
    if dataset.shape:
        assert first.shape == (*dataset.shape[1:], dataset.shape[0])


# ---- names


def test_plug_ins_of_all_kinds_are_found() -> None:
    found = {kind: set(discover(kind)) for kind in KINDS}
    assert {"fedavg"} <= found["algorithm"]
    assert {"source", "tsmobn"} <= found["inference"]
    assert {"camelyon17", "own_images"} <= found["dataset"]
    assert {"mlp", "densenet121"} <= found["model"]


def test_toy_policies_are_the_librarys() -> None:
    assert set(TRAVELS) == set(POLICIES)
    assert [POLICIES[bn].affine for bn in TRAVELS] == ["affine" in kinds for kinds in TRAVELS.values()]
    assert [POLICIES[bn].statistics for bn in TRAVELS] == ["statistics" in kinds for kinds in TRAVELS.values()]
    assert len(set(itertools.chain(*TRAVELS.values()))) == 3
    assert SHAPE[0] == next(m for m in network().modules() if isinstance(m, nn.Conv2d)).in_channels
