"""How much disk a study's files will take: by files like them, else by what is stated or counted; else unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core import digest
from ..io.paths import Paths
from ..study.run import Data, Run
from .sample_counts import Amounts

STATED = "as their sources state"
LIKE = "as much as for runs like them"
COUNTED = "4 bytes for each number in the network, counted"
UNPREPARED = "not known before data and partition are made"
PROBABILITIES = "a rule of thumb: 8 bytes a probability, and 25 a test image"


@dataclass(frozen=True)
class Size:
    """Bytes on disk; None where unknown. `source` says whence."""

    bytes: float | None
    source: str


ARRAYS = Size(None, "the job says it before it begins, and does not begin where there is too little room")


def raw(data: Data) -> Size:
    """Of raw files, unpacked. Miniatures take next to nothing, and own files lie where they are."""
    if data.synthetic or data.dataset.inputs():
        return Size(0, STATED)
    sizes = [source.unpacked_size or source.size for source in data.dataset.sources()]
    return Size(sum(filter(None, sizes)), STATED) if sizes and all(sizes) else Size(None, "not stated")


class Models:
    """Of the files of trained runs, by those that lie in a project folder."""

    def __init__(self, trained: Iterable[Run], amounts: Amounts, paths: Paths) -> None:
        self.amounts = amounts
        lying = ((run, [paths.run(run.id) / f"{name}.safetensors" for name in ("model", "clients")]) for run in trained)
        self.known = {_kind(run): _lying(files) for run, files in lying if all(file.exists() for file in files)}

    def of(self, run: Run) -> Size:
        """The global model, and what stays at the clients."""
        kind = _kind(run)
        if kind not in self.known:
            shape = self.amounts.shape(run)
            self.known[kind] = Size(counted(run, shape), COUNTED) if shape else Size(None, UNPREPARED)
        return self.known[kind]


def _kind(run: Run) -> str:
    """What decides the sizes of a run's files."""
    plugins = [run.model.spec(), run.algorithm.spec(), run.addon and run.addon.spec()]
    return digest.of([run.data.id, *plugins, run.bn, len(run.partition.internal)])


def counted(run: Run, shape: tuple[int, ...]) -> int:
    """Bytes of a run's models, for images of `shape` (channels, height, width), from a network without memory."""
    import torch

    from ..addons import extended
    from ..engine.ledger import BYTES
    from ..models import initialise
    from ..nn.bn_policy import POLICIES
    from ..nn.flat_state import Layout

    elsewhere = {"pretrained": False} if hasattr(run.model, "pretrained") else {}  # weights from there change no size
    with torch.device("meta"):
        network = initialise(run.model.model_copy(update=elsewhere), shape, len(run.data.dataset.classes), run.seed)
        model = extended(run.addon, extended(run.algorithm, network, run.seed), run.seed)
    layout = Layout(model, stays=run.addon.stays(model) if run.addon else ())
    shared = run.algorithm.shared(POLICIES[run.bn], layout)
    own = layout.size - (shared.stop - shared.start)
    clients = run.algorithm.collaboration.count(len(run.partition.internal))
    return BYTES * (layout.size + clients * own)


def predictions(run: Run, images: int, inferences: int) -> Size:
    """Of a job's table, for so many test images."""
    each = 8 * len(run.data.dataset.classes) + 25
    return Size(images * inferences * each, PROBABILITIES) if images else Size(None, UNPREPARED)


def _lying(files: Sequence[Path]) -> Size:
    return Size(sum(file.stat().st_size for file in files), LIKE)
