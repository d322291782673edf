"""Every step of the workflow for a study, one command after the other in this process.

Snakemake runs each job in a process that imports the library anew. Here it is imported once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fedshift import cli, study
from fedshift.analysis.published_words import of_ledger
from fedshift.io.paths import Paths


def carry_out(file: Path, scale: str, calls: Counter[str]) -> None:
    """Call each command of the workflow whose file is not there yet, in the current folder, and count the calls.

    `file` is the study's YAML. Studies with a search have a step more and do not belong here.
    """
    plan, paths = study.load(file, scale), Paths()
    files = paths.study_files(plan.name)
    assert not plan.searches

    def step(made: Path, command: str, *names: str) -> None:
        if not made.exists():
            assert cli.main([command, str(file), "--scale", scale, *names]) == 0, (command, names)
            assert made.exists(), made
            calls[command] += 1

    for data in plan.data.values():
        step(paths.source(data.raw), "download", data.raw)
        step(paths.data_files(data.id).card, "prepare", data.id)
    for run in plan.runs.values():
        step(paths.partition(run.partition_id), "partition", run.partition_id)
    for partition in plan.controls:
        step(paths.control(partition), "control", partition)
    for name in plan.trainings:
        step(paths.run_files(name).model, "train", name)
    for name, job in plan.prediction_jobs.items():
        step(paths.predictions(name, job), "predict", name, job)
    if of_ledger(plan):
        step(files.ledger, "ledger", "--write")
    step(files.scores, "score")
    if plan.measures_divergence:
        step(files.divergence, "divergence")
    step(paths.page(plan.name), "report")
