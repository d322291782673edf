"""How the runs of a study were trained: code, machines, model selection, communication, time and convergence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.study_results import StudyResults
from ..analysis.values import DASH, NAN, Table, listed
from ..core.console import duration
from ..core.units import FLOAT_BYTES
from ..study.declaration import MARGIN
from .html import Light
from .phrases import chosen_by, in_percent, in_samples

SMALL = 0.005
"""A rise of validation accuracy below this counts as none."""
STUCK = 0.98
"""If at least this share of a run's predictions is one class, the training counts as collapsed to that class."""
FEWEST_ROUNDS = 10
"""With fewer rounds it cannot be seen whether validation accuracy still rises."""
TENTH = 0.1
"""A training loss that exceeds that of the first round by a smaller share has not risen above it."""


@dataclass(frozen=True)
class Trained:
    """The training record of one run.

    Attributes
    ----------
    name, condition, seed : id of the run, title of its condition (algorithm x batch norm policy x settings), and seed
    manifest : content of its manifest.json; empty if the run has not finished
    rounds : number of rounds; 0 if unknown
    floats_down, floats_up : numbers sent to clients and to the server, summed over clients and rounds
    seconds : training time, summed over clients, rounds and all processes that worked on the run
    select_by : validation metric, or `loss`, that chose the round to keep
    """

    name: str
    condition: str
    seed: int
    manifest: dict[str, Any]
    rounds: int
    floats_down: float
    floats_up: float
    seconds: float
    select_by: str = "accuracy"

    @property
    def told_before(self) -> list[str]:
        """Names of the tensors that clients sent to the server before the first round."""
        return [str(name) for name in self.manifest.get("sent_before", ())]

    @property
    def before(self) -> float:
        """Number of floats that clients sent and received before the first round, such as statistics for an add-on."""
        return float(self.manifest.get("floats_before") or 0)


def trained(results: StudyResults) -> list[Trained]:
    """Return the training record of each run of a study, in the study's order."""
    rounds = results.rounds
    findings = results.findings
    spent: dict[str, tuple[int, float, float, float]] = {}
    if {"floats_down", "floats_up", "seconds"} <= set(rounds.columns):
        sums = {"rounds": ("round", "max"), "down": ("floats_down", "sum"), "up": ("floats_up", "sum")}
        table = rounds.groupby("run").agg(**sums, seconds=("seconds", "sum"))
        # a run from before these columns were written is shown without costs
        spent = {str(run): (int(r), float(d), float(u), float(s)) for run, r, d, u, s in table.itertuples()}
    return [
        Trained(
            *(name, findings.full(condition), run.seed, results.manifests[name]),
            *spent.get(name, (0, NAN, NAN, NAN)),
            run.training.select_by or "accuracy",
        )
        for condition in findings.conditions
        for name, run in condition.runs.items()
    ]


def of_one_class(results: StudyResults, condition: Condition) -> str:
    """Return a warning about trainings that predict nearly always the same class at internal sites; '' if none does.

    `condition` is an algorithm with batch norm policy and settings, whose runs are checked.
    """
    key = condition.level_inference
    if not results.plan.study.task.has_probabilities:
        return ""
    stuck = set()
    for run, parts in results.predictions.by_site(condition.runs.values(), key):
        if answers := [part for part in parts if part.role == "internal"]:
            given = np.concatenate([part.probability.argmax(1) for part in answers])
            label = np.concatenate([part.label for part in answers])
            commonest = np.bincount(given).argmax()
            if (given == commonest).mean() >= STUCK and (label == commonest).mean() < STUCK - MARGIN:
                stuck.add(run.id)
    if not stuck:
        return ""
    return (
        f"{len(stuck)} of {len(condition.runs)} trainings answer with one class for at least {100 * STUCK:.0f} % of "
        f"{in_samples('the images', results.plan.study.dataset.sample_noun)} at home: more rounds, or `class_weights: "
        "balanced`"
    )


