"""How long trainings and predictions will take, by those that were timed before; what nothing tells is unknown."""

from __future__ import annotations

import csv
import functools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core import digest
from ..core.errors import UserError
from ..core.registry import validated
from ..io.paths import Paths
from ..io.text import read_json
from ..study.run import Run
from .run_state import State
from .sample_counts import Amounts

UNKNOWN = "no run of the same model was timed in this folder, or data and partition are not made yet"
PREDICTED = "predictions by the same model, by images and their size"
THIRD = "a rule of thumb: an image tested takes a third of the time of one trained on"
COSTS = ("participation", "local_epochs", "local_steps", "batch_size", "equal_steps", "precision", "channels_last")
"""Settings of the training that decide how long a round takes."""


def _kin(run: Run) -> list[Any]:
    """What decides how long a round takes, but for the algorithm and the number of images."""
    costs = [getattr(run.training, name) for name in COSTS]
    return [run.data.id, run.model.spec(), [transform.spec() for transform in run.transforms], costs]


def _algorithm(run: Run) -> list[Any]:
    return [*_kin(run), run.algorithm.name, run.addon and run.addon.spec()]


KIN = "other algorithms on the same data, by rounds and images"
MODEL = "the same model on other data or in other batches, by rounds, images and their size: rough"
LEVELS: dict[str, Callable[[Run], Any]] = {
    "the same run, so far or before": lambda run: run.id,
    "other seeds of the same condition": lambda run: {**run.spec, "seed": None},
    "the same algorithm on the same data, by rounds and images": _algorithm,
    KIN: _kin,
    MODEL: lambda run: run.model.spec(),
}
"""Timed runs tell of another where they agree with it in this; the first kind of which there are any does."""


@dataclass(frozen=True)
class Timed:
    """A run that was timed: seconds of a GPU, or of a CPU's core, for so many rounds; `device`: "" if not recorded."""

    run: Run
    seconds: float
    rounds: int
    device: str = ""


@dataclass(frozen=True)
class Estimate:
    """Seconds of a GPU, or of a CPU's core; None where unknown. `source` says whence."""

    seconds: float | None
    source: str = UNKNOWN
    device: str = ""


@dataclass(frozen=True)
class Benchmark:
    """What Snakemake measured of a job: seconds by the clock, and those of all cores together, 0 if not measured."""

    wall: float
    cores: float

    @classmethod
    def read(cls, paths: Paths, rule: str, name: str) -> Benchmark | None:
        """None where there is none, or none that can be read."""
        try:
            file = paths.root / "results" / "benchmarks" / rule / f"{name}.tsv"
            row = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines(), delimiter="\t"))[-1]
            return cls(float(row["s"]), float(row.get("cpu_time") or 0))
        except (OSError, KeyError, ValueError, TypeError, IndexError):
            return None

    def seconds(self, device: str) -> float:
        """Of a GPU, or of a CPU's core: what others did on the machine makes no job longer."""
        return self.cores if device.startswith("CPU") and self.cores else self.wall


def timed(runs: Mapping[str, Run], states: Mapping[str, State], paths: Paths) -> Iterator[Timed]:
    """Finished runs in the project, of whatever study, and those of `runs` that are under way or left a benchmark."""
    finished = set()
    for file in sorted((paths.root / "results" / "runs").glob("*/manifest.json")):
        key = file.parent.name
        try:
            told = read_json(file)
            run = runs.get(key) or validated(Run, read_json(file.with_name("spec.json")), str(file))
            seconds = _seconds(told, Benchmark.read(paths, "train", key))
            yield Timed(run, seconds, int(told["rounds"]), str(told["device"]))
            finished.add(run.id)
        except (UserError, KeyError, TypeError, ValueError):
            continue  # of an earlier version, or not whole: it tells nothing
    for key in runs.keys() - finished:
        state, before = states.get(key), Benchmark.read(paths, "train", key)
        if state and state.round and state.seconds_a_round is not None:
            yield Timed(runs[key], state.seconds_a_round * state.round, state.round)
        elif before:
            yield Timed(runs[key], before.wall, runs[key].training.rounds)


