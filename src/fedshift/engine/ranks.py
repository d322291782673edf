"""Processes that share the clients of one federation: each trains some clients, and torch.distributed adds up."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..core.errors import Interrupted, UserError

T = TypeVar("T")
PATIENCE = timedelta(days=1)
"""Time that a process waits for the others, which may be in the middle of a long round."""


class Ranks:
    """The processes of one training. This base class is a single process that does the work of all."""

    rank: int = 0
    count: int = 1

    def each(self, task: Callable[[], T]) -> list[T]:
        """Run `task` in each process, and return the results of all processes in every one.

        An error that `task` raises in one process is raised in all.
        """
        return [task()]

    def first(self, task: Callable[[], T]) -> T:
        """Run `task` in the first process alone, and return its result in all processes."""
        return self.each(task if self.rank == 0 else _nothing)[0]

    def sum(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum tensors over processes, in place, and return them; a tensor that a process lacks counts as zero there."""
        return dict(tensors)

    def add_up(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes in place, and return it. Every process must have it."""
        return tensor

    def share_out(self, work: Sequence[float]) -> list[int]:
        """Assign each piece of work to a process so that the totals are close; return the process of each piece.

        `work` are the sizes of the pieces. The largest comes first, and each goes to the process with the least work.
        """
        load = [0.0] * self.count
        owner = [0] * len(work)
        for k in sorted(range(len(work)), key=lambda k: -work[k]):
            owner[k] = min(range(self.count), key=load.__getitem__)
            load[owner[k]] += work[k]
        return owner


def _nothing() -> Any:
    return None


ALONE = Ranks()


class ProcessGroup(Ranks):
    """The processes of torch.distributed's default group; `opened` opens the group.

    A sum over two processes does not depend on their order. Over more processes the backend fixes the order, which is
    the same each time.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank = dist.get_rank()
        self.count = dist.get_world_size()
        self.device = device

    def each(self, task: Callable[[], T]) -> list[T]:
        """Run `task` in each process, and return all results; see `Ranks.each`."""
        raised: Exception | None = None
        value: Any = None
        try:
            value = task()
        except Exception as error:  # the others wait for an answer, whatever the error is
            raised = error
        outcomes = self._gathered((value, raised and _sendable(raised)))
        errors = [error for _, error in outcomes if error is not None]
        if errors:
            raise raised or next((e for e in errors if not isinstance(e, Interrupted)), errors[0])
        return [value for value, _ in outcomes]

    def _gathered(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.count
        with _answered():
            dist.all_gather_object(values, value)
        return values

    def sum(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum tensors over processes, in place; see `Ranks.sum`."""
        everywhere = self._gathered({key: (tensor.shape, tensor.dtype) for key, tensor in tensors.items()})
        shapes = {key: shape for process in everywhere for key, shape in process.items()}
        out = dict(tensors)
        # Sorted: processes that add tensors up in different orders would wait for each other.
        for key in sorted(shapes):
            shape, dtype = shapes[key]
            out.setdefault(key, torch.zeros(shape, dtype=dtype, device=self.device))
            self.add_up(out[key])
        return out

    def add_up(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over processes, in place; see `Ranks.add_up`."""
        with _answered():
            dist.all_reduce(tensor)
        return tensor


def _sendable(error: Exception) -> Exception:
    """Return the error, or a UserError that describes it if the error itself cannot be sent to other processes."""
    if isinstance(error, UserError | Interrupted):
        return error
    return UserError("another process", f"failed: {type(error).__name__}: {_first_line(error)}", "see its traceback")


@contextmanager
def _answered() -> Iterator[None]:
    """Turn an error of torch.distributed inside the context into a UserError that another process was lost."""
    try:
        yield
    except RuntimeError as error:  # torch.distributed raises no narrower class
        remedy = "start the job again: it goes on from the last checkpoint"
        raise UserError("torch.distributed", f"another process was lost ({_first_line(error)})", remedy) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def require_own_gpus(ranks: Ranks, gpu: str) -> None:
    """Raise UserError if two processes use one GPU, which NCCL refuses; `gpu` names this process's, or is empty."""
    gpus = [name for name in ranks.each(lambda: gpu) if name]
    shared = [name for name, uses in Counter(gpus).items() if uses > 1]
    if shared:
        problem = f"{gpus.count(shared[0])} of {ranks.count} processes would share one GPU ({shared[0]})"
        raise UserError("processes", problem, "ask for as many processes as there are GPUs, or leave out `processes`")


def _gpu(device: torch.device) -> str:
    """Return a name of the GPU that is unique over all machines, or "" for a CPU."""
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} of {socket.gethostname()}, {getattr(properties, 'uuid', device)}"


@contextmanager
def opened(device: torch.device) -> Iterator[Ranks]:
    """Open the group of processes that torchrun started together, and yield them; this process alone without torchrun.

    Environment variables of torchrun say which processes there are. gloo carries tensors on the CPU, NCCL those on
    GPUs.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield ALONE
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        ranks = ProcessGroup(device)
        require_own_gpus(ranks, _gpu(device))
        yield ranks
    finally:
        dist.destroy_process_group()
