"""Selectors: some of a study's conditions, told by their settings.

    { algorithm: fedavg, bn: local, training.local_epochs: 4, inference: { name: tsmobn, momentum: 0.5 } }

Published figures and trends name what they are about by them. Imports no torch.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo

from . import digest, registry
from .bn import POLICIES
from .errors import UserError, UserErrors, did_you_mean
from .training import Training

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .inference import Inference
    from .run import Run
    from .study import Plan

PLUGINS = ("algorithm", "addon", "model", "inference")
CHOICES = {"bn": tuple(POLICIES), "role": ("internal", "external")}
NAMES = ("held_out", "site")
PARTS = ("algorithm", "addon", "model", "training", "partition", "data")
"""What a setting by its dotted path begins with."""
BASELINE = "source"
_ABSENT = object()


def checked(values: dict[str, Any]) -> dict[str, Any]:
    """A selector with plug-ins as mappings, and settings as they stand in a run. Raises UserErrors, one a wrong key."""
    found: dict[str, Any] = {}
    faults: list[UserError] = []
    for key, value in values.items():
        try:
            found[key] = _value(str(key), value, f"{registry.HERE}.{key}")
        except UserErrors as errors:
            faults += errors.errors
        except UserError as error:
            faults.append(error)
    if faults:
        raise UserErrors(faults)
    return found


Selector = Annotated[
    dict[str, Any],
    AfterValidator(checked),
    WithJsonSchema(
        {
            "type": "object",
            "description": "settings of runs: algorithm, bn, addon, model, held_out, inference, role, site, or a "
            "dotted path such as training.local_epochs",
        }
    ),
]


def _value(key: str, value: Any, where: str) -> Any:
    if key in PLUGINS:
        return None if value is None and key == "addon" else _plugin(key, value, where)
    if key in CHOICES:
        if value not in CHOICES[key]:
            raise UserError(where, f"unknown value {value!r}", did_you_mean(str(value), CHOICES[key]))
        return value
    if key in NAMES:
        if not isinstance(value, str):
            raise UserError(where, f"is a name (got {value!r})", "put it in quotes")
        return value
    part, _, rest = key.partition(".")
    if part not in PARTS or not rest:
        paths = [f"training.{name}" for name in Training.model_fields]
        raise UserError(where, f"unknown key {key!r}", did_you_mean(key, [*PLUGINS, *CHOICES, *NAMES, *paths]))
    if part == "training":
        return _setting(Training.model_fields, rest, value, where)
    return value


def _plugin(kind: str, value: Any, where: str) -> dict[str, Any]:
    spec = {"name": value} if isinstance(value, str) else value
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        raise UserError(where, "is a name, or a mapping with the key 'name'", f"got {value!r}")
    fields = registry.get(kind, spec["name"], where).model_fields
    return {k: v if k == "name" else _setting(fields, str(k), v, f"{where}.{k}") for k, v in spec.items()}


def _setting(fields: Mapping[str, FieldInfo], name: str, value: Any, where: str) -> Any:
    """A setting as it is written in a run's spec: 1e-3, which YAML takes for text, is 0.001."""
    if name not in fields:
        raise UserError(where, f"unknown setting {name!r}", did_you_mean(name, fields))
    adapter: TypeAdapter[Any] = TypeAdapter(fields[name].rebuild_annotation())
    try:
        return adapter.dump_python(adapter.validate_python(value), mode="json")
    except ValidationError as error:
        raise UserError(where, f"{error.errors()[0]['msg']} (got {value!r})") from None


def merged(selectors: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All that the selectors say. Raises UserError, about the key, where two contradict each other."""
    out: dict[str, Any] = {}
    for selector in selectors:
        for key, value in selector.items():
            old = out.get(key, _ABSENT)
            if isinstance(old, dict) and isinstance(value, dict):
                if clash := [k for k in old if k in value and old[k] != value[k]]:
                    raise UserError(key, f"is both {old[clash[0]]!r} and {value[clash[0]]!r}")
                out[key] = old | value
            elif old is not _ABSENT and old != value:
                raise UserError(key, f"is both {old!r} and {value!r}")
            else:
                out[key] = value
    return out


def resolved(selector: Mapping[str, Any]) -> dict[str, Any]:
    """The selector of what a study runs under these names.

    A named algorithm is without an add-on and has its usual BN policy, unless the selector says otherwise; FedBN is
    FedAvg with local BN. Raises UserError for a BN policy that the algorithm cannot have.
    """
    out = dict(selector)
    if not (named := out.get("algorithm")):
        return out
    cls: type[Algorithm] = registry.get("algorithm", named["name"])  # type: ignore[assignment]
    bn = out.setdefault("bn", cls.policies[0])
    if bn not in cls.policies:
        raise UserError("bn", f"{bn!r} has no meaning with {cls.name}: {cls.why}", f"leave it, or say {cls.policies}")
    out["algorithm"] = named | {"name": cls.stands_for or cls.name}
    out.setdefault("addon", None)
    return out


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
                return _ABSENT
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
            if all(c.setting(path) is _ABSENT for c in self.conditions):
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
        plain = [key for key, i in asked.items() if i.name == BASELINE and not i.personalise]
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
            elif any(own.get(k, _ABSENT) != v for k, v in value.items()):
                return False
        elif key == "held_out":
            if condition.run.partition.title != value:
                return False
        elif (key == "bn" or "." in key) and condition.setting(key) != value:
            return False
    return True
