"""Phrases for sentences and tables of a page: numbers with intervals, counts, and nouns for sites and patients.

On all pages, `unit` is the plural noun of what intervals resample: `patients`, or `images` if patients are unknown, or
the study's own noun such as `lesions` (see `Nouns`).
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
    """Join sentences with spaces, leaving out empty ones."""
    return " ".join(filter(None, parts))


def in_samples(text: str, sample: str) -> str:
    """Return a text with "image" replaced by the dataset's noun for a sample, such as "window" for signals."""
    if sample[:1] not in "aeiou":
        text = re.sub(r"\b([Aa])n image\b", r"\1 image", text)
    for word, other in (("image", sample), ("images", plural(sample))):
        text = re.sub(rf"\b{word}\b", other, text)
        text = re.sub(rf"\b{word.capitalize()}\b", other.capitalize(), text)
    return text


def verb(count: int, plural: str) -> str:
    """Return a verb, given in the plural, in the number that fits a count: `take`, or `takes` for 1."""
    return plural if count != 1 else {"are": "is", "were": "was"}.get(plural, f"{plural}s")


def capital(text: str) -> str:
    """Return a text with its first letter in upper case and all others unchanged."""
    return f"{text[:1].upper()}{text[1:]}"


def metric_named(name: str) -> Metric:
    """Return the metric plug-in with the given name. Raises UserError for an unknown name."""
    metric: Metric = registry.build("metric", name)
    return metric


def in_percent(criterion: str) -> bool:
    """Return True if a model selection criterion is shown in percent; `criterion` is a metric's name or `loss`."""
    return criterion != "loss" and metric_named(criterion).percent


def chosen_by(value: float, criterion: str) -> str:
    """Return a validation value of a model selection criterion as text: percent with one decimal, or three decimals."""
    return f"{100 * value:.1f}" if in_percent(criterion) else f"{value:.3f}"


def heading(metric: Metric) -> str:
    """Return a metric's title with its unit, for columns and captions: `Accuracy (%)`."""
    return f"{metric.title} (%)" if metric.percent else metric.title


def percent(metric: Metric) -> str:
    """Return the percent sign to put after a value of the metric; '' if the metric is not in percent."""
    return f"{_NBSP}%" if metric.percent else ""


def level(x: float, metric: Metric) -> str:
    """Return a value of a metric with its unit as text: `81.5 %`."""
    return f"{number(x, metric)}{percent(metric)}"


def points(x: float, findings: Findings, sign: bool = False) -> str:
    """Return a difference of the headline metric with its unit as text: `2.3 points`, or `+2.3 points` with `sign`."""
    text = number(x, findings.headline, sign)
    if not findings.headline.percent:
        return text
    if text.strip("+−") == "1.0":
        return f"{text} point"
    return f"{text} points"


def signed(value: Value, findings: Findings) -> str:
    """Return the interval of a difference as text, with plus and minus signs unless it lies above zero."""
    return between(value, findings.headline, sign=not value.low > 0)


def change_interval(value: Value, findings: Findings, unit: str) -> str:
    """Return the interval of a difference as text: `95% interval −1.0 to 2.0 over 60 patients and 3 trainings`.

    `unit` names the resampled units.
    """
    return f"95% interval {signed(value, findings)} {over(value, unit)}"


def bounds(value: Value, metric: Metric, sign: bool = False, otherwise: str = "") -> str:
    """Return the interval of a value as text: `1.0 to 2.0`; `otherwise` if it has none."""
    return otherwise if math.isnan(value.low) else between(value, metric, sign)


def interval(value: Value, metric: Metric, resampled: str, otherwise: str = "no interval") -> str:
    """Return `95% interval 1.0 to 2.0` followed by the text `resampled`; `otherwise` if there is no interval."""
    return otherwise if math.isnan(value.low) else f"95% interval {between(value, metric)} {resampled}"


def over(value: Value, unit: str) -> str:
    """Return what an interval resamples: `over 60 patients and 3 trainings`, or `over 60 patients only`.

    `unit` names the resampled units, here patients. A value of a single training varies over them only.
    """
    patients = unit
    trainings = "trainings"
    if value.patients > 0:
        patients = f"{value.patients:.0f} {unit}"
        if value.rarer < value.patients:
            patients += f" ({value.rarer:.0f} of the rarer class)"
        trainings = f"{value.seeds} trainings"
    return f"over {patients} only: one training" if value.seeds == 1 else f"over {patients} and {trainings}"


def of_seeds(value: Value, condition: Condition) -> str:
    """Return ` (2 of 3 seeds)` if a value lacks some seeds that its method is trained with; '' if it has all."""
    wanted = len(condition.seeds)
    return "" if value.seeds == wanted else f" ({value.seeds} of {wanted} seeds)"


def resampled(seeds: int, unit: str) -> str:
    """Return what a table's intervals resample: `over patients and trainings`, or `over patients` for a single seed.

    `unit` names the resampled units, here patients.
    """
    return f"over {unit}" if seeds == 1 else f"over {unit} and trainings"


