"""ABIDE I: functional connectivity of people with and without autism, at four hospitals."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from ..core.console import say, track
from ..core.errors import UserError
from ..core.rng import stream
from ..io.disk import atomic
from ..io.download import Source, fetch
from ..io.tables import read_table, write_table
from ._base import Card, Dataset, Opened, listed, names_of

if TYPE_CHECKING:
    import pandas as pd

URL = "https://s3.amazonaws.com/fcp-indi/data/Projects/ABIDE_Initiative/"
SERIES = "Outputs/cpac/filt_noglobal/rois_ho/"
PHENOTYPES = "Phenotypic_V1_0b_preprocessed1.csv"
SITES = ("NYU", "UCLA_1", "UM_1", "USM")
PUBLISHED = {"NYU": 167, "UCLA_1": 63, "UM_1": 88, "USM": 52}
"""Number of subjects of each site in FedBN's table 10."""
NO_FILE = "no_filename"
ROIS = 111
DROPPED = 82
FEATURES = (ROIS - 1) * (ROIS - 2) // 2
AGAIN = "obtain it again"
LARGEST = 1 - 1e-7
"""Correlations are clipped to this before Fisher's z, which is infinite for 1, the correlation of equal series."""


class Abide(Dataset):
    """Vectors of 5,995 correlations between brain regions, one vector for each window of 32 frames; patient = subject.

    Preprocessed Connectomes, pipeline CPAC, strategy filt_noglobal, Harvard-Oxford regions; sites NYU, UCLA_1, UM_1 and
    USM as in FedBN (ICLR 2021). Windows have stride 1, so neighbours are nearly equal: keep `by: patient`. Label 1 is
    autism (DX_GROUP 1). Subjects without a file are left out.

    From the public code of Fed_ABIDE: Fisher's z, negative values set to 0, the upper triangle. The files have 111
    regions, but 5,995 = 110 * 109 / 2. A comment in that code says that the region of index 82 is dropped; this is
    UNVERIFIED. If a region is constant in a window, its correlations there are 0.

    Our decision: no standardisation. Fed_ABIDE standardises by mean and standard deviation of a site's training
    windows, which are unknown before the split. The values lie between 0 and about 2, and batch norm follows the first
    layer. With `standardise`, each feature gets mean 0 and standard deviation 1 over all windows of its site, test
    windows included (labels are not used).

    FedBN's table 10 has 167, 63, 88 and 52 subjects. The obtained table is compared with these numbers, and a warning
    tells a difference: it is not known which subjects the paper left out.

    No checksums are published. A mirror holds the table of subjects and their files (some 300 kB each) in one folder.
    """

    miniature_fields = frozenset({"subjects"})
    reading_fields = frozenset({"window", "clip", "standardise"})
    shape: ClassVar[tuple[int, ...] | None] = (FEATURES,)
    sample_noun = "window"
    classes: tuple[str, ...] = names_of(("control", "autism"))
    window: int = Field(32, ge=3, description="number of frames in a window")
    clip: bool = Field(True, description="whether negative correlations become 0")
    standardise: bool = Field(
        False, description="whether each feature gets mean 0 and standard deviation 1 over all windows of a site"
    )
    subjects: int = Field(6, ge=4, description="subjects of each site in the miniature, half of them with autism")

    def card(self) -> Card:
        peeks = " Features are standardised over all windows of a site, test windows included."
        return Card(
            title="ABIDE I",
            version="Preprocessed Connectomes, cpac, filt_noglobal, rois_ho",
            source="http://preprocessed-connectomes-project.org/abide/",
            licence="for non-commercial research, otherwise unrestricted",
            citation="Di Martino et al. 2014 (Molecular Psychiatry 19:659-667); Craddock et al. 2013 (Frontiers in "
            "Neuroinformatics, The Neuro Bureau Preprocessing Initiative)",
            caveat="Windows of a subject overlap and are not independent: there are far fewer people than samples. "
            "It is not verified which region must be dropped." + (peeks if self.standardise else ""),
        )

    def sources(self) -> Sequence[Source]:
        return [Source(URL + PHENOTYPES, PHENOTYPES)]

    def download(self, raw: Path, mirror: Path | None) -> None:
        super().download(raw, mirror)
        subjects = _subjects(raw)
        for line in differences(subjects):
            say(line)
        names = [_file(subject) for subject in subjects["FILE_ID"]]
        for name in track(names, "obtain subjects", len(names), "files"):
            fetch(Source(URL + SERIES + name, name), raw, mirror)

    def open(self, raw: Path) -> Opened:
        subjects = _subjects(raw)
        files = [raw / _file(subject) for subject in subjects["FILE_ID"]]
        windows = np.array([_frames(file, self.window) for file in files]) - self.window + 1
        ends = windows.cumsum()
        owner = np.repeat(np.arange(len(files)), windows)
        number = np.arange(ends[-1]) - (ends - windows)[owner]

        def vectors(k: int) -> np.ndarray:
            found = connectivity(_series(files[k]), self.window, self.clip)
            if len(found) != windows[k]:
                problem = f"has {len(found)} windows, but had {windows[k]} when it was opened"
                raise UserError(files[k], problem, AGAIN)
            return found

        scale = scales(subjects["SITE_ID"].to_numpy(), vectors) if self.standardise else {}

        def standard(k: int) -> np.ndarray:
            x = vectors(k)
            (mean, deviation) = scale.get(subjects["SITE_ID"].iloc[k], (0, 1))
            return ((x - mean) / deviation).astype(np.float32)

        # windows of one subject are asked for one after the other: its series is read once
        features = recent(standard if scale else vectors)
        names = subjects["FILE_ID"].to_numpy()[owner]
        sample = [f"{name}/{n:03}" for name, n in zip(names, number, strict=True)]
        sites = subjects["SITE_ID"].to_numpy()[owner]
        samples = listed(sample, sites, subjects["DX_GROUP"].to_numpy()[owner] % 2, names)
        return Opened(samples, lambda i: features(int(owner[i]))[number[i]])

    def miniature(self, raw: Path) -> None:
        """Write synthetic series of 40 frames: labels differ in the regions that correlate, sites in smoothness."""
        import pandas as pd

        rows = [(1, "PITT", NO_FILE, 1), (2, "PITT", "Pitt_0050003", 1), (3, SITES[0], NO_FILE, 2)]
        for place, site in enumerate(SITES):
            for k in range(self.subjects):
                rng = stream("abide miniature", site, k)
                group = 1 + k % 2
                name = f"{site}_{50_000 + 100 * place + k:07}"
                rows.append((50_000 + 100 * place + k, site, name, group))
                series = rng.normal(size=(40 + 4, ROIS))
                common = rng.normal(size=(len(series), 2))
                together = slice(0, 20) if group == 1 else slice(20, 40)
                series[:, together] += 1.5 * common[:, :1]
                series += (0.2 + 0.2 * place) * common[:, 1:]
                smooth = np.exp(-np.arange(5) * (1.5 - 0.3 * place))
                series = sum(w * series[4 - lag : len(series) - lag] for lag, w in enumerate(smooth))
                series[:, DROPPED] *= k % 3 > 0
                with atomic(raw / _file(name)) as temporary:
                    header = "\t".join(f"#{2001 + k}" for k in range(ROIS))
                    np.savetxt(temporary, 100 * series, "%.6f", delimiter="\t", header=header, comments="")
        columns = ["SUB_ID", "SITE_ID", "FILE_ID", "DX_GROUP"]
        write_table(raw / PHENOTYPES, pd.DataFrame(rows, columns=columns))


