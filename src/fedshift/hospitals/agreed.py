"""What both sides of a federation agree on: which studies real sites can run, what names a run, and its messages.

The tensors of the messages are found by a rehearsal, which trains one blank site in this process in the first, the
second and the last round, with a few random images and one small step each. The names, shapes and types of all tensors
that the blank site receives and sends are those of every site, since they follow from the network and the algorithm,
not from images.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..core import digest
from ..core.errors import UserError, require_none
from ..core.rng import undisturbed
from ..datasets.own_images import OwnImages
from ..engine.coordinator import Coordinator
from ..engine.messages import Message, MessageForms
from ..engine.site import Site
from ..engine.specification import Specification
from ..jobs.accept import train_code
from ..jobs.train import specification
from ..transforms import shape_after

if TYPE_CHECKING:
    from ..study.plan import Plan
    from ..study.run import Run


SMALL: dict[str, Any] = {"batch_size": 2, "local_epochs": 1, "local_steps": None, "epochs_at": {}, "equal_steps": False}
"""Settings of the blank site's training: batches of two images, since batch norm needs two."""


class _Blank:
    """A transport to one site in this process, which records the names, shapes and types of all tensors in `forms`."""

    def __init__(self, site: Site, forms: MessageForms) -> None:
        self.names: Sequence[str] = (site.client.name,)
        self.site, self.forms = site, forms

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        for name, message in messages.items():
            answer = self.site.answer(message)
            self.forms.note(self.site.state.completed(message), answer)
            yield name, answer


def rehearsed(specification: Specification, shape: Sequence[int], classes: int, clients: int) -> MessageForms:
    """Return the names, shapes and types of all tensors in a run's messages, from the training of a blank site.

    `shape` is that of one input; `classes` and `clients` are the numbers of classes and of sites.
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
        site = Site("blank", blank, (x, y), (x, y), Path(folder), sends_offers=True)
        coordinator = Coordinator.open(blank, _Blank(site, forms))
        coordinator.run(min(2, training.rounds))
        if training.rounds > 2:
            coordinator.server.round = training.rounds - 1
            coordinator.run()
    return forms


def name_of(run: Run) -> str:
    """Return the name of a run in messages: equal at server and sites, wherever each keeps its table of images."""
    spec = json.loads(json.dumps(run.spec))
    for place in ("table", "moved_from"):
        spec["data"]["dataset"].pop(place, None)
    return f"{run.algorithm.name}-{run.bn}-{digest.of(spec)}"


def digest_of(run: Run) -> str:
    """Return a digest, equal at server and site, of a run, of the code that trains it, and of the code of messages."""
    return digest.of([name_of(run), train_code(run), digest.of_code("engine.site")])


def require(plan: Plan) -> None:
    """Raise UserErrors that name everything in a study that real sites cannot do, with the reason."""
    require_none(UserError(f"{plan.path}", problem, remedy) for problem, remedy in _problems(plan))


def shape_of(run: Run) -> tuple[int, int, int]:
    """Return the shape of a run's images (channels, height, width)."""
    dataset = run.data.dataset
    assert isinstance(dataset, OwnImages)
    return 3, dataset.size, dataset.size


def forms(run: Run, clients: int) -> MessageForms:
    """Return the names, shapes and types of all tensors in the messages of a run; `clients` is the number of sites."""
    shape, classes = shape_of(run), len(run.data.dataset.classes)
    return rehearsed(specification(run, shape), shape_after(run.transforms, shape), classes, clients)


def sites(plan: Plan) -> tuple[str, ...]:
    """Return the names of the sites that train in a study."""
    return plan.study.partition[0].internal


def _problems(plan: Plan) -> Iterator[tuple[str, str]]:
    study = plan.study
    if not isinstance(study.dataset, OwnImages) or study.dataset.archive:
        yield "has no table of own images, and a site holds its own", "say dataset: own_images, with a table"
    if plan.searches:
        yield "searches settings, which is not possible with real sites", "give one value of each setting"
    if len(study.partition) > 1 or any(p.leave_one_out or p.split.folds for p in study.partition):
        yield "has several partitions, and a real site has one role", "name one partition, without folds"
    if any(p.deal or p.cut or p.truncate for p in study.partition):
        yield "deal, cut and truncate need the images of all sites in one place", "leave them out"
    if any(grid.partition or grid.dataset for grid in study.runs):
        yield "has data or partitions of single runs", "give one dataset and one partition for all runs"
    if study.control:
        yield "the control without a network needs the images of all sites in one place", "leave control out"
    if any(run.training.select_at for run in plan.runs.values()):
        yield "training.select_at needs images of sites that do not train", "leave it out"
    for transform in {t.name: t for run in plan.runs.values() for t in run.transforms if t.per_site}:
        yield f"the transform {transform} sends statistics of images between sites", "leave it out"
    pooled = {run.algorithm.name for run in plan.runs.values() if run.algorithm.collaboration.count(2) == 1}
    for algorithm in sorted(pooled):
        yield f"{algorithm} needs the images of all sites in one place", "leave it out"
    asking = [key for key, inference in plan.inferences.items() if inference.asks or inference.client]
    if asking:
        yield f"the inferences {', '.join(asking)} need answers of other sites", "leave them out"