def costs(runs: list[Trained]) -> Table:
    """Return a table of the communication and training time of each run."""
    columns = {
        "Condition": [run.condition for run in runs],
        "Seed": [str(run.seed) for run in runs],
        "Rounds": [str(run.rounds or DASH) for run in runs],
        "Floats down / round": [_each_round(run.floats_down, run) for run in runs],
        "Floats up / round": [_each_round(run.floats_up, run) for run in runs],
        "Before round 1": [_bytes(run.before) for run in runs],
        "Sent in all": [_bytes(run.before + run.floats_down + run.floats_up) for run in runs],
        "Training time": [DASH if math.isnan(run.seconds) else duration(run.seconds) for run in runs],
        "Peak MB": [_count(run.manifest.get("peak_memory_mb") or NAN) for run in runs],
    }
    if not any(run.before for run in runs):
        del columns["Before round 1"]
    sent = {f"{', '.join(run.told_before)} ({run.condition})" for run in runs if run.told_before}
    caption = (
        "Communication of all clients together, 4 bytes a float, and training time: the sum over clients and rounds, "
        "validation included (minutes:seconds)"
    )
    if sent:
        caption += f". Before round 1 each site sent the server, beside the model: {'; '.join(sorted(sent))}"
    return Table(caption, tuple(columns), tuple(zip(*columns.values(), strict=True)), 2)


def _each_round(floats: float, run: Trained) -> str:
    return _count(floats / run.rounds) if run.rounds else DASH


def _count(x: float) -> str:
    return DASH if math.isnan(x) else f"{x:,.0f}"


def _bytes(floats: float) -> str:
    size = floats * FLOAT_BYTES
    if math.isnan(size):
        return DASH
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size / 1e3:,.1f} kB"


def runs_table(runs: list[Trained]) -> Table:
    """Return a table of the runs: compared method, seed, round kept by model selection, device and start."""
    percent = all(in_percent(run.select_by) for run in runs)
    columns = {
        "Run": [run.name for run in runs],
        "Condition": [run.condition for run in runs],
        "Seed": [str(run.seed) for run in runs],
        "Kept round": [str(run.manifest.get("best_round", DASH)) for run in runs],
        "Validation (%)" if percent else "Validation": [_validation(run) for run in runs],
        "Device": [str(run.manifest.get("device", DASH)) for run in runs],
        "Threads": [str(run.manifest.get("threads", DASH)) for run in runs],
        "Started (UTC)": [str(run.manifest.get("started", DASH))[:16].replace("T", " ") for run in runs],
    }
    caption = "Runs of this study, with the round that model selection kept"
    return Table(caption, tuple(columns), tuple(zip(*columns.values(), strict=True)), 2)


def _validation(run: Trained) -> str:
    """Return the validation value of the round that a run kept, as text; a dash if unknown."""
    value = run.manifest.get("best_value")
    return chosen_by(value, run.select_by) if isinstance(value, int | float) else DASH


def facts(runs: list[Trained]) -> list[tuple[str, str]]:
    """Return the code and software that trained the runs, as pairs of name and value; values join where runs differ.

    If finished runs were accepted as unchanged after a change of the code, the last pair has the reasons and dates.
    """
    manifests = [run.manifest for run in runs if run.manifest]
    versions = [manifest.get("versions") or {} for manifest in manifests]
    software = sorted({name for installed in versions for name in installed})
    values = {
        "Commit": [
            (git.get("commit") or "unknown") + (" with uncommitted changes" if git.get("dirty") else "")
            for git in (manifest.get("git") or {} for manifest in manifests)
        ],
        "Digest of the training code": [str(manifest.get("code") or DASH) for manifest in manifests],
        "Software": [", ".join(f"{n} {installed[n]}" for n in software if n in installed) for installed in versions],
        "Arithmetic of the device": [_on_device(manifest) for manifest in manifests],
        "Arithmetic of the CPU": [_arithmetic(manifest) for manifest in manifests],
    }
    rows = [(name, "; ".join(dict.fromkeys(texts)) or DASH) for name, texts in values.items()]
    accepted = dict.fromkeys(_accepted(change) for manifest in manifests for change in manifest.get("accepted") or ())
    if accepted:
        rows.append(("Accepted as unchanged", "; ".join(accepted)))
    return rows


