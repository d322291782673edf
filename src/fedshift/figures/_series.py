"""Means over sites, runs and seeds that several figures draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.registry import build, find
from ..core.units import FLOAT_BYTES
from ._canvas import round_axis

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

    from ..metrics import Metric
    from ._base import Results

OPTIONS = ("momentum", "batch_size", "order")
"""Columns of scores that hold options of an inference."""
ROLES = ("internal", "external")
OVER = {"round": "By round", "exchanged": "By traffic"}
"""The titles of panels over the columns of `traffic`."""
SILENT = "; conditions that exchange nothing are left out there"
"""Part of the captions of figures with an axis for traffic."""
Spot = tuple[float, float]
"""Mean and standard deviation over seeds; the latter is NaN for a single seed."""
_MOVED = ["floats_down", "floats_up"]
_SCORES = ("run", "condition", "held_out", "site", "role", "inference", "shown", *OPTIONS, "seed", "value", "n")


class Validated(NamedTuple):
    """A value that each round was validated by: its column in the rounds, its title, and a factor for percent."""

    column: str
    title: str
    factor: float


def validated_by(results: Results) -> Validated:
    """Return the metric by which all runs select a round, where it was logged; accuracy otherwise."""
    names = {str(run.get("training.select_by") or "accuracy") for run in results.settings.values()}
    scores = results.rounds.get("score")
    logged = scores is not None and scores.notna().any()
    # The rounds have a column for accuracy; the loss is a metric of selection that no figure shows as one.
    if not logged or len(names) != 1 or names <= {"accuracy", "loss"}:
        return Validated("accuracy", "Validation accuracy (%)", 100)
    metric: Metric = build("metric", names.pop())
    title = metric.title if metric.title.isupper() else metric.title[:1].lower() + metric.title[1:]
    if metric.percent:
        return Validated("score", f"Validation {title} (%)", 100)
    return Validated("score", f"Validation {title}", 1)


def headline(results: Results) -> pd.DataFrame:
    """Return the scores of the headline metric, times 100 if it is shown in percent."""
    if results.scores.empty:
        return results.scores.reindex(columns=[*_SCORES, "metric"])
    scores = results.scores[results.scores["metric"] == results.headline.name]
    if results.headline.percent:
        scores = scores.assign(value=100 * scores["value"])
    return scores


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
    return results.headline.title + " (%)" * results.headline.percent


def sites_of(results: Results, table: pd.DataFrame) -> list[str]:
    """Return the sites that a table has, in the order of the study, external ones first."""
    there = set(table["site"])
    return [site for site in dict.fromkeys((*results.external, *results.internal)) if site in there]


def inside(results: Results) -> tuple[str, ...]:
    """Return the internal sites that have test samples in some run, and those that no run names."""
    trained, tested = set[str](), set[str]()
    for run in results.settings.values():
        if "partition.split.test" in run:
            trained |= set(run["partition.internal"])
        if run.get("partition.split.test", 0) > 0:
            tested |= set(run["partition.internal"])
    return tuple(site for site in results.internal if site not in trained - tested)


def over_sites(scores: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """Return the mean over sites, each counted once, for each value of `by` and each seed."""
    # A site may have a row for each of several partitions: it counts once all the same.
    sites = scores.groupby([*by, "seed", "site"], sort=False)["value"].mean()
    return sites.groupby(level=[*by, "seed"], sort=False).mean()


def over_seeds(values: pd.Series) -> pd.DataFrame:
    """Return mean and sample standard deviation over the index level `seed`, without undefined means.

    The columns are mean and std; std is NaN for a single seed.
    """
    levels = [name for name in values.index.names if name != "seed"]
    return values.groupby(level=levels, sort=False).agg(["mean", "std"]).dropna(subset=["mean"])


def mean_and_std(values: pd.Series) -> dict[Any, Spot]:
    """Return mean and standard deviation over seeds by key, a tuple if the index has several levels besides `seed`."""
    table = over_seeds(values)
    pairs = zip(table["mean"].tolist(), table["std"].tolist(), strict=True)
    return dict(zip(table.index.tolist(), pairs, strict=True))


def centres(scores: pd.DataFrame) -> dict[str, str]:
    """Return the shown name of each inference's centre: the options that a sweep varies around.

    These are the inference's default options if they were predicted, and otherwise the first that the study names.
    """
    names: dict[str, str] = {}
    for name, rows in scores.groupby("inference", sort=False):
        defaults = _defaults(str(name))
        options = rows[list(OPTIONS)].astype(object)
        usual = [value == defaults for value in options.where(options.notna(), None).itertuples(index=False, name=None)]
        first = usual.index(True) if any(usual) else 0
        names[str(name)] = str(rows["shown"].iloc[first])
    return names


def _defaults(inference: str) -> tuple[Any, ...]:
    """Return the default OPTIONS of an inference by its name in scores, such as `tsmobn(affine=False)`."""
    plugin = find("inference", inference.partition("(")[0])
    defaults = {name: field.default for name, field in plugin.model_fields.items()} if plugin else {}
    return tuple(defaults.get(name) for name in OPTIONS)


def client_of(inference: str, sites: Iterable[str]) -> str | None:
    """Return the client whose own tensors an inference tests at all sites: amazon for `source(client=amazon)`."""
    settings = inference.partition("(")[2].removesuffix(")")
    # A name may contain a comma, and another client's name may be its beginning: the longest that fits is meant.
    return max((site for site in sites if f"client={site}," in f"{settings},"), key=len, default=None)


def by_run(rounds: pd.DataFrame, column: str, points: int = 150) -> pd.DataFrame:
    """Return the mean over clients: a row for each round, a column for each run.

    Of a long history, about `points` rounds at equal distances are returned.
    """
    table = rounds.pivot_table(index="round", columns="run", values=column, aggfunc="mean")
    return table.iloc[:: max(1, -(-len(table) // points))]


def by_condition(rounds: pd.DataFrame, column: str, points: int = 150) -> dict[str, pd.DataFrame]:
    """Return the table of `by_run` of each condition that has any value."""
    tables = {str(name): by_run(part, column, points) for name, part in rounds.groupby("condition", sort=False)}
    return {name: table for name, table in tables.items() if table.size}


def shared_part(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rounds up to the end of the shortest run, without rounds in which no run has a value."""
    # Rounds missing at the end of each run: in a column turned upside down, the place of its first value.
    ends = runs.notna().to_numpy()[::-1].argmax(axis=0)
    return runs.iloc[: len(runs) - int(ends.max())].dropna(how="all")


