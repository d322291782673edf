"""The conditions, inferences and sites of a study that a selector means.

    { algorithm: fedavg, bn: local, training.local_epochs: 4, inference: { name: tsmobn, momentum: 0.5 } }

Published values and trends name what they are about by selectors. Imports neither torch nor pandas.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..analysis.conditions import ABSENT, Condition, conditions
from ..core import digest
from ..core.errors import UserError
from ..study.selector import BASELINE, CHOICES, resolved

if TYPE_CHECKING:
    from ..inferences import Inference
    from ..study.plan import Plan


@dataclass(frozen=True)
class Cell:
    """A condition under an inference at a site. The inference is empty for quantities recorded while training."""

    condition: Condition
    inference: str
    role: str
    site: str

    def key(self, metric: str) -> tuple[str, ...]:
        """Return the values of `names.LEVELS` for a metric of this cell."""
        return self.condition.id, self.role, self.site, self.inference, metric

    @property
    def ids(self) -> str:
        """The ids of condition and inference in one word: `fedavg-local-0123456789/source`."""
        return "/".join(filter(None, [self.condition.id, self.inference]))


def differing(cells: Iterable[Cell]) -> list[str]:
    """Return the settings in which cells differ, without the seed."""
    cells = list(cells)
    settings = [cell.condition.settings for cell in cells]
    keys = dict.fromkeys(key for one in settings for key in one)
    names = [key for key in keys if len({one.get(key) for one in settings}) > 1]
    return names + [key for key in ("inference", "role", "site") if len({getattr(c, key) for c in cells}) > 1]


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
        for path in (k for k in wanted if "." in k):
            if all(c.setting(path) is ABSENT for c in self.conditions):
                raise UserError(path, "no run of the study has this setting")
        cells = []
        for condition in filter(lambda c: _fits(c, wanted), self.conditions):
            for inference in self._inferences(condition, wanted) if predicted else [""]:
                partition = condition.partition
                tested = set(condition.run.tested) if predicted else set(partition.internal)
                sites = [(r, s) for r in CHOICES["role"] for s in getattr(partition, r) if s in tested]
                cells += [
                    Cell(condition, inference, role, site)
                    for role, site in sites
                    if wanted.get("role", role) == role and wanted.get("site", site) == site
                ]
        return tuple(cells)

    def _inferences(self, condition: Condition, wanted: Mapping[str, Any]) -> list[str]:
        inferences = {key: self.plan.inferences[key] for key in condition.inferences}
        if named := wanted.get("inference"):
            fit = [key for key, i in inferences.items() if all(i.spec().get(k) == v for k, v in named.items())]
            return [key for key in fit if _rest_is_default(inferences[key], named)] or fit
        plain = [key for key, i in inferences.items() if i.name == BASELINE and not i.uses_labels]
        return plain[:1] or list(inferences)


def _rest_is_default(inference: Inference, named: Mapping[str, Any]) -> bool:
    return not set(inference.model_dump(mode="json", exclude_defaults=True)) - set(named)


def _fits(condition: Condition, wanted: Mapping[str, Any]) -> bool:
    """Return whether a condition has all settings of a resolved selector, sites and inferences apart."""
    spec = condition.run.spec
    for key, value in wanted.items():
        if key in ("algorithm", "addon", "model"):
            setting = spec[key]
            if value is None or setting is None:
                if value is not setting:
                    return False
            elif any(setting.get(k, ABSENT) != v for k, v in value.items()):
                return False
        elif key == "held_out":
            if condition.partition.title != value:
                return False
        elif (key == "bn" or "." in key) and condition.setting(key) != value:
            return False
    return True
