"""Places in a convolutional network where feature maps become smaller, and hooks that change features there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from ..core.errors import UserError

EPSILON = 1e-6
POOLINGS = nn.MaxPool2d | nn.AvgPool2d


@dataclass
class Place:
    """A place in a network where features can be changed: the output of a module, or its input.

    Attributes
    ----------
    module : the module
    before : True for its input
    channels : number of channels there
    last : True if no convolution follows
    """

    module: nn.Module
    before: bool
    channels: int
    last: bool = True


def places(model: nn.Module, most: int, *, last: bool = True) -> list[Place]:
    """Return the first places, at most `most`, where feature maps become smaller.

    These are the outputs of poolings, and the inputs of residual blocks or convolutions with a stride, after the first
    convolution. In a network without them they are the outputs of ReLUs. `last` includes places that no convolution
    follows. Raises UserError for a network without any place.
    """
    smaller = list[Place]()
    relus = list[Place]()
    channels = 0
    inside = ""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            if channels and max(module.stride) > 1 and not (inside and name.startswith(inside)):
                parent = name.rpartition(".")[0]
                # A stride in a residual block makes the shortcut smaller too: the whole block is one place.
                block = model.get_submodule(parent)
                whole = not isinstance(block, nn.Sequential) and parent != ""
                smaller.append(Place(block if whole else module, True, module.in_channels))
                inside = f"{parent}." if whole else ""
            channels = module.out_channels
            for place in (*smaller, *relus):
                place.last = False
        elif channels and isinstance(module, POOLINGS):
            smaller.append(Place(module, False, channels))
        elif channels and isinstance(module, nn.ReLU):
            relus.append(Place(module, False, channels))
    found = [place for place in smaller or relus if last or not place.last][:most]
    if not found:
        raise UserError(
            "addon", "the network has no pooling, stride or ReLU between convolutions", "leave the add-on out"
        )
    return found


def styles(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel of each image, both (batch, channels, 1, 1), as its style.

    The variance is unbiased, plus 1e-6. Both have at least 32 bits.
    """
    if x.dtype.itemsize < 4:
        x = x.float()
    return x.mean((2, 3), keepdim=True), (x.var((2, 3), keepdim=True) + EPSILON).sqrt()


@contextmanager
def changed(at: Sequence[Place], change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Replace the features at each place in `at` by `change(number of the place, features)` within the block."""

    def hook(number: int, before: bool) -> Callable[..., Tensor]:
        def given(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor | None = None) -> Tensor:
            return change(number, inputs[0] if before or output is None else output)

        return given

    with ExitStack() as stack:
        for number, place in enumerate(at):
            register = place.module.register_forward_pre_hook if place.before else place.module.register_forward_hook
            stack.callback(register(hook(number, place.before)).remove)
        yield
