"""Cost of each inference at test time over `source`, in CPU time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from measure import Measurement, clients, timed

from fedshift.core.registry import build, discover
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import client_answer, probabilities
from fedshift.inferences import Inference, Site
from fedshift.models import initialise
from fedshift.nn.features import classifier

SHAPE, CLASSES = (3, 32, 32), 10
GREYS = ((0.0,) * 3, (1.0,) * 3)
IMAGES = 128
LAST = {"unsure": 1.0, "sure": 50.0}
"""Factors on the last layer of a network with random weights: some methods work on images that are sure, or not."""


def inferences(pairs: int = 5) -> list[Measurement]:
    """Measure the prediction of one site by `source` and by each other inference that is found, in turn.

    ETA, EATA and SAR take steps on images of which the network is sure, and CoTTA averages over augmented images where
    it is not: each method is measured on a network of either kind.
    """
    return [row for kind, factor in LAST.items() for row in _on_a_network(kind, factor, pairs)]


def _on_a_network(kind: str, factor: float, pairs: int) -> list[Measurement]:
    ((x, y),) = clients(1, IMAGES, SHAPE, CLASSES).values()
    model, samples = initialise(build("model", "resnet20"), SHAPE, CLASSES, 0), TensorSamples(x, y)
    with torch.no_grad():
        classifier(model).weight.mul_(factor)
    plain = _prediction(model, samples, build("inference", "source"))
    others = {name: build("inference", name) for name in discover("inference") if name != "source"}
    return [
        _in_turn(f"{name}, {kind} predictions", plain, _prediction(model, samples, inference), pairs)
        for name, inference in others.items()
    ]


def _prediction(model: torch.nn.Module, samples: TensorSamples, inference: Inference) -> Callable[[], object]:
    """Return the prediction of a site; what internal sites compute for the method once is no part of it."""
    answer = client_answer(model, samples, inference) if inference.asks else None
    return partial(probabilities, model, samples, inference, site=Site(greys=GREYS, answer=answer))


def _in_turn(name: str, a: Callable[[], object], b: Callable[[], object], pairs: int) -> Measurement:
    """Take CPU times of `a` and `b` in turn, of all threads; print and return the median ratio b / a."""
    a(), b()
    seconds = [tuple(timed(work, 1, time.process_time) for work in (a, b)) for _ in range(pairs)]
    ratios = sorted(second / first for first, second in seconds)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    source, other = (1000 / IMAGES * statistics.median(column) for column in zip(*seconds, strict=True))
    what = f"{IMAGES} images 32x32, ResNet-20, CPU time of a site: source, {name}"
    ratio = statistics.median(ratios)
    print(
        f"{what}\n  {source:.2f} s and {other:.2f} s of CPU for 1,000 images, ratio {ratio:.2f} "
        f"(middle half {low:.2f} to {high:.2f}, {pairs} pairs)",
        flush=True,
    )
    return Measurement(what, ratio, "ratio", "", low, high, pairs)
