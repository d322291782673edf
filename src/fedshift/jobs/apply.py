"""Predictions of a trained run for images of a hospital outside of its study."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from ..core import digest, registry
from ..core.console import Progress
from ..core.errors import UserError
from ..core.rng import stream
from ..data.samples import at_site, site_statistics
from ..engine.prediction import probabilities
from ..inferences import Site
from ..io.disk import atomic_folder, existing, require_space, sweep
from ..io.identity import require_own
from ..io.images import PLAIN, read_image
from ..io.paths import Paths, RunFiles
from ..io.tables import write_table
from ..io.text import tell_outside, write_json
from ..study.plan import inference_id
from ..transforms import greys_after
from .image_files import LOOKS, FileSamples, ImageFiles
from .predict import Network, load_run
from .prepare import LARGE
from .record import read_manifest, take_device
from .run_images import RunImages

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..inferences import Inference
    from ..study.run import Run
    from ..tasks import Task

EXAMPLES = 4
"""Number of images of each sort, such as each predicted class, that the page shows."""
BLOCK = 1024
"""Number of files that are checked together."""
NAME = 50
"""The most characters of an image's name that the names of its pictures contain."""
ROW = 200
"""Approximate size of a row of predictions.csv, in bytes."""
WRITTEN = ("predictions.csv", "page.html")
"""Files that the folder of results holds in the end; the report writes the page."""
MARKER = "fedshift-applied.json"
"""File in the folder of results that lists what a call wrote there, so that a later call may replace it."""

Each = Callable[..., Iterator[Any]]
"""A function like `map`: the built-in one, or the one of a pool of threads."""


@dataclass(frozen=True)
class Applied:
    """Predictions of a run for images that it was not trained on.

    `table` has a row for each image that was read: path; site and patient where the source has them, and what the task
    writes (`Task.answer_columns`). For class probabilities these are label (Int64, missing where unknown), predicted
    (Int64), the most probable class, and p0, p1, ... (float64); for masks the areas of each structure, and the paths of
    `Task.pictures` from `out`. `unreadable` maps the path of every other image to the reason. `scaled` counts images
    that had another size than the run's, and `large` those of them that are much too large. `looks` (n, 3) has the
    brightness, contrast and colour of each image that was read (see `image_files.looks`). `examples` has a few images
    (height, width, channels), uint8, of each sort, such as a predicted class (`Task.sort`). `out` is the folder of
    predictions.csv, `folder` that of the run, and `source` the folder or table of the images.
    """

    run: Run
    manifest: dict[str, Any]
    inference: Inference
    source: Path
    out: Path
    table: pd.DataFrame
    unreadable: dict[str, str]
    scaled: int
    examples: Mapping[int, Sequence[np.ndarray]]
    looks: np.ndarray
    folder: Path
    large: int = 0


