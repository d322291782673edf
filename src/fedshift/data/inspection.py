"""Inspection of samples before anything is computed: what a study would use of them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.errors import SHOWN, UserError
from ..core.spelling import PLACEHOLDERS, folded, groups, quoted, unified
from .partition import SPLITS

if TYPE_CHECKING:
    import pandas as pd

    from ..algorithms import Training
    from .partition import Partition

FEW = 10
"""With fewer images of a class at a site, scores of that class are rough."""
MANY = 20
"""With fewer images, each may well show another patient."""
TENTH = 0.1
"""The share of a site's images above which a patient may be a name for several."""
OUTLYING = 3
"""How many times the mean number of images of a patient such a name has at least."""
EXAMPLES = 3
"""The most names that a text about spellings shows."""
FOLDS = ("fold", "folds", "kfold", "cv_fold")
"""Names of columns that divide images for cross-validation."""
TOGETHER = 0.5
"""Cramér's V of class and site above which a study is warned."""
GIVEN_AWAY = 0.3
"""Cramér's V of the class and of how files were saved, or of colour, above which a study is warned."""


@dataclass(frozen=True)
class SiteSamples:
    """Samples of one site.

    Attributes
    ----------
    roles : internal, external, both (in different partitions) or neither
    patients : number of known patients
    unknown : number of samples without a patient
    classes : number of samples of each class
    """

    name: str
    roles: tuple[str, ...]
    samples: int
    patients: int
    unknown: int
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Inspection:
    """Findings about the samples of a study.

    Attributes
    ----------
    classes : names of the classes
    sites : the sites, in the order of the samples
    patients : number of known patients
    shared : patients that are at several sites
    across : those of them that are at an internal and at an external site of one partition
    spellings : names of sites and of patients that differ only in spelling, by column
    faults : errors that keep the study from running as it is meant
    clients : clients that no site stands behind, with the images that are dealt to them
    stand_ins : questions about names that may stand for several patients; see `stand_ins` and `dominant`
    unused : columns that look like splits, which the study does not use, with their words
    one_each : the study says that each image is of another patient
    saved : how the format of files goes with the class, by the endings of their names; empty where it does not
    """

    classes: tuple[str, ...]
    sites: tuple[SiteSamples, ...]
    patients: int
    shared: frozenset[str]
    across: frozenset[str]
    spellings: dict[str, list[list[str]]]
    faults: list[UserError]
    clients: tuple[SiteSamples, ...] = ()
    stand_ins: tuple[str, ...] = ()
    one_each: bool = False
    unused: tuple[tuple[str, str], ...] = ()
    saved: str = ""

    def warnings(self) -> Iterator[str]:
        """Yield what a reader should know before the study runs, though it can run."""
        for site in self.sites:
            if not site.roles:
                yield f"site {quoted(site.name)} (images: {site.samples:,}) has no role in the study"
            counts = dict(zip(self.classes, site.classes, strict=True))
            for name in (name for name, number in counts.items() if site.roles and not number):
                if "internal" in site.roles:
                    yield f"site {quoted(site.name)} is to train, and has no image of class {name!r}"
                    continue
                yield (
                    f"site {quoted(site.name)} is external, and has no image of class {name!r}: scores that "
                    "compare classes say nothing there"
                )
            few = {name: number for name, number in counts.items() if 0 < number < FEW}
            if site.roles and few:
                listed = ", ".join(f"{k} of {name!r}" for name, k in few.items())
                yield f"site {quoted(site.name)} has few images ({listed}): scores of these classes are rough there"
        for column, words in self.unused:
            yield (
                f"column {column!r} holds {words}, and is not used: splits are drawn anew. To use it, write in "
                f"partition: split: {{ column: {column} }}"
            )
        if self.shared:
            yield (
                f"patients at several sites: {len(self.shared):,}, at internal and external ones: "
                f"{len(self.across):,}; they count as different people; leave out at one site whoever is the same"
            )
        for column, spellings in self.spellings.items():
            yield from respelt(column, spellings)
        yield from self._doubts()

    def _doubts(self) -> Iterator[str]:
        """Yield questions about patients, and about classes that go with sites."""
        used = [site for site in self.sites if site.roles]
        images = sum(site.samples for site in used)
        if used and all(site.unknown == site.samples for site in used):
            yield (
                "patients are unknown: images of one patient may train and test, so that scores at home look too good, "
                "and intervals are too narrow"
            )
        elif not self.one_each and images >= MANY and all(site.samples == site.patients for site in used):
            yield (
                f"every image has its own patient ({images:,}): is `patient` the name of an image? Then images of "
                "one patient may train and test, and intervals are too narrow. If each is of another person, say so: "
                "dataset.one_image_a_patient: true"
            )
        yield from self.stand_ins[:SHOWN]
        if self.saved:
            yield f"the format of files goes with the class: {self.saved}"
        association = cramers_v([site.classes for site in used])
        if association > TOGETHER:
            yield (
                f"classes go with sites (Cramér's V {association:.2f}): a network may tell the classes by the scanner, "
                "and scores at home do not show it"
            )