def differences(subjects: pd.DataFrame) -> list[str]:
    """Return a warning for each site with another number of subjects than in FedBN's table 10.

    `subjects` has a row for each subject, with the column SITE_ID.
    """
    counts = subjects["SITE_ID"].value_counts()
    return [
        f"warning: {site} has {counts[site]} subjects with a file, and {published} in FedBN's table 10"
        for site, published in PUBLISHED.items()
        if counts[site] != published
    ]


def _file(subject: str) -> str:
    return f"{subject}_rois_ho.1D"


def _subjects(raw: Path) -> pd.DataFrame:
    """Read SITE_ID, FILE_ID and DX_GROUP (1 or 2) of all subjects of SITES with a file, sorted by site.

    Raises UserError for a site without subjects, and for other values of DX_GROUP or FILE_ID.
    """
    import pandas as pd

    path = raw / PHENOTYPES
    table = read_table(path, columns=("SITE_ID", "FILE_ID", "DX_GROUP"), text=True)
    table = table[table["SITE_ID"].isin(SITES) & (table["FILE_ID"] != NO_FILE)]
    lacking = sorted(set(SITES) - set(table["SITE_ID"]))
    if lacking:
        raise UserError(path, f"lists no subject of site {lacking[0]} with a file", AGAIN)
    for column, known, expected in (
        ("DX_GROUP", table["DX_GROUP"].isin(["1", "2"]), "1 or 2"),
        ("FILE_ID", table["FILE_ID"].str.fullmatch(r"\w+").eq(True), "letters, digits and _"),
    ):
        if not known.all():
            at = table.index[~known][0]
            raise UserError(f"{path}, row {at + 2}", f"{column} is {table[column][at]!r}, expected {expected}", AGAIN)
    # a stable sort keeps the subjects of a site in stored order
    table = table.astype({"DX_GROUP": int, "SITE_ID": pd.CategoricalDtype(list(SITES))})
    return table.sort_values("SITE_ID", kind="stable").astype({"SITE_ID": str}).reset_index(drop=True)


