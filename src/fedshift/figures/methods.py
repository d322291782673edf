"""Conditions side by side at every site: as bars, or as a table if there would be too many bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import Field

from ._base import Figure, Results
from ._canvas import COLOURS, INK, WIDTH, short
from ._series import Spot, apart, axis, centres, client_of, headline, mean_and_std
from ._table import FEW, ROW, Cell, head, table

if TYPE_CHECKING:
    import pandas as pd

UNION = ("union", "union")
NUMBERS = 24
"""The most bars that have their number above them."""
Place = tuple[str, str]
"""Role and site."""


class _Line(NamedTuple):
    """A condition with an inference, and the client whose own tensors are tested at all sites, if any."""

    condition: str
    inference: str
    client: str | None


Drawn = dict[_Line, dict[Place, Spot]]
"""Mean and spread over seeds by line and place."""


class Methods(Figure):
    """The headline metric of each condition at each site: bars with whiskers, or a table of numbers."""

    title = "Methods compared"
    section = "comparison"
    bars: int = Field(48, ge=0, description="a table is drawn if there would be more bars than this")
    across: int = Field(16, ge=2, description="number of sites side by side in a table; further sites are drawn below")

    def caption(self, results: Results) -> str:
        drawn = series(results)
        if not drawn:
            return "There are no scores yet."
        scores = apart(headline(results))
        places = _places(results, drawn)
        bars = self._as_bars(drawn)
        several = scores.groupby("condition")["held_out"].nunique().max() > 1
        averaged = "partitions and seeds" if several else "seeds"
        spread = ""
        if any(std == std for spots in drawn.values() for _, std in spots.values()):
            if bars:
                spread = "; whiskers: standard deviation over seeds"
            elif len(places) <= FEW:
                spread = " ± standard deviation"
        if not bars:
            spread += "; a stronger shade is better at that site, and the best is in bold"
        words = [f"{results.headline.title} on test samples, mean over {averaged}{spread}."]
        if not results.headline.higher_is_better:
            words.append("Lower is better.")
        if any(line.client for line in drawn):
            words.append("A row that names a client tests that client's network, with its own tensors, at every site.")
        outside = [site for role, site in places if role == "external"]
        if not bars and 0 < len(outside) < len(places):
            words.append(f"External sites come last, from {outside[0]} on.")
        if UNION in places:
            words.append("Union: all internal test samples together.")
        if left_out := scores["shown"].nunique() - len(centres(scores)):
            words.append(f"{left_out} further variants of inferences are left out here; the tables have them.")
        return " ".join(words)

    def _as_bars(self, drawn: Drawn) -> bool:
        """Return whether bars can be distinguished and read."""
        conditions = {line.condition for line in drawn}
        inferences = {line.inference for line in drawn}
        few = len(conditions) <= len(COLOURS) and len(inferences) <= 2 and not any(line.client for line in drawn)
        return few and sum(map(len, drawn.values())) <= self.bars

    def draw(self, results: Results) -> str:
        drawn = series(results)
        if not drawn:
            return self.nothing(results)
        places = _places(results, drawn)
        if self._as_bars(drawn):
            labels = [_label(line, drawn) for line in drawn]
            return self.picture(
                results, (WIDTH, 3.1), lambda figure: _bars(figure.subplots(), drawn, places, results), labels
            )
        blocks = [places[k : k + self.across] for k in range(0, len(places), self.across)]
        width = len(blocks[0])
        tops = [head(_names(block), width) for block in blocks]
        heights = [top + ROW * len(_rows(drawn)) for top in tops]

        def paint(figure: Any) -> None:
            grid = figure.subplots(len(blocks), 1, squeeze=False, height_ratios=heights)
            for axes, block, top in zip(grid.flat, blocks, tops, strict=True):
                rows = [(label, cells(line, drawn, block, results) if line else []) for label, line in _rows(drawn)]
                table(axes, rows, _names(block), width, top)

        return self.picture(results, (WIDTH, sum(heights) + 0.1), paint)


def series(results: Results) -> Drawn:
    """Return the mean and spread over seeds of each condition and inference at each place, partitions averaged.

    Where clients' own tensors are tested at every site and the metric is a mean over samples, the accuracy, there is
    also UNION: the internal sites weighted by their test samples.
    """
    import pandas as pd

    scores = apart(headline(results))
    scores = scores[scores["shown"].isin(list(centres(scores).values()))]
    if scores.empty:
        return {}
    of_clients = any(client_of(i, results.internal) for i in scores["inference"].unique())
    if of_clients and results.headline.name == "accuracy":
        scores = pd.concat([scores, _union(scores)], ignore_index=True)
    keys = ["condition", "inference", "shown", "role", "site"]
    values = mean_and_std(scores.groupby([*keys, "seed"], sort=False)["value"].mean())
    conditions = list(dict.fromkeys(scores["condition"]))
    drawn: Drawn = {}
    for key in sorted(values, key=lambda k: conditions.index(k[0])):
        condition, inference, shown, role, site = key
        client = client_of(inference, results.internal)
        line = _Line(condition, _bare(shown, client), client)
        drawn.setdefault(line, {})[role, site] = values[key]
    return drawn


def _union(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the internal sites of each run and inference as one site, weighted by their test samples."""
    keys = ["condition", "held_out", "inference", "shown", "run", "seed"]
    inside = scores[scores["role"] == "internal"].dropna(subset=["value"])
    wanted = inside.groupby("held_out")["site"].nunique()
    parts = inside.assign(part=inside["value"] * inside["n"]).groupby(keys, sort=False, as_index=False)
    sums = parts.agg(part=("part", "sum"), n=("n", "sum"), sites=("site", "nunique"))
    # A run that lacks a site has no union: its mean would be over other samples than those of the other runs.
    whole = sums[sums["sites"] == sums["held_out"].map(wanted)]
    return whole.assign(value=whole["part"] / whole["n"], role=UNION[0], site=UNION[1])[
        [*keys, "role", "site", "value"]
    ]


