"""Networks without memory, to learn their size before they are built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Undrawn(TorchFunctionMode):
    """A mode in which normal draws leave tensors as they are.

    The meta device holds no numbers, but PyTorch imports its compiler to draw none, which takes as long
    as importing PyTorch itself.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`, except for a normal draw into a tensor."""
        return args[0] if func is torch.Tensor.normal_ else func(*args, **kwargs or {})


@contextmanager
def without_memory() -> Iterator[None]:
    """Make tensors that have a shape and no content inside the context."""
    with torch.device("meta"), _Undrawn():
        yield