def cramers_v(counts: Sequence[Sequence[int]]) -> float:
    """Return Cramér's V of a table of counts (sites, classes), from 0 to 1; 0 for a single row or column."""
    import numpy as np

    table = np.array(counts, dtype=float)
    if table.ndim != 2:
        return 0.0
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    if min(table.shape) < 2:
        return 0.0
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    return float(np.sqrt(((table - expected) ** 2 / expected).sum() / (table.sum() * (min(table.shape) - 1))))


def formats(names: pd.Series) -> pd.Series:
    """Return the format of each file by the ending of its name, in small letters: `jpg`, `tif`; empty without one."""
    endings = names.astype(str).str.extract(r"\.([A-Za-z0-9]{2,5})$", expand=False).str.lower()
    return endings.replace({"jpeg": "jpg", "tiff": "tif"}).fillna("")


def by_class(kind: pd.Series, label: pd.Series, classes: Sequence[str]) -> str:
    """Return the share of the commonest kind of image in the classes, where kinds go with classes; else nothing.

    `kind` and `label` are those of images (n,); of more than two classes, those with the lowest and the highest share
    are named. Kinds go with classes where their Cramér's V is above GIVEN_AWAY.
    """
    import pandas as pd

    if len(kind) < MANY:
        return ""
    counts = pd.crosstab(kind, label)
    association = cramers_v(counts.to_numpy().tolist())
    if association <= GIVEN_AWAY:
        return ""
    sizes = kind.value_counts().sort_index()
    commonest = str(sizes.index[int(sizes.argmax())])
    share = (100 * (kind == commonest)).groupby(label).mean()
    if len(share) > 2:
        share = share.iloc[[int(share.argmin()), int(share.argmax())]]
    listed = ", ".join(f"{value:.0f} % of {classes[int(k)]}" for k, value in zip(share.index, share, strict=True))
    return (
        f"{commonest}: {listed} (Cramér's V {association:.2f}). A network may tell the classes by it, and scores do "
        "not show that"
    )


