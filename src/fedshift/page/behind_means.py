"""Sections and sentences on results that a mean over sites hides.

They are about the worst external site, subgroups, missed structures, what to expect at a new hospital, and test-time
adaptation whose predictions collapse into one class.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..analysis import comparisons, subgroups
from ..analysis.collapse import SHARE, SHARE_OF_TWO
from ..analysis.comparisons import Entry
from ..analysis.conditions import Condition
from ..analysis.estimates import FEWEST
from ..analysis.findings import Findings
from ..analysis.operating_point import DRIFTS, Points, positive_class
from ..analysis.study_results import StudyResults
from ..analysis.values import DASH, NAN, Table, Value, inner, listed, number, spread
from ..core.spelling import noun, plural
from ..metrics import Metric
from ..study.declaration import Study
from .answer import by_lead, distinct
from .html import Block, Fold, Light, Section, plain
from .phrases import HOSPITALS, Nouns, bounds, counted, heading, in_samples, interval, level, metric_named, resampled

MOST_SITES = 5
"""The most sites to name whose samples are all of one class; the worst are named first."""


@dataclass(frozen=True)
class Result:
    """A metric at one external site beside its mean over internal sites.

    `home` is that mean (NaN if unknown), and `at` a phrase for the decision threshold, if the metric needs one.
    """

    metric: Metric
    site: str
    value: Value
    home: float
    at: str = ""

    @property
    def lost(self) -> float:
        """How much worse the external value is than the internal mean or, if that is unknown, than a perfect score."""
        # without internal tests, a perfect score stands for the level at home
        home = float(self.metric.higher_is_better) if math.isnan(self.home) else self.home
        return home - self.value.mean if self.metric.higher_is_better else self.value.mean - home


def worst_sentences(results: StudyResults, unit: str = "patients") -> list[str]:
    """Return sentences about sites with samples of one class only, and about the worst result at an external site.

    They are about the page's leading condition (algorithm x batch norm policy x settings) or, if it has no external
    results, the first that has some. `unit` names the resampled units, such as patients.
    """
    findings = results.findings
    points = results.operating_points
    led, others = by_lead(findings)
    named = len(distinct(findings)) > 1
    for condition in (*led, *others):
        if compared := list(_external(findings, condition, points)):
            return [
                *_single_class(results.plan.study, findings, condition, points, unit),
                _worst(compared, unit, findings.title(condition) if named else ""),
            ]
    return []


def _external(findings: Findings, condition: Condition, points: Points) -> Iterator[Result]:
    """Yield every metric in percent at every external site where it is defined.

    `condition` is an algorithm with batch norm policy and settings. Sensitivity and specificity are taken at the
    study's decision threshold, with its positive class; `points` holds these rates.
    """
    metrics = {name: (metric, "") for name, metric in findings.metrics.items() if metric.percent}
    if points:
        metrics |= {name: (metric_named(name), _chosen(findings.plan.study)) for name in DRIFTS}
    for member in findings.alike(condition):
        key = member.level_inference
        for name, (metric, at) in metrics.items():
            values: dict[str, dict[str, Value]] = {"internal": {}, "external": {}}
            for role, site in member.sites():
                value = findings.value(member, role, site, key, name)
                if points and name in DRIFTS:
                    point = points.get((member.id, key, role, site))
                    value = point.rates[name] if point else Value()
                if value.known:
                    values[role][site] = value
            # sites count alike, as in all means over sites
            home = float(np.mean([value.mean for value in values["internal"].values()] or [NAN]))
            for site, value in values["external"].items():
                yield Result(metric, site, value, home, at)


def _single_class(study: Study, findings: Findings, condition: Condition, points: Points, unit: str) -> Iterator[str]:
    """Yield a sentence on sensitivity or specificity at each site with samples of one class, the worst first.

    `points` holds the rates at the decision threshold, and `unit` names the resampled units, such as patients.
    """
    single = []
    for member in findings.alike(condition):
        for role, site in member.sites():
            point = points.get((member.id, member.level_inference, role, site))
            if point and point.only and point.rates[point.only].known:
                single.append((point.rates[point.only].mean, site, point.only, point.rates[point.only]))
    positive = positive_class(study)
    classes = {"sensitivity": study.dataset.classes[positive], "specificity": study.dataset.classes[1 - positive]}
    for mean, site, name, value in sorted(single, key=lambda entry: entry[:2])[:MOST_SITES]:
        yield (
            f"At {site}, which has only class {classes[name]}, {inner(metric_named(name))}{_chosen(study)} is "
            f"{level(mean, metric_named(name))} ({interval(value, metric_named(name), resampled(value.seeds, unit))})."
        )
    if len(single) > MOST_SITES:
        more = counted(len(single) - MOST_SITES, "further site")
        yield f"Samples of one class alone are at {more}; the tables have them."


def _worst(compared: list[Result], unit: str, title: str) -> str:
    """Return a sentence about the external result furthest below its mean over internal sites, and how it was picked.

    `title` names the condition (algorithm x batch norm policy x settings); '' if the study has only one. `compared` are
    the candidates, and `unit` names the resampled units, such as patients.
    """
    worst = max(compared, key=lambda result: result.lost)
    metric = worst.metric
    if worst.lost <= 0:
        return "No metric in percent is worse at an external site than its mean over internal sites."
    text = f"The worst external result is {inner(metric)} at {worst.site}{worst.at and f',{worst.at}'}: "
    text += f"{level(worst.value.mean, metric)} ({interval(worst.value, metric, resampled(worst.value.seeds, unit))})"
    if not math.isnan(worst.home):
        text += f", against {level(worst.home, metric)} at internal sites"
    if title:
        text += f", with {title}"
    if len(compared) == 1:
        return f"{text}."
    return (
        f"{text}. It was picked as the worst of {len(compared)} results, so by chance it tends to look worse than it "
        "is."
    )


def _chosen(study: Study) -> str:
    return " at the threshold chosen at home" if study.threshold.value is None else ""


NOT_STATED = "not stated"
"""The name of the subgroup of images whose column has no value."""
MEANING = (
    "Exploratory. The test {samples} of all sites of a role are taken together and divided by a column of their "
    "table, so that groups may also differ because their sites do. Each interval is about one group alone. Of many "
    "groups, some look better or worse by chance."
)


def subgroup_table(results: StudyResults, column: str, unit: str) -> Table:
    """Return a table of scores by subgroup: the values of a column of the image table, such as sex.

    For each condition (algorithm x batch norm policy x settings) it has the reported inference method and the one that
    is compared with it. `unit` names the resampled units, such as patients.
    """
    findings, metric = results.findings, results.findings.headline
    wanted = set[str | None]()
    for one in findings.conditions:
        pair = one.level_inference, one.compared_inference
        wanted |= {key for key in pair if key in one.inferences}
    keys = [key for key in findings.keys if key in wanted]
    rows: dict[tuple[str, str, str], dict[str, Value]] = defaultdict(dict)
    for about, value in findings.numbers.of("subgroup").items():
        if about.column == column:
            rows[about.condition_id, about.group, about.role][about.inference_id] = value
    cells = []
    for (id_, group, role), values in rows.items():
        first = next(iter(values.values()))
        why = f"too few {unit} for an interval" if first.patients < FEWEST else "no interval"
        row = [group or NOT_STATED, role, findings.full(results.names.conditions[id_])]
        row += [f"{first.n:,}", f"{first.patients:,}"]
        for key in keys:
            value = values.get(key, Value())
            text = f"{spread(value, metric)} ({bounds(value, metric, otherwise=why)})"
            row.append(text if value.known else DASH)
        cells.append(tuple(row))
    # where no patient is known, source images may be resampled in the place of images
    samples = plural(results.plan.study.dataset.sample_noun)
    column_of_units = "Resampled" if unit == samples else unit.capitalize()
    header = ("Group", "Role", "Condition", samples.capitalize(), column_of_units, *map(findings.name, keys))
    trainings = [value.seeds for values in rows.values() for value in values.values()]
    over = resampled(max(trainings, default=1), unit)
    return Table(_subgroup_caption(results, column, unit, over), header, tuple(cells), 3)


def _subgroup_caption(results: StudyResults, column: str, unit: str, over: str) -> str:
    groups = [subgroups.groups(results.plan, data, results.samples(data))[column] for data in results.plan.data]
    most = max((group.nunique() for group in groups), default=0)
    samples = plural(results.plan.study.dataset.sample_noun)
    largest = f"; the {subgroups.MOST} largest of {most} groups" if most > subgroups.MOST else ""
    return (
        f"{heading(results.findings.headline)} of test {samples} by {column}{largest}: mean ± standard deviation over "
        f"seeds, with the 95% interval {over} in parentheses; none under {FEWEST} {unit}"
    )


MOST = 5
"""The most pairs of method and inference method named for each kind of error, the largest share first."""


@dataclass(frozen=True)
class Overlooked:
    """How often one trained method misses or invents structures with one inference method, over all trainings.

    Attributes
    ----------
    condition, inference : names of the method (algorithm x batch norm policy x settings) and of the inference method
    noun, happens : what is counted, and what happens to it, such as "structures" and "are missed"
    sites : maps each site to the number of errors and the number of cases
    """

    condition: str
    inference: str
    noun: str
    happens: str
    sites: dict[str, tuple[int, int]]

    @property
    def times(self) -> int:
        """The number of errors at all sites together."""
        return sum(times for times, _ in self.sites.values())

    @property
    def among(self) -> int:
        """The number of cases at all sites together, with and without error."""
        return sum(among for _, among in self.sites.values())

    @property
    def text(self) -> str:
        """The counts of all sites with errors: `3 of 9 structures are missed at north and 2 of 9 at south`."""
        first, *others = [(site, *pair) for site, pair in self.sites.items() if pair[0]]
        site, times, among = first
        start = f"{times:,} of {among:,} {self.noun} {self.happens} at {site}"
        return listed([start, *(f"{times:,} of {among:,} at {site}" for site, times, among in others)])


def overlooked_counts(results: StudyResults) -> list[Overlooked]:
    """Count errors that the task names, such as missed structures, for each trained method and inference method."""
    findings = results.findings
    return [
        Overlooked(findings.full(condition), findings.name(key), noun, happens, _by_site(results, condition, key, name))
        for name, (noun, happens) in results.plan.study.task.counted.items()
        for condition in findings.conditions
        for key in condition.inferences
    ]


def overlooked_light(counted: Sequence[Overlooked]) -> Light | None:
    """Return a status light with the largest share of missed or invented structures; None if not counted.

    If none is missed or invented, the text says among how many cases, and which kinds of case the test data lack.
    """
    if not counted:
        return None
    if worst := _worst_missed(counted):
        detail = f"{worst[0].text} ({worst[0].condition}, {worst[0].inference})"
        return Light("Missed structures", "suspect", detail, "sites")
    among: dict[tuple[str, str], int] = {}
    for count in counted:
        kind = count.noun, count.happens
        among[kind] = among.get(kind, 0) + count.among
    if not any(among.values()):
        return Light("Missed structures", "unknown", "nothing was counted", "sites")
    said = (f"none of {n:,} {noun} {happens}" for (noun, happens), n in among.items() if n)
    unseen = (f"there were no {noun}" for (noun, _), n in among.items() if not n)
    return Light("Missed structures", "ok", "; ".join([*said, *unseen]), "sites")


def overlooked_sentences(counted: Sequence[Overlooked], unit: str) -> Iterator[str]:
    """Yield sentences on missed or invented structures: the methods and inference methods with the largest shares.

    If an error never happens, a sentence says so. `unit` names the resampled units, such as patients. `counted` has the
    counts for each pair of methods.
    """
    for happens in dict.fromkeys(count.happens for count in counted):
        alike = [count for count in counted if count.happens == happens]
        worst = _worst_missed(alike)
        among = sum(count.among for count in alike)
        if among and not worst:
            yield f"None of {among:,} {alike[0].noun} {happens} ({unit}, trainings and inferences added up)."
        for count in worst[:MOST]:
            yield f"With {count.condition} and {count.inference}, {count.text} ({unit} and trainings added up)."
        if len(worst) > MOST:
            pairs = f"{len(worst) - MOST} further {noun(len(worst) - MOST, 'pair')} of condition and inference"
            yield f"With {pairs}, {alike[0].noun} {happens}, too."


def _worst_missed(counted: Sequence[Overlooked]) -> list[Overlooked]:
    """Return the entries of `counted` with at least one error, the largest share of errors first."""
    above = [count for count in counted if count.times]
    return sorted(above, key=lambda count: count.times / count.among, reverse=True)


def _by_site(results: StudyResults, condition: Condition, key: str, name: str) -> dict[str, tuple[int, int]]:
    """Map each site to the sum of a 0/1 metric over samples and the number of samples where it is defined.

    Both are added up over all trainings of the condition; `key` is the id of an inference method, and `name` the
    metric. Raises TypeError if the metric has no value for single samples.
    """
    sites: dict[str, tuple[int, int]] = {}
    for _, parts in results.predictions.by_site(condition.runs.values(), key):
        for part in parts:
            times, among = sites.get(part.site, (0, 0))
            values = metric_named(name).per_sample(part.label, part.probability)
            if values is None:
                raise TypeError(f"{name} is not a mean over patients")
            sites[part.site] = times + int(np.nansum(values)), among + int((~np.isnan(values)).sum())
    return sites


PREDICTED = 5
"""With fewer external sites, the prediction interval for a new site is in a collapsible block, or not shown at all."""
PLAIN = 10
"""From this number of external sites on, the prediction interval is shown without a warning about their number."""
INTERVAL = "95% prediction interval"


def new_hospital_section(findings: Findings, nouns: Nouns = HOSPITALS) -> Section | None:
    """Return the section on what to expect at a new hospital, as predicted from the external sites.

    External sites count if they are of the kind to predict, and if their hospital did not train: a second scanner of a
    training hospital does not, nor does a collection of several hospitals. Return None if no site that counts has a
    score. `nouns` are the study's words for sites and patients.
    """
    values = {entry: _at_sites(findings, entry, nouns) for entry in comparisons.entries(findings.names)}
    values = {entry: at_sites for entry, at_sites in values.items() if at_sites}
    if not values:
        return None
    lead = max(values.values(), key=len)
    sites = len(lead)
    sentences = [*_sentences(findings, lead, nouns), *_left_out(findings, lead, nouns)]
    sentences += _of_prediction(findings, sites, nouns)
    table = plain(_range_table(findings, values, nouns, interval=sites >= PREDICTED))
    folds = []
    if sites in (3, 4):
        why = (
            f"Too few: {sites} sites hardly say how much {plural(nouns.other)} differ, and a prediction interval from "
            "them is vague."
        )
        details = plain(_range_table(findings, values, nouns, interval=True))
        folds.append(Fold("Prediction interval: too few sites", [why, details]))
    title = f"Another {nouns.other}"
    return Section("new-hospital", title, [*sentences, table, *folds], short=title)


def _at_sites(findings: Findings, entry: Entry, nouns: Nouns) -> dict[str, Value]:
    """Map external sites to their headline metric, for sites that count as examples of a new hospital.

    `entry` is a compared method under its reported inference method.
    """
    # the next site could be one like this: of that kind, and of a hospital that did not train
    values = {
        site: findings.value(member, "external", site, entry.inference)
        for member, site in entry.sites("external")
        if nouns.kind(site) == nouns.other and not nouns.relatives(site, member.partition)
    }
    return {site: value for site, value in values.items() if value.known}


def _left_out(findings: Findings, values: dict[str, Value], nouns: Nouns) -> Iterator[str]:
    """Yield a sentence that names the external sites that do not count as examples of a new hospital, and why.

    `values` maps the sites that count to their scores.
    """
    outside = nouns.outside(condition.partition for condition in findings.conditions)
    others = [site for site in outside.apart if site not in values and nouns.kind(site) != nouns.other]
    reasons = [f"{site} ({nouns.kind(site)})" for site in others]
    if outside.shared:
        reasons.append(outside.shared)
    if reasons:
        yield f"Not counted here: {'; '.join(reasons)}."


def _sentences(findings: Findings, values: dict[str, Value], nouns: Nouns) -> list[str]:
    """Return what the external sites say about a new one: for three or more, the probability of a worse score.

    One or two sites say nothing about another one. `values` maps the sites to their scores.
    """
    metric = findings.headline
    count = len(values)
    other = nouns.other
    # where some sites do not count, those that do are named by their kind
    here = other if nouns.place != other else "site"
    shown = listed([f"{number(value.mean, metric)} at {site}" for site, value in values.items()])
    if count == 1:
        return [f"One external {here} was tested ({shown}). It says nothing about any other {other}."]
    if count == 2:
        return [
            f"Two external {plural(here)} were tested: {shown}. Two numbers and the range between them are all that is "
            f"known: they do not say how a third {other} would do."
        ]
    beyond, worst = {True: ("below", "lowest"), False: ("above", "highest")}[metric.higher_is_better]
    chance = 100 * comparisons.below_the_worst(count)
    return [
        f"If the next {other} is drawn like these {count}, its {inner(metric)} is {beyond} the {worst} of them with a "
        f"probability of 1 in {count + 1} ({chance:.0f} %)."
    ]


def _of_prediction(findings: Findings, sites: int, nouns: Nouns) -> list[str]:
    """Return the assumptions and limits of a prediction for a new site from the number of tested `sites`."""
    lines = []
    if sites > 2:
        lines.append(f"This holds for a {nouns.other} that is drawn like the tested ones.")
        if nouns.other == "hospital":
            lines.append("Public data come from hospitals that chose to share.")
    if PREDICTED <= sites < PLAIN:
        lines.append(f"From {sites} sites, a prediction interval is itself uncertain, and tends to be too narrow.")
    if sites > 1 and findings.averaged:
        lines.append("Each site was held out from another training: these share sites, so their results are related.")
    return lines


def _range_table(findings: Findings, values: dict[Entry, dict[str, Value]], nouns: Nouns, interval: bool) -> Table:
    """Return a table with the lowest and the highest score of each compared method over external sites.

    If `interval` is set, it has a prediction interval for a new site. `values` maps methods to the scores of their
    sites.
    """
    metric = findings.headline
    rows = []
    header = ["Condition", "External sites", "Lowest", "Highest"]
    caption = f"{heading(metric)} over external sites, mean over seeds"
    for entry, at_sites in values.items():
        means = {site: value.mean for site, value in at_sites.items()}
        ends = (min(means, key=means.__getitem__), max(means, key=means.__getitem__))
        rows.append([findings.title(entry.condition), str(len(means))])
        rows[-1] += [f"{number(means[site], metric)} ({site})" for site in ends]
    if interval:
        header.append(INTERVAL)
        for row, at_sites in zip(rows, values.values(), strict=True):
            row.append(_predicted(findings, at_sites))
        scale = ", made on the logit scale" if metric.percent or metric.logit else ""
        caption += (
            f". Prediction interval: where the true value of a new {nouns.other} would lie, over {plural(nouns.other)} "
            f"and {nouns.units}, with these trainings (random effects, t with two degrees of freedom less "
            f"than sites{scale})"
        )
        if any(row[-1] == DASH for row in rows):
            caption += "; a dash where a site does not have its own interval, or a value of 0 or 1"
    return Table(caption, tuple(header), tuple(map(tuple, rows)), 1)


def _predicted(findings: Findings, values: dict[str, Value]) -> str:
    metric = findings.headline
    estimates, se = (np.array([getattr(value, name) for value in values.values()]) for name in ("mean", "se"))
    low, high = comparisons.predicted(estimates, se, metric.percent or metric.logit)
    return DASH if math.isnan(low) else f"{number(low, metric)} to {number(high, metric)}"


Groups = dict[tuple[str, str, str, str], pd.DataFrame]
"""Maps condition id, inference id, role and site to rows of collapse.csv, one row for each training."""
NUMBERS = ("spread", "spread_source", "top_share", "entropy", "agreement")
NO = "no"
UNKNOWN = "not known"
"""Text of the table if it is not known whether predictions collapsed. Answers but NO and UNKNOWN are highlighted."""


def collapse_section(results: StudyResults) -> Section | None:
    """Return the section on test-time adaptation: whether predictions collapsed into one class.

    It covers methods that adapt by gradient steps, and is None without any. Methods that only replace batch norm
    statistics are in collapse.csv alone.
    """
    findings = results.findings
    rows = results.table("collapse")
    adapting = [key for key, inference in findings.plan.inferences.items() if inference.gradients]
    rows = rows[rows["inference_id"].isin(adapting)]
    if rows.empty:
        return None
    groups: Groups = dict(list(rows.groupby(["condition_id", "inference_id", "role", "site"])))  # type: ignore[arg-type]
    tables = [table for table in (_collapse_table(findings, c, groups) for c in findings.conditions) if table.rows]
    lines = [*_collapsed(findings, rows, groups), *_off(findings, adapting, groups), *_traffic(findings, rows)]
    lines = [in_samples(line, results.plan.study.dataset.sample_noun) for line in lines]
    answers = {row[-1] for table in tables for row in table.rows} - {NO, UNKNOWN}
    shown = [plain(table, dict.fromkeys(answers, "worse")) for table in tables]
    blocks: list[Block] = [*lines, Fold("Predictions site by site", shown)]
    return Section("collapse", "Test-time adaptation", blocks, short="Adaptation")


def _places(findings: Findings, condition: Condition, groups: Groups) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Yield role, site, name of an inference method and its rows of collapse.csv.

    All are those of one condition (algorithm x batch norm policy x settings), in the order of the study.
    """
    for role, site in condition.sites():
        for key in condition.inferences:
            trainings = groups.get((condition.id, key, role, site))
            if trainings is not None:
                yield role, site, findings.name(key), trainings


