"""Several trainings on one card: what they do together, each in a process of its own, as jobs are."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from .loads import Load
from .setting import Case, Figures, Setting, wait_for

LOADS = {
    "ResNet-20, 2 x 1280, batch 128": Load("resnet20", (3, 32, 32), 10, 2, 1280, 128),
    "MLP, 50 x 64, batch 32": Load("mlp", (784,), 10, 50, 64, 32),
}
SMALL = {"MLP, 2 x 8, batch 4": Load("mlp", (784,), 10, 2, 8, 4)}
NUMBERS = (1, 2, 4, 8)
WINDOW = 4.0
"""Seconds that count, in which all of them train."""


def cases(setting: Setting) -> Iterator[Case]:
    """A row for each network, which all processes train."""
    for name, load in setting.size(LOADS, SMALL).items():
        yield Case(name, 40, partial(_measured, setting, load, setting.size(NUMBERS, (1, 2))))


def _measured(setting: Setting, load: Load, numbers: Sequence[int]) -> Figures:
    """Start processes, wait until all have warmed up, and count what the first of them train in a window of time."""
    children = [Child(setting, load) for _ in range(max(numbers))]
    figures: Figures = {}
    try:
        for child in children:
            child.require("ready")
        for number in numbers:
            begin = time.monotonic() + 0.2
            window = begin, begin + setting.size(WINDOW, 0.3)
            for child in children[:number]:
                child.tell(window)
            counts = [json.loads(child.answer()) for child in children[:number]]
            rates = [count["images"] / count["seconds"] for count in counts]
            figures[f"{number} together"] = sum(rates)
        first = figures[f"{numbers[0]} together"]
        figures["best over one"] = max(figures.values()) / first
        if memory := max(count["MiB"] for count in counts):
            figures["MiB of each"] = memory
    finally:
        for child in children:
            child.end()
    return figures


class Child:
    """A process that trains when it is told to."""

    def __init__(self, setting: Setting, load: Load) -> None:
        home = str(Path(__file__).parents[1])
        call = f"import sys; sys.path.insert(0, {home!r}); from card import together; together.train()"
        given = json.dumps({"setting": vars(setting), "load": vars(load)})
        command = [sys.executable, "-c", call, given]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self) -> str:
        """Return the next line that it writes. Raises RuntimeError where it has ended."""
        assert self.process.stdout
        text = self.process.stdout.readline().strip()
        if not text:
            raise RuntimeError(f"a process ended with code {self.process.wait()}")
        return text

    def require(self, word: str) -> None:
        """Raise RuntimeError unless the next line is a word."""
        if (text := self.answer()) != word:
            raise RuntimeError(f"a process says {text!r}")

    def tell(self, window: tuple[float, float]) -> None:
        """Let it train from one time to another."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(window) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


def train() -> None:
    """Be one of the processes: warm up, say so, and train in each window that is told on standard input."""
    given = json.loads(sys.argv[1])
    setting = Setting(**given["setting"])
    device = setting.open()
    assert device
    load = Load(**given["load"] | {"shape": tuple(given["load"]["shape"])})
    federation = load.federation(load.network(), load.read(device), device)
    for _ in range(2):
        federation.round()
    print("ready", flush=True)
    for line in sys.stdin:
        begin, end = json.loads(line)
        while time.monotonic() < begin:
            federation.round()
        # Whole rounds count, from the first that begins within the window.
        begun, images = time.monotonic(), 0
        while time.monotonic() < end:
            federation.round()
            wait_for(device)
            images += load.total
        seconds = time.monotonic() - begun
        memory = torch.cuda.max_memory_reserved() / 2**20 if device.type == "cuda" else 0.0
        print(json.dumps({"images": images, "seconds": seconds, "MiB": memory}), flush=True)
