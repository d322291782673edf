"""Settings, curves and scores of a trained run, in a form that every tracker takes."""

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

from ..algorithms import LOGGED
from ..analysis import results
from ..core import digest
from ..core.errors import UserError
from ..io.paths import TRAINED, Paths
from ..jobs.provenance import read_manifest
from ..jobs.round_log import read_rounds
from ..study import calls
from ..study.plan import Plan
from ..study.run import Run
from .own_folder import without_places

if TYPE_CHECKING:
    import pandas as pd

MEANS = ("loss", "accuracy")
"""Columns of rounds.parquet that are exported for each site, and as the plain mean over sites."""
TOTALS = ("floats_down", "floats_up", "messages", "seconds")
"""Columns of rounds.parquet that are exported as the sum over all rows of a round."""
MEAN = "mean"
"""Name of the mean over sites, in the place of a site's name."""
LONGEST = 100
"""Most characters of a site or a setting in a tag: MLflow takes 250 for a whole tag."""
MARKED = re.compile(r"-[0-9a-f]{8}\Z")
"""Ending that `word` gives to a changed text."""

Scalar = tuple[str, int, float]
Score = tuple[str, float]


@dataclass(frozen=True)
class Account:
    """One run, in words that every tracker takes: names of letters, digits and `_-.`, tags with `/` too; finite values.

    `settings` are those of the run by dotted path, and the settings of its inferences that differ from the defaults.
    `rounds` has (tag, round, value), with tags such as `loss/train/SITE`, `loss/train/mean` and `total/floats_up`;
    `scores` has (tag, value), such as `accuracy/tsmobn/SITE`, for the network after round `kept`. `clock` maps a round
    to the time when it ended, in seconds since 1970, and 0 to the start of the first. Times are the durations of rounds
    added to the start of the last process that trained the run: after an interruption, rounds have later times than
    their true ones.
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
        """Return the name for people and folders; it says so where images are synthetic."""
        return f"{self.id}-synthetic" if self.facts["synthetic"] else self.id

    @property
    def digest(self) -> str:
        """Return a digest of all that is exported."""
        return digest.of(asdict(self), 16)


def trained(plan: Plan, paths: Paths) -> list[Run]:
    """Return the runs of a study whose files are all there. Raises UserError where there is none."""
    runs = [r for r in plan.runs.values() if all((paths.run(r.id) / name).exists() for name in TRAINED)]
    if not runs:
        fault = "no run is trained: there is nothing to export"
        raise UserError(plan.label, fault, f"train: {calls.snakemake(plan, paths)}")
    return runs


def accounts(plan: Plan, paths: Paths, runs: Iterable[Run]) -> Iterator[Account]:
    """Yield the account of each run, one after another. Raises UserError for a damaged file."""
    scores = _scores(plan, paths)
    for run in runs:
        manifest, started = _manifest(paths.run_files(run.id).manifest)
        table = read_rounds(paths.run_files(run.id).rounds)
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
    """Return a name as part of a tag.

    Characters that trackers do not take are replaced; a digest at the end then keeps different names apart.
    """
    clean = re.sub(r"[^\w.-]", "_", name[:LONGEST])
    # A name that looks like a changed one is changed too: otherwise two sites could share a tag.
    if clean == name and name.strip(".") and name != MEAN and not MARKED.search(name):
        return name
    return f"{clean}-{digest.of(name, 8)}"


def text(value: Any) -> str:
    """Return a setting or a fact as trackers show it: words as they are, all other values and empty words as JSON."""
    if isinstance(value, str) and value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _settings(plan: Plan, run: Run) -> dict[str, Any]:
    """Return the settings of a run, without folders of files, and changed ones of inferences as `inferences.ID`."""
    settings = {word(key): value for key, value in without_places(run).settings.items()}
    for name in plan.predictions(run.id):
        changed = plan.inferences[name].model_dump(mode="json", exclude_defaults=True)
        if changed:
            settings[f"inferences.{name}"] = changed
    return settings


def _rounds(table: pd.DataFrame) -> Iterator[Scalar]:
    """Yield the values of every site, their means and totals for each round. A mean is NaN where a value is."""
    sites = {site: word(site) for site in table["site"].unique()}
    # The mean is taken in NumPy, since that of pandas would pass over NaN: a mean of fewer sites is another quantity.
    parts: Iterable[tuple[Any, pd.DataFrame]] = table.groupby(["round", "split"])
    for (number, split), rows in parts:
        logged = [name for name in map(str, rows) if name.startswith(LOGGED) and rows[name].notna().any()]
        for column in (*MEANS, *logged):
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
    """Return the scores of each run in scores.csv, without undefined ones; nothing where the file is not there."""
    scores: dict[str, list[Score]] = defaultdict(list)
    path = paths.study_files(plan.name).scores
    if path.exists():
        table = results.load(plan, paths).scores
        columns = ["run", "metric", "inference_id", "site", "value"]
        for run, metric, inference, site, value in table[columns].itertuples(index=False):
            if math.isfinite(value):
                scores[run].append((f"{metric}/{inference}/{word(site)}", float(value)))
    return scores


def _manifest(path: Path) -> tuple[dict[str, Any], float]:
    """Return manifest.json of a run, and when its last process started, in seconds since 1970."""
    manifest = read_manifest(path)
    try:
        started = datetime.fromisoformat(manifest["started"]).timestamp()
        return {**manifest, "best_round": int(manifest["best_round"])}, started
    except (KeyError, TypeError, ValueError):
        raise UserError(path, "is not a manifest of a trained run", "remove it, and train the run again") from None


def _facts(run: Run, manifest: dict[str, Any]) -> dict[str, Any]:
    git = manifest.get("git") or {}
    training = {key: manifest.get(key) for key in ("best_round", "best_value", "seconds", "device", "started", "code")}
    facts = {"synthetic": run.data.synthetic, **training, "commit": git.get("commit"), "uncommitted": git.get("dirty")}
    return {key: value for key, value in facts.items() if value is not None}


def _clock(table: pd.DataFrame, started: float) -> dict[int, float]:
    passed: dict[Any, float] = table.groupby("round")["seconds"].sum().cumsum().to_dict()
    return {0: started} | {int(number): started + float(seconds) for number, seconds in passed.items()}