def _collapse_table(findings: Findings, condition: Condition, groups: Groups) -> Table:
    """Return a table on the predictions of one trained method: a row for each site and inference method.

    Its columns show whether test-time adaptation made predictions collapse into one class. `groups` has the rows of
    collapse.csv by site.
    """
    sample = findings.plan.study.dataset.sample_noun
    rows = tuple(
        (site, role, name, *(_percent(of[column]) for column in NUMBERS), in_samples(_work(of), sample), _answer(of))
        for role, site, name, of in _places(findings, condition, groups)
    )
    source = findings.name(findings.baseline) if findings.baseline else "Source"
    header = ("Site", "Role", "Inference", "Spread", f"Spread of {source}", "Largest class", "Entropy", f"As {source}")
    caption = (
        f"{findings.full(condition)}. Predictions of test images, in percent, mean over trainings. Spread: the entropy "
        "of the mean prediction, 0 where all is one class and 100 where classes are alike; largest class: the share of "
        "images that are predicted as the commonest class; entropy: the mean over images, 100 for a guess; as "
        f"{source}: the share of images with the same class as by {source}"
    )
    return Table(in_samples(caption, sample), (*header, "What it did", "Collapsed"), rows, 3)


def _percent(values: pd.Series) -> str:
    mean = float(values.mean())
    return DASH if np.isnan(mean) else f"{100 * mean:.1f}"


