"""Means over sites, runs and seeds that several figures of a study draw."""

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
"""Columns of scores.csv that hold options of an inference (prediction method); empty where an inference lacks the
option."""
ROLES = ("internal", "external")
OVER = {"round": "By round", "exchanged": "By traffic"}
"""Titles of two panels, by the column of the table of `traffic` that is their x axis."""
SILENT = "; conditions that exchange nothing are left out there"
"""Text that captions add where a figure has an axis of traffic and some algorithms exchange nothing."""
Spot = tuple[float, float]
"""Mean and standard deviation over seeds; the standard deviation is NaN for a single seed."""
_MOVED = ["floats_down", "floats_up"]
_SCORES = ("run", "condition", "held_out", "site", "role", "inference", "shown", *OPTIONS, "seed", "value", "n")


class Validated(NamedTuple):
    """The metric by which rounds were validated.

    Attributes
    ----------
    column : its column in rounds.parquet
    title : label of an axis that shows it
    factor : factor on its values: 100 where it is shown in percent, else 1
    """

    column: str
    title: str
    factor: float


def validated_by(results: Results) -> Validated:
    """Return the metric by which the runs select a round, if it is logged and the same for all; accuracy otherwise."""
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
    """Return the rows of `results.scores` with the headline metric, whose values are times 100 if shown in percent."""
    if results.scores.empty:
        return results.scores.reindex(columns=[*_SCORES, "metric"])
    scores = results.scores[results.scores["metric"] == results.headline.name]
    if results.headline.percent:
        scores = scores.assign(value=100 * scores["value"])
    return scores


