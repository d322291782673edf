"""Checks of inferences (ways to predict the images of a site), on networks with each kind of norm layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import UserError
from ..core.registry import build
from ..data.samples import TensorSamples
from ..engine.prediction import adapted_probabilities, client_answer, federation_answer, probabilities, site_predictor
from ..inferences import Inference, Personalise, Site
from ..tasks import CLASSIFICATION, Task
from .case import Broken, Case, made, require
from .fixtures import (
    CLASSES,
    FEATURES,
    NORMS,
    VECTORS,
    are_probabilities,
    clients,
    fingerprint,
    network,
    outlined,
    outlining_network,
)

Kind = type[Inference]


def cases(cls: Kind) -> Iterator[Case]:
    """Yield the checks that an inference class must pass."""
    yield Case("it returns logits for each batch", partial(answers_logits, cls))
    for norm in (*NORMS, VECTORS):
        unless_refused = partial(_unless_refused, cls, norm)
        for mode, train in (("training", True), ("evaluation", False)):
            for title, fails in (("", False), (", after an error in the middle of a site", True)):
                words = f"it leaves every bit of the network unchanged: {norm}, in {mode} mode{title}"
                yield Case(words, partial(unless_refused, partial(leaves_the_model, cls, norm, train, fails)))
        words = f"it predicts a last batch of one image: {norm}"
        yield Case(words, partial(unless_refused, partial(predicts_one, cls, norm)))
        words = f"it predicts a site as if it were alone: {norm}"
        yield Case(words, partial(unless_refused, partial(predicts_alone, cls, norm)))
    if "segmentation" in cls.tasks:
        yield Case(
            "it predicts each pixel of a site as if the site were alone", partial(_refusable, predicts_pixels, cls)
        )
    yield Case("predictions depend on neither stored order nor batches, unless it says so", partial(ignores_order, cls))
    yield Case("dropout is off while it predicts", partial(drops_nothing, cls), advice=True)
    yield Case("internal sites compute vectors of one length for it", partial(answers_alike, cls))
    yield Case("it differs from the network's own predictions", partial(differs, cls))
    yield Case("it states its score columns, and the labels that it uses", partial(says_what_scores_need, cls))


class Failing(TensorSamples):
    """Samples whose third batch cannot be read."""

    read = 0

    def batch(self, index: np.ndarray, rng: Any = None) -> tuple[Tensor, Tensor]:
        """Return a batch as TensorSamples does, but raise OSError at the third call."""
        self.read += 1
        if self.read == 3:
            raise OSError
        return super().batch(index)


def _refusable(check: Callable[[Kind], None], cls: Kind) -> None:
    """Run a check. It also passes if the inference raises UserError, as one that refuses masks does."""
    with contextlib.suppress(UserError):
        check(cls)


def _unless_refused(cls: Kind, norm: str, check: Callable[[], None]) -> None:
    """Run a check on the network `norm`. A UserError passes where the inference may refuse the network.

    It may refuse a network for vectors and, if it asks clients for values of batch norm layers, one without batch norm.
    """
    refusable = norm == VECTORS or (cls.asks_by_layer and norm != "batch norm")
    with contextlib.suppress(*[UserError] if refusable else []):
        check()


def images(norm: str) -> dict[str, Any]:
    """Return images and labels of each site in the shape that the network `norm` takes: vectors for VECTORS."""
    return clients(shape=(FEATURES,)) if norm == VECTORS else clients()


def answers_logits(cls: Kind) -> None:
    """Check that `on_site` is a context manager whose predictor returns logits (n, classes) in the network's precision.

    It predicts batches of five images and a last one of three.
    """
    inference = made(cls)
    model = network()
    answer = _asked(model, TensorSamples(*clients()["c"]), inference)
    batches = clients()["a"][0].split(5)
    site = Site(lambda: iter(batches), greys=((0.0,), (1.0,)), answer=answer)
    context = inference.on_site(model, site)
    require(hasattr(context, "__enter__"), "on_site must be a context manager: decorate it with @contextmanager")
    with site_predictor(model, inference, site) as predict:
        for x in batches:
            logits = predict(x)
            words = f"its logits are {logits.dtype}, and must have the precision of the network at least: {x.dtype}"
            require(logits.dtype.itemsize >= x.dtype.itemsize, words)
            words = f"{len(x)} images must give logits of shape {(len(x), CLASSES)}, and give {tuple(logits.shape)}"
            require(logits.shape == (len(x), CLASSES), words)
            words = "it answers with probabilities; return logits, or logarithms of probabilities"
            require(not are_probabilities(logits), words)


def predicts_one(cls: Kind, norm: str) -> None:
    """Check that probabilities are finite at a site whose last batch has a single image, after one of 20."""
    x, y = (part[:21] for part in images(norm)["b"])
    internal = TensorSamples(*images(norm)["c"])
    predicted = _predicted(cls, network(norm), TensorSamples(x, y), "b", internal, batch_size=20)
    require(bool(np.isfinite(predicted).all()), "a probability is not finite if the last batch has a single image")


def ignores_order(cls: Kind) -> None:
    """Check that predictions depend on neither stored order nor batches, unless `order` or `batches_matter` says so."""
    if made(cls).uses_labels:
        return
    x, y = clients()["b"]
    internal = TensorSamples(*clients()["c"])
    sites = (TensorSamples(x, y), TensorSamples(x.flip(0), y.flip(0)))
    here, there = (_predicted(cls, network(), site, "b", internal, order=None) for site in sites)
    alike = np.allclose(here, there[::-1], rtol=1e-6, atol=1e-9)
    words = (
        "predictions depend on the stored order, which may be that of classes; declare `order: int | None = ORDERED`"
    )
    require(alike or made(cls).order is not None, words)
    words = "predictions depend on the images of a batch, and `batches_matter` is False; leave it out"
    require(alike or cls.batches_matter, words)


def drops_nothing(cls: Kind) -> None:
    """Check that dropout is off in prediction: a network with dropout layers predicts the same as without them.

    An inference that first trains the network on labelled samples passes, since dropout acts in its training.
    """
    if made(cls).uses_labels:
        return
    for norm in (*NORMS, VECTORS):
        with contextlib.suppress(UserError):
            one, other = (inferred(cls, network(norm, dropout), "b", norm) for dropout in (0.0, 0.5))
            words = "dropout acts: train() turns on more than batch norm, for which `by_batch` is enough"
            require(np.allclose(one, other), words)


def answers_alike(cls: Kind) -> None:
    """Check that `at_client` returns vectors of one length at two internal sites, so that they can be averaged."""
    if cls.asks:
        shapes = {tuple(client_answer(network(), TensorSamples(*clients()[k]), made(cls)).shape) for k in "bc"}
        words = f"at_client must return a vector of one length at all sites, and returns the shapes {sorted(shapes)}"
        require(len(shapes) == 1 and len(*shapes) == 1, words)


def differs(cls: Kind) -> None:
    """Check that with at least one kind of norm the inference predicts differently from the network without it."""
    # Source is the base class itself.
    if cls.on_site is Inference.on_site and cls.adapt_to_labels is Inference.adapt_to_labels:
        return
    for norm in (*NORMS, VECTORS):
        with contextlib.suppress(UserError):
            model = network(norm)
            source = probabilities(model, TensorSamples(*images(norm)["b"]), Inference())
            if not np.allclose(inferred(cls, model, "b", norm), source):
                return
    raise Broken("its predictions are the network's own, with batch norm and without: it has no effect")


def inferred(
    cls: Kind, model: nn.Module, client: str, norm: str, samples: type[TensorSamples] = TensorSamples
) -> np.ndarray:
    """Return the probabilities (n, classes) of a client's images under the inference, predicted in batches of 5.

    `norm` names the network, whose input shape the images get; `samples` is the class that reads them.
    """
    return _predicted(cls, model, samples(*images(norm)[client]), client, TensorSamples(*images(norm)["c"]))


def _asked(model: nn.Module, internal: TensorSamples, inference: Inference, task: Task = CLASSIFICATION) -> Any:
    """Return the vector (n,) that one internal site computes for the inference, or None if it needs no such vector.

    `internal` are the labelled samples of that site.
    """
    if not inference.asks:
        return None
    return federation_answer(
        inference, lambda known: {"c": client_answer(model, internal, inference, task=task, known=known)}, {"c": 1.0}
    )


def _predicted(
    cls: Kind,
    model: nn.Module,
    test: TensorSamples,
    client: str,
    internal: TensorSamples,
    task: Task = CLASSIFICATION,
    **settings: Any,
) -> np.ndarray:
    """Return the probabilities (n, classes) of the samples `test` of a client under an inference, in batches of 5.

    `internal` are samples of another site, from which the inference may need a vector; `settings` replace its own.
    """
    inference = made(cls).model_copy(update={"batch_size": 5} | settings)
    answer = _asked(model, internal, inference, task)
    site = Site(greys=((0.0,), (1.0,)), answer=answer)
    if inference.uses_labels:
        return adapted_probabilities(model, test, internal, inference, client, known=site, task=task)[0]
    return probabilities(model, test, inference, site=site, task=task)


def predicts_pixels(cls: Kind) -> None:
    """Check the predictions of a segmentation network: shape (n, classes, height, width), sums of 1 at each pixel.

    They must not depend on the site that was predicted before, and must leave the network unchanged.
    """
    task, sites, model = build("task", "segmentation"), outlined(), outlining_network()
    before = fingerprint(model)

    def predict(network: nn.Module, client: str) -> np.ndarray:
        return _predicted(cls, network, TensorSamples(*sites[client]), client, TensorSamples(*sites["c"]), task)

    predict(model, "b")
    second = predict(model, "a")
    require(
        fingerprint(model) == before,
        "the network is not as it was before; undo all changes when `on_site` ends, also after an error",
    )
    x, _ = sites["a"]
    expected = (len(x), CLASSES, *x.shape[2:])
    require(second.shape == expected, f"{len(x)} images give probabilities {second.shape} and not {expected}")
    require(bool(np.allclose(second.sum(1), 1, rtol=1e-7, atol=0)), "probabilities of a pixel do not add up to 1")
    alone = predict(outlining_network(), "a")
    require(np.array_equal(alone, second), "predictions of a site depend on the site before it")


def leaves_the_model(cls: Kind, norm: str, train: bool, fails: bool) -> None:
    """Check that predicting a site leaves tensors, gradients, modes and hooks of the network unchanged.

    `train` is the network's mode before. If `fails`, reading the third batch raises an error, which must be passed on.
    """
    model = network(norm, dropout=0.2).train(train)
    with torch.random.fork_rng(devices=[]):
        model(images(norm)["a"][0]).sum().backward()
    before = fingerprint(model)
    # The third batch cannot be read, in the middle of the site.
    if fails:
        try:
            inferred(cls, model, "b", norm, Failing)
        except OSError:
            pass
        else:
            raise Broken("an error while a batch is read is lost; let errors of `batches` pass")
    else:
        require(bool(np.isfinite(inferred(cls, model, "b", norm)).all()), "a probability is not finite")
    require(
        fingerprint(model) == before,
        "the network is not as it was before; undo all changes when `on_site` ends, also after an error",
    )
    require(torch.is_grad_enabled(), "gradients stay switched off")


def predicts_alone(cls: Kind, norm: str) -> None:
    """Check that predictions of a site are the same each time and whichever site was predicted before."""
    model = network(norm, dropout=0.2)
    first = inferred(cls, model, "b", norm)
    second = inferred(cls, model, "a", norm)
    require(np.array_equal(inferred(cls, model, "b", norm), first), "the second time, a site has other predictions")
    alone = inferred(cls, network(norm, dropout=0.2), "a", norm)
    require(np.array_equal(alone, second), "predictions of a site depend on the site before it")
    require(bool(np.allclose(first.sum(1), 1, rtol=1e-7, atol=0)), "probabilities of an image do not add up to 1")


def says_what_scores_need(cls: Kind) -> None:
    """Check the keys of `score_columns`, and that `labels_used` and `caveat` say which labels are used, if any are."""
    inference = made(cls)
    columns = {"momentum", "batch_size", "order"}
    require(set(inference.score_columns()) == columns, f"score_columns must have the keys {sorted(columns)}")
    said = (inference.labels_used, inference.caveat("it"))
    if inference.uses_labels:
        require(all(said), f"it uses labels: labels_used and caveat must say so, and say {said}")
        return
    require(said == ("", ""), f"without labels, nothing must be said of them: {said}")
    asked = inference.model_copy(update={"personalise": Personalise()})
    require(asked.uses_labels, "personalisation uses labels, and uses_labels says no")
    used = "val, steps 1, batch 32, lr 0.01, seed 0"
    require(asked.labels_used == used, f"labels_used must be {used!r}: {asked.labels_used!r}")
    caveat = "it first takes 1 gradient step on up to 32 labelled images of the site"
    require(asked.caveat("it").startswith(caveat), f"the caveat must begin with {caveat!r}")
