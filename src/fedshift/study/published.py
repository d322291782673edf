"""Published tables and claims that a study is compared with, and selectors: mappings that name some runs of a study.

    { algorithm: fedavg, bn: local, training.local_epochs: 4, inference: { name: tsmobn, momentum: 0.5 } }

The line above is a selector. `site: union` means the test images of all sites of a role together. `inference: { name:
source, client: mean }` means the mean of the scores of all clients' networks, which FedTAN reports for FedBN and
SiloBN: the study has an inference with the network of each client.

This module imports no torch and no pandas, since Snakemake reads a study before anything runs.
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
"""Keys of a selector whose values are plug-ins."""

CHOICES = {"bn": tuple(POLICIES), "role": ("internal", "external")}
"""Keys of a selector with a fixed set of values."""

NAMES = ("held_out", "site")
"""Keys of a selector whose values are names of sites."""

PARTS = ("algorithm", "addon", "model", "training", "partition", "data")
"""First parts of the dotted path of a run's setting, which may be a key of a selector."""

BASELINE = "source"
"""The inference that predicts with the trained network unchanged."""

ABSENT = object()
RECORDED = {"training_loss": False, "step_loss": False, "validation_accuracy": True, "traffic": False}
"""Quantities of a Trend that are read from the table of rounds instead of the scores, and True if more is better."""


def checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return a selector with plug-ins as mappings and values as a run's specification stores them.

    Raises UserErrors for unknown keys and invalid values.
    """
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
    """Return the checked value of one key of a selector. Raises UserError, with the key `where`."""
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
    """Return a plug-in of a selector, a name or a mapping, as a mapping with its current name and checked settings.

    Raises UserError, with the key `where`, for an unknown plug-in, an unknown setting or an invalid value.
    """
    spec = {"name": value} if isinstance(value, str) else value
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        raise UserError(where, "must be a name, or a mapping with the key 'name'", f"got {value!r}")
    cls = registry.get(kind, spec["name"], where)
    settings = {k: _setting(cls.model_fields, str(k), v, f"{where}.{k}") for k, v in spec.items() if k != "name"}
    return {"name": cls.name, **settings}


def _setting(fields: Mapping[str, FieldInfo], name: str, value: Any, where: str) -> Any:
    """Return the value of a setting as a run's specification stores it: 1e-3, which YAML reads as text, becomes 0.001.

    `fields` are the pydantic fields of the settings. Raises UserError, with the key `where`, for an unknown name or an
    invalid value.
    """
    if name not in fields:
        raise UserError(where, f"unknown setting {name!r}", did_you_mean(name, fields))
    # The field's own bounds apply, without the other fields of its model, which a selector need not give.
    adapter: TypeAdapter[Any] = TypeAdapter(fields[name].rebuild_annotation())
    try:
        return adapter.dump_python(adapter.validate_python(value), mode="json")
    except ValidationError as error:
        raise UserError(where, f"{error.errors()[0]['msg']} (got {value!r})") from None


def merged(selectors: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one selector with the keys of all given ones. Raises UserError for a key with two different values."""
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
    """Return a selector with the defaults that a study adds to a run, so that it matches the runs as they are stored.

    A selector with an algorithm gets no add-on and the algorithm's usual BN policy, unless it names others. FedBN
    becomes FedAvg with local BN. Raises UserError for a BN policy that the algorithm cannot have.
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
    """Published tables that a study is compared with, and the conditions that the words in their columns stand for."""

    tables: Annotated[tuple[str, ...], Field(min_length=1), *MANY] = Field(
        description="names of files in config/published, or paths of CSV files relative to the study's folder"
    )
    words: dict[str, Selector | None] = Field(
        {},
        description="the meaning of each word in the columns method, variant (words are separated by ';') and site, as "
        "settings of runs; null: rows with the word are left out on purpose. A * stands for any text. Names of "
        "plug-ins need no entry",
    )
    where: Selector = Field({}, description="settings of runs that hold for every row of the tables")
    seeds: Annotated[int, Field(ge=1)] | dict[str, Annotated[int, Field(ge=1)]] = Field(
        5, description="number of trainings behind a printed value: one for all tables, or by table (others: 5)"
    )
    statistics: bool = Field(True, description="whether traffic includes the model's running statistics")
    not_comparable: str = Field("", description="the reason why no verdict is given, if none is to be given")

    def trainings(self, table: str) -> int:
        """Return the number of trainings over which each value of the published table is a mean."""
        return self.seeds if isinstance(self.seeds, int) else self.seeds.get(table, 5)


def _side(value: Any) -> Any:
    """Return the checked value of one side of a trend: a tuple of words to be merged, a selector, or several of these.

    Raises UserError for any other value.
    """
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
    """Return the name of a trend's quantity unchanged. Raises UserError unless it is in RECORDED or a metric."""
    if name not in RECORDED:
        registry.get("metric", name, "")
    return name


class Trend(Frozen):
    """A claim of a paper: one condition (algorithm x batch norm policy x settings) is better than another, or equal."""

    claim: str = Field(description="the claim, in one sentence of your own words")
    better: Side = Field(
        description="the condition that is better: a list of words of `published`, which are merged, or settings of "
        "runs; of several conditions the best one counts"
    )
    than: Side = Field(description="the condition that it is compared with, given in the same way")
    at: Literal["all", "internal", "external"] | tuple[str, ...] = Field(
        "all",
        description="the sites that count: all, a role, or a list of sites; [union] pools the test images of all sites "
        "of a role into one",
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
            raise UserError(".within", "is given, and so is by: a trend has one bound", "remove one of the two")
        return self


def table_path(name: str, folder: Path) -> Path:
    """Return the file of a published table, given by its path relative to the study's `folder`, or by its name.

    A name is looked up in the folder `published` beside the study's folder, in config/published, and among fedshift's
    own tables. If no file exists, the path in config/published is returned.
    """
    if name.endswith(".csv"):
        return folder / name
    places = (folder.parent, STUDIES.parent, SHIPPED / STUDIES.parent)
    files = [place / "published" / f"{name}.csv" for place in places]
    return next((file for file in files if file.exists()), files[1])
