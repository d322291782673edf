"""What there is to tell of a trained run, whichever tracker it is told to."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis import score
from ..analysis.names import Names
from ..core import digest
from ..core.errors import UserError
from ..io.paths import TRAINED, Paths
from ..io.tables import read_table
from ..io.text import read_json
from ..study.plan import Plan
from ..study.run import Run
from .places import without_places

if TYPE_CHECKING:
    import pandas as pd

MEANS = ("loss", "accuracy")
"""Columns of rounds.parquet that are told by site, and as the plain mean over sites."""
TOTALS = ("floats_down", "floats_up", "messages", "seconds")
"""Columns of it that are told as the sum over all rows of a round."""
MEAN = "mean"
"""In the place of a site's name: the mean over sites."""
LONGEST = 100
"""Characters of a site or a setting in a tag: MLflow takes 250 for a whole one."""
MARKED = re.compile(r"-[0-9a-f]{8}\Z")
"""What `word` ends a changed text with."""

Scalar = tuple[str, int, float]
Score = tuple[str, float]


@dataclass(frozen=True)
class Account:
    """One run, in words that every tracker takes: names of letters, digits and `_-.`, tags with `/` too; finite values.

    `settings` are those of the run by dotted path, and of its inferences what differs from the defaults. `rounds` has
    (tag, round, value), with tags as `loss/train/SITE`, `loss/train/mean` and `total/floats_up`; `scores` has (tag,
    value), as `accuracy/tsmobn/SITE`, of the network as it was after round `kept`. `clock` says when rounds ended, in
    seconds since 1970, and under 0 when the first began: what they took, counted from when the last process took up
    the run. Of an interrupted run the rounds are thus dated later than they were.
    """

    id: str
    settings: dict[str, Any]
    rounds: tuple[Scalar, ...]
    scores: tuple[Score, ...]
    facts: dict[str, Any]
    kept: int
    clock: dict[int, float]

    @property
    def name(self) -> str:
        """For people, and for folders: drawn images are never passed over in silence."""
        return f"{self.id}-synthetic" if self.facts["synthetic"] else self.id

    @property
    def digest(self) -> str:
        """Of all that is told."""
        return digest.of(asdict(self), 16)


def trained(plan: Plan, paths: Paths) -> list[Run]:
    """The runs of a study whose files are all there. Raises UserError where there is none."""
    found = [r for r in plan.runs.values() if all((paths.run(r.id) / name).exists() for name in TRAINED)]
    if not found:
        where = f"study {plan.name} at scale {plan.scale}"
        raise UserError(where, "no run is trained: there is nothing to export", f"train: {score.command(plan, paths)}")
    return found


def accounts(plan: Plan, paths: Paths, runs: Iterable[Run]) -> Iterator[Account]:
    """What there is to tell of some runs of a study, one after another. Raises UserError for a file that is damaged."""
    scores = _scores(plan, paths)
    for run in runs:
        manifest, started = _manifest(paths.run(run.id) / "manifest.json")
        table = read_table(paths.run(run.id) / "rounds.parquet")
        yield Account(
            id=run.id,
            settings=_settings(plan, run),
            rounds=tuple(scalar for scalar in _rounds(table) if math.isfinite(scalar[2])),
            scores=tuple(scores.get(run.id, ())),
            facts=_facts(run, manifest),
            kept=manifest["best_round"],
            clock=_clock(table, started),
        )


def word(name: str) -> str:
    """A name as part of a tag. What trackers do not take is replaced, and a digest then keeps apart what differed."""
    clean = re.sub(r"[^\w.-]", "_", name[:LONGEST])
    if clean == name and name.strip(".") and name != MEAN and not MARKED.search(name):
        return name
    return f"{clean}-{digest.of(name, 8)}"


def text(value: Any) -> str:
    """A setting or a fact as trackers show it: a word as it is, all else, an empty one too, as JSON."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _settings(plan: Plan, run: Run) -> dict[str, Any]:
    """Of the run, of files their names alone; under `inferences.ID` those of an inference that are no defaults."""
    asked = {name: plan.inferences[name] for name in plan.predictions(run.id)}
    changed = {f"inferences.{name}": i.model_dump(mode="json", exclude_defaults=True) for name, i in asked.items()}
    return {word(key): value for key, value in without_places(run).settings.items()} | {
        k: v for k, v in changed.items() if v
    }


def _rounds(table: pd.DataFrame) -> Iterator[Scalar]:
    """Of each round the values of every site, their means, and totals. The mean is unknown where one of them is."""
    sites = {site: word(site) for site in table["site"].unique()}
    parts: Iterable[tuple[Any, pd.DataFrame]] = table.groupby(["round", "split"])
    for (number, split), rows in parts:
        for column in MEANS:
            values = rows[column].to_numpy(dtype=float)
            for site, value in zip(rows["site"], values, strict=True):
                yield f"{column}/{split}/{sites[site]}", int(number), float(value)
            yield f"{column}/{split}/{MEAN}", int(number), float(values.mean())
    whole: Iterable[tuple[Any, pd.DataFrame]] = table.groupby("round")
    for number, rows in whole:
        for column in TOTALS:
            if column in rows:
                yield f"total/{column}", int(number), float(rows[column].to_numpy(dtype=float).sum())


def _scores(plan: Plan, paths: Paths) -> dict[str, list[Score]]:
    """What scores.csv says of each run; nothing where there is none. Metrics that are not defined are left out."""
    found: dict[str, list[Score]] = defaultdict(list)
    path = paths.study(plan.name) / "scores.csv"
    if path.exists():
        table = Names(plan).identified(score.read_tidy(path))
        columns = ["run", "metric", "inference_id", "site", "value"]
        for run, metric, inference, site, value in table[columns].itertuples(index=False):
            if math.isfinite(value):
                found[run].append((f"{metric}/{inference}/{word(site)}", float(value)))
    return found


def _manifest(path: Path) -> tuple[dict[str, Any], float]:
    """manifest.json of a run, and when the run was taken up, in seconds since 1970."""
    found = read_json(path)
    try:
        return {**found, "best_round": int(found["best_round"])}, datetime.fromisoformat(found["started"]).timestamp()
    except (KeyError, TypeError, ValueError):
        raise UserError(path, "is no manifest of a trained run", "remove it, and train the run again") from None


def _facts(run: Run, manifest: dict[str, Any]) -> dict[str, Any]:
    git = manifest.get("git") or {}
    told = {key: manifest.get(key) for key in ("best_round", "best_value", "seconds", "device", "started", "code")}
    facts = {"synthetic": run.data.synthetic, **told, "commit": git.get("commit"), "uncommitted": git.get("dirty")}
    return {key: value for key, value in facts.items() if value is not None}


def _clock(table: pd.DataFrame, started: float) -> dict[int, float]:
    passed: dict[Any, float] = table.groupby("round")["seconds"].sum().cumsum().to_dict()
    return {0: started} | {int(number): started + float(seconds) for number, seconds in passed.items()}
