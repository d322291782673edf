"""Hours of studies of papers on one card, from the steps that a probe of each method takes. Images are noise."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

import fedshift
from fedshift.core.errors import UserError
from fedshift.core.registry import build
from fedshift.io.paths import Paths
from fedshift.planning.probe import FEW, Images, Prober, steps
from fedshift.study.run import Run

from .setting import Case, Figures, NotHereError, Setting, freed

CENTRES = {"centre0": 59_436, "centre1": 34_904, "centre2": 85_054, "centre3": 129_838, "centre4": 146_722}
"""Patches of each hospital of Camelyon17-WILDS."""
EACH = 10_000
"""Images of each site of CIFAR-10 and CIFAR-10-C in these studies."""
STUDIES = {"unifed-table3": {}, "tsmobn-tableE4": CENTRES, "fedtan-table3": {}}
"""Studies at scale paper: CIFAR-10-C with AlexNet, Camelyon17 with DenseNet121, CIFAR-10 with ResNet-20."""
SECONDS = 2.0
"""Time of a probe."""


@dataclass
class Study:
    """A study, and the seconds of a step of each method that was probed.

    Attributes
    ----------
    sizes : images of each site, where these differ
    """

    runs: list[Run]
    sizes: Mapping[str, int]
    setting: Setting
    seconds: dict[str, float] = field(default_factory=dict)
    deterministic: bool = True

    def probe(self, method: str) -> Figures:
        """Measure a step of a method, and return the hours of all its runs."""
        run = next(run for run in self.runs if named(run) == method)
        try:
            self._measure(method, run)
        except (RuntimeError, UserError) as error:
            if "determinis" not in str(error) or not self.deterministic:
                raise
            self.deterministic = False
            self._measure(method, run)
        runs = [run for run in self.runs if named(run) == method]
        figures: Figures = {"ms a step": 1000 * self.seconds[method], "runs": len(runs), "hours": self._hours(runs)}
        return figures | ({} if self.deterministic else {"deterministic": False})

    def total(self) -> Figures:
        """Return the hours of all runs. A method that was not probed is taken to be as fast as the first one."""
        if not self.seconds:
            raise NotHereError("no method of it was measured")
        others = {named(run) for run in self.runs} - self.seconds.keys()
        words = {"at the pace of the first method": ", ".join(sorted(others))} if others else {}
        return {"runs": len(self.runs), "hours": self._hours(self.runs), **words}

    def _hours(self, runs: list[Run]) -> float:
        first = next(iter(self.seconds.values()))
        return (
            sum(
                run.training.rounds * steps(run, self._counts(run)) * self.seconds.get(named(run), first)
                for run in runs
            )
            / 3600
        )

    def _counts(self, run: Run) -> dict[str, int]:
        """Return the training images of each client, as the split has them."""
        share = run.partition.split.train
        return {site: int(share * self.sizes.get(site, EACH)) for site in run.partition.internal}

    def _measure(self, method: str, run: Run) -> None:
        freed(self.setting.at)
        changes = {"deterministic": self.deterministic}
        model = run.model.spec()
        if model.get("pretrained"):  # weights of the network would have to be downloaded
            model["pretrained"] = False
        run = run.model_copy(
            update={"training": run.training.model_copy(update=changes), "model": build("model", model)}
        )
        with tempfile.TemporaryDirectory() as folder:
            seconds = self.setting.size(SECONDS, 0.1)
            prober = Prober(Paths(Path(folder)), threads=4, seconds=seconds, images=self._images)
            self.seconds[method] = prober.pace(run, self.setting.at).seconds

    def _images(self, run: Run, paths: Paths) -> Images:
        channels, *sides = run.data.dataset.shape or ()
        array = np.random.default_rng(0).integers(0, 256, (FEW, *sides, channels), dtype=np.uint8)
        sites = [*run.partition.internal, *run.partition.external]
        sizes = [self.setting.size(self.sizes.get(site, EACH), 40) for site in sites]
        base = np.concatenate([np.arange(n) for n in sizes])
        site = np.repeat(sites, sizes)
        samples = pd.DataFrame(
            {
                "sample": [f"{name}/{i}" for name, i in zip(site, base, strict=True)],
                "site": site,
                "label": base % len(run.data.dataset.classes),
                "base": base,
                "row": np.arange(len(base)) % FEW,
            }
        )
        return Images(array, samples, "images of noise")


def named(run: Run) -> str:
    """Return what the time of a run's steps depends on within its study."""
    norm = getattr(run.model, "norm", "batch")
    return run.algorithm.name + (f" with {norm} norm" if norm != "batch" else "")


def cases(setting: Setting) -> Iterator[Case]:
    """First a row for one method of each study, then for the others, then the sum of each."""
    studies = {}
    for name, sizes in STUDIES.items():
        runs = list(fedshift.load_study(name, setting.size("paper", "mini")).runs.values())
        studies[name] = Study(runs, sizes, setting)
    waiting = {name: list(dict.fromkeys(named(run) for run in study.runs)) for name, study in studies.items()}
    first = [(name, methods.pop(0)) for name, methods in waiting.items()]
    others = [(name, method) for name, methods in waiting.items() for method in methods]
    for name, method in setting.size(first + others, first[:1]):
        yield Case(f"{name}, {method}", 7, partial(studies[name].probe, method))
    for name, study in studies.items():
        yield Case(f"{name}, all", 0, study.total)
