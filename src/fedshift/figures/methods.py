"""Conditions side by side at every site: as bars, or as a table if there would be too many bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from ._base import Figure, Results
from ._canvas import COLOURS, INK, WIDTH, legend, legend_height, note, short, svg
from ._series import Spot, apart, axis, centres, client_of, headline, mean_and_std
from ._table import FEW, ROW, Cell, head, table

if TYPE_CHECKING:
    import pandas as pd

UNION = ("union", "union")
Place = tuple[str, str]
"""Role and site."""


class Series(NamedTuple):
    """A condition with an inference, and the client whose own tensors are tested at all sites, if any."""

    condition: str
    inference: str
    client: str | None


class Methods(Figure):
    """The headline metric of each condition at each site: bars with whiskers, or a table of numbers."""

    title = "Methods compared"
    bars: int = Field(48, ge=0, description="a table is drawn if there would be more bars than this")
    across: int = Field(16, ge=2, description="number of sites side by side in a table; further sites are drawn below")

    def caption(self, results: Results) -> str:
        drawn = series(results)
        if not drawn:
            return "There are no scores yet."
        whiskers = any(std == std for spots in drawn.values() for _, std in spots.values())
        scores = apart(headline(results))
        several = scores.groupby("condition")["held_out"].nunique().max() > 1
        places = _places(results, drawn)
        if self._as_bars(drawn):
            spread = "; whiskers: standard deviation over seeds" if whiskers else ""
        else:
            spread = " ± standard deviation" if whiskers and len(places) <= FEW else ""
            spread += "; a stronger shade is better at that site, and the best is in bold"
        words = [
            f"{results.headline.title} on test samples, mean over {'partitions and ' if several else ''}seeds{spread}."
        ]
        if not results.headline.higher_is_better:
            words.append("Lower is better.")
        if any(s.client for s in drawn):
            words.append("A row that names a client tests that client's network, with its own tensors, at every site.")
        outside = [site for role, site in places if role == "external"]
        if not self._as_bars(drawn) and 0 < len(outside) < len(places):
            words.append(f"External sites come last, from {outside[0]} on.")
        if UNION in places:
            words.append("Union: all internal test samples together.")
        if left_out := scores["shown"].nunique() - len(centres(scores)):
            words.append(f"{left_out} further variants of inferences are left out here; the tables have them.")
        return " ".join(words)

    def _as_bars(self, drawn: dict[Series, dict[Place, Spot]]) -> bool:
        """Return whether bars can be distinguished and read."""
        conditions, inferences = {s.condition for s in drawn}, {s.inference for s in drawn}
        few = len(conditions) <= len(COLOURS) and len(inferences) <= 2 and not any(s.client for s in drawn)
        return few and sum(map(len, drawn.values())) <= self.bars

    def draw(self, results: Results) -> str:
        drawn = series(results)
        if not drawn:
            return note(self.name, f"{self.title}: {self.caption(results)}")
        title, places = f"{self.title}: {self.caption(results)}", _places(results, drawn)
        if self._as_bars(drawn):
            size = (WIDTH, 3.1 + legend_height([_label(s, drawn) for s in drawn], WIDTH))
            return svg(self.name, title, size, lambda figure: _bars(figure.subplots(), drawn, places, results))
        blocks = [places[k : k + self.across] for k in range(0, len(places), self.across)]
        width, tops = len(blocks[0]), [head(_names(block, 18), len(blocks[0])) for block in blocks]
        heights = [top + ROW * len(_rows(drawn)) for top in tops]

        def paint(figure: Any) -> None:
            grid = figure.subplots(len(blocks), 1, squeeze=False, height_ratios=heights)
            for axes, block, top in zip(grid.flat, blocks, tops, strict=True):
                rows = [(label, cells(one, drawn, block, results) if one else []) for label, one in _rows(drawn)]
                table(axes, rows, _names(block, 18), width, top)

        return svg(self.name, title, (WIDTH, sum(heights) + 0.1), paint)


def series(results: Results) -> dict[Series, dict[Place, Spot]]:
    """Return the mean and spread over seeds of each condition and inference at each place, partitions averaged.

    Where clients' own tensors are tested at every site and the metric is a mean over samples, the accuracy, there is
    also UNION: the internal sites weighted by their test samples.
    """
    scores = apart(headline(results))
    scores = scores[scores["shown"].isin(list(centres(scores).values()))]
    if scores.empty:
        return {}
    of_clients = any(client_of(i, results.internal) for i in scores["inference"].unique())
    if of_clients and results.headline.name == "accuracy":
        import pandas as pd

        scores = pd.concat([scores, _union(scores)], ignore_index=True)
    keys = ["condition", "inference", "shown", "role", "site"]
    values = mean_and_std(scores.groupby([*keys, "seed"], sort=False)["value"].mean())
    conditions = list(dict.fromkeys(scores["condition"]))
    drawn: dict[Series, dict[Place, Spot]] = {}
    for key in sorted(values, key=lambda k: conditions.index(k[0])):
        condition, inference, shown, role, site = key
        client = client_of(inference, results.internal)
        one = Series(condition, _bare(shown, client), client)
        drawn.setdefault(one, {})[role, site] = values[key]
    return drawn


def _union(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the internal sites of each run and inference as one site, weighted by their test samples."""
    keys = ["condition", "held_out", "inference", "shown", "run", "seed"]
    inside = scores[scores["role"] == "internal"].dropna(subset=["value"])
    wanted = inside.groupby("held_out")["site"].nunique()
    parts = inside.assign(part=inside["value"] * inside["n"]).groupby(keys, sort=False, as_index=False)
    sums = parts.agg(part=("part", "sum"), n=("n", "sum"), sites=("site", "nunique"))
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


