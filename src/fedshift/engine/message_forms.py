"""The tensors that messages of a run have: their names, shapes and types, known before the first one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.errors import UserError
from .transport import Message

Form = tuple[tuple[int, ...], torch.dtype]
Forms = dict[str, Form]
"""Shape and type of each tensor, by name."""


@dataclass(frozen=True)
class MessageForms:
    """What is known of a run's messages beforehand; a rehearsal (`hospitals.agreed`) finds it out.

    Attributes
    ----------
    shape : shape of one input
    classes : number of classes
    clients : number of sites of the study
    images : number of images of the blank site: what an add-on sends before the first round may have a row for each
    questions : forms of the tensors that a site is sent, by kind of message; each distinct set once
    answers : forms of the tensors that a site sends, by kind and number of means that were sent; each distinct set once
    """

    shape: tuple[int, ...]
    classes: int
    clients: int
    images: int
    questions: dict[str, list[Forms]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[tuple[str, int], list[Forms]] = field(default_factory=lambda: defaultdict(list))

    def note(self, asked: Message, answer: Message) -> None:
        """Note what a question, with all its tensors, and its answer hold."""
        places = self.questions[asked.kind], self.answers[asked.kind, _means(asked)]
        for known, message in zip(places, (asked, answer), strict=True):
            if (forms := _forms(message.tensors)) not in known:
                known.append(forms)

    @property
    def means(self) -> int:
        """The most means of a joint step."""
        return max((means for _, means in self.answers), default=0)

    def require_names(self, message: Message) -> None:
        """Raise UserError for a message of the coordinator with names of tensors that its kind does not have."""
        known = {name for forms in self._of_question(message) for name in forms}
        if odd := sorted({*message.tensors, *message.about.get("contents", {})} - known):
            raise UserError(f"message {message.kind}", f"has {len(odd):,} unknown tensors, such as {odd[0][:100]}")

    def require_question(self, message: Message) -> None:
        """Raise UserError for a message of the coordinator, with all its tensors, that holds other tensors."""
        _require(message, self._of_question(message))

    def _of_question(self, message: Message) -> list[Forms]:
        if message.kind == "begin":
            return [self._begin(message)]
        # The network whose rows are asked for is one that is evaluated.
        return self.questions.get({"rows": "evaluate"}.get(message.kind, message.kind), [])

    def require_answer(self, asked: Message, answer: Message, *, first: bool = False) -> None:
        """Raise UserError for an answer that holds other tensors than it can.

        `first` says that the site has never trained in this run: some algorithms send more then.
        """
        known = self.answers.get((asked.kind, _means(asked)), [])
        if asked.kind == "join":
            known = [{name: self._of_images(form, answer.about["n"]) for name, form in k.items()} for k in known]
        _require(answer, known[:1] if first else known)

    def _of_images(self, form: Form, n: int) -> Form:
        """Return the form of a tensor at a site with `n` images, given that at the blank site."""
        shape, dtype = form
        return ((n, *shape[1:]) if shape[:1] == (self.images,) else shape), dtype

    def _begin(self, message: Message) -> Forms:
        """Return the forms of a first message, which passes on what some other sites have sent."""
        forms: Forms = {}
        sent = self.answers["join", 0][0]
        for place, (_, key) in enumerate(message.about["offers"]):
            if key not in sent:
                raise UserError("message begin", f"offers {key[:50]!r}, which no site sends")
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
        raise UserError(where, f"has {names}, expected {expected}", "install the same version on both sides")
    name = next(n for n in forms if forms[n] != usual[n])
    (shape, dtype), (wanted, kind) = forms[name], usual[name]
    raise UserError(where, f"has {name} {shape} {dtype} in place of {wanted} {kind}")
