"""The numbers of a study, looked up by condition, site and inference, for the tables and sentences of its page."""

from __future__ import annotations

import math

import numpy as np

from ..metrics import Metric
from . import comparisons, effects, score
from .comparisons import Arm, Entry
from .conditions import ALL, Condition, averaged, plain, several
from .estimates import FEWEST
from .numbers import Names, Numbers
from .values import DASH, NAN, Recovered, Value

ALPHA = 0.025
"""One-sided significance level, over all sites together, of the words `surely` and `sure`."""
LABELS = "uses labels of the site"
"""Text in the displayed name of every inference that uses labelled images of the site."""


class Findings:
    """The numbers of a study, looked up by condition, inference, role, site and metric.

    Attributes
    ----------
    metrics, headline : the metrics of the study by name, and its headline metric
    conditions : the conditions of the study, in its order
    keys : the ids of the inferences
    baseline : the id of the baseline inference, with which others are compared; None if the study does not have it
    gate : the metric that decides whether a model has learnt anything at internal sites (see `effects.gate`)
    """

    def __init__(self, names: Names, numbers: Numbers) -> None:
        self.names = names
        self.numbers = numbers
        self.plan = names.plan
        self.metrics: dict[str, Metric] = {m.name: m for m in score.metrics(self.plan)}
        self.headline = self.metrics[self.plan.study.headline]
        self.conditions = list(names.conditions.values())
        self.keys = list(self.plan.inferences)
        self.baseline = plain(self.plan)
        self.gate = self.metrics[effects.gate(self.plan).name]
        scores = numbers.view("score")
        self._left_out = effects.left_out(names.conditions, scores.rename(columns={"mean": "value"}), scores)

    @property
    def several(self) -> bool:
        """True if the study has several partitions."""
        return several(self.conditions)

    @property
    def averaged(self) -> bool:
        """True if the study reports means over partitions (see `conditions.averaged`)."""
        return averaged(self.conditions)

    @property
    def tests_inside(self) -> bool:
        """True if internal sites have test samples in any partition, so that a loss outside can be measured."""
        return any(one.tests_inside for one in self.conditions)

    def full(self, condition: Condition) -> str:
        """Return the title of a condition, with its partition if the study has several."""
        return condition.full_title(self.several)

    def title(self, condition: Condition) -> str:
        """Return the title of a condition, with its partition if the study has several and does not average them."""
        return condition.full_title(self.several and not self.averaged)

    def others(self, condition: Condition | None = None) -> list[str]:
        """Return the ids of all inferences of a condition, or of the study, except the baseline."""
        return [k for k in (condition.inferences if condition else self.keys) if k != self.baseline]

    def compared(self, condition: Condition | None = None) -> list[str]:
        """Return the ids of the inferences whose gain over the baseline is shown: all that use no labels of the site.

        Return [] if the baseline is missing. The inferences are those of a condition, or of the study.
        """
        if self.baseline not in (condition.inferences if condition else self.keys):
            return []
        return [k for k in self.others(condition) if not self.plan.inferences[k].uses_labels]

    def value(self, condition: Condition, role: str, site: str, key: str, metric: str = "") -> Value:
        """Return the score of a condition at a site under the inference `key`, by default in the headline metric.

        The value is empty (NaN) if there is no such score.
        """
        return self.numbers.find("score", metric or self.headline.name, condition.id, key, role, site)

    def slope(self, condition: Condition, role: str, site: str, key: str) -> Value:
        """Return the calibration slope of a condition at a site under the inference `key`; NaN if it is not known."""
        return self.numbers.find("slope", "", condition.id, key, role, site)

    def effect(
        self,
        quantity: str,
        condition: Condition,
        key: str,
        role: str = "external",
        site: str = ALL,
        across: bool = False,
        metric: str = "",
    ) -> Value:
        """Return a level, gap, loss or gain (see `effects.table`) under the inference `key`; an empty value if unknown.

        By default, it is a mean over sites of the headline metric. With `across`, it is the mean over the partitions of
        the condition's family.
        """
        id_ = condition.family if across else condition.id
        return self.numbers.find(quantity, metric or self.headline.name, id_, key, role, site)

    def gap(self, condition: Condition, key: str, across: bool = False) -> Value:
        """Return the loss outside: the mean over internal minus the mean over external sites, positive for a loss.

        It is measured in the headline metric under the inference `key`. With `across`, it is the mean over the
        partitions of the condition's family.
        """
        return self.better(self.effect("gap", condition, key, "internal", across=across))

    def losses(self, condition: Condition, key: str) -> dict[str, Value]:
        """Return the loss at each external site where it is known, under the inference `key`; positive for a loss."""
        places = ((one, site) for one in self.alike(condition) for site in one.partition.external)
        values = {site: self.better(self.effect("loss", one, key, site=site)) for one, site in places}
        return {site: value for site, value in values.items() if value.known}

    def losing(self, condition: Condition, key: str) -> list[str]:
        """Return the external sites that surely lose more than the margin under the inference `key`, the worst first.

        Surely means by one-sided p values after Holm's adjustment over sites.
        """
        losses = self.losses(condition, key)
        return self._sure(losses, {site: value.p for site, value in losses.items()})

    def worse(self, condition: Condition, key: str) -> list[str]:
        """Return the external sites that are surely worse than the mean of all, the worst first.

        Surely means by one-sided p values after Holm's adjustment over sites. `key` is the id of the inference.
        """
        found = ((site, one) for one in self.alike(condition) for site in one.partition.external)
        p = {site: self.effect("worse", one, key, site=site).p for site, one in found}
        return self._sure(self.losses(condition, key), p)

    def _sure(self, losses: dict[str, Value], p: dict[str, float]) -> list[str]:
        """Return the sites whose p value is below ALPHA (0.025) after Holm's adjustment, with the largest loss first.

        `losses` and `p` map sites to losses and to one-sided p values.
        """
        adjusted = comparisons.holm(np.nan_to_num([p[site] for site in losses], nan=1.0))
        sites = [site for site, one in zip(losses, adjusted, strict=True) if one < ALPHA]
        return sorted(sites, key=lambda site: -losses[site].mean)

    def gain(self, condition: Condition, key: str, role: str, site: str = ALL, across: bool = False) -> Value:
        """Return the score with the inference `key` minus the score with the baseline; positive is better.

        With `across`, it is the mean over the partitions of the condition's family.
        """
        return self.better(self.effect("gain", condition, key, role, site, across))

    def level(self, entry: Entry, role: str) -> Value:
        """Return the mean over sites of the headline metric of an entry (a condition under an inference)."""
        return self.effect("level", entry.condition, entry.inference, role, across=self.averaged)

    def difference(self, first: Arm, second: Arm, role: str, site: str = ALL) -> Value:
        """Return the headline metric of the arm `first` minus the arm `second`, by default as a mean over sites.

        An arm is the id of a condition with the id of an inference. comparisons.csv may list the pair in either order.
        The value is empty if it does not list the pair.
        """
        pair, turned = (
            self.numbers.find("difference", self.headline.name, *one, role, site, *other)
            for one, other in ((first, second), (second, first))
        )
        return pair if pair.known else turned.turned()

    def better(self, value: Value) -> Value:
        """Return a value of the headline metric, multiplied by -1 if lower is better, so that more is better."""
        return value if self.headline.higher_is_better else value.turned()

    @property
    def margin(self) -> float:
        """The largest loss at external sites with which a model still holds up; 0 if there is no margin."""
        return effects.margin(self.plan, self.headline)

    def alike(self, condition: Condition) -> list[Condition]:
        """Return the conditions over which the numbers of a condition are averaged, one for each partition.

        If the study does not average over partitions, that is the condition alone.
        """
        return [c for c in self.conditions if c.family == condition.family] if self.averaged else [condition]

    def blind(self, condition: Condition, key: str, role: str) -> Value:
        """Return a value with the scores of a guess (`chance`) and of always giving the commonest class (`majority`).

        They are means of the headline metric over the sites of a role at which the condition has a score under the
        inference `key`.
        """
        means = []
        for one in self.alike(condition):
            values = [self.value(one, site_role, site, key) for site_role, site in one.sites() if site_role == role]
            if levels := [(value.chance, value.majority) for value in values if value.known]:
                means.append(np.mean(levels, axis=0))
        chance, majority = np.mean(means, axis=0) if means else (NAN, NAN)
        return Value(chance=float(chance), majority=float(majority))

    def recovered(self, condition: Condition, key: str) -> Recovered:
        """Return what the inference `key` recovers of the loss outside: its external gain, or the reason for none.

        Internal sites may change too, so that the gap need not shrink by as much. Both the loss and the gain must be
        sure, and the loss may not lie below the margin.
        """
        if self.baseline is None or key == self.baseline or self.plan.inferences[key].uses_labels:
            return Recovered(why=DASH)
        gap, gain = self.gap(condition, self.baseline), self.gain(condition, key, "external")
        obstacles = {
            DASH: not (gap.known and gain.known),
            "no gap": gap.mean <= 0,
            "gap in doubt": not gap.sign,
            "gap below the margin": gap.high < self.margin,
            "no gain": gain.mean <= 0,
            "gain in doubt": not gain.sign,
        }
        why = next((words for words, holds in obstacles.items() if holds), "")
        return Recovered(why=why) if why else Recovered(gain)

    def left_out(self, role: str = "", metric: str = "", conditions: list[Condition] | None = None) -> list[str]:
        """Return the sites that count in no mean, since the metric is not defined or all test samples have one class.

        By default, the headline metric is meant, and the sites of both roles and all conditions.
        """
        name = metric or self.headline.name
        sites = [
            site
            for condition in (self.conditions if conditions is None else conditions)
            for r, site in condition.sites()
            if role in ("", r) and (condition.run.partition_id, r, site, name) in self._left_out
        ]
        return list(dict.fromkeys(sites))

    def too_few(self, condition: Condition, role: str) -> list[str]:
        """Return the sites of a role that count in no mean of the headline metric, for having too few patients."""
        key = condition.level_inference
        if not self.effect("level_of_all", condition, key, role).known:
            return []
        own = [site for site_role, site in condition.sites() if site_role == role]
        values = {site: self.value(condition, role, site, key) for site in own}
        return [site for site, value in values.items() if value.known and value.rarer < FEWEST]

    def without_interval(self, conditions: list[Condition], roles: tuple[str, ...]) -> list[str]:
        """Return the sites of some roles with a value of the headline metric but too few patients for its interval."""
        sites = [
            site
            for condition in conditions
            for role, site in condition.sites()
            for value in (self.value(condition, role, site, key) for key in self.keys if role in roles)
            if value.known and math.isnan(value.low)
        ]
        return list(dict.fromkeys(sites))

    def scored(self, condition: Condition, key: str) -> bool:
        """Return whether any run of a condition has a score under the inference `key`, even an undefined one (NaN)."""
        return any(self.value(condition, role, site, key).seeds for role, site in condition.sites())

    def worst(self, condition: Condition, key: str) -> str | None:
        """Return the external site with the worst headline metric under the inference `key`; None without a score."""
        values = {s: self.value(condition, "external", s, key).mean for s in condition.partition.external}
        defined = {site: value for site, value in values.items() if not math.isnan(value)}
        return (min if self.headline.higher_is_better else max)(defined, key=defined.__getitem__, default=None)

    def name(self, key: str) -> str:
        """Return the displayed name of the inference `key`, with settings that tell it from others of the same name."""
        inference = self.plan.inferences[key]
        name = inference.display_name
        alike = [i for i in self.plan.inferences.values() if i.name == inference.name]
        specs = [i.model_dump(mode="json") for i in alike]
        single = {k: v for k, v in inference.model_dump(mode="json").items() if not isinstance(v, dict | None)}
        settings = [f"{k} {v}" for k, v in single.items() if len({str(s[k]) for s in specs}) > 1]
        if inference.uses_labels:
            settings.append(f"{LABELS}: {inference.labels_used}")
        return f"{name} ({', '.join(settings)})" if settings else name
