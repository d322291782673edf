"""Means over sites, runs and seeds that several figures draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.registry import discover
from ..core.units import FLOAT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd

    from ._base import Results

OPTIONS = ("momentum", "batch_size", "order")
"""Columns of scores that hold options of an inference."""
Spot = tuple[float, float]
"""Mean and standard deviation over seeds; the latter is NaN for a single seed."""
_MOVED = ["floats_down", "floats_up"]
_SCORES = ("run", "condition", "held_out", "site", "role", "inference", "shown", *OPTIONS, "seed", "value", "n")


def headline(results: Results) -> pd.DataFrame:
    """Return the scores of the headline metric, in percent if the metric is one."""
    if results.scores.empty:
        return results.scores.reindex(columns=[*_SCORES, "metric"])
    scores = results.scores[results.scores["metric"] == results.headline.name]
    return scores.assign(value=scores["value"] * (100 if results.headline.percent else 1))


def by_partition(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose conditions are named with their partition, if there are several partitions."""
    if len(table) == 0 or table["held_out"].nunique() < 2:
        return table
    return table.assign(condition=table["condition"] + ", held out " + table["held_out"])


def apart(scores: pd.DataFrame) -> pd.DataFrame:
    """Return scores by partition, except where each external site is held out by one partition alone."""
    outside = scores[scores["role"] == "external"].groupby("site")["held_out"].nunique()
    return scores if len(outside) and outside.max() == 1 else by_partition(scores)


def axis(results: Results) -> str:
    """Return the label of an axis: the headline metric with its unit."""
    return f"{results.headline.title}{' (%)' if results.headline.percent else ''}"


def inside(results: Results) -> tuple[str, ...]:
    """Return the internal sites that have test samples in some run."""
    runs = [run for run in results.settings.values() if "partition.split.test" in run]
    trained, tested = (
        {site for run in runs if run["partition.split.test"] > least for site in run["partition.internal"]}
        for least in (-1, 0)
    )
    return tuple(site for site in results.internal if site not in trained - tested)


def over_sites(scores: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """Return the mean over sites, each counted once, for each value of `by` and each seed."""
    sites = scores.groupby([*by, "seed", "site"], sort=False)["value"].mean()
    return sites.groupby(level=[*by, "seed"], sort=False).mean()


def over_seeds(values: pd.Series) -> pd.DataFrame:
    """Return mean and sample standard deviation over the index level `seed`, without undefined means.

    The columns are mean and std; std is NaN for a single seed.
    """
    rest = [name for name in values.index.names if name != "seed"]
    return values.groupby(level=rest, sort=False).agg(["mean", "std"]).dropna(subset=["mean"])


def mean_and_std(values: pd.Series) -> dict[Any, Spot]:
    """Return mean and standard deviation over seeds by key, a tuple if the index has several levels besides `seed`."""
    table = over_seeds(values)
    pairs = zip(table["mean"].tolist(), table["std"].tolist(), strict=True)
    return dict(zip(table.index.tolist(), pairs, strict=True))


def known(column: pd.Series) -> list[Any]:
    """Return the values of a column, with None for missing ones."""
    return [value if known else None for value, known in zip(column, column.notna(), strict=True)]


def centres(scores: pd.DataFrame) -> dict[str, str]:
    """Return the shown name of each inference's centre: the options that a sweep varies around.

    The centre has the inference's default options if they were predicted. Otherwise each option has its most common
    value; among equally common values, the default counts before the first one.
    """
    names: dict[str, str] = {}
    for name, rows in scores.groupby("inference", sort=False):
        variants = rows.drop_duplicates("shown")
        defaults = {k: f.default for k, f in _fields(str(name)).items()}
        columns = {c: known(variants[c]) for c in OPTIONS}
        usual = {c: max(values, key=lambda v: (values.count(v), v == defaults.get(c))) for c, values in columns.items()}
        default = {c: defaults.get(c) for c in OPTIONS}
        plain = any(all(columns[c][k] == default[c] for c in OPTIONS) for k in range(len(variants)))
        wanted = default if plain else usual
        agree = [sum(columns[c][k] == wanted[c] for c in OPTIONS) for k in range(len(variants))]
        names[str(name)] = str(variants["shown"].iloc[agree.index(max(agree))])
    return names


def _fields(inference: str) -> dict[str, Any]:
    """Return the fields of an inference by its name in scores, such as `tsmobn` or `tsmobn(affine=False)`."""
    plugin = discover("inference").get(inference.partition("(")[0])
    return plugin.model_fields if plugin else {}


def client_of(inference: str, sites: Iterable[str]) -> str | None:
    """Return the client whose own tensors an inference tests at all sites: amazon for `source(client=amazon)`."""
    inside = inference.partition("(")[2]
    starts = [f"client={s}" for s in sites if f"client={s}," in f"{inside[:-1]}," and inside]
    return max(starts, key=len).removeprefix("client=") if starts else None


def by_run(rounds: pd.DataFrame, column: str, points: int = 150) -> pd.DataFrame:
    """Return the mean over clients: a row for each round, a column for each run.

    Of a long history, about `points` rounds at equal distances are returned.
    """
    table = rounds.pivot_table(index="round", columns="run", values=column, aggfunc="mean")
    return table.iloc[:: max(1, -(-len(table) // points))]


def shared_part(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rounds up to the end of the shortest run, without rounds in which no run has a value."""
    ends = runs.notna().to_numpy()[::-1].argmax(axis=0)
    return runs.iloc[: len(runs) - int(ends.max())].dropna(how="all")


def of_same_sites(rounds: pd.DataFrame) -> bool:
    """Return whether partitions train on the same sites: then each has its own line, and no mean is taken."""
    clients = rounds[rounds["split"] == "train"].groupby("held_out")["site"].agg(frozenset)
    return bool(clients.duplicated().any())


def exchanged(rounds: pd.DataFrame) -> pd.Series:
    """Return the bytes that all clients have received and sent by the end of each round, mean over runs."""
    trained = rounds[rounds["split"] == "train"]
    floats = trained.reindex(columns=_MOVED).sum(axis=1, min_count=1)
    table = (FLOAT_BYTES * floats).groupby([trained["round"], trained["run"]]).sum(min_count=1).unstack("run")
    return table.cumsum().mean(axis=1)


def unit_of(most: float) -> tuple[float, str]:
    """Return the unit in which `most` bytes read best: its size and its name."""
    units = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    name = next((u for u, size in reversed(units.items()) if most >= size), "kB")
    return units[name], name
