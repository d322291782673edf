"""Means over sites, runs and seeds, as several figures draw them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.registry import discover

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd

    from ._base import Results

SETTINGS = ("momentum", "batch_size", "order")
"""Columns of scores that tell the settings of an inference."""
Spot = tuple[float, float]
"""Mean and standard deviation over seeds; the latter NaN of a single one."""
_SCORES = ("run", "condition", "held_out", "site", "role", "inference", "shown", *SETTINGS, "seed", "value", "n")


def headline(results: Results) -> pd.DataFrame:
    """The scores of the headline metric, as numbers are written: percent where it is one."""
    if results.scores.empty:
        return results.scores.reindex(columns=[*_SCORES, "metric"])
    scores = results.scores[results.scores["metric"] == results.headline.name]
    return scores.assign(value=scores["value"] * (100 if results.headline.percent else 1))


def by_partition(table: pd.DataFrame) -> pd.DataFrame:
    """Conditions named with their partition, where there are several."""
    if len(table) == 0 or table["held_out"].nunique() < 2:
        return table
    return table.assign(condition=table["condition"] + ", held out " + table["held_out"])


def apart(scores: pd.DataFrame) -> pd.DataFrame:
    """The same, unless partitions complement one another: each external site is held out by one of them alone."""
    outside = scores[scores["role"] == "external"].groupby("site")["held_out"].nunique()
    return scores if len(outside) and outside.max() == 1 else by_partition(scores)


def axis(results: Results) -> str:
    """The headline metric, with its unit."""
    return f"{results.headline.title}{' (%)' if results.headline.percent else ''}"


def inside(results: Results) -> tuple[str, ...]:
    """The internal sites, without those that no run keeps test samples of."""
    runs = [run for run in results.settings.values() if "partition.split.test" in run]
    trained, tested = (
        {site for run in runs if run["partition.split.test"] > least for site in run["partition.internal"]}
        for least in (-1, 0)
    )
    return tuple(site for site in results.internal if site not in trained - tested)


def over_sites(scores: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """The mean over sites, each counted once, at each value of `by` and each seed."""
    sites = scores.groupby([*by, "seed", "site"], sort=False)["value"].mean()
    return sites.groupby(level=[*by, "seed"], sort=False).mean()


def over_seeds(values: pd.Series) -> pd.DataFrame:
    """Columns mean and std (of the sample, NaN of a single seed) over the index level `seed`; no undefined means."""
    rest = [name for name in values.index.names if name != "seed"]
    return values.groupby(level=rest, sort=False).agg(["mean", "std"]).dropna(subset=["mean"])


def mean_and_std(values: pd.Series) -> dict[Any, Spot]:
    """The same by key: a tuple where the index has several levels besides `seed`."""
    table = over_seeds(values)
    pairs = zip(table["mean"].tolist(), table["std"].tolist(), strict=True)
    return dict(zip(table.index.tolist(), pairs, strict=True))


def known(column: pd.Series) -> list[Any]:
    """Values of a column, None where there is none."""
    return [value if there else None for value, there in zip(column, column.notna(), strict=True)]


def centres(scores: pd.DataFrame) -> dict[str, str]:
    """What is shown of each inference that was asked with several settings: those that a sweep varies around.

    Its defaults where they were asked for; else each setting's most common value and, where several are as common, the
    inference's default, and then the first.
    """
    found: dict[str, str] = {}
    for name, rows in scores.groupby("inference", sort=False):
        asked = rows.drop_duplicates("shown")
        defaults = {k: f.default for k, f in _fields(str(name)).items()}
        columns = {c: known(asked[c]) for c in SETTINGS}
        usual = {c: max(values, key=lambda v: (values.count(v), v == defaults.get(c))) for c, values in columns.items()}
        default = {c: defaults.get(c) for c in SETTINGS}
        plain = any(all(columns[c][k] == default[c] for c in SETTINGS) for k in range(len(asked)))
        wanted = default if plain else usual
        agree = [sum(columns[c][k] == wanted[c] for c in SETTINGS) for k in range(len(asked))]
        found[str(name)] = str(asked["shown"].iloc[agree.index(max(agree))])
    return found


def _fields(inference: str) -> dict[str, Any]:
    """The settings of an inference by what scores call it: `tsmobn`, or `tsmobn(affine=False)`."""
    plugin = discover("inference").get(inference.partition("(")[0])
    return plugin.model_fields if plugin else {}


def client_of(inference: str, sites: Iterable[str]) -> str | None:
    """The client whose own tensors an inference tests everywhere, as scores tell it: `source(client=amazon)`."""
    inside = inference.partition("(")[2]
    starts = [f"client={s}" for s in sites if f"client={s}," in f"{inside[:-1]}," and inside]
    return max(starts, key=len).removeprefix("client=") if starts else None


def by_run(rounds: pd.DataFrame, column: str, points: int = 150) -> pd.DataFrame:
    """The mean over clients: a row for each round, a column for each run. Long histories are thinned out."""
    table = rounds.pivot_table(index="round", columns="run", values=column, aggfunc="mean")
    return table.iloc[:: max(1, -(-len(table) // points))]


def shared_part(runs: pd.DataFrame) -> pd.DataFrame:
    """The rounds up to the last of the first run to stop, without those that no run has a value of."""
    ends = runs.notna().to_numpy()[::-1].argmax(axis=0)
    return runs.iloc[: len(runs) - int(ends.max())].dropna(how="all")
