"""What a page calls the sites of a study, and what its intervals resample: hospitals, scanners, domains; patients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from ..analysis.values import listed
from ..core.spelling import noun, plural
from ..data.partition import Partition
from ..datasets import SiteKind
from ..study import Plan
from .phrases import counted, verb

OWNERS = 3
"""Hospitals of scanners or departments that are named. More are counted."""


@dataclass(frozen=True)
class Outside:
    """The external sites of a study.

    Attributes
    ----------
    sites : all of them
    apart : those whose hospital did not train
    shared : a clause about the others, which names the hospital that trained; empty where there are none
    """

    sites: list[str]
    apart: list[str]
    shared: str


@dataclass(frozen=True)
class Nouns:
    """The nouns of a study.

    Attributes
    ----------
    unit : what intervals resample, in the singular
    known : whether the table says which images belong to one unit, such as a patient
    usual : what a site is where nothing else is said
    medical : whether the images are of patients
    kinds, owners : what each site is, and the hospital that a scanner or department belongs to, as far as it is known
    """

    unit: str = "patient"
    known: bool = True
    usual: SiteKind = "hospital"
    medical: bool = True
    kinds: Mapping[str, SiteKind] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, known: bool) -> Nouns:
        """Return the nouns of a study; `known` says whether the table of images names patients."""
        study = plan.study
        of_dataset = study.dataset.site_kind
        # nobody calls a site a hospital of which not even the patients are known
        usual: SiteKind = "site" if of_dataset == "hospital" and not known else of_dataset
        kinds: dict[str, SiteKind] = {}
        for partition in plan.partitions:
            made = partition.deal or partition.cut
            kinds |= dict.fromkeys(partition.internal, "client" if made else usual)
        for partition in plan.partitions:
            for site in partition.external:
                # a client holds images that train: a set that only tests is none
                kinds.setdefault(site, "site" if usual == "client" else usual)
        declared = {site: words for site, words in study.sites.items() if site in kinds}
        return cls(
            unit=study.resampled(known),
            known=known,
            usual=usual,
            medical=of_dataset in ("hospital", "site"),
            kinds=kinds | {site: words.kind for site, words in declared.items()},
            owners={site: words.of for site, words in declared.items() if words.of},
        )

    @property
    def units(self) -> str:
        """What intervals resample, in the plural."""
        return plural(self.unit)

    @property
    def place(self) -> str:
        """What any site of the study is: its kind if all are of one, else a site."""
        return self.each(self.kinds)

    @property
    def other(self) -> str:
        """What a reader may wish to know of: another site, which the study has not seen."""
        return self.usual if len(set(self.kinds.values())) > 1 else self.place

    def each(self, sites: Iterable[str]) -> str:
        """Return what each of several sites is: their kind if they are of one, else a site."""
        kinds = {self.kind(site) for site in sites} or {self.usual}
        return kinds.pop() if len(kinds) == 1 else "site"

    def kind(self, site: str) -> SiteKind:
        """Return what a site is."""
        return self.kinds.get(site, self.usual)

    def counted(self, sites: Sequence[str], number: Callable[[int], str] = "{:,}".format, owned: bool = True) -> str:
        """Return the numbers of sites of each kind: `2 hospitals and 3 scanners of utrecht`, with whose if `owned`."""
        parts = []
        for kind in get_args(SiteKind):
            members = [site for site in sites if self.kind(site) == kind]
            if members:
                parts.append(
                    f"{number(len(members))} {noun(len(members), kind)}{self._owned(members) if owned else ''}"
                )
        return listed(parts) or f"{number(0)} {plural(self.place)}"

    def _owned(self, sites: Sequence[str]) -> str:
        """Return whose scanners or departments these are; empty where that is not known of each."""
        owners = list(dict.fromkeys(self.owners.get(site, "") for site in sites))
        if "" in owners:
            return ""
        return f" of {listed(owners) if len(owners) <= OWNERS else counted(len(owners), 'hospital')}"

    def outside(self, partitions: Iterable[Partition]) -> Outside:
        """Return the external sites of partitions, with those whose hospital trained there told apart."""
        insiders: dict[str, set[str]] = {}
        for partition in partitions:
            for site in partition.external:
                insiders.setdefault(site, set()).update(self.relatives(site, partition))
        related: dict[str, dict[str, set[str]]] = {}
        for site, there in insiders.items():
            if there:
                related.setdefault(self.owner(site), {})[site] = there
        shared = "; ".join(self._trained(owner, sites) for owner, sites in related.items())
        return Outside(list(insiders), [site for site in insiders if not insiders[site]], shared)

    def owner(self, site: str) -> str:
        """Return the hospital of a site: itself, unless it is a scanner or department of another."""
        return self.owners.get(site, site)

    def relatives(self, site: str, partition: Partition) -> list[str]:
        """Return the sites of the same hospital that train."""
        return [one for one in partition.internal if self.owner(one) == self.owner(site)]

    def _trained(self, owner: str, sites: Mapping[str, set[str]]) -> str:
        """Return that the hospital of external sites trained, and with what: other scanners, if it is known."""
        names = list(sites)
        insiders = set().union(*sites.values())
        if names == [owner]:
            return f"{owner} trained with {self.counted(sorted(insiders), owned=False)}"
        kind = self.each(names)
        those = f"a {kind}" if len(names) == 1 else plural(kind)
        text = f"{listed(names)} {verb(len(names), 'are')} {those} of {owner}, which trained"
        if self.each(insiders) != kind or owner in insiders:
            return text
        most = max(map(len, sites.values()))
        return f"{text} with {f'another {kind}' if most == 1 else f'other {plural(kind)}'}"


HOSPITALS = Nouns()
"""The nouns of a study of hospitals and patients."""