def _accepted(change: dict[str, Any]) -> str:
    """Return why and when a finished run was accepted after a change of code: `only messages changed (2026-01-31)`."""
    reason = change.get("reason") or "no reason given"
    date = str(change.get("date") or "")[:10]
    return f"{reason} ({date})" if date else reason


def _on_device(manifest: dict[str, Any]) -> str:
    """Return the numerical settings of a run's device: `float32, channels last, deterministic, driver 580.1`."""
    if "precision" not in manifest:
        return DASH
    layout = "last" if manifest.get("channels_last") else "first"
    kernels = "deterministic" if manifest.get("deterministic", True) else "not deterministic"
    card = [f"{name} {value}" for name, value in (manifest.get("gpu") or {}).items()]
    return ", ".join([str(manifest["precision"]), f"channels {layout}", kernels, *card])


def _arithmetic(manifest: dict[str, Any]) -> str:
    """Return the CPU settings that decide the last digits of results: `torch AVX512, oneDNN on, threads 1`."""
    recorded = manifest.get("arithmetic")
    if not recorded:
        return DASH
    return ", ".join(f"{name} {value}" for name, value in {**recorded, "threads": manifest.get("threads")}.items())


def caveats(findings: Findings, runs: list[Trained]) -> Iterator[str]:
    """Yield caveats that follow from the number of seeds, the code versions and the devices of the runs."""
    done = [run for run in runs if run.manifest]
    seeds = len(findings.plan.study.seeds)
    if seeds == 1:
        yield "One seed: how much the result varies from training to training is not known."
    elif seeds < 5:
        yield f"{seeds} seeds: the standard deviation over seeds is itself a rough estimate."
    if _of_several_codes(findings, done):
        yield "The runs were trained by different versions of the training code; see Provenance."
    if any((run.manifest.get("git") or {}).get("dirty") for run in done):
        yield "Some runs were trained from a working tree with uncommitted changes."
    if varying := sum(run.manifest.get("deterministic") is False for run in done):
        yield (
            f"{varying} of {len(done)} runs were trained on a GPU without deterministic kernels "
            "(training.deterministic: false): repeated, they give slightly other results."
        )


