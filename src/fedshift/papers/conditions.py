"""Selectors: some of a study's conditions, told by their settings.

    { algorithm: fedavg, bn: local, training.local_epochs: 4, inference: { name: tsmobn, momentum: 0.5 } }

Published figures and trends name what they are about by them. Imports no torch.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core import digest
from ..core.errors import UserError

if TYPE_CHECKING:
    from ..inferences import Inference
    from ..study.plan import Plan
    from ..study.run import Run
from ..study.selector import ABSENT, BASELINE, CHOICES, resolved


@dataclass(frozen=True, eq=False)
class Condition:
    """Runs of a study that differ in their seed alone, and the inferences asked of them."""

    runs: tuple[str, ...]
    run: Run
    inferences: tuple[str, ...]

    def setting(self, path: str) -> Any:
        """The value at a dotted path of the spec; a value of its own where there is none."""
        found: Any = self.run.spec
        for part in path.split("."):
            if not isinstance(found, dict) or part not in found:
                return ABSENT
            found = found[part]
        return found

    def flat(self) -> dict[str, str]:
        """`a.b: value` of the spec, values as JSON."""
        return {path: json.dumps(value) for path, value in self.run.settings.items()}


@dataclass(frozen=True)
class Cell:
    """A condition under an inference at a site. The inference is empty for what is recorded while training."""

    condition: Condition
    inference: str
    role: str
    site: str


def differing(cells: Iterable[Cell]) -> list[str]:
    """The settings in which cells differ, the seed apart."""
    cells = list(cells)
    specs = [c.condition.flat() for c in cells]
    keys = dict.fromkeys(k for spec in specs for k in spec if k != "seed")
    found = [k for k in keys if len({spec.get(k) for spec in specs}) > 1]
    return found + [key for key in ("inference", "role", "site") if len({getattr(c, key) for c in cells}) > 1]


class Finder:
    """The conditions of a plan, looked up by selector."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        alike: dict[str, list[str]] = {}
        for name, run in plan.runs.items():
            alike.setdefault(digest.canonical({k: v for k, v in run.spec.items() if k != "seed"}), []).append(name)
        self.conditions = [
            Condition(tuple(names), plan.runs[names[0]], tuple(dict.fromkeys(i for n in names for i in asked[n])))
            for asked in [{name: plan.predictions(name) for name in plan.runs}]
            for names in alike.values()
        ]

    def cells(self, selector: Mapping[str, Any], *, predicted: bool = True) -> list[Cell]:
        """Every condition, inference, role and site that a merged selector is true of, in the order of the study.

        Without an inference named it is `source`, where that is asked for. Not `predicted`: what is recorded at
        internal sites while training, without an inference. Raises UserError for a setting that no run has.
        """
        return list(self._cells(digest.canonical(selector), predicted))

    @functools.cache  # noqa: B019 - lives as long as the finder
    def _cells(self, canonical: str, predicted: bool) -> tuple[Cell, ...]:
        wanted = resolved(json.loads(canonical))
        for path in (k for k in wanted if "." in k):
            if all(c.setting(path) is ABSENT for c in self.conditions):
                raise UserError(path, "no run of the study has this setting")
        found = []
        for condition in filter(lambda c: _fits(c, wanted), self.conditions):
            for inference in self._inferences(condition, wanted) if predicted else [""]:
                partition = condition.run.partition
                tested = set(condition.run.tested) if predicted else set(partition.internal)
                sites = [(r, s) for r in CHOICES["role"] for s in getattr(partition, r) if s in tested]
                found += [
                    Cell(condition, inference, role, site)
                    for role, site in sites
                    if wanted.get("role", role) == role and wanted.get("site", site) == site
                ]
        return tuple(found)

    def _inferences(self, condition: Condition, wanted: Mapping[str, Any]) -> list[str]:
        asked = {key: self.plan.inferences[key] for key in condition.inferences}
        if given := wanted.get("inference"):
            fit = [key for key, i in asked.items() if all(i.spec().get(k) == v for k, v in given.items())]
            return [key for key in fit if _rest_is_default(asked[key], given)] or fit
        plain = [key for key, i in asked.items() if i.name == BASELINE and not i.uses_labels]
        return plain[:1] or list(asked)


def _rest_is_default(inference: Inference, given: Mapping[str, Any]) -> bool:
    return not set(inference.model_dump(mode="json", exclude_defaults=True)) - set(given)


def _fits(condition: Condition, wanted: Mapping[str, Any]) -> bool:
    """Whether a condition has all settings of a resolved selector; sites and inferences apart."""
    spec = condition.run.spec
    for key, value in wanted.items():
        if key in ("algorithm", "addon", "model"):
            own = spec[key]
            if value is None or own is None:
                if value is not own:
                    return False
            elif any(own.get(k, ABSENT) != v for k, v in value.items()):
                return False
        elif key == "held_out":
            if condition.run.partition.title != value:
                return False
        elif (key == "bn" or "." in key) and condition.setting(key) != value:
            return False
    return True
