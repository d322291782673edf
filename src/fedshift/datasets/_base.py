"""The base class of datasets, which say where raw files come from and how images are read."""

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
"""The kinds of sites, as pages name them.

A hospital, a collection of images of several hospitals, a department or a scanner of one hospital, a domain of images
that are not medical, a client that got a part of a common data set, or a site of unknown kind.
"""
MOST_CLASSES = 10_000
"""Largest number of classes that a dataset may have."""


@dataclass(frozen=True)
class Card:
    """Facts about a dataset that pages show. `source` is an address, `caveat` a warning that readers need."""

    title: str
    version: str
    source: str
    licence: str
    citation: str
    caveat: str = ""


SAMPLE_COLUMNS = ("sample", "site", "label", "patient", "base", AS_WRITTEN)
"""Columns with a fixed meaning in a table of samples, which has one row for each image.

All others are further columns: facts such as the scanner, by which a study may split its results.
"""


def names_of(classes: Sequence[str], what: str = "labels", of: str = "") -> Any:
    """Return the pydantic field `classes` of a dataset with a fixed number of classes, which a study may rename.

    `classes` are the default names. `what` and `of` are words of the field's description, such as "names of the labels
    0 to 9", or "names of the classes 0 and 1 of a mask".
    """
    last = len(classes) - 1
    words = f"names of the {what} 0 {'and' if last == 1 else 'to'} {last}{of}"
    return Field(tuple(classes), min_length=len(classes), max_length=len(classes), description=words)


@dataclass(frozen=True)
class Opened:
    """Raw files that are ready to be read: a table of samples, and functions that read the image of a row on demand.

    Attributes
    ----------
    samples : one row for each image, with the columns sample (str, unique), site (str), label (int) and patient (str,
        or None if it is unknown). If sites show different versions of the same images, a column base names the image
        that the versions share.
    image : returns the image of row i: (height, width, channels), uint8, or, in a dataset of vectors, (features,),
        float32. Several threads may call it. It raises UserError, with the name of the file, for a file that cannot be
        read.
    skip_unreadable : whether images that cannot be read are left out and counted, instead of stopping with an error
    reduction : returns by which factor the image of row i was scaled down: the side in its file over the side returned
    further : columns of `samples` that are kept as text: facts about an image, such as the scanner, by which a study
        may split its results
    remarks : sentences about the files, for the page
    mask : in a dataset with masks, returns the class of each pixel of the image of row i: (height, width), uint8
    spacing : returns the millimetres between rows and between columns of the image of row i, after any scaling, or
        None where they are unknown
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
    """The samples and the faults of raw files, found without opening any image: what `fedshift check` shows.

    Attributes
    ----------
    samples : the table of samples, as in `Opened`; a row with a fault may lack its site or its label
    faults : the errors that opening the dataset or reading its images would raise
    facts : sentences that say what is in the files
    warnings : sentences about risks in the files that are no errors
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
    """Names of the settings that influence only the miniature, the small synthetic set of scale `mini`."""
    reading_fields: ClassVar[frozenset[str]] = frozenset()
    """Names of the settings that say only how raw files are read: changing them downloads nothing again."""
    shape: ClassVar[tuple[int, ...] | None] = None
    """Shape of the prepared images, (channels, height, width) or (features,); None if only reading them shows it."""
    site_kind: ClassVar[SiteKind] = "hospital"
    """What pages call a site of this dataset. A study may state another kind for single sites."""
    sample_noun: ClassVar[str] = "image"
    """What pages call one sample of this dataset, in the singular."""
    padded: ClassVar[bool] = False
    """True if images that are not square are padded with black, False if their central square is cut out."""
    classes: tuple[str, ...] = Field(("negative", "positive"), description="names of the labels 0, 1, ...")

    @model_validator(mode="after")
    def _bounded(self) -> Dataset:
        if len(self.classes) > MOST_CLASSES:
            raise UserError("classes", f"{len(self.classes)} classes are too many (limit {MOST_CLASSES})", "name fewer")
        if len(set(self.classes)) < len(self.classes) or not all(map(str.strip, self.classes)):
            raise UserError("classes", "a name is empty or stands there twice", "name each class once")
        return self

    def card(self) -> Card:
        """Return title, source, licence and citation of the dataset, for the page."""
        raise TypeError(f"{type(self).__name__} has no card")

    def sources(self) -> Sequence[Source]:
        """Return the official files to download; empty if the dataset is drawn, or read from the user's own files."""
        return ()

    def inputs(self) -> Sequence[Path]:
        """Return the paths of the user's own files that the study names. A missing file is an error of the study."""
        return ()

    def located(self, folder: Path) -> Dataset:
        """Return the dataset with its relative paths resolved against `folder`, which holds the study's YAML file.

        A plug-in whose settings name the user's own files overrides this.
        """
        return self

    def own_files(self) -> dict[str, Path]:
        """Return all of the user's own files that the dataset reads, by names that do not depend on their folders.

        A plug-in whose files list others, such as a table of images, overrides this.
        """
        return {file.name: file for file in self.inputs()}

    def fingerprint(self, memory: Path | None = None) -> str:
        """Return a digest of the content of `own_files`; the dataset is prepared again when it changes.

        It is '' if there are no such files or one cannot be read. Times and folders of files do not count. Every dry
        run of the workflow computes it: `memory` is a cache file with the digests of unchanged files (see
        `io.checksums`).
        """
        # where it fails, opening the dataset raises an error that explains
        with contextlib.suppress(OSError, ValueError):
            if files := self.own_files():
                return digest.of(contents(files, memory))
        return ""

    def origins(self) -> Sequence[Origin]:
        """Return the servers and copies that hold all raw files, in the order of their use: the official one first."""
        sources = tuple(self.sources())
        return [Origin("the official source", sources)] if sources else []

    def download(self, raw: Path, mirror: Path | None) -> Receipt | None:
        """Put the raw files into the folder `raw`, and return a record of their origin and of what was verified.

        Files come from the folder `mirror` if it has them, else from the first of `origins` that gives them. Return
        None if the dataset has no files to get.
        """
        origins = self.origins()
        return obtain(origins, raw, mirror) if origins else None

    def miniature(self, raw: Path) -> None:
        """Write a small synthetic set into `raw`, with the file names of the real set. Every call writes the same."""
        raise TypeError(f"{type(self).__name__} has no miniature")

    def miniature_card(self) -> Card:
        """Return the card of the miniature: its title says that it is synthetic, so that nobody takes it for real."""
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
        """Return whether each image is known to show a different patient, as in many sets of X-rays."""
        return False

    @property
    def has_miniature(self) -> bool:
        """Return whether the dataset has a miniature; a dataset without one is used in full at scale `mini` too."""
        return type(self).miniature is not Dataset.miniature

    def examine(self, raw: Path) -> Examined:
        """Return the samples and the faults of the raw files in `raw`, without reading images.

        Raises UserError if the list of samples itself cannot be read.
        """
        return Examined(self.open(raw).samples)

    def open(self, raw: Path) -> Opened:
        """Return the table of samples of the raw files in `raw`, with functions that read their images.

        Raises UserError if a file is missing, or differs from its documentation.
        """
        raise TypeError(f"{type(self).__name__} opens nothing")


