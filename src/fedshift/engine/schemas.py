"""What each kind of message may say: one closed model for every question and for every answer.

Both sides check what comes before they use it. A key that is missing or unknown, a value of another kind, and a number
or text out of its range are refused. Tensors are checked by `message_forms.MessageForms`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from ..core.errors import UserError
from .transport import Message

Text = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""One line without control characters."""
Round = Annotated[int, Field(ge=0, le=10**6)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[int, Field(ge=1, le=10**9)]
Few = Annotated[int, Field(ge=1, le=10_000)]
Positive = Annotated[float, Field(ge=0, le=3e38)]
Real = Annotated[float, Field(ge=-3e38, le=3e38)]
Share = Annotated[float, Field(ge=0, le=1)]
Contents = Annotated[dict[Text, Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]], Field(max_length=10_000)]


class Closed(BaseModel):
    """Plain data of one kind of message, in the types of JSON, without NaN and infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Empty(Closed):
    """A message that says nothing but its kind."""


# ---- questions of the coordinator


class OfRun(Closed):
    """A question about a run, which names specification and code by their digest."""

    digest: Text = ""


class Begin(OfRun):
    """What follows from all sites before the first round."""

    clients: Few
    classes: Few
    share: Annotated[float, Field(gt=0, le=1)]
    channels_last: bool
    steps: Annotated[int, Field(ge=1, le=10**6)] | None
    clients_heard: Annotated[list[Text], Field(max_length=10_000)]
    offers: Annotated[list[Annotated[list[Text], Field(min_length=2, max_length=2)]], Field(max_length=10_000)]

    @model_validator(mode="after")
    def _offers_are_of_clients_that_are_heard(self) -> Begin:
        if {client for client, _ in self.offers} - {*self.clients_heard}:
            raise ValueError("offers of a client that is not heard")
        return self


class Since(OfRun):
    """A question to the state of a site after a round."""

    since: Round
    contents: Contents = {}


class Task(Since):
    """A step of a round."""

    round: Round


class Joint(Task):
    """A step of a round with the means of its joint step, if it has one, and the sizes of the sites' batches."""

    means: Annotated[int, Field(ge=0, le=10_000)]
    images: Annotated[list[Size], Field(max_length=10_000)]


class Evaluate(Task):
    """Splits on which a network is evaluated."""

    splits: Annotated[list[Literal["val", "averaged"]], Field(min_length=1, max_length=2)]


class Refused(Closed):
    """The reason for which the server lets a site take no part."""

    reason: Text


# ---- answers of a site


class Joined(Closed):
    """What a site says about itself before the first round."""

    name: Text
    n: Size
    validation: Count
    shape: Annotated[list[Annotated[int, Field(ge=1, le=10**6)]], Field(min_length=1, max_length=5)]
    classes: Few
    digest: Text
    versions: Annotated[dict[Text, Text], Field(max_length=20)]
    threads: Few
    class_counts: Annotated[list[Count], Field(min_length=1, max_length=10_000)] | None = None
    scored: Count = 0
    summed: Count = 0


class FirstStep(Closed):
    """The size of a site's batch in the joint step."""

    round: Round
    images: Size


class Trained(Closed):
    """Measurements of the local steps of a round."""

    round: Round
    loss: Positive
    accuracy: Share | None
    seconds: Positive
    logged: Annotated[dict[Text, Real | None], Field(max_length=100)]
    counters: Annotated[list[Annotated[int, Field(ge=0, le=10**15)]], Field(max_length=100_000)]


class Finished(Closed):
    """The round after the last."""

    round: Round


class Measured(Closed):
    """Loss and accuracy of a split. `score` is there if a metric selects rounds; null if it is undefined here."""

    loss: Positive
    accuracy: Share | None
    seconds: Positive
    score: Real | None = None


class Evaluated(Closed):
    """What was measured on the splits that were asked for."""

    val: Measured | None = None
    averaged: Measured | None = None


class Rows(Closed):
    """The texts of each column of rows that holds texts; the tensor of the column has their numbers.

    A site that keeps its rows sends sums in their place, and says how many `patients` are in each group.
    """

    texts: dict[Text, Annotated[list[Text], Field(max_length=10_000)]]
    patients: Annotated[list[Size], Field(max_length=100)] = []


class Hello(Closed):
    """Who a site is."""

    name: Text
    version: Text


QUESTIONS: dict[str, type[Closed]] = {
    "hello": Empty,
    "over": Empty,
    "refused": Refused,
    "join": OfRun,
    "begin": Begin,
    "first_step": Joint,
    "train": Joint,
    "finish": Task,
    "evaluate": Evaluate,
    "keep": Since,
    "rows": Task,
}
ANSWERS: dict[str, type[Closed]] = {
    "hello": Hello,
    "over": Empty,
    "refused": Empty,
    "join": Joined,
    "begin": Empty,
    "first_step": FirstStep,
    "train": Trained,
    "finish": Finished,
    "evaluate": Evaluated,
    "keep": Empty,
    "rows": Rows,
}
"""All kinds of messages; there are no others."""


def require(message: Message, models: dict[str, type[Closed]]) -> None:
    """Raise UserError, in one line, for a message that is not of a kind in `models`, or says what its kind may not."""
    if message.kind not in models:
        raise UserError(f"message {message.kind[:50]!r}", "is unknown here", "install the same version on both sides")
    where = f"message {message.kind}"
    try:
        models[message.kind].model_validate(message.about)
    except ValidationError as error:
        first, *rest = error.errors(include_input=False, include_url=False)
        place = ".".join(map(str, first["loc"]))[:100]
        more = f", and {len(rest)} more" if rest else ""
        raise UserError(where, f"{place or 'the whole'}: {first['msg']}{more}") from None


def plain(number: float) -> float | None:
    """Return a number as messages say it: null stands for what is undefined."""
    return number if math.isfinite(number) else None


def number(value: Any) -> float:
    """Return a number that `plain` has written."""
    return math.nan if value is None else float(value)
