"""Prediction of one site by a trained network under one way of inference."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from ..core.console import Progress
from ..core.errors import UserError
from ..core.rng import keyed, stream
from ..data.samples import Samples, shape_of
from ..inferences import Inference, Predict, Site
from ..nn.device import arithmetic, in_float64, read_ahead, to_device
from ..tasks import CLASSIFICATION, Task

FITTING = 2**23
"""Number of pixels that an accelerator predicts at once.

64 channels of them, the widest layer of many networks, take 2 GiB.
"""
MOST = 4096
"""Largest number of images that an accelerator predicts at once."""


@contextmanager
def site_predictor(
    model: nn.Module,
    inference: Inference,
    batches: Callable[[], Iterator[Tensor]] | Site,
    task: Task = CLASSIFICATION,
    deterministic: bool = True,
) -> Iterator[Predict]:
    """Yield a function from a batch (batch, ...) to logits (batch, classes, ...) for one site, without gradients.

    The inference works on a copy of the network in evaluation mode. To it each pixel of a dense output is a sample of
    its own: it sees logits (batch * height * width, classes). Whatever it does, also if it fails, `model` keeps every
    bit of its parameters, buffers, gradients, modes and hooks, and torch's default generators keep their state.
    `batches` begins a pass over the site's inputs each time that it is called; it may be a `Site`, which also tells the
    inference what is known of the site. The context computes in full float32, and by default with deterministic
    kernels: see `nn.device.arithmetic`.
    """
    place = batches if isinstance(batches, Site) else Site(batches)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with arithmetic(device, deterministic=deterministic), keyed("test time", device=device), ExitStack() as site:
        with _gradients(inference):
            network, restored = task.by_sample(copy.deepcopy(model).eval())
            predict = site.enter_context(inference.on_site(network, place))

        def logits(x: Tensor) -> Tensor:
            with _gradients(inference):
                answer = predict(x)
            if not isinstance(answer, Tensor):
                problem = f"answers with a {type(answer).__name__}"
                raise UserError(
                    f"inference {inference.name}", problem, "yield a function that returns a tensor of logits"
                )
            return restored(answer.detach())

        yield logits


@contextmanager
def _gradients(inference: Inference) -> Iterator[None]:
    """Record gradients in the block if the inference asks for them.

    Raises UserError if the inference takes gradients, but its class does not say `gradients = True`.
    """
    try:
        with torch.set_grad_enabled(inference.gradients):
            yield
    except RuntimeError as error:
        if inference.gradients or "does not require grad" not in str(error):
            raise
        where = f"inference {inference.name}"
        raise UserError(
            where, "takes gradients, and none are recorded", "say `gradients = True` in its class"
        ) from error


def class_probabilities(logits: Tensor, y: Tensor) -> Tensor:
    """Return the softmax of logits (batch, classes, ...), float64. `y` is not used."""
    return in_float64(logits).softmax(1)


def probabilities(
    model: nn.Module,
    samples: Samples,
    inference: Inference,
    device: torch.device | str = "cpu",
    bar: Progress | None = None,
    site: Site | None = None,
    task: Task = CLASSIFICATION,
    read: Callable[[Tensor, Tensor], Tensor] = class_probabilities,
    deterministic: bool = True,
) -> np.ndarray:
    """Predict all samples of one site, and return `read(logits, targets)` (n, ...), float64.

    By default that is class probabilities (n, classes, ...). Rows are in stored order, whatever the test order; without
    samples the shape is (0, 0). `site` tells the inference what else it may know, and holds afterwards what the
    inference has counted. `bar` shows the progress. The model is left as it is. `deterministic` is that of
    `nn.device.arithmetic`.
    """
    order = inference.image_order(len(samples))
    size = inference.batch_size
    if len(samples) and not inference.batches_matter:
        size = _at_once(inference, shape_of(samples), task, torch.device(device))
    indices = [order[start : start + size] for start in range(0, len(order), size)]

    def labelled() -> Iterator[tuple[Tensor, Tensor]]:
        batches = (samples.batch(index) for index in indices)
        return read_ahead(((to_device(x, device), y) for x, y in batches), torch.device(device))

    def unlabelled() -> Iterator[Tensor]:
        return (x for x, _ in labelled())

    out: Tensor | None = None
    with site_predictor(model, inference, replace(site or Site(), batches=unlabelled), task, deterministic) as predict:
        for index, (x, y) in zip(indices, labelled(), strict=True):
            answer = read(predict(x), y)
            if out is None:
                # One array from the start: small ones that stay between batches would split the memory that a batch
                # gives back, so that the next batch of this size needs new memory, without end. Numbers of images stay
                # on the device until the last batch, so that the host waits once; maps would fill its memory.
                kept_at = answer.device if answer.dim() == 2 else torch.device("cpu")
                out = torch.empty((len(order), *answer.shape[1:]), dtype=torch.float64, device=kept_at)
            out[to_device(torch.from_numpy(index), out.device)] = answer.to(out.device)
            if bar:
                bar.update(len(index))
    return np.empty((0, 0)) if out is None else out.cpu().numpy()


def _at_once(inference: Inference, shape: tuple[int, ...], task: Task, device: torch.device) -> int:
    """Return the number of images of `shape` in a batch, for an inference whose predictions do not depend on batches.

    An accelerator takes more than a CPU, unless the inference was given another number than its default.
    """
    size = inference.batch_size
    if device.type != "cpu" and size == type(inference).model_fields["batch_size"].default:
        size = min(MOST, max(size, FITTING // math.prod(shape[1:])))
    return task.at_once(size, shape)


def adapted_probabilities(
    model: nn.Module,
    test: Samples,
    val: Samples,
    inference: Inference,
    site: str,
    device: torch.device | str = "cpu",
    bar: Progress | None = None,
    known: Site | None = None,
    task: Task = CLASSIFICATION,
    read: Callable[[Tensor, Tensor], Tensor] = class_probabilities,
    deterministic: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Adapt a copy of the network to labelled images of a site, and return its `probabilities` of the test samples.

    The second value says which test samples (n,), bool, must not be scored, since the network has seen their labels.
    `known` tells the inference what else it may know of the site. The model is left as it is. Raises UserError where
    too few images are there to adapt to, or none is left to score.
    """
    model = copy.deepcopy(model)
    with arithmetic(device, deterministic=deterministic):
        adapted = inference.adapt_to_labels(model, test, val, site)
    if adapted.all():
        problem = f"all {len(test)} test images would be adapted to, and none left to score"
        raise UserError(f"site {site!r}", problem, "adapt to fewer labelled images")
    return probabilities(model, test, inference, device, bar, known, task, read, deterministic), adapted


