"""The stand-in accelerator: builds standin.cpp, and registers it as the device "standin" of this process.

Load it before the first backward pass of a process: autograd counts devices then. So tests load it in a process of
their own, see device_worker.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("standin.cpp")
LIBRARIES = ("torch", "torch_cpu", "c10")


def build(folder: Path) -> Path:
    """Return the compiled library, which is made in `folder` unless it is there; raise RuntimeError if it fails."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    out = folder / f"standin-{key}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # compiling takes half a minute, and tests in two processes need the library
        if not out.exists():
            _compile(out)
    return out


def _compile(out: Path) -> None:
    torch_folder = Path(torch.__file__).parent
    include, lib = torch_folder / "include", torch_folder / "lib"
    partial = out.with_suffix(f".{os.getpid()}")
    command = [
        *(compiler() or "g++", "-O0", "-std=c++20", "-fPIC", "-shared", "-w"),
        *("-isystem", str(include), "-isystem", str(include / "torch" / "csrc" / "api" / "include")),
        *(str(SOURCE), "-o", str(partial), f"-L{lib}", f"-Wl,-rpath,{lib}"),
        *(f"-l{name}" for name in LIBRARIES),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")
    partial.replace(out)


def compiler() -> str | None:
    """Return the C++ compiler, or None."""
    return shutil.which("g++")


def load(library: Path) -> torch.device:
    """Register the device, and return it."""
    torch.ops.load_library(str(library))
    torch.utils.rename_privateuse1_backend("standin")
    own = torch.ops.standin
    module = types.ModuleType("torch.standin")
    for name, answer in {"is_available": True, "device_count": 1, "current_device": 0, "is_initialized": True}.items():
        setattr(module, name, lambda answer=answer: answer)
    module.__dict__.update(
        _is_in_bad_fork=lambda: False,
        set_device=lambda device: None,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        manual_seed=lambda seed: own.seed(seed % 2**63),
        manual_seed_all=lambda seed: None,
        get_rng_state=lambda device=None: own.generator_state(),
        set_rng_state=lambda state, device=None: own.set_generator_state(state),
        synchronize=lambda device=None: own.synchronize(),
        current_stream=lambda device=None: None,
        set_stream=lambda stream: None,
    )
    sys.modules["torch.standin"] = module
    torch._register_device_module("standin", module)
    return torch.device("standin")


def counts() -> dict[str, int]:
    """Return how often the host would have waited for the device since the last call, by what it waited for."""
    return dict(torch.ops.standin.take_counts())
