"""Prediction with DenseNet121 at 96 pixels, as the job predicts: images on the host, one site."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch

from fedshift.core.registry import build
from fedshift.engine.prediction import probabilities
from fedshift.nn.device import channels_last

from .loads import Load, resident
from .setting import Case, Figures, Setting, computing, in_turn

PATCHES = 455_954
"""Those of Camelyon17-WILDS."""
INFERENCES = {"source": 4096, "tsmobn": 2048, "tent": 512}
"""Ways of inference, and how many images each predicts."""


def cases(setting: Setting) -> Iterator[Case]:
    """A row for each way of inference, with its default settings."""
    for name, images in INFERENCES.items():
        load = setting.size(
            Load("densenet121", (3, 96, 96), 2, 1, images, 32), Load("resnet20", (3, 8, 8), 2, 1, 16, 4)
        )
        yield Case(name, 8, partial(_measured, setting, load, name))


def _measured(setting: Setting, load: Load, name: str) -> Figures:
    device = setting.at
    (samples,) = load.read(device).values()
    model = load.network().to(device)
    if channels_last(None, model, load.shape, device):
        model = model.to(memory_format=torch.channels_last)
    inference = build("inference", name)
    works: dict[str, Callable[[], object]] = {
        "images a second": lambda: probabilities(model, samples, inference, device)
    }
    if name == "source":
        works["bare loop in batches of 256, data on the device"] = _bare(setting, load)
    seconds = in_turn(works, device, setting.size(4.0, 0), most=5)
    figures: Figures = {what: load.total / second for what, second in seconds.items()}
    return figures | {"hours for Camelyon17": PATCHES / figures["images a second"] / 3600}


def _bare(setting: Setting, load: Load) -> Callable[[], object]:
    """Return a pass over all images on the device, which computes their probabilities and brings them to the host."""
    device = setting.at
    (samples,) = resident(load.read(device), device).values()
    layout = torch.channels_last
    model = copy.deepcopy(load.network()).to(device).to(memory_format=layout).eval()
    x = samples.x.contiguous(memory_format=layout)

    def predict() -> object:
        with torch.no_grad(), computing(device):
            return torch.cat([model(part).double().softmax(1) for part in x.split(256)]).cpu()

    return predict