def client_answer(
    model: nn.Module,
    samples: Samples,
    inference: Inference,
    device: torch.device | str = "cpu",
    task: Task = CLASSIFICATION,
    deterministic: bool = True,
    known: Tensor | None = None,
) -> Tensor:
    """Return the vector (n,), on the CPU, that an internal site computes for an inference after the training.

    `samples` are the site's training images, which `Inference.at_client` gets in shuffled batches without labels.
    `known` is the mean over sites of their earlier vectors. The model, and torch's default generators, stay as they
    are.
    """
    order = stream("training images", len(samples)).permutation(len(samples))
    size = min(inference.batch_size, len(order))
    starts = range(0, len(order) - size + 1, size)  # of whole batches
    if not inference.batches_matter:
        starts = range(0, len(order), size := _at_once(inference, shape_of(samples), task, torch.device(device)))

    def batches() -> Iterator[Tensor]:
        for start in starts:
            yield to_device(samples.batch(order[start : start + size])[0], device)

    place = next((p.device for p in model.parameters()), torch.device("cpu"))
    exact = arithmetic(place, deterministic=deterministic)
    with exact, keyed("at client", device=place), _gradients(inference):
        network, _ = task.by_sample(copy.deepcopy(model).eval())
        return inference.at_client(network, Site(batches, answer=known)).detach().cpu()


def mean_answer(answers: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Return the weighted mean of the vectors (n,) that internal sites have computed for an inference.

    `answers` and `weights` are by site; the weights sum to 1.
    """
    return sum((weights[site] * answer for site, answer in answers.items()), start=torch.zeros(()))


def federation_answer(
    inference: Inference, ask: Callable[[Tensor | None], Mapping[str, Tensor]], weights: Mapping[str, float]
) -> Tensor:
    """Return the weighted mean of the vectors (n,) that internal sites compute for an inference.

    `ask` returns the vectors of all sites (see `Inference.at_client`), given the mean of their earlier ones. They are
    asked once, or once for each batch-norm layer (`Inference.asks_by_layer`); of a network without one there is nothing
    to ask. `weights`, by site, sum to 1.
    """
    known = mean_answer(ask(None), weights)
    if not inference.asks_by_layer:
        return known
    while len(further := mean_answer(ask(known), weights)):
        known = torch.cat([known, further])
    return known
