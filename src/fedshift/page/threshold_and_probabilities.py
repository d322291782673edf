"""Sections on calibration, on rates at a decision threshold, and on conformal prediction sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ..analysis.calibration import BINS, NUMBERS
from ..analysis.conditions import ALL, Condition
from ..analysis.conformal import BROKEN, HELD, OPEN, SEVERAL, TOO_FEW, UNPREDICTED, likely
from ..analysis.findings import Findings
from ..analysis.operating_point import DRIFTS, VALIDATION, Point, Points, positive_class, predictive_values
from ..analysis.study_results import StudyResults
from ..analysis.values import DASH, Value, between, listed, number
from ..figures._canvas import short
from ..study.declaration import Conformal, Study
from .answer import by_lead
from .html import Fold, Light, PageCell, PageTable, Section, further
from .phrases import Nouns, bounds, counted, metric_named, over, resampled

HEADER = ("Site", "Role", "Inference", "Observed / expected", "Intercept", "Slope")
ERRORS = ("Calibration error", "The same of a perfect model", "Squared error, debiased")
DIGITS = dict(zip(NUMBERS, (2, 2, 2, 3, 3, 4), strict=True))
"""Decimals to show for each measure of calibration."""
WIDEST = 10.0
"""A ratio, intercept or slope whose interval is wider than this is shown as not estimable."""
ABSENT = {"observed_expected": "not estimable", "intercept": "not estimable", "slope": "not estimable"}
"""Text for a measure of calibration without a value; the others have a dash."""
EXPLANATION = (
    "Observed / expected: positive samples by the sum of probabilities; ideally 1, below 1 these are too high.",
    "Intercept: calibration in the large, with the slope fixed at 1; ideally 0, below 0 they are too high.",
    "Slope: ideally 1; below 1 they are too extreme.",
    f"Calibration error: of this probability, in {BINS} bins of equal counts. The metric ECE is another number: of "
    "the most probable class, in 15 bins of equal width. Even a perfect model has an error, the larger the fewer "
    "samples: "
    "compare it with that column, never with another site. Where samples belong together, that column is too low.",
    "Squared error, debiased: the mean squared gap of the same bins without its bias; 0 for a perfect model.",
)
"""Explanations of the columns of the calibration table."""


def calibration_section(findings: Findings, unit: str = "patients") -> Section | None:
    """Return the section on the calibration of predicted probabilities; None if calibration was not measured.

    `unit` names the resampled units, such as patients.
    """
    if not findings.numbers.of(*NUMBERS):
        return None
    tables = [
        [table for condition in conditions if (table := _calibration_table(findings, condition, unit)).rows]
        for conditions in by_lead(findings)
    ]
    classes = findings.plan.study.dataset.classes
    named = f"class {classes[1]}" if len(classes) == 2 else "the most probable class"
    question = f"Can the probability of {named} be taken at its word? {_sentence(findings)}"
    blocks = [question.rstrip(), *further(*tables), Fold("How to read these columns", EXPLANATION)]
    return Section("calibration", "Calibration", blocks, short="Calibration")


def _calibration_table(findings: Findings, condition: Condition, unit: str) -> PageTable:
    """Return the calibration table of one condition (algorithm x batch norm policy x settings), with 95% intervals.

    `unit` names the resampled units, such as patients.
    """
    rows = []
    bounded = list[Value]()
    for role, site, name in _places(condition):
        for key in condition.inferences:
            place = "", condition.id, key, role, site
            if findings.numbers.known(NUMBERS[0], *place) is None:
                continue
            measured = {quantity: findings.numbers.find(quantity, *place) for quantity in NUMBERS}
            bounded += [value for value in measured.values() if not math.isnan(value.low)]
            cells = [_cell(quantity, value) for quantity, value in measured.items()]
            rows.append([*map(PageCell, (name, role, findings.name(key))), *cells])
    caption = f"{findings.full(condition)}. Calibration: mean over trainings"
    if bounded:
        caption += f"; beneath, 95% intervals {over(Value(seeds=bounded[0].seeds), unit)}"
    return PageTable(caption, (*HEADER, *ERRORS), rows, 3)


def _places(condition: Condition) -> Iterator[tuple[str, str, str]]:
    """Yield role, site and label of each row of the calibration table: external sites, then the internal mean."""
    yield from (("external", site, site) for site in condition.partition.external)
    if condition.tests_inside:
        yield "internal", ALL, "Mean of internal sites"


def _cell(quantity: str, value: Value) -> PageCell:
    text = ABSENT.get(quantity, DASH)
    below = ""
    known = value.known and not (quantity in ABSENT and value.high - value.low > WIDEST)
    if known:
        text = _signed(value.mean, DIGITS[quantity])
    if known and not math.isnan(value.low):
        below = f"{_signed(value.low, 2)} to {_signed(value.high, 2)}"
    return PageCell(text, below)


def _signed(x: float, digits: int) -> str:
    # rounded before it is written, and without the sign of a negative zero
    return f"{round(x, digits) + 0.0:.{digits}f}".replace("-", "−")


class Misjudged(NamedTuple):
    """A significant error of predicted probabilities at a site.

    `words` describes it, such as "too high", and `numbers` are the figures behind it, if any.
    """

    site: str
    words: str
    numbers: str = ""


def misjudged(findings: Findings, conditions: Sequence[Condition], role: str) -> Iterator[Misjudged]:
    """Yield significant errors of predicted probabilities at each external site, or on average at internal sites.

    `role` is external or internal. Probabilities may be too high, too low, too extreme or not extreme enough. An error
    is significant if the 95% interval of the observed/expected ratio or of the calibration slope excludes 1.
    """
    # of three classes and more, no exchange of two of them follows from it
    exchanged = len(findings.plan.study.dataset.classes) == 2
    question = ": are the labels coded the other way round?" if exchanged else ""
    for condition in conditions:
        key = condition.level_inference
        for site in condition.partition.external if role == "external" else [ALL]:
            ratio = findings.numbers.find("observed_expected", "", condition.id, key, role, site)
            if ratio.high < 1 or ratio.low > 1:
                yield Misjudged(site, "too high" if ratio.high < 1 else "too low", of_hundred(ratio))
            slope = findings.slope(condition, role, site, key)
            if slope.high < 0:
                yield Misjudged(site, f"the wrong way round (the interval of the slope is below 0{question})")
            elif slope.high < 1:
                yield Misjudged(site, "too extreme (the interval of the slope is below 1)")
            elif slope.low > 1:
                yield Misjudged(site, "not extreme enough (above 1)")


def of_hundred(value: Value) -> str:
    """Return an observed/expected ratio as text: `80 where 100 are expected (70 to 90)`."""
    return f"{100 * value.mean:.0f} where 100 are expected ({100 * value.low:.0f} to {100 * value.high:.0f})"


def _sentence(findings: Findings) -> str:
    """Return a sentence on errors of predicted probabilities at external sites; '' if there are no external sites.

    It is about the condition (algorithm x batch norm policy x settings) that the page is about.
    """
    led, _ = by_lead(findings)
    if not any(condition.partition.external for condition in led):
        return ""
    named = f"{findings.title(led[0])} with "
    named += findings.name(led[0].level_inference)
    sites = dict[str, list[str]]()
    for found in misjudged(findings, led, "external"):
        sites.setdefault(found.words, []).append(": ".join(filter(None, (found.site, found.numbers))))
    if not sites:
        return (
            f"{named}: at no external site is it sure that probabilities are too high, too low, too extreme, or not "
            "extreme enough."
        )
    sure = [f"surely {words} at {listed(where)}" for words, where in sites.items()]
    return f"{named}: probabilities are {', and '.join(sure)}."


AT_HOME = "all internal sites"
LETTERS = 14
"""The most characters of a class name in a column header."""
POINT_ERRORS = {"sensitivity": "missed", "specificity": "false alarms"}
"""The errors behind a low sensitivity and a low specificity."""
MOST = 4
"""The most sites whose rates a sentence states; the table has all."""
RATE = "sensitivity"
"""A metric in percent, whose number format is used for all rates."""
RULES = {
    "specificity": "the smallest score with a specificity of {level} or more",
    "sensitivity": "the largest score with a sensitivity of {level} or more",
    "youden": "the score with the largest sensitivity + specificity - 1 (Youden's index), the smallest of several",
}
"""The rules that choose a decision threshold from validation data, in words."""


def operating_point_section(results: StudyResults, unit: str = "patients") -> Section | None:
    """Return the section on sensitivity and specificity at a decision threshold.

    None for studies without predictions or with more than two classes. `unit` names the resampled units, such as
    patients.
    """
    if not results.plan.study.two_classes or not results.operating_points:
        return None
    findings, points, study = results.findings, results.operating_points, results.plan.study
    tables = [
        [table for condition in conditions if (table := _points_table(findings, condition, points, unit)).rows]
        for conditions in by_lead(findings)
    ]
    lines = [*_of_a_hundred(findings, points), " ".join(described(study)), *_unchosen(findings, points)]
    return Section("operating-point", "At a threshold", [*lines, *further(*tables)], short="At a threshold")


def _of_a_hundred(findings: Findings, points: Points) -> Iterator[str]:
    """Yield a sentence on how many of 100 positive and 100 negative samples the model flags at each external site.

    `points` holds the rates at the decision threshold.
    """
    positive, negative = _classes(findings.plan.study)
    led, _ = by_lead(findings)
    texts = []
    outside = [(condition, site) for condition in led for site in condition.partition.external]
    for condition, site in outside:
        point = points.get((condition.id, condition.level_inference, "external", site))
        if point is None:
            continue
        rates = {positive: point.rates["sensitivity"].mean, negative: 1 - point.rates["specificity"].mean}
        parts = [f"{100 * rate:.0f} of 100 {name}" for name, rate in rates.items() if not math.isnan(rate)]
        if parts:
            texts.append(f"{' and '.join(parts)} samples at {site}")
    if len(texts) > MOST:
        texts = [*texts[:MOST], f"so on for {counted(len(texts) - MOST, 'more site')}"]
    if texts:
        yield f"The model flags {'; '.join(texts)}. The second number of each site is that of false alarms."


def threshold_light(results: StudyResults) -> Light | None:
    """Return a status light on whether decision threshold and probabilities hold at external sites; None if unknown.

    It is about the condition (algorithm x batch norm policy x settings) that the page is about. The threshold does not
    hold if the 95% interval of sensitivity or specificity at an external site lies below its value on internal
    validation samples. Probabilities do not hold if they are significantly wrong at any external site, or at internal
    sites on average.
    """
    findings, points = results.findings, results.operating_points
    conditions, _ = by_lead(findings)
    if not any(condition.partition.external for condition in conditions):
        return None
    wrong = [text for condition in conditions for text in _drifted_rates(results, condition)]
    for role, where in (("external", "at {}"), ("internal", "at home")):
        for found in misjudged(findings, conditions, role):
            words = f"probabilities {where.format(found.site)} are {found.words.partition(' (')[0]}"
            wrong.append(f"{words}: {found.numbers}" if found.numbers else words)
    wrong = list(dict.fromkeys(wrong))
    outside = [
        points.get((condition.id, condition.level_inference, "external", site))
        for condition in conditions
        for site in condition.partition.external
    ]
    if not findings.numbers.of(*NUMBERS) and not any(outside):
        return None
    more = f"; {len(wrong) - 1} more" if len(wrong) > 1 else ""
    detail = wrong[0] + more if wrong else "nothing surely wrong outside, nor at home"
    place = "operating-point" if points else "calibration"
    return Light("Threshold and probabilities", "suspect" if wrong else "ok", detail, place)


def _drifted_rates(results: StudyResults, condition: Condition) -> Iterator[str]:
    """Yield a text on each sensitivity or specificity that is significantly worse at an external site.

    The rate is compared with its value on internal validation samples, at the same threshold.
    """
    findings, points = results.findings, results.operating_points
    key = condition.level_inference
    home = points.get((condition.id, key, VALIDATION, ALL))
    for site in condition.partition.external:
        point = points.get((condition.id, key, "external", site))
        if point is None or home is None:
            continue
        classes = _classes(findings.plan.study)
        for name in DRIFTS:
            there, before = point.rates[name], home.rates[name].mean
            if there.high < before:
                rate, usual = (number(1 - x, metric_named(RATE)) for x in (there.mean, before))
                of = short(classes[DRIFTS.index(name)], LETTERS)
                yield f"{POINT_ERRORS[name]} at {site}: {rate} % of {of}, in validation at home {usual} %"


def _classes(study: Study) -> tuple[str, str]:
    """Return the names of the positive and the negative class."""
    positive = positive_class(study)
    return study.dataset.classes[positive], study.dataset.classes[1 - positive]


def described(study: Study) -> list[str]:
    """Return sentences on how the decision threshold is chosen, and which class is positive."""
    positive = study.dataset.classes[positive_class(study)]
    rule = study.threshold
    if rule.value is not None:
        chosen = f"The threshold is {rule.value:g} for every training and at every site, whatever the data."
    else:
        chosen = (
            f"The threshold is {RULES[rule.rule].format(level=f'{rule.level:g}')}, among the validation samples of all "
            "internal sites together. It was chosen at home, once for each training and inference, and carried to "
            "every site unchanged; no test sample played a part."
        )
    lines = [
        f"The positive class is {positive}: a sample is flagged if its probability reaches the threshold.",
        chosen,
        "Predictive values (PPV, NPV) hold for the prevalence beside them, and for no other.",
    ]
    if positive_class(study) != 1:
        second = study.dataset.classes[1]
        lines.append(f"Sensitivity and specificity in the table of all metrics take {second} as the positive class.")
    return lines


def _unchosen(findings: Findings, points: Points) -> list[str]:
    """Return a sentence that names the inference methods without a threshold; an empty list if all have one.

    `points` holds the thresholds and rates. A threshold needs validation predictions of two classes.
    """
    without = {key for (_, key, *_), point in points.items() if any(map(math.isnan, point.thresholds))}
    names = [findings.name(key) for key in findings.keys if key in without]
    if not names:
        return []
    return [
        f"No threshold could be chosen for {', '.join(names)}: a training has no predictions of validation samples, "
        "or they are of one class."
    ]


def _points_table(findings: Findings, condition: Condition, points: Points, unit: str) -> PageTable:
    """Return a method's counts and rates at the decision threshold: internal validation first, then each site.

    `points` holds the rates, and `unit` names the resampled units, such as patients.
    """
    study = findings.plan.study
    chosen = study.threshold.value is None
    rows = []
    for role, site in [(VALIDATION, ALL), *condition.sites()]:
        for key in condition.inferences:
            point = points.get((condition.id, key, role, site))
            # runs without validation samples have no row for home
            if point is not None and point.samples:
                heads = [*map(PageCell, ({ALL: AT_HOME}.get(site, site), role, findings.name(key)))]
                if chosen:
                    texts = sorted(map(_threshold, point.thresholds))
                    heads.append(PageCell(" to ".join(dict.fromkeys([texts[0], texts[-1]]))))
                rows.append([*heads, *_row(point, study.prevalence)])
    positive, negative = (short(name, LETTERS) for name in _classes(study))
    counts = (f"{positive} flagged", f"{positive} missed", f"{negative} flagged", f"{negative} cleared")
    values: tuple[str, ...] = ("Prevalence", "PPV", "NPV")
    if study.prevalence is not None:
        share = f"{100 * study.prevalence:g}\N{NO-BREAK SPACE}%"
        values = (f"PPV at {share}", f"NPV at {share}")
    named = ("Site", "Role", "Inference", *(["Threshold"] if chosen else []), unit.capitalize())
    header = (*named, *counts, *map(str.capitalize, DRIFTS), *values)
    several = any(len(point.thresholds) > 1 for point in points.values())
    return PageTable(_caption(findings, condition, unit, several), header, rows, 3)


def _caption(findings: Findings, condition: Condition, unit: str, several: bool) -> str:
    caption = f"{findings.full(condition)}. Samples of each class that are flagged or not, and rates (%)"
    if several:
        caption += ", means over trainings"
    caption += (
        f". Below, the 95% interval {resampled(len(condition.seeds), unit)}. In brackets the drift: points above or "
        "below the validation samples. "
    )
    prevalence = findings.plan.study.prevalence
    if prevalence is None:
        return f"{caption}PPV and NPV are at the prevalence of the test samples beside them"
    return (
        f"{caption}PPV and NPV are those where {100 * prevalence:g}\N{NO-BREAK SPACE}% of samples are positive, from "
        "both rates: below, at both lower bounds and at both upper bounds of these, which is wider than a 95% "
        "interval. They hold if the rates do not change with the prevalence"
    )


def _row(point: Point, prevalence: float | None) -> list[PageCell]:
    counts = (point.counts[name] for name in ("tp", "fn", "fp", "tn"))
    shown = (DASH if math.isnan(n) else f"{n:,.1f}".removesuffix(".0") for n in counts)
    cells = [*map(PageCell, (f"{point.patients:,}", *shown)), *(_drifted(point, name) for name in DRIFTS)]
    if prevalence is not None:
        return [*cells, *map(_rate, predictive_values(point, prevalence))]
    share = PageCell(number(point.rates["prevalence"].mean, metric_named(RATE)))
    return [*cells, share, *(_rate(point.rates[name]) for name in ("ppv", "npv"))]


def _rate(value: Value) -> PageCell:
    """Return a table cell with a rate in percent and its interval."""
    metric = metric_named(RATE)
    return PageCell(number(value.mean, metric), bounds(value, metric))


def _drifted(point: Point, name: str) -> PageCell:
    """Return a table cell with a rate, its interval, and its difference from internal validation in brackets.

    `name` is the rate: sensitivity or specificity.
    """
    rate = _rate(point.rates[name])
    drift = point.drifts[name]
    if math.isnan(drift):
        return rate
    return PageCell(f"{rate.text} ({number(drift, metric_named(RATE), sign=True)})", rate.below)


def _threshold(value: float) -> str:
    if math.isnan(value):
        return DASH
    # no score satisfied the rule, so that nothing is flagged
    if math.isinf(value):
        return "none reached"
    return f"{value:.3f}"


JUDGED = (HELD, BROKEN, OPEN)
"""Verdicts of a site that has prediction sets. Any other verdict says why it has none."""
SHORT, BATCHES = "short", 5
"""Name of a limit, and its number: with fewer validation batches at a site, batch statistics are not yet stable."""
SETS = {
    "patient": "the set of a new {unit}, from the mean probabilities of its images, holds its class with a probability "
    "of {held:g} % or more",
    "one": "the set of one image of a new {unit}, drawn at random, holds its class with a probability of {held:g} % or "
    "more",
    "masks": "the mask of a new {unit} misses {missed:g} % of a structure or less in the mean",
}
SITES = {
    "pooled": "The new {unit} is of the mixture of these sites: a single site, or a {part}, may have {worse}.",
    "own": "Each internal site has a {quantile} of its own, and external sites have that of all. A {part} may have "
    "{worse}.",
}
OUTSIDE = "At external sites nothing is promised: what stands there is measured."
MASKS = (
    "A pixel belongs to such a mask if its probability reaches a threshold: the largest one that keeps the promise. "
    "Other sections are about masks of the most probable class. A {unit} without the structure does not count here."
)
UNKNOWN = "No {unit} is known: each image counts as if it came from another {unit}, which promises too much."
SPARED = "The round that was kept was not chosen by the validation images that calibrate the {made}."
CHOSEN = (
    "Warning: the validation images that calibrate the {made} also chose the round, or the training of a search. So "
    "they look easier than new ones, and {made} may hold less than is promised. With select: last they choose nothing."
)
REASONS = {
    UNPREDICTED: "No {made} for {names}: a training has no predictions of validation images.",
    SEVERAL: "No {made} for {names}: images of one {unit} are of several classes. With unit: one, one image stands "
    "for each {unit}.",
    SHORT: f"{{names}}: some site has fewer than {BATCHES} batches of validation images, whose scores come from "
    "statistics that have not settled as those of longer streams have.",
}
REAL_SITES = (
    "No {made} for {names}: real sites trained this study, and they send predictions of validation images, which "
    "calibrate, only where there are two classes and no masks."
)
CAPTIONS = {
    "sets": "{condition}. Prediction sets by {score}, shares in percent, means over trainings. Calibrated on: "
    "validation {units}; below, the coverage at home of 90 % of calibrations with as many. Coverage: {units} whose set "
    "holds their class; below, the 95% interval {resampled}, whose lower end is {least:g} % or more where the promise "
    "is held, and whose upper end is below {held:g} % where it is broken",
    "masks": "{condition}. Masks by conformal risk control, means over trainings. Calibrated on: validation {units} "
    "with the structure. Missed: the share of the structure outside of the mask, in percent; mask size: pixels of the "
    "mask over those of the structure; both in the mean over {units} with it. Below, the 95% interval {resampled}: of "
    "missed, its upper end is {most:g} % or less where the promise is held, and its lower end above {missed:g} % where "
    "it is broken",
}


def conformal_section(results: StudyResults, nouns: Nouns) -> Section | None:
    """Return the section on conformal prediction sets or masks; None for a study that declares none.

    `nouns` are the study's words for sites and patients.
    """
    declared = results.plan.study.conformal
    if declared is None:
        return None
    made, title = (
        ("masks", "Missed structure") if results.findings.plan.study.task.has_masks else ("sets", "Prediction sets")
    )
    alpha, margin = 100 * declared.alpha, 100 * declared.margin
    words: dict[str, Any] = {"made": made, "unit": nouns.unit, "units": nouns.units, "score": declared.score.upper()}
    words |= {"missed": alpha, "most": alpha + margin, "held": 100 - alpha, "least": 100 - alpha - margin}
    findings, rows = results.findings, results.table("conformal")
    tables = [
        [_sets_table(findings, one, rows[rows["condition_id"] == one.id], words, declared) for one in conditions]
        for conditions in by_lead(findings)
    ]
    lines = [*_outside(findings, rows, words)]
    if (rows["verdict"] != UNPREDICTED).any():
        lines += _promise(findings, declared, words)
        if not nouns.known:
            lines.append(UNKNOWN.format(unit=Nouns.of(results.plan, True).unit))
    lines += _limits(results, rows, words)
    return Section("conformal", title, [*lines, *further(*tables)], short=title)


def _percent(x: float) -> str:
    return number(x, metric_named(RATE))


def _outside(findings: Findings, rows: pd.DataFrame, words: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence on whether the coverage promised at internal sites also held at external ones, as measured.

    It is about the condition (algorithm x batch norm policy x settings) that the page is about. `rows` are those of
    conformal.csv, and `words` the nouns and percentages to fill in.
    """
    led, _ = by_lead(findings)
    key = led[0].level_inference
    about = rows["condition_id"].isin([condition.id for condition in led]) & (rows["inference_id"] == key)
    first = rows[about & (rows["role"] == "external")]
    promise, share = "the {held:g} % promised at home are", "{coverage} %"
    if findings.plan.study.task.has_masks:
        promise, share = "the promise of home, that masks miss {missed:g} % or less, is", "{missed} % of {what} missed"
    sites = []
    for row in first[first["verdict"].isin(JUDGED)].to_dict("records"):
        shares = {"coverage": _percent(row["coverage"]), "missed": _percent(1 - row["coverage"]), "what": row["class"]}
        sites.append(f"{row['verdict']} at {row['site']} ({share.format(**shares)})")
    if sites:
        promise = promise.format(**words)
        yield f"{findings.title(led[0])} with {findings.name(key)}: outside, {promise} {'; '.join(sites)}."


