"""The engine over a bare loop: images a second, for small and large networks in each precision."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fedshift.core.errors import UserError

from .loads import DENSENET_SMALL, UNET_SMALL, Load, resident
from .setting import PRECISIONS, Case, Figures, Setting, computing, in_turn

FULL = {
    "MLP 784-30-10, 50 x 64, batch 32": Load("mlp", (784,), 10, 50, 64, 32),
    "DigitCNN, 5 x 743, batch 32": Load("digit_cnn", (3, 28, 28), 10, 5, 743, 32),
    "ResNet-20, 5 x 1280, batch 128": Load("resnet20", (3, 32, 32), 10, 5, 1280, 128),
    "AlexNet-BN 256 px, 3 x 512, batch 32": Load("alexnet_bn", (3, 256, 256), 10, 3, 512, 32),
    "DenseNet121 96 px, 2 x 256, batch 32": Load("densenet121", (3, 96, 96), 2, 2, 256, 32),
    "DenseNet121 96 px, 2 x 256, batch 128": Load("densenet121", (3, 96, 96), 2, 2, 256, 128),
    "unet_small 128 px, 2 x 128, batch 8": Load("unet_small", (3, 128, 128), 2, 2, 128, 8, masks=True),
}
SMALL = {
    "MLP 784-30-10, 2 x 8, batch 4": Load("mlp", (784,), 10, 2, 8, 4),
    "densenet_small 8 px, 2 x 4, batch 2": DENSENET_SMALL,
    "unet_small 16 px, 2 x 4, batch 2": Load("unet_small", (3, 16, 16), 2, 2, 4, 2, True, UNET_SMALL),
}
GOAL = 0.9
SECONDS = 2.5
"""Time for the rounds of a row."""


def cases(setting: Setting) -> Iterator[Case]:
    """A row for each network and precision."""
    for precision in PRECISIONS:
        for name, load in setting.size(FULL, SMALL).items():
            yield Case(f"{precision}, {name}", 6, partial(_tried, setting, load, precision))


def _tried(setting: Setting, load: Load, precision: str) -> Figures:
    """Measure with deterministic kernels, the default; where there are none, say so and take others."""
    try:
        return measured(setting, load, precision, deterministic=True)
    except (RuntimeError, UserError) as error:
        if "determinis" not in str(error):
            raise
        return {**measured(setting, load, precision, deterministic=False), "not deterministic, since": str(error)[:90]}


def measured(setting: Setting, load: Load, precision: str, deterministic: bool) -> Figures:
    """Return images a second of the bare loop, of the engine on the same data, and of the engine as jobs read."""
    device = setting.at
    network, read = load.network(), load.read(device)
    ready = resident(read, device)
    training = {"precision": precision, "deterministic": deterministic}
    with computing(device, precision, deterministic):
        rounds = {
            "bare": load.bare(network, ready, device, precision),
            "engine": load.federation(network, ready, device, **training).round,
            "reading": load.federation(network, read, device, **training).round,
        }
        seconds = in_turn(rounds, device, setting.size(SECONDS, 0))
    figures: Figures = {name: load.total / second for name, second in seconds.items()}
    ratios = {"ratio": seconds["bare"] / seconds["engine"], "of reading": seconds["bare"] / seconds["reading"]}
    return figures | ratios | ({} if setting.small or ratios["ratio"] >= GOAL else {"below": GOAL})
