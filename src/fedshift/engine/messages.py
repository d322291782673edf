"""Messages between a coordinator and sites: what carries them, what each kind may say, and which tensors it holds.

A `Coordinator` sends each site a message and gets one back; `Site.answer` makes the answer. A transport knows neither
algorithms nor rounds, so that one of them can be a loop in this process and another a network of hospitals.

Both sides check what comes before they use it. A key that is missing or unknown, a value of another kind, and a number
or text out of its range are refused (one closed model for each kind); `MessageForms` checks the tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from torch import Tensor

from ..core.console import printable
from ..core.errors import UserError
from ..io import arrays

LARGEST = 1_000_000
"""Largest number of characters of a message's plain data as JSON."""


class Message(NamedTuple):
    """A question to a site, or its answer, which has the kind of the question.

    Attributes
    ----------
    kind : the task, a key of `KINDS`; those of a run are in `site.TASKS`: join, begin, first_step, train, finish,
        evaluate or keep
    about : plain data that JSON can hold, except NaN and infinity, which travel as the floats of Python's JSON. Its
        entry `contents`, if present, maps each tensor of the task to its hash (`content_of`): those that are not in
        `tensors` came with the message before
    tensors : tensors of any shapes on the CPU or on the device of this process, by name
    """

    kind: str
    about: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class Fault(NamedTuple):
    """A message in place of the missing answer of a site that failed, refused or could not be reached.

    Attributes
    ----------
    reason : why, in one line without the name of the site
    """

    reason: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors: 0, since a fault has none."""
        return 0


class Transport(Protocol):
    """Protocol of transports, which carry messages to sites and answers back.

    Attributes
    ----------
    names : names of all sites, sorted: sums over sites run in this order
    """

    @property
    def names(self) -> Sequence[str]:
        """Names of all sites."""
        ...

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | Fault]]:
        """Send each named site its message, and yield name and answer of each, in the order of `names`.

        A site that raises UserError, or that cannot be reached, gives a Fault. The coordinator takes all answers before
        it sends the next messages.
        """
        ...


def packed(message: Message | Fault) -> bytes:
    """Return the bytes of a message or a fault: safetensors with a checksum, to be read by `unpacked`."""
    if isinstance(message, Fault):
        return arrays.packed({}, {"fault": message.reason})
    return arrays.packed(message.tensors, {"kind": message.kind, "about": json.dumps(message.about)})


def unpacked(content: bytes) -> Message | Fault:
    """Return the message or fault that `packed` has serialised, or a Fault for any other bytes.

    Tensors are on the CPU and sorted by name. The reason of a fault is cut, and has no control characters.
    """
    try:
        values, about = arrays.unpacked(content, "the message")
        if "fault" in about:
            return fault(about["fault"])
        if len(about["about"]) > LARGEST:
            return Fault(f"the message has more than {LARGEST:,} characters of plain data")
        said = json.loads(about["about"])
        return Message(about["kind"], said, values) if isinstance(said, dict) else Fault("the plain data is no mapping")
    except Exception as error:  # bytes from outside may fail in any way: nested too deep, or larger than the memory
        return fault(f"received bytes that are not a message: {error or type(error).__name__}")


def fault(reason: str) -> Fault:
    """Return a fault whose reason is one line of at most 500 characters, without control characters."""
    return Fault(printable(" ".join(reason[:2000].split()))[:500])


def content_of(tensor: Tensor) -> str:
    """Return the SHA-256, in hex digits, of a tensor's type, shape and bits."""
    whole = tensor.detach().cpu().contiguous()
    about = f"{whole.dtype} {tuple(whole.shape)} ".encode()
    return hashlib.sha256(about + whole.numpy().tobytes()).hexdigest()


# ---- what messages may say


Text = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""One line without control characters."""
Round = Annotated[int, Field(ge=0, le=10**6)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[int, Field(ge=1, le=10**9)]
Few = Annotated[int, Field(ge=1, le=10_000)]
NonNegative = Annotated[float, Field(ge=0, le=3e38)]
Real = Annotated[float, Field(ge=-3e38, le=3e38)]
Share = Annotated[float, Field(ge=0, le=1)]
Contents = Annotated[dict[Text, Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]], Field(max_length=10_000)]


class Closed(BaseModel):
    """Base class of the schemas of messages: plain data without unknown keys, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Empty(Closed):
    """Schema of messages without any plain data."""


class OfRun(Closed):
    """Schema of a question about a run; `digest` stands for the run's specification and code."""

    digest: Text = ""


class Begin(OfRun):
    """Schema of the message before the first round: facts for one site that follow from all sites together.

    Attributes
    ----------
    clients, classes : number of clients in the federation, and of classes
    share : the site's share of all training samples, or an equal share
    channels_last : whether images are stored with the channels last in memory
    steps : number of local steps in a round, if it is set for all; otherwise None
    clients_heard : the clients whose tensors the site gets
    offers : client and name of each tensor `offer/0`, `offer/1`, ... that clients sent before the first round
    """

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
            raise ValueError("offers names a client that is not in clients_heard")
        return self


