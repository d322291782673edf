"""The base class of datasets, from the official files to images that are read one by one, and the tables of these."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from ..core import digest
from ..core.errors import UserError
from ..core.registry import Plugin
from ..core.spelling import AS_WRITTEN
from ..io.checksums import contents
from ..io.download import Source
from ..io.origins import Origin, Receipt, obtain
from ..io.text import readable

if TYPE_CHECKING:
    import pandas as pd

    from ..io.scan import Spacing

Scale = Literal["paper", "mini"]
SiteKind = Literal["hospital", "collection", "department", "scanner", "domain", "client", "site"]
"""What a site can be, as pages name it.

A hospital, a collection of images of several hospitals, a department or a scanner of one hospital, a domain of images
that are not medical, a client whose images were dealt to it, or a site of which nothing more is said.
"""
MOST_CLASSES = 10_000
"""Most classes of a dataset."""


@dataclass(frozen=True)
class Card:
    """Facts about a dataset that its readers need: source, version, licence, citation, and what to beware of."""

    title: str
    version: str
    source: str
    licence: str
    citation: str
    caveat: str = ""


SAMPLE_COLUMNS = ("sample", "site", "label", "patient", "base", AS_WRITTEN)
"""Columns of a table of samples that the package itself reads. All others are further columns."""


def names_of(classes: Sequence[str], what: str = "labels", of: str = "") -> Any:
    """Return the field `classes` of a dataset whose classes are known: a study may name as many otherwise."""
    last = len(classes) - 1
    words = f"names of the {what} 0 {'and' if last == 1 else 'to'} {last}{of}"
    return Field(tuple(classes), min_length=len(classes), max_length=len(classes), description=words)


@dataclass(frozen=True)
class Opened:
    """Raw files that are ready to be read.

    `samples` has one row for each image: sample (str, unique), site (str), label (int), patient (str, or None if it is
    unknown). If sites show different versions of the same images, a column base names the image that the versions
    share. `image(i)` returns the image of row i: (height, width, channels), uint8, or, in a dataset of vectors,
    (features,), float32. Several threads may call it. It raises UserError, with the name of the file, for a file that
    cannot be read. With `skip_unreadable`, such images are left out, and counted. `reduction(i)`, where there is one,
    returns how many times smaller the image of row i is than its file shows it, along a side. `further` names columns
    of `samples` that are kept beside these, as text: facts about an image, such as the scanner, by which a study may
    look at its results. `remarks` are sentences about the files that the page shows. `mask(i)`, in a dataset with
    masks, returns the class of each pixel of the image of row i: (height, width), uint8, of the size of the image.
    `spacing(i)`, where there is one, returns the millimetres between rows and between columns of `image(i)`, as it is
    after any scaling, or None where they are unknown.
    """

    samples: pd.DataFrame
    image: Callable[[int], np.ndarray]
    skip_unreadable: bool = False
    reduction: Callable[[int], float] | None = None
    further: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    mask: Callable[[int], np.ndarray] | None = None
    spacing: Callable[[int], Spacing | None] | None = None


@dataclass(frozen=True)
class Examined:
    """Raw files as `fedshift check` sees them, which opens no image.

    `samples` are those of `Opened`; one with a fault may lack its site or its label. `faults` are the errors that
    `open` or reading would raise. `facts` says what is in the files, and `warnings` what a reader should know.
    """

    samples: pd.DataFrame
    faults: Sequence[UserError] = ()
    facts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Dataset(Plugin):
    """A dataset: where its raw files come from, and how to read them.

    A plug-in defines `card`, `classes`, `sources` (or its own `download`) and `open`. It may define `miniature`, which
    writes a small synthetic set in the same raw layout.
    """

    kind: ClassVar[str] = "dataset"
    miniature_fields: ClassVar[frozenset[str]] = frozenset()
    """Settings that influence only the miniature."""
    reading_fields: ClassVar[frozenset[str]] = frozenset()
    """Settings that do not influence the raw files, so that a change of them downloads nothing."""
    shape: ClassVar[tuple[int, ...] | None] = None
    """Shape of the prepared images, (channels, height, width) or (features,); None if reading decides it."""
    site_kind: ClassVar[SiteKind] = "hospital"
    """What a site of the dataset is, for the words of pages. A study may say otherwise of single sites."""
    sample_noun: ClassVar[str] = "image"
    """What one sample of the dataset is, in the singular, for the words of pages."""
    padded: ClassVar[bool] = False
    """True if black is added to images that are not square, instead of cutting out their centre."""
    classes: tuple[str, ...] = Field(("negative", "positive"), description="names of the labels 0, 1, ...")

    @model_validator(mode="after")
    def _bounded(self) -> Dataset:
        if len(self.classes) > MOST_CLASSES:
            raise UserError("classes", f"{len(self.classes)} classes are too many (limit {MOST_CLASSES})", "name fewer")
        if len(set(self.classes)) < len(self.classes) or not all(map(str.strip, self.classes)):
            raise UserError("classes", "a name is empty or stands there twice", "name each class once")
        return self

    def card(self) -> Card:
        """Return source, licence and citation, for the page."""
        raise TypeError(f"{type(self).__name__} has no card")

    def sources(self) -> Sequence[Source]:
        """Return the official files."""
        return ()

    def inputs(self) -> Sequence[Path]:
        """Return the user's own files that the study names. A file that is not there is an error of the study."""
        return ()

    def located(self, folder: Path) -> Dataset:
        """Return the dataset of a study whose file is in `folder`, from which its relative paths count.

        A plug-in whose settings name the user's own files overrides this.
        """
        return self

    def own_files(self) -> dict[str, Path]:
        """Return all of the user's own files that the dataset is read from, by names that do not say where they lie.

        A plug-in whose files list others, such as a table of images, overrides this.
        """
        return {file.name: file for file in self.inputs()}

    def fingerprint(self, memory: Path | None = None) -> str:
        """Return a digest of the content of `own_files`, empty if there are none: the dataset is prepared for it.

        Neither times nor places of files count. Every dry run computes it: `memory` is a file that remembers the
        digests of files which do not change (see `io.checksums`).
        """
        # where it fails, opening the dataset raises an error that explains
        with contextlib.suppress(OSError, ValueError):
            if files := self.own_files():
                return digest.of(contents(files, memory))
        return ""

    def origins(self) -> Sequence[Origin]:
        """Return the places that hold all raw files, in the order in which they are tried: first the official one."""
        sources = tuple(self.sources())
        return [Origin("the official source", sources)] if sources else []

    def download(self, raw: Path, mirror: Path | None) -> Receipt | None:
        """Put the raw files into `raw` and verify each; return a record of that, None if there is nothing to get.

        The mirror directory comes first, then one origin after the other.
        """
        origins = self.origins()
        return obtain(origins, raw, mirror) if origins else None

    def miniature(self, raw: Path) -> None:
        """Write a small synthetic set into `raw`, in the raw layout of the real one. Every call writes the same."""
        raise TypeError(f"{type(self).__name__} has no miniature")

    def miniature_card(self) -> Card:
        """Return the card of the miniature, so that nobody takes it for the real set."""
        real = self.card()
        return Card(
            title=f"Synthetic miniature in the layout of {real.title}",
            version=real.version,
            source="drawn by fedshift",
            licence="that of fedshift",
            citation=f"none; same layout as {real.citation}",
        )

    @property
    def has_masks(self) -> bool:
        """Return whether images have masks, as segmentation needs."""
        return False

    @property
    def has_one_image_a_patient(self) -> bool:
        """Return whether each image is known to be of another patient, as many sets of X-rays are."""
        return False

    @property
    def has_miniature(self) -> bool:
        """Return whether a miniature exists; a dataset without one is used in full at every scale."""
        return type(self).miniature is not Dataset.miniature

    def examine(self, raw: Path) -> Examined:
        """Return samples and faults of the raw files, without reading images.

        Raises UserError where no sample can be read.
        """
        return Examined(self.open(raw).samples)

    def open(self, raw: Path) -> Opened:
        """Read the index of the raw files. Raises UserError if they differ from their documentation."""
        raise TypeError(f"{type(self).__name__} opens nothing")


