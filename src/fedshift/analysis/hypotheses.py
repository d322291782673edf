"""Answers to the hypotheses that a study registers: hypotheses.csv. Importing it needs neither torch nor pandas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import UserError, did_you_mean
from .conditions import Cell, Finder

if TYPE_CHECKING:
    import pandas as pd

    from ..study.declaration import Hypothesis, Sites
    from ..study.plan import Plan
    from .effects import Estimates
    from .estimates import Estimate
    from .numbers import Names, Numbers, Row
    from .subgroups import Without
COLUMNS = [
    *("study", "number", "claim", "condition_id", "inference_id", "at", "than_condition_id", "than_inference_id"),
    *("than_at", "direction", "margin", "answer", "reason", "mean", "std", "seeds", "patients", "low", "high"),
    *("low_patients", "high_patients", "without"),
]
"""Columns of hypotheses.csv.

`mean` is positive if the first side is better, and `reason` says why there is no answer. `without` is the number of
patients with the most test samples that are left out at each site.
"""
YES = "yes"
NO = "no"
CANNOT_TELL = "cannot tell"
NOT_RUN = "not run"
FEWEST_TRAININGS = 3
"""With fewer trainings there is no answer, since a condition is then not known as a method."""


class Side(NamedTuple):
    """One side of the difference in a hypothesis: a condition under an inference, as cells at the sites that count.

    With several partitions (leave-one-site-out) it has the cells of all of them.
    """

    cells: tuple[Cell, ...]

    @property
    def sites(self) -> str:
        """The names of the sites, each once, separated by spaces."""
        return " ".join(dict.fromkeys(cell.site for cell in self.cells))

    @property
    def id(self) -> str:
        """The id of the condition or, with several partitions, of its family."""
        ids = {cell.condition.id for cell in self.cells}
        return ids.pop() if len(ids) == 1 else self.cells[0].condition.family

    def estimate(self, scores: Estimates | Without, metric: str) -> Estimate | None:
        """Return the mean of a metric over the sites of this side, or None if one of them has no score.

        `scores` has the scores of the study, or those without the patients with the most samples.
        """
        from . import estimates

        levels = [scores.level(c.condition.id, c.role, c.inference, metric, c.site) for c in self.cells]
        measured = [level for level in levels if level is not None and not math.isnan(level.mean)]
        return None if len(measured) < len(levels) else estimates.mean(measured)


def require(plan: Plan) -> None:
    """Raise UserError for the first hypothesis that names a condition or site which the study does not have."""
    for number in range(len(plan.study.hypotheses)):
        sides(plan, number)


def sides(plan: Plan, number: int) -> tuple[Side, Side] | None:
    """Return both sides of a hypothesis, by its number in the study from 0.

    Conditions that differ in their partition alone, as in leave-one-site-out, form one side. Return None at mini scale
    if a side matches nothing. Raises UserError if a side matches no condition, or several, or names a site at which it
    is not tested.
    """
    hypothesis = plan.study.hypotheses[number]
    where = f"{plan.path}.hypotheses.{number}"
    finder = Finder(plan)
    found = []
    for name, (selector, sites) in zip(("condition", "against"), hypothesis.sides, strict=True):
        try:
            cells = finder.cells(selector)
        except UserError as error:
            cells = []
            if plan.scale != "mini":
                raise UserError(f"{where}.{name}", f"{error.where} {error.what}", error.remedy) from None
        if not cells and plan.scale == "mini":
            return None
        arms = {(cell.condition.family, cell.networks or cell.inference): cell for cell in cells}
        if len(arms) != 1:
            titles = [cell.condition.title for cell in arms.values()]
            problem = f"matches {len(arms)} conditions" + "".join(f", {title}" for title in titles[:3])
            raise UserError(f"{where}.{name}", problem, "name the settings of one condition and one inference")
        found.append(Side(tuple(_at(cells, sites, f"{where}.{name}"))))
    return found[0], found[1]


def _at(cells: list[Cell], sites: Sites, where: str) -> list[Cell]:
    """Return the cells at the sites that a side names: a role, or a list of sites.

    Raises UserError, about the key `where`, if the condition is not tested at one of them.
    """
    if isinstance(sites, str):
        chosen = [cell for cell in cells if cell.role == sites]
        if not chosen:
            raise UserError(
                where, f"is tested at no {sites} site", "change at or against_at to sites where it is tested"
            )
        return chosen
    chosen = []
    for site in sites:
        there = [cell for cell in cells if cell.site == site]
        if not there:
            raise UserError(where, f"is not tested at {site!r}", did_you_mean(site, {cell.site for cell in cells}))
        if len({cell.role for cell in there}) > 1:
            problem = f"trains with {site!r} in some partitions, and without it in others"
            raise UserError(where, problem, "name a partition by held_out, or all internal or external sites")
        chosen += there
    return chosen


def rows(study: Estimates) -> Iterator[Row]:
    """Yield the numbers of hypotheses.csv (see `table`) as rows of numbers.parquet.

    A hypothesis of which one side has no score has no row.
    """
    from . import estimates
    from .numbers import row
    from .subgroups import Without

    plan = study.names.plan
    metric = study.metrics[plan.study.headline]
    for without in _fewer(plan):
        scores = Without(study, without) if without else study
        for number in range(len(plan.study.hypotheses)):
            both = sides(plan, number)
            levels = [level for side in both or () if (level := side.estimate(scores, metric.name)) is not None]
            if both and len(levels) == len(both):
                difference = estimates.minus(*(levels if metric.higher_is_better else reversed(levels)))
                yield row("hypothesis", difference, metric.ends, True, **_about(plan, number, both, without))


def _fewer(plan: Plan) -> dict[int, None]:
    """Return the numbers of largest patients to leave out at each site: 0 and, if set, `without_largest`.

    The largest patients are those with the most test samples. The numbers are the keys of the result.
    """
    return dict.fromkeys((0, plan.study.without_largest or 0))


def _about(plan: Plan, number: int, both: tuple[Side, Side], without: int) -> dict[str, str]:
    """Return the columns that identify the number of a hypothesis in numbers.parquet (see `numbers.Key`).

    `number` counts hypotheses from 0, and `without` is the number of largest patients that are left out.
    """
    first, second = both
    return {
        **{"metric": plan.study.headline, "column": str(without), "group": str(number + 1)},
        **{"condition_id": first.id, "inference_id": first.cells[0].inference},
        **{"than_condition_id": second.id, "than_inference_id": second.cells[0].inference},
    }


def table(names: Names, numbers: Numbers) -> pd.DataFrame:
    """Return hypotheses.csv from the numbers of a study: the difference in each hypothesis, its interval and answer.

    If the study sets `without_largest`, each hypothesis has a second row, without the patients with the most samples at
    each site. `low` and `high` are the interval over patients and trainings, `low_patients` and `high_patients` over
    patients alone. Each interval is at 95%, and not widened for the number of hypotheses.
    """
    import pandas as pd

    plan = names.plan
    rows = [
        _row(plan, number, numbers, without) | {"without": without}
        for without in _fewer(plan)
        for number in range(len(plan.study.hypotheses))
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(plan: Plan, number: int, numbers: Numbers, without: int) -> dict[str, Any]:
    """Return the row of hypotheses.csv for a hypothesis, by its number from 0.

    `without` is the number of patients with the most samples that are left out at each site.
    """
    hypothesis = plan.study.hypotheses[number]
    row: dict[str, Any] = {
        "study": plan.name,
        "number": number + 1,
        "claim": hypothesis.claim,
        "direction": hypothesis.direction,
        "margin": hypothesis.margin,
    }
    both = sides(plan, number)
    if both is None:
        return row | {"answer": NOT_RUN, "reason": "the study does not run it at this scale"}
    about = _about(plan, number, both, without)
    row |= about | {"at": both[0].sites, "than_at": both[1].sites}
    value = numbers.known("hypothesis", **about)
    if value is None:
        return row | {"answer": NOT_RUN, "reason": "a side has no score at one of its sites"}
    answer, reason = judged(hypothesis, value.low, value.high, value.seeds)
    return row | {"answer": answer, "reason": reason} | value._asdict()


def judged(hypothesis: Hypothesis, low: float, high: float, trainings: int) -> tuple[str, str]:
    """Return the answer to a hypothesis from the interval of its difference, and the reason if it cannot be told.

    The answer is yes if all values from `low` to `high` agree with the claim, and no if all of them contradict it. It
    cannot be told with too few `trainings` or patients.
    """
    if trainings < FEWEST_TRAININGS:
        return CANNOT_TELL, f"fewer than {FEWEST_TRAININGS} trainings"
    if math.isnan(low):
        return CANNOT_TELL, "too few patients for an interval"
    margin = hypothesis.margin
    agrees = {"above": low > margin, "below": high < margin, "within": -margin < low and high < margin}
    contradicts = {"above": high < margin, "below": low > margin, "within": low > margin or high < -margin}
    if agrees[hypothesis.direction]:
        return YES, ""
    if contradicts[hypothesis.direction]:
        return NO, ""
    return CANNOT_TELL, "the interval holds values on both sides of the margin"
