"""Precision and determinism of a device, copies of tensors to it, and networks whose tensors take no memory."""

from __future__ import annotations

import copy
import functools
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.errors import UserError
from ..core.rng import undisturbed

T = TypeVar("T")
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
AMPERE = (8, 0)
"""The first compute capability of NVIDIA with TF32."""
NO_KERNEL = re.compile(r"(.+?) does not have a deterministic implementation")
DEPTH = 2
"""Number of batches that are prepared before they are asked for."""


@contextmanager
def arithmetic(device: torch.device | str, precision: str = "float32", deterministic: bool = True) -> Iterator[None]:
    """Compute on a GPU inside the context with this precision and determinism; nothing changes on a CPU.

    All that trains or predicts enters this context, so that a script and a job have the same numbers. Afterwards the
    switches of the process are as before. The environment variable CUBLAS_WORKSPACE_CONFIG stays: cuBLAS reads it once.

    Parameters
    ----------
    device : where tensors are
    precision : float32, tf32 or bfloat16. With tf32, inputs of products and convolutions are rounded to 10 bits; else
        float32 is computed in full. What bfloat16 adds is up to autocast, in the forward pass
    deterministic : True for kernels that give the same bits each time; else cuDNN tries its kernels for each new shape
        and takes the fastest

    Raises
    ------
    UserError
        For a precision that the device does not have, and where an operation inside has no deterministic kernel.
    """
    device = torch.device(device)
    require_precision(device, precision)
    if device.type == "cpu":
        yield
        return
    if deterministic:
        os.environ.setdefault(WORKSPACE, ":4096:8")
    before = _switches(), torch.get_deterministic_debug_mode()
    try:
        _set(_switches(precision, deterministic))
        # As torch.use_deterministic_algorithms, which would import a compiler: seconds at the start of each job.
        torch.set_deterministic_debug_mode("error" if deterministic else "default")
        yield
    except RuntimeError as error:
        if found := NO_KERNEL.match(str(error)):
            problem = f"{found[1]} has no kernel on {device.type} that gives the same bits each time"
            remedy = "set training.deterministic: false, or choose a network without this operation"
            raise UserError("training.deterministic", problem, remedy) from error
        raise
    finally:
        _set(before[0])
        torch.set_deterministic_debug_mode(before[1])


def require_precision(device: torch.device, precision: str) -> None:
    """Raise UserError for TF32 on a device without it, and for bfloat16 on a GPU that only emulates it."""
    where, remedy = "training.precision", "set it to float32"
    if precision == "tf32" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < AMPERE):
        raise UserError(where, f"is tf32, which NVIDIA GPUs have since Ampere, and {_name(device)} has not", remedy)
    if precision == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise UserError(where, f"is bfloat16, which {_name(device)} only imitates, slowly", remedy)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


Switches = list[tuple[object, str, object]]


def _switches(precision: str = "", deterministic: bool = True) -> Switches:
    """Return torch's switches of precision and determinism: object, name and value.

    Values are those for `precision` or, without it, the current ones.
    """
    exact, rounded = "ieee", "tf32"
    if hasattr(torch.backends.cudnn, "conv"):
        # Since torch 2.9. The older names must not be read beside the newer ones: torch raises for a mixture.
        formats = [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn]
        wanted: Switches = [(of, "fp32_precision", rounded if precision == "tf32" else exact) for of in formats]
    else:
        wanted = [(of, "allow_tf32", precision == "tf32") for of in (torch.backends.cuda.matmul, torch.backends.cudnn)]
    wanted += [
        (torch.backends.cudnn, "benchmark", not deterministic),
        # It would cost time, and a kernel that reads what nobody wrote is a fault in any case.
        (torch.utils.deterministic, "fill_uninitialized_memory", False),
    ]
    return [(of, name, value if precision else getattr(of, name)) for of, name, value in wanted]


def _set(switches: Switches) -> None:
    for of, name, value in switches:
        setattr(of, name, value)