def respelt(column: str, spellings: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a text about the names of sites, or of patients, that are spelt in several ways, with the first of them.

    `spellings` lists the ways in which each such name is spelt.
    """
    if not spellings:
        return
    shown = "; ".join(", ".join(map(quoted, names)) for names in spellings[:EXAMPLES])
    more = f" and {len(spellings) - EXAMPLES:,} more" if len(spellings) > EXAMPLES else ""
    meaning = f"{sum(map(len, spellings)):,}"
    if column == "patient":
        meaning = f"one person{' each' if len(spellings) > 1 else ''}; if they are several, name them apart"
    yield f"{column}s {shown}{more} differ only in spelling, and count as {meaning}"


def inspect(
    samples: pd.DataFrame,
    classes: tuple[str, ...],
    uses: Sequence[tuple[Partition, Training]],
    one_each: bool = False,
) -> Inspection:
    """Inspect samples for the partitions and trainings of a study.

    `samples` has the columns site, label and patient; a site or a label may be missing where a row is faulty. Such rows
    are counted where they can be, so that one fault does not hide another. `one_each` says that the study knows each
    image to be of another patient.
    """
    samples = samples[samples["site"].notna()].reset_index(drop=True)
    written = samples["patient"].dropna().unique().tolist()
    samples = samples.assign(patient=unified(samples["patient"]))
    partitions = list(dict.fromkeys(partition for partition, _ in uses))
    divided = {partition: _divided(samples, partition) for partition in partitions}
    named = samples[samples["patient"].notna()]
    faults = {
        str(fault): fault
        for partition, training in uses
        for fault in _faults(samples, partition, training, divided[partition])
    }
    several = named.groupby("patient")["site"].nunique()
    role_sites = {
        "internal": {site for partition in partitions for site in partition.sources},
        "external": {site for partition in partitions for site in partition.external},
    }
    sites = [
        _counted(str(name), tuple(role for role, names in role_sites.items() if name in names), rows, classes)
        for name, rows in samples.groupby("site", sort=False)
    ]
    return Inspection(
        classes=classes,
        sites=tuple(sites),
        patients=int(named["patient"].nunique()),
        shared=frozenset(several.index[several > 1]),
        across=frozenset[str]().union(*(_across(named, partition) for partition in partitions)),
        spellings={"site": groups(samples["site"].unique().tolist()), "patient": groups(written)},
        faults=list(faults.values()),
        clients=tuple(
            client
            for partition, (assigned, _) in divided.items()
            for client in _clients(samples, partition, assigned, classes)
        ),
        stand_ins=(*stand_ins(named), *(f"{line}: {ONE_PERSON}" for line in dominant(named))),
        unused=tuple(_unused_splits(samples, {partition.split.column for partition in partitions})),
        one_each=one_each,
        saved=_saved(samples, classes, role_sites["internal"] | role_sites["external"]),
    )


def _saved(samples: pd.DataFrame, classes: Sequence[str], sites: Collection[str]) -> str:
    """Return how the format of the files that a study uses goes with their class; see `by_class`."""
    used = samples[samples["site"].isin(sites) & samples["label"].notna()]
    if "sample" not in used:
        return ""
    return by_class(formats(used["sample"]), used["label"], classes)


def stand_ins(named: pd.DataFrame) -> Iterator[str]:
    """Yield a question about each placeholder, such as `unknown`, in the place of a patient.

    `named` has the columns site and patient. The name 0 is not asked about where a patient 1 shows that patients are
    counted.
    """
    counted_from_0 = bool(named["patient"].astype(str).eq("1").any())
    for site, counts in _images_of_patients(named):
        for name in (name for name in counts.index if folded(name) in PLACEHOLDERS):
            if name == "0" and counted_from_0:
                continue
            yield (
                f"patient {quoted(name)} has {counts[name]:,} of the {counts.sum():,} images at {site}: does the name "
                "stand for patients who are not known? All its images are then in one split, and count as one person; "
                "leave the cell empty where nobody knows the patient"
            )


ONE_PERSON = "is it one person? If the name stands for several, leave the cell empty"


def dominant(named: pd.DataFrame) -> Iterator[str]:
    """Yield a line on each patient with an outlying part of the images of a site, on which `ONE_PERSON` is asked.

    That is more than TENTH of them, and more than OUTLYING times as many as a patient has there on average.
    """
    for site, counts in _images_of_patients(named):
        total = counts.sum()
        large = counts.index[(counts > TENTH * total) & (counts > OUTLYING * counts.mean()) & (total >= MANY)]
        for name in (name for name in large if folded(name) not in PLACEHOLDERS):
            yield f"patient {quoted(name)} has {counts[name]:,} of the {total:,} images at {site}"


def _images_of_patients(named: pd.DataFrame) -> Iterator[tuple[str, pd.Series]]:
    """Yield each site with the number of images of each of its patients, by name."""
    for site, patients in named["patient"].astype(str).groupby(named["site"], sort=False):
        yield str(site), patients.value_counts(sort=False)


def _unused_splits(samples: pd.DataFrame, used: Collection[str | None]) -> Iterator[tuple[str, str]]:
    """Yield each column that holds names of splits alone, or is called fold and holds a few values, and its values."""
    from ..datasets import SAMPLE_COLUMNS

    for column in samples.columns.difference([*SAMPLE_COLUMNS, *filter(None, used)], sort=False):
        values = samples[column].dropna().astype(str).unique()
        if 1 < len(values) <= MANY and (folded(column) in FOLDS or {*map(folded, values)} <= SPLITS.keys()):
            yield str(column), ", ".join(map(quoted, values[:SHOWN]))


def _divided(samples: pd.DataFrame, partition: Partition) -> tuple[pd.DataFrame, list[UserError]]:
    """Return the division of samples as it would be once sites are spelt as in the study, and its faults.

    Without its labels a site cannot be split by class; nothing is then divided.
    """
    if partition.by == "class" and samples["label"].isna().any():
        return samples.iloc[:0].assign(role="", split=""), []
    respelt = samples["site"].replace(partition.spellings(samples["site"].unique()))
    labels = samples["label"].astype("float64").fillna(0).astype("int64")
    return partition.divide(samples.assign(site=respelt, label=labels))


def _clients(
    samples: pd.DataFrame, partition: Partition, assigned: pd.DataFrame, classes: Collection[str]
) -> Iterator[SiteSamples]:
    """Yield the counts of each client to which a partition deals images."""
    if partition.deal and samples["label"].notna().all():
        rows = assigned.merge(samples.drop(columns="site"), on="sample")
        rows = rows[rows["role"] == "internal"]
        name = f"client of {partition.title}" if partition.title else "client"
        for client, part in rows.groupby("site", sort=False):
            yield _counted(str(client), (name,), part, classes)


def _counted(name: str, roles: tuple[str, ...], rows: pd.DataFrame, classes: Collection[str]) -> SiteSamples:
    """Return the counts of some samples."""
    return SiteSamples(
        name=name,
        roles=roles,
        samples=len(rows),
        patients=int(rows["patient"].nunique()),
        unknown=int(rows["patient"].isna().sum()),
        classes=tuple(int((rows["label"] == k).sum()) for k in range(len(classes))),
    )


def _across(named: pd.DataFrame, partition: Partition) -> set[str]:
    """Return the patients that are at an internal and at an external site."""
    inside, outside = (named["patient"][named["site"].isin(s)] for s in (partition.sources, partition.external))
    return {*inside.unique()} & {*outside.unique()}


def _faults(
    samples: pd.DataFrame, partition: Partition, training: Training, divided: tuple[pd.DataFrame, list[UserError]]
) -> Iterator[UserError]:
    """Yield the faults of the names of sites, of the splits and of the number of images that train."""
    assigned, faults = divided
    yield from partition.name_faults(samples["site"])
    yield from faults
    train = assigned[(assigned["role"] == "internal") & (assigned["split"] == "train")]
    for site, count in train.groupby("site").size().items():
        try:
            training.require_batch(str(site), int(count))
        except UserError as fault:
            yield fault
