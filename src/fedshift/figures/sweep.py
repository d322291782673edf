"""The headline metric against each numeric setting that varies between runs of a study, with all others equal."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from ._base import Figure, Results
from ._canvas import short, styles
from ._series import ROLES, Spot, axis, centres, client_of, headline, mean_and_std, over_sites

if TYPE_CHECKING:
    import pandas as pd


Settings = Mapping[str, Mapping[str, Any]]
"""Settings of each run: the id of a run maps to its settings by dotted path, such as `training.lr`."""
Table = Mapping[str, Mapping[str, Hashable]]
"""Values of each setting: the dotted path of a setting maps to its value in each run."""
FAMILY = ("algorithm.name", "bn", "addon", "addon.name", "model.name")
"""Settings in which runs must agree to lie on one line."""
SECOND = ("training.rounds", "training.lr", "partition.limit.val")
"""Settings that are usually adapted to another one. Where two settings vary together, one in this list counts as the
adapted one."""
SITES = ("partition.internal", "partition.external", "partition.held_out")
_ABSENT = "<absent>"


class _Line(NamedTuple):
    """One line of a panel: runs that differ in the panel's setting alone, under one inference (prediction method).

    Attributes
    ----------
    label : label of the line in the legend
    points : mean and standard deviation over seeds, by role of the sites and by value of the setting
    """

    label: str
    points: dict[str, dict[Any, Spot]]


class Sweep(Figure):
    """The headline metric against each numeric setting that the study varies, with all others equal."""

    title = "Settings varied"
    section = "comparison"
    most: int = Field(
        12,
        ge=1,
        description="largest number of lines of a panel; if there would be more, only the first inference is drawn",
    )

    def caption(self, results: Results) -> str:
        panels = lines(results, self.most)
        if not panels:
            return "No runs differ in one numeric setting alone."
        points = [spots for panel in panels.values() for line in panel for spots in line.points.values()]
        whiskers = any(std == std for spots in points for _, std in spots.values())
        drawn = f"{results.headline.title}, mean over sites and seeds"
        if whiskers:
            drawn += " (whiskers: standard deviation over seeds)"
        words = [f"{drawn}, against each setting, all others equal; values are spaced evenly."]
        for key, names in followers(results.settings).items():
            if key in panels and names:
                words.append(f"With {leaf(key)} varies {', '.join(map(leaf, names))}.")
        inferences, more = _shown(results, self.most)
        if more:
            words.append(f"Drawn: {', '.join(inferences)}; the tables have all inferences.")
        return " ".join(words)

    def draw(self, results: Results) -> str:
        panels = lines(results, self.most)
        if not panels:
            return self.nothing(results)
        every = [line for panel in panels.values() for line in panel]
        looks = styles(line.label for line in every)
        roles = [role for role in ROLES if any(role in line.points for line in every)]
        titles = {(key, role): f"{short(leaf(key), 20)}, {role}" for key in panels for role in roles}

        def panel(axes: Any, place: tuple[str, str]) -> None:
            key, role = place
            values = ordered({x for line in panels[key] for points in line.points.values() for x in points})
            for line in panels[key]:
                points = line.points.get(role, {})
                xs = [x for x in values if x in points]
                means, stds = [points[x][0] for x in xs], [points[x][1] for x in xs]
                # Lines are shifted sideways a little, so that whiskers at one value do not hide each other.
                shift = 0.04 * (list(looks).index(line.label) % 5 - 2)
                whiskers = {"marker": "o", "markersize": 4, "linewidth": 1.5, "elinewidth": 0.8, "capsize": 2}
                places = [values.index(x) + shift for x in xs]
                axes.errorbar(places, means, stds, label=line.label, **whiskers, **looks[line.label])
            axes.set_xticks(range(len(values)), [shown(x, key) for x in values])
            axes.set_xlim(-0.4, len(values) - 0.6)

        columns = 3
        if len(roles) == 2:  # which then stand side by side
            columns = 2 if len(titles) <= 6 else 4
        size, names = (7.8 / min(columns, len(titles)), 2.5), ("", axis(results))
        return self.panels(results, titles, panel, looks, columns, size, names)


def lines(results: Results, most: int = 12) -> dict[str, list[_Line]]:
    """Return the lines of each panel, by the dotted path of the setting that varies in the panel.

    If a panel would have more than `most` lines, only the first inference (prediction method) is drawn.
    """
    scores = headline(results).dropna(subset=["value"])
    runs = scores.drop_duplicates("run").set_index("run")
    settings = {run: results.settings[run] for run in runs.index if run in results.settings}
    inferences, _ = _shown(results, most)
    panels: dict[str, list[_Line]] = {}
    for key, groups in swept(settings).items():
        values = {run: settings[run].get(key) for run in settings}
        for members, label in zip(groups, _labels(groups, key, settings, runs), strict=True):
            for inference in inferences:
                part = scores[scores["run"].isin(members) & (scores["shown"] == inference)]
                if not part.empty:
                    name = f"{label}, {inference}" if len(inferences) > 1 else label
                    panels.setdefault(key, []).append(_Line(name, _points(part, values)))
    return panels


def _points(scores: pd.DataFrame, values: Mapping[str, Any]) -> dict[str, dict[Any, Spot]]:
    """Return the headline metric by role of the sites and value of a setting: mean and deviation over seeds.

    `scores` are the scores of the runs on one line, and `values` maps each run to its value of the setting. The scores
    of a seed are first averaged over sites.
    """
    # Grouping drops None, which is a value here (no limit): values are grouped by their place.
    places = ordered({values[run] for run in scores["run"]})
    placed = scores.assign(x=[places.index(values[run]) for run in scores["run"]])
    points: dict[str, dict[Any, Spot]] = {}
    for (role, place), spot in mean_and_std(over_sites(placed, ["role", "x"])).items():
        points.setdefault(role, {})[places[place]] = spot
    return points


def _shown(results: Results, most: int) -> tuple[list[str], bool]:
    """Return the titles of the inferences that are drawn, and whether scores of other inferences are left out.

    An inference (prediction method) is drawn with one set of options, the centre of its sweep. If a panel would have
    more than `most` lines, only the first inference is drawn.
    """
    scores = headline(results)
    of_clients = {i for i in scores["inference"] if client_of(i, results.internal)}
    scores = scores[~scores["inference"].isin(of_clients)]
    every = list(centres(scores).values())
    if max(map(len, swept(results.settings).values()), default=0) * len(every) > most:
        every = every[:1]
    return every, scores["shown"].nunique() > len(every)


def _labels(groups: list[list[str]], key: str, settings: Settings, runs: pd.DataFrame) -> list[str]:
    """Return the label of each line: its algorithm and policy, with settings in which it differs from its namesakes.

    `groups` are the runs of each line, `key` is the setting that varies along lines, and `runs` has the row of scores
    of each run.
    """
    plain = [_without(runs["condition"][members[0]], key) for members in groups]
    follow = followers(settings)
    labels = []
    for members, label in zip(groups, plain, strict=True):
        first = members[0]
        namesakes = [group[0] for group, name in zip(groups, plain, strict=True) if name == label]
        names = [name for name in settings[first] if name not in ("seed", *SITES)]
        fixed = [name for name in names if _count(settings, members, name) == 1]
        telling = [name for name in fixed if _count(settings, namesakes, name) > 1]
        adapted = {follower for name in telling for follower in follow.get(name, ())}
        words = [f"{leaf(name)} {shown(settings[first][name], name)}" for name in telling if name not in adapted]
        if runs["held_out"][namesakes].nunique() > 1:
            words.append(f"held out {runs['held_out'][first]}")
        labels.append(", ".join([label, *words]))
    return labels


def _count(settings: Settings, runs: list[str], name: str) -> int:
    """Return the number of different values of the setting `name` among `runs`."""
    return len({str(settings[run].get(name)) for run in runs})


def _without(title: str, key: str) -> str:
    """Return the title of an algorithm without settings in brackets, and without its own setting `key`."""
    title = re.sub(r" \[.*\]", "", title)
    if key.startswith("algorithm."):
        title = re.sub(rf"(?<=[( ]){leaf(key)}=[^,)]*(, )?", "", title, count=1)
    return title.replace(", )", ")").replace("()", "")


def leaf(key: str) -> str:
    """Return the dotted path of a setting without its first part: lr for `training.lr`.

    Only the parts training, algorithm, data.dataset and partition are removed.
    """
    return re.sub(r"^(training|algorithm|data\.dataset|partition)\.", "", key)


def shown(value: Any, key: str) -> str:
    """Return the label of a setting's value on an axis; `key` is the path of the setting.

    None is "all" for a limit on images or classes, and "none" for other settings.
    """
    if value is None:
        return "all" if ".limit." in key or key.endswith("classes_per_client") else "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def ordered(values: Iterable[Any]) -> list[Any]:
    """Return the values of a setting in ascending order, with None last."""
    return sorted(values, key=lambda v: (v is None, v or 0))


def swept(settings: Settings) -> dict[str, list[list[str]]]:
    """Return, for each numeric setting that varies, the groups of runs that differ in this setting alone.

    Runs of a group may also differ in their seed, and in settings that are determined by this one, such as a learning
    rate that is adapted to the batch size.
    """
    varied: dict[str, list[list[str]]] = {}
    for family in _families(settings):
        for key in _leading(family):
            # What follows the setting may differ along a line; everything else is the same on it.
            fixed = [name for name in family if name != key and not _follows(family, name, key)]
            groups: dict[tuple[Hashable, ...], list[str]] = defaultdict(list)
            for run in family[key]:
                groups[tuple(family[name][run] for name in fixed)].append(run)
            for runs in groups.values():
                if len({family[key][run] for run in runs}) > 1:
                    varied.setdefault(key, []).append(runs)
    return varied


def followers(settings: Settings) -> dict[str, list[str]]:
    """Return, for each numeric setting that varies, the other numeric settings whose values it determines.

    It suffices that it does so in one family of runs (see `_families`).
    """
    following: dict[str, list[str]] = defaultdict(list)
    for family in _families(settings):
        for key in _leading(family):
            names = (name for name in family if name != key and _is_numeric(family[name]))
            following[key] += [name for name in names if _follows(family, name, key)]
    return {key: list(dict.fromkeys(names)) for key, names in following.items()}


def _families(settings: Settings) -> list[Table]:
    """Return a table for each family of runs: the settings that vary in it, with their value in each run.

    A family has one algorithm, BN policy, add-on and model. The seed is left out.
    """
    families: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for run, values in settings.items():
        families[tuple(values.get(key) for key in FAMILY)][run] = values
    return [_varying(family) for family in families.values()]


def _varying(family: Settings) -> Table:
    """Return the settings of which the runs of a family have several values, each with its value in every run.

    The seed is left out. A value that cannot be hashed is turned into text, and a missing one is _ABSENT.
    """
    names = dict.fromkeys(name for values in family.values() for name in values if name != "seed")
    table: dict[str, dict[str, Hashable]] = {}
    for name in names:
        given = {run: values.get(name, _ABSENT) for run, values in family.items()}
        table[name] = {run: value if isinstance(value, Hashable) else str(value) for run, value in given.items()}
    return {name: values for name, values in table.items() if len(set(values.values())) > 1}


def _is_numeric(values: Mapping[str, Hashable]) -> bool:
    """Return whether the values of a setting, by run, are all numbers or None. Booleans are no numbers here."""
    return all(v is None or (isinstance(v, int | float) and not isinstance(v, bool)) for v in values.values())


def _follows(table: Table, name: str, leader: str) -> bool:
    """Return whether the value of `leader` determines the value of the setting `name` in all runs of `table`.

    Only numeric settings and the settings SITES can follow another one: they may have been adapted to it.
    """
    # As many pairs as values of the leader: each of these values goes with one value of the setting.
    pairs = set(zip(table[name].values(), table[leader].values(), strict=True))
    return (name in SITES or _is_numeric(table[name])) and len(pairs) == len(set(table[leader].values()))


def _leading(table: Table) -> list[str]:
    """Return the numeric settings that vary; of those that determine each other, the first one, with SECOND last.

    A setting that is coarser than another one needs no rule here: all runs with equal values of the finer one have
    equal values of the coarser one, so that `swept` finds no group for it.
    """
    names = [name for name, values in table.items() if _is_numeric(values) and not name.endswith(".seed")]
    names.sort(key=lambda name: name in SECOND)

    def together(name: str, earlier: str) -> bool:
        return _follows(table, name, earlier) and _follows(table, earlier, name)

    return [name for n, name in enumerate(names) if not any(together(name, earlier) for earlier in names[:n])]
