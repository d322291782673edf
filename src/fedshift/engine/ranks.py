"""Processes that share the clients of one federation: each trains its own, and sums go through torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..core.errors import Interrupted, UserError
from ..core.limits import Limit

T = TypeVar("T")
PATIENCE: Limit[timedelta] = timedelta(days=1)
"""How long a process waits for the others: they may be in the middle of a long round."""


class Ranks:
    """The processes of one training. This is the only one, and whatever is asked of all is asked of it."""

    rank: int = 0
    count: int = 1

    def each(self, task: Callable[[], T]) -> list[T]:
        """What `task` returns in each process, in every one of them. What it raises in one is raised in all."""
        return [task()]

    def first(self, task: Callable[[], T]) -> T:
        """What `task` returns in the first process, told to all. Only there is it done."""
        return self.each(task if self.rank == 0 else _nothing)[0]

    def sum(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sums over processes, in place: where a process lacks a tensor that others have, it is zero there."""
        return dict(tensors)

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over processes of a tensor that all have, in place."""
        return tensor

    def share_out(self, work: Sequence[float]) -> list[int]:
        """Which process takes each piece of work, so that their totals are close: the largest first, to the idlest."""
        load, owner = [0.0] * self.count, [0] * len(work)
        for k in sorted(range(len(work)), key=lambda k: -work[k]):
            owner[k] = min(range(self.count), key=load.__getitem__)
            load[owner[k]] += work[k]
        return owner


def _nothing() -> Any:
    return None


ALONE = Ranks()


class ProcessGroup(Ranks):
    """The processes of torch.distributed's default group, which must be open: see `opened`.

    A sum over two processes does not depend on their order; over more it is that of the backend, the same each time.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank, self.count, self.device = dist.get_rank(), dist.get_world_size(), device

    def each(self, task: Callable[[], T]) -> list[T]:
        own: Exception | None = None
        value: Any = None
        try:
            value = task()
        except Exception as error:  # whatever it is, the others wait for an answer
            own = error
        said = self._told((value, own and _sendable(own)))
        errors = [error for _, error in said if error is not None]
        if errors:
            raise own or next((e for e in errors if not isinstance(e, Interrupted)), errors[0])
        return [value for value, _ in said]

    def _told(self, outcome: Any) -> list[Any]:
        said: list[Any] = [None] * self.count
        with _answered():
            dist.all_gather_object(said, outcome)
        return said

    def sum(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        told = self._told({key: (of.shape, of.dtype) for key, of in tensors.items()})
        shapes = {key: like for of in told for key, like in of.items()}
        out = dict(tensors)
        for key in sorted(shapes):
            shape, dtype = shapes[key]
            out.setdefault(key, torch.zeros(shape, dtype=dtype, device=self.device))
            self.add_up(out[key])
        return out

    def add_up(self, tensor: Tensor) -> Tensor:
        with _answered():
            dist.all_reduce(tensor)
        return tensor


def _sendable(error: Exception) -> Exception:
    """What the other processes are told of an error: not every one can travel."""
    if isinstance(error, UserError | Interrupted):
        return error
    return UserError("another process", f"failed: {type(error).__name__}: {_first_line(error)}", "see its traceback")


@contextmanager
def _answered() -> Iterator[None]:
    """Turns the loss of another process into a UserError."""
    try:
        yield
    except RuntimeError as error:  # torch.distributed has no narrower one
        remedy = "start again to go on from the last round"
        raise UserError("torch.distributed", f"another process was lost ({_first_line(error)})", remedy) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


@contextmanager
def opened(device: torch.device) -> Iterator[Ranks]:
    """The processes that torchrun started together with this one, as its environment variables say; else this alone.

    gloo carries tensors that are on the CPU, NCCL those on GPUs.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield ALONE
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield ProcessGroup(device)
    finally:
        dist.destroy_process_group()