def channels_last(wanted: bool | None, model: nn.Module, shape: tuple[int, ...], device: torch.device) -> bool:
    """Return whether a network stores images and weights of convolutions with the channels last in memory.

    `wanted` decides if it is not None. Otherwise the network must convolve images of `shape` (channels, height, width),
    and compute in this format, and the device must be a CPU, where the format was measured to be faster, or a CUDA GPU,
    where this was not shown.
    """
    if wanted is not None:
        return wanted
    convolves = len(shape) == 3 and any(isinstance(module, nn.Conv2d) for module in model.modules())
    return convolves and device.type in ("cpu", "cuda") and _computes(model, shape)


def _computes(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether a copy of the network, in evaluation mode, computes two images with the channels last.

    A network that calls `view` on the output of a convolution cannot.
    """
    with undisturbed(), torch.no_grad():
        try:
            network = copy.deepcopy(model).to("cpu").to(memory_format=torch.channels_last).eval()
            dtype = next((p.dtype for p in network.parameters() if p.is_floating_point()), None)
            network(torch.zeros(2, *shape, dtype=dtype).contiguous(memory_format=torch.channels_last))
        except RuntimeError:
            return False
    return True


# ---- what goes to a device while the host works on


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor on a device. A copy from the CPU to an accelerator goes on while the CPU works on.

    It goes through pinned memory, from which an accelerator copies by itself. A copy to the CPU is complete when this
    returns, since nobody could tell when it arrives.
    """
    device = torch.device(device)
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    # Only a copy from pinned memory leaves the host free meanwhile.
    return tensor.pin_memory().to(device, non_blocking=True)


def in_float64(tensor: Tensor) -> Tensor:
    """Return a tensor as float64, on its device or, since Apple's GPUs lack this type, on the CPU."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def array_to_device(array: np.ndarray, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an array as a tensor on the device of `like`; see `to_device`.

    It keeps its type unless `dtype` is given.
    """
    tensor = torch.from_numpy(array)
    if dtype is not None:
        tensor = tensor.to(dtype)
    return to_device(tensor, like.device)


@functools.lru_cache(64)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers as a tensor (n,). It is cached, one for each type and device: do not change it."""
    return torch.tensor(values, dtype=dtype, device=device)


def read_ahead(batches: Iterator[T], device: torch.device) -> Iterator[T]:
    """Return the batches in their order; for an accelerator, a thread prepares the next two meanwhile.

    The thread works on the stream of the caller, so that the device does everything in the order in which it was asked.
    A CPU gets no thread, since its cores train. An error of `batches` is raised where its batch would have come.
    """
    return batches if device.type == "cpu" else _in_thread(batches, device)


def _in_thread(batches: Iterator[T], device: torch.device) -> Iterator[T]:
    module = torch.get_device_module(device)
    end = object()
    with ThreadPoolExecutor(1, "batches", module.set_stream, (module.current_stream(device),)) as pool:
        coming: deque[Any] = deque(pool.submit(next, batches, end) for _ in range(DEPTH))
        while (batch := coming.popleft().result()) is not end:
            coming.append(pool.submit(next, batches, end))
            yield batch


def wait_for(device: torch.device) -> None:
    """Wait until an accelerator has finished all its work, as must be before a clock is read."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


# ---- networks without memory, to learn their size before they are built


class _Undrawn(TorchFunctionMode):
    """A torch mode in which normal draws leave tensors as they are.

    The meta device holds no numbers, but PyTorch imports its compiler to draw none, which takes as long as importing
    PyTorch itself.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`, except for a normal draw into a tensor."""
        return args[0] if func is torch.Tensor.normal_ else func(*args, **kwargs or {})


@contextmanager
def without_memory() -> Iterator[None]:
    """Create tensors on the meta device inside the context: they have a shape, but no content and no memory."""
    with torch.device("meta"), _Undrawn():
        yield