def blind(value: Value, findings: Findings) -> str:
    """Return the scores of guessing and of always giving the commonest class; '' if the metric has no such scores."""
    if math.isnan(value.chance):
        return ""
    chance, majority = (number(x, findings.headline) for x in (value.chance, value.majority))
    if chance == majority:
        return f"chance level {chance}"
    return f"chance level {chance}, commonest class {majority}"


def why_none(findings: Findings, condition: Condition, unit: str, roles: tuple[str, ...] = BOTH) -> str:
    """Return the reason why the headline metric has no interval, such as too few patients at a site.

    `roles` are the site roles to look at, internal and external. `unit` names the resampled units, such as patients.
    """
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
"""The most hospitals of scanners or departments that are named; more are only counted."""


@dataclass(frozen=True)
class Outside:
    """The external sites of a study.

    Attributes
    ----------
    sites : all external sites
    apart : external sites whose hospital took no part in training
    shared : a clause about the external sites whose hospital did train, such as with another scanner; empty if none
    """

    sites: list[str]
    apart: list[str]
    shared: str


@dataclass(frozen=True)
class Nouns:
    """The nouns that a study's page uses for sites, samples and patients.

    Attributes
    ----------
    unit : what intervals resample, in the singular, such as patient
    known : whether the image table says which images belong to one unit
    usual : the noun for a site of no declared kind
    medical : whether the images are of patients
    sample : noun for one sample of the dataset, in the singular
    kinds : maps sites to their kind, such as hospital, scanner or client
    owners : maps a scanner or department to its hospital, if declared
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
        """Return the nouns of a study; `known` says whether the image table has patient ids."""
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
        """The plural noun of what intervals resample, such as patients."""
        return plural(self.unit)

    @property
    def samples(self) -> str:
        """The plural noun for samples of the dataset, such as images."""
        return plural(self.sample)

    @property
    def place(self) -> str:
        """The noun for any site of the study: the kind of all sites if it is the same, else "site"."""
        return self.each(self.kinds)

    @property
    def other(self) -> str:
        """The noun for a site that the study has not seen, to which a reader may want to generalise."""
        return self.usual if len(set(self.kinds.values())) > 1 else self.place

    def each(self, sites: Iterable[str]) -> str:
        """Return the noun for each of several sites: their common kind, or "site" if kinds differ."""
        kinds = {self.kind(site) for site in sites} or {self.usual}
        return kinds.pop() if len(kinds) == 1 else "site"

    def kind(self, site: str) -> SiteKind:
        """Return the kind of a site, such as hospital, scanner or client."""
        return self.kinds.get(site, self.usual)

    def counted(self, sites: Sequence[str], number: Callable[[int], str] = "{:,}".format, owned: bool = True) -> str:
        """Return the numbers of sites by kind: `2 hospitals and 3 scanners of utrecht`.

        `number` formats a count, and `owned` says whether to name the hospital of scanners and departments.
        """
        kinds = {kind: [site for site in sites if self.kind(site) == kind] for kind in get_args(SiteKind)}
        parts = [
            f"{number(len(members))} {noun(len(members), kind)}{self._owned(members) if owned else ''}"
            for kind, members in kinds.items()
            if members
        ]
        return listed(parts) or f"{number(0)} {plural(self.place)}"

    def _owned(self, sites: Sequence[str]) -> str:
        """Return ` of ` and the hospitals that own the sites; '' if the owner of any of them is not declared."""
        owners = list(dict.fromkeys(self.owners.get(site, "") for site in sites))
        if "" in owners:
            return ""
        return f" of {listed(owners) if len(owners) <= OWNERS else counted(len(owners), 'hospital')}"

    def outside(self, partitions: Iterable[Partition]) -> Outside:
        """Return the external sites of partitions, with those set apart whose hospital also trained."""
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
        """Return the hospital of a site: the declared owner of a scanner or department, else the site itself."""
        return self.owners.get(site, site)

    def relatives(self, site: str, partition: Partition) -> list[str]:
        """Return the internal sites of a partition that belong to the same hospital as `site`."""
        return [one for one in partition.internal if self.owner(one) == self.owner(site)]

    def _trained(self, owner: str, sites: Mapping[str, set[str]]) -> str:
        """Return a clause that the hospital `owner` of external sites also trained, with other sites of its own.

        `sites` maps each external site to the internal sites of the same hospital.
        """
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
"""The default nouns: hospitals, patients and images."""
HOME_OF_ALL = "the mean of {count} models, each at the {places} that trained it, on the {units} of all of them together"
"""Template of a phrase: what the score at internal sites means if each site is held out in turn."""


def home_of_all(findings: Findings, condition: Condition, nouns: Nouns) -> str:
    """Return what the score at internal sites means if numbers are averaged over partitions; else ''."""
    if not findings.averaged:
        return ""
    count = len(findings.alike(condition))
    return HOME_OF_ALL.format(count=count, places=plural(nouns.place), units=nouns.units)