def _bare(shown: str, client: str | None) -> str:
    """Return the name of an inference without the words for the client whose tensors are tested."""
    whose = f"client {client}"
    for old, new in ((f" ({whose})", ""), (f"({whose}, ", "("), (f", {whose}", "")):
        shown = shown.replace(old, new)
    return shown


def _places(results: Results, drawn: Drawn) -> list[Place]:
    """Return the places with any value: internal sites, their union, external sites."""
    present = dict.fromkeys(place for spots in drawn.values() for place in spots)
    order = [("internal", site) for site in results.internal] + [UNION]
    order += [("external", site) for site in results.external]
    return [place for place in dict.fromkeys([*order, *present]) if place in present]


def _label(line: _Line, drawn: Drawn) -> str:
    """Return the name of a line: its condition, with its inference where there are several."""
    if len({other.inference for other in drawn}) == 1:
        return line.condition
    return f"{line.condition}, {line.inference}"


def _bars(axes: Any, drawn: Drawn, places: list[Place], results: Results) -> None:
    """Draw a group of bars for each place. Colours are conditions; of two inferences, the first is paler."""
    conditions = list(dict.fromkeys(line.condition for line in drawn))
    inferences = list(dict.fromkeys(line.inference for line in drawn))
    width = 0.84 / len(drawn)
    for n, (line, spots) in enumerate(drawn.items()):
        at = [places.index(place) + (n - (len(drawn) - 1) / 2) * width for place in spots]
        pale = len(inferences) > 1 and line.inference == inferences[0]
        colour = (COLOURS[conditions.index(line.condition)], 0.4 if pale else 1.0)
        means, stds = zip(*spots.values(), strict=True)
        axes.bar(at, means, 0.9 * width, color=colour, label=_label(line, drawn))
        axes.errorbar(at, means, stds, fmt="none", ecolor=INK, elinewidth=0.8, capsize=2)
        if sum(map(len, drawn.values())) <= NUMBERS:
            for x, mean, std in zip(at, means, stds, strict=True):
                top = (x, np.nansum([mean, std]))
                axes.annotate(
                    _text(mean, results), top, (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=7
                )
    names = _names(places)
    slant = 30 * (max(map(len, names)) > 90 / len(places))
    axes.set_xticks(range(len(places)), names, rotation=slant)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.55, len(places) - 0.45)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(axis(results))
    inside = sum(role != "external" for role, _ in places)
    if 0 < inside < len(places):
        axes.axvline(inside - 0.5, color=INK, linewidth=0.6, alpha=0.5)
        for x, role in ((-0.5, "internal"), (inside - 0.45, "external")):
            axes.text(x, 1.02, role, transform=axes.get_xaxis_transform(), fontweight="bold")


def _text(value: float, results: Results) -> str:
    """Return a value of the headline metric with as many digits as a figure has room for."""
    return f"{value:.1f}" if results.headline.percent else f"{value:.2f}"


def _names(places: list[Place]) -> list[str]:
    """Return the names of sites, with their role if a site is both internal and external."""
    sites = [site for _, site in places]
    return [short(site, 18) + (f" ({role})" if sites.count(site) > 1 else "") for role, site in places]


def _rows(drawn: Drawn) -> list[tuple[str, _Line | None]]:
    """Return the rows of a table. A condition with several inferences is a heading and a row for each of them."""
    several = len({line.inference for line in drawn}) > 1
    rows: list[tuple[str, _Line | None]] = []
    for condition in dict.fromkeys(line.condition for line in drawn):
        members = [line for line in drawn if line.condition == condition]
        if len(members) == 1 and not members[0].client:
            rows.append((_label(members[0], drawn), members[0]))
            continue
        rows.append((condition, None))
        by_client = any(line.client for line in members)
        for line in members:
            words = []
            if several or not by_client:
                words.append(line.inference)
            if line.client:
                words.append(f"client {line.client}")
            elif by_client:
                words.append("own tensors of each site")
            rows.append(("\N{EM SPACE}" + ", ".join(words), line))
    return rows


def cells(line: _Line, drawn: Drawn, block: list[Place], results: Results) -> list[Cell | None]:
    """Return the numbers of a row, each shaded by its rank between the worst and the best at that site."""
    row: list[Cell | None] = []
    for place in block:
        if place not in drawn[line]:
            row.append(None)
            continue
        mean, std = drawn[line][place]
        means = [spots[place][0] for spots in drawn.values() if place in spots]
        worst, best = min(means), max(means)
        if not results.headline.higher_is_better:
            worst, best = best, worst
        text = _text(mean, results)
        if std == std and len(block) <= FEW:  # NaN, the spread of a single seed, does not equal itself
            text += f" ± {_text(std, results)}"
        row.append(Cell(text, (mean - worst) / (best - worst) if best != worst else None))
    return row
