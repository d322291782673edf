"""Partitions: the sites that take part, and the samples that train, validate and test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from ..core import digest
from ..core.errors import UserError, did_you_mean, require_none, shortened
from ..core.plugin import Frozen
from ..core.rng import stream
from ..core.spelling import folded, quoted
from .splits import Cut, Deal, Draw, Shares, balanced, exact, folds, stratified, uncut

if TYPE_CHECKING:
    import pandas as pd

SPLITS = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "validate", "dev", "development"), "val"),
    **dict.fromkeys(("test", "testing", "tst"), "test"),
}
"""Spellings of the names of splits in tables, in the form that `folded` returns, and the split that each means."""
MOST_SITES = 10_000
"""The most internal sites, and the most external sites, that a partition may have."""


class Split(Frozen):
    """Shares of an internal site's samples that train, validate and test; they add up to 1.

    With `folds` (cross-validation), the split stands for one partition for each fold, so that every sample of an
    internal site is tested once.
    """

    train: float = Field(0.7, gt=0, le=1, description="share of samples that train")
    val: float = Field(0.1, ge=0, lt=1, description="share of samples that validate")
    test: float = Field(0.2, ge=0, lt=1, description="share of samples that test")
    folds: int | None = Field(
        None,
        ge=2,
        le=20,
        description="number of folds: each is the test part of its own partition, so that every patient of an "
        "internal site is tested once; test is then 1 / folds, and train what val leaves",
    )
    fold: int | None = Field(None, ge=1, description="a single one of the folds, counted from 1; default: all of them")
    column: str | None = Field(
        None,
        min_length=1,
        description="column of the table that says of each image of an internal site whether it is of the split train, "
        "val or test, as a published split does; shares are then not used, and a share of 0 says that there is none",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_folds(cls, values: Any) -> Any:
        """Add to the raw settings `values` the shares for test and training that follow from the number of folds."""
        if not isinstance(values, dict) or not isinstance(values.get("folds"), int) or values["folds"] < 2:
            return values
        test = 1 / values["folds"]
        val = values.get("val", cls.model_fields["val"].default)
        if not isinstance(val, int | float):
            return values
        if val >= 1 - test:
            raise UserError("val", f"is {val:g}, but train and val share only {1 - test:g}", "lower val")
        return {"train": 1 - test - val, "test": test, **values}

    @model_validator(mode="after")
    def _whole(self) -> Split:
        if self.folds and abs(self.test - 1 / self.folds) > 1e-9:
            raise UserError("test", f"is {self.test:g}, and a fold is {1 / self.folds:g}", "leave out train and test")
        if self.column and self.folds:
            raise UserError("column", "cannot be combined with folds, which draw the splits", "leave one out")
        if not self.column and abs(self.train + self.val + self.test - 1) > 1e-9:
            raise UserError("split", f"train + val + test is {self.train + self.val + self.test:g}", "make the sum 1")
        if self.fold and self.fold > (self.folds or 0):
            raise UserError("fold", f"is {self.fold}, and folds is {self.folds}", "give a number from 1 to folds")
        return self

    @property
    def shares(self) -> dict[str, float]:
        """The share of each split, by its name: train, val and test."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def each(self) -> tuple[Split, ...]:
        """Return a split for each fold if `folds` is set without `fold`; otherwise this split alone. As a tuple."""
        if self.folds is None or self.fold is not None:
            return (self,)
        return tuple(self.model_copy(update={"fold": fold}) for fold in range(1, self.folds + 1))


Amount = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)]


class Limit(Frozen):
    """Upper limits on the number of training and of validation images of each internal site."""

    train: Amount | None = Field(
        None, description="number of training images, or a share below 1 of those that the split gives"
    )
    val: Amount | None = Field(
        None, description="number of validation images, or a share below 1 of those that the split gives"
    )


