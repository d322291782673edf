"""Preparation of data: from raw files to arrays that can be memory-mapped, and to the table of a partition.

Notes on raw images that cannot be read, are much too large, or have names that differ are shown on the page, so that no
image is left out or shrunk beyond recognition without a word.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from ..core import digest
from ..core.console import Progress, duration, say, track
from ..core.errors import SHOWN, UserError, UserErrors, require_none, shortened
from ..core.spelling import counted, groups, unified
from ..core.units import IGNORED, SPACING
from ..data.inspection import respelt
from ..data.looks import is_flat, is_grey, look
from ..data.prepared import read_samples
from ..io.arrays import GrowingArray, map_array
from ..io.disk import atomic_folder, locked, require_space
from ..io.paths import SOURCE, DataFiles, memory
from ..io.tables import write_table
from ..io.text import read_json, write_json

if TYPE_CHECKING:
    from ..io.scan import Spacing
    from ..study.run import Data, Run


BLOCK = 1024
"""Number of images that are held in memory at once."""

Seen = tuple[str, bool, bool, bytes]
DARK = 64
"""A site whose brightest value (of 255) is below this one counts as dark: a quarter of the range."""
PROBE = 48
"""Number of images that are read to estimate the total time."""
LARGE = 16
"""Pixels along a side in the file for each prepared pixel, above which an image is much too large."""
WHOLE_SLIDES = (
    "as wide and high as what the network sees of them, which shows little of their detail. If they are whole slides, "
    "cut them into patches first"
)
"""Remark for the reader of a page about images that are much too large."""


def obtain(data: Data, raw: Path, mirror: Path | None, code: str = "") -> None:
    """Put the raw files of a dataset into `raw`: download them, copy them from the mirror, or write a miniature.

    `raw/source.json` says which dataset it is, whether it is a miniature (synthetic images), and the digest `code` of
    the code that drew it; of downloaded files it also says where they came from, and what about them was verified.
    """
    raw.mkdir(parents=True, exist_ok=True)
    record = {"dataset": data.dataset.spec(), "synthetic": data.synthetic, "code": code}
    if data.synthetic:
        data.dataset.miniature(raw)
    elif receipt := data.dataset.download(raw, mirror):
        record["received"] = dataclasses.asdict(receipt)
    write_json(raw / SOURCE, record)


def prepare(data: Data, raw: Path, out: Path, threads: int = 1, code: str = "") -> None:
    """Write `out`: images.npy, samples.parquet, pixels.parquet and card.json, either completely or not at all.

    images.npy is (n, height, width, channels) uint8, or (n, features) float32 for a dataset of vectors; row i of
    samples.parquet is image i. For segmentation there is also masks.npy, (n, height, width) uint8, and samples.parquet
    has the columns SPACING if the dataset knows the size of all pixels. Images go through the transforms of
    `data.prepare`. pixels.parquet has what checks need of each prepared image (see `seen`) beside its sample. Memory
    holds one block of images, whatever their number.

    If the process is killed, finished blocks stay beside `out`, and the next call goes on from them if data, the user's
    own images and `code`, the digest of the preparing code, are the same. Images that cannot be read are left out if
    the dataset says so, and counted in card.json. Raises UserError for labels or samples that are not as documented,
    and UserErrors that name the images that are missing, broken or of another size: up to 20 of them, and the number of
    the others.
    """
    opened = data.dataset.open(raw)
    listed = _checked(opened.samples.reset_index(drop=True), data.dataset.classes, opened.further)
    rows = readable_rows(opened.image, len(listed), threads) if opened.skip_unreadable else np.arange(len(listed))
    samples = listed.iloc[rows].reset_index(drop=True)
    remarks = [*notes(listed, rows, opened.reduction, threads), *(f"{text}." for text in opened.remarks)]
    reader = _Reader(data, opened.image, rows, samples)
    partial = out.with_name(f".{out.name}.partial")
    users_files = data.dataset.fingerprint(memory(out))
    # the samples and the first image identify the data, without reading all of it
    content = pd.util.hash_pandas_object(samples).to_numpy().tobytes() + reader.first.tobytes()
    identity = digest.of([data.id, code, users_files, hashlib.sha256(content).hexdigest()], 64)
    with locked(partial / "lock"):
        array = GrowingArray(DataFiles(partial).images, reader.shape, reader.first.dtype, identity)
        try:
            _announce(array, reader.attempt, reader.first.nbytes, threads, out)
            seen = _fill(array, reader.attempt, threads)
        finally:
            array.close()
            if not array.rows:
                shutil.rmtree(partial)
        with atomic_folder(out) as new:
            files = DataFiles(new)
            array.move(files.images)
            remarks += dark_sites(map_array(files.images), samples["site"])
            if data.task.has_masks:
                shares = _write_masks(reader, opened.mask, files.masks, threads)
                samples["label"] = (shares > 0).astype(np.int64)
                if (empty := shares == 0).any():
                    words = "without a structure, where all that is predicted is wrong"
                    remarks.append(f"{counted(int(empty.sum()), 'mask')} {words} ({_at(samples['site'][empty])}).")
                if opened.spacing is not None:
                    remarks += _add_spacing(samples, [opened.spacing(int(row)) for row in rows])
            samples.attrs = {"data": data.id}
            write_table(files.samples, samples)
            pixels, flat, grey, looks = zip(*seen, strict=True)
            table = samples[["sample"]].assign(pixels=pixels, flat=flat, grey=grey, look=looks)
            if data.task.has_masks:
                table["structure"] = shares
            write_table(files.pixels, table)
            record = card(data, samples, (files.images, files.samples, files.masks))
            # where the raw files came from, and what about them was verified, if `obtain` has recorded it
            source = read_json(raw / SOURCE) if (raw / SOURCE).exists() else {}
            record |= {key: value for key, value in source.items() if key == "received"}
            if len(rows) < len(listed):
                record["unreadable"] = len(listed) - len(rows)
            write_json(files.card, {**record, "data": data.id, "notes": remarks, "code": code})
    shutil.rmtree(partial, ignore_errors=True)
    for remark in remarks:
        say(f"warning: {remark}")
    say(f"prepared {len(samples)} images of {samples['site'].nunique()} sites in {out}")


def assign(run: Run, samples: Path, out: Path, code: str = "") -> None:
    """Write `out`: sample, site, role and split of each sample of a run's partition, from the table samples.parquet.

    `code` is the digest of the code that assigns samples, which `out` states.
    """
    table = run.partition.assign(read_samples(samples))
    table.attrs = {"code": code, "partition": run.partition_id}
    write_table(out, table)


def readable_rows(image: Callable[[int], object], number: int, threads: int) -> np.ndarray:
    """Return the rows (m,), of `number` rows, for which `image` reads an image. Raises UserErrors if it reads none."""

    def attempt(i: int) -> UserError | None:
        try:
            image(i)
        except UserError as error:
            return error
        return None

    found = list(track(each(attempt, range(number), threads), "check", number, "images"))
    rows = [i for i, fault in enumerate(found) if fault is None]
    if not rows:
        raise UserErrors(shortened(filter(None, found), number, "images"))
    return np.array(rows)


def notes(
    samples: pd.DataFrame, rows: np.ndarray, reduction: Callable[[int], float] | None, threads: int
) -> Iterator[str]:
    """Yield the notes on raw images for the page. Of the rows of `samples`, `rows` (m,) can be read.

    The notes name images that are left out, images that are too large, and names that are spelt in several ways.
    `reduction` returns how many times smaller than in its file an image is kept, along a side.
    """
    sites = samples["site"].astype(str)
    lost = sites.drop(sites.index[rows])
    if len(lost):
        yield f"{_images(lost, 'could not be read and')} left out."
    if reduction is not None:
        large = np.fromiter(each(lambda i: reduction(i) > LARGE, rows, threads), dtype=bool, count=len(rows))
        if large.any():
            yield f"{_images(sites.iloc[rows[large]])} more than {LARGE} times {WHOLE_SLIDES}."
    for column in ("site", "patient"):
        names = samples[column].dropna().astype(str).unique()
        yield from (f"{text[:1].upper()}{text[1:]}." for text in respelt(column, groups(names)))


def _images(sites: pd.Series, before: str = "") -> str:
    """Return the beginning of a sentence about images at `sites` (n,), such as `3 images (2 at A, 1 at B) are`.

    `before` stands before the verb.
    """
    verb = "is" if len(sites) == 1 else "are"
    return " ".join(filter(None, [f"{counted(len(sites), 'image')} ({_at(sites)})", before, verb]))


class _Reader:
    """Reader of images by their prepared row: raw images after the transforms of `data.prepare`.

    `raw` reads an image by its raw row, and `rows` (n,) are the raw rows of the `samples`. Raises UserErrors if no
    image can be read.
    """

    def __init__(self, data: Data, raw: Callable[[int], np.ndarray], rows: np.ndarray, samples: pd.DataFrame) -> None:
        self.data, self.raw = data, raw
        self.rows, self.samples = rows, samples
        self.first = self._first()
        self.shape = (len(samples), *self.first.shape)

    def image(self, i: int) -> np.ndarray:
        """Return the prepared image in row `i`. Raises UserError if it cannot be read."""
        x = self.raw(int(self.rows[i]))
        for transform in self.data.prepare:
            x = transform.prepare(x)
        return x

    def attempt(self, i: int) -> np.ndarray | UserError:
        """Return the prepared image in row `i`, or the error if it is unreadable or shaped unlike the first image."""
        try:
            x = self.image(i)
        except UserError as error:
            return error
        if x.shape == self.first.shape:
            return x
        # (height, width, channels) is shown as width x height; vectors have one length.
        size, usual = ("x".join(map(str, shape[1::-1] or shape)) for shape in (x.shape, self.first.shape))
        problem = f"is {size}, others are {usual}"
        return UserError(f"image {self.samples['sample'][i]!r}", problem, "give all images the same size")

    def _first(self) -> np.ndarray:
        """Return the first prepared image that can be read. Raises UserErrors if none can."""
        faults: list[UserError] = []
        for i in range(len(self.samples)):
            try:
                return self.image(i)
            except UserError as error:
                faults = [*faults, error][:SHOWN]
        raise UserErrors(shortened(faults, len(self.samples), "images"))


def _write_masks(reader: _Reader, raw: Callable[[int], np.ndarray] | None, out: Path, threads: int) -> np.ndarray:
    """Write the masks (n, height, width), uint8, to `out`; return the share of pixels of each that are not background.

    `raw` reads the mask of a raw row. Raises UserErrors that name masks that cannot be read, have another size than
    their image, or unknown classes.
    """
    assert raw is not None
    number, height, width = reader.shape[:3]
    classes = len(reader.data.dataset.classes)
    masks = np.lib.format.open_memmap(out, "w+", np.uint8, (number, height, width))

    def attempt(i: int) -> UserError | None:
        where = f"mask of {reader.samples['sample'][i]!r}"
        try:
            mask = raw(int(reader.rows[i]))
            for transform in reader.data.prepare:
                mask = transform.prepare_mask(mask)
        except UserError as error:
            return error
        if mask.shape != (height, width):
            sizes = [f"{shape[1]}x{shape[0]}" for shape in (mask.shape, (height, width))]
            return UserError(where, f"is {sizes[0]}, its image {sizes[1]}", "give mask and image the same size")
        if (highest := mask[mask != IGNORED].max(initial=0)) >= classes:
            problem = f"has class {highest}, and there are {classes} classes"
            return UserError(where, problem, "say which value of a mask is which class, or name more classes")
        masks[i] = mask
        return None

    faults = [fault for fault in each(attempt, range(number), threads) if fault]
    require_none(shortened(faults[:SHOWN], len(faults), "masks"))
    masks.flush()
    return np.array([((mask > 0) & (mask != IGNORED)).mean() for mask in masks])


def dark_sites(images: Iterable[np.ndarray], sites: pd.Series) -> Iterator[str]:
    """Yield a sentence that names the sites whose images are all dark: no value reaches a quarter of the range."""
    brightest: dict[str, int] = {}
    for site, image in zip(sites, images, strict=True):
        # At most sites the first image settles it: no other one is looked at.
        if image.dtype == np.uint8 and brightest.get(site, 0) < DARK:
            brightest[site] = max(brightest.get(site, 0), int(image.max()))
    found = [f"{site} ({most} of 255)" for site, most in brightest.items() if 0 < most < DARK]
    if found:
        yield (
            f"All values of the images lie below a quarter of the range at {', '.join(found)}, as where 14 bits are "
            "stored in 16: a window, or another export, would use all of it."
        )


def _at(site: pd.Series) -> str:
    """Return the number of images at each site in words, such as `2 at A, 1 at B`, from the site of each image."""
    return ", ".join(f"{count:,} at {name}" for name, count in site.value_counts(sort=False).items())


def _add_spacing(samples: pd.DataFrame, spacing: Sequence[Spacing | None]) -> Iterator[str]:
    """Add the columns SPACING if the spacing of all images is known; yield a note if it is known for some only.

    Distances in millimetres and in pixels have no mean, so that one image without spacing leaves all in pixels.
    """
    unknown = np.array([lengths is None for lengths in spacing])
    if not unknown.any():
        samples[list(SPACING)] = np.array(spacing, dtype=np.float64)
    elif not unknown.all():
        yield (
            f"Nothing says how many millimetres a pixel has in {counted(int(unknown.sum()), 'image')} "
            f"({_at(samples['site'][unknown])}), so distances are in pixels everywhere."
        )


def _fill(array: GrowingArray, attempt: Callable[[int], np.ndarray | UserError], threads: int) -> list[Seen]:
    """Append the images that the array still lacks, and return the facts (see `seen`) of all its images.

    `attempt` returns the image of a row, or an error. Raises UserErrors if there are errors.
    """
    pixels = [seen(row) for row in array.written()]
    faults: list[UserError] = []
    number = 0
    with Progress("prepare", array.total, "images") as bar:
        bar.update(array.rows)
        for start in range(array.rows, array.total, BLOCK):
            results = list(each(attempt, range(start, min(start + BLOCK, array.total)), threads))
            wrong = [result for result in results if isinstance(result, UserError)]
            faults = [*faults, *wrong][:SHOWN]
            number += len(wrong)
            # After a fault, images are read only to name all that cannot be prepared.
            if not faults:
                block = np.stack([result for result in results if not isinstance(result, UserError)])
                array.append(block)
                pixels += each(seen, block, threads)
            bar.update(len(results))
    require_none(shortened(faults, number, "images"))
    return pixels


def seen(image: np.ndarray) -> Seen:
    """Return an image's fingerprint, whether it lacks contrast, whether it lacks colour, and the codes of its look.

    Equal codes tell similar images (see `data.looks`).
    """
    codes = look(image).astype("<u8").tobytes() if image.ndim == 3 else b""
    return fingerprint(image), is_flat(image), is_grey(image), codes


def fingerprint(image: np.ndarray) -> str:
    """Return a fingerprint of a prepared image: 32 hex digits of the SHA-256 of its bytes.

    Images of one dataset have one shape and type, so equal bytes are equal images. 128 bits suffice to take equal
    fingerprints for equal images: among a billion images, two different ones agree with a probability below 1e-20.
    """
    return hashlib.sha256(np.ascontiguousarray(image).data).hexdigest()[:32]


def _announce(array: GrowingArray, image: Callable[[int], object], size: int, threads: int, out: Path) -> None:
    """Print how much disk and time the preparation will take. Raises UserError if the disk has too little room.

    `image` prepares the image of a row, of which a few are timed, and `size` is the bytes of an image.
    """
    left = array.total - array.rows
    require_space(out.parent, left * size)
    if array.rows:
        say(f"going on after {array.rows} of {array.total} images")
    durations = []
    for i in range(array.rows, array.total, max(1, left // PROBE)):
        began = time.monotonic()
        image(i)
        durations.append(time.monotonic() - began)
    workers = max(min(threads, os.cpu_count() or 1), 1)
    # A median, since the first duration includes set-up.
    seconds = statistics.median(durations or [0]) * left / workers
    say(f"{left} images to prepare: {left * size / 1e9:.2f} GB of disk, about {duration(seconds)}")


def _checked(samples: pd.DataFrame, classes: tuple[str, ...], further: tuple[str, ...] = ()) -> pd.DataFrame:
    if samples.empty:
        raise UserError("dataset", "has no samples", "check the raw files")
    repeated = samples[samples["sample"].duplicated()]
    if len(repeated):
        name = repeated["sample"].iloc[0]
        raise UserError(f"sample {name!r}", "appears twice", "give each sample its own name")
    wrong = ~samples["label"].between(0, len(classes) - 1)
    if wrong.any():
        row = samples[wrong].iloc[0]
        problem = f"has label {row['label']}, but there are {len(classes)} classes ({', '.join(classes)})"
        raise UserError(f"sample {row['sample']!r}", problem, "number labels 0, 1, ... in the order of the classes")
    columns = [*("sample", "site", "label", "patient"), *samples.columns.intersection(["base"])]
    types = {"sample": "str", "site": "str", "label": "int64", "patient": "object", **dict.fromkeys(further, "object")}
    return samples[[*columns, *further]].astype(types)


def card(data: Data, samples: pd.DataFrame, files: Iterable[Path] = ()) -> dict[str, object]:
    """Return the data card of samples: source, counts of each site, and the checksums of those `files` that exist."""
    sites = {
        str(site): {"images": len(rows), "patients": int(unified(rows["patient"]).nunique()) or None}
        for site, rows in samples.groupby("site", sort=True)
    }
    return {
        **dataclasses.asdict(data.card),
        "dataset": data.dataset.spec(),
        "synthetic": data.synthetic,
        "prepare": [t.spec() for t in data.prepare],
        "classes": list(data.dataset.classes),
        "sites": sites,
        "checksums": {path.name: f"sha256:{digest.of_file(path)}" for path in files if path.exists()},
    }


T = TypeVar("T")
PIECE = 16
"""Number of images that a thread takes at once: few enough that all threads end together."""


def each(function: Callable[[Any], T], items: Sequence[Any] | np.ndarray, threads: int) -> Iterator[T]:
    """Yield what `function` returns for each item, in order, from up to `threads` threads.

    With one thread, it is the caller's own. Threads take items in pieces: handing one image over takes longer than
    reading a small one.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    pieces = [items[start : start + PIECE] for start in range(0, len(items), PIECE)]
    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(lambda piece: list(map(function, piece)), pieces):
            yield from found
