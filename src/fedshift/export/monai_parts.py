"""Parts of a MONAI workflow that the configuration of an exported bundle names, for use by `monai.bundle` alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from ignite.engine import Engine, Events
from monai.transforms import Transform
from torch import Tensor, nn

from ..core import registry
from ..core.registry import validated
from ..engine.prediction import site_predictor
from ..inferences import Inference, Predict, Site
from ..io.tables import write_table
from ..io.text import read_json
from ..jobs.apply import Answers
from ..jobs.image_files import FileSamples, ImageFiles
from ..jobs.predict import architecture
from ..study.run import Run
from ..tasks import CLASSIFICATION, Task
from ..transforms import greys_after


def run(spec: str) -> Run:
    """Return the run that a bundle holds, read from its spec.json."""
    return validated(Run, read_json(Path(spec)), spec)


def network(of: Run) -> nn.Module:
    """Return the network of a run with initial weights; the trained ones are in the bundle's model.pt."""
    return architecture(of, ImageFiles.of(of, Path()).stored)


def inference(settings: Mapping[str, Any]) -> Inference:
    """Build an inference from its name and settings, such as `{"name": "tsmobn", "momentum": 0.9}`."""
    built: Inference = registry.build("inference", dict(settings), "inference")
    return built


def listed(of: Run, source: str) -> list[dict[str, str]]:
    """Return the images of one hospital as MONAI's list of data: a dict `{"path": ...}` for each.

    `source` is a folder, or a CSV with the column `path`.
    """
    files = ImageFiles.of(of, Path(source))
    rows = files.listed()
    files.require(rows["path"])
    return [{"path": path} for path in rows["path"]]


def order(how: Inference, n: int) -> list[int]:
    """Return the order in which the inference `how` predicts `n` images, as indices, for use as a sampler.

    The order matters, since statistics at test time are taken batch by batch.
    """
    return [int(i) for i in how.image_order(n)]


class ReadImage(Transform):
    """MONAI transform that reads the file `path` and adds `image` (channels, height, width), prepared as for a run."""

    def __init__(self, of: Run, source: str) -> None:
        self.files = ImageFiles.of(of, Path(source))
        self.transforms = of.transforms

    def __call__(self, data: Mapping[str, str]) -> dict[str, Any]:
        """Return `data` with the image that its `path` names."""
        samples = FileSamples(self.files, pd.Series([data["path"]]), self.transforms)
        return {**data, "image": samples.batch(torch.zeros(1, dtype=torch.long).numpy())[0][0]}


@dataclass(eq=False)
class SiteInferer:
    """Inferer and handler of a MONAI evaluator that predicts one hospital's images by the inference `how`.

    As a handler it enters the inference when the evaluator starts, and leaves it at the end, also after an error. As an
    inferer it predicts one batch, by a copy of the network that it took at the start. `loader` yields the batches of
    all images of the hospital. `of` is the run of the network, whose transforms say what black and white are.
    """

    how: Inference
    model: nn.Module
    loader: Iterable[Mapping[str, Any]]
    device: Any
    of: Run | None = None

    def __post_init__(self) -> None:
        self.greys = None
        self.task: Task = CLASSIFICATION
        if self.of:
            self.task = self.of.data.task
            self.greys = greys_after(self.of.transforms, ImageFiles.of(self.of, Path()).stored)
        self.stack = ExitStack()
        self.predict: Predict | None = None

    def attach(self, engine: Engine) -> None:
        """Register the handlers for the start, the end and an error of an ignite engine."""
        engine.add_event_handler(Events.STARTED, self._enter)
        engine.add_event_handler(Events.COMPLETED, self._leave)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._fail)

    def __call__(self, inputs: Tensor, _: nn.Module) -> Tensor:
        """Return the logits (batch, classes, ...) of one batch (batch, channels, height, width)."""
        assert self.predict is not None, "the evaluator has not started"
        return self.predict(inputs)

    def _enter(self, _: Engine) -> None:
        self.predict = self.stack.enter_context(
            site_predictor(self.model, self.how, Site(self._inputs, self.greys), self.task)
        )

    def _inputs(self) -> Iterator[Tensor]:
        for batch in self.loader:
            yield batch["image"].to(self.device)

    def _leave(self, _: Engine) -> None:
        self.predict = None
        self.stack.close()

    def _fail(self, engine: Engine, error: BaseException) -> None:
        self._leave(engine)
        raise error


class PictureSaver:
    """Handler that writes pictures and predictions.csv from an evaluator's logits, as `fedshift apply` does.

    `source` is the folder or CSV of images, which come in the order of the inference `how`.
    """

    def __init__(self, of: Run, source: str, how: Inference, output_dir: str) -> None:
        files = ImageFiles.of(of, Path(source))
        self.rows = files.listed()[["path"]].reset_index(drop=True)
        self.answers = Answers(files, self.rows["path"], of.data.task)
        self.order = how.image_order(len(self.rows))
        self.out = Path(output_dir)
        self.numbers = np.empty((0, len(self.answers.columns)))

    def attach(self, engine: Engine) -> None:
        """Register the handlers for the start, each batch and the end of an ignite engine."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._add)
        engine.add_event_handler(Events.COMPLETED, self._write)

    def _start(self, _: Engine) -> None:
        self.numbers = self.numbers[:0]
        self.answers.folders = {kind: self.out / f"{kind}s" for kind in self.answers.pictures}
        for folder in self.answers.folders.values():
            folder.mkdir(parents=True, exist_ok=True)

    def _add(self, engine: Engine) -> None:
        outputs: Any = engine.state.output
        logits = torch.stack([torch.as_tensor(output["pred"]) for output in outputs])
        rows = self.order[len(self.numbers) :][: len(logits)]
        numbers = self.answers(rows, logits, torch.arange(len(rows)))
        self.numbers = np.concatenate([self.numbers, numbers.numpy()])

    def _write(self, _: Engine) -> None:
        stored = np.empty_like(self.numbers)
        stored[self.order] = self.numbers
        write_table(self.out / "predictions.csv", self.answers.added(self.rows, stored, np.arange(len(stored))))


def named(key: str = "path") -> Callable[[Sequence[Mapping[str, Any]]], list[dict[str, Any]]]:
    """Return a function that gives MONAI's ClassificationSaver the file names of a batch, which are under `key`."""
    return lambda batch: [{"filename_or_obj": image[key]} for image in batch]