class Since(OfRun):
    """Schema of a question that starts from a site's state after round `since`; `contents` has tensors' hashes."""

    since: Round
    contents: Contents = {}


class Task(Since):
    """Schema of a task in a round."""

    round: Round


class Joint(Task):
    """Schema of a training task.

    `means` is the number of means over clients that the joint step has so far, 0 without one; `images` are the sites'
    batch sizes in it.
    """

    means: Annotated[int, Field(ge=0, le=10_000)]
    images: Annotated[list[Size], Field(max_length=10_000)]


class Evaluate(Task):
    """Schema of an evaluation task: the splits on which the network is evaluated."""

    splits: Annotated[list[Literal["val", "averaged"]], Field(min_length=1, max_length=2)]


class Refused(Closed):
    """Schema of the server's message to a site that may not take part: the reason."""

    reason: Text


class Joined(Closed):
    """Schema of a site's introduction before the first round.

    Attributes
    ----------
    n, validation : numbers of training and of validation samples
    shape : shape of one input
    classes : number of classes of the network's outputs
    digest : digest of specification and code
    versions : versions of Python and torch
    threads : number of threads of torch
    class_counts : number of training samples of each class, if `class_weights: balanced` needs them
    scored, summed : number of images whose predictions the site sends at the end, in rows or in sums
    """

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
    """Schema of the answer to a joint first step: round, and the size of the site's batch."""

    round: Round
    images: Size


class Trained(Closed):
    """Schema of the answer to a training task: measurements of the local steps, and counters of batch norm."""

    round: Round
    loss: NonNegative
    accuracy: Share | None
    seconds: NonNegative
    logged: Annotated[dict[Text, Real | None], Field(max_length=100)]
    counters: Annotated[list[Annotated[int, Field(ge=0, le=10**15)]], Field(max_length=100_000)]


class Finished(Closed):
    """Schema of the answer after the phases that follow the last round; `round` is one more than the last."""

    round: Round


class Measured(Closed):
    """Schema of measurements on one split. `score` is there if a metric selects rounds; null if it is undefined."""

    loss: NonNegative
    accuracy: Share | None
    seconds: NonNegative
    score: Real | None = None


class Evaluated(Closed):
    """Schema of the answer to an evaluation task: measurements on each split that was asked for."""

    val: Measured | None = None
    averaged: Measured | None = None


class Rows(Closed):
    """Schema of a site's predictions of single images: for each column of text its different texts.

    The tensor of a text column has the numbers of these texts, one for each row. A site that keeps its rows sends sums
    over groups of patients in their place, and `patients`, the number of patients in each group.
    """

    texts: dict[Text, Annotated[list[Text], Field(max_length=10_000)]]
    patients: Annotated[list[Size], Field(max_length=100)] = []


class Hello(Closed):
    """Schema of a site's first answer: its name, and its version of fedshift."""

    name: Text
    version: Text


KINDS: dict[str, tuple[type[Closed], type[Closed]]] = {
    "hello": (Empty, Hello),
    "over": (Empty, Empty),
    "refused": (Refused, Empty),
    "join": (OfRun, Joined),
    "begin": (Begin, Empty),
    "first_step": (Joint, FirstStep),
    "train": (Joint, Trained),
    "finish": (Task, Finished),
    "evaluate": (Evaluate, Evaluated),
    "keep": (Since, Empty),
    "rows": (Task, Rows),
}
"""Schemas of the question and the answer of each kind of message."""
QUESTIONS, ANSWERS = ({kind: models[side] for kind, models in KINDS.items()} for side in (0, 1))


def require_known(message: Message, models: dict[str, type[Closed]]) -> None:
    """Raise UserError, in one line, for a message of an unknown kind, or whose plain data does not fit the schema.

    `models` maps each kind to its schema.
    """
    if message.kind not in models:
        raise UserError(f"message {message.kind[:50]!r}", "is unknown here", "install the same version on both sides")
    where = f"message {message.kind}"
    try:
        models[message.kind].model_validate(message.about)
    except ValidationError as error:
        first, *rest = error.errors(include_input=False, include_url=False)
        place = ".".join(map(str, first["loc"]))[:100]
        more = f", and {len(rest)} more" if rest else ""
        raise UserError(where, f"{place or 'plain data'}: {first['msg']}{more}") from None


def as_said(number: float) -> float | None:
    """Return a number as messages hold it: None in place of NaN and infinity."""
    return number if math.isfinite(number) else None


def as_number(value: Any) -> float:
    """Return a number of a message as a float, NaN for None: the reverse of `as_said`."""
    return math.nan if value is None else float(value)


