"""The cohort of a study: images, patients and classes of each site and split, and checks of the splits.

Checks look for samples, patients and source images on both sides of a split, and for identical images: those with
equal pixels after preparation, whatever their names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..analysis.estimates import FEWEST
from ..analysis.results import StudyResults
from ..analysis.table import Table
from ..analysis.values import DASH, listed
from ..core.errors import UserError
from ..data.inspection import leading_zeros
from ..data.looks import near_copies
from ..data.partition import Partition
from ..data.prepared import read_partition
from ..io.arrays import map_array
from ..io.tables import read_table
from ..study.run import Run
from .phrases import counted

SPLITS = ("train", "val", "test")
MANY = 20
"""With fewer images, it is no wonder that each has a patient of its own."""
EVENTS = 10
"""With fewer patients of a class at a site, scores of that class are rough there."""
UNKNOWN = {
    "patient": "patients unknown",
    "base": "source images unknown",
    "pixels": "images have not been compared; the next preparation of the data does",
}
"""Reasons why a check could not be made, by the column that it needs."""


@dataclass(frozen=True)
class Check:
    """One check of the data. `status` is ok, PROBLEM, suspect, unknown, or caveat where an overlap is by design."""

    what: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Cohort:
    """One partition.

    Attributes
    ----------
    table, checks, caveats : what the page shows
    patients : True where patients are known
    images, people : number of images and of known patients
    few : what is said of sites whose test samples are of one class, or few of one
    """

    title: str
    table: Table
    checks: list[Check]
    caveats: list[str]
    patients: bool
    images: int
    people: int
    few: list[str]


def cohorts(results: StudyResults) -> list[Cohort]:
    """Return a cohort for each partition of a study whose files are there."""
    assigned: dict[str, tuple[Run, pd.DataFrame]] = {}
    tests: dict[tuple[str, Partition], list[pd.DataFrame]] = defaultdict(list)
    for run in results.plan.runs.values():
        if run.partition_id in assigned:
            continue
        try:
            rows = _assigned_samples(results, run.data.id, run.partition_id)
        # the page says that samples or partition are missing, and shows everything else
        except UserError:
            continue
        assigned[run.partition_id] = run, rows
        tests[run.data.id, run.partition.without_fold()].append(rows[rows["split"] == "test"])
    made = []
    for run, rows in assigned.values():
        images = results.paths.data_files(run.data.id).images
        of_folds = tests[run.data.id, run.partition.without_fold()]
        tested = pd.concat(of_folds).drop_duplicates(["site", "sample"]) if len(of_folds) > 1 else of_folds[0]
        made.append(_cohort(run.partition, rows, tested, results.plan.study.dataset.classes, images))
    return made


def problems(cohorts: Iterable[Cohort], status: str = "PROBLEM") -> list[str]:
    """Return each check that has a status in any of the cohorts, with its detail, once: by default, each that fails."""
    failed = (check for cohort in cohorts for check in cohort.checks if check.status == status)
    return list(dict.fromkeys(f"{check.what}: {check.detail}" for check in failed))


def events(cohorts: Iterable[Cohort]) -> list[str]:
    """Return what is said, in any of the cohorts, of sites with one class or with few samples of a class, once."""
    return list(dict.fromkeys(line for cohort in cohorts for line in cohort.few))


def _assigned_samples(results: StudyResults, data: str, partition: str) -> pd.DataFrame:
    """Return every sample of a partition with its label, patient, base and pixels, where these are known."""
    assigned = read_partition(results.paths.partition(partition))[["sample", "site", "role", "split"]]
    files = results.paths.data_files(data)
    text = {"sample": str}
    samples = results.samples(data)
    columns = samples.columns.intersection(["sample", "label", "patient", "base"])
    rows = assigned.astype({**text, "site": str}).merge(samples[columns], on="sample", how="left")
    if files.pixels.exists():
        rows = rows.merge(read_table(files.pixels).astype(text), on="sample", how="left")
        rows["row"] = pd.Index(samples["sample"]).get_indexer(rows["sample"])
    return rows


def _cohort(
    partition: Partition, rows: pd.DataFrame, tested: pd.DataFrame, classes: tuple[str, ...], images: Path
) -> Cohort:
    """Return the cohort of a partition with these samples. `tested` are the test samples of all its folds."""
    cells = [
        _site(role, site, rows[(rows["site"] == site) & (rows["role"] == role)], len(classes))
        for role, sites in (("internal", partition.internal), ("external", partition.external))
        for site in sites
    ]
    share = f"share of {classes[1]} (%)" if len(classes) == 2 else "share of the commonest class (%)"
    header = ("Site", "Role", "Images", "Patients", *(split.title() for split in SPLITS))
    table = Table(f"Images and patients of each site; each split with its {share}", header, tuple(cells), 2)
    patients = _patients_known(rows[rows["split"] == "test"])
    checks = [*_checks(rows), *_near_copies(rows, images), *_contrast(rows)]
    people = int(rows["patient"].nunique()) if "patient" in rows else 0
    few = list(_few(tested, classes))
    caveats = list(_caveats(rows, tested, classes))
    return Cohort(partition.title, table, checks, caveats, patients, len(rows), people, few)


def _patients_known(rows: pd.DataFrame) -> bool:
    return "patient" in rows and bool(rows["patient"].notna().any())


def _site(role: str, site: str, rows: pd.DataFrame, classes: int) -> tuple[str, ...]:
    patients = "unknown"
    if _patients_known(rows):
        patients = f"{rows['patient'].nunique():,}"
        without = int(rows["patient"].isna().sum())
        if without:
            patients += f" (unknown for {without:,} images)"
    splits = (_split(rows[rows["split"] == split], classes) for split in SPLITS)
    return site, role, f"{len(rows):,}", patients, *splits


def _split(rows: pd.DataFrame, classes: int) -> str:
    """Return images and the share of class 1, or of the commonest of several classes: `1,200 (50.0 %)`."""
    if rows.empty or "label" not in rows:
        return DASH
    share = (rows["label"] == 1).mean() if classes == 2 else rows["label"].value_counts(normalize=True).max()
    return f"{len(rows):,} ({100 * share:.1f} %)"


def _checks(rows: pd.DataFrame) -> list[Check]:
    """Return the checks that nothing is on two sides of a split, or at internal and external sites."""
    inside = rows[rows["role"] == "internal"]
    outside = rows[rows["role"] == "external"]
    train, val, test = (inside[inside["split"] == split] for split in SPLITS)
    splits = (
        ("training and validation", train, val),
        ("training and test", train, test),
        ("validation and test", val, test),
    )
    sites = ("internal and external sites", inside, outside)
    pairs = {
        ("Samples", "sample"): (*splits, sites),
        ("Patients", "patient"): (*splits, sites),
        ("Source images", "base"): (*splits, ("training and external sites", train, outside)),
        ("Pixel-identical images", "pixels"): (*splits, sites),
    }
    checks = [
        _check(f"{name} shared by {between}", unit, left, right)
        for (name, unit), sides in pairs.items()
        for between, left, right in sides
        if len(left) and len(right) and (unit != "base" or unit in rows)
    ]
    if inside["site"].nunique() > 1:
        checks.append(_copies(inside))
    return [*checks, *_within(rows), *_names_of_patients(rows)]


def _within(rows: pd.DataFrame) -> Iterator[Check]:
    """Yield the checks that no image is there twice at a site, and none with two labels."""
    if "pixels" not in rows or rows["pixels"].isna().all() or "base" in rows:
        return
    known = rows.dropna(subset="pixels")
    repeated = known[known.duplicated(["site", "pixels"], keep=False)]
    title = "Pixel-identical images within a site"
    counts = repeated.groupby("site", sort=False).size()
    detail = listed([f"{counted(n, 'image')} at {site}" for site, n in counts.items()])
    yield Check(title, "suspect" if detail else "ok", detail or "none; re-saved copies are not found")
    if "label" in rows:
        labels = known.groupby("pixels")["label"].nunique()
        torn = known[known["pixels"].isin(labels.index[labels > 1])].groupby("site", sort=False).size()
        detail = listed([f"{counted(n, 'image')} at {site}" for site, n in torn.items()])
        yield Check("Pixel-identical images with different labels", "PROBLEM" if detail else "ok", detail or "none")


def _near_copies(rows: pd.DataFrame, images: Path) -> Iterator[Check]:
    """Yield the check that no image looks like one on the other side of a split, or at another kind of site."""
    title = "Images that look alike (saved again, resized or mirrored) on two sides of a split"
    if "look" not in rows or "base" in rows or not images.exists() or (array := map_array(images)).ndim != 4:
        return
    known = rows[rows["look"].fillna("") != ""].reset_index(drop=True)
    codes = np.array([int(code, 16) for code in known["look"]], dtype=np.uint64)
    sides = np.where(known["role"] == "external", "external " + known["site"], known["split"])
    places = known["row"].to_numpy()
    pairs = [
        (i, j)
        for i, j in near_copies(codes, lambda i: np.asarray(array[places[i]]))
        if sides[i] != sides[j] and known["pixels"][i] != known["pixels"][j]
    ]
    if not pairs:
        yield Check(title, "ok", "none; copies that were cropped are not found")
        return
    members = known.iloc[sorted({k for pair in pairs for k in pair})].groupby("site", sort=False).size()
    first, second = (known["sample"][k] for k in pairs[0])
    counts = listed([f"{counted(n, 'image')} at {site}" for site, n in members.items()])
    yield Check(title, "suspect", f"{counted(len(pairs), 'pair')} ({counts}), such as {first} and {second}")


def _contrast(rows: pd.DataFrame) -> Iterator[Check]:
    """Yield the check that no image has one value throughout."""
    if "flat" in rows and rows["flat"].notna().any():
        flat = rows[rows["flat"].fillna(False).astype(bool)].groupby("site", sort=False).size()
        detail = listed([f"{counted(n, 'image')} at {site}" for site, n in flat.items()])
        yield Check("Images without contrast", "PROBLEM" if detail else "ok", detail or "none")


def _names_of_patients(rows: pd.DataFrame) -> Iterator[Check]:
    """Yield the checks that `patient` names patients: not images, and each of them in one way."""
    if not _patients_known(rows):
        return
    known = rows.dropna(subset="patient")
    each = known.groupby("site")["patient"].agg(["size", "nunique"])
    alone = bool((each["size"] == each["nunique"]).all()) and len(known) >= MANY
    question = (
        "every image has a patient of its own: is `patient` the name of an image? If so, intervals are too narrow"
    )
    yield Check("Patients with several images", "suspect" if alone else "ok", question if alone else "there are some")
    twice = leading_zeros(known["patient"])
    detail = ""
    if twice:
        first, second = twice[0][:2]
        detail = f"{len(twice):,} that agree but for leading zeros, such as {first} and {second}: are they the same?"
    yield Check("Names of patients", "suspect" if twice else "ok", detail or "no two agree but for leading zeros")


def _few(test: pd.DataFrame, classes: tuple[str, ...]) -> Iterator[str]:
    """Yield a clause for each site whose test samples are of one class only, or of few patients of a class."""
    if "label" not in test:
        return
    unit = "patient" if _patients_known(test) else "sample"
    for site, part in test.groupby("site", sort=False):
        counts = part.groupby("label")[unit].nunique().reindex(range(len(classes)), fill_value=0)
        present = counts[counts > 0]
        noun = "image" if unit == "sample" else unit
        if len(present) == 1:
            yield f"one class only at {site} ({classes[list(counts > 0).index(True)]})"
        elif len(classes) == 2 and counts.min() < EVENTS:
            rare = int(counts.to_numpy().argmin())
            yield f"{counted(int(counts.min()), noun)} of {classes[rare]} at {site}"


def _check(what: str, unit: str, left: pd.DataFrame, right: pd.DataFrame) -> Check:
    """Return the check that no value of the column `unit` is on both sides."""
    if unit not in left or left[unit].isna().all() or right[unit].isna().all():
        return Check(what, "unknown", UNKNOWN[unit])
    rows = pd.concat([left, right])
    # sites that show the same source images do so by design; within a site it is a leak
    meant = "base" in rows and unit in ("base", "pixels") and set(right["role"]) == {"external"}
    return _verdict(what, unit, _shared(unit, left, right), rows, meant)


def _copies(inside: pd.DataFrame) -> Check:
    """Return the check that no image is at several internal sites."""
    title = "Pixel-identical images shared by internal sites"
    if "pixels" not in inside or inside["pixels"].isna().all():
        return Check(title, "unknown", UNKNOWN["pixels"])
    sites = inside.groupby("pixels")["site"].nunique()
    return _verdict(title, "pixels", set(sites.index[sites > 1]), inside, "base" in inside)


def _verdict(what: str, unit: str, shared: set[object], rows: pd.DataFrame, meant: bool) -> Check:
    """Return the outcome of a check of `rows` that has found `shared` values of the column `unit`.

    Sharing is `meant` where sites show the same source images by design. Otherwise it is a problem, and the detail
    says how many images of each site are affected.
    """
    unknown = int(rows[unit].isna().sum())
    also = ""
    if unknown:
        also = f"; unknown for {unknown:,} images"
    if not shared:
        return Check(what, "ok", f"none{also}")
    if meant:
        return Check(what, "caveat", f"{len(shared):,} shared{also}")
    affected = rows[rows[unit].isin(shared)].groupby("site", sort=False).size()
    counts = listed([f"{counted(n, 'image')} at {site}" for site, n in affected.items()])
    return Check(what, "PROBLEM", f"{len(shared):,} shared ({counts}){also}")


def _shared(unit: str, left: pd.DataFrame, right: pd.DataFrame) -> set[object]:
    """Return the values of a column that are on both sides."""
    return set(left[unit].dropna()) & set(right[unit].dropna())


def _caveats(rows: pd.DataFrame, test: pd.DataFrame, classes: tuple[str, ...]) -> Iterator[str]:
    """Yield the caveats that follow from the test samples."""
    train = rows[rows["split"] == "train"]
    outside = rows[rows["role"] == "external"]
    if "base" in rows:
        seen = len(_shared("base", train, outside))
        if seen:
            yield (
                f"External sites show the same source images as training sites ({seen:,} of "
                f"{outside['base'].nunique():,}): accuracy there is not that of unseen images."
            )
    sites = test.groupby("site", sort=False)
    if not _patients_known(test):
        yield "Patients are unknown: intervals treat images as independent, and are too narrow if they are not."
    else:
        patients = sites["patient"].nunique()
        few = patients[patients < 10]
        if few.any():
            yield (
                f"Fewer than ten test patients at {', '.join(f'{site} ({n})' for site, n in few.items())}: intervals "
                f"over patients are rough there. Under {FEWEST} none is given, nor for means over sites that count "
                "such a site."
            )
    if "label" not in test:
        return
    kinds = sites["label"].nunique()
    if (kinds < 2).any():
        yield f"One class only among the test images of {', '.join(map(str, kinds[kinds < 2].index))}."
    share = sites["label"].mean()
    if len(classes) == 2 and share.max() - share.min() > 0.1:
        yield (
            f"The share of {classes[1]} among test images runs from {100 * share.min():.0f} to "
            f"{100 * share.max():.0f} % across sites: compare balanced accuracy or AUC, too."
        )
