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
"""A site with fewer images of a class, but some, gets the warning that scores of this class are rough."""
MANY = 20
"""The least number of images for warnings about patients and classes: in fewer, a pattern may be chance."""
TENTH = 0.1
"""A patient id that has a larger share of a site's images may stand for several patients."""
OUTLYING = 3
"""A patient id with more than this many times the images of a site's mean patient may stand for several patients."""
EXAMPLES = 3
"""The most names that a warning about spellings shows."""
FOLDS = ("fold", "folds", "kfold", "cv_fold")
"""Names of columns that divide images for cross-validation."""
TOGETHER = 0.5
"""Cramér's V between class and site above which a study is warned."""
GIVEN_AWAY = 0.3
"""Cramér's V between the class and the file format, or the colour, of images above which a study is warned."""


@dataclass(frozen=True)
class SiteSamples:
    """Counts of the samples of one site.

    Attributes
    ----------
    name : name of the site
    roles : roles of the site in the study: internal, external, both (in different partitions) or neither
    samples : number of samples
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
    sites : counts of each site, in the order of the samples
    patients : number of known patients
    shared : patients with images at several sites
    across : patients with images at an internal and at an external site of one partition
    spellings : names that differ only in spelling, in groups, by column: `site` and `patient`
    faults : errors that keep the study from running as it is meant
    clients : counts of each artificial client to which `deal` gives images
    stand_ins : warnings about patient ids that may stand for several patients; see `stand_ins` and `dominant`
    unused : columns that look like splits and that the study does not use, each with its values as a text
    one_each : whether the study states that each image shows another patient
    saved : text on the association of the class with the file format (the endings of file names); '' if it is weak
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
        """Yield a text for each finding that users should know about, although the study can run with it."""
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
        """Yield warnings on unknown or implausible patients, and on classes associated with sites or file formats."""
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
    """Return a text on the association of an image property with the class; '' if the association is weak.

    `kind` (n,) is the property of each image, such as its file format, and `label` (n,) its class. The text gives the
    share of the commonest kind in each class; of more than two classes, in those with the lowest and the highest share.
    The association is weak with fewer than MANY images, or if Cramér's V is at most GIVEN_AWAY.
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
    """Yield a warning about names that are spelt in several ways, with the first EXAMPLES of them; nothing without any.

    `column` is `site` or `patient`, and `spellings` has for each name the list of its spellings.
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
    are counted where they can be, so that one fault does not hide another. `uses` pairs each partition with the
    settings of a training on it. `one_each` says that the study states each image to show another patient.
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
    """Return the text of `by_class` on the file formats of the labelled samples at `sites`; '' without file names."""
    used = samples[samples["site"].isin(sites) & samples["label"].notna()]
    if "sample" not in used:
        return ""
    return by_class(formats(used["sample"]), used["label"], classes)


def stand_ins(named: pd.DataFrame) -> Iterator[str]:
    """Yield a warning for each placeholder, such as `unknown`, that a site has in the place of a patient id.

    `named` has the columns site and patient of the samples whose patient is not empty. A patient 0 gets no warning
    where a patient 1 shows that ids are numbers.
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
"""The question that follows a line of `dominant`."""


def dominant(named: pd.DataFrame, unit: str = "patient") -> Iterator[str]:
    """Yield a line for each patient id with so many images of a site that it may stand for several patients.

    So many are more than TENTH of the site's images, and more than OUTLYING times the mean of its patients; sites with
    fewer than MANY images are passed over. `named` has the columns site and patient, and `unit` is the noun of a line.
    """
    for site, counts in _images_of_patients(named):
        total = counts.sum()
        large = counts.index[(counts > TENTH * total) & (counts > OUTLYING * counts.mean()) & (total >= MANY)]
        for name in (name for name in large if folded(name) not in PLACEHOLDERS):
            yield f"{unit} {quoted(name)} has {counts[name]:,} of the {total:,} images at {site}"


def _images_of_patients(named: pd.DataFrame) -> Iterator[tuple[str, pd.Series]]:
    """Yield each site with the number of images of each of its patients, a Series with patient ids as index."""
    for site, patients in named["patient"].astype(str).groupby(named["site"], sort=False):
        yield str(site), patients.value_counts(sort=False)


def _unused_splits(samples: pd.DataFrame, used: Collection[str | None]) -> Iterator[tuple[str, str]]:
    """Yield the name and the values, as a text, of each column that looks like a split and is not in `used`.

    Such a column holds only names of splits, or is called fold and holds few values.
    """
    from ..datasets import SAMPLE_COLUMNS

    for column in samples.columns.difference([*SAMPLE_COLUMNS, *filter(None, used)], sort=False):
        values = samples[column].dropna().astype(str).unique()
        if 1 < len(values) <= MANY and (folded(column) in FOLDS or {*map(folded, values)} <= SPLITS.keys()):
            yield str(column), ", ".join(map(quoted, values[:SHOWN]))


def _divided(samples: pd.DataFrame, partition: Partition) -> tuple[pd.DataFrame, list[UserError]]:
    """Return the table and the errors of `Partition.divide` for samples whose sites are respelt as in the study.

    Return an empty table and no errors if the partition splits by class and a sample has no label.
    """
    if partition.by == "class" and samples["label"].isna().any():
        return samples.iloc[:0].assign(role="", split=""), []
    respelt = samples["site"].replace(partition.spellings(samples["site"].unique()))
    labels = samples["label"].astype("float64").fillna(0).astype("int64")
    return partition.divide(samples.assign(site=respelt, label=labels))


def _clients(
    samples: pd.DataFrame, partition: Partition, assigned: pd.DataFrame, classes: Collection[str]
) -> Iterator[SiteSamples]:
    """Yield the `SiteSamples` of each artificial client to which `partition` deals images; nothing without `deal`.

    `assigned` is the table that `Partition.divide` returned for `samples`.
    """
    if partition.deal and samples["label"].notna().all():
        rows = assigned.merge(samples.drop(columns="site"), on="sample")
        rows = rows[rows["role"] == "internal"]
        name = f"client of {partition.title}" if partition.title else "client"
        for client, part in rows.groupby("site", sort=False):
            yield _counted(str(client), (name,), part, classes)


def _counted(name: str, roles: tuple[str, ...], rows: pd.DataFrame, classes: Collection[str]) -> SiteSamples:
    """Return the `SiteSamples` of the site or client `name`: the counts of its samples, `rows`."""
    return SiteSamples(
        name=name,
        roles=roles,
        samples=len(rows),
        patients=int(rows["patient"].nunique()),
        unknown=int(rows["patient"].isna().sum()),
        classes=tuple(int((rows["label"] == k).sum()) for k in range(len(classes))),
    )


def _across(named: pd.DataFrame, partition: Partition) -> set[str]:
    """Return the patients with images at an internal and at an external site of the partition."""
    inside, outside = (named["patient"][named["site"].isin(s)] for s in (partition.sources, partition.external))
    return {*inside.unique()} & {*outside.unique()}


def _faults(
    samples: pd.DataFrame, partition: Partition, training: Training, divided: tuple[pd.DataFrame, list[UserError]]
) -> Iterator[UserError]:
    """Yield an error for each misnamed site, each site that cannot be split, and each with too few images to train.

    `divided` is what `_divided` returned for the partition.
    """
    assigned, faults = divided
    yield from partition.name_faults(samples["site"])
    yield from faults
    train = assigned[(assigned["role"] == "internal") & (assigned["split"] == "train")]
    for site, count in train.groupby("site").size().items():
        try:
            training.require_batch(str(site), int(count))
        except UserError as fault:
            yield fault