def _seconds(manifest: Mapping[str, Any], measured: Benchmark | None) -> float:
    """By the benchmark; or by the manifest, which counts all rounds, where that saw the end of a resumed run alone."""
    rounds, device = float(manifest["seconds"]), str(manifest["device"])
    if measured and measured.wall >= rounds:
        return measured.seconds(device)
    return rounds * (int(manifest["threads"]) if device.startswith("CPU") else 1)


class Clock:
    """Estimates, from runs that were timed."""

    def __init__(self, given: Iterable[Timed], amounts: Amounts, paths: Paths) -> None:
        self.amounts, self.paths = amounts, paths
        self._keys: dict[str, dict[str, str]] = {}
        self._trained: dict[str, Estimate] = {}
        self._benchmark = functools.cache(functools.partial(Benchmark.read, paths))
        self.known: dict[tuple[str, str], list[Timed]] = defaultdict(list)
        for one in given:
            for level, key in self.keys(one.run).items():
                self.known[level, key].append(one)

    def keys(self, run: Run) -> dict[str, str]:
        """What a run agrees with others in, by level."""
        if run.id not in self._keys:
            self._keys[run.id] = {level: digest.of(key(run)) for level, key in LEVELS.items()}
        return self._keys[run.id]

    def train(self, run: Run) -> Estimate:
        """All rounds of a run."""
        if run.id not in self._trained:
            self._trained[run.id] = self._train(run)
        return self._trained[run.id]

    def _train(self, run: Run) -> Estimate:
        for level, key in self.keys(run).items():
            known = self.known.get((level, key), [])
            if rated := [(one, ratio) for one in known if (ratio := self._ratio(run, one))]:
                return _median(rated, level)
        return Estimate(None)

    def predict(self, run: Run, sweep: str, inferences: int) -> Estimate:
        """A job of one or several inferences, each over all test images."""
        images, trained = self.amounts.tested(run), self.amounts.trained(run)
        rated = []
        for one in self.known.get((MODEL, self.keys(run)[MODEL]), []):
            took = self._benchmark("predict", f"{one.run.id}-{sweep}")
            if took and (ratio := self._by_size(images, run, self.amounts.tested(one.run), one.run)):
                rated.append((replace(one, seconds=took.seconds(one.device)), ratio))
        if rated:
            return _median(rated, PREDICTED)
        whole = self.train(run)
        if whole.seconds is None or not images or not trained:
            return Estimate(None)
        return Estimate(whole.seconds / (run.training.rounds * trained) * images * inferences / 3, THIRD, whole.device)

    def _ratio(self, run: Run, one: Timed) -> float:
        """How many times as long as a timed run another takes; 0 where not known."""
        rounds = run.training.rounds / one.rounds
        if run.partition_id == one.run.partition_id and self._kin(run, one.run):
            return rounds
        return rounds * self._by_size(self.amounts.trained(run), run, self.amounts.trained(one.run), one.run)

    def _by_size(self, images: float, run: Run, others: float, other: Run) -> float:
        """The ratio of two numbers of images, each weighed with their size; 0 where not known."""
        if not images or not others:
            return 0.0
        if self._kin(run, other):
            return images / others
        mine, theirs = self.amounts.values(run), self.amounts.values(other)
        return images * mine / (others * theirs) if theirs else 0.0

    def _kin(self, run: Run, other: Run) -> bool:
        return self.keys(run)[KIN] == self.keys(other)[KIN]


def _median(rated: list[tuple[Timed, float]], source: str) -> Estimate:
    """Of the runs on the device that most of them ran on, each times its ratio."""
    device = Counter(one.device for one, _ in rated).most_common(1)[0][0]
    seconds = [one.seconds * ratio for one, ratio in rated if one.device == device]
    return Estimate(statistics.median(seconds), source, device)
