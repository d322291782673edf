"""The cohort of a study: images, patients and classes of each site and split, and checks of the splits."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ..analysis.statistics import FEWEST
from ..analysis.table import Table
from ..analysis.values import DASH
from ..core.errors import UserError
from ..data.partition import Partition
from ..io.paths import Paths
from ..io.tables import read_table
from ..study.plan import Plan

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Check:
    """One check of the splits. `status` is ok, PROBLEM, unknown, or caveat where the overlap is by design."""

    what: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Cohort:
    """One partition: its table, its checks, its caveats, and whether patients are known."""

    title: str
    table: Table
    checks: list[Check]
    caveats: list[str]
    patients: bool


def cohorts(plan: Plan, paths: Paths) -> list[Cohort]:
    """Return a cohort for each partition of a study whose files are there."""
    made: dict[str, Cohort] = {}
    for run in plan.runs.values():
        if run.partition_id in made:
            continue
        try:
            rows = _assigned_samples(paths, run.data.id, run.partition_id)
        except UserError:
            continue
        made[run.partition_id] = _cohort(run.partition, rows, plan.study.dataset.classes)
    return list(made.values())


def _assigned_samples(paths: Paths, data: str, partition: str) -> pd.DataFrame:
    """Return every sample of a partition with its label, patient and base."""
    assigned = read_table(paths.partition(partition), ["sample", "site", "role", "split"])
    samples = read_table(paths.data_files(data).samples)
    known = [c for c in ("label", "patient", "base") if c in samples]
    text = {"sample": str, "site": str}
    return assigned.astype(text).merge(samples[["sample", *known]].astype({"sample": str}), on="sample", how="left")


def _cohort(partition: Partition, rows: pd.DataFrame, classes: tuple[str, ...]) -> Cohort:
    cells = [
        _site(role, site, rows[(rows["site"] == site) & (rows["role"] == role)], len(classes))
        for role, sites in (("internal", partition.internal), ("external", partition.external))
        for site in sites
    ]
    share = f"share of {classes[1]} (%)" if len(classes) == 2 else "share of the commonest class (%)"
    header = ("Site", "Role", "Images", "Patients", *(s.title() for s in SPLITS))
    table = Table(f"Images and patients of each site; each split with its {share}", header, tuple(cells), 2)
    return Cohort(partition.title, table, _checks(rows), _caveats(rows, classes), _known(rows[rows["split"] == "test"]))


def _known(rows: pd.DataFrame) -> bool:
    return "patient" in rows and bool(rows["patient"].notna().any())


def _site(role: str, site: str, rows: pd.DataFrame, classes: int) -> tuple[str, ...]:
    splits = [_split(rows[rows["split"] == split], classes) for split in SPLITS]
    return site, role, f"{len(rows):,}", _patients(rows), *splits


def _patients(rows: pd.DataFrame) -> str:
    if not _known(rows):
        return "unknown"
    unknown = int(rows["patient"].isna().sum())
    return f"{rows['patient'].nunique():,}" + (f" (unknown for {unknown:,} images)" if unknown else "")


def _split(rows: pd.DataFrame, classes: int) -> str:
    """Return images and the share of class 1, or of the commonest of several classes: `1,200 (50.0 %)`."""
    if rows.empty or "label" not in rows:
        return DASH
    share = (rows["label"] == 1).mean() if classes == 2 else rows["label"].value_counts(normalize=True).max()
    return f"{len(rows):,} ({100 * share:.1f} %)"


def _checks(rows: pd.DataFrame) -> list[Check]:
    """Return the checks that nothing is on two sides of a split, or at internal and external sites."""
    inside, outside = rows[rows["role"] == "internal"], rows[rows["role"] == "external"]
    train = inside[inside["split"] == "train"]
    val, test = inside[inside["split"] == "val"], inside[inside["split"] == "test"]
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
    }
    return [
        _check(f"{name} shared by {between}", unit, left, right)
        for (name, unit), sides in pairs.items()
        for between, left, right in sides
        if len(left) and len(right) and (unit != "base" or unit in rows)
    ]


def _check(what: str, unit: str, left: pd.DataFrame, right: pd.DataFrame) -> Check:
    if unit not in left or left[unit].isna().all() or right[unit].isna().all():
        return Check(what, "unknown", "patients unknown")
    shared = _shared(unit, left, right)
    unknown = int(left[unit].isna().sum() + right[unit].isna().sum())
    detail = f"{len(shared):,} shared" if shared else "none"
    bad = "caveat" if unit == "base" and set(right["role"]) == {"external"} else "PROBLEM"
    return Check(what, bad if shared else "ok", detail + (f"; unknown for {unknown:,} images" if unknown else ""))


def _shared(unit: str, left: pd.DataFrame, right: pd.DataFrame) -> set[object]:
    """Return the values of a column that are on both sides."""
    return set(left[unit].dropna()) & set(right[unit].dropna())


def _caveats(rows: pd.DataFrame, classes: tuple[str, ...]) -> list[str]:
    """Return the caveats that follow from the test samples."""
    test = rows[rows["split"] == "test"]
    caveats = []
    train, outside = rows[rows["split"] == "train"], rows[rows["role"] == "external"]
    if "base" in rows and (seen := len(_shared("base", train, outside))):
        caveats.append(
            f"External sites show the same source images as training sites ({seen:,} of "
            f"{outside['base'].nunique():,}): accuracy there is not that of unseen images."
        )
    if not _known(test):
        caveats.append(
            "Patients are unknown: intervals treat images as independent, and are too narrow if they are not."
        )
    else:
        few = test.groupby("site", sort=False)["patient"].nunique()
        if (small := few[few < 10]).any():
            listed = ", ".join(f"{site} ({n})" for site, n in small.items())
            caveats.append(
                f"Fewer than ten test patients at {listed}: intervals over patients are rough there. Under {FEWEST} "
                "none is given, nor for means over sites that count such a site."
            )
    if "label" in test:
        kinds = test.groupby("site", sort=False)["label"].nunique()
        if (kinds < 2).any():
            listed = ", ".join(map(str, kinds[kinds < 2].index))
            caveats.append(f"One class only among the test images of {listed}.")
        if len(classes) == 2:
            share = test.groupby("site", sort=False)["label"].mean()
            if share.max() - share.min() > 0.1:
                caveats.append(
                    f"The share of {classes[1]} among test images runs from {100 * share.min():.0f} to "
                    f"{100 * share.max():.0f} % across sites: compare balanced accuracy or AUC, too."
                )
    return caveats
