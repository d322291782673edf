"""The training job: its files, and the same bits whether or not it was killed on the way."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedshift import study
from fedshift import train as job
from fedshift.errors import Interrupted, UserError
from fedshift.federation import Federation
from fedshift.files import read_json, read_table, read_tensors, write_table
from fedshift.paths import Paths
from fedshift.predict import load_run
from fedshift.prepare import obtain, prepare
from fedshift.samples import MappedSamples
from fedshift.study import Run

SITES = {"north": 30, "south, or so": 25, "east": 20, "far": 6}
SIDE, BATCH = 8, 8
STUDY = f"""
title: Ten images a site
dataset: {{ name: manifest, table: images/images.csv, size: {SIDE} }}
partition:
  internal: [north, "south, or so", east]
  external: [far]
  split: {{ train: 0.6, val: 0.2, test: 0.2 }}
model: {{ name: mlp, hidden: 6 }}
transforms: [scale_intensity]
training: {{ rounds: 4, batch_size: {BATCH}, lr: 0.1, momentum: 0.5 }}
runs: [{{ algorithm: fedavg, bn: local }}]
inferences: [source]
"""
MODEL_FILES = ("model.safetensors", "clients.safetensors")


@dataclass(frozen=True)
class Project:
    """A project folder with a study and its prepared data."""

    root: Path

    @property
    def paths(self) -> Paths:
        return Paths(self.root)

    def run(self, **training: Any) -> Run:
        (run,) = study.load(self.root / "tiny.yaml", "paper").runs.values()
        run = run.model_copy(update={"transforms": (*run.transforms, *study.registry_build("flip"))}) if False else run
        return run.model_copy(update={"training": run.training.model_copy(update=training)}) if training else run

    def folder(self, run: Run | None = None) -> Path:
        return self.paths.run((run or self.run()).id)

    def files(self, run: Run | None = None) -> dict[str, bytes]:
        return {name: (self.folder(run) / name).read_bytes() for name in MODEL_FILES}

    def train(self, run: Run | None = None, code: str = "") -> Run:
        run = run or self.run()
        job.train(run, self.paths, code=code)
        return run

    def command(self, *words: object) -> list[str]:
        return [sys.executable, *map(str, words)]
