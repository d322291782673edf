"""Settings of local training and of the rounds, whatever the algorithm."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from ..core import registry
from ..core.errors import UserError
from ..core.frozen import Frozen


def _known_criterion(name: str) -> str:
    return name if name == "loss" else registry.get("metric", name, registry.HERE).name


class Training(Frozen, allow_inf_nan=False):
    """Plain SGD at the clients, re-created each round, and how long the federation goes on."""

    rounds: int = Field(100, ge=1, description="communication rounds")
    participation: float = Field(1.0, gt=0, le=1, description="fraction of clients that take part in a round, drawn")
    local_epochs: int = Field(1, ge=1, description="passes over a client's data in a round (E)")
    local_steps: int | None = Field(None, ge=1, description="E as SGD steps, in place of epochs")
    batch_size: int = Field(32, ge=2, description="images a local step; a last batch of one joins the one before it")
    equal_steps: bool = Field(
        False, description="every client takes as many steps a round as the one with most images, over its own again"
    )
    replacement: bool = Field(False, description="draw every batch anew from all of a client's data, always full")
    lr: float = Field(0.01, gt=0, description="learning rate of the clients")
    schedule: Literal["constant", "cosine", "exponential", "steps"] = Field(
        "constant",
        description="of lr over rounds; cosine falls from lr in the first round towards 0 after the last, "
        "exponential multiplies it by lr_decay each round, steps takes lr_steps",
    )
    lr_decay: float = Field(0.998, gt=0, le=1, description="factor a round of the exponential schedule")
    lr_steps: dict[int, float] | None = Field(
        None, description="of the schedule steps: {first round of a new rate: the rate}"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="of the clients' SGD; its buffer starts at zero each round")
    weight_decay: float = Field(0.0, ge=0, description="of the clients' SGD")
    clip_norm: float | None = Field(
        None, gt=0, description="largest norm of a step's gradient over all trainable tensors, corrections included"
    )
    weights: Literal["size", "uniform"] = Field("size", description="clients count by training samples, or equally")
    running_variance: Literal["averaged", "pooled"] = Field(
        "averaged",
        description="where it travels, the mean of the clients' as published, or the variance of all their data",
    )
    select: Literal["best_validation", "last"] = Field(
        "best_validation",
        description="keep the round with the best mean validation value over clients, or the last",
    )
    select_by: Annotated[str, AfterValidator(_known_criterion)] | None = Field(
        None, description="what best_validation compares: a metric, or loss; default: the study's headline metric"
    )
    watch_every: int | None = Field(
        None, ge=1, description="rounds between looks at the external sites, for curves; nothing is selected by them"
    )
    patience: int | None = Field(None, ge=1, description="stop after so many rounds without a better validation mean")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16 is autocast in training and validation"
    )
    channels_last: bool = Field(False, description="memory format of images and convolutions")

    @model_validator(mode="after")
    def _together(self) -> Training:
        if self.patience and self.select == "last":
            raise UserError("patience", "waits for a better validation mean, but select is last", "drop one of the two")
        if self.local_steps and self.local_epochs != 1:
            raise UserError("local_steps", "and local_epochs both say how long a round is", "drop one of the two")
        if self.local_steps and self.equal_steps:
            raise UserError("equal_steps", "has no effect with local_steps", "drop one of the two")
        if (self.schedule == "steps") != bool(self.lr_steps):
            raise UserError("lr_steps", "and schedule: steps need one another", "give both or neither")
        steps = self.lr_steps or {}
        if bad := [k for k, rate in steps.items() if not 1 < k <= self.rounds or rate <= 0]:
            what = f"round {bad[0]} with rate {steps[bad[0]]:g}"
            raise UserError("lr_steps", what, f"rounds go from 2 to {self.rounds}, rates above 0")
        return self

    def identity(self) -> dict[str, Any]:
        """Return the settings as plain data for ids: `select_by` only where it is not accuracy, the first choice."""
        settings = self.model_dump(mode="json")
        if settings["select_by"] in (None, "accuracy"):
            del settings["select_by"]
        return settings

    def require_batch(self, site: str, samples: int) -> None:
        """Raise UserError where a client has less than one batch to train on."""
        if samples < self.batch_size:
            raise UserError(
                f"client {site!r}",
                f"has {samples} training images, fewer than one batch of {self.batch_size}",
                "lower training.batch_size, or make the site external",
            )

    def clients_in_round(self, clients: int) -> int:
        """How many of so many clients take part in a round."""
        return max(1, round(self.participation * clients))

    def rate(self, number: int) -> float:
        """The learning rate of round `number`, counted from 1."""
        if self.schedule == "exponential":
            return self.lr * self.lr_decay ** (number - 1)
        if self.lr_steps:
            begun = [first for first in self.lr_steps if first <= number]
            return self.lr_steps[max(begun)] if begun else self.lr
        if self.schedule == "cosine":
            done = min((number - 1) / self.rounds, 1.0)
            return self.lr * (1 + math.cos(math.pi * done)) / 2
        return self.lr
