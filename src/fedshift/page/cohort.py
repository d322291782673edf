"""The cohort of a study: numbers of images, patients and classes by site and split, and checks of the data.

The checks look for samples, patients and source images that two splits share, and for images with equal pixels after
preparation, whatever their file names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..analysis.estimates import FEWEST
from ..analysis.study_results import StudyResults
from ..analysis.values import DASH, Table, listed
from ..core.errors import UserError
from ..core.spelling import AS_WRITTEN, groups, plural
from ..core.units import SPACING
from ..data.inspection import MANY, ONE_PERSON, TOGETHER, by_class, cramers_v, dominant, formats, stand_ins
from ..data.looks import CROPS, MOST, Album, near_copies
from ..data.partition import Partition
from ..figures._images import Tile
from ..io.arrays import map_array
from ..io.tables import read_table
from ..study.run import Run
from ..tasks import Task
from .phrases import counted, in_samples

SPLITS = ("train", "val", "test")
NAMED = 4
"""The most sites or classes that a sentence names."""
PICTURED = 3
"""The most pairs of near copies that the page shows as pictures."""
EVENTS = 10
"""With fewer patients of a class at a site, scores of that class are called rough."""
OF_ONE_KIND = 4
"""If images have on average this many near copies, they may be of one kind, such as eye photographs, and no copies."""
MOST_OF_IT = 0.9
"""If structure covers a larger share of a mask than this, the mask may be inverted."""
NEAR = "Images that look alike (saved again, resized, mirrored or slightly cropped) on two sides of a split"
NEAR_WITHIN = "Images that look alike at one site, of different patients"
TORN = "Pixel-identical images with different labels"
TWO_LABELS = "with different labels"
"""The end of the title TORN (identical images with different labels), which is the same whatever images are called."""
MEAN_PATIENTS = "Patients with several images"
PATIENT_NAMES = "Names of patients"
DOMINANT = "Patients with an outlying part of the images of a site"
"""Titles of checks that other code looks up; `in_units` replaces "patients" by the study's noun."""
UNKNOWN = {
    "patient": "patients unknown",
    "base": "source images unknown",
    "pixels": "images have not been compared; the next preparation of the data does",
}
"""Reasons why a check could not be made, by the column that is missing."""


@dataclass(frozen=True)
class NearCopies:
    """Two prepared images that look alike, each with its site, split and sample, and their correlation in words."""

    images: tuple[Tile, Tile]
    likeness: str


@dataclass(frozen=True)
class Check:
    """The outcome of one check of the data.

    Attributes
    ----------
    what : title of the check
    status : ok, PROBLEM, suspect, unknown, or caveat for an overlap that is by design
    detail : what was found
    nearest : the most similar pairs of images, for the check for near copies
    """

    what: str
    status: str
    detail: str = ""
    nearest: tuple[NearCopies, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True)
class Cohort:
    """The images and patients of one partition (which sites train, test and are held out), with the checks of its data.

    Attributes
    ----------
    title : name of the partition, with a condition if other conditions prepare the same partition in another way
    table, checks, caveats : what the page shows
    patients : whether patient ids are known
    images, people : numbers of images and of known patients
    few : a clause for each site whose test samples are of one class, or few of one class
    unit, sample : the study's nouns for a patient and for an image
    partition_id, assigned : id of the partition, and a table of sample, site, role and split
    """

    title: str
    table: Table
    checks: list[Check]
    caveats: list[str]
    patients: bool
    images: int
    people: int
    few: list[str]
    unit: str = "patient"
    sample: str = "image"
    partition_id: str = ""
    assigned: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)

    @property
    def doubted(self) -> bool:
        """True if a check found that the ids in the patient column may not identify patients."""
        asked = {in_units(title, self.unit) for title in (MEAN_PATIENTS, PATIENT_NAMES)}
        return any(check.what in asked and check.status == "suspect" for check in self.checks)


def in_units(title: str, unit: str) -> str:
    """Return a check's title with "patients" replaced by the study's noun for them, such as lesions."""
    units = plural(unit)
    return title.replace("Patients", units.capitalize()).replace("patients", units)


