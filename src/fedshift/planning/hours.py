"""Estimates of the hours of trainings and predictions, from jobs that were timed before."""

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
from .sample_counts import SampleCounts

UNKNOWN = "no run of the same model was timed in this folder, or data and partition are not made yet"
PREDICTED = "predictions of the same model, scaled by the number of images and their size"
THIRD = "rule of thumb: testing an image takes a third of the time of training on it"
COSTS = (
    "participation",
    "local_epochs",
    "local_steps",
    "batch_size",
    "equal_steps",
    "precision",
    "channels_last",
    "deterministic",
)
"""Settings of the training that decide how long a round takes."""


def _kin(run: Run) -> list[Any]:
    """Return all that the time of a round depends on, except for the algorithm and the number of images."""
    costs = [getattr(run.training, name) for name in COSTS]
    return [run.data.id, run.model.spec(), [transform.spec() for transform in run.transforms], costs]


def _algorithm(run: Run) -> list[Any]:
    return [*_kin(run), run.algorithm.name, run.addon and run.addon.spec()]


KIN = "other algorithms on the same data, scaled by rounds and images"
MODEL = "the same model on other data or with other batches, scaled by rounds, images and their size: rough"
LEVELS: dict[str, Callable[[Run], Any]] = {
    "this run, so far or earlier": lambda run: run.id,
    "other seeds of the same condition": lambda run: {**run.spec, "seed": None},
    "the same algorithm on the same data, scaled by rounds and images": _algorithm,
    KIN: _kin,
    MODEL: lambda run: run.model.spec(),
}
"""Levels of similarity, closest first, with what similar runs share. The first level with timed runs decides."""


@dataclass(frozen=True)
class Timed:
    """A run that was timed.

    Attributes
    ----------
    seconds : seconds of a GPU, or of one core of a CPU, for all these rounds
    rounds : number of rounds that were timed
    device : name of the device; "" if it was not recorded
    """

    run: Run
    seconds: float
    rounds: int
    device: str = ""


@dataclass(frozen=True)
class Estimate:
    """Seconds of a GPU or of one core of a CPU, None where unknown; the source of the estimate, and the device."""

    seconds: float | None
    source: str = UNKNOWN
    device: str = ""


@dataclass(frozen=True)
class Benchmark:
    """Seconds of a job, measured by Snakemake: elapsed, and of all cores together (0 if not measured)."""

    wall: float
    cores: float

    @classmethod
    def read(cls, paths: Paths, rule: str, name: str) -> Benchmark | None:
        """Read the benchmark of a job. Returns None where there is none that can be read."""
        try:
            text = paths.benchmark(rule, name).read_text(encoding="utf-8")
            row = list(csv.DictReader(text.splitlines(), delimiter="\t"))[-1]
            return cls(float(row["s"]), float(row.get("cpu_time") or 0))
        except (OSError, KeyError, ValueError, TypeError, IndexError):
            return None

    def seconds(self, device: str) -> float:
        """Return the seconds of a GPU, or of one CPU core, which other programs on the machine do not change."""
        return self.cores if device.startswith("CPU") and self.cores else self.wall


def timed(runs: Mapping[str, Run], states: Mapping[str, State], paths: Paths) -> Iterator[Timed]:
    """Yield the timed runs of a project.

    These are the finished runs of all studies, and those of `runs` that are being trained or have left a benchmark.
    """
    finished = set()
    for files in paths.every_run():
        key = files.folder.name
        try:
            manifest = read_json(files.manifest)
            run = runs.get(key) or validated(Run, read_json(files.spec), str(files.spec))
            seconds = _seconds(manifest, Benchmark.read(paths, "train", key))
            yield Timed(run, seconds, int(manifest["rounds"]), str(manifest["device"]))
            finished.add(run.id)
        except (UserError, KeyError, TypeError, ValueError):
            continue  # not finished, or written by an earlier version
    for key in runs.keys() - finished:
        state, before = states.get(key), Benchmark.read(paths, "train", key)
        if state and state.round and state.seconds_a_round is not None:
            yield Timed(runs[key], state.seconds_a_round * state.round, state.round)
        elif before:
            yield Timed(runs[key], before.wall, runs[key].training.rounds)


def _seconds(manifest: Mapping[str, Any], measured: Benchmark | None) -> float:
    """Return the seconds of a finished run.

    They come from the benchmark; or from the manifest, which counts all rounds, if the benchmark saw only the last part
    of a run that was resumed.
    """
    rounds, device = float(manifest["seconds"]), str(manifest["device"])
    if measured and measured.wall >= rounds:
        return measured.seconds(device)
    return rounds * (int(manifest["threads"]) if device.startswith("CPU") else 1)


class Clock:
    """Estimates of seconds from timed runs."""

    def __init__(self, timed: Iterable[Timed], counts: SampleCounts, paths: Paths) -> None:
        self.counts, self.paths = counts, paths
        self._keys: dict[str, dict[str, str]] = {}
        self._trained: dict[str, Estimate] = {}
        self._benchmark = functools.cache(functools.partial(Benchmark.read, paths))
        self.known: dict[tuple[str, str], list[Timed]] = defaultdict(list)
        for one in timed:
            for level, key in self.keys(one.run).items():
                self.known[level, key].append(one)

    def keys(self, run: Run) -> dict[str, str]:
        """Return the key of a run at each level of similarity: similar runs have the same key."""
        if run.id not in self._keys:
            self._keys[run.id] = {level: digest.of(key(run)) for level, key in LEVELS.items()}
        return self._keys[run.id]

    def train(self, run: Run) -> Estimate:
        """Estimate the seconds of all rounds of a run."""
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
        """Estimate the seconds of a prediction job, whose inferences each predict all of its images."""
        images, trained = self.counts.predicted(run), self.counts.trained(run)
        rated = []
        for one in self.known.get((MODEL, self.keys(run)[MODEL]), []):
            took = self._benchmark("predict", f"{one.run.id}-{sweep}")
            if took and (ratio := self._by_size(images, run, self.counts.predicted(one.run), one.run)):
                rated.append((replace(one, seconds=took.seconds(one.device)), ratio))
        if rated:
            return _median(rated, PREDICTED)
        whole = self.train(run)
        if whole.seconds is None or not images or not trained:
            return Estimate(None)
        return Estimate(whole.seconds / (run.training.rounds * trained) * images * inferences / 3, THIRD, whole.device)

    def _ratio(self, run: Run, one: Timed) -> float:
        """Return how many times as long as the timed run `one` a run takes; 0 where unknown."""
        rounds = run.training.rounds / one.rounds
        if run.partition_id == one.run.partition_id and self._kin(run, one.run):
            return rounds
        return rounds * self._by_size(self.counts.trained(run), run, self.counts.trained(one.run), one.run)

    def _by_size(self, images: float, run: Run, others: float, other: Run) -> float:
        """Return the ratio of two numbers of images, each multiplied by their size; 0 where unknown."""
        if not images or not others:
            return 0.0
        if self._kin(run, other):
            return images / others
        size, other_size = self.counts.values(run), self.counts.values(other)
        return images * size / (others * other_size) if other_size else 0.0

    def _kin(self, run: Run, other: Run) -> bool:
        return self.keys(run)[KIN] == self.keys(other)[KIN]


def _median(rated: list[tuple[Timed, float]], source: str) -> Estimate:
    """Return the median of seconds times ratio, over the runs on the most common device."""
    device = Counter(one.device for one, _ in rated).most_common(1)[0][0]
    seconds = [one.seconds * ratio for one, ratio in rated if one.device == device]
    return Estimate(statistics.median(seconds), source, device)