def _places(results: Results, drawn: dict[Series, dict[Place, Spot]]) -> list[Place]:
    """Return the places with any value: internal sites, their union, external sites."""
    present = dict.fromkeys(place for spots in drawn.values() for place in spots)
    order = [("internal", s) for s in results.internal] + [UNION] + [("external", s) for s in results.external]
    return [place for place in dict.fromkeys([*order, *present]) if place in present]


def _label(one: Series, drawn: dict[Series, dict[Place, Spot]]) -> str:
    several = len({s.inference for s in drawn}) > 1
    return f"{one.condition}, {one.inference}" if several else one.condition


def _bars(axes: Any, drawn: dict[Series, dict[Place, Spot]], places: list[Place], results: Results) -> None:
    """Draw a group of bars for each place. Colours are conditions; of two inferences, the first is paler."""
    conditions, inferences = (list(dict.fromkeys(s[k] for s in drawn)) for k in (0, 1))
    width = 0.84 / len(drawn)
    numbers, percent = sum(map(len, drawn.values())) <= 24, results.headline.percent
    for n, (one, spots) in enumerate(drawn.items()):
        at = [places.index(place) + (n - (len(drawn) - 1) / 2) * width for place in spots]
        colour = COLOURS[conditions.index(one.condition)]
        pale = len(inferences) > 1 and one.inference == inferences[0]
        means, stds = [mean for mean, _ in spots.values()], [std for _, std in spots.values()]
        axes.bar(at, means, 0.9 * width, color=(colour, 0.4 if pale else 1.0), label=_label(one, drawn))
        axes.errorbar(at, means, stds, fmt="none", ecolor=INK, elinewidth=0.8, capsize=2)
        for x, mean, std in zip(at, means, stds, strict=True) if numbers else ():
            top = (x, mean + (std if std == std else 0))
            text = f"{mean:.1f}" if percent else f"{mean:.2f}"
            axes.annotate(text, top, (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=7)
    names = _names(places, 18)
    crowded = max(map(len, names)) > 90 / len(places)
    axes.set_xticks(range(len(places)), names, rotation=30 if crowded else 0)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.55, len(places) - 0.45)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(axis(results))
    inside = sum(role != "external" for role, _ in places)
    if 0 < inside < len(places):
        axes.axvline(inside - 0.5, color=INK, linewidth=0.6, alpha=0.5)
        for x, role in ((-0.5, "internal"), (inside - 0.45, "external")):
            axes.text(x, 1.02, role, transform=axes.get_xaxis_transform(), fontweight="bold")
    legend(axes.figure)


def _names(places: list[Place], length: int) -> list[str]:
    """Return the names of sites, with their role if a site is both internal and external."""
    sites = [site for _, site in places]
    return [short(site, length) + (f" ({role})" if sites.count(site) > 1 else "") for role, site in places]


def _rows(drawn: dict[Series, dict[Place, Spot]]) -> list[tuple[str, Series | None]]:
    """Return the rows of a table. A condition with several inferences is a heading and a row for each of them."""
    several = len({s.inference for s in drawn}) > 1
    rows: list[tuple[str, Series | None]] = []
    for condition in dict.fromkeys(s.condition for s in drawn):
        members = [s for s in drawn if s.condition == condition]
        if len(members) == 1 and not members[0].client:
            rows.append((_label(members[0], drawn), members[0]))
            continue
        rows.append((condition, None))
        for one in members:
            who = f"client {one.client}" if one.client else "own tensors of each site" if _by_client(members) else ""
            rows.append(
                ("\N{EM SPACE}" + ", ".join(filter(None, [one.inference if several or not who else "", who])), one)
            )
    return rows


def _by_client(members: list[Series]) -> bool:
    return any(s.client for s in members)


def cells(
    one: Series, drawn: dict[Series, dict[Place, Spot]], block: list[Place], results: Results
) -> list[Cell | None]:
    """Return the numbers of a row, each shaded by its rank between the worst and the best at that site."""
    digits, out = 1 if results.headline.percent else 2, list[Cell | None]()
    for place in block:
        if place not in drawn[one]:
            out.append(None)
            continue
        mean, std = drawn[one][place]
        means = [spots[place][0] for spots in drawn.values() if place in spots]
        low, high = min(means), max(means)
        rank = (mean - low) / (high - low) if high > low else None
        if rank is not None and not results.headline.higher_is_better:
            rank = 1 - rank
        text = f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std == std and len(block) <= FEW else "")
        out.append(Cell(text, rank))
    return out
