"""The effect of numeric settings of runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import Field

from ._base import Figure, Results
from ._canvas import WIDTH, legend, legend_height, note, style, svg
from ._series import Spot, axis, centres, client_of, headline, mean_and_std, over_sites
from ._varied import SITES, Settings, followers, swept

_NAMED = ["run", "condition", "held_out"]


class Line(NamedTuple):
    """Runs on one line of a panel, with one inference: means over seeds by role and value of the setting."""

    label: str
    points: dict[str, dict[Any, Spot]]


class Sweep(Figure):
    """The headline metric against each numeric setting that the study varies, with all others equal."""

    title = "Settings varied"
    most: int = Field(
        12, ge=1, description="the most lines of a panel; if there would be more, only the first inference is drawn"
    )

    def caption(self, results: Results) -> str:
        panels = lines(results, self.most)
        if not panels:
            return "No runs differ in one numeric setting alone."
        points = [spots for panel in panels.values() for line in panel for spots in line.points.values()]
        whiskers = any(std == std for spots in points for _, std in spots.values())
        spread = " (whiskers: standard deviation over seeds)" if whiskers else ""
        words = [
            f"{results.headline.title}, mean over sites and seeds{spread}, against each setting, all others equal; "
            "values are spaced evenly."
        ]
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
            return note(self.name, f"{self.title}: {self.caption(results)}")
        roles = [
            r for r in ("internal", "external") if any(r in one.points for panel in panels.values() for one in panel)
        ]
        labels = list(dict.fromkeys(one.label for panel in panels.values() for one in panel))
        across = min(3, len(panels))
        rows = -(-len(panels) // across) * len(roles)

        def paint(figure: Any) -> None:
            grid = figure.subplots(rows, across, squeeze=False)
            for axes in grid.flat:
                axes.set_visible(False)
            for n, (key, panel) in enumerate(panels.items()):
                for k, role in enumerate(roles):
                    axes = grid[n // across * len(roles) + k, n % across]
                    axes.set_visible(True)
                    axes.set_title(leaf(key))
                    if n % across == 0:
                        axes.set_ylabel(f"{axis(results)}, {role}")
                    _panel(axes, [(one, labels.index(one.label)) for one in panel], role, key)
            legend(figure)

        size = (WIDTH, 0.2 + 2.5 * rows + legend_height(labels, WIDTH))
        return svg(self.name, f"{self.title}: {self.caption(results)}", size, paint)


def _panel(axes: Any, panel: list[tuple[Line, int]], role: str, key: str) -> None:
    values = ordered({x for one, _ in panel for points in one.points.values() for x in points})
    for one, n in panel:
        points = one.points.get(role, {})
        xs = [x for x in values if x in points]
        means, stds = [points[x][0] for x in xs], [points[x][1] for x in xs]
        at = [values.index(x) + 0.04 * (n % 5 - 2) for x in xs]
        axes.errorbar(
            at,
            means,
            stds,
            marker="o",
            markersize=4,
            linewidth=1.5,
            elinewidth=0.8,
            capsize=2,
            label=one.label,
            **style(n),
        )
    axes.set_xticks(range(len(values)), [shown(x, key) for x in values])
    axes.set_xlim(-0.4, len(values) - 0.6)


def lines(results: Results, most: int = 12) -> dict[str, list[Line]]:
    """Return the lines of each panel, by the setting that varies in it."""
    scores = headline(results).dropna(subset=["value"])
    settings = {run: results.settings[run] for run in dict.fromkeys(scores["run"]) if run in results.settings}
    inferences, _ = _shown(results, most)
    titles = {run: (title, out) for run, title, out in zip(*(scores[c] for c in _NAMED), strict=True)}
    panels: dict[str, list[Line]] = {}
    for key, groups in swept(settings).items():
        labels = _labels(groups, key, settings, titles)
        for runs, label in zip(groups, labels, strict=True):
            x = {run: settings[run].get(key) for run in runs}
            values = ordered(set(x.values()))
            chosen = scores[scores["run"].isin(runs)]
            chosen = chosen.assign(x=[values.index(x[run]) for run in chosen["run"]])
            for inference in inferences:
                part = chosen[chosen["shown"] == inference]
                if part.empty:
                    continue
                points: dict[str, dict[Any, Spot]] = {}
                for (role, at), spot in mean_and_std(over_sites(part, ["role", "x"])).items():
                    points.setdefault(role, {})[values[at]] = spot
                name = f"{label}, {inference}" if len(inferences) > 1 else label
                panels.setdefault(key, []).append(Line(name, points))
    return panels


def _shown(results: Results, most: int) -> tuple[list[str], bool]:
    """Return the inferences that are drawn, each with one set of options, and whether others are left out."""
    scores = headline(results)
    of_clients = {i for i in scores["inference"] if client_of(i, results.internal)}
    scores = scores[~scores["inference"].isin(of_clients)]
    every = list(centres(scores).values())
    count = max((len(groups) for groups in swept(results.settings).values()), default=0)
    few = every[:1] if count * len(every) > most else every
    return few, scores["shown"].nunique() > len(few)


def _labels(groups: list[list[str]], key: str, settings: Settings, titles: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the label of each line: its condition, and settings that distinguish it from lines of that name."""
    plain = [_without(titles[runs[0]][0], key) for runs in groups]
    follow = followers(settings)
    out = []
    for runs, label in zip(groups, plain, strict=True):
        same = [g[0] for g, other in zip(groups, plain, strict=True) if other == label]
        values = settings[runs[0]]
        fixed = [
            k for k in values if k not in ("seed", *SITES) and len({str(settings[run].get(k)) for run in runs}) == 1
        ]
        telling = [k for k in fixed if len({str(settings[run].get(k)) for run in same}) > 1]
        second = {k for lead in telling for k in follow.get(lead, ())}
        words = [label, *(f"{leaf(k)} {shown(values[k], k)}" for k in telling if k not in second)]
        if len({titles[run][1] for run in same}) > 1:
            words.append(f"held out {titles[runs[0]][1]}")
        out.append(", ".join(words))
    return out


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
