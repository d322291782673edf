"""Published tables and claims that a study is compared with, and the selectors by which they name its conditions.

    { algorithm: fedavg, bn: local, training.local_epochs: 4, inference: { name: tsmobn, momentum: 0.5 } }

`site: union` means the test images of all sites of a role together. `inference: { name: source, client: mean }` means
the mean of the scores of all clients' networks, which FedTAN reports for FedBN and SiloBN: the study has an inference
with the network of each client.

Imports no torch and no pandas: Snakemake reads a study before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo

from ..algorithms import Algorithm, Training
from ..core import registry
from ..core.errors import UserError, UserErrors, did_you_mean, require_none
from ..core.plugin import MANY, Frozen
from ..io.paths import STUDIES
from ..io.shipped import SHIPPED
from ..nn.policies import POLICIES, norm_types

PLUGINS = ("algorithm", "addon", "model", "inference")

CHOICES = {"bn": tuple(POLICIES), "role": ("internal", "external")}

NAMES = ("held_out", "site")

PARTS = ("algorithm", "addon", "model", "training", "partition", "data")
"""First parts of the dotted path of a setting."""

BASELINE = "source"

ABSENT = object()
RECORDED = {"training_loss": False, "step_loss": False, "validation_accuracy": True, "traffic": False}
"""Quantities of a trend that come from the table of rounds; whether more of each is better."""


def checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return a selector with plug-ins as mappings, and values as a run writes them. Raises UserErrors for bad keys."""
    selector: dict[str, Any] = {}
    faults: list[UserError] = []
    for key, value in values.items():
        try:
            selector[key] = _value(str(key), value, f".{key}")
        except UserError as error:
            faults += error.errors if isinstance(error, UserErrors) else [error]
    require_none(faults)
    return selector


Selector = Annotated[
    dict[str, Any],
    AfterValidator(checked),
    WithJsonSchema(
        {
            "type": "object",
            "description": "settings of runs: algorithm, bn, norms, addon, model, held_out, inference, role, site, or "
            "a dotted path such as training.local_epochs. The site union means all test images of a role together; an "
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
    if key == "norms":
        return list(norm_types(value, where))
    part, _, rest = key.partition(".")
    if part not in PARTS or not rest:
        paths = [f"training.{name}" for name in Training.model_fields]
        raise UserError(where, f"unknown key {key!r}", did_you_mean(key, [*PLUGINS, *CHOICES, *NAMES, "norms", *paths]))
    if part == "training":
        return _setting(Training.model_fields, rest, value, where)
    *_, kind, setting = key.split(".")
    is_name = kind in registry.KINDS and setting == "name"
    return registry.get(kind, str(value), where).name if is_name else value


def _plugin(kind: str, value: Any, where: str) -> dict[str, Any]:
    spec = {"name": value} if isinstance(value, str) else value
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
        problem = f"{bn!r} has no meaning with {cls.name}: {cls.why}"
        raise UserError("bn", problem, f"remove it, or use one of {', '.join(cls.policies)}")
    out["algorithm"] = algorithm | {"name": cls.stands_for or cls.name}
    out.setdefault("addon", None)
    return out


class Published(Frozen):
    """Published tables, and the conditions that their words stand for."""

    tables: Annotated[tuple[str, ...], Field(min_length=1), *MANY] = Field(
        description="names of files in config/published, or paths of CSV files relative to the study's folder"
    )
    words: dict[str, Selector | None] = Field(
        {},
        description="the meaning of each word in the columns method, variant (words are separated by ';') and site; "
        "null: the word is known, and its rows are left out on purpose. A * stands for any text. Names of plug-ins "
        "need no entry",
    )
    where: Selector = Field({}, description="settings that hold for every row")
    seeds: Annotated[int, Field(ge=1)] | dict[str, Annotated[int, Field(ge=1)]] = Field(
        5, description="number of trainings behind a printed value: one for all tables, or by table (others: 5)"
    )
    statistics: bool = Field(True, description="whether traffic includes the model's running statistics")
    not_comparable: str = Field("", description="the reason why no verdict is given, if none is to be given")

    def trainings(self, table: str) -> int:
        """Return the number of trainings whose mean a value of a table is."""
        return self.seeds if isinstance(self.seeds, int) else self.seeds.get(table, 5)


def _side(value: Any) -> Any:
    """Return one side of a trend: words to be merged, a selector, or several of these."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, dict):
        return checked(value)
    if isinstance(value, list | tuple) and value:
        if all(isinstance(v, str) for v in value):
            return tuple(value)
        return tuple(_side(v) for v in value)
    raise UserError("", "must be a list of words, or a mapping of settings", f"got {value!r}")


Side = Annotated[
    tuple[str, ...] | dict[str, Any] | tuple[tuple[str, ...] | dict[str, Any], ...], BeforeValidator(_side)
]


def _of(name: str) -> str:
    if name not in RECORDED:
        registry.get("metric", name, "")
    return name


class Trend(Frozen):
    """A claim of a paper: that one condition is better than another, or that both are alike."""

    claim: str = Field(description="the claim, in one sentence of your own words")
    better: Side = Field(
        description="the side that is better: words of `published`, merged, or settings; of several, the best counts"
    )
    than: Side = Field(description="the other side, given in the same way")
    at: Literal["all", "internal", "external"] | tuple[str, ...] = Field(
        "all",
        description="the sites that count: a role, or a list of sites; [union]: the test images of all sites of a role "
        "together, whose metric is that of one large site",
    )
    of: Annotated[str, AfterValidator(_of)] = Field(
        "accuracy",
        description="the quantity: a metric; training_loss, step_loss or validation_accuracy (means over rounds); or "
        "traffic (2^20 bytes of a client, sum over rounds). training_loss is that of the averaged model on a client's "
        "training images (training.training_loss_every), step_loss that of the local steps before averaging",
    )
    by: float = Field(
        0.0, description="the smallest difference that counts, in percentage points or in the unit of the metric"
    )
    within: float | None = Field(
        None,
        gt=0,
        description="instead of `by`: the largest difference, in either direction, with which both sides are alike",
    )
    at_least: Annotated[int, Field(ge=1)] | Literal["all"] | None = Field(
        None, description="number of sites at which the claim must hold, or all; default: the mean over sites decides"
    )

    @model_validator(mode="after")
    def _one_bound(self) -> Trend:
        if self.within is not None and self.by:
            raise UserError(".within", "and by: a trend has one bound", "remove one of the two")
        return self


def table_path(name: str, folder: Path) -> Path:
    """Return the file of a published table: beside the study's folder, in config/published, or among the shipped."""
    if name.endswith(".csv"):
        return folder / name
    places = (folder.parent, STUDIES.parent, SHIPPED / STUDIES.parent)
    files = [place / "published" / f"{name}.csv" for place in places]
    return next((file for file in files if file.exists()), files[1])