def read_npz(path: Path, keys: Sequence[str], remedy: str) -> list[np.ndarray]:
    """Return the arrays `keys` of an npz file. Pickled objects in it are refused.

    Raises UserError for a file that is damaged, with `remedy`, or that lacks one of the arrays.
    """
    with readable(path, "npz", remedy), np.load(path, allow_pickle=False) as content:
        lacking = [key for key in keys if key not in content]
        if lacking:
            raise UserError(path, f"has no array {lacking[0]!r}", f"it has {', '.join(content)}")
        return [content[key] for key in keys]


def require_labels(where: object, labels: np.ndarray, classes: int, remedy: str, lowest: int = 0) -> None:
    """Raise UserError if a label (n,) is not among the whole numbers from `lowest` to `lowest` + `classes` - 1.

    `classes` is the number of classes. `where` and `remedy` go into the error, which names the first such image.
    """
    wrong = ~np.isin(labels, np.arange(lowest, lowest + classes))
    if wrong.any():
        first = int(wrong.argmax())
        problem = f"image {first} has label {labels[first]:g}, expected {lowest} to {lowest + classes - 1}"
        raise UserError(where, problem, remedy)


def listed(
    names: Sequence[str], sites: object, labels: np.ndarray | None, patients: Iterable[object] | None = None
) -> pd.DataFrame:
    """Return a table of samples, as in `Opened`, from the name, site, label and patient of each image.

    `sites` may be one name for all. None stands for labels that are all 0, and for patients that are unknown.
    """
    import pandas as pd

    label = np.zeros(len(names), dtype=np.int64) if labels is None else labels.astype(np.int64)
    return pd.DataFrame({"sample": names, "site": sites, "label": label, "patient": patients})


def joined(parts: Sequence[Opened]) -> Opened:
    """Concatenate the samples and images of opened `parts` of a dataset, in order; masks and remarks are dropped."""
    import pandas as pd

    sizes = [len(part.samples) for part in parts]
    owner = np.repeat(np.arange(len(parts)), sizes)
    number = np.concatenate([np.arange(size) for size in sizes])
    samples = pd.concat([part.samples for part in parts], ignore_index=True)
    return Opened(samples, lambda i: parts[owner[i]].image(number[i]))
