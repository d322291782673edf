"""The card: its name and versions, and the two rates that no program can pass, of copies and of matrix products."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from .setting import PRECISIONS, Case, Figures, Setting, computing, in_turn, timed

WORDS = ("driver_version", "memory.total", "power.limit", "clocks.max.sm")


def cases(setting: Setting) -> Iterator[Case]:
    """The card, copies within it and to it, products of matrices, and how long a small kernel takes to launch."""
    yield Case("card", 2, partial(_card, setting))
    yield Case("copies, GB/s", 3, partial(_copies, setting))
    for precision in PRECISIONS:
        yield Case(f"matrix products in {precision}", 2, partial(_products, setting, precision))
    yield Case("a small kernel", 1, partial(_launch, setting))


def _card(setting: Setting) -> Figures:
    cores = {"CPU cores": os.cpu_count() or 0, "CPU": _processor()}
    if setting.device != "cuda":
        return cores
    free, total = torch.cuda.mem_get_info()
    figures: Figures = {
        "capability": "{}.{}".format(*torch.cuda.get_device_capability()),
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),
        "GiB": total / 2**30,
        "free GiB": free / 2**30,
    }
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", f"--query-gpu={','.join(WORDS)}", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False).stdout
        figures |= (
            dict(zip(WORDS, (word.strip() for word in answer.splitlines()[0].split(",")), strict=False))
            if answer
            else {}
        )
    return figures | cores


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _copies(setting: Setting) -> Figures:
    device, size = setting.at, setting.size(2**30, 2**20)
    here, there = (torch.rand(size // 4, device=device) for _ in range(2))
    plain = torch.rand(size // 16)
    ways = {"within, read and written": (lambda: there.copy_(here), 2 * size)}
    host = {"to the card, pageable": plain}
    if setting.device == "cuda":
        host["to the card, pinned"] = plain.pin_memory()
    for name, source in host.items():
        ways[name] = (partial(here[: len(source)].copy_, source, non_blocking=True), size // 4)
    seconds = in_turn({name: work for name, (work, _) in ways.items()}, device, setting.size(1.0, 0))
    return {name: ways[name][1] / seconds[name] / 1e9 for name in ways}


def _products(setting: Setting, precision: str) -> Figures:
    device, n = setting.at, setting.size(8192, 128)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    with computing(device, precision):
        a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
        seconds = in_turn({"product": lambda: a @ b}, device, setting.size(1.0, 0))["product"]
        few = slice(0, 64)
        exact = a[few].double() @ b.double()
        error = float(((a @ b)[few].double() - exact).norm() / exact.norm())
    return {"TFLOP/s": 2 * n**3 / seconds / 1e12, "relative error": error}


def _launch(setting: Setting) -> Figures:
    x, n = torch.ones(16, device=setting.at), setting.size(2000, 20)

    def many() -> None:
        for _ in range(n):
            x.add_(1)

    many()
    return {"microseconds": timed(many, setting.at) / n * 1e6}