class Partition(Frozen):
    """Internal sites (the clients) with their splits, and external sites, all of whose samples always test."""

    internal: tuple[str, ...] = Field(min_length=1, description="sites that train: the clients")
    leave_one_out: bool = Field(
        False,
        description="stands for one partition for each internal site, which is external there, and no client",
    )
    deal: Deal | None = Field(
        None,
        description="deal the images of some sites to the clients that `internal` names, in place of real sites",
    )
    external: tuple[str, ...] = Field((), description="sites that never train; all their samples test")
    split: Split = Field(Split(), description="shares of each internal site's samples that train, validate and test")
    by: Literal["patient", "sample", "class"] = Field(
        "patient",
        description="patient: keep the samples of a patient together, where patients are known; sample: split samples "
        "at random; class: split samples at random, with equal shares of each class",
    )
    limit: Limit = Field(
        Limit(), description="the most images of an internal site; the others are drawn at random and left out"
    )
    truncate: bool = Field(
        False, description="before the split, cut each internal site at random to the size of the smallest"
    )
    cut: Cut | None = Field(
        None,
        description="clients that are made of each internal site after its test samples are held out; they share "
        "these, and hold equal parts of the others; internal then names these clients; default: sites are clients",
    )
    seed: int = Field(0, ge=0, description="seed of the split; the same for all runs")
    held_out: str = Field("", description="name of this partition in tables; default: its external sites")

    @model_validator(mode="after")
    def _disjoint(self) -> Partition:
        for key, sites in (("internal", self.internal), ("external", self.external)):
            if len(sites) > MOST_SITES:
                raise UserError(key, f"{len(sites)} sites are too many (limit {MOST_SITES})", "name fewer")
            for site, number in sorted(Counter(sites).items()):
                if number > 1:
                    raise UserError(key, f"site {site!r} appears twice", "name each site once")
        training = {*self.internal, *(self.sources if self.cut else ())}
        for site in sorted(training & set(self.external)):
            remedy = "a site that trains cannot be an unseen one: remove it from one of the two lists"
            raise UserError("external", f"site {site!r} is internal and external at once", remedy)
        if self.cut and self.deal:
            problem = "cannot be combined with `deal`: it cuts real sites, and `deal` makes artificial ones"
            raise UserError("cut", problem, "leave one out")
        if self.cut:
            self.cut.require(self.internal)
        if self.leave_one_out:
            self._require_sites()
        if self.deal:
            for site in sorted(set(self.deal.sites) & set(self.external)):
                problem = f"site {site!r} is external, and cannot be dealt to clients"
                raise UserError("deal.sites", problem, "remove it from one of the two lists")
        return self

    def _require_sites(self) -> None:
        """Raise UserError unless each internal site can be left out in turn."""
        if len(self.internal) < 2:
            raise UserError("leave_one_out", "leaves no site to train at", "name two internal sites or more")
        for key in ("deal", "cut"):
            if getattr(self, key):
                raise UserError(
                    "leave_one_out", f"is for real sites, but `{key}` makes artificial clients", "drop one of the two"
                )
        if self.split.folds:
            problem = "cannot be combined with folds: a site would be internal in several partitions"
            raise UserError("leave_one_out", problem, "name the external sites, or leave out folds")
        if self.held_out:
            problem = "stands for several partitions, and held_out is the name of one"
            raise UserError(
                "leave_one_out", problem, "delete held_out: each training is named by the site that it leaves out"
            )

    def each(self) -> tuple[Partition, ...]:
        """Return the partitions that this one stands for: one for each left-out site or fold, or this one alone."""
        if not self.leave_one_out:
            return tuple(self.model_copy(update={"split": split}) for split in self.split.each())
        common = self.model_dump(exclude={"internal", "external", "leave_one_out"})
        clients = {site: tuple(client for client in self.internal if client != site) for site in self.internal}
        return tuple(
            Partition(internal=clients[site], external=(site, *self.external), **common) for site in self.internal
        )

    def without_fold(self) -> Partition:
        """Return a copy without the number of the fold: the copies of all folds of one cross-validation are equal."""
        return self.model_copy(update={"split": self.split.model_copy(update={"fold": None})})

    def require_client(self, name: str | None, where: str) -> None:
        """Raise UserError, located at `where`, if `name` is given and is not an internal site."""
        if name is not None and name not in self.internal:
            raise UserError(f"{where}: client", f"{name!r} is not an internal site", did_you_mean(name, self.internal))

    @property
    def title(self) -> str:
        """The name of this partition in scores: `held_out`, or else the names of the external sites, and the fold."""
        words = [self.held_out or "+".join(self.external)]
        if self.split.fold:
            words.append(f"fold {self.split.fold}")
        return ", ".join(filter(None, words))

    def assign(self, samples: pd.DataFrame) -> pd.DataFrame:
        """Assign a role and a split to each sample of an internal or external site.

        `samples` has the columns sample, site, label, patient and, where known, base. Returns the columns sample, site,
        role and split, in the order of `samples`; samples of other sites are left out. Samples with the same `base`
        (variants of one image) get the same split at every internal site. Raises UserErrors that name every unknown
        site, every other spelling of a site, and every site that has too few samples or patients to be split.
        """
        assigned, faults = self.divide(samples)
        require_none([*self.name_faults(samples["site"]), *faults])
        return assigned

    def spellings(self, names: Iterable[str]) -> dict[str, str]:
        """Return which of `names` differ from a site of this partition only in spelling, as name -> site.

        Spellings differ in case, spaces or the Unicode form.
        """
        sites = {folded(site): site for site in self._sites}
        return {name: sites[folded(name)] for name in names if name not in self._sites and folded(name) in sites}

    def name_faults(self, names: pd.Series) -> list[UserError]:
        """Return an error for each site of this partition that no sample has, or that some samples spell differently.

        `names` is the site of each sample. Samples under another spelling would be left out silently. A client of
        `deal` with the name of a site of the data is an error, too.
        """
        counts = names.value_counts()
        present = sorted(counts.index)
        respelt = self.spellings(present)
        faults = [
            UserError("partition", f"client {quoted(site)} has the name of a site of the data", "name it otherwise")
            for site in self.internal
            if self.deal and site in present
        ]
        faults += [
            UserError(
                "partition",
                f"site {quoted(site)} is also spelt {quoted(name)} in the data (images: {counts[name]:,})",
                "spell it alike everywhere: spaces, case and the Unicode form count",
            )
            for name, site in respelt.items()
        ]
        unknown = [site for site in self._sites if site not in present and site not in respelt.values()]
        errors = (UserError("partition", f"unknown site {s!r}", did_you_mean(s, present)) for s in unknown)
        return [*faults, *shortened(errors, len(unknown), "partition")]

    @property
    def sources(self) -> tuple[str, ...]:
        """The sites of the data whose images train: internal sites, or those that `cut` or `deal` makes clients of."""
        if self.deal:
            return self.deal.sites
        if self.cut:
            return tuple(dict.fromkeys(map(uncut, self.internal)))
        return self.internal

    @property
    def _sites(self) -> tuple[str, ...]:
        return *self.sources, *self.external

    def divide(self, samples: pd.DataFrame) -> tuple[pd.DataFrame, list[UserError]]:
        """Return the table that `assign` returns, and a list with an error for each site that cannot be split.

        The table leaves out sites that cannot be split, and sites without samples.
        """
        import pandas as pd

        if self.cut:
            return self._divide_and_cut(samples, self.cut)
        faults: list[UserError] = []
        try:
            samples = self._dealt(samples)
        except UserError as fault:
            faults.append(fault)
        places = samples.groupby("site", observed=True).indices
        sites = [site for site in (*self.internal, *self.external) if site in places]
        groups = {site: samples.index[places[site]].to_numpy() for site in sites}
        internal = [site for site in self.internal if site in groups]
        if self.truncate:
            smallest = min((len(groups[site]) for site in internal), default=0)
            for site in internal:
                drawn = stream(self.seed, "truncate", site).permutation(len(groups[site]))[:smallest]
                groups[site] = groups[site][np.sort(drawn)]
        split = pd.Series("test", index=samples.index)
        assigned: dict[object, str] = {}
        for site in internal:
            rows = samples.loc[groups[site]]
            try:
                split.loc[rows.index] = self._split_site(site, rows, assigned)
                groups[site] = groups[site][self._within_limit(site, split.loc[groups[site]].to_numpy())]
            except UserError as fault:
                faults.append(fault)
                del groups[site]
        # an empty array first: concatenate refuses an empty list
        chosen = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *groups.values()]))
        out = samples.loc[chosen, ["sample", "site"]].copy()
        out["role"] = np.where(out["site"].isin(self.internal), "internal", "external")
        out["split"] = split.loc[chosen]
        return out.reset_index(drop=True), faults

    def _dealt(self, samples: pd.DataFrame) -> pd.DataFrame:
        """Return `samples` with each image of the sites of `deal` assigned to a client, in the column `site`."""
        if not self.deal:
            return samples
        rows = samples[samples["site"].isin(self.deal.sites)]
        client = self.deal.clients(self._units("", rows), rows["label"].to_numpy(), len(self.internal), self.seed)
        samples = samples.copy()
        samples.loc[rows.index, "site"] = [self.internal[k] for k in client]
        return samples

    def _divide_and_cut(self, samples: pd.DataFrame, cut: Cut) -> tuple[pd.DataFrame, list[UserError]]:
        """Return the table and errors of `divide` with `cut`: each site is split first, then cut into clients."""
        whole = self.model_copy(update={"internal": self.sources, "cut": None, "limit": Limit()})
        table, faults = whole.divide(samples)
        facts = samples.drop_duplicates("sample").set_index("sample").loc[table["sample"]].reset_index()
        site = np.array(table["site"], dtype=object)
        keep = np.array(table["role"] == "external")
        for name in self.sources:
            rows = np.flatnonzero(table["site"] == name)
            try:
                split = table["split"].to_numpy()[rows]
                units = self._units(name, facts.iloc[rows])
                part = cut.share_out(name, split, units, facts["label"].to_numpy()[rows], self.seed)
                for k in range(cut.clients):
                    mine = rows[part == k]
                    site[mine] = cut.client(name, k)
                    keep[mine] = self._within_limit(cut.client(name, k), split[part == k])
            except UserError as fault:
                faults.append(fault)
                keep[rows] = False
        return table.assign(site=site)[keep].reset_index(drop=True), faults

    def _within_limit(self, site: str, split: np.ndarray) -> np.ndarray:
        """Return the rows of a site to keep under `limit`, as a mask (n,), bool, drawn at random.

        `split` (n,) names the split of each row. Raises UserError for a limit that keeps no image, or more than there
        are.
        """
        within = np.ones(len(split), dtype=bool)
        for name, limit in (("train", self.limit.train), ("val", self.limit.val)):
            rows = np.flatnonzero(split == name)
            if limit is None:
                continue
            size = int(limit * len(rows) + 1e-9) if isinstance(limit, float) else limit
            if not 1 <= size <= len(rows):
                problem = f"limit.{name} asks for {size} images of site {site!r}, and the split gives {len(rows)}"
                raise UserError("partition", problem, "lower the limit, or raise the share of the split")
            # a stream for each split: another limit of one does not change the draw of the other
            within[rows] = False
            within[stream(self.seed, "limit", name, site).permutation(rows)[:size]] = True
        return within

    def _split_site(self, site: str, rows: pd.DataFrame, assigned: dict[object, str]) -> np.ndarray:
        """Return the split of each row (n,) of a site, and record in `assigned` the split of each unit.

        A unit is what must stay in one split: a patient, a base image or a sample. A base image that an earlier site
        has recorded in `assigned` keeps its split. Patients of two sites count as two even if their ids are equal:
        hospitals number their patients independently. Raises UserError for a site with too few units.
        """
        if self.split.column:
            return self._stated_split(site, rows, self.split.column)
        unit = self._units(site, rows)
        names, member = np.unique(unit, return_inverse=True)
        shares = {name: share for name, share in self.split.shares.items() if share > 0}
        if len(names) < len(shares):
            kind = "patients" if self._keeps_patients(rows) else "samples"
            problem = f"has {len(names)} {kind}, too few for {' + '.join(shares)}"
            remedy = "give it fewer splits, use by: sample, or make it external"
            raise UserError(f"partition: site {site!r}", problem, remedy)
        if self._keeps_patients(rows):
            assigned = {}
        of_unit = np.array([assigned.get(name, "") for name in names], dtype=object)
        if (of_unit == "").any():
            draw = stratified if self.by == "class" else exact
            if len(names) < len(rows):
                draw = balanced
            # sites that show the same images draw from the same stream, and so get the same split
            key = "" if "base" in rows else site
            label = rows["label"].to_numpy()
            if self.split.fold:
                drawn = self._split_by_folds(draw, label, member, shares, site, key)
            else:
                drawn = draw(label, member, shares, self.seed, key)
            of_unit = np.where(of_unit == "", drawn, of_unit)
        for name in sorted(set(shares) - set(of_unit)):
            problem = f"has no sample left for {name}: it has too few, or shares its images with an earlier site"
            raise UserError(f"partition: site {site!r}", problem, "give it fewer splits, or make it external")
        assigned.update(zip(names, of_unit, strict=True))
        return of_unit[member]

    def _stated_split(self, site: str, rows: pd.DataFrame, column: str) -> np.ndarray:
        """Return the split of each row (n,) of a site as `column` of the table states it.

        Raises UserError if the column is missing, a cell names no split, or a split that has a share has no image.
        """
        name = next((name for name in (column, folded(column)) if name in rows), None)
        where = f"partition: site {site!r}"
        if name is None:
            raise UserError("partition.split.column", f"the samples have no column {column!r}", "correct its name")
        split = rows[name].map(lambda cell: SPLITS.get(folded(str(cell))))
        if split.isna().any():
            cell = rows[name][split.isna()].iloc[0]
            problem = f"column {column!r} holds {cell!r} ({int(split.isna().sum()):,} images)"
            raise UserError(where, problem, "write train, val or test in each row of a site that trains")
        for wanted in (wanted for wanted, share in self.split.shares.items() if share > 0):
            if not (split == wanted).any():
                remedy = (
                    "correct the column" if wanted == "train" else f"say so: split: {{ column: {column}, {wanted}: 0 }}"
                )
                raise UserError(where, f"has no image of the split {wanted} in the column {column!r}", remedy)
        return split.to_numpy(dtype=object)

    def _split_by_folds(
        self, draw: Draw, label: np.ndarray, member: np.ndarray, shares: Shares, site: str, key: str
    ) -> np.ndarray:
        """Return the split of each unit (n,): units of this fold test, and `draw` splits the units of the other folds.

        A unit is what must stay in one split. `label` and `member` are the class and the unit of each sample, `shares`
        the share of each split by its name; `site` is for messages, and `key` names the random stream. Raises UserError
        for a class with fewer units than folds.
        """
        number = self.split.folds or 1
        fold = folds(label, member, number, self.seed, key)
        for name in np.unique(label):
            units = np.unique(member[label == name])
            if len(np.unique(fold[units])) < number:
                problem = f"patients or samples of class {name}: {len(units)}, but each of {number} folds needs one"
                raise UserError(f"partition: site {site!r}", problem, "lower folds, or make the site external")
        split = np.full(len(fold), "test", dtype=object)
        others = fold != self.split.fold
        rows = others[member]
        _, left = np.unique(member[rows], return_inverse=True)
        kept = {name: share / (1 - self.split.test) for name, share in shares.items() if name != "test"}
        split[others] = draw(label[rows], left, kept, self.seed, f"{key}, fold {self.split.fold}")
        return split

    def _units(self, site: str, rows: pd.DataFrame) -> np.ndarray:
        """Return for each row (n,) the id of the unit that must stay in one split.

        The unit is the base image of the sample, its patient, or the sample itself.
        """
        if "base" in rows:
            return rows["base"].to_numpy()
        if self._keeps_patients(rows):
            return rows["patient"].fillna(site + "/" + rows["sample"].astype(str)).to_numpy(dtype=object)
        return rows["sample"].to_numpy()

    def _keeps_patients(self, rows: pd.DataFrame) -> bool:
        """Return whether each patient of a site must stay in one split: patients are known, and `by` is patient."""
        if self.by != "patient" or "base" in rows or "patient" not in rows:
            return False
        return bool(rows["patient"].notna().any())

    def identity(self, dataset: str) -> str:
        """Return the id of this partition of the dataset with the id `dataset`. It names the file of the partition."""
        unused = {"held_out", "leave_one_out", *(name for name in ("cut", "deal") if not getattr(self, name))}
        settings = self.model_dump(mode="json", exclude=unused)
        # Keys that came later are left out where they have no effect, so that earlier studies keep their ids.
        if self.split.column:
            settings["split"] = {"column": self.split.column}
        elif not self.split.folds:
            settings["split"] = self.split.shares
        return digest.of({"dataset": dataset, **settings})
