"""Differences between two studies, or two folders of results: in runs, settings and scores.

Runs are matched by the description of their condition and their seed. Their ids do not serve: a changed setting changes
the id of a run, and two studies may share a condition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..io.paths import INFERENCE, Paths, RunFiles
from ..io.text import read_json
from ..study.plan import Plan
from ..study.run import flat
from .conditions import CONDITION, conditions
from .score import read_table

ABSENT = "absent"
"""Stands for the value of a setting that a run does not have."""
Run = tuple[str, int]
"""The description of a run's condition, and its seed."""
_KEY = ["condition", "seed", "site", "role", "inference", "metric"]


@dataclass(frozen=True)
class Side:
    """One of the two studies or folders that are compared.

    Attributes
    ----------
    name : the study or folder, as the user named it
    runs : the settings of each run, as JSON by dotted path; None if they are not known
    scores : all scores, with the index condition, seed, site, role, inference and metric; None if there are none
    """

    name: str
    runs: dict[Run, dict[str, str] | None]
    scores: pd.Series | None


def of_study(name: str, plan: Plan, paths: Paths) -> Side:
    """Return a study as a side of a comparison: its runs, and its scores if it has been scored."""
    runs: dict[Run, dict[str, str] | None] = {
        (_label(**condition.words), run.seed): _settings(run.spec)
        for condition in conditions(plan).values()
        for run in condition.runs.values()
    }
    file = paths.study_files(plan.name).scores
    return Side(name, runs, _scores(read_table(file)) if file.exists() else None)


def of_folder(folder: Path) -> Side:
    """Return a folder of results as a side of a comparison, from its scores.csv.

    The folder is one such as results/studies/demo, or a copy of it. Settings are read from the folder `runs` two levels
    up, where it exists. Raises UserError if the folder has no scores.csv.
    """
    table = read_table(folder / "scores.csv")
    rows = table.drop_duplicates("run")[["run", "seed", *CONDITION]].itertuples(index=False, name=None)
    runs: dict[Run, dict[str, str] | None] = {}
    for run, seed, *words in rows:
        spec = RunFiles(folder.parent.parent / "runs" / run).spec
        runs[_label(*words), int(seed)] = _settings(read_json(spec)) if spec.exists() else None
    return Side(str(folder), runs, _scores(table))


def _label(algorithm: str, bn: str, addon: str, held_out: str) -> str:
    """Return the description of a condition in one text: `fedavg, local BN, held out centre1`."""
    return ", ".join(
        [algorithm, *([f"with {addon}"] if addon else []), f"{bn} BN", *([f"held out {held_out}"] if held_out else [])]
    )


def _settings(spec: dict[str, Any]) -> dict[str, str]:
    """Return the settings of a specification without the seed, as JSON by dotted path."""
    return {path: json.dumps(value) for path, value in flat(spec).items() if path != "seed"}


def _scores(table: pd.DataFrame) -> pd.Series:
    """Return the values of scores.csv, indexed by condition, seed, site, role, inference and metric."""
    words = table[CONDITION].fillna("").astype(str).itertuples(index=False, name=None)
    # an inference with its options: `tsmobn (momentum 0.9, batch_size 32)`
    inferences = []
    for inference, *options in table[[*INFERENCE]].itertuples(index=False, name=None):
        settings = [f"{name} {value}" for name, value in zip(INFERENCE[1:], options, strict=True) if pd.notna(value)]
        inferences.append(f"{inference} ({', '.join(settings)})" if settings else inference)
    return table.assign(condition=[_label(*one) for one in words], inference=inferences).set_index(_KEY)["value"]


def differences(one: Side, other: Side, threshold: float = 0.0) -> Iterator[str]:
    """Yield a line of text for each difference: in conditions and seeds, in settings, then in scores.

    Scores with the largest difference come first. A score of a run that both sides have differs if its values are more
    than `threshold` apart, or one of them is not defined.
    """
    yield from _runs(one, other)
    yield from _changed_settings(one, other)
    yield from _changed_scores(one, other, threshold)


