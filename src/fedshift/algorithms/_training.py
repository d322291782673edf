"""Settings of local training and of the rounds, common to all algorithms."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ..core import registry
from ..core.errors import UserError
from ..core.plugin import Frozen


def _known_criterion(name: str) -> str:
    """Return the name of a metric plug-in, or `loss`. Raises UserError for an unknown name."""
    return name if name == "loss" else registry.get("metric", name, "").name


def _weights(value: Any) -> Any:
    """Validate a value of `class_weights` and return it: None, balanced, or a list of positive numbers.

    Raises one UserError, where pydantic would raise an error for each permitted form.
    """
    weights = value if isinstance(value, list | tuple) else ()
    # True is an int in Python, but a mistake here.
    positive = [isinstance(w, int | float) and not isinstance(w, bool) and w > 0 for w in weights]
    if value in (None, "balanced") or (positive and all(positive)):
        return value
    raise UserError("", f"is {value!r}", "give balanced, or a list with a weight above 0 for each class")


def _trained(value: Any) -> Any:
    """Validate a value of `train` and return it in its canonical form: all, head, or (norm, head).

    Raises one UserError, where pydantic would raise an error for each permitted form.
    """
    forms: dict[tuple[str, ...], Any] = {("all",): "all", ("head",): "head", ("head", "norm"): ("norm", "head")}
    parts = [value] if isinstance(value, str) else value
    key = tuple(sorted(map(str, parts))) if isinstance(parts, list | tuple) else ()
    if key not in forms:
        raise UserError("", f"is {value!r}", "give all, head (a linear probe), or [norm, head] (norm tuning)")
    return forms[key]


ADAM = ("optimiser", "beta1", "beta2")
"""The setting that chooses Adam, and the settings that only Adam has. `Training.identity` leaves them out under SGD."""
LATER = (
    *("training_loss_every", "training_loss_images", "class_weights", "clip_adaptive", "select_at", "epochs_at"),
    "stacked",
)
"""Settings that were added later. `Training.identity` leaves them out where they are false, zero, empty or None."""


class Training(Frozen, allow_inf_nan=False):
    """Settings of the rounds and of the clients' local training, whose optimiser starts anew in each round.

    Every field has a default; `docs/reference/study.md` lists them. Raises pydantic's ValidationError for a wrong
    value, or UserError if the value comes from a study or a `Federation`.

    Examples
    --------
    >>> from fedshift import Training
    >>> training = Training(rounds=50, lr=0.1, schedule="cosine")
    >>> training.batch_size, round(training.rate(1), 6), round(training.rate(26), 6)
    (32, 0.1, 0.05)
    """

    rounds: int = Field(100, ge=1, description="number of communication rounds")
    participation: float = Field(
        1.0, gt=0, le=1, description="fraction of the clients that take part in a round; they are drawn at random"
    )
    local_epochs: int = Field(1, ge=1, description="number of passes over a client's data in a round (E)")
    epochs_at: dict[str, Annotated[int, Field(ge=1)]] = Field(
        {},
        description="number of passes over the data of single clients in a round, in place of local_epochs: such as "
        "{north: 1} for a client that has less time than the others",
    )
    local_steps: int | None = Field(
        None, ge=1, description="number of SGD steps of a client in a round, in place of local_epochs"
    )
    batch_size: int = Field(
        32, ge=2, description="number of images in a local step; a last batch of one image joins the batch before it"
    )
    equal_steps: bool = Field(
        False,
        description="let every client take as many steps in a round as the client with most images; "
        "it goes over its own images again",
    )
    replacement: bool = Field(
        False, description="draw every batch anew from all of a client's data; every batch is then full"
    )
    lr: float = Field(0.01, gt=0, description="learning rate of the clients")
    schedule: Literal["constant", "cosine", "exponential", "steps"] = Field(
        "constant",
        description="how the learning rate changes over rounds: cosine falls from lr in the first round towards 0 "
        "after the last, exponential multiplies it by lr_decay in each round, steps takes the rates of lr_steps",
    )
    lr_decay: float = Field(
        0.998, gt=0, le=1, description="factor on the learning rate in each round of the exponential schedule"
    )
    lr_steps: dict[int, float] | None = Field(
        None, description="learning rates of the schedule steps: {first round with the new rate: the rate}"
    )
    optimiser: Literal["sgd", "adam", "adamw"] = Field(
        "sgd",
        description="optimiser of the clients' local steps, which starts again in each round; the corrections of an "
        "algorithm enter the gradient before the moments of adam",
    )
    momentum: float = Field(
        0.0, ge=0, lt=1, description="momentum of the clients' SGD; its buffer starts at zero in each round"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the running mean of gradients in adam and adamw")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of the running mean of squares in adam and adamw")
    weight_decay: float = Field(
        0.0, ge=0, description="weight decay of the clients: part of the gradient, but apart from it in adamw"
    )
    train: Annotated[Literal["all", "head"] | tuple[Literal["norm"], Literal["head"]], BeforeValidator(_trained)] = (
        Field(
            "all",
            description="layers that are trained: all; head, the last one (linear probe: batch norm stays in "
            "evaluation mode); or [norm, head] (norm tuning: running statistics move, too). The others keep their "
            "initial values, and do not travel",
        )
    )
    class_weights: Annotated[
        Literal["balanced"] | tuple[Annotated[float, Field(gt=0)], ...] | None, BeforeValidator(_weights)
    ] = Field(
        None,
        description="weight of each class in the loss of local steps: a list, or balanced, which is the number of "
        "training images of all internal sites, divided by the number of classes and by those of the class; default: "
        "all classes count alike",
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        description="largest norm of the gradient of a local step, over all trainable tensors; "
        "the corrections of an algorithm are included",
    )
    clip_adaptive: float | None = Field(
        None,
        gt=0,
        description="largest norm of the gradient of each row of weights (a filter, a unit, a vector), as a multiple "
        "of the norm of the row itself: adaptive gradient clipping, as in FedWon; the last layer is not clipped",
    )
    weights: Literal["size", "uniform"] = Field(
        "size", description="weight of a client: by its number of training samples, or the same for all clients"
    )
    running_variance: Literal["averaged", "pooled"] = Field(
        "averaged",
        description="running variances that travel become the mean of the clients' variances, as published, "
        "or the variance of all clients' data",
    )
    select: Literal["best_validation", "last"] = Field(
        "best_validation",
        description="keep the round with the best mean validation value over clients, or the last round",
    )
    select_by: Annotated[str, AfterValidator(_known_criterion)] | None = Field(
        None,
        description="value that best_validation compares: a metric, or loss; default: the study's headline metric",
    )
    select_at: tuple[str, ...] = Field(
        (),
        description="sites outside the partition whose images choose the round, in place of the clients' validation "
        "images: they neither train nor test",
    )
    watch_every: int | None = Field(
        None,
        ge=1,
        description="number of rounds from one test on the external sites to the next, for curves; "
        "no round is selected by these tests",
    )
    training_loss_every: int | None = Field(
        None,
        ge=1,
        description="number of rounds from one evaluation of the averaged model on each client's training images to "
        "the next, for curves; each client is evaluated with its own batch norm",
    )
    training_loss_images: int | None = Field(
        None,
        ge=1,
        description="largest number of images of a client for training_loss_every, spread evenly over its training "
        "images; default: all of them",
    )
    patience: int | None = Field(
        None, ge=1, description="stop after this number of rounds without a better mean validation value"
    )
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32",
        description="number format in training and validation. tf32 rounds the inputs of products and convolutions to "
        "10 bits, on NVIDIA GPUs since Ampere; bfloat16 runs forward passes by autocast. Weights are float32 in any "
        "case, and predictions are computed in float32",
    )
    channels_last: bool | None = Field(
        None,
        description="whether images and convolutions are stored with the channels last in memory; default: for "
        "networks that convolve images, on a CPU or a GPU",
    )
    deterministic: bool = Field(
        True,
        description="use kernels that give the same bits each time, on a GPU, also where others are faster; an "
        "operation that has none ends the job. Without effect on a CPU",
    )

    stacked: Literal["auto"] | bool = Field(
        False,
        description="true lets clients take their local steps together, in one pass over all their networks: faster "
        "for many clients of a small network, and equal but for rounding. auto does so for small networks without "
        "convolutions. Where method or network do not allow it, clients train one after another, and the log says why. "
        "Between real sites it has no effect",
    )

    @model_validator(mode="after")
    def _together(self) -> Training:
        """Raise UserError for settings that contradict each other, or of which one has no effect beside another."""
        if self.momentum and self.optimiser != "sgd":
            raise UserError("momentum", f"is a setting of sgd, and not of {self.optimiser}", "set it to 0; see beta1")
        if self.clip_norm and self.clip_adaptive:
            raise UserError("clip_adaptive", "and clip_norm both shorten the gradient", "drop one of the two")
        if self.select_at and self.select == "last":
            raise UserError("select_at", "chooses the round, but select is last", "drop one of the two")
        if self.patience and self.select == "last":
            raise UserError("patience", "waits for a better validation mean, but select is last", "drop one of the two")
        if self.local_steps and self.local_epochs != 1:
            raise UserError("local_steps", "and local_epochs both say how long a round is", "drop one of the two")
        if self.local_steps and self.equal_steps:
            raise UserError("equal_steps", "has no effect with local_steps", "drop one of the two")
        if self.epochs_at and (self.local_steps or self.equal_steps):
            other = "local_steps" if self.local_steps else "equal_steps"
            raise UserError("epochs_at", f"and {other} both say how long a round is", "drop one of the two")
        if self.training_loss_images and not self.training_loss_every:
            problem = "limits an evaluation that is not asked for"
            raise UserError("training_loss_images", problem, "give training_loss_every too")
        if (self.schedule == "steps") != bool(self.lr_steps):
            raise UserError("lr_steps", "and schedule: steps work only together", "give both or neither")
        for number, rate in (self.lr_steps or {}).items():
            if not 1 < number <= self.rounds or rate <= 0:
                problem = f"round {number} with rate {rate:g}"
                raise UserError("lr_steps", problem, f"give rounds from 2 to {self.rounds}, and rates above 0")
        return self

    @property
    def criterion(self) -> str | None:
        """Name of the metric plug-in that selects rounds; None for accuracy or loss, which need no plug-in."""
        chosen = self.select == "best_validation" and self.select_by not in (None, "accuracy", "loss")
        return self.select_by if chosen else None

    def identity(self) -> dict[str, Any]:
        """Return the settings as plain data from which a run's id is computed.

        Settings that this project added later are left out where they have no effect, so that earlier studies keep
        their ids.
        """
        settings = self.model_dump(mode="json")
        # False was the default once, and is now said by leaving the setting open.
        settings["channels_last"] = {None: False, False: "never", True: True}[self.channels_last]
        without_effect = {
            *(name for name in LATER if not settings[name]),
            *(ADAM if self.optimiser == "sgd" else ()),
            *(["deterministic"] if self.deterministic else ()),
            *(["train"] if self.train == "all" else ()),
            *(["select_by"] if self.select_by in (None, "accuracy") else ()),
        }
        return {name: value for name, value in settings.items() if name not in without_effect}

    def at(self, client: str) -> Training:
        """Return the settings of one client: with its number of passes over its data, if `epochs_at` names it."""
        if client not in self.epochs_at:
            return self
        return self.model_copy(update={"local_epochs": self.epochs_at[client]})

    def require_classes(self, classes: int) -> None:
        """Raise UserError if `class_weights` is a list of another length than `classes`, the number of classes."""
        if isinstance(self.class_weights, tuple) and len(self.class_weights) != classes:
            problem = f"has {len(self.class_weights)} weights, and there are {classes} classes"
            raise UserError("training.class_weights", problem, "give one for each class, in the order of labels")

    def require_batch(self, site: str, samples: int) -> None:
        """Raise UserError if `samples`, the number of a site's training images, is smaller than a batch."""
        if samples < self.batch_size:
            raise UserError(
                f"client {site!r}",
                f"has {samples} training images, fewer than one batch of {self.batch_size}",
                "lower training.batch_size, or make the site external",
            )

    def steps_in_epoch(self, n: int) -> int:
        """Return the number of batches in a pass over `n` samples; see `data.samples.batch_indices`.

        Without `replacement`, a last batch of a single sample is joined with the batch before it.
        """
        joined = n % self.batch_size == 1 and n > 1 and not self.replacement
        return math.ceil(n / self.batch_size) - joined

    def steps_in_round(self, n: int) -> int:
        """Return the number of local steps of a client with `n` samples in a round."""
        return self.local_steps or self.local_epochs * self.steps_in_epoch(n)

    def equalised(self, sizes: Iterable[int]) -> Training:
        """Return the settings with `equal_steps` resolved to the number of local steps of the largest client.

        `sizes` are the clients' numbers of training samples. Without `equal_steps`, return the settings unchanged.
        """
        return self.taking(max(map(self.steps_in_round, sizes))) if self.equal_steps else self

    def taking(self, steps: int) -> Training:
        """Return the settings with `steps` local steps for each client in a round, in place of passes over its data."""
        return self.model_copy(update={"local_steps": steps, "local_epochs": 1, "equal_steps": False})

    def clients_in_round(self, clients: int) -> int:
        """Return the number of clients that take part in a round, of `clients` clients; at least 1."""
        return max(1, round(self.participation * clients))

    def rate(self, number: int) -> float:
        """Return the learning rate of the clients in round `number`, counted from 1."""
        if self.schedule == "exponential":
            return self.lr * self.lr_decay ** (number - 1)
        if self.lr_steps:
            begun = [first for first in self.lr_steps if first <= number]
            return self.lr_steps[max(begun)] if begun else self.lr
        if self.schedule == "cosine":
            progress = min((number - 1) / self.rounds, 1.0)
            return self.lr * (1 + math.cos(math.pi * progress)) / 2
        return self.lr
