"""Selectors: conditions of a study, chosen by their settings.

    { algorithm: fedavg, bn: local, training.local_epochs: 4, inference: { name: tsmobn, momentum: 0.5 } }

`site: union` means the test images of all sites of a role together. `inference: { name: source, client: mean }` means
the mean of the scores of all clients' networks, which FedTAN reports for FedBN and SiloBN: the study has an inference
with the network of each client.

Published tables and trends name conditions by them. Imports no torch.
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
"""First parts of the dotted path of a setting."""

BASELINE = "source"

ABSENT = object()


def checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return a selector with plug-ins as mappings, and values as a run writes them. Raises UserErrors for bad keys."""
    selector: dict[str, Any] = {}
    faults: list[UserError] = []
    for key, value in values.items():
        try:
            selector[key] = _value(str(key), value, f".{key}")
        except UserErrors as errors:
            faults += errors.errors
        except UserError as error:
            faults.append(error)
    if faults:
        raise UserErrors(faults)
    return selector


Selector = Annotated[
    dict[str, Any],
    AfterValidator(checked),
    WithJsonSchema(
        {
            "type": "object",
            "description": "settings of runs: algorithm, bn, addon, model, held_out, inference, role, site, or a "
            "dotted path such as training.local_epochs. The site union means all test images of a role together; an "
            "inference with client: mean means the mean of the scores of all clients' networks, each of which the "
            "study predicts with",
        }
    ),
]


def _value(key: str, value: Any, where: str) -> Any:
    if key == "addon" and value is None:
        return None
    if key in PLUGINS:
        return _plugin(key, value, where)
    if key in CHOICES:
        if value not in CHOICES[key]:
            raise UserError(where, f"unknown value {value!r}", did_you_mean(str(value), CHOICES[key]))
        return value
    if key in NAMES:
        if not isinstance(value, str):
            raise UserError(where, f"must be a name (got {value!r})", "put it in quotes")
        return value
    part, _, rest = key.partition(".")
    if part not in PARTS or not rest:
        paths = [f"training.{name}" for name in Training.model_fields]
        raise UserError(where, f"unknown key {key!r}", did_you_mean(key, [*PLUGINS, *CHOICES, *NAMES, *paths]))
    if part == "training":
        return _setting(Training.model_fields, rest, value, where)
    *_, kind, setting = key.split(".")
    is_name = kind in registry.KINDS and setting == "name"
    return registry.get(kind, str(value), where).name if is_name else value


def _plugin(kind: str, value: Any, where: str) -> dict[str, Any]:
    spec = value
    if isinstance(value, str):
        spec = {"name": value}
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        raise UserError(where, "must be a name, or a mapping with the key 'name'", f"got {value!r}")
    cls = registry.get(kind, spec["name"], where)
    settings = {k: _setting(cls.model_fields, str(k), v, f"{where}.{k}") for k, v in spec.items() if k != "name"}
    return {"name": cls.name, **settings}


def _setting(fields: Mapping[str, FieldInfo], name: str, value: Any, where: str) -> Any:
    """Return a value as a run writes it: 1e-3, which YAML reads as text, becomes 0.001. Raises UserError if invalid."""
    if name not in fields:
        raise UserError(where, f"unknown setting {name!r}", did_you_mean(name, fields))
    # The field's own bounds apply, without the other fields of its model, which a selector need not give.
    adapter: TypeAdapter[Any] = TypeAdapter(fields[name].rebuild_annotation())
    try:
        return adapter.dump_python(adapter.validate_python(value), mode="json")
    except ValidationError as error:
        raise UserError(where, f"{error.errors()[0]['msg']} (got {value!r})") from None


def merged(selectors: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one selector with the keys of all. Raises UserError at a key with two different values."""
    out: dict[str, Any] = {}
    for selector in selectors:
        for key, value in selector.items():
            old = out.get(key, ABSENT)
            if isinstance(old, dict) and isinstance(value, dict):
                for setting in old:
                    if setting in value and old[setting] != value[setting]:
                        raise UserError(key, f"is both {old[setting]!r} and {value[setting]!r}")
                out[key] = old | value
            elif old is not ABSENT and old != value:
                raise UserError(key, f"is both {old!r} and {value!r}")
            else:
                out[key] = value
    return out


def resolved(selector: Mapping[str, Any]) -> dict[str, Any]:
    """Return the selector of the runs that a study trains under these names.

    An algorithm has no add-on and its usual BN policy, unless the selector names others. FedBN becomes FedAvg with
    local BN, as in a study. Raises UserError for a BN policy that the algorithm cannot have.
    """
    out = dict(selector)
    algorithm = out.get("algorithm")
    if not algorithm:
        return out
    cls: type[Algorithm] = registry.get("algorithm", algorithm["name"])  # type: ignore[assignment]
    bn = out.setdefault("bn", cls.policies[0])
    if bn not in cls.policies:
        raise UserError(
            "bn",
            f"{bn!r} has no meaning with {cls.name}: {cls.why}",
            f"remove it, or use one of {', '.join(cls.policies)}",
        )
    out["algorithm"] = algorithm | {"name": cls.stands_for or cls.name}
    out.setdefault("addon", None)
    return out
