"""Invented results, on which figures are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from ..analysis import score
from ..core import registry
from ..figures import Results


def row(condition: str, site: str, value: float, role: str = "internal", **columns: Any) -> dict[str, Any]:
    """Return a row of scores, of one run a condition and seed."""
    seed = columns.get("seed", 0)
    return {
        "run": f"{condition}-{seed}",
        "condition": condition,
        "held_out": "",
        "site": site,
        "role": role,
        "inference": "source",
        "shown": "Source",
        "momentum": None,
        "batch_size": None,
        "order": None,
        "seed": seed,
        "metric": "accuracy",
        "value": value,
        "n": 100,
    } | columns


def moment(number: int, site: str, split: str, loss: float, accuracy: float = 0.5, **columns: Any) -> dict[str, Any]:
    """Return a row of rounds."""
    moved = 1000 * (split == "train")
    base = {"round": number, "site": site, "split": split, "loss": loss, "accuracy": accuracy, "seed": 0}
    base |= {"floats_down": moved, "floats_up": moved, "condition": "FedAvg", "held_out": ""} | columns
    return {"run": f"{base['condition']}-{base['seed']}-{base['held_out']}"} | base


def made(
    scores: Iterable[dict[str, Any]] = (),
    rounds: Iterable[dict[str, Any]] = (),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    metric: str = "accuracy",
) -> Results:
    """Return results with these scores and rounds; sites in the order in which they come."""
    table = pd.DataFrame(list(scores))
    history = pd.DataFrame(list(rounds))
    if len(table):
        table = table.astype(score.TYPES)
    both: list[Any] = [t[t["role"] == r]["site"] if len(t) else [] for t in (table,) for r in ("internal", "external")]
    trained: Any = history[history["split"] == "train"]["site"] if len(history) else []
    return Results(
        scores=table,
        summary=pd.DataFrame(),
        rounds=history,
        patches={},
        internal=tuple(dict.fromkeys([*both[0], *(s for s in trained if s != "pooled")])),
        external=tuple(dict.fromkeys(both[1])),
        headline=registry.build("metric", metric),
        classes=("a", "b"),
        settings=settings or {},
    )
