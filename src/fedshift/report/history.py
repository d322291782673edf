"""The record of a study's runs: code, machines, selection, communication and time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..analysis.findings import Findings
from ..analysis.results import StudyResults
from ..analysis.table import Table
from ..analysis.values import DASH, NAN
from ..core import registry
from ..core.console import duration
from ..core.units import FLOAT_BYTES
from ..metrics import Metric


@dataclass(frozen=True)
class Trained:
    """The record of one run. `manifest` is empty where the run has not finished.

    Floats and seconds are sums over all clients and rounds, and over every process that worked on the run. `select_by`
    names the validation value that the kept round is best in: a metric, or `loss`.
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
    def before(self) -> float:
        """Floats that clients sent and received before the first round, such as offers for an add-on."""
        return float(self.manifest.get("floats_before") or 0)


def trained(results: StudyResults) -> list[Trained]:
    """Return all runs of a study, in its order."""
    rounds, findings = results.rounds, results.findings
    spent: dict[str, tuple[int, float, float, float]] = {}
    if {"floats_down", "floats_up", "seconds"} <= set(rounds.columns):
        sums = {"rounds": ("round", "max"), "down": ("floats_down", "sum"), "up": ("floats_up", "sum")}
        table = rounds.groupby("run").agg(**sums, seconds=("seconds", "sum"))
        spent = {str(run): (int(r), float(d), float(u), float(s)) for run, r, d, u, s in table.itertuples()}
    return [
        Trained(
            *(name, findings.full(one), run.seed, results.manifests[name]),
            *spent.get(name, (0, NAN, NAN, NAN)),
            getattr(run.training, "select_by", "accuracy"),
        )
        for one in findings.conditions
        for name, run in one.runs.items()
    ]


def costs(runs: list[Trained]) -> Table:
    """Return what each run sent, and how long it took."""
    early = any(r.before for r in runs)
    rows = [
        (
            r.condition,
            str(r.seed),
            str(r.rounds or DASH),
            _count(r.floats_down / r.rounds if r.rounds else NAN),
            _count(r.floats_up / r.rounds if r.rounds else NAN),
            *([_bytes(r.before)] if early else []),
            _bytes(r.before + r.floats_down + r.floats_up),
            DASH if math.isnan(r.seconds) else duration(r.seconds),
            _count(r.manifest.get("peak_memory_mb") or NAN),
        )
        for r in runs
    ]
    sent = ("Floats down / round", "Floats up / round", *(["Before round 1"] if early else []), "Sent in all")
    caption = (
        "Communication of all clients together, 4 bytes a float, and training time: the sum over clients and rounds, "
        "validation included (minutes:seconds)"
    )
    return Table(caption, ("Condition", "Seed", "Rounds", *sent, "Training time", "Peak MB"), tuple(rows), 2)


def _count(x: float) -> str:
    return DASH if math.isnan(x) else f"{x:,.0f}"


def _bytes(floats: float) -> str:
    if math.isnan(floats):
        return DASH
    size = floats * FLOAT_BYTES
    unit, scale = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6)) if size >= s), ("kB", 1e3))
    return f"{size / scale:,.1f} {unit}"


def runs_table(runs: list[Trained]) -> Table:
    """Return identity and selection of each run."""
    rows = [
        (
            r.name,
            r.condition,
            str(r.seed),
            str(r.manifest.get("best_round", DASH)),
            _validation(r),
            str(r.manifest.get("device", DASH)),
            str(r.manifest.get("threads", DASH)),
            str(r.manifest.get("started", DASH))[:16].replace("T", " "),
        )
        for r in runs
    ]
    header = (
        "Run",
        "Condition",
        "Seed",
        "Kept round",
        "Validation (%)" if all(_in_percent(r) for r in runs) else "Validation",
        "Device",
        "Threads",
        "Started (UTC)",
    )
    return Table("Runs of this study, with the round that model selection kept", header, tuple(rows), 2)


