"""Estimates of the disk space of a study's files: from similar files, else from stated or counted sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core import digest
from ..core.units import FLOAT_BYTES
from ..io.paths import Paths
from ..study.run import Data, Run
from .sample_counts import SampleCounts

STATED = "as stated by their sources"
LIKE = "as for similar runs"
COUNTED = "counted: 4 bytes for each number in the network"
UNPREPARED = "unknown before data and partition are made"
PROBABILITIES = "rule of thumb: 8 bytes for each probability and 25 for each image"


@dataclass(frozen=True)
class Size:
    """Bytes on disk, None where unknown, and the source of this estimate."""

    bytes: float | None
    source: str


ARRAYS = Size(None, "unknown before the job starts; it does not start if there is too little space")


def raw(data: Data) -> Size:
    """Return the size of raw files, unpacked. Miniatures are tiny, and the user's own files are not copied."""
    if data.synthetic or data.dataset.inputs():
        return Size(0, STATED)
    sizes = [source.unpacked_size or source.size for source in data.dataset.sources()]
    return Size(sum(filter(None, sizes)), STATED) if sizes and all(sizes) else Size(None, "not stated by their sources")


class Models:
    """Sizes of the models of runs, estimated from the trained runs of a project folder."""

    def __init__(self, trained: Iterable[Run], counts: SampleCounts, paths: Paths) -> None:
        self.counts = counts
        saved = ((run, paths.run_files(run.id)) for run in trained)
        models = ((run, (files.model, files.clients)) for run, files in saved)
        self.known = {_kind(run): _saved(files) for run, files in models if all(file.exists() for file in files)}

    def size(self, run: Run) -> Size:
        """Return the size of the global model and of the tensors that stay at the clients."""
        kind = _kind(run)
        if kind not in self.known:
            shape = self.counts.shape(run)
            self.known[kind] = Size(counted(run, shape), COUNTED) if shape else Size(None, UNPREPARED)
        return self.known[kind]


def _kind(run: Run) -> str:
    """Return a digest of all that the sizes of a run's models depend on."""
    plugins = [run.model.spec(), run.algorithm.spec(), run.addon and run.addon.spec()]
    return digest.of([run.data.id, *plugins, run.bn, len(run.partition.internal)])


def counted(run: Run, shape: tuple[int, ...]) -> int:
    """Return the bytes of a run's models, for images of `shape` (channels, height, width).

    The network is built without memory.
    """
    from ..addons import extended, home_names
    from ..models import initialise
    from ..nn.bn_policy import POLICIES
    from ..nn.flat_state import Layout
    from ..nn.sizing import without_memory

    untrained = {"pretrained": False} if hasattr(run.model, "pretrained") else {}  # weights change no size
    with without_memory():
        network = initialise(run.model.model_copy(update=untrained), shape, len(run.data.dataset.classes), run.seed)
        model = extended(run.addon, extended(run.algorithm, network, run.seed), run.seed)
    layout = Layout(model, stays=home_names(run.addon, run.algorithm, model))
    shared = run.algorithm.shared(POLICIES[run.bn], layout)
    own = layout.size - (shared.stop - shared.start)
    local = layout.size if run.algorithm.has_personal_networks else own
    local += own if run.algorithm.blended == "internal" else 0
    clients = run.algorithm.collaboration.count(len(run.partition.internal))
    return FLOAT_BYTES * (layout.size + clients * local)


def predictions(run: Run, images: int, inferences: int) -> Size:
    """Return the size of the table of a prediction job with this number of images."""
    each = 8 * len(run.data.dataset.classes) + 25
    return Size(images * inferences * each, PROBABILITIES) if images else Size(None, UNPREPARED)


def _saved(files: Sequence[Path]) -> Size:
    return Size(sum(file.stat().st_size for file in files), LIKE)
