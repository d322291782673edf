"""Where a part works, with what sizes, and what its rows are."""

from __future__ import annotations

import gc
import platform
import runpy
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

import fedshift
from fedshift.jobs.record import take_device
from fedshift.nn.device import arithmetic

T = TypeVar("T")
Figures = dict[str, Any]
CPU = torch.device("cpu")


class Case(NamedTuple):
    """One row of a part.

    Attributes
    ----------
    what : what is measured; no other case of its part says the same
    seconds : what it takes on an H100, about: a case that does not fit into the time that is left is not begun
    work : returns the figures of the row, and raises for whatever is wrong
    limit : seconds after which its process is ended; 0 for what follows from `seconds`
    """

    what: str
    seconds: float
    work: Callable[[], Figures]
    limit: float = 0.0


class WrongError(Exception):
    """A result that is not what it must be. The row keeps its figures."""

    def __init__(self, reason: str, figures: Figures) -> None:
        super().__init__(reason)
        self.figures = figures


class NotHereError(Exception):
    """What a case needs is not on this machine. Its row is skipped, with the reason."""


@dataclass(frozen=True)
class Setting:
    """Where and how all parts work.

    Attributes
    ----------
    device : name of the device
    small : whether sizes are those of a test, whose figures say nothing about speed
    load : a Python file that registers the device, which is run first; empty for a device that torch has
    """

    device: str
    small: bool
    load: str = ""

    def open(self) -> torch.device | None:
        """Return the device, set up as a job sets it up in float32; None where it is not there."""
        if self.load:
            runpy.run_path(self.load)
        if self.device == "cuda":
            return take_device(threads=4) if torch.cuda.is_available() else None
        torch.set_num_threads(1)
        return torch.device(self.device)

    @property
    def at(self) -> torch.device:
        """The device, once it is open."""
        return torch.device(self.device)

    def facts(self) -> dict[str, str]:
        """Return what every figure depends on: the card, and versions."""
        name = torch.cuda.get_device_name() if self.device == "cuda" else self.device
        return {
            "card": name,
            "fedshift": fedshift.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            **({"form": "small, no figure of speed"} if self.small else {}),
        }

    def size(self, full: T, small: T) -> T:
        """Return a size of a measurement, or that of its small form."""
        return small if self.small else full


PRECISIONS = ("float32", "tf32", "bfloat16")


def computing(
    device: torch.device, precision: str = "float32", deterministic: bool = True
) -> AbstractContextManager[None]:
    """Return the context in which a device computes as a training does. Raises NotHereError where it has no TF32."""
    if precision == "tf32" and device.type != "cuda":
        raise NotHereError("only NVIDIA GPUs have TF32")
    return arithmetic(device, precision, deterministic)


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was asked for."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a call takes, until the device has done it."""
    wait_for(device)
    begun = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - begun


def in_turn(
    works: Mapping[str, Callable[[], object]], device: torch.device, seconds: float, most: int = 30
) -> dict[str, float]:
    """Return the median seconds of each work, which are called in turn for about some seconds in all.

    Each is called twice before, so that libraries are loaded and kernels are chosen; with no seconds, once, since no
    figure counts then.
    """
    for work in works.values():
        work()
    once = {name: timed(work, device) for name, work in works.items()}
    if not seconds:
        return once
    repeats = int(min(max(3, seconds / sum(once.values())), most))
    times = [{name: timed(work, device) for name, work in works.items()} for _ in range(repeats)]
    return {name: statistics.median(row[name] for row in times) for name in works}


def freed(device: torch.device) -> None:
    """Give back the device's memory that nothing uses any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def reason(error: BaseException) -> str:
    """Return an error in one line that is not long."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    words = f"{type(error).__name__}: {lines[0].strip()}".replace(str(Path.cwd()), ".")
    return words if len(words) <= 200 else words[:197] + "..."
