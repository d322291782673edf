"""What sentences and tables are made of: numbers with intervals, counts, and nouns for sites and patients.

Everywhere on the page, `unit` is what the intervals resample, in the plural: `patients`, or `images` where patients are
unknown, or what the study says (see `nouns`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.values import Value, between, inner, listed, number
from ..core import registry
from ..core.registry import Plugin
from ..core.spelling import counted as counted
from ..core.spelling import noun as noun
from ..core.spelling import plural
from ..data.partition import Partition
from ..datasets import SiteKind
from ..metrics import Metric
from ..study import Plan

_NBSP = "\N{NO-BREAK SPACE}"
BOTH = ("internal", "external")


def joined(*parts: str) -> str:
    """Return sentences one after another, without the empty ones."""
    return " ".join(filter(None, parts))


def in_samples(text: str, sample: str) -> str:
    """Return a text about images in the noun of a dataset: about windows of a signal, for example."""
    if sample[:1] not in "aeiou":
        text = re.sub(r"\b([Aa])n image\b", r"\1 image", text)
    for word, other in (("image", sample), ("images", plural(sample))):
        text = re.sub(rf"\b{word}\b", other, text)
        text = re.sub(rf"\b{word.capitalize()}\b", other.capitalize(), text)
    return text


def verb(count: int, plural: str) -> str:
    """Return a verb in the number that belongs to a count: `take`, or `takes` for 1."""
    return plural if count != 1 else {"are": "is", "were": "was"}.get(plural, f"{plural}s")


def capital(text: str) -> str:
    """Return a text with a capital first letter; the others stay as they are."""
    return f"{text[:1].upper()}{text[1:]}"


def metric_named(name: str) -> Metric:
    """Return a metric by its name."""
    metric: Metric = registry.build("metric", name)
    return metric


def in_percent(criterion: str) -> bool:
    """Return whether values of what chooses rounds and trainings are in percent: a metric's may be, a loss never is."""
    return criterion != "loss" and metric_named(criterion).percent


def chosen_by(value: float, criterion: str) -> str:
    """Return a value of what chooses rounds and trainings: percent with one decimal, or three decimals."""
    return f"{100 * value:.1f}" if in_percent(criterion) else f"{value:.3f}"


def heading(metric: Metric) -> str:
    """Return the title of a metric with its unit, as a column or a caption names it."""
    return f"{metric.title} (%)" if metric.percent else metric.title


def percent(metric: Metric) -> str:
    """Return the sign that follows a value of a metric; empty for a metric that is not in percent."""
    return f"{_NBSP}%" if metric.percent else ""


def level(x: float, metric: Metric) -> str:
    """Return a value of a metric with its unit."""
    return f"{number(x, metric)}{percent(metric)}"


def points(x: float, findings: Findings, sign: bool = False) -> str:
    """Return a difference of the headline metric with its unit."""
    text = number(x, findings.headline, sign)
    if not findings.headline.percent:
        return text
    if text.strip("+−") == "1.0":
        return f"{text} point"
    return f"{text} points"


def signed(value: Value, findings: Findings) -> str:
    """Return the interval of a difference, with signs unless all of it is above zero."""
    return between(value, findings.headline, sign=not value.low > 0)


def change_interval(value: Value, findings: Findings, unit: str) -> str:
    """Return the interval of a difference, and what it resamples."""
    return f"95% interval {signed(value, findings)} {over(value, unit)}"


def bounds(value: Value, metric: Metric, sign: bool = False, otherwise: str = "") -> str:
    """Return the interval of a value, or `otherwise` where it has none."""
    return otherwise if math.isnan(value.low) else between(value, metric, sign)


def interval(value: Value, metric: Metric, resampled: str, otherwise: str = "no interval") -> str:
    """Return `95% interval 1.0 to 2.0 over patients`, or `otherwise` where there is no interval."""
    return otherwise if math.isnan(value.low) else f"95% interval {between(value, metric)} {resampled}"


def over(value: Value, unit: str) -> str:
    """Return what an interval resamples, with numbers: `over 60 patients and 3 trainings`, or patients only."""
    patients = unit
    trainings = "trainings"
    if value.patients > 0:
        patients = f"{value.patients:.0f} {unit}"
        if value.rarer < value.patients:
            patients += f" ({value.rarer:.0f} of the rarer class)"
        trainings = f"{value.seeds} trainings"
    return f"over {patients} only: one training" if value.seeds == 1 else f"over {patients} and {trainings}"


def of_seeds(value: Value, condition: Condition) -> str:
    """Return in brackets how many of its condition's seeds a value has; nothing where it has all."""
    wanted = len(condition.seeds)
    return "" if value.seeds == wanted else f" ({value.seeds} of {wanted} seeds)"


def resampled(seeds: int, unit: str) -> str:
    """Return what the intervals of a table resample: `over patients and trainings`, or patients with one training."""
    return f"over {unit}" if seeds == 1 else f"over {unit} and trainings"


def blind(value: Value, findings: Findings) -> str:
    """Return the levels of chance and of the commonest class; empty for a metric that has none."""
    if math.isnan(value.chance):
        return ""
    chance, majority = (number(x, findings.headline) for x in (value.chance, value.majority))
    if chance == majority:
        return f"chance level {chance}"
    return f"chance level {chance}, commonest class {majority}"


def why_none(findings: Findings, condition: Condition, unit: str, roles: tuple[str, ...] = BOTH) -> str:
    """Return why the headline metric has no interval."""
    metric = findings.headline
    if not metric.has_interval:
        return f"{inner(metric)} comes without"
    reason = f"too few test {unit}"
    if metric.by_class:
        reason += " of a class"
    if sites := findings.without_interval(findings.alike(condition), roles):
        reason += f" at {listed(sites)}"
    return reason


def first_line(plugin: Plugin) -> str:
    """Return the first line of a plug-in's docstring as plain text."""
    return plugin.summary().replace("`", "")


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
    sample : what one sample of the dataset is, in the singular
    kinds, owners : what each site is, and the hospital that a scanner or department belongs to, as far as it is known
    """

    unit: str = "patient"
    known: bool = True
    usual: SiteKind = "hospital"
    medical: bool = True
    sample: str = "image"
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
            sample=study.dataset.sample_noun,
            kinds=kinds | {site: words.kind for site, words in declared.items()},
            owners={site: words.of for site, words in declared.items() if words.of},
        )

    @property
    def units(self) -> str:
        """What intervals resample, in the plural."""
        return plural(self.unit)

    @property
    def samples(self) -> str:
        """What samples of the dataset are, in the plural."""
        return plural(self.sample)

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
        kinds = {kind: [site for site in sites if self.kind(site) == kind] for kind in get_args(SiteKind)}
        parts = [
            f"{number(len(members))} {noun(len(members), kind)}{self._owned(members) if owned else ''}"
            for kind, members in kinds.items()
            if members
        ]
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
HOME_OF_ALL = "the mean of {count} models, each at the {places} that trained it, on the {units} of all of them together"
"""What "at home" is where each site is left out in turn."""


def home_of_all(findings: Findings, condition: Condition, nouns: Nouns) -> str:
    """Return what "at home" is where a number is averaged over partitions; empty where one model was trained."""
    if not findings.averaged:
        return ""
    count = len(findings.alike(condition))
    return HOME_OF_ALL.format(count=count, places=plural(nouns.place), units=nouns.units)