def _frames(path: Path, window: int) -> int:
    """Return the number of frames (lines) in a subject's file. Raises UserError if there are fewer than `window`."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise UserError(path, "no such file, though the table lists its subject", AGAIN) from None
    frames = sum(bool(line.strip()) and not line.startswith(b"#") for line in lines)
    if frames < window:
        raise UserError(path, f"has {frames} frames, expected {window} or more", f"{AGAIN}, or choose a shorter window")
    return frames


def _series(path: Path) -> np.ndarray:
    """Read a subject's file as (frames, 110) float64; of a file with 111 regions, the one of index 82 is dropped."""
    try:
        series = np.loadtxt(path, ndmin=2)
    except (OSError, ValueError) as error:
        raise UserError(path, f"not a table of numbers: {error}", AGAIN) from None
    if series.shape[1] not in (ROIS, ROIS - 1):
        raise UserError(path, f"has {series.shape[1]} regions, expected {ROIS} (or {ROIS - 1})", AGAIN)
    if not np.isfinite(series).all():
        frame, region = np.argwhere(~np.isfinite(series))[0]
        raise UserError(path, f"frame {frame}, region {region} is {series[frame, region]}, expected a number", AGAIN)
    return np.delete(series, DROPPED, axis=1) if series.shape[1] == ROIS else series


def connectivity(series: np.ndarray, window: int, clip: bool) -> np.ndarray:
    """Return Fisher's z of Pearson's correlation of every two regions, in every window of `window` frames, stride 1.

    `series` is (frames, regions), float; the result (frames - window + 1, regions (regions - 1) / 2), float32, has the
    upper triangle row by row, without the diagonal. If a region is constant in a window, its correlations there are 0.
    With `clip`, negative values become 0.
    """
    # shape (windows, regions, window)
    seen = np.lib.stride_tricks.sliding_window_view(series, window, axis=0)
    centred = seen - seen.mean(axis=2, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=2, keepdims=True))
    # rounding may leave the length of a constant window above 0, so it is told by its values
    constant = seen.min(axis=2, keepdims=True) == seen.max(axis=2, keepdims=True)
    unit = np.where(constant, 0, centred / np.where(constant | (length == 0), 1, length))
    above = np.triu_indices(series.shape[1], k=1)
    r = (unit @ unit.transpose(0, 2, 1))[:, above[0], above[1]]
    z = np.arctanh(r.clip(0 if clip else -LARGEST, LARGEST))
    return z.astype(np.float32)


def recent(make: Callable[[int], np.ndarray], size: int = 4) -> Callable[[int], np.ndarray]:
    """Return the function `make` with a cache of its last `size` results, for several threads: one call at a time."""
    cached, lock = functools.lru_cache(size)(make), threading.Lock()

    def ask(k: int) -> np.ndarray:
        with lock:
            return cached(k)

    return ask


def scales(sites: np.ndarray, vectors: Callable[[int], np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return mean and standard deviation (features,) of each feature over all vectors of a site, by site.

    `vectors(k)` returns the vectors (n, features) of subject k, who is of the site `sites[k]`. Only one subject's
    vectors are in memory at a time. A standard deviation of 0 becomes 1.
    """
    scale = {}
    for site in dict.fromkeys(sites.tolist()):
        n = 0
        mean = np.zeros(())
        square = np.zeros(())
        # Chan's update of mean and sum of squares: one subject in memory, and no difference of large sums
        for k in np.flatnonzero(sites == site):
            x = vectors(int(k)).astype(np.float64)
            shift = x.mean(axis=0) - mean
            total = n + len(x)
            square = square + x.var(axis=0) * len(x) + shift**2 * n * len(x) / total
            n = total
            mean = mean + shift * len(x) / total
        deviation = np.sqrt(square / n)
        scale[site] = mean, np.where(deviation > 0, deviation, 1)
    return scale