def by_line(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return rounds whose conditions are those of lines: where partitions train on the same sites, one for each."""
    if rounds.empty:
        return rounds
    clients = rounds[rounds["split"] == "train"].groupby("held_out")["site"].agg(frozenset)
    return by_partition(rounds) if clients.duplicated().any() else rounds


def exchanged(rounds: pd.DataFrame) -> pd.Series:
    """Return the bytes that all clients have received and sent by the end of each round, mean over runs."""
    trained = rounds[rounds["split"] == "train"]
    # min_count leaves traffic that was not recorded undefined, where a plain sum would say 0.
    floats = trained.reindex(columns=_MOVED).sum(axis=1, min_count=1)
    table = (FLOAT_BYTES * floats).groupby([trained["round"], trained["run"]]).sum(min_count=1).unstack("run")
    return table.cumsum().mean(axis=1)


def curves(
    rounds: pd.DataFrame, split: str, factors: Mapping[str, float], by: str | list[str] = "condition"
) -> dict[Any, pd.DataFrame]:
    """Return columns of a split by round, means over clients and then runs, for each value of `by` that has any.

    A curve ends with its first run. Its columns are those of `factors`, each times its factor, and `bytes`: what all
    clients have received and sent by the end of the round, mean over runs.
    """
    import pandas as pd

    found = {}
    for key, part in rounds.groupby(by, sort=False):
        tables = {column: by_run(part[part["split"] == split], column) for column in factors}
        # A column without any value is missing in the table of runs, and is NaN in the curve.
        means = {column: shared_part(runs).mean(axis=1) for column, runs in tables.items() if len(runs)}
        curve = pd.DataFrame(means).reindex(columns=list(factors)).mul(pd.Series(factors))
        if len(curve):
            found[key] = curve.assign(bytes=exchanged(part).reindex(curve.index))
    return found


def sends(curve: pd.DataFrame) -> bool:
    """Return whether a curve exchanges anything that was counted."""
    return bool(curve["bytes"].max() > 0)


def traffic(curves: Mapping[Any, pd.DataFrame], *names: str) -> tuple[pd.DataFrame, str]:
    """Return curves by round as one table, whose columns `names` hold their keys, and the unit of its traffic.

    The column `exchanged` is the traffic in that unit; NaN for a curve that exchanges nothing that was counted.
    """
    import pandas as pd

    size, unit = unit_of(max(float(curve["bytes"].fillna(0).max()) for curve in curves.values()))
    moved = {key: curve["bytes"] / size if sends(curve) else float("nan") for key, curve in curves.items()}
    table = pd.concat(
        {key: curve.assign(exchanged=moved[key]) for key, curve in curves.items()}, names=[*names, "round"]
    )
    return table.reset_index(), unit


def traffic_axis(axes: Any, x: str, unit: str) -> None:
    """Label the x axis of a panel over the column `x` of `traffic`, round or exchanged."""
    if x == "round":
        round_axis(axes)
    else:
        axes.set(xlabel=f"Exchanged so far ({unit})", xlim=(0, None))


def unit_of(most: float) -> tuple[float, str]:
    """Return the unit in which `most` bytes read best: its size and its name."""
    for name, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if most >= size:
            return size, name
    return 1e3, "kB"