def _in_samples(cohort: Cohort, sample: str) -> Cohort:
    """Return a cohort with "images" in its texts replaced by the dataset's noun for them, such as signal windows."""
    table = cohort.table
    header = tuple(in_samples(name, sample) for name in table.header)
    checks = [
        replace(check, what=in_samples(check.what, sample), detail=in_samples(check.detail, sample))
        for check in cohort.checks
    ]
    return replace(
        cohort,
        table=replace(table, caption=in_samples(table.caption, sample), header=header),
        checks=checks,
        caveats=[in_samples(text, sample) for text in cohort.caveats],
        few=[in_samples(text, sample) for text in cohort.few],
        sample=sample,
    )


def cohorts(results: StudyResults) -> list[Cohort]:
    """Return the cohort (images and patients by site and split, with data checks) of each partition of a study.

    Partitions whose files are missing are left out.
    """
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
    albums: dict[Path, Album] = {}
    for run, rows in assigned.values():
        images = results.paths.data_files(run.data.id).images
        if "look" in rows and images.exists() and images not in albums:
            albums[images] = Album(map_array(images), results.samples(run.data.id)["site"].tolist())
        of_folds = tests[run.data.id, run.partition.without_fold()]
        tested = pd.concat(of_folds).drop_duplicates(["site", "sample"]) if len(of_folds) > 1 else of_folds[0]
        dataset = results.plan.study.dataset
        cohort = _cohort(
            run.partition,
            rows,
            tested,
            dataset.classes,
            albums.get(images),
            dataset.has_one_image_a_patient,
            results.plan.study.resampled(known=True),
        )
        assigned_to = rows[["sample", "site", "role", "split"]]
        if {"nsd"} & {*results.plan.study.metrics, results.plan.study.headline}:
            cohort.checks.append(_tolerance(results.plan.study.task, rows))
        cohort = _in_samples(cohort, dataset.sample_noun)
        made.append(replace(cohort, partition_id=run.partition_id, assigned=assigned_to))
    return _named_apart(made, results)


def _named_apart(people: list[Cohort], results: StudyResults) -> list[Cohort]:
    """Return the cohorts, those of one title with the first condition that is trained on their images in it.

    Conditions that prepare images in different ways, such as with stain normalisation, share sites and splits.
    """
    count = Counter(cohort.title for cohort in people)
    first: dict[str, str] = {}
    for condition in results.names.conditions.values():
        for run in condition.runs.values():
            first.setdefault(run.partition_id, condition.title)
    return [
        replace(one, title=f"{one.title}, images of {first[one.partition_id]}") if count[one.title] > 1 else one
        for one in people
    ]


def problems(cohorts: Iterable[Cohort], status: str = "PROBLEM") -> list[str]:
    """Return title and detail of each check with a given status, without repetitions; by default, failed checks."""
    failed = (check for cohort in cohorts for check in cohort.checks if check.status == status)
    return list(dict.fromkeys(f"{check.what}: {check.detail}" for check in failed))


def events(cohorts: Iterable[Cohort]) -> list[str]:
    """Return the clauses about sites with one class, or few samples of a class, of all cohorts, without repetitions."""
    return list(dict.fromkeys(line for cohort in cohorts for line in cohort.few))


def _assigned_samples(results: StudyResults, data: str, partition: str) -> pd.DataFrame:
    """Return the samples of a partition with label, patient, source image (`base`) and pixel digest, where known.

    `data` and `partition` are ids. Tasks without class probabilities, such as segmentation, have no labels here.
    """
    assigned = results.predictions.partition(partition)[["sample", "site", "role", "split"]]
    files = results.paths.data_files(data)
    text = {"sample": str}
    samples = results.samples(data)
    wanted = ["sample", "patient", AS_WRITTEN, "base", *SPACING]
    if results.plan.study.task.has_probabilities:
        wanted.append("label")
    columns = samples.columns.intersection(wanted)
    rows = assigned.astype({**text, "site": str}).merge(samples[columns], on="sample", how="left")
    if files.pixels.exists():
        rows = rows.merge(read_table(files.pixels).astype(text), on="sample", how="left")
        rows["row"] = pd.Index(samples["sample"]).get_indexer(rows["sample"])
    return rows


