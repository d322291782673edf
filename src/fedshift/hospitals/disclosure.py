"""What leaves a site, said before it does: counted in one round on blank images."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..engine.coordinator import Coordinator
from ..engine.site import Site
from ..engine.transport import Message
from ..jobs.run_specification import specification
from ..transforms import shape_after
from . import agreed
from .hospital import Hospital

if TYPE_CHECKING:
    from ..study.run import Run


def leaves(hospital: Hospital) -> Iterator[str]:
    """Yield lines that say what leaves a site: numbers by name, measured in one round on blank images."""
    for run in hospital.local.runs.values():
        rounds = run.training.rounds
        yield f"  {run.method}, bn {run.bn}, seed {run.seed}: {rounds} rounds"
        for (kind, name), count in sorted(_rehearsed(run, hospital.name).items()):
            yield f"    {kind}: {name}, {count:,} numbers {'once' if kind in ('join', 'begin') else 'a round'}"
    yield "  with each answer: numbers of images and of classes, losses, accuracies, seconds, versions of software"
    if hospital.rows:
        columns = ["label", "probabilities", *hospital.local.study.subgroups]
        if hospital.local.study.task.has_masks:
            columns.append("millimetres of a pixel where they are known")
        yield f"  at the end, for each image under pseudonyms of image and patient: {', '.join(columns)}"
        yield "    (--no-rows keeps them here; the page then lacks this site)"
    yield "Images, names of files and of patients, and all tensors that the study keeps at home stay here."


class _Rehearsal:
    """A transport to one site in this process, which counts what the site sends."""

    def __init__(self, site: Site) -> None:
        self.site, self.names = site, (site.client.name,)
        self.sent: Counter[tuple[str, str]] = Counter()

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        for name, message in messages.items():
            answer = self.site.answer(message)
            self.sent.update({(message.kind, key): t.numel() for key, t in answer.tensors.items()})
            yield name, answer


def _rehearsed(run: Run, name: str) -> Counter[tuple[str, str]]:
    """Return how many numbers leave in one round, by kind of message and name of tensor."""
    shape = agreed.shape_of(run)
    training = run.training.model_copy(update={"rounds": 1, "epochs_at": {}})
    agreement = dataclasses.replace(specification(run, shape), training=training)
    x = torch.zeros(2 * training.batch_size, *shape_after(run.transforms, shape))
    y = torch.arange(len(x)) % len(run.data.dataset.classes)
    with tempfile.TemporaryDirectory() as folder:
        rehearsal = _Rehearsal(Site.open(name, agreement, (x, y), (x, y), Path(folder), sends_offers=True))
        Coordinator.open(agreement, rehearsal).run()
    return rehearsal.sent
