"""Settings of local training and of the rounds, whatever the algorithm."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .errors import UserError


class Training(BaseModel):
    """Plain SGD at the clients, re-created each round, and how long the federation goes on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    rounds: int = Field(100, ge=1, description="communication rounds")
    local_epochs: int = Field(1, ge=1, description="passes over a client's data in a round (E)")
    batch_size: int = Field(32, ge=2, description="images a local step; a last batch of one joins the one before it")
    lr: float = Field(0.01, gt=0, description="learning rate of the clients")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="of lr over rounds; cosine falls from lr in the first round towards 0 after the last"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="of the clients' SGD; its buffer starts at zero each round")
    weight_decay: float = Field(0.0, ge=0, description="of the clients' SGD")
    weights: Literal["size", "uniform"] = Field("size", description="clients count by training samples, or equally")
    select: Literal["best_validation", "last"] = Field(
        "best_validation",
        description="keep the round with the highest mean validation accuracy over clients, or the last",
    )
    patience: int | None = Field(None, ge=1, description="stop after so many rounds without a better validation mean")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="bfloat16 is autocast, on a GPU")
    channels_last: bool = Field(False, description="memory format of images and convolutions")

    @model_validator(mode="after")
    def _patience_needs_selection(self) -> Training:
        if self.patience and self.select == "last":
            raise UserError("patience", "waits for a better validation mean, but select is last", "drop one of the two")
        return self

    def require_batch(self, site: str, samples: int) -> None:
        """Raise UserError where a client has less than one batch to train on."""
        if samples < self.batch_size:
            raise UserError(
                f"client {site!r}",
                f"has {samples} training images, fewer than one batch of {self.batch_size}",
                "lower training.batch_size, or make the site external",
            )

    def rate(self, number: int) -> float:
        """The learning rate of round `number`, counted from 1."""
        if self.schedule == "constant":
            return self.lr
        done = min((number - 1) / self.rounds, 1.0)
        return self.lr * (1 + math.cos(math.pi * done)) / 2
