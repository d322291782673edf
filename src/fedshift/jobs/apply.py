"""A trained run on images of a hospital that is no site of its study."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import digest, registry
from ..core.console import Progress
from ..core.errors import UserError
from ..core.limits import Limit
from ..core.rng import stream
from ..io.disk import existing, require_space, sweep
from ..io.owned import require_own
from ..io.paths import Paths
from ..io.tables import write_table
from ..io.text import read_json, write_json
from ..study.plan import inference_id
from .devices import take_device
from .own_images import FileSamples, ImageFiles
from .predict import Network, load_run, probabilities

if TYPE_CHECKING:
    import pandas as pd

    from ..inferences import Inference
    from ..study.run import Run

EXAMPLES = 4
"""Images of each predicted class that are kept to be shown."""
BLOCK: Limit[int] = 1024
"""Files that are looked at in one go."""
ROW: Limit[int] = 200
"""Bytes of a row of predictions.csv, roughly."""
WRITTEN = ("predictions.csv", "page.html")
"""What lies in `out` in the end; the page is written by the report."""
MARKER = "fedshift-applied.json"
"""Lists them: what may be replaced when images are predicted again."""

Each = Callable[..., Iterator[Any]]
"""`map`, or that of a pool of threads."""


@dataclass(frozen=True)
class Applied:
    """What a run says of images.

    `table` has a row for each image that was read: path; label (Int64, missing where unknown), site and patient where
    given; predicted (Int64), the most probable class; p0, p1, ... (float64). `unreadable` says of all others, by path,
    why not. `scaled` counts images that had another size than the run's. `examples` has a few images of each class
    that was predicted, (n, height, width, channels) uint8. `out` is the folder of predictions.csv.
    """

    run: Run
    manifest: dict[str, Any]
    inference: Inference
    source: Path
    out: Path
    table: pd.DataFrame
    unreadable: dict[str, str]
    scaled: int
    examples: dict[int, np.ndarray]


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

    They are taken as one site's, or as those of the sites that the CSV names: what an inference tracks, it tracks for
    each site. The network is the global one, or that of the inference's client. Memory holds a batch of images, and a
    row of numbers for each. With `skip_unreadable`, every file is read once beforehand, and what is no image is left
    out. Raises UserError where the run has no network for these images, one of them cannot be read, or `out` holds
    anything that was not written there by an earlier call.
    """
    run, manifest, device = load_run(folder), _manifest(folder), take_device(threads)
    require_network(run, inference)
    files = ImageFiles.of(run, source)
    table = files.listed()
    out = out or _place(run, inference, source)
    _require_place(out, source)
    require_space(out, ROW * len(table))
    if not skip_unreadable:
        files.require(table["path"])
    table = table.reset_index(drop=True)
    model = Network(run, folder, files.stored, device).at(inference.client or "")
    with _reading(threads) as each:
        unreadable = _unreadable(files, table["path"].unique(), each) if skip_unreadable else None
        read = np.flatnonzero(~table["path"].isin(unreadable or {}))
        probability, scaled = np.full((len(table), len(files.classes)), np.nan), 0
        with Progress("apply", len(read), "images") as bar:
            for rows in _by_site(table, read):
                samples = FileSamples(files, table["path"].iloc[rows], run.transforms, device, each)
                probability[rows] = probabilities(model, samples, inference, device, bar)
                scaled += int(samples.scaled.sum())
    if not np.isfinite(probability[read]).all():
        raise UserError(folder, "its network gives probabilities that are no numbers", "train it anew")
    table = _with_predictions(table, probability, read)
    write_json(out / MARKER, {"files": WRITTEN})
    _write(out / "predictions.csv", table, files.classes, unreadable)
    table = table.iloc[read] if unreadable else table
    shown = _examples(files, table, run.id) if examples else {}
    return Applied(run, manifest, inference, source, out, table, unreadable or {}, scaled, shown)


def find(run: str, paths: Paths) -> Path:
    """The folder of a run, given itself or by its id."""
    return Path(run) if (Path(run) / "spec.json").is_file() else paths.run(run)


def chosen(name: str, settings: Sequence[str], client: str | None) -> Inference:
    """An inference by name, with settings as `momentum=0.8`. Raises UserErrors for what it does not know."""
    values: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError("--set", f"{text!r} is no setting", "write KEY=VALUE, such as momentum=0.8")
        try:
            values[key] = json.loads(value)
        except (ValueError, RecursionError):
            values[key] = value
    if client is not None:
        values["client"] = client
    inference: Inference = registry.build("inference", {**values, "name": name}, "--inference")
    return inference


