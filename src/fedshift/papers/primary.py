"""The pairs of conditions that a study declares as its primary comparison. Imports neither torch nor pandas."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from ..core.errors import UserError
from .cells import Cell, Finder

if TYPE_CHECKING:
    from ..study.plan import Plan


def pairs(plan: Plan) -> list[tuple[Cell, Cell]]:
    """Return the two sides of each comparison that the study declares as its primary one.

    A side is a condition under an inference. Both sides have the same data and the same external sites. The list is
    empty for a study that declares no comparison, and at mini scale where a side matches no condition. Raises UserError
    where a side matches no condition at full scale.
    """
    primary = plan.study.primary
    mini = plan.scale == "mini"
    if primary is None:
        return []
    where = f"{plan.path}.primary"
    finder = Finder(plan)
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
    made = [(first, second) for first, second in both if first.ids != second.ids and _alike(first, second)]
    if not made and not mini:
        raise UserError(where, "condition and against are not tested at the same sites", "compare within a partition")
    return made


def _arms(finder: Finder, selector: dict[str, object]) -> list[Cell]:
    """Return the first cell of each condition and inference that a selector matches."""
    # Any site stands for the condition here: pairs are formed of conditions, and sites follow from them.
    first: dict[str, Cell] = {}
    for cell in finder.cells(selector):
        first.setdefault(cell.ids, cell)
    return list(first.values())


def _alike(first: Cell, second: Cell) -> bool:
    """Return whether two conditions test the same data at the same external sites."""
    tested = [(cell.condition.run.data.source, cell.condition.partition.external) for cell in (first, second)]
    return bool(tested[0] == tested[1])