def _work(trainings: pd.DataFrame) -> str:
    """Return an inference method's counts at a site, such as gradient steps, over all trainings; a dash if none."""
    # with min_count, the sum of a column without any number is missing instead of 0
    total = trainings[["seen", "kept", "augmented", "steps", "resets"]].sum(min_count=1)
    total = total.dropna()
    shares = {
        name: total[name] / total["seen"] for name in ("kept", "augmented") if name in total and total.get("seen")
    }
    parts = [f"{name} {100 * share:.1f} % of images" for name, share in shares.items()]
    parts += [counted(int(total[name]), name.removesuffix("s")) for name in ("steps", "resets") if name in total]
    return ", ".join(parts) or DASH


def _answer(trainings: pd.DataFrame) -> str:
    """Return whether predictions collapsed into one class: no, yes, `2 of 3 trainings`, or not known."""
    collapsed = trainings["collapsed"].dropna()
    if collapsed.empty:
        return UNKNOWN
    if not collapsed.any():
        return NO
    if collapsed.all():
        return "yes"
    return f"{int(collapsed.sum())} of {len(collapsed)} trainings"


def _collapsed(findings: Findings, rows: pd.DataFrame, groups: Groups) -> Iterator[str]:
    """Yield sentences that say at which sites predictions collapsed into one class, and how that is defined.

    `rows` are those of collapse.csv, and `groups` the same rows by site.
    """
    share = {2: SHARE_OF_TWO}.get(len(findings.plan.study.dataset.classes), SHARE)
    if rows["collapsed"].isna().all():
        yield "Whether predictions collapsed is not known: it is seen beside the inference source, which is not there."
        return
    where = [
        f"{name} at {site} ({findings.full(condition)})"
        for condition in findings.conditions
        for _, site, name, trainings in _places(findings, condition, groups)
        if trainings["collapsed"].any()
    ]
    if where:
        yield f"Predictions collapsed: {listed(where)}."
    else:
        yield "Predictions collapsed at no site."
    yield (
        "Collapsed means that the spread over classes is less than half of that without adaptation, and that more "
        f"than {100 * share:.0f} % of images are predicted as one class. A low entropy does not prove success: it "
        "falls where predictions get better, and also where they collapse. No method was chosen or stopped by these "
        "numbers."
    )


