"""The pairs of conditions that a study declares as its primary comparison. Imports neither torch nor pandas."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from ..core.errors import UserError
from .conditions import Cell, Finder

if TYPE_CHECKING:
    from ..study.plan import Plan


def pairs(plan: Plan) -> list[tuple[Cell, Cell]]:
    """Return the declared pairs, each once: cells of the first site of a condition under an inference.

    Conditions are a pair if they test the same data at the same external sites. There is none for a study that declares
    no comparison, and at mini scale none where a side matches nothing. Raises UserError otherwise.
    """
    primary, mini = plan.study.primary, plan.scale == "mini"
    if primary is None:
        return []
    where, finder = f"{plan.path}.primary", Finder(plan)
    sides = {}
    for name in ("condition", "against"):
        try:
            sides[name] = _arms(finder, getattr(primary, name))
        except UserError as error:
            if mini:
                return []
            raise UserError(f"{where}.{name}", f"{error.where} {error.what}", error.remedy) from None
        if not sides[name] and not mini:
            raise UserError(f"{where}.{name}", "matches no condition of the study", "name settings of its runs")
    both = itertools.product(sides["condition"], sides["against"])
    made = [pair for pair in both if pair[0].ids != pair[1].ids and _alike(*pair)]
    if not made and not mini:
        raise UserError(where, "condition and against are not tested at the same sites", "compare within a partition")
    return made


def _arms(finder: Finder, selector: dict[str, object]) -> list[Cell]:
    """Return the first cell of each condition and inference that a selector matches."""
    return list({cell.ids: cell for cell in reversed(finder.cells(selector))}.values())[::-1]


def _alike(first: Cell, second: Cell) -> bool:
    one, other = first.condition, second.condition
    return one.run.data.id == other.run.data.id and one.partition.external == other.partition.external