def _cohort(
    partition: Partition,
    rows: pd.DataFrame,
    tested: pd.DataFrame,
    classes: tuple[str, ...],
    album: Album | None,
    one_each: bool = False,
    unit: str = "patient",
) -> Cohort:
    """Return the cohort of one partition: its table, checks and caveats.

    `rows` are its samples, `tested` the test samples of all its folds, and `album` its images for the near-copy check.
    `one_each` says that the study declares one image for each patient, and `unit` is its noun for a patient. `classes`
    are the class names.
    """
    units = plural(unit)
    cells = [
        _site(role, site, rows[(rows["site"] == site) & (rows["role"] == role)], len(classes))
        for role, sites in (("internal", partition.internal), ("external", partition.external))
        for site in sites
    ]
    title = f"Images and {units} of each site, and images of each split"
    if "label" in rows:
        share = f"share of {classes[1]} (%)" if len(classes) == 2 else "share of the commonest class (%)"
        title = f"Images and {units} of each site; each split with its {share}"
    header = ("Site", "Role", "Images", units.capitalize(), *(split.title() for split in SPLITS))
    table = Table(title, header, tuple(cells), 2)
    patients = _patients_known(rows[rows["split"] == "test"])
    checks = [
        *_checks(rows, units),
        *_names_of_patients(rows, one_each, unit),
        *_near_copies(rows, album, unit),
        *_contrast(rows),
        *_masks(rows),
        *_by_class(rows, classes),
    ]
    people = int(rows["patient"].nunique()) if "patient" in rows else 0
    few = list(_few(tested, classes, unit))
    suspect = (f"{check.what}: {check.detail}" for check in checks if check.status == "suspect")
    caveats = [*_caveats(rows, tested, classes, unit), *suspect, *_few_said(few)]
    if not partition.deal:
        # Clients that are dealt unlike shares of classes have them by design.
        few += _lacking(rows, classes)
        caveats += _together(rows, len(classes))
    return Cohort(partition.title, table, checks, caveats, patients, len(rows), people, few, unit)


def _patients_known(rows: pd.DataFrame) -> bool:
    return "patient" in rows and bool(rows["patient"].notna().any())


def _site(role: str, site: str, rows: pd.DataFrame, classes: int) -> tuple[str, ...]:
    patients = "unknown"
    if _patients_known(rows):
        patients = f"{rows['patient'].nunique():,}"
        if without := int(rows["patient"].isna().sum()):
            patients += f" (unknown for {without:,} images)"
    splits = (_split(rows[rows["split"] == split], classes) for split in SPLITS)
    if rows.empty:  # a real site that sent no rows
        return site, role, DASH, DASH, *splits
    return site, role, f"{len(rows):,}", patients, *splits


def _split(rows: pd.DataFrame, classes: int) -> str:
    """Return the image count and the share of class 1, or of the commonest of several classes: `1,200 (50.0 %)`."""
    if rows.empty:
        return DASH
    if "label" not in rows:
        return f"{len(rows):,}"
    share = (rows["label"] == 1).mean() if classes == 2 else rows["label"].value_counts(normalize=True).max()
    return f"{len(rows):,} ({100 * share:.1f} %)"


def _checks(rows: pd.DataFrame, units: str) -> list[Check]:
    """Return the checks that no sample, patient, source image or identical image is in two splits or site roles.

    `rows` are the samples of a partition, and `units` is the plural noun for patients.
    """
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
        (units.capitalize(), "patient"): (*splits, sites),
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
    return [*checks, *_within(rows)]


def _within(rows: pd.DataFrame) -> Iterator[Check]:
    """Yield the checks that no image occurs twice at a site, and that identical images have the same label.

    `rows` are the samples of a partition, with a digest of the pixels of each. Datasets whose table names source images
    (`base`) have copies by design, and are not checked.
    """
    if "pixels" not in rows or rows["pixels"].isna().all() or "base" in rows:
        return
    compared = rows.dropna(subset="pixels")
    detail = _images_of(compared[compared.duplicated(["site", "pixels"], keep=False)])
    yield Check("Pixel-identical images within a site", "suspect" if detail else "ok", detail or "none")
    if "label" in rows:
        labels = compared.groupby("pixels")["label"].nunique()
        detail = _images_of(compared[compared["pixels"].isin(labels.index[labels > 1])])
        yield Check(TORN, "PROBLEM" if detail else "ok", detail or "none")


