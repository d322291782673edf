"""What the two sides of a federation agree on: which studies real sites can run, and what names a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core import digest
from ..core.errors import UserError, require_none
from ..datasets.own_images import OwnImages
from ..engine.message_forms import MessageForms
from ..engine.rehearsal import rehearsed
from ..jobs.accept import train_code
from ..jobs.train import specification
from ..transforms import shape_after

if TYPE_CHECKING:
    from ..study.plan import Plan
    from ..study.run import Run


def name_of(run: Run) -> str:
    """Return the name of a run in messages, which does not depend on where a hospital keeps its table."""
    spec = json.loads(json.dumps(run.spec))
    for place in ("table", "moved_from"):
        spec["data"]["dataset"].pop(place, None)
    return f"{run.algorithm.name}-{run.bn}-{digest.of(spec)}"


def digest_of(run: Run) -> str:
    """Return the digest of a run, of the code that trains it, and of the messages, which site and server must share."""
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
    """Return the tensors that the messages of a run have between the server and a number of sites."""
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