def broken_down(runs: list[Trained], rounds: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence about the trainings that broke down, if any did. See `breaks_down`.

    `rounds` is the table of rounds of all runs, with columns run, round, split and loss.
    """
    losses = rounds[rounds["split"] == "train"].groupby(["run", "round"])["loss"].mean()
    broken = {name for name, loss in losses.groupby(level="run") if breaks_down(loss.to_numpy())}
    done = [run for run in runs if run.manifest]
    if fallen := [run for run in done if run.name in broken]:
        titles = list(dict.fromkeys(run.condition for run in fallen))
        yield (
            f"{len(fallen)} of {len(done)} runs broke down: after its lowest value, their training loss rose above "
            f"that of the first round ({listed(titles)}). Scores are those of the rounds that were kept."
        )


def unfinished(findings: Findings, runs: list[Trained], rounds: pd.DataFrame) -> Iterator[str]:
    """Yield sentences about trainings that may not have converged, as judged by the round that validation chose.

    `rounds` is the table of rounds of all runs, with columns run, round, split and accuracy.
    """
    done = [run for run in runs if run.manifest]
    # Under other schedules the rate falls, and the last rounds are the best by design: these are looked at closely.
    constant = {name for name, run in findings.plan.runs.items() if run.training.schedule == "constant"}
    judged = [run for run in done if run.name in constant and run.manifest.get("best_value") is not None]
    if late := sum(run.manifest.get("best_round") == run.manifest.get("rounds") for run in judged):
        yield f"{late} of {len(judged)} runs validated best in their last round: they may not have converged."
    others = [run for run in done if run.name not in constant]
    last = [run for run in others if run.manifest.get("best_round") == run.manifest.get("rounds")]
    short = [
        run for run in last if run.manifest.get("best_value") is not None and run.manifest["rounds"] < FEWEST_ROUNDS
    ]
    if short:
        yield (
            f"{len(short)} of {len(others)} runs kept their last round, after fewer than {FEWEST_ROUNDS} of them: too "
            "few to see whether they converged."
        )
    if rising := sum(still_rises(rounds[rounds["run"] == run.name]) for run in last):
        yield (
            f"{rising} of {len(others)} runs kept their last round, and their validation accuracy was still rising by "
            "more than it varies: they may not have converged."
        )


def seen(findings: Findings, runs: list[Trained], rounds: pd.DataFrame) -> int:
    """Return how many trainings `unfinished` can judge: finished ones with validation samples.

    `rounds` is the table of rounds of all runs.
    """
    validated = set(rounds.loc[rounds["split"] == "val", "run"])
    chosen = {run.name for run in runs if run.manifest.get("best_value") is not None}
    constant = {name for name, run in findings.plan.runs.items() if run.training.schedule == "constant"}
    return sum(bool(run.manifest) and run.name in (chosen if run.name in constant else validated) for run in runs)


def training_light(stuck: str, late: str, judged: int, planned: int) -> Light:
    """Return the status light on convergence, and how many of the planned trainings it is based on.

    Parameters
    ----------
    stuck : sentence about trainings that predict one class; empty if none does
    late : sentence about trainings that broke down, or may not have converged; empty if there are none
    judged, planned : how many trainings can be judged (see `seen`), and how many the study plans
    """
    if stuck:
        return Light("Answers one class", "problem", stuck, "care")
    over = f"{judged} of {planned} planned trainings"
    if late:
        return Light("Converged", "suspect", late if judged == planned else f"{late} Judged: {over}.", "care")
    if judged == planned:
        return Light("Converged", "ok", f"{over}, by validation", "care")
    return Light(
        "Converged", "unknown", f"{over} have, by validation; the others are missing, or have no validation", "care"
    )


def breaks_down(loss: np.ndarray) -> bool:
    """Return True if the mean training loss of each round, after its lowest, rises above that of the first by a tenth.

    With fewer than FEWEST_ROUNDS the result is False.
    """
    return len(loss) >= FEWEST_ROUNDS and bool(loss[loss.argmin() :].max() > (1 + TENTH) * loss[0])


def still_rises(rounds: pd.DataFrame) -> bool:
    """Return True if validation accuracy at the end of a training rises by more than it fluctuates.

    The mean of the last fifth of the rounds is compared with the mean of the fifth before. The rise must exceed SMALL
    and twice the standard deviation of both fifths around a straight line, divided by the root of their length. With
    fewer than FEWEST_ROUNDS the result is False. `rounds` is the table of rounds of one run.
    """
    values = rounds[rounds["split"] == "val"].groupby("round")["accuracy"].mean().to_numpy()
    fifth = len(values) // 5
    if fifth < 2:
        return False
    end = values[-2 * fifth :]
    steps = np.arange(len(end))
    slope, start = np.polyfit(steps, end, 1)
    # a fitted line takes two degrees of freedom
    noise = float(np.std(end - slope * steps - start, ddof=min(2, len(end) - 1)))
    return bool(end[fifth:].mean() - end[:fifth].mean() > max(2 * noise / np.sqrt(fifth), SMALL))


def _of_several_codes(findings: Findings, runs: list[Trained]) -> bool:
    """Return True if runs with the same plug-ins were trained by different versions of the code."""
    # the digest covers a run's plug-ins, so that only runs with the same ones can be held together
    codes: dict[frozenset[str], set[object]] = {}
    for run in runs:
        plugins = frozenset(type(plugin).__module__ for plugin in findings.plan.runs[run.name].plugins)
        codes.setdefault(plugins, set()).add(run.manifest.get("code"))
    return any(len(digests) > 1 for digests in codes.values())