def _images_of(rows: pd.DataFrame) -> str:
    """Return how many of the rows each site has, in words; '' if there are no rows."""
    counts = rows.groupby("site", sort=False).size()
    return listed([f"{counted(n, 'image')} at {site}" for site, n in counts.items()])


def _near_copies(rows: pd.DataFrame, album: Album | None, unit: str) -> Iterator[Check]:
    """Yield the checks that no two images look alike across splits, or within a site with different patient ids.

    `album` reads the images to compare; without it, or without recorded hashes of the images, nothing is checked.
    `rows` are the samples of a partition, and `unit` is the noun for a patient. Datasets whose table names source
    images (`base`) have copies by design, and are not checked.
    """
    if "look" not in rows or "base" in rows or album is None:
        return
    array = np.asanyarray(album.images)
    # An earlier version wrote codes of another kind.
    usable = rows["look"].map(lambda codes: isinstance(codes, bytes) and len(codes) == 8 * len(CROPS))
    if array.ndim != 4 or not usable.any():
        return
    if album.of_one_kind:
        kind = "most images look like one of another site, so that copies cannot be told from images of one kind"
        yield Check(NEAR, "unknown", f"{kind}; equal pixels are looked for all the same")
        return
    images = _Coded(rows[usable].reset_index(drop=True), album, unit)
    pairs, complete = near_copies(images.codes, images.likeness, images.asked, album.enough)
    # Rounded, so that the order does not depend on the machine.
    nearest = sorted(pairs, key=lambda pair: (-round(pairs[pair], 3), pair))
    some = "" if complete else f"; only {MOST:,} pairs that might be copies were looked at"
    apart = [pair for pair in nearest if images.apart(*pair)]
    together = [pair for pair in nearest if not images.apart(*pair)]
    same = sum(images.one_person(i, j) for i, j in apart)
    overlap = "Copies, or neighbours that overlap"
    if same:
        overlap += f", as in the {counted(same, 'pair')} of one {unit}"
    for title, found, meaning in (
        (NEAR, apart, f"{overlap}: scores on copies are too good"),
        (in_units(NEAR_WITHIN, unit), together, "Copies count several times, and intervals are then too narrow"),
    ):
        if not found:
            yield Check(title, "ok", f"none; crops of more than 5 % of a side are often not found{some}")
            continue
        shown = found[:PICTURED] if array.dtype == np.uint8 else []
        pictures = tuple(images.pictured(*pair, pairs[pair]) for pair in shown)
        yield Check(title, "suspect", f"{images.described(found)}{some}. {meaning}{images.doubt(found)}", pictures)