def require_network(run: Run, inference: Inference) -> None:
    """Raise UserError where a run has no network that can be asked so."""
    if inference.personalise:
        raise UserError("--inference", "personalise takes labelled images of the run's own data", "leave it out")
    run.partition.require_client(inference.client, f"run {run.id}")
    if run.algorithm.isolated and inference.client is None:
        what = "each client trained alone: there is no network for others"
        raise UserError(f"run {run.id}", what, f"say --client, one of {', '.join(run.partition.internal)}")


def _place(run: Run, inference: Inference, source: Path) -> Path:
    """Where results lie if nothing else is said: named by run, images, the digest of where they lie, and inference."""
    whole = source.resolve()
    name = whole.stem if whole.is_file() else whole.name
    parts = name or "images", digest.of(str(whole), 6), inference_id(inference)
    return Path("results", "applied", run.id, "-".join(parts))


def _require_place(out: Path, source: Path) -> None:
    """Raise UserError where no file can be written, or what is not ours would be lost, before hours have gone by."""
    nearest = existing(out)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(out, f"{nearest} is no folder that can be written to", "choose another with --out")
    if source.resolve() in [(out / name).resolve() for name in WRITTEN]:
        raise UserError(out, f"{source.name} lies there and would be overwritten", "choose another folder with --out")
    sweep(out)
    require_own(out, MARKER, "--out")


@contextmanager
def _reading(threads: int) -> Iterator[Each]:
    """How files are read: one after another, or by several threads."""
    if threads == 1:
        yield map
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool.map


def _unreadable(files: ImageFiles, paths: np.ndarray, each: Each) -> dict[str, str]:
    """Why files are no images, by path; all are read. Raises UserError where none is."""
    found: dict[str, str] = {}
    with Progress("check", len(paths), "files") as bar:
        for start in range(0, len(paths), BLOCK):
            block = paths[start : start + BLOCK]
            found |= {path: why for path, why in zip(block, each(files.fault, block), strict=True) if why}
            bar.update(len(block))
    if len(found) == len(paths):
        raise UserError(files.table, "no image can be read", next(iter(found.values())))
    return found


def _by_site(table: pd.DataFrame, read: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of each site, of those that can be read; of all together where no sites are known."""
    if "site" not in table:
        yield read
        return
    for rows in table["site"].iloc[read].groupby(table["site"].iloc[read], sort=False).indices.values():
        yield read[rows]


def _with_predictions(table: pd.DataFrame, probability: np.ndarray, read: np.ndarray) -> pd.DataFrame:
    """The table with the columns predicted (Int64), p0, p1, ...; missing but for the rows that were read."""
    import pandas as pd

    best = pd.Series(probability[read].argmax(1), index=read, dtype="Int64")
    return table.assign(predicted=best, **{f"p{k}": column for k, column in enumerate(probability.T)})


def _write(path: Path, table: pd.DataFrame, classes: Sequence[str], unreadable: dict[str, str] | None) -> None:
    """A row an image, in the order given; classes by name and, where it was asked, why an image is left out."""
    names = dict(enumerate(classes))
    words = {column: table[column].map(names) for column in ("label", "predicted") if column in table}
    if unreadable is not None:
        words["unreadable"] = table["path"].map(unreadable)
    write_table(path, table.assign(**words))


def _examples(files: ImageFiles, table: pd.DataFrame, run: str) -> dict[int, np.ndarray]:
    """Images of each predicted class, drawn at random and always the same."""
    found, predicted = {}, table["predicted"].to_numpy(dtype=int)
    for k in np.unique(predicted):
        drawn = np.sort(stream("examples", run, k).permutation(np.flatnonzero(predicted == k))[:EXAMPLES])
        found[int(k)] = np.stack([files.read(path)[0] for path in table["path"].iloc[drawn]])
    return found


def _manifest(folder: Path) -> dict[str, Any]:
    """manifest.json of the run, if it came with it."""
    path = folder / "manifest.json"
    found = read_json(path) if path.exists() else {}
    if not isinstance(found, dict) or not all(isinstance(found.get(k, {}), dict) for k in ("git", "versions")):
        raise UserError(path, "is no manifest of a run", "remove it, or copy the run's folder anew")
    return found