def _in_percent(run: Trained) -> bool:
    if run.select_by == "loss":
        return False
    metric: Metric = registry.build("metric", run.select_by)
    return metric.percent


def _validation(run: Trained) -> str:
    """Return the validation value of the kept round: percent with one decimal, or three decimals."""
    value = run.manifest.get("best_value")
    if not isinstance(value, int | float):
        return DASH
    return f"{100 * value:.1f}" if _in_percent(run) else f"{value:.3f}"


def facts(runs: list[Trained]) -> list[tuple[str, str]]:
    """Return code and software of runs: name and value, several values where runs differ.

    Where finished runs were accepted as unchanged after a change of the code, the reasons and dates follow.
    """
    manifests = [r.manifest for r in runs if r.manifest]
    software = sorted({k for m in manifests for k in m.get("versions") or {}})
    versions = ((m.get("versions") or {}) for m in manifests)
    rows: list[tuple[str, Iterable[str]]] = [
        ("Commit", (_commit(m.get("git") or {}) for m in manifests)),
        ("Digest of the training code", (str(m.get("code") or DASH) for m in manifests)),
        ("Software", (", ".join(f"{k} {v[k]}" for k in software if k in v) for v in versions)),
    ]
    known = [(name, "; ".join(dict.fromkeys(values)) or DASH) for name, values in rows]
    accepted = dict.fromkeys(_accepted(change) for m in manifests for change in m.get("accepted") or ())
    return [*known, *([("Accepted as unchanged", "; ".join(accepted))] if accepted else [])]


def _accepted(change: dict[str, Any]) -> str:
    """Return why and when a run was accepted as unchanged: `only messages changed (2026-01-31)`."""
    date = str(change.get("date") or "")[:10]
    return f"{change.get('reason') or 'no reason given'}{f' ({date})' if date else ''}"


def _commit(git: dict[str, Any]) -> str:
    return f"{git.get('commit') or 'unknown'}{' with uncommitted changes' if git.get('dirty') else ''}"


def caveats(findings: Findings, runs: list[Trained]) -> Iterator[str]:
    """Yield the caveats that follow from the seeds, the code and the rounds of the runs."""
    done, seeds = [r for r in runs if r.manifest], len(findings.plan.study.seeds)
    if seeds == 1:
        yield "One seed: how much the result varies from training to training is not known."
    elif seeds < 5:
        yield f"{seeds} seeds: the standard deviation over seeds is itself a rough estimate."
    codes: dict[frozenset[str], set[object]] = {}
    for r in done:  # the digest covers a run's plug-ins, so that only runs with the same can be held together
        used = frozenset(type(p).__module__ for p in findings.plan.runs[r.name].plugins)
        codes.setdefault(used, set()).add(r.manifest.get("code"))
    if any(len(digests) > 1 for digests in codes.values()):
        yield "The runs were trained by different versions of the training code; see Provenance."
    if any((r.manifest.get("git") or {}).get("dirty") for r in done):
        yield "Some runs were trained from a working tree with uncommitted changes."
    if varying := sum(r.manifest.get("deterministic") is False for r in done):
        what = "on a GPU without deterministic kernels (training.deterministic: false)"
        yield f"{varying} of {len(done)} runs were trained {what}: repeated, they give slightly other results."
    training = {name: run.training for name, run in findings.plan.runs.items()}
    judged = [  # under cosine the rate falls to 0, and the last rounds are the best by design
        r for r in done if training[r.name].schedule == "constant" and r.manifest.get("best_value") is not None
    ]
    late = [r for r in judged if r.manifest.get("best_round") == r.manifest.get("rounds")]
    if late:
        yield f"{len(late)} of {len(judged)} runs validated best in their last round: they may not have converged."


def specs(findings: Findings) -> list[tuple[str, str]]:
    """Return title and full specification of each condition. Its runs differ in their seed."""
    return [(findings.full(c), json.dumps(c.run.spec, indent=1, ensure_ascii=False)) for c in findings.conditions]