class _Coded:
    """The images that the check for near copies compares by their perceptual hashes, and names by their row numbers.

    Attributes
    ----------
    rows : the table of the images, indexed from 0
    codes : their perceptual hashes, shape (images, crops), uint64
    """

    def __init__(self, rows: pd.DataFrame, album: Album, unit: str) -> None:
        self.rows, self._album, self._unit = rows, album, unit
        # recorded as little-endian bytes, whatever the machine
        self.codes = np.frombuffer(b"".join(rows["look"]), dtype="<u8").astype(np.uint64).reshape(len(rows), -1)
        external = rows["role"] == "external"
        self._sides = np.where(external, "external " + rows["site"], rows["split"])
        self._splits = np.where(external, "external", rows["split"])
        self._sites, self._pixels, self._places = (rows[column].to_numpy() for column in ("site", "pixels", "row"))
        self._patients = np.full(len(rows), None)
        if "patient" in rows:
            # None instead of NaN or NA, so that a patient can be tested by `is None`
            self._patients = rows["patient"].astype(object).where(rows["patient"].notna(), None).to_numpy()

    def one_person(self, i: int, j: int) -> bool:
        """Return True if both images are known to show the same patient; i and j are row numbers."""
        return self._patients[i] is not None and self._patients[i] == self._patients[j]

    def apart(self, i: int, j: int) -> bool:
        """Return True if images in rows i and j are in different splits; each external site is a split of its own."""
        return bool(self._sides[i] != self._sides[j])

    def asked(self, i: int, j: int) -> bool:
        """Return True if a copy would matter: across splits, or at one site with different or unknown patients.

        Images with equal pixels are left to other checks. i and j are row numbers.
        """
        if self._pixels[i] == self._pixels[j]:
            return False
        return self.apart(i, j) or (self._sites[i] == self._sites[j] and not self.one_person(i, j))

    def likeness(self, i: int, j: int, crop: int) -> float:
        """Return the correlation of image i with the best-matching crop of image j near its crop number `crop`."""
        return self._album.likeness(self._places[i], self._places[j], crop)

    def pictured(self, i: int, j: int, correlation: float) -> NearCopies:
        """Return the images in rows i and j with captions for the page, and their correlation in words."""
        first, second = (
            Tile(
                np.asarray(self._album.images[self._places[k]]),
                (f"{self._sites[k]}, {self._splits[k]}", self.rows["sample"][k]),
            )
            for k in (i, j)
        )
        people = UNKNOWN["patient"]
        if self._patients[i] is not None and self._patients[j] is not None:
            people = f"one {self._unit}" if self.one_person(i, j) else f"two {plural(self._unit)}"
        return NearCopies((first, second), f"Correlation {correlation:.3f}, {people}")

    def described(self, found: Sequence[tuple[int, int]]) -> str:
        """Return the number of pairs found, their images by site, and the names of the first pair.

        `found` lists the pairs of similar images, as row numbers.
        """
        first, second = (self.rows["sample"][k] for k in found[0])
        return f"{counted(len(found), 'pair')} ({_images_of(self._members(found))}), such as {first} and {second}"

    def doubt(self, found: Sequence[tuple[int, int]]) -> str:
        """Return a remark that images with many look-alikes each may not be copies; '' if they have few.

        `found` lists the pairs of similar images, as row numbers.
        """
        partners = 2 * len(found) / len(self._members(found))
        if partners < OF_ONE_KIND:
            return ""
        return f"; but each of them is like {partners:.0f} others, so they may only be of one kind"

    def _members(self, found: Sequence[tuple[int, int]]) -> pd.DataFrame:
        return self.rows.iloc[sorted({k for pair in found for k in pair})]


def _by_class(rows: pd.DataFrame, classes: tuple[str, ...]) -> Iterator[Check]:
    """Yield the checks that neither the file format nor greyscale gives the class away."""
    if "label" not in rows or len(rows) < MANY:
        return
    grey = rows["grey"].map({True: "grey", False: "in colour"}) if "grey" in rows else pd.Series(dtype=str)
    for title, kind in (("Grey images by class", grey), ("File formats by class", formats(rows["sample"]))):
        if kind.nunique() < 2:
            continue
        detail = by_class(kind, rows["label"], classes)
        yield Check(title, "suspect" if detail else "ok", detail or "alike in all classes")


def _contrast(rows: pd.DataFrame) -> Iterator[Check]:
    """Yield the check that no image has the same value everywhere."""
    if "flat" in rows and rows["flat"].notna().any():
        detail = _images_of(rows[rows["flat"].fillna(False).astype(bool)])
        yield Check("Images without contrast", "PROBLEM" if detail else "ok", detail or "none")


def _masks(rows: pd.DataFrame) -> Iterator[Check]:
    """Yield the check that masks are not inverted: a problem if half of a site's masks or more may be."""
    if "structure" in rows and rows["structure"].notna().any():
        inverted = (rows["structure"] > MOST_OF_IT).groupby(rows["site"], sort=False).agg(["sum", "mean"])
        inverted = inverted[inverted["sum"] > 0]
        counts = listed([f"{n} at {site}" for site, n in inverted["sum"].items()])
        detail = f"structure in over {100 * MOST_OF_IT:.0f} % of the mask ({counts}); class 0 is the background"
        status = "PROBLEM" if (inverted["mean"] >= 0.5).any() else "suspect"
        yield Check("Inverted masks", status if counts else "ok", detail if counts else "none")