def apply(
    folder: Path,
    source: Path,
    inference: Inference,
    out: Path | None = None,
    *,
    threads: int = 1,
    skip_unreadable: bool = False,
    examples: bool = True,
) -> Applied:
    """Predict the images of `source`, a folder or a CSV, with the run in `folder`, and write predictions.csv.

    A run of masks also writes the folders masks and overlays, with a PNG file for each image. All images belong to one
    site, or to the sites that the CSV names; an inference adapts to each site by itself. The network is the global one,
    or that of the inference's client. Memory holds one batch of images, and a row of numbers for each image. With
    `skip_unreadable`, every file is read once beforehand, and files that are not images are left out. Raises UserError
    where the run has no network for these images, an image cannot be read, or `out` holds anything that was not written
    there by an earlier call.
    """
    run = load_run(folder)
    record = read_manifest(file) if (file := RunFiles(folder).manifest).exists() else {}
    device = take_device(threads)
    require_network(run, inference)
    files = ImageFiles.of(run, source, "leave out such files with --skip-unreadable")
    table = files.listed()
    if source.is_file():
        tell_outside(source, table["path"])
    out = out or _place(run, inference, source)
    # hours of work may follow: whatever can be refused is refused now
    _require_place(out, source)
    if run.data.task.pictures and source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        fault = f"lies in {source}: the next call would read what is written there as images"
        raise UserError(out, fault, "choose another folder with --out")
    require_space(out, ROW * len(table))
    if not skip_unreadable:
        files.require(table["path"])
    table = table.reset_index(drop=True)
    model = Network(run, folder, files.stored, device).at(inference.client or "", inference.external_bn)
    answers = Answers(files, table["path"], run.data.task)
    with ThreadPoolExecutor(threads) as pool, _written(out, answers.pictures) as answers.folders:
        read_each: Each = map if threads == 1 else pool.map
        unreadable = _unreadable(files, table["path"].unique(), read_each) if skip_unreadable else None
        readable = np.flatnonzero(~table["path"].isin(unreadable or {}))
        opened = partial(FileSamples, files, device=device, each=read_each)
        numbers, reduction, seen = _predicted(run, model, inference, opened, table, readable, answers)
        if not np.isfinite(numbers[readable]).all():
            raise UserError(folder, "its network gives outputs that are not numbers", "train it anew")
    table = answers.added(table, numbers, readable)
    _write(out / "predictions.csv", table, answers.task, files.classes, unreadable)
    table = table.iloc[readable] if unreadable else table

    def example(row: int) -> np.ndarray:
        drawn = answers.task.pictures[-1:]
        return read_image(out / table[drawn[0]].iloc[row]) if drawn else files.read(table["path"].iloc[row])[0]

    shown = _examples(run.id, answers.task.sort(numbers[readable]), example) if examples else {}
    scaled, large = (int((reduction > least).sum()) for least in (0, LARGE))
    looks, lost = seen[readable], unreadable or {}
    return Applied(run, record, inference, source, out, table, lost, scaled, shown, looks, folder, large)


def images_of_study(run: Run, folder: Path) -> RunImages | None:
    """Return the prepared images of the study that trained a run; None if its `folder` is in no project with them."""
    place = folder.resolve()
    paths = Paths(place.parents[2]) if len(place.parents) > 2 else Paths()
    if paths.run(run.id).resolve() != place:
        return None
    try:
        return RunImages(run, paths, "cpu")
    except (UserError, OSError):
        return None


class Answers:
    """Function from a network's outputs for a batch to the numbers of each image; it also writes masks as pictures.

    `paths` (n,) are the paths of all images, and `columns` maps the name of each number to its pandas type. `pictures`
    are the paths of what is drawn of each image, by kind, such as masks/07-lung.png, in which 7 is the row of the
    image, from 1, since several images may have one name. `folders` is the folder into which each kind is written.
    """

    def __init__(self, files: ImageFiles, paths: pd.Series, task: Task) -> None:
        self.files = files
        self.paths = paths
        self.task = task
        self.columns = task.answer_columns(files.classes)
        self.folders: Mapping[str, Path] = {}
        digits = len(str(len(paths)))
        texts = (path[: path.rindex(".")] if path.lower().endswith(PLAIN) else path for path in paths)
        words = (re.sub(r"\W+", "-", text.rpartition("/")[2])[:NAME] for text in texts)
        names = [f"{number:0{digits}}-{word}.png" for number, word in enumerate(words, 1)]
        self.pictures = {kind: [f"{kind}s/{name}" for name in names] for kind in task.pictures}

    def __call__(self, rows: np.ndarray, logits: Tensor, y: Tensor) -> Tensor:
        """Return the numbers (batch, columns), float64, of a batch of images from their logits (batch, classes, ...).

        The images are those in the rows `rows[y]` of the table: `y` (batch,) holds positions in `rows`.
        """
        places = rows[y.cpu().numpy()]
        originals = [partial(self.files.original, path) for path in self.paths.iloc[places]]
        numbers = []
        for place, answer in zip(places, self.task.answers(logits, originals), strict=True):
            for kind, content in answer.pictures.items():
                (self.folders[kind] / Path(self.pictures[kind][place]).name).write_bytes(content)
            numbers.append(answer.numbers)
        return torch.from_numpy(np.stack(numbers))

    def added(self, table: pd.DataFrame, numbers: np.ndarray, readable: np.ndarray) -> pd.DataFrame:
        """Return the table with the numbers (n, columns) as columns, and paths of pictures in its `readable` rows."""
        columns = {
            # Int64, because rows that were not read have no prediction
            name: pd.Series(column).astype(kind)
            for (name, kind), column in zip(self.columns.items(), numbers.T, strict=True)
        }
        return table.assign(**columns, **{k: pd.Series(names).iloc[readable] for k, names in self.pictures.items()})


