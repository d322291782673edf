"""What was published: the items of the papers, their tables, and their claims, as a study names them.

Imports no torch and no pandas: Snakemake reads a study before anything runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ..core import registry
from ..core.errors import UserError
from ..core.frozen import Frozen
from .fields import MANY
from .selector import Selector, checked

RECORDED = {"training_loss": False, "validation_accuracy": True, "traffic": False}
"""What a trend may be of beside metrics, from the record of the rounds; whether more is better."""


class Published(Frozen):
    """Printed tables, and what their words stand for."""

    tables: Annotated[tuple[str, ...], Field(min_length=1), *MANY] = Field(
        description="names of files in config/published; or paths of CSVs, seen from the study's folder"
    )
    words: dict[str, Selector | None] = Field(
        {},
        description="of the columns method, variant (parts between ';') and site; null: known, and left out on "
        "purpose. A * stands for any text. A plug-in's name need not be told",
    )
    where: Selector = Field({}, description="what holds for every row")
    seeds: Annotated[int, Field(ge=1)] | dict[str, Annotated[int, Field(ge=1)]] = Field(
        5, description="trainings behind a printed value; or by table (others: 5)"
    )
    statistics: bool = Field(True, description="of traffic: whether the model's running statistics count")
    not_comparable: str = Field("", description="why no verdict is to be given, if so")

    def trainings(self, table: str) -> int:
        """How many trainings a value of a table is the mean of."""
        return self.seeds if isinstance(self.seeds, int) else self.seeds.get(table, 5)


def _side(value: Any) -> Any:
    """Words to be merged, several such lists, or a selector."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, dict):
        return checked(value)
    if isinstance(value, list | tuple) and value:
        if all(isinstance(v, str) for v in value):
            return tuple(value)
        return tuple(_side(v) for v in value)
    raise UserError(registry.HERE, "is a list of words, or a mapping of settings", f"got {value!r}")


Side = Annotated[
    tuple[str, ...] | dict[str, Any] | tuple[tuple[str, ...] | dict[str, Any], ...], BeforeValidator(_side)
]


def _of(name: str) -> str:
    if name not in RECORDED:
        registry.get("metric", name, registry.HERE)
    return name


class Trend(Frozen):
    """An ordering, or a gain, that a paper claims."""

    claim: str = Field(description="in one sentence, in your words")
    better: Side = Field(description="words of `published`, merged; or settings; of several of these, the best counts")
    than: Side = Field(description="the same")
    at: Literal["all", "internal", "external"] | tuple[str, ...] = Field("all", description="a role, or sites")
    of: Annotated[str, AfterValidator(_of)] = Field(
        "accuracy",
        description="a metric; or training_loss, validation_accuracy (mean over rounds) or traffic (floats, summed)",
    )
    by: float = Field(0.0, description="the least difference, in points of a percentage, or in the metric's own unit")
    within: float | None = Field(
        None, gt=0, description="in place of `by`: the most that both may differ in either direction, in its unit"
    )
    at_least: Annotated[int, Field(ge=1)] | Literal["all"] | None = Field(
        None, description="sites at which it must hold, or all; default: the mean over sites decides"
    )

    @model_validator(mode="after")
    def _one_bound(self) -> Trend:
        if self.within is not None and self.by:
            raise UserError(f"{registry.HERE}.within", "and by: a trend has one bound", "leave out one of them")
        return self


def table_path(name: str, folder: Path) -> Path:
    """Return the file of a published table: beside the folder of the study, or in config/published."""
    if name.endswith(".csv"):
        return folder / name
    beside = folder.parent / "published" / f"{name}.csv"
    return beside if beside.exists() else Path("config", "published", beside.name)