def _tolerance(task: Task, rows: pd.DataFrame) -> Check:
    """Return the check that the tolerance of surface Dice is at most a few pixels.

    `rows` are the samples, with the spacing of their pixels where known.
    """
    doubt = task.doubt(rows.reindex(columns=[*SPACING]).to_numpy(dtype=float))
    return Check("Tolerance of surface Dice", "suspect" if doubt else "ok", doubt or "a few pixels at most")


def _names_of_patients(rows: pd.DataFrame, one_each: bool, unit: str) -> Iterator[Check]:
    """Yield the checks that the column `patient` holds patient ids: one spelling each, no image names, no placeholders.

    `one_each` says that the study declares one image for each patient, so that unique ids are no reason for doubt.
    """
    if not _patients_known(rows):
        return
    named = rows.dropna(subset="patient")
    counts = named.groupby("site")["patient"].agg(["size", "nunique"])
    alone = bool((counts["size"] == counts["nunique"]).all()) and len(named) >= MANY
    several, names = (in_units(title, unit) for title in (MEAN_PATIENTS, PATIENT_NAMES))
    question = f"every image has its own {unit}: is `patient` the name of an image? If so, intervals are too narrow"
    if one_each:
        yield Check(several, "ok", "each image is of another patient, as the study says")
    else:
        yield Check(several, "suspect" if alone else "ok", question if alone else "there are some")
    large = list(dominant(named, unit))
    more = f", and {len(large) - 1:,} more like it" if len(large) > 1 else ""
    detail = f"{large[0]}{more}: {ONE_PERSON}" if large else "none"
    yield Check(in_units(DOMINANT, unit), "suspect" if large else "ok", detail)
    questions = list(stand_ins(named))
    twice = groups(named[AS_WRITTEN].astype(str).unique()) if AS_WRITTEN in named else []
    if questions:
        more = f"; and {counted(len(questions) - 1, 'more name')} like it" if len(questions) > 1 else ""
        yield Check(names, "suspect", f"{questions[0]}{more}")
    elif twice:
        first, second = twice[0][:2]
        detail = f"{len(twice):,} spelt in several ways, such as {first} and {second}, are each taken for one person"
        yield Check(names, "caveat", detail)
    else:
        yield Check(names, "ok", "no two differ only in spelling, and none stands for unknown patients")


def _few(test: pd.DataFrame, classes: tuple[str, ...], unit: str) -> Iterator[str]:
    """Yield a clause for each site whose test samples are of one class, or have few patients of one of two classes."""
    if "label" not in test:
        return
    column, noun = ("patient", unit) if _patients_known(test) else ("sample", "image")
    for site, part in test.groupby("site", sort=False):
        counts = part.groupby("label")[column].nunique().reindex(range(len(classes)), fill_value=0)
        if (counts > 0).sum() == 1:
            yield f"one class only at {site} ({classes[list(counts > 0).index(True)]})"
        elif len(classes) == 2 and counts.min() < EVENTS:
            rare = int(counts.to_numpy().argmin())
            yield f"only {counted(int(counts.min()), noun)} of class {classes[rare]} at {site}"


def _few_said(few: Sequence[str]) -> Iterator[str]:
    """Yield a caveat about sites with few test samples of a class; `few` are the clauses of `_few`."""
    if several := [text for text in few if not text.startswith("one class only")]:
        more = f" and at {counted(len(several) - NAMED, 'further site')}" if len(several) > NAMED else ""
        yield (
            f"Few to test on: {listed(several[:NAMED])}{more}. Sensitivity, specificity and whatever else is made of "
            "such a class are rough there."
        )


def _lacking(rows: pd.DataFrame, classes: tuple[str, ...]) -> Iterator[str]:
    """Yield a clause for each site that lacks some of three or more classes."""
    if len(classes) < 3 or "label" not in rows:
        return
    for site, part in rows.groupby("site", sort=False):
        missing = [name for k, name in enumerate(classes) if not (part["label"] == k).any()]
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        if 0 < len(missing) < len(classes) - 1:
            yield f"no {', '.join(missing[:NAMED])}{more} at {site}"