def notes(one: Side, other: Side) -> Iterator[str]:
    """Yield a line of text for each thing that could not be compared: unknown settings, missing scores."""
    for side in (one, other):
        if unknown := sum(settings is None for settings in side.runs.values()):
            yield f"{side.name}: the settings of {unknown} runs are not known, and not compared"
    if one.scores is None and other.scores is None:
        yield "neither side has scores: only runs and settings are compared"


def _runs(one: Side, other: Side) -> Iterator[str]:
    """Yield a line for each condition, or seeds of a condition, that only one side has."""
    for side, another in ((one, other), (other, one)):
        others = _seeds(another)
        for condition, seeds in _seeds(side).items():
            if condition not in others:
                yield f"only in {side.name}: {condition}"
            elif more := sorted(seeds - others[condition]):
                yield f"only in {side.name}: {condition}, seed{'s' * (len(more) > 1)} {', '.join(map(str, more))}"


def _seeds(side: Side) -> dict[str, set[int]]:
    """Return the seeds of each condition of a side."""
    seeds: dict[str, set[int]] = {}
    for condition, seed in side.runs:
        seeds.setdefault(condition, set()).add(seed)
    return seeds


def _changed_settings(one: Side, other: Side) -> Iterator[str]:
    """Yield a line for each setting that differs between runs of both sides: `path: old -> new (conditions)`."""
    changed: dict[tuple[str, str, str], dict[str, None]] = {}
    shared: dict[str, None] = {}
    for run, before in one.runs.items():
        after = other.runs.get(run)
        if before is None or after is None:
            continue
        shared[run[0]] = None
        for path in sorted({*before, *after}):
            values = before.get(path, ABSENT), after.get(path, ABSENT)
            if values[0] != values[1]:
                changed.setdefault((path, *values), {})[run[0]] = None
    for (path, old, new), concerned in changed.items():
        where = "all conditions that both have" if concerned == shared else "; ".join(concerned)
        yield f"{path}: {old} -> {new} ({where})"


def _changed_scores(one: Side, other: Side, threshold: float) -> Iterator[str]:
    """Yield a line for scores that only one side has, then for each score that differs by more than `threshold`."""
    if one.scores is None or other.scores is None:
        yield from (f"only {side.name} has scores" for side in (one, other) if side.scores is not None)
        return
    shared = one.runs.keys() & other.runs.keys()
    # the first two of _KEY are a run
    before, after = (scores[[key[:2] in shared for key in scores.index]] for scores in (one.scores, other.scores))
    yield from _unmatched(before, after, one.name)
    yield from _unmatched(after, before, other.name)
    both = pd.DataFrame({"old": before, "new": after}).loc[before.index.intersection(after.index)]
    distance = (both["new"] - both["old"]).abs()
    distance[both["old"].isna() != both["new"].isna()] = float("inf")
    chosen = distance[distance > threshold].sort_values(ascending=False, kind="stable").index
    for place, old, new in both.loc[chosen].itertuples(name=None):
        values = " -> ".join("not defined" if pd.isna(x) else f"{x:.6g}" for x in (old, new))
        yield f"{_place(place)}: {values}" + ("" if pd.isna(new - old) else f" ({new - old:+.3g})")


def _unmatched(mine: pd.Series, others: pd.Series, name: str) -> Iterator[str]:
    """Yield lines about the scores that only the side called `name` has.

    They name whole sites, inferences and metrics, then the number of further scores. `mine` are its scores, and
    `others` those of the other side.
    """
    rows = mine.index.difference(others.index, sort=False).to_frame(index=False)
    for column in ("site", "inference", "metric"):
        new = ~rows[column].isin(others.index.get_level_values(column))
        yield from (f"only in {name}: {column} {value}" for value in rows.loc[new, column].unique())
        rows = rows[~new]
    if len(rows):
        first = _place(next(rows.itertuples(index=False, name=None)))
        yield f"only in {name}: {len(rows)} more score{'s' if len(rows) > 1 else ''}, the first: {first}"


def _place(key: tuple[Any, ...]) -> str:
    """Return the place of a score as text: metric, site, role, inference, condition and seed (all in `key`)."""
    condition, seed, site, role, inference, metric = key
    return f"{metric} at {site} ({role}), {inference}, {condition}, seed {seed}"
