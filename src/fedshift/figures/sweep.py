"""The effect of numeric settings of runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from ._base import Figure, Results
from ._canvas import WIDTH, style
from ._series import ROLES, Spot, axis, centres, client_of, headline, mean_and_std, over_sites
from ._varied import SITES, Settings, followers, swept

if TYPE_CHECKING:
    import pandas as pd


class _Line(NamedTuple):
    """Runs on one line of a panel, with one inference: means over seeds by role and value of the setting."""

    label: str
    points: dict[str, dict[Any, Spot]]


class Sweep(Figure):
    """The headline metric against each numeric setting that the study varies, with all others equal."""

    title = "Settings varied"
    section = "comparison"
    most: int = Field(
        12, ge=1, description="the most lines of a panel; if there would be more, only the first inference is drawn"
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
        roles = [role for role in ROLES if any(role in line.points for line in every)]
        labels = list(dict.fromkeys(line.label for line in every))
        columns = min(3, len(panels))
        rows = -(-len(panels) // columns) * len(roles)

        def paint(figure: Any) -> None:
            grid = figure.subplots(rows, columns, squeeze=False)
            for axes in grid.flat:
                axes.set_visible(False)
            for n, (key, panel) in enumerate(panels.items()):
                for k, role in enumerate(roles):
                    axes = grid[n // columns * len(roles) + k, n % columns]
                    axes.set_visible(True)
                    axes.set_title(leaf(key))
                    if n % columns == 0:
                        axes.set_ylabel(f"{axis(results)}, {role}")
                    _panel(axes, panel, labels, role, key)

        return self.picture(results, (WIDTH, 0.2 + 2.5 * rows), paint, labels)


def _panel(axes: Any, panel: list[_Line], labels: list[str], role: str, key: str) -> None:
    values = ordered({x for line in panel for points in line.points.values() for x in points})
    for line in panel:
        n = labels.index(line.label)
        points = line.points.get(role, {})
        xs = [x for x in values if x in points]
        means = [points[x][0] for x in xs]
        stds = [points[x][1] for x in xs]
        # Lines are shifted sideways a little, so that whiskers at one value do not hide each other.
        places = [values.index(x) + 0.04 * (n % 5 - 2) for x in xs]
        whiskers = {"marker": "o", "markersize": 4, "linewidth": 1.5, "elinewidth": 0.8, "capsize": 2}
        axes.errorbar(places, means, stds, label=line.label, **whiskers, **style(n))
    axes.set_xticks(range(len(values)), [shown(x, key) for x in values])
    axes.set_xlim(-0.4, len(values) - 0.6)


def lines(results: Results, most: int = 12) -> dict[str, list[_Line]]:
    """Return the lines of each panel, by the setting that varies in it."""
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
    """Return mean and spread over seeds of the mean over sites, by role and by the value that each run has."""
    # Grouping drops None, which is a value here (no limit): values are grouped by their place.
    places = ordered({values[run] for run in scores["run"]})
    placed = scores.assign(x=[places.index(values[run]) for run in scores["run"]])
    points: dict[str, dict[Any, Spot]] = {}
    for (role, place), spot in mean_and_std(over_sites(placed, ["role", "x"])).items():
        points.setdefault(role, {})[places[place]] = spot
    return points


def _shown(results: Results, most: int) -> tuple[list[str], bool]:
    """Return the inferences that are drawn, each with one set of options, and whether others are left out."""
    scores = headline(results)
    of_clients = {i for i in scores["inference"] if client_of(i, results.internal)}
    scores = scores[~scores["inference"].isin(of_clients)]
    every = list(centres(scores).values())
    count = max((len(groups) for groups in swept(results.settings).values()), default=0)
    if count * len(every) > most:
        every = every[:1]
    return every, scores["shown"].nunique() > len(every)


def _labels(groups: list[list[str]], key: str, settings: Settings, runs: pd.DataFrame) -> list[str]:
    """Return the label of each line: its condition, and settings that distinguish it from lines of that name."""
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
    """Return how many values a setting has among runs."""
    return len({str(settings[run].get(name)) for run in runs})


def _without(title: str, key: str) -> str:
    """Return the title of a condition without the settings that vary along its line."""
    title = re.sub(r" \[.*\]", "", title)
    if key.startswith("algorithm."):
        title = re.sub(rf"(?<=[( ]){leaf(key)}=[^,)]*(, )?", "", title, count=1)
    return title.replace(", )", ")").replace("()", "")


def leaf(key: str) -> str:
    """Return a setting without the part of the study that it belongs to."""
    return re.sub(r"^(training|algorithm|data\.dataset|partition)\.", "", key)


def shown(value: Any, key: str) -> str:
    """Return the label of a value on an axis. A limit of None means all images or classes."""
    if value is None:
        return "all" if ".limit." in key or key.endswith("classes_per_client") else "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def ordered(values: Iterable[Any]) -> list[Any]:
    """Return numbers in rising order, then None."""
    return sorted(values, key=lambda v: (v is None, v or 0))