def _together(rows: pd.DataFrame, classes: int) -> Iterator[str]:
    """Yield a caveat if class and site are strongly associated (Cramér's V)."""
    if "label" not in rows:
        return
    counts = [[int((part["label"] == k).sum()) for k in range(classes)] for _, part in rows.groupby("site", sort=False)]
    association = cramers_v(counts)
    if association > TOGETHER:
        yield (
            f"Classes go with sites (Cramér's V {association:.2f}): a network may tell the classes by the scanner, and "
            "scores at home do not show it."
        )


def _check(what: str, unit: str, left: pd.DataFrame, right: pd.DataFrame) -> Check:
    """Return the check that no value of the column `unit` occurs in both tables, such as training and test samples.

    `what` is the title of the check.
    """
    if unit not in left or left[unit].isna().all() or right[unit].isna().all():
        return Check(what, "unknown", UNKNOWN[unit])
    rows = pd.concat([left, right])
    # sites that show the same source images do so by design; within a site it is a leak
    meant = "base" in rows and unit in ("base", "pixels") and set(right["role"]) == {"external"}
    return _verdict(what, unit, _shared(unit, left, right), rows, meant)


def _copies(inside: pd.DataFrame) -> Check:
    """Return the check that no image occurs at several internal sites."""
    title = "Pixel-identical images shared by internal sites"
    if "pixels" not in inside or inside["pixels"].isna().all():
        return Check(title, "unknown", UNKNOWN["pixels"])
    sites = inside.groupby("pixels")["site"].nunique()
    return _verdict(title, "pixels", set(sites.index[sites > 1]), inside, "base" in inside)


def _verdict(what: str, unit: str, shared: set[object], rows: pd.DataFrame, meant: bool) -> Check:
    """Return the outcome of a check that found `shared` values of the column `unit` in `rows`.

    `meant` says that sites share source images by design; else sharing is a problem, and the detail counts the affected
    images of each site. `what` is the title of the check.
    """
    unknown = int(rows[unit].isna().sum())
    also = f"; unknown for {unknown:,} images" if unknown else ""
    if not shared:
        return Check(what, "ok", f"none{also}")
    if meant:
        return Check(what, "caveat", f"{len(shared):,} shared{also}")
    return Check(what, "PROBLEM", f"{len(shared):,} shared ({_images_of(rows[rows[unit].isin(shared)])}){also}")


def _shared(unit: str, left: pd.DataFrame, right: pd.DataFrame) -> set[object]:
    """Return the values of the column `unit` that occur in both tables."""
    return set(left[unit].dropna()) & set(right[unit].dropna())


def _caveats(rows: pd.DataFrame, test: pd.DataFrame, classes: tuple[str, ...], unit: str) -> Iterator[str]:
    """Yield caveats about intervals and scores that follow from the test samples, such as unknown or few patients.

    `rows` are all samples of a partition, `test` its test samples in all folds, and `unit` is the noun for a patient.
    """
    train = rows[rows["split"] == "train"]
    outside = rows[rows["role"] == "external"]
    if "base" in rows and (seen := len(_shared("base", train, outside))):
        yield (
            f"External sites show the same source images as training sites ({seen:,} of "
            f"{outside['base'].nunique():,}): accuracy there is not that of unseen images."
        )
    sites = test.groupby("site", sort=False)
    if not _patients_known(test):
        yield (
            "Patients are unknown: intervals treat images as independent, and are too narrow if they are not. Images "
            "of one patient may train and test, so that scores at home look too good."
        )
    else:
        units = plural(unit)
        if unit != "patient":
            yield (
                f"Each {unit} counts as independent, and not each patient: where one patient has several {units}, "
                "intervals are too narrow, and some of them may train while others test."
            )
        patients = sites["patient"].nunique()
        few = patients[patients < 10]
        if len(few):
            yield (
                f"Fewer than ten test {units} at {', '.join(f'{site} ({n})' for site, n in few.items())}: intervals "
                f"over {units} are rough there. Under {FEWEST} none is given, nor for means over sites that count "
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
