"""Selectors: some of a study's conditions, told by their settings.

    { algorithm: fedavg, bn: local, training.local_epochs: 4, inference: { name: tsmobn, momentum: 0.5 } }

Published figures and trends name what they are about by them. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo

from ..algorithms import Training
from ..core import registry
from ..core.errors import UserError, UserErrors, did_you_mean
from ..nn.bn_policy import POLICIES

if TYPE_CHECKING:
    from ..algorithms import Algorithm


PLUGINS = ("algorithm", "addon", "model", "inference")

CHOICES = {"bn": tuple(POLICIES), "role": ("internal", "external")}

NAMES = ("held_out", "site")

PARTS = ("algorithm", "addon", "model", "training", "partition", "data")
"""What a setting by its dotted path begins with."""

BASELINE = "source"

ABSENT = object()


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
    *_, kind, setting = key.split(".")
    return registry.get(kind, str(value), where).name if kind in registry.KINDS and setting == "name" else value


def _plugin(kind: str, value: Any, where: str) -> dict[str, Any]:
    spec = {"name": value} if isinstance(value, str) else value
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        raise UserError(where, "is a name, or a mapping with the key 'name'", f"got {value!r}")
    cls = registry.get(kind, spec["name"], where)
    settings = {k: _setting(cls.model_fields, str(k), v, f"{where}.{k}") for k, v in spec.items() if k != "name"}
    return {"name": cls.name, **settings}


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
            old = out.get(key, ABSENT)
            if isinstance(old, dict) and isinstance(value, dict):
                if clash := [k for k in old if k in value and old[k] != value[k]]:
                    raise UserError(key, f"is both {old[clash[0]]!r} and {value[clash[0]]!r}")
                out[key] = old | value
            elif old is not ABSENT and old != value:
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
