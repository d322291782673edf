"""The specification of a federation, made from a run of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.specification import Specification
from ..models import initialise
from ..transforms import shape_after

if TYPE_CHECKING:
    from ..study.run import Run


def specification(run: Run, shape: tuple[int, ...]) -> Specification:
    """Return what site and server must agree on in a run.

    `shape` is that of stored samples: (channels, height, width), or (features,).
    """
    model = initialise(run.model, shape_after(run.transforms, shape), len(run.data.dataset.classes), run.seed)
    return Specification.open(
        model,
        algorithm=run.algorithm,
        bn=run.bn,
        addon=run.addon,
        training=run.training,
        seed=run.seed,
        task=run.data.task,
    )