def _predicted(
    run: Run,
    model: nn.Module,
    inference: Inference,
    opened: Callable[..., FileSamples],
    table: pd.DataFrame,
    readable: np.ndarray,
    answers: Answers,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers (n, columns), the reductions (n,) and the looks (n, 3) of all rows of the table.

    A reduction says how many times smaller an image was made, 0 if it had the run's size; looks are brightness,
    contrast and colour. Numbers and looks are NaN in rows that are not `readable`. `opened` makes the samples of given
    paths. The inference adapts to each site by itself.
    """
    numbers = np.full((len(table), len(answers.columns)), np.nan)
    reduction = np.zeros(len(table))
    seen = np.full((len(table), len(LOOKS)), np.nan)
    with Progress("apply", len(readable), "images") as bar:
        # without sites all images are of one
        sites = table["site"].iloc[readable] if "site" in table else pd.Series("", index=readable)
        for places in sites.groupby(sites, sort=False).indices.values():
            rows = readable[places]
            at_rows = partial(opened, table["path"].iloc[rows])
            samples = at_rows(at_site(run.transforms, site_statistics(run.transforms, at_rows)))
            site = Site(greys=greys_after(run.transforms, samples.files.stored))
            read = partial(answers, rows)
            numbers[rows] = probabilities(
                model, samples, inference, samples.device, bar, site, answers.task, read, run.training.deterministic
            )
            reduction[rows], seen[rows] = samples.reduction, samples.looks
    return numbers, reduction, seen


def find(run: str, paths: Paths) -> Path:
    """Return the folder of a run, given its id or the path of its folder."""
    given = Path(run)
    return given if given.is_absolute() or RunFiles(given).spec.exists() else paths.run(run)


def chosen(name: str, settings: Sequence[str], client: str | None) -> Inference:
    """Return the inference called `name` with settings such as `momentum=0.8`, on a client's network if one is named.

    Raises UserErrors for an unknown name or setting.
    """
    values: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError("--set", f"{text!r} is not a setting", "write KEY=VALUE, such as momentum=0.8")
        try:
            # a number, a list or true; anything else is a text, which needs no quotes on a command line
            values[key] = json.loads(value)
        except (ValueError, RecursionError):
            values[key] = value
    if client is not None:
        values["client"] = client
    inference: Inference = registry.build("inference", {**values, "name": name}, "--inference")
    return inference


def require_network(run: Run, inference: Inference) -> None:
    """Raise UserError if a run has no network for this inference at a site outside of its study."""
    inference.require_task(run.data.task.name, "--inference")
    if inference.uses_labels:
        fault = f"{inference.name} is to be adapted to labelled images of a site, and no labels are taken here"
        raise UserError("--inference", fault, "leave out the settings that ask for it")
    if inference.asks:
        fault = f"{inference.name} needs numbers that the internal sites compute on their training images"
        raise UserError("--inference", fault, "choose another inference: these images are not read here")
    run.partition.require_client(inference.client, f"run {run.id}")
    if not run.algorithm.collaboration.has_global_model and inference.client is None:
        fault = f"{run.algorithm.collaboration.apart}: there is no network for others"
        raise UserError(f"run {run.id}", fault, f"say --client, one of {', '.join(run.partition.internal)}")


def _place(run: Run, inference: Inference, source: Path) -> Path:
    """Return the default folder of results, named by run, source, a digest of the source's path, and inference."""
    place = source.resolve()
    name = place.stem if place.is_file() else place.name
    # two folders of one name have different digests
    parts = name or "images", digest.of(str(place), 6), inference_id(inference)
    return Path("results", "applied", run.id, "-".join(parts))


def _require_place(out: Path, source: Path) -> None:
    """Raise UserError if nothing can be written into `out`, or files there would be lost that fedshift did not write.

    It is called before the prediction, which may take hours.
    """
    nearest = existing(out)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(out, f"{nearest} cannot be written to as a folder", "choose another with --out")
    if source.resolve() in [(out / name).resolve() for name in WRITTEN]:
        raise UserError(out, f"{source.name} lies there and would be overwritten", "choose another folder with --out")
    sweep(out)
    require_own(out, MARKER)


@contextmanager
def _written(out: Path, pictures: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Path]]:
    """Yield a new folder for each kind of picture; it replaces the folder of an earlier call if the block succeeds.

    Then whatever else an earlier call has written in `out` is removed. `pictures` maps each kind to the paths of its
    files.
    """
    before = sorted(out.rglob("*"), reverse=True) if out.is_dir() else None
    folders = [f"{kind}s" for kind in pictures]
    try:
        with ExitStack() as stack:
            yield {kind: stack.enter_context(atomic_folder(out / f"{kind}s")) for kind in pictures}
            files = [*WRITTEN, *folders, *itertools.chain(*pictures.values())]
            write_json(out / MARKER, {"files": files})
    except BaseException:
        if before is None:
            with suppress(OSError):
                out.rmdir()
        raise
    kept = {out / name for name in (MARKER, *files)}
    for path in before or ():
        if path not in kept:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