def by_partition(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose column `condition` names the held-out partition too, if there are several partitions.

    A partition is a split of the study's sites into internal and external ones; the column `held_out` holds its name. A
    condition is an algorithm with its batch-norm policy and settings.
    """
    if len(table) == 0 or table["held_out"].nunique() < 2:
        return table
    return table.assign(condition=table["condition"] + ", held out " + table["held_out"])


def apart(scores: pd.DataFrame) -> pd.DataFrame:
    """Return scores whose column `condition` names the partition, unless each external site has one partition only.

    A partition is a split of the study's sites into internal and external ones. With leave-one-site-out partitions, a
    condition (algorithm x batch norm policy x settings) thus keeps one title, and its sites come from different
    partitions.
    """
    outside = scores[scores["role"] == "external"].groupby("site")["held_out"].nunique()
    return scores if len(outside) and outside.max() == 1 else by_partition(scores)


def axis(results: Results) -> str:
    """Return the label of an axis that shows the headline metric: its title, with (%) where it is shown in percent."""
    return results.headline.title + " (%)" * results.headline.percent


def sites_of(results: Results, table: pd.DataFrame) -> list[str]:
    """Return the names of the sites that occur in `table`, in the order of the study, external sites first."""
    there = set(table["site"])
    return [site for site in dict.fromkeys((*results.external, *results.internal)) if site in there]


def inside(results: Results) -> tuple[str, ...]:
    """Return the internal sites that can have test scores.

    A site is left out if it is internal in some runs, of which none keeps test samples of internal sites.
    """
    trained, tested = set[str](), set[str]()
    for run in results.settings.values():
        if "partition.split.test" in run:
            trained |= set(run["partition.internal"])
        if run.get("partition.split.test", 0) > 0:
            tested |= set(run["partition.internal"])
    return tuple(site for site in results.internal if site not in trained - tested)


def over_sites(scores: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """Return the mean value over sites for each combination of the columns `by` and each seed.

    Each site counts once, also where several partitions test it. The index levels are `by` and seed.
    """
    # A site may have a row for each of several partitions: it counts once all the same.
    sites = scores.groupby([*by, "seed", "site"], sort=False)["value"].mean()
    return sites.groupby(level=[*by, "seed"], sort=False).mean()


def over_seeds(values: pd.Series) -> pd.DataFrame:
    """Return the mean and sample standard deviation over the index level `seed` of values, as columns mean and std.

    Rows with an undefined mean are dropped; std is NaN for a single seed.
    """
    levels = [name for name in values.index.names if name != "seed"]
    return values.groupby(level=levels, sort=False).agg(["mean", "std"]).dropna(subset=["mean"])


def mean_and_std(values: pd.Series) -> dict[Any, Spot]:
    """Return the mean and standard deviation over seeds by key: the value of the index without its level `seed`.

    With several further levels the key is a tuple.
    """
    table = over_seeds(values)
    pairs = zip(table["mean"].tolist(), table["std"].tolist(), strict=True)
    return dict(zip(table.index.tolist(), pairs, strict=True))


def centres(scores: pd.DataFrame) -> dict[str, str]:
    """Return, for each inference in `scores`, the title of the variant that is the centre of a sweep over its options.

    An inference is a prediction method. Its centre is the variant with the default options if it was predicted, and
    otherwise the first that the study names.
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
    """Return the default values of OPTIONS of an inference (prediction method), given its name in scores.

    The name has options, such as `tsmobn(affine=False)`. None stands for an option that the inference lacks.
    """
    plugin = find("inference", inference.partition("(")[0])
    defaults = {name: field.default for name, field in plugin.model_fields.items()} if plugin else {}
    return tuple(defaults.get(name) for name in OPTIONS)


def client_of(inference: str, sites: Iterable[str]) -> str | None:
    """Return the client whose own tensors an inference uses at every site: amazon for `source(client=amazon)`.

    An inference is a prediction method. Return None if it names none of the `sites` as its client.
    """
    settings = inference.partition("(")[2].removesuffix(")")
    # A name may contain a comma, and another client's name may be its beginning: the longest that fits is meant.
    return max((site for site in sites if f"client={site}," in f"{settings},"), key=len, default=None)


def by_run(rounds: pd.DataFrame, column: str, points: int = 150) -> pd.DataFrame:
    """Return the mean of `column` over clients, as a table with a row for each round and a column for each run.

    Of more than `points` rounds, every second, third, ... is returned, so that at most `points` remain.
    """
    table = rounds.pivot_table(index="round", columns="run", values=column, aggfunc="mean")
    return table.iloc[:: max(1, -(-len(table) // points))]


def by_condition(rounds: pd.DataFrame, column: str, points: int = 150) -> dict[str, pd.DataFrame]:
    """Return the mean of `column` over clients by condition: for each a table of rounds by runs, as `by_run` makes it.

    A condition is an algorithm with its batch-norm policy and settings. Conditions without any value are left out.
    """
    tables = {str(name): by_run(part, column, points) for name, part in rounds.groupby("condition", sort=False)}
    return {name: table for name, table in tables.items() if table.size}


def shared_part(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rounds until the shortest run ends, of a table with a row for each round and a column for each run.

    Rounds in which no run has a value are left out.
    """
    # Rounds missing at the end of each run: in a column turned upside down, the place of its first value.
    ends = runs.notna().to_numpy()[::-1].argmax(axis=0)
    return runs.iloc[: len(runs) - int(ends.max())].dropna(how="all")


def by_line(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return `rounds` whose column `condition` names the partition, if several partitions train at the same sites.

    A figure draws a line for each value of this column: for each condition (algorithm x batch norm policy x settings)
    and partition, or for each condition over all partitions.
    """
    if rounds.empty:
        return rounds
    clients = rounds[rounds["split"] == "train"].groupby("held_out")["site"].agg(frozenset)
    return by_partition(rounds) if clients.duplicated().any() else rounds


def exchanged(rounds: pd.DataFrame) -> pd.Series:
    """Return the bytes that all clients together have received and sent up to each round, mean over runs.

    NaN where traffic was not recorded.
    """
    trained = rounds[rounds["split"] == "train"]
    # min_count leaves traffic that was not recorded undefined, where a plain sum would say 0.
    floats = trained.reindex(columns=_MOVED).sum(axis=1, min_count=1)
    table = (FLOAT_BYTES * floats).groupby([trained["round"], trained["run"]]).sum(min_count=1).unstack("run")
    return table.cumsum().mean(axis=1)


def curves(
    rounds: pd.DataFrame, split: str, factors: Mapping[str, float], by: str | list[str] = "condition"
) -> dict[Any, pd.DataFrame]:
    """Return the history of columns of rounds.parquet, mean over clients and then over runs, for each value of `by`.

    `split` selects rows: train, val, test or averaged. `factors` maps each column to a factor on its values. Each table
    has a row for each round until its shortest run ends, and a further column `bytes`: what all clients together have
    received and sent so far, mean over runs. Values of `by` without any data are left out.
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
    """Return whether a curve of `curves` has any traffic between clients and server; False if none was recorded."""
    return bool(curve["bytes"].max() > 0)


def traffic(curves: Mapping[Any, pd.DataFrame], *names: str) -> tuple[pd.DataFrame, str]:
    """Return the curves of `curves` as one table, and the unit of its traffic, such as MB.

    `names` are the names of the columns that hold the keys of `curves`. The column `exchanged` is the traffic so far in
    this unit; NaN for a curve that exchanges nothing or whose traffic was not recorded.
    """
    import pandas as pd

    size, unit = unit_of(max(float(curve["bytes"].fillna(0).max()) for curve in curves.values()))
    moved = {key: curve["bytes"] / size if sends(curve) else float("nan") for key, curve in curves.items()}
    table = pd.concat(
        {key: curve.assign(exchanged=moved[key]) for key, curve in curves.items()}, names=[*names, "round"]
    )
    return table.reset_index(), unit


def traffic_axis(axes: Any, x: str, unit: str) -> None:
    """Label the x axis of a panel that shows the column `x` of `traffic`: round, or exchanged, in `unit`."""
    if x == "round":
        round_axis(axes)
    else:
        axes.set(xlabel=f"Exchanged so far ({unit})", xlim=(0, None))


def unit_of(most: float) -> tuple[float, str]:
    """Return the size in bytes and the name of the unit for amounts of up to `most` bytes: TB, GB, MB or kB."""
    for name, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if most >= size:
            return size, name
    return 1e3, "kB"
