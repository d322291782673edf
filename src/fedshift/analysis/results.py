"""What figures are drawn from, read from the files of a study."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..core.errors import UserError
from ..core.rng import stream
from ..figures import Figure, Results
from ..io.arrays import map_array
from ..io.paths import Paths
from ..io.tables import read_table
from ..io.text import read_json, write_text
from ..study.plan import Plan
from ..study.run import Data
from . import effects, score
from .findings import Findings
from .predictions import CONDITION

PATCHES = 6


def draw(plan: Plan, paths: Paths, name: str) -> Path:
    """Writes figures/{name}.svg of a study."""
    figure: Figure = registry.build("figure", name)
    out = paths.study(plan.name) / "figures" / f"{name}.svg"
    write_text(out, figure.draw(load(plan, paths)))
    return out


def load(plan: Plan, paths: Paths) -> Results:
    """Everything a figure may need. Runs without rounds are left out; the page names them."""
    findings = Findings.read(plan, paths)
    folder = paths.study(plan.name)
    partitions = plan.partitions
    return Results(
        scores=_named(findings, score.read_tidy(folder / "scores.csv")),
        summary=_named(findings, score.read_tidy(folder / "summary.csv")),
        rounds=rounds(findings, paths),
        patches=patches(plan, paths),
        internal=tuple(dict.fromkeys(s for p in partitions for s in p.internal)),
        external=tuple(dict.fromkeys(s for p in partitions for s in p.external)),
        headline=findings.headline,
        classes=plan.study.dataset.classes,
        settings={name: run.settings for name, run in plan.runs.items()},
        synthetic=any(card(paths, data)["synthetic"] for data in plan.data.values()),
    )


def card(paths: Paths, data: Data) -> dict[str, Any]:
    """The card of prepared data, in the study's words of today; what only preparation tells is empty before it."""
    path = paths.data(data.id) / "card.json"
    prepared = read_json(path) if path.exists() else {}
    return {"synthetic": data.synthetic, "checksums": {}} | prepared | dataclasses.asdict(data.card)


def rounds(findings: Findings, paths: Paths) -> pd.DataFrame:
    """rounds.parquet of all runs that have one, with run, seed, condition and held_out."""
    parts = []
    for group in findings.groups:
        for name, run in group.runs.items():
            try:
                table = read_table(paths.run(name) / "rounds.parquet")
            except UserError:
                continue
            about: dict[str, Any] = {"run": name, "seed": run.seed, "condition": group.title}
            parts.append(table.assign(**about, held_out=group.condition.held_out))
    columns = ["round", "site", "split", "loss", "accuracy", "run", "seed", "condition", "held_out"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def patches(plan: Plan, paths: Paths) -> dict[str, np.ndarray]:
    """A few images of each site, always the same ones; nothing where there are no images of two dimensions."""
    found: dict[str, np.ndarray] = {}
    for data in plan.data:
        folder = paths.data(data)
        if not (folder / "images.npy").exists():
            continue
        images = map_array(folder / "images.npy")
        if images.ndim != 4:
            continue
        samples = read_table(folder / "samples.parquet", ["site"]).astype({"site": str})
        for site, rows in samples.groupby("site", sort=False).indices.items():
            chosen = stream("patches", data, site).permutation(rows)[:PATCHES]
            found[str(site)] = np.asarray(images[np.sort(chosen)])
    return found


def _named(findings: Findings, table: pd.DataFrame) -> pd.DataFrame:
    """Adds what people call the condition and the inference of each row."""
    titles = {tuple(g.condition): g.title for g in findings.groups}
    keyed = effects.with_key(findings.plan, table)
    condition = [titles.get(tuple(c), "") for c in keyed[CONDITION].itertuples(index=False)]
    return keyed.assign(condition=condition, shown=keyed["key"].map(findings.name)).drop(columns="key")