def _unreadable(files: ImageFiles, paths: np.ndarray, each: Each) -> dict[str, str]:
    """Return the reasons why files cannot be read as images, by path, after reading each of them.

    `each` is a function like `map`. Raises UserError if no file is an image.
    """
    reasons: dict[str, str] = {}
    with Progress("check", len(paths), "files") as bar:
        for start in range(0, len(paths), BLOCK):
            block = paths[start : start + BLOCK]
            reasons |= {path: why for path, why in zip(block, each(files.fault, block), strict=True) if why}
            bar.update(len(block))
    if len(reasons) == len(paths):
        raise UserError(files.table, "no image can be read", next(iter(reasons.values())))
    return reasons


def _write(
    path: Path, table: pd.DataFrame, task: Task, classes: Sequence[str], unreadable: dict[str, str] | None
) -> None:
    """Write a CSV with a row for each image, in the order of the table, and names of classes in place of numbers.

    `unreadable` maps the paths of images that were left out to the reasons, for a column of its own; None makes no such
    column.
    """
    names = dict(enumerate(classes))
    if task.has_probabilities:
        table = table.rename(columns={p: f"p_{name}" for p, name in zip(task.columns(classes), classes, strict=True)})
    words = {column: table[column].map(names) for column in ("label", "predicted") if column in table}
    if unreadable is not None:
        words["unreadable"] = table["path"].map(unreadable)
    write_table(path, table.assign(**words))


def _examples(run: str, sorts: np.ndarray, image: Callable[[int], np.ndarray]) -> dict[int, list[np.ndarray]]:
    """Return up to EXAMPLES images of each sort, drawn at random but the same in every call with the same `run` id.

    `sorts` (n,) is the sort of each image, such as its predicted class, and `image` reads the image in a row.
    """
    examples = {}
    for k in np.unique(sorts):
        drawn = np.sort(stream("examples", run, k).permutation(np.flatnonzero(sorts == k))[:EXAMPLES])
        examples[int(k)] = [image(row) for row in drawn]
    return examples