def read_npz(path: Path, keys: Sequence[str], remedy: str) -> list[np.ndarray]:
    """Return arrays of an npz file, without pickles. Raises UserError for a file that is damaged or lacks one."""
    with readable(path, "npz", remedy), np.load(path, allow_pickle=False) as content:
        lacking = [key for key in keys if key not in content]
        if lacking:
            raise UserError(path, f"has no array {lacking[0]!r}", f"it has {', '.join(content)}")
        return [content[key] for key in keys]


def require_labels(where: object, labels: np.ndarray, classes: int, remedy: str, lowest: int = 0) -> None:
    """Raise UserError for labels (n,) of images other than `lowest`, `lowest` + 1, ..., one for each class."""
    wrong = ~np.isin(labels, np.arange(lowest, lowest + classes))
    if wrong.any():
        first = int(wrong.argmax())
        problem = f"image {first} has label {labels[first]:g}, expected {lowest} to {lowest + classes - 1}"
        raise UserError(where, problem, remedy)


def listed(
    names: Sequence[str], sites: object, labels: np.ndarray | None, patients: Iterable[object] | None = None
) -> pd.DataFrame:
    """Return the table of `Opened`: name, site, label (0 without labels) and, where known, patient of each image."""
    import pandas as pd

    label = np.zeros(len(names), dtype=np.int64) if labels is None else labels.astype(np.int64)
    return pd.DataFrame({"sample": names, "site": sites, "label": label, "patient": patients})


def joined(parts: Sequence[Opened]) -> Opened:
    """Return opened images of several parts as those of one set, in order."""
    import pandas as pd

    sizes = [len(part.samples) for part in parts]
    owner = np.repeat(np.arange(len(parts)), sizes)
    number = np.concatenate([np.arange(size) for size in sizes])
    samples = pd.concat([part.samples for part in parts], ignore_index=True)
    return Opened(samples, lambda i: parts[owner[i]].image(number[i]))
