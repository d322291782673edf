"""Count the batch-norm tensors of three networks, by type and by the letters "bn", and draw bn_tensors.svg beside this.

    python docs/figures/bn_tensors.py

A BN tensor is an entry of the `state_dict` that belongs to a batch-norm layer: weight, bias, running mean, running
variance and the number of batches. FedBN keeps them at the clients. Code that takes the entries whose names contain
"bn" finds those of layers that are called so, and misses all others without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monai.networks.nets import UNet
from torch import nn
from torchvision.models import densenet121, resnet18

from fedshift.figures._canvas import COLOURS, WIDTH, svg
from fedshift.nn.norms import audit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUT = Path(__file__).with_suffix(".svg")
LETTERS = "bn"
GROUND, INK = "#ffffff", "#1f2328"
"""Colours of paper and ink: where the picture is shown, no page gives it a colour."""
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18 (torchvision)": resnet18,
    "DenseNet121 (torchvision)": densenet121,
    "UNet (MONAI), three levels": lambda: UNet(
        spatial_dims=2, in_channels=1, out_channels=2, channels=(16, 32, 64), strides=(2, 2), norm="batch"
    ),
}


class Counts(NamedTuple):
    """The number of BN tensors that are found by the type of their layer, and by the letters in their names."""

    by_type: int
    by_letters: int


def counts(network: nn.Module) -> Counts:
    """Count the BN tensors of a network."""
    found = audit(network, letters=LETTERS)
    return Counts(len(found.by_type), len(found.by_type & found.by_letters))


def drawn(found: dict[str, Counts]) -> str:
    """Return the picture as SVG, the same bytes for the same counts."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for k, number in enumerate(found.values()):
            for offset, colour, value in ((-0.2, COLOURS[0], number.by_type), (0.2, COLOURS[1], number.by_letters)):
                axes.barh(k + offset, 100 * value / number.by_type, 0.36, color=colour)
                how = "by type" if offset < 0 else f'by the letters "{LETTERS}"'
                place = 100 * value / number.by_type + 1
                axes.text(place, k + offset, f"{value} of {number.by_type} {how}", va="center")
        axes.set_yticks(range(len(found)), list(found))
        axes.invert_yaxis()
        axes.set_xlim(0, 145)
        axes.set_xticks([0, 25, 50, 75, 100], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        axes.set_xlabel("batch-norm tensors that FedBN keeps at the clients")
        axes.grid(axis="y", visible=False)
        axes.spines["bottom"].set_bounds(0, 100)

    title = f'Share of batch-norm tensors found by type and by the letters "{LETTERS}"'
    style = f"<style>svg {{ color: {INK}; background: {GROUND}; }}</style>\n"
    return svg("bn_tensors", title, (WIDTH, 2.9), paint).replace("<title", f"{style}<title", 1)


if __name__ == "__main__":
    number = {name: counts(build()) for name, build in NETWORKS.items()}
    OUT.write_text(drawn(number), encoding="utf-8")
    for name, found in number.items():
        print(f"{name}: {found.by_type} by type, {found.by_letters} by the letters {LETTERS!r}")
    print(f"wrote {OUT}")
