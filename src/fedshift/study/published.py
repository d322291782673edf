"""The published tables and claims that a study is compared with.

Imports no torch and no pandas: Snakemake reads a study before anything runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ..core import registry
from ..core.errors import UserError
from ..io.paths import STUDIES
from ..io.shipped import SHIPPED
from .fields import MANY
from .run import Frozen
from .selector import Selector, checked

RECORDED = {"training_loss": False, "step_loss": False, "validation_accuracy": True, "traffic": False}
"""Quantities of a trend that come from the table of rounds; whether more of each is better."""


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
    """Return the file of a published table.

    It lies beside the folder of the study, in config/published of the project, or among those that come with fedshift.
    """
    if name.endswith(".csv"):
        return folder / name
    places = (folder.parent, STUDIES.parent, SHIPPED / STUDIES.parent)
    files = [place / "published" / f"{name}.csv" for place in places]
    return next((file for file in files if file.exists()), files[1])