def _promise(findings: Findings, declared: Conformal, words: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on the coverage guarantee at internal sites, and on what weakens it there and elsewhere.

    `words` are the nouns and percentages to fill in. `declared` has the study's settings of prediction sets.
    """
    masks = findings.plan.study.task.has_masks
    less = {"part": "class", "worse": "less", "quantile": "quantile"}
    if masks:
        less = {"part": f"single {words['unit']}", "worse": "more missed", "quantile": "threshold"}
    promise = SETS["masks" if masks else declared.unit].format(**words)
    sites = SITES[declared.sites].format(**words, **less)
    yield f"At internal sites {promise}, over validation and test {words['units']} together. {sites} {OUTSIDE}"
    if masks:
        yield MASKS.format(**words)
    trainings = [run.training for run in findings.plan.runs.values()]
    chosen = any(one.select != "last" and not one.select_at for one in trainings)
    yield (CHOSEN if chosen else SPARED).format(**words)


def _limits(results: StudyResults, rows: pd.DataFrame, words: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on inference methods without prediction sets, or with too few validation images.

    `rows` are those of conformal.csv, and `words` the nouns to fill in, such as `made`, which is "sets" or "masks".
    """
    findings, texts = results.findings, dict(REASONS)
    if any(manifest.get("sites") for manifest in results.manifests.values()) and not results.plan.study.two_classes:
        texts[UNPREDICTED] = REAL_SITES
    reasons = {reason: rows["verdict"] == reason for reason in REASONS}
    for reason, chosen in (reasons | {SHORT: rows["batches"].between(1, BATCHES - 1)}).items():
        keys = set(rows.loc[chosen, "inference_id"])
        if names := [findings.name(key) for key in findings.keys if key in keys]:
            yield texts[reason].format(**words, names=listed(names))


def _sets_table(
    findings: Findings, condition: Condition, rows: pd.DataFrame, words: Mapping[str, Any], declared: Conformal
) -> PageTable:
    """Return one trained method's table of prediction sets or masks: a row for each inference method and site.

    Masks have a row for each structure. `rows` are the method's rows of conformal.csv, and `words` the nouns and
    percentages of the caption.
    """
    masks = findings.plan.study.task.has_masks
    keys = ["inference_id", "role", "site", *(["class"] if masks else [])]
    cells = []
    for _, part in rows.groupby(keys, sort=False):
        row, *classes = part.to_dict("records")
        own = _of_masks(row) if masks else _of_sets(row, classes, declared.alpha)
        about = row["site"], row["role"], findings.name(row["inference_id"])
        mark = "worse" if row["verdict"] == BROKEN else ""
        verdict = f"{row['verdict']} with n = {row['calibrated']:,.0f}" if row["verdict"] == TOO_FEW else row["verdict"]
        cells.append(
            dict(zip(("Site", "Role", "Inference"), map(PageCell, about), strict=True))
            | {key.format(units=words["units"].capitalize()): cell for key, cell in own.items()}
            | {"Verdict": PageCell(verdict, mark=mark)}
        )
    over = resampled(len(condition.seeds), words["units"])
    caption = CAPTIONS[words["made"]].format(**words, condition=findings.full(condition), resampled=over)
    return PageTable(caption, tuple(next(iter(cells), {})), [[*row.values()] for row in cells], 3 + masks)


def _of_sets(row: dict[Any, Any], classes: list[dict[Any, Any]], alpha: float) -> dict[str, PageCell]:
    """Return the cells of a row on prediction sets, by column.

    `row` is the row of conformal.csv for all classes at a site, and `classes` are those for single classes. `alpha` is
    the accepted error rate.
    """
    judged = row["verdict"] in JUDGED
    ends = likely(int(row["calibrated"]), alpha) if judged else ()
    coverage = Value(row["coverage"], low=row["low"], high=row["high"])
    each = ", ".join(f"{one['class']} {_percent(one['coverage'])} ({one['patients']:.0f})" for one in classes)
    shares = {"One class": "decided", "Several": "several", "No class fits": "none"}
    return {
        "Calibrated on": PageCell(f"{row['calibrated']:,.0f}", " to ".join(f"{100 * end:.0f}" for end in ends)),
        "{units}": PageCell(f"{row['patients']:,.0f}"),
        "Quantile": PageCell(_decimal(row["quantile"], 3)),
        "Coverage": PageCell(_percent(coverage.mean), between(coverage, metric_named(RATE)) if judged else ""),
        "Set size": PageCell(_decimal(row["size"], 2)),
        **{head: PageCell(_percent(row[name])) for head, name in shares.items()},
        "Coverage of each class (n)": PageCell(each or DASH),
    }


def _of_masks(row: dict[Any, Any]) -> dict[str, PageCell]:
    """Return the cells of a row on conformal masks of one structure at one site, by column."""
    # the share missed is 1 - coverage, so that the ends of the interval change places
    missed = Value(1 - row["coverage"], low=1 - row["high"], high=1 - row["low"])
    sizes = [_decimal(row[name], 2) for name in ("size_low", "size_high")]
    return {
        "Structure": PageCell(row["class"]),
        "Calibrated on": PageCell(f"{row['calibrated']:,.0f}"),
        "{units}": PageCell(f"{row['patients']:,.0f}", f"{row['without']:.0f} without" if row["without"] > 0 else ""),
        "Threshold": PageCell(_decimal(row["quantile"], 3)),
        "Missed": PageCell(_percent(missed.mean), between(missed, metric_named(RATE)).removeprefix(DASH)),
        "Mask size": PageCell(_decimal(row["size"], 2), " to ".join(sizes) if DASH not in sizes else ""),
    }


def _decimal(x: float, digits: int) -> str:
    """Return a number as text; a dash for NaN, and "none possible" for infinity: no guarantee can be given."""
    if math.isinf(x):
        return "none possible"
    return DASH if math.isnan(x) else f"{x:.{digits}f}"
