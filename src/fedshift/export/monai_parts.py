"""What the configuration of an exported bundle names: parts for a MONAI workflow, for use by `monai.bundle` alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from ignite.engine import Engine, Events
from monai.transforms import Transform
from torch import Tensor, nn

from ..core import registry
from ..core.registry import validated
from ..inferences import Inference
from ..io.text import read_json
from ..jobs.own_images import FileSamples, ImageFiles
from ..jobs.predict import architecture, image_order
from ..study.run import Run


def run(spec: str) -> Run:
    """The run that a bundle holds, from its spec.json."""
    return validated(Run, read_json(Path(spec)), spec)


def network(of: Run) -> nn.Module:
    """Its network, with initial weights: the trained ones are in the bundle's model.pt."""
    return architecture(of, ImageFiles.of(of, Path()).stored)


def inference(settings: Mapping[str, Any]) -> Inference:
    """A way of inference by its name and settings, such as `{"name": "tsmobn", "momentum": 0.9}`."""
    found: Inference = registry.build("inference", dict(settings), "inference")
    return found


def listed(of: Run, source: str) -> list[dict[str, str]]:
    """The images of a folder, or of a CSV with the column `path`: all of one hospital."""
    files = ImageFiles.of(of, Path(source))
    rows = files.listed()
    files.require(rows["path"])
    return [{"path": path} for path in rows["path"]]


def order(how: Inference, n: int) -> list[int]:
    """The order of `n` images, as a sampler: batches decide what a test-time statistic sees."""
    return [int(i) for i in image_order(how, n)]


class ReadImage(Transform):
    """Adds `image` (channels, height, width), float32, to `{"path": ...}`: read, scaled and transformed as by a run."""

    def __init__(self, of: Run, source: str) -> None:
        self.files, self.transforms = ImageFiles.of(of, Path(source)), of.transforms

    def __call__(self, data: Mapping[str, str]) -> dict[str, Any]:
        samples = FileSamples(self.files, pd.Series([data["path"]]), self.transforms)
        return {**data, "image": samples.batch(torch.zeros(1, dtype=torch.long).numpy())[0][0]}


class SiteStatistics:
    """Handler that lets a way of inference see one hospital's images: on it goes at the start, off at the end."""

    def __init__(self, how: Inference, model: nn.Module, loader: Iterable[Mapping[str, Any]], device: Any) -> None:
        self.how, self.model, self.loader, self.device = how, model, loader, device
        self.stack = ExitStack()

    def attach(self, engine: Engine) -> None:
        """As ignite's handlers are."""
        engine.add_event_handler(Events.STARTED, self._enter)
        engine.add_event_handler(Events.COMPLETED, self._leave)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._fail)

    def _enter(self, _: Engine) -> None:
        self.model.eval()
        with torch.no_grad():
            self.stack.enter_context(self.how.on_site(self.model, self._inputs))

    def _inputs(self) -> Iterator[Tensor]:
        for batch in self.loader:
            yield batch["image"].to(self.device)

    def _leave(self, _: Engine) -> None:
        self.stack.close()

    def _fail(self, _: Engine, error: BaseException) -> None:
        self.stack.close()
        raise error


def named(key: str = "path") -> Callable[[Sequence[Mapping[str, Any]]], list[dict[str, Any]]]:
    """What `ClassificationSaver` takes for the names of a batch's files."""
    return lambda batch: [{"filename_or_obj": one[key]} for one in batch]