def _off(findings: Findings, adapting: list[str], groups: Groups) -> Iterator[str]:
    """Yield warnings: settings that switch an adaptation method off, and sites where a method took no step.

    `adapting` are the ids of inference methods that adapt by gradient steps. `groups` has the rows of collapse.csv by
    site.
    """
    for key in adapting:
        if hint := findings.plan.inferences[key].hint(len(findings.plan.study.dataset.classes)):
            yield f"Warning about {findings.name(key)}: {hint}."
    for name in map(findings.name, adapting):
        idle = dict.fromkeys(
            site
            for condition in findings.conditions
            for _, site, inference, trainings in _places(findings, condition, groups)
            if inference == name and (trainings[["steps", "augmented"]] == 0).any(axis=None)
        )
        if idle:
            yield (
                f"{name} changed nothing in a training or more at {listed(list(idle))}: no image counted there, and "
                "its predictions are those of batch statistics."
            )


def _traffic(findings: Findings, rows: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on the numbers that internal sites send for an inference method after training.

    `rows` are those of collapse.csv.
    """
    for key, asked in rows.groupby("inference_id")["asked"].max().dropna().items():
        if asked:
            yield (
                f"For {findings.name(str(key))}, each internal site sent {int(asked):,} floats once, after the "
                "training, and each tested site received as many beside the model. They are not in the table of "
                "communication, which is about the training."
            )
