"""A rehearsal of a run's messages: which tensors they have, found by training one blank site in this process.

The site trains the first, the second and the last round with a few random images and one small step each. The names,
shapes and types of all tensors that it is sent, and that it sends, are those of every site, since they follow from the
network and the algorithm, not from images.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core.rng import undisturbed
from .coordinator import Coordinator
from .message_forms import MessageForms
from .site import Site
from .specification import Specification
from .transport import Message

SMALL: dict[str, Any] = {"batch_size": 2, "local_epochs": 1, "local_steps": None, "epochs_at": {}, "equal_steps": False}
"""Settings of the blank site's training: batches of two images, since batch norm needs two."""


class _Blank:
    """A transport to one site in this process, which notes what both sides send."""

    def __init__(self, site: Site, forms: MessageForms) -> None:
        self.names: Sequence[str] = (site.client.name,)
        self.site, self.forms = site, forms

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        for name, message in messages.items():
            answer = self.site.answer(message)
            self.forms.note(self.site.state.completed(message), answer)
            yield name, answer


def rehearsed(specification: Specification, shape: Sequence[int], classes: int, clients: int) -> MessageForms:
    """Return the forms of a run's messages.

    Parameters
    ----------
    specification : what sites and coordinator agree on
    shape : shape of one input
    classes : number of classes
    clients : number of sites of the study
    """
    # More than there are classes, so that a row for each image is not one for each class.
    n = max(4, classes) + 3
    forms = MessageForms(tuple(shape), classes, clients, n)
    settings = SMALL | {"patience": None, "participation": 1.0}
    training = specification.training.model_copy(update=settings)
    blank = dataclasses.replace(specification, training=training)
    x = torch.rand(n, *shape, generator=torch.Generator().manual_seed(0))
    x = x.to(next((p.dtype for p in specification.model.parameters()), x.dtype))
    y = torch.arange(n) % classes
    if specification.task.has_masks:
        y = y[:, None, None].expand(n, *shape[1:])
    with undisturbed(), tempfile.TemporaryDirectory() as folder:
        site = Site.open("blank", blank, (x, y), (x, y), Path(folder), sends_offers=True)
        coordinator = Coordinator.open(blank, _Blank(site, forms))
        coordinator.run(min(2, training.rounds))
        if training.rounds > 2:
            coordinator.server.round = training.rounds - 1
            coordinator.run()
    return forms
