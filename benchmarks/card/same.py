"""A run of a study by the jobs of the workflow, by the library, and by a job that was stopped: the same bits."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml

import fedshift
from fedshift import cli
from fedshift.core.errors import Interrupted
from fedshift.io.arrays import read_tensors
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table
from fedshift.jobs import predict, train
from fedshift.jobs.run_images import RunImages
from fedshift.models import initialise
from fedshift.study.plan import Plan
from fedshift.study.plan import load as load_plan
from fedshift.study.run import Run

from .right import State
from .setting import Figures, NotHereError, Setting, WrongError

STUDY: dict[str, Any] = {
    "title": "A run of seconds",
    "dataset": {"name": "digits_dg", "images": 5},
    "partition": {"internal": ["mnist", "mnist_m", "syn"], "external": ["svhn"]},
    "model": {"name": "densenet_small", "growth": 4, "blocks": [1], "stem": 4},
    "transforms": ["scale_intensity", "random_crop"],
    "training": {"batch_size": 16, "lr": 0.05, "select": "last"},
    "runs": [{"algorithm": "scaffold", "bn": "aggregated"}],
    "seeds": [0],
    "inferences": ["tsmobn"],
}


def library_and_workflow(setting: Setting) -> Figures:
    """Compare what the jobs write with what the library returns. Raises WrongError where a bit differs."""
    with _project(setting) as (plan, run), _jobs_on(setting):
        paths = Paths()
        train.train(run, paths, threads=4)
        written, _ = read_tensors(paths.run_files(run.id).model)
        images = RunImages(run, paths, setting.at)
        clients = {site: images.samples(rows) for site, rows in images.by_site("train", run.partition.internal).items()}
        channels, *sides = images.prepared.images.shape[-1:] + images.prepared.images.shape[1:-1]
        network = initialise(run.model, (channels, *sides), len(run.data.dataset.classes), run.seed)
        training = run.training
        made = fedshift.Federation(
            network, clients, algorithm=run.algorithm, bn=run.bn, training=training, seed=run.seed, device=setting.at
        ).run()
        figures = {"training": _equal(made.global_state(), written), "prediction": _predictions(plan, run, setting)}
    if not all(figures.values()):
        raise WrongError("library and workflow differ", figures)
    return figures


def stopped(setting: Setting) -> Figures:
    """Stop the training of a job by SIGTERM, call it again, and compare with one that nobody stopped."""
    with _project(setting) as (_, run), _jobs_on(setting):
        paths = Paths()
        files = paths.run_files(run.id)
        stopping = threading.Thread(target=_stop_after, args=(files.state,))
        stopping.start()
        with contextlib.suppress(Interrupted):
            train.train(run, paths, threads=4)
        stopping.join()
        if not files.state.exists():
            raise NotHereError("the training was over before it could be stopped")
        rounds = json.loads(read_tensors(files.state)[1]["progress"])["round"]
        train.train(run, paths, threads=4)
        again, _ = read_tensors(files.model)
        shutil.rmtree(files.folder)
        train.train(run, paths, threads=4)
        whole, _ = read_tensors(files.model)
    figures: Figures = {"stopped after round": rounds, "of": run.training.rounds, "the same bits": _equal(whole, again)}
    if not figures["the same bits"]:
        raise WrongError("the job that was stopped has other bits", figures)
    return figures


def _predictions(plan: Plan, run: Run, setting: Setting) -> bool:
    """Whether the job and the library predict the external site alike."""
    paths, (site,) = Paths(), run.partition.external
    out = Path("predictions.parquet")
    predict.predict(paths.run(run.id), dict(plan.inferences), paths, out, threads=4)
    table = read_table(out)
    job = table.loc[table["site"] == site, [c for c in table if c.startswith("p") and c[1:].isdigit()]].to_numpy()
    opened = fedshift.open_run(paths.run(run.id), device=setting.at)
    x, _ = opened.images(site)
    return np.array_equal(opened.predict(x, inference="tsmobn"), job)


def _equal(one: State, two: State) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[k].cpu(), two[k].cpu()) for k in one)


@contextlib.contextmanager
def _project(setting: Setting) -> Iterator[tuple[Plan, Run]]:
    """Prepare the study's data in a folder of its own, which is the current one inside the context."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        file = Path("small.yaml")
        training = STUDY["training"] | {"rounds": setting.size(6, 3)}
        file.write_text(yaml.safe_dump(STUDY | {"training": training}), encoding="utf-8")
        plan = load_plan(file, "mini")
        (run,) = plan.runs.values()
        steps = [("download", data.raw) for data in plan.data.values()] + [("prepare", name) for name in plan.data]
        for step, name in [*steps, ("partition", run.partition_id)]:
            if cli.main([step, str(file), "--scale", "mini", name]):
                raise RuntimeError(f"{step} failed")
        yield plan, run


@contextlib.contextmanager
def _jobs_on(setting: Setting) -> Iterator[None]:
    """Let jobs work on the device of the setting, also where it is not one that they would find."""
    with contextlib.ExitStack() as stack:
        for job in (train, predict) if setting.load else ():
            stack.enter_context(mock.patch.object(job, "take_device", lambda *_, **__: setting.at))
        yield


def _stop_after(file: Path) -> None:
    """Send SIGTERM to this process as soon as there is a checkpoint."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if file.exists():
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(0.001)
