"""The conditions, inferences and sites of a study that a selector means. Imports neither torch nor pandas.

{ algorithm: fedavg, bn: local, training.local_epochs: 4, inference: { name: tsmobn, momentum: 0.5 } }

Published values and trends name what they are about by selectors. Imports neither torch nor pandas.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core import digest
from ..core.errors import UserError
from ..study.published import BASELINE, CHOICES, resolved
from .conditions import ABSENT, Condition, conditions

if TYPE_CHECKING:
    from ..study.plan import Plan


_PLACE = ("inference", "role", "site")
UNION = "union"
"""A site of selectors: the test images of all sites of a role together."""
MEAN = "mean"
"""A client of an inference in selectors: each client's network predicts, and the mean of their scores counts."""


@dataclass(frozen=True)
class Cell:
    """A condition under an inference at a site. The inference is empty for quantities recorded while training.

    With several `networks`, ids of inferences, the cell is the mean of the scores under each of them. The site UNION
    stands for all test images of the role.
    """

    condition: Condition
    inference: str
    role: str
    site: str
    networks: tuple[str, ...] = ()

    def key(self, metric: str) -> tuple[str, ...]:
        """Return the values of `numbers.LEVELS` for a metric of this cell."""
        return self.condition.id, self.role, self.site, self.inference, metric

    @property
    def ids(self) -> str:
        """The ids of condition and inference in one word: `fedavg-local-0123456789/source`; several for a mean."""
        inferences = self.networks or (self.inference,)
        return " ".join("/".join(filter(None, [self.condition.id, inference])) for inference in inferences)


def differing(cells: Iterable[Cell]) -> list[str]:
    """Return the settings in which cells differ, without the seed."""
    cells = list(cells)
    columns = [cell.condition.settings | {name: getattr(cell, name) for name in _PLACE} for cell in cells]
    names = dict.fromkeys(name for column in columns for name in column if name not in _PLACE)
    return [name for name in (*names, *_PLACE) if len({column.get(name) for column in columns}) > 1]


class Finder:
    """The conditions of a plan, looked up by selector."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.conditions = list(conditions(plan).values())

    def cells(self, selector: Mapping[str, Any], *, predicted: bool = True) -> list[Cell]:
        """Return every condition, inference, role and site that fits a merged selector, in the order of the study.

        Where no inference is named it is `source`, if the study asks for that. With `predicted` False: the internal
        sites, without an inference, for quantities that are recorded while training. Raises UserError for a setting
        that no run has.
        """
        return list(self._cells(digest.canonical(selector), predicted))

    @functools.cache  # noqa: B019 - lives as long as the finder
    def _cells(self, canonical: str, predicted: bool) -> tuple[Cell, ...]:
        wanted = resolved(json.loads(canonical))
        for path in (key for key in wanted if "." in key):
            if all(condition.setting(path) is ABSENT for condition in self.conditions):
                raise UserError(path, "no run of the study has this setting")
        union = predicted and wanted.get("site") == UNION
        return tuple(
            Cell(condition, " ".join(networks), role, site, networks[1:] and networks)
            for condition in self.conditions
            if all(_has(condition, key, value) for key, value in wanted.items())
            for networks in self._networks(condition, wanted, predicted)
            for role, site in _sites(condition, predicted, union)
            if wanted.get("role", role) == role and wanted.get("site", site) == site
        )

    def _networks(self, condition: Condition, wanted: Mapping[str, Any], predicted: bool) -> list[tuple[str, ...]]:
        """Return the ids of a condition's inferences that a selector means, each alone; or all those of a mean at once.

        A mean needs the network of every client: none is returned where one is not predicted.
        """
        named = wanted.get("inference", {})
        if not predicted or named.get("client") != MEAN:
            return [(inference,) for inference in self._inferences(condition, wanted, predicted)]
        networks = []
        for client in condition.partition.internal:
            networks += self._inferences(condition, {**wanted, "inference": {**named, "client": client}}, predicted)
        return [] if len(networks) < len(condition.partition.internal) else [tuple(networks)]

    def _inferences(self, condition: Condition, wanted: Mapping[str, Any], predicted: bool) -> list[str]:
        """Return the ids of a condition's inferences that a selector means, the plain source where it names none.

        Quantities that are not `predicted` have no inference: its id is empty.
        """
        if not predicted:
            return [""]
        inferences = {key: self.plan.inferences[key] for key in condition.inferences}
        if named := wanted.get("inference"):
            fit = [key for key, i in inferences.items() if named.items() <= i.spec().items()]
            # Of a sweep, the one whose other settings are the defaults is meant.
            changed = {key: set(inferences[key].model_dump(mode="json", exclude_defaults=True)) for key in fit}
            return [key for key in fit if changed[key] <= named.keys()] or fit
        plain = [key for key, i in inferences.items() if i.name == BASELINE and not i.uses_labels]
        return plain[:1] or list(inferences)


def _sites(condition: Condition, predicted: bool, union: bool) -> list[tuple[str, str]]:
    """Return role and site wherever a condition is tested, or, if not `predicted`, where it is trained.

    Of a `union`, returns each role with test images, with the site that stands for all of them.
    """
    if union:
        return [(role, UNION) for role in dict.fromkeys(role for role, _ in condition.sites())]
    partition = condition.partition
    sites = set(condition.run.tested if predicted else partition.internal)
    return [(role, site) for role in CHOICES["role"] for site in getattr(partition, role) if site in sites]


def _has(condition: Condition, key: str, value: Any) -> bool:
    """Return whether a condition has a setting of a resolved selector; True of its sites and inferences."""
    if key in ("algorithm", "addon", "model"):
        setting = condition.run.spec[key]
        if value is None or setting is None:
            return value is setting
        return all(setting.get(name, ABSENT) == v for name, v in value.items())
    if key == "held_out":
        return bool(condition.partition.title == value)
    if key == "norms":
        return list(condition.run.norms) == value
    if key == "bn" or "." in key:
        return bool(condition.setting(key) == value)
    return True


def primary_pairs(plan: Plan) -> list[tuple[Cell, Cell]]:
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
