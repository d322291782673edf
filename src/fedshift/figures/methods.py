"""The headline metric of all algorithms at every site: as bars, or as a table if there would be too many bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import Field

from ._base import Figure, FigureTable, Results
from ._canvas import COLOURS, INK, WIDTH, note, short
from ._series import Spot, apart, axis, centres, client_of, headline, mean_and_std

if TYPE_CHECKING:
    import pandas as pd

UNION = ("union", "union")
NUMBERS = 24
"""Largest number of bars that still have their value written above them."""
Place = tuple[str, str]
"""The role of a site (internal, external, union) and its name."""


class _Line(NamedTuple):
    """What one series of bars, or one row of the table, shows.

    Attributes
    ----------
    condition, inference : titles of the condition (algorithm x batch norm policy x settings) and of the inference
        (prediction method)
    client : client whose own tensors are tested at all sites; None if each site is tested with its own or global
        tensors
    """

    condition: str
    inference: str
    client: str | None


Drawn = dict[_Line, dict[Place, Spot]]
"""Mean and standard deviation over seeds, by line (condition and inference) and by place (role and site)."""


class Methods(Figure):
    """The headline metric of each condition at each site: bars with whiskers, or a table of numbers on the page.

    A condition is an algorithm with its batch-norm policy and settings. Whiskers are standard deviations over seeds.
    """

    title = "Methods compared"
    section = "comparison"
    bars: int = Field(48, ge=0, description="the page has a table if there would be more bars than this")

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
            spread = "; whiskers: standard deviation over seeds" if bars else " ± standard deviation"
        if not bars:
            spread += "; the best at each site is in bold"
        words = [f"{results.headline.title} on test samples, mean over {averaged}{spread}."]
        if not results.headline.higher_is_better:
            words.append("Lower is better.")
        if any(line.client for line in drawn):
            words.append("A row with the tensors of a client tests that client's network at every site.")
        outside = [site for role, site in places if role == "external"]
        if not bars and 0 < len(outside) < len(places):
            words.append(f"External sites come last, from {outside[0]} on.")
        if UNION in places:
            words.append("Union: all internal test samples together.")
        if left_out := scores["shown"].nunique() - len(centres(scores)):
            words.append(f"{left_out} further variants of inferences are left out here; the tables have them.")
        return " ".join(words)

    def _as_bars(self, drawn: Drawn) -> bool:
        """Return whether `drawn` fits into bars: few enough bars, and colours and shades that tell its lines apart.

        `drawn` is the result of `series`.
        """
        conditions = {line.condition for line in drawn}
        inferences = {line.inference for line in drawn}
        few = len(conditions) <= len(COLOURS) and len(inferences) <= 2 and not any(line.client for line in drawn)
        return few and sum(map(len, drawn.values())) <= self.bars

    def draw(self, results: Results) -> str:
        drawn = series(results)
        if not drawn:
            return self.nothing(results)
        if not self._as_bars(drawn):
            return note(self.name, f"{self.heading(results)} The page has these numbers as a table.")
        places = _places(results, drawn)
        labels = [_label(line, drawn) for line in drawn]
        return self.picture(
            results, (WIDTH, 3.1), lambda figure: _bars(figure.subplots(), drawn, places, results), labels
        )

    def table(self, results: Results) -> FigureTable | None:
        drawn = series(results)
        return None if self._as_bars(drawn) else numbers(drawn, results)


def series(results: Results) -> Drawn:
    """Return the mean and standard deviation over seeds of the headline metric, by method and by site.

    A method (`_Line`) is a condition (algorithm x batch norm policy x settings) with an inference (prediction method).
    Partitions are averaged, unless they are drawn one by one (see `apart`). Where clients' own tensors are tested at
    every site and the headline metric is the accuracy, a place UNION is added: the mean over internal sites, weighted
    by their numbers of test samples.
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
        drawn.setdefault(_Line(condition, _bare(shown, client), client), {})[role, site] = values[key]
    return drawn


def _union(scores: pd.DataFrame) -> pd.DataFrame:
    """Return scores of a site UNION: the mean over the internal sites, weighted by their numbers of test samples.

    There is a row for each run and inference (prediction method) that has a score at every internal site.
    """
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
    """Return the title of an inference without its option `client`, such as `source` for `source (client north)`.

    An inference is a prediction method; `shown` is its title with options.
    """
    whose = f"client {client}"
    for old, new in ((f" ({whose})", ""), (f"({whose}, ", "("), (f", {whose}", "")):
        shown = shown.replace(old, new)
    return shown


def _places(results: Results, drawn: Drawn) -> list[Place]:
    """Return the pairs (role, site) for which `drawn` has a value: internal sites, their union, then external sites."""
    present = dict.fromkeys(place for spots in drawn.values() for place in spots)
    order = [("internal", site) for site in results.internal] + [UNION]
    order += [("external", site) for site in results.external]
    return [place for place in dict.fromkeys([*order, *present]) if place in present]


def _label(line: _Line, drawn: Drawn) -> str:
    """Return the label of a line: its condition title, followed by its inference title if lines differ in it."""
    if len({other.inference for other in drawn}) == 1:
        return line.condition
    return f"{line.condition}, {line.inference}"


def _bars(axes: Any, drawn: Drawn, places: list[Place], results: Results) -> None:
    """Draw a group of bars for each place (role and site), with standard deviations as whiskers.

    Conditions (algorithm x batch norm policy x settings) differ in colour. Of two inferences (prediction methods), the
    first has paler bars.
    """
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
                words = _text((mean, np.nan), results)
                axes.annotate(words, top, (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=7)
    names = _names(places, 18)
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


def _text(spot: Spot | None, results: Results) -> str:
    """Return a mean and, if it is defined, its standard deviation as text: one decimal in percent, else two.

    Return an empty text for a place without a value.
    """
    digits = 1 if results.headline.percent else 2
    known = [f"{value:.{digits}f}" for value in spot or () if value == value]  # NaN does not equal itself
    return " ± ".join(known)


def _names(places: list[Place], length: int) -> list[str]:
    """Return the names of the sites, cut to `length` characters; a site that is internal and external gets its role."""
    sites = [site for _, site in places]
    return [short(site, length) + (f" ({role})" if sites.count(site) > 1 else "") for role, site in places]


def numbers(drawn: Drawn, results: Results) -> FigureTable:
    """Return the table of `drawn`: a row for each line, a column for each site, with means and standard deviations.

    The best mean of each column is marked, unless all are equal.
    """
    places = _places(results, drawn)
    with_clients = {line.condition for line in drawn if line.client}
    columns: dict[str, list[str]] = {"Condition": [line.condition for line in drawn]}
    if len({line.inference for line in drawn}) > 1 or not with_clients:
        columns["Inference"] = [line.inference for line in drawn]
    if with_clients:
        own = [("each site's own" if line.condition in with_clients else "") for line in drawn]
        columns["Tensors of"] = [line.client or words for line, words in zip(drawn, own, strict=True)]
    texts = [tuple(_text(spots.get(place), results) for place in places) for spots in drawn.values()]
    rows = [(*heads, *row) for heads, row in zip(zip(*columns.values(), strict=True), texts, strict=True)]
    best = set()
    for x, place in enumerate(places, len(columns)):
        means = {y: spots[place][0] for y, spots in enumerate(drawn.values()) if place in spots}
        first = max(means.values()) if results.headline.higher_is_better else min(means.values())
        if len(set(means.values())) > 1:
            best |= {(y, x) for y, mean in means.items() if mean == first}
    return FigureTable((*columns, *_names(places, 60)), rows, len(columns), frozenset(best))
