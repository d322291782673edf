"""Mean ranks of algorithms over sites, and the critical difference beyond which two of them differ significantly."""

from __future__ import annotations

from typing import Any

from ._base import Figure, Ranking, Results
from ._canvas import COLOURS, INK, WIDTH, rows, short

ALPHA = 0.05
_ROW = 0.28
_LABEL = 44


class CriticalDifference(Figure):
    """A critical-difference diagram (Demsar, J Mach Learn Res 2006;7:1, section 3.2.4).

    Sites rank the conditions (algorithm x batch norm policy x settings) by the headline metric. A line connects
    conditions whose mean ranks differ by less than the critical difference of Nemenyi's test.
    """

    title = "Ranks over sites"
    section = "comparison"

    def caption(self, results: Results) -> str:
        ranking = results.ranking
        if ranking is None:
            return "This figure is not drawn: there are no scores yet."
        if ranking.why_not:
            return f"This figure is not drawn: {ranking.why_not}."
        words = [
            f"Mean rank of each condition over {ranking.sites} {ranking.role} sites by {results.headline.title}; 1 is "
            f"the best. A line connects conditions whose mean ranks differ by less than {ranking.critical:.2f}, the "
            "critical difference: they are not told apart."
        ]
        if ranking.p >= ALPHA:
            words.append(
                f"Here all ranks together do not differ by more than chance (Iman and Davenport, p = {ranking.p:.2f}), "
                "so no two conditions are told apart."
            )
        words.append("The test takes the sites as independent of each other.")
        if ranking.related:
            words.append("These are not quite: each was held out from another training, and the trainings share sites.")
        return " ".join(words)

    def draw(self, results: Results) -> str:
        ranking = results.ranking
        if ranking is None or ranking.why_not:
            return self.nothing(results)
        height = 0.9 + _ROW * (len(ranking.ranks) + 1)
        return self.picture(results, (WIDTH, height), lambda figure: _paint(figure.subplots(), ranking))


def cliques(ranking: Ranking) -> list[tuple[int, int]]:
    """Return the largest sets of consecutive mean ranks that do not differ significantly, as (first, last) positions.

    Positions, from 0, count mean ranks in ascending order. One set holds all ranks if Iman and Davenport's test finds
    no difference at all.
    """
    count = len(ranking.ranks)
    ranks = sorted(ranking.ranks)
    if ranking.p >= ALPHA:
        return [(0, count - 1)]
    ends = [max(j for j in range(i, count) if ranks[j] - ranks[i] < ranking.critical) for i in range(count)]
    runs = [(i, end) for i, end in enumerate(ends) if end > i]
    # A run that ends where the one before it ends is a part of that one.
    return [(i, end) for n, (i, end) in enumerate(runs) if not n or end > runs[n - 1][1]]


def _paint(axes: Any, ranking: Ranking) -> None:
    """Draw the critical-difference diagram of `ranking` on `axes`.

    It has a dot for each mean rank, thick lines that connect ranks without a significant difference, and the critical
    difference as a bar on top.
    """
    order = sorted(range(len(ranking.ranks)), key=lambda n: ranking.ranks[n])
    count = len(order)
    rows(axes, [f"{short(ranking.names[n], _LABEL)} ({ranking.ranks[n]:.2f})" for n in order])
    axes.plot([ranking.ranks[n] for n in order], range(count), "o", color=COLOURS[0], markersize=7)
    joined = cliques(ranking)
    for n, (start, end) in enumerate(joined):
        x = count + 0.25 + 0.18 * n
        axes.plot([x, x], [start - 0.2, end + 0.2], color=INK, linewidth=3, solid_capstyle="round")
    axes.plot([1, 1 + ranking.critical], [-1, -1], color=INK, linewidth=1.2, marker="|", markersize=7)
    axes.text(1 + ranking.critical / 2, -1.15, f"critical difference {ranking.critical:.2f}", ha="center", va="bottom")
    axes.set_xticks(range(1, count + 1))
    axes.set(xlabel="mean rank", xlim=(0.8, max(count + 0.4 + 0.18 * len(joined), 1.2 + ranking.critical)))
    axes.set_ylim(count - 0.5, -2)