# ---- the tensors of a run's messages, known before the first one


Form = tuple[tuple[int, ...], torch.dtype]
Forms = dict[str, Form]
"""Shape and type of each tensor, by name."""


@dataclass(frozen=True)
class MessageForms:
    """Names, shapes and types of the tensors that each kind of message of a run may have.

    A rehearsal with one blank site (`hospitals.agreed`) records them before the run.

    Attributes
    ----------
    shape : shape of one input
    classes : number of classes
    clients : number of sites of the study
    images : number of images of the blank site: what an add-on sends before the first round may have a row for each
    questions : by kind of message, the sets of tensors (name to shape and type) that a site may be sent
    answers : by kind and by the number of means that were sent, the sets of tensors that a site may answer with
    """

    shape: tuple[int, ...]
    classes: int
    clients: int
    images: int
    questions: dict[str, list[Forms]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[tuple[str, int], list[Forms]] = field(default_factory=lambda: defaultdict(list))

    def note(self, asked: Message, answer: Message) -> None:
        """Record which tensors a question, complete with all its tensors, and its answer have."""
        places = self.questions[asked.kind], self.answers[asked.kind, _means(asked)]
        for known, message in zip(places, (asked, answer), strict=True):
            if (forms := _forms(message.tensors)) not in known:
                known.append(forms)

    @property
    def means(self) -> int:
        """The largest number of means over clients in a joint step."""
        return max((means for _, means in self.answers), default=0)

    def require_names(self, message: Message) -> None:
        """Raise UserError if a question names tensors that its kind does not have. They need not be complete."""
        known = {name for forms in self._of_question(message) for name in forms}
        if odd := sorted({*message.tensors, *message.about.get("contents", {})} - known):
            raise UserError(f"message {message.kind}", f"has {len(odd):,} unknown tensors, such as {odd[0][:100]}")

    def require_question(self, message: Message) -> None:
        """Raise UserError if the tensors of a complete question differ from those recorded."""
        _require(message, self._of_question(message))

    def _of_question(self, message: Message) -> list[Forms]:
        if message.kind == "begin":
            return [self._begin(message)]
        # The network whose rows are asked for is one that is evaluated.
        return self.questions.get({"rows": "evaluate"}.get(message.kind, message.kind), [])

    def require_answer(self, asked: Message, answer: Message, *, first: bool = False) -> None:
        """Raise UserError if a site's answer to `asked` has other tensors, shapes or types than recorded.

        `first` says that the site has never trained in this run: some algorithms send more then.
        """
        known = self.answers.get((asked.kind, _means(asked)), [])
        if asked.kind == "join":
            known = [{name: self._of_images(form, answer.about["n"]) for name, form in k.items()} for k in known]
        _require(answer, known[:1] if first else known)

    def _of_images(self, form: Form, n: int) -> Form:
        """Return shape and type of a tensor at a site with `n` images, given its `form` at the blank site."""
        shape, dtype = form
        return ((n, *shape[1:]) if shape[:1] == (self.images,) else shape), dtype

    def _begin(self, message: Message) -> Forms:
        """Return shape and type of each tensor of a `begin` message, which passes on tensors of other sites."""
        forms: Forms = {}
        sent = self.answers["join", 0][0]
        for place, (_, key) in enumerate(message.about["offers"]):
            if key not in sent:
                raise UserError("message begin", f"passes on a tensor {key[:50]!r}, which no site sends")
            tensor = message.tensors.get(f"offer/{place}")
            forms[f"offer/{place}"] = self._of_images(
                sent[key], len(tensor) if tensor is not None and tensor.dim() else 1
            )
        weights = message.tensors.get("class_weights")
        if weights is not None and any("class_weights" in known for known in self.questions["begin"]):
            # Classes that no site has may be missing at the end.
            forms["class_weights"] = ((min(weights.numel(), self.classes),), torch.float64)
        return forms


def _means(message: Message) -> int:
    return int(message.about["means"]) if message.kind == "first_step" else 0


def _forms(tensors: Mapping[str, Tensor]) -> Forms:
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def _require(message: Message, known: Sequence[Forms]) -> None:
    forms = _forms(message.tensors)
    if forms in known:
        return
    where = f"message {message.kind}"
    usual = next((k for k in known if k.keys() == forms.keys()), None)
    if usual is None:
        expected = " or ".join(sorted({", ".join(sorted(k)) or "no tensor" for k in known})) or "no such message"
        names = ", ".join(sorted(forms))[:200] or "no tensor"
        raise UserError(where, f"has tensors {names}, expected {expected}", "install the same version on both sides")
    name = next(n for n in forms if forms[n] != usual[n])
    (shape, dtype), (wanted, kind) = forms[name], usual[name]
    raise UserError(where, f"has tensor {name} of {shape} {dtype} in place of {wanted} {kind}")
