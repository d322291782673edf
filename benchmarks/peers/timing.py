"""Time one peer on one work in the peer's own environment: `python -m peers.timing PEER WORK.pt RESULT.json OPTIONS`.

After each round of the peer, the process takes the same steps in a bare loop. The first round is not timed, since it
sets up; its peak memory is taken. Linux only.
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from measure import bare_loop

from .works import State, Work, load

TRAINED = 3
"""Rounds after which the loss must have fallen."""


def others() -> float:
    """Seconds of processor time of all processes that this one has started, and of theirs."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:4])
    return seconds


def used() -> float:
    """Memory of this process and all that it has started, MiB: what is no mapped file, shared parts counted once."""
    kilobytes = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(OSError):
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))
    return kilobytes / 1024


class Peak(threading.Thread):
    """The most memory that is added while it runs, looked at every 20 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.most = used()
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, used())

    def stop(self) -> float:
        self.over.set()
        self.join()
        return max(self.most, used()) - self.before


def loss(work: Work, state: State) -> float:
    """Mean loss on each client's first batch, normalised by the batch: some peers keep no running statistics."""
    network, criterion = copy.deepcopy(work.network).train(), work.loss()
    network.load_state_dict(state)
    with torch.no_grad():
        return sum(criterion(network(x[: work.batch]), y[: work.batch]).item() for x, y in work.data.values())


class Timer:
    """What the peer calls after each round."""

    def __init__(self, work: Work) -> None:
        self.work, self.seconds, self.added, self.rounds = work, list[tuple[float, ...]](), 0.0, 0
        self.bare = bare_loop(work.network, work.data, work.batch, work.lr, loss=work.loss())
        self.peak = Peak()
        self._start()

    def _start(self) -> None:
        self.others, self.processor, self.elapsed = others(), time.process_time(), time.perf_counter()

    def __call__(self, state: Callable[[], State]) -> None:
        processor, elapsed = time.process_time() - self.processor, time.perf_counter() - self.elapsed
        processor += others() - self.others  # not in the time of this process, which reads all of /proc for it
        self.rounds += 1
        if self.rounds == 1:
            self.added = self.peak.stop()
            first, now = self.work.network.state_dict(), state()
            if all(torch.equal(first[name], now[name]) for name, _ in self.work.network.named_parameters()):
                raise SystemExit("does not train: after a round, all weights are the first ones")
        else:
            start = time.thread_time(), time.perf_counter()
            self.bare()  # all in this thread: other threads of the peer do not count
            self.seconds.append((time.thread_time() - start[0], time.perf_counter() - start[1], processor, elapsed))
        if self.rounds == TRAINED:
            before, after = loss(self.work, self.work.network.state_dict()), loss(self.work, state())
            if not after < before:
                raise SystemExit(
                    f"does not train: after {TRAINED} rounds the loss is {after / before:.3f} of the first"
                )
        self._start()


def main(peer: str, path: str, result: str, options: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    work = load(path)
    timer = Timer(work)
    importlib.import_module(f"peers.{peer}").train(work, work.rounds, timer, **json.loads(options))
    if timer.rounds != work.rounds:
        raise SystemExit(f"{timer.rounds} rounds in the place of {work.rounds}")
    Path(result).write_text(json.dumps({"seconds": timer.seconds, "added": timer.added}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
