"""The results of a study: its files, each read once, and what figures are drawn from."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..core.errors import UserError
from ..core.rng import stream
from ..data.prepared import read_card, read_samples
from ..figures import Figure, Results
from ..io.arrays import map_array
from ..io.guards import require_columns, require_unique
from ..io.paths import Paths
from ..io.text import readable, write_text
from ..jobs.provenance import read_manifest
from ..jobs.round_log import read_rounds
from ..study.plan import Plan
from ..study.run import Data
from . import score
from .findings import Findings
from .names import IDS, LEVELS, Names
from .predictions import INFERENCE

ROLES = ("internal", "external")
AGAIN = "score and summarise the study again"
COLUMNS = {
    "scores": ["run", "site", "role", *INFERENCE, "seed", "metric", "value", "n"],
    "summary": [*LEVELS, "mean", "std", "seeds", "low", "high"],
    "effects": [*LEVELS, "quantity", "mean", "std", "seeds", "low", "high"],
    "comparison": ["table", "published", "mean", "difference", "combined", "verdict", "reason"],
    "trends": ["claim", "sentence", "held", "mean_difference", "se", "sites_for", "sites", "doubt", "reason"],
    "unseen": [*IDS, "trained_on", "metric", "mean", "std", "seeds"],
}
"""The columns of each table that its readers need."""
KEYS = {
    "scores": ["run", "site", "role", *INFERENCE, "metric"],
    "summary": LEVELS,
    "effects": [*LEVELS, "quantity"],
    "comparison": [],
    "trends": [],
    "unseen": [*IDS, "trained_on", "metric"],
}
"""The columns of each table in which no two rows agree."""
PATCHES = 6
"""Images of each site that a figure may show."""


def draw(plan: Plan, paths: Paths, name: str) -> Path:
    """Write figures/{name}.svg of a study."""
    figure: Figure = registry.build("figure", name)
    out = paths.study_files(plan.name).figure(name)
    write_text(out, figure.draw(load(plan, paths).for_figures))
    return out


def load(plan: Plan, paths: Paths) -> StudyResults:
    """Return the results of a study. Each file is read when it is first needed, and once only."""
    return StudyResults(plan, paths)


class StudyResults:
    """The files of a study as tables, which have the ids of condition and inference in the columns `names.IDS`."""

    def __init__(self, plan: Plan, paths: Paths) -> None:
        self.plan, self.paths = plan, paths
        self.files = paths.study_files(plan.name)
        self.names = Names(plan)
        self._contents: dict[str, bytes] = {}

    def content(self, name: str) -> bytes:
        """Return the bytes of a file of the study's folder. Raises UserError where it is not there."""
        if name not in self._contents:
            path = self.files.folder / name
            if not path.is_file():
                raise UserError(path, "no such file", "score and summarise the study first")
            with readable(path, "table"):
                self._contents[name] = path.read_bytes()
        return self._contents[name]

    def _table(self, name: str) -> pd.DataFrame:
        """Return a table of the study's folder. Raises UserError where it is not one of this study, as it is now."""
        path = self.files.folder / f"{name}.csv"
        table = score.parse_tidy(self.content(path.name), path)
        require_columns(path, table, dict.fromkeys(COLUMNS[name], "anything"), AGAIN)
        require_unique(path, table, KEYS[name], AGAIN)
        return table

    @functools.cached_property
    def scores(self) -> pd.DataFrame:
        """scores.csv, with the columns condition_id and inference_id added."""
        scores = self.names.identified(self._table("scores"))
        known = {(role, site) for part in self.plan.partitions for role in ROLES for site in getattr(part, role)}
        if others := sorted(set(zip(scores["role"], scores["site"], strict=True)) - known):
            what = f"has the {others[0][0]} site {others[0][1]!r}, which the study does not have"
            raise UserError(self.files.scores, what, AGAIN)
        if unknown := sorted(set(scores["metric"]) - {metric.name for metric in score.metrics(self.plan)}):
            raise UserError(self.files.scores, f"has the metric {unknown[0]!r}, which the study does not have", AGAIN)
        return scores

    @functools.cached_property
    def summary(self) -> pd.DataFrame:
        """summary.csv."""
        return self._table("summary")

    @functools.cached_property
    def effects(self) -> pd.DataFrame:
        """effects.csv."""
        return self._table("effects")

    @functools.cached_property
    def comparison(self) -> pd.DataFrame:
        """comparison.csv."""
        return self._table("comparison")

    @functools.cached_property
    def trends(self) -> pd.DataFrame:
        """trends.csv."""
        return self._table("trends")

    @functools.cached_property
    def unseen(self) -> pd.DataFrame:
        """unseen.csv."""
        return self._table("unseen")

    @functools.cached_property
    def findings(self) -> Findings:
        """The numbers of summary.csv and effects.csv by their ids."""
        return Findings(self.names, self.summary, self.effects)

    @functools.cached_property
    def missing(self) -> list[dict[str, str]]:
        """The predictions that could not be scored: run, inference and why."""
        return score.missing(self.plan, self.paths)

    @functools.cached_property
    def manifests(self) -> dict[str, dict[str, Any]]:
        """manifest.json of each run by its id; empty where there is none that can be read."""
        return {run: _manifest(self.paths.run_files(run).manifest) for run in self.plan.runs}

    @functools.cached_property
    def cards(self) -> list[dict[str, Any]]:
        """The card of each dataset of the study."""
        return [card(self.paths, data) for data in self.plan.data.values()]

    @property
    def synthetic(self) -> bool:
        """True where any images of the study are invented."""
        return any(card["synthetic"] for card in self.cards)

    @functools.cached_property
    def rounds(self) -> pd.DataFrame:
        """rounds.parquet of all runs that have one, with the columns run, seed, condition_id, condition and held_out.

        `condition` is the title of the condition.
        """
        parts = []
        for condition in self.names.conditions.values():
            for name, run in condition.runs.items():
                try:
                    table = read_rounds(self.paths.run_files(name).rounds)
                except UserError:
                    continue
                about: dict[str, Any] = {"run": name, "seed": run.seed, "condition_id": condition.id}
                parts.append(table.assign(**about, condition=condition.title, held_out=condition.held_out))
        columns = ["round", "site", "split", "loss", "accuracy"]
        columns += ["run", "seed", "condition_id", "condition", "held_out"]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)

    @functools.cached_property
    def for_figures(self) -> Results:
        """Everything that a figure may need. Runs without rounds are left out; the page names them."""
        partitions = self.plan.partitions
        return Results(
            scores=self._titled(self.scores),
            summary=self._titled(self.summary),
            rounds=self.rounds,
            patches=patches(self.plan, self.paths),
            internal=tuple(dict.fromkeys(s for p in partitions for s in p.internal)),
            external=tuple(dict.fromkeys(s for p in partitions for s in p.external)),
            headline=self.findings.headline,
            classes=self.plan.study.dataset.classes,
            settings={name: run.settings for name, run in self.plan.runs.items()},
            synthetic=self.synthetic,
        )

    def _titled(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table with the columns `condition` and `shown`: the titles of condition and inference."""
        titles = {key: condition.title for key, condition in self.names.conditions.items()}
        names = {key: self.findings.name(key) for key in self.findings.keys}
        return table.assign(condition=table["condition_id"].map(titles), shown=table["inference_id"].map(names))


def card(paths: Paths, data: Data) -> dict[str, Any]:
    """Return the card of prepared data, worded as the study words it now.

    Facts that only preparation knows, such as checksums, are empty before it.
    """
    path = paths.data_files(data.id).card
    prepared = read_card(path) if path.exists() else {}
    return {"synthetic": data.synthetic, "checksums": {}} | prepared | dataclasses.asdict(data.card)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        return read_manifest(path)
    except UserError:
        return {}


def patches(plan: Plan, paths: Paths) -> dict[str, np.ndarray]:
    """Return a few images of each site, always the same ones; none where the data are not images of two dimensions."""
    chosen: dict[str, np.ndarray] = {}
    for data in plan.data:
        files = paths.data_files(data)
        if not files.images.exists():
            continue
        images = map_array(files.images)
        if images.ndim != 4:
            continue
        samples = read_samples(files.samples)
        if len(samples) != len(images):
            what = f"has {len(images)} images, but samples.parquet has {len(samples)} rows"
            raise UserError(files.images, what, "remove its folder, and run the study again")
        for site, rows in samples.groupby("site", sort=False).indices.items():
            drawn = stream("patches", data, site).permutation(rows)[:PATCHES]
            chosen[str(site)] = np.asarray(images[np.sort(drawn)])
    return chosen
