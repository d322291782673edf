"""The sentences that answer a study's question.

One version is for authors, with all uncertainty; another has three sentences for clinicians.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..algorithms import Collaboration
from ..analysis import verdict as conclusions
from ..analysis.conditions import ALL, Condition
from ..analysis.controls import Controls
from ..analysis.findings import Findings
from ..analysis.values import DASH, Value, inner, listed, number, spread
from ..analysis.verdict import FEWEST_SITES, Reason, Recovery, Verdict, Word, verdict
from ..core.spelling import plural
from . import comparison_section
from .html import Tile
from .phrases import (
    HOSPITALS,
    Nouns,
    capital,
    change_interval,
    home_of_all,
    interval,
    joined,
    level,
    noun,
    of_seeds,
    over,
    percent,
    points,
    signed,
    verb,
    why_none,
)
from .verdict_texts import Told

IN_WORDS = 6
"""The most conditions (algorithm x batch norm policy x settings) that get sentences of their own; a table lists all."""
ONE_BY_ONE = 3
"""If a study compares more methods than this, its answer begins with one sentence about all of them."""


@dataclass(frozen=True)
class Answer:
    """The answer of a study in sentences, mainly about one condition (algorithm x batch norm policy x settings).

    Attributes
    ----------
    opening : sentences about all conditions; empty if there are few
    compared : sentences on how the conditions differ; empty if `opening` says it
    lead : sentences about the leading condition, which `leading` selects without looking at results
    others : sentences about each of the next conditions
    tiles : the leading condition's scores at internal and external sites
    further : number of conditions without a sentence
    condition : the leading condition
    judged : the verdict on the leading condition
    led : the leading condition's name and, of several conditions, the reason why it leads
    """

    opening: str
    compared: str
    lead: str
    others: list[str]
    tiles: list[Tile]
    further: int
    condition: Condition
    judged: Verdict
    led: str


def leading(findings: Findings, conditions: Sequence[Condition]) -> tuple[Condition, str]:
    """Select the condition that a page is mainly about, and say in words why.

    A condition is an algorithm with batch norm policy and settings. The first one of the study's declared primary
    comparison is selected, or else the first federated one in the order of the study file. Results play no part, not
    even validation at internal sites: a training that was lucky there tends to be lucky at external sites, too. The
    words have the field {} for the number of conditions.
    """
    if declared := conclusions.declared(findings):
        first = next(one for one in conditions if one in declared[0].first.members)
        return first, "named first by the declared comparison, of {} conditions"
    federated = (one for one in conditions if type(one.run.algorithm.collaboration) is Collaboration)
    return next(federated, conditions[0]), "first of {} conditions"


@functools.lru_cache(maxsize=1)  # many sections of one page ask, and the answer lies in the plan
def by_lead(findings: Findings) -> tuple[list[Condition], list[Condition]]:
    """Return the conditions that the page is mainly about, and all other conditions.

    A condition is an algorithm with batch norm policy and settings. The first list has one condition for each partition
    that numbers are averaged over, as when each site is held out in turn.
    """
    led = findings.alike(leading(findings, list(distinct(findings).values()))[0])
    return led, [condition for condition in findings.conditions if condition not in led]


def answer(findings: Findings, nouns: Nouns = HOSPITALS, faulty: bool = False) -> Answer:
    """Return the answer of a study in sentences; of many conditions, their comparison comes first.

    A condition is an algorithm with batch norm policy and settings. Numbers are averaged over partitions if each of
    them holds out other sites. With `faulty` data, the sentences do not suggest what would narrow an interval. `nouns`
    are the study's words for sites and patients.
    """
    conditions = list(distinct(findings).values())
    compared = comparison_section.sentences(findings, nouns.units)
    opening = ""
    many = len(conditions) > ONE_BY_ONE
    first, why = leading(findings, conditions)
    # False sorts first, and the sort is stable: the leading condition comes first, the others keep their order
    conditions.sort(key=lambda condition: condition is not first)
    title = findings.title(first)
    if len(first.inferences) > 1:
        title += f", {findings.name(first.level_inference)}"
    led = f"{title}, {why.format(len(conditions))}" if len(conditions) > 1 else title
    judged = [verdict(findings, condition) for condition in conditions]
    if faulty:
        judged = [replace(found, needs=()) for found in judged]
    outside = any(condition.partition.external for condition in findings.conditions)
    # a page of many conditions opens with their comparison instead of ending with it
    if many:
        opening, compared = compared, ""
        tested = [found for found in judged if found.reason is not Reason.ALONE]
        if outside and len(tested) > 1:
            opening = joined(opening, all_of(tested))
    texts = []
    for condition, found in list(zip(conditions, judged, strict=True))[:IN_WORDS]:
        title = findings.title(condition)
        texts.append(f"{title}: {sentences(findings, condition, found, nouns)}")
    if not outside:
        for n, condition in enumerate(conditions[:IN_WORDS]):
            if condition.run.algorithm.collaboration.has_global_model:
                texts[n] = joined(texts[n], NO_EXTERNAL_SITE)
                break
    texts[0] = joined(texts[0], these_only(findings, conditions[0], judged[0], nouns))
    numbers = tiles(findings, conditions[0], nouns)
    further = len(conditions) - len(texts)
    return Answer(opening, compared, texts[0], texts[1:], numbers, further, conditions[0], judged[0], led)


def sentences(findings: Findings, condition: Condition, judged: Verdict, nouns: Nouns) -> str:
    """Return the sentences about one condition (algorithm x batch norm policy x settings), beginning with its verdict.

    They give the headline metric at internal and external sites, and what test-time adaptation changes. `judged` is the
    verdict, and `nouns` are the study's words for sites and patients.
    """
    key = condition.level_inference
    metric = findings.headline
    levels = {
        role: findings.effect("level", condition, key, role, across=findings.averaged)
        for role in ("internal", "external")
    }
    if not any(value.known for value in levels.values()):
        return "no run of it has been scored, or its headline metric is defined at none of its sites."
    at_home, outside = (
        f"{spread(value, metric)}{percent(metric)}{of_seeds(value, condition)} at {_sites(findings, condition, role)}"
        for role, value in levels.items()
    )
    statistics = "training statistics" if key == findings.baseline else findings.name(key)
    inside = f"{inner(metric)} {at_home}, with {statistics}."
    together = condition.run.algorithm.collaboration
    if not together.has_global_model:
        return f"{inside} {capital(together.apart)}: {together.moves}."
    if not condition.partition.external:
        return inside
    where = [outside] if levels["external"].known else []
    if condition.tests_inside:
        where.insert(0, at_home)
    text = f"{metric.title} {listed(where)}, with {statistics}."
    change = [*_change(findings, condition, judged, nouns.units)]
    change += _inside(findings, condition, named=not change)
    return " ".join([Told(findings, condition, judged, nouns).said("detail"), text, *change])


def _change(findings: Findings, condition: Condition, judged: Verdict, unit: str) -> Iterator[str]:
    """Yield a sentence on how test-time adaptation changes the score at external sites.

    The change is relative to the baseline: batch norm with training statistics. `judged` is the verdict on the
    condition, and `unit` names the resampled units, such as patients.
    """
    key = condition.compared_inference
    if findings.baseline is None or key is None or (not judged.loss.known and condition.tests_inside):
        return
    gain = findings.gain(condition, key, "external", across=findings.averaged)
    if not gain.known:
        yield f"{findings.name(key)} has not been scored."
        return
    why = f" ({why_none(findings, condition, unit, ('external',))})"
    if judged.reason in (Reason.HOME_WITHOUT_INTERVAL, Reason.WITHOUT_INTERVAL):
        # the verdict has just told why
        why = ""
    yield f"{findings.name(key)} {_gain(findings, gain, judged, why, unit)}."


def _gain(findings: Findings, gain: Value, judged: Verdict, why: str, unit: str) -> str:
    """Return the verb phrase that says how much an inference method gains or loses at external sites.

    `gain` is its score minus that of the baseline, and `why` explains a missing interval. `judged` is the verdict on
    the trained method, and `unit` names the resampled units, such as patients.
    """
    amount = points(abs(gain.mean), findings)
    shown = _shown(gain.mean)
    around = change_interval(gain, findings, unit)
    aside = f" ({around})"
    if math.isnan(gain.low):
        aside = f", but no interval can be given{why}"
    elif shown and gain.low <= 0 <= gain.high:
        aside += ", but the interval includes no change at all"
    if shown == 0:
        return f"changes nothing at external sites{aside}"
    if shown < 0:
        costs = "does not help: it costs" if gain.high < 0 else "costs"
        return f"{costs} {amount} at external sites{aside}"
    if judged.recovery is not Recovery.RECOVERS:
        return f"adds {amount} at external sites{aside}"
    part = f"{amount} of the external loss"
    if shown > _shown(judged.loss.mean):
        part = f"more than the external loss of {points(judged.loss.mean, findings)}: +{amount}"
    return f"recovers {part}, {around}"


def _inside(findings: Findings, condition: Condition, named: bool) -> Iterator[str]:
    """Yield a sentence on how test-time adaptation changes the score at internal sites and the remaining loss.

    The inference method is `named`, or else called "it" because the sentence before names it.
    """
    key = condition.compared_inference
    metric = findings.headline
    across = findings.averaged
    if findings.baseline is None or key is None:
        return
    gain = findings.gain(condition, key, "internal", across=across)
    if not gain.known or _shown(gain.mean) == 0:
        return
    changes = "adds" if gain.mean > 0 else "costs"
    subject = findings.name(key) if named else "it"
    text = f"At internal sites {subject} {changes} {number(abs(gain.mean), metric)}"
    if not math.isnan(gain.std):
        text += f" ± {number(gain.std, metric)}"
    if metric.percent:
        text += " points"
    before, after = (findings.gap(condition, k, across) for k in (findings.baseline, key))
    if before.known and after.known:
        text += f", and the gap with {findings.name(key)} is {points(after.mean, findings)}"
        if _shown(after.mean) > max(_shown(before.mean), 0):
            text += f", larger than the {number(before.mean, metric)} without it"
    yield f"{text}."


def tiles(findings: Findings, condition: Condition, nouns: Nouns) -> list[Tile]:
    """Return the large numbers below the answer: the headline metric at internal and external sites, with intervals.

    If the study compares a test-time adaptation method with the baseline, its score and gain at external sites follow.
    `nouns` are the study's words for sites and patients.
    """
    key = condition.level_inference
    compared = condition.compared_inference

    def level_tile(role: str, inference: str, notes: Iterable[str] = ()) -> Tile:
        value = findings.effect("level", condition, inference, role, across=findings.averaged)
        text = level(value.mean, findings.headline) if value.known else DASH
        place = "at home" if role == "internal" else "outside"
        label = f"{findings.headline.title} {place}"
        if inference != findings.baseline:
            label = f"{place.capitalize()}, adapted ({findings.name(inference)})"
        seeds = f"{value.seeds} of {len(condition.seeds)} seeds" if value.seeds != len(condition.seeds) else ""
        own = [interval(value, findings.headline, over(value, nouns.units)), seeds] if value.known else []
        return Tile(label, text, "; ".join(filter(None, [*own, *notes])))

    made = []
    if condition.tests_inside:
        made.append(level_tile("internal", key, [home_of_all(findings, condition, nouns)]))
    if condition.partition.external:
        made.append(level_tile("external", key))
        if findings.baseline in condition.inferences and compared is not None:
            gain = findings.gain(condition, compared, "external", across=findings.averaged)
            around = "no interval" if math.isnan(gain.low) else signed(gain, findings)
            gained = f"gain {points(gain.mean, findings, sign=True)} ({around})"
            made.append(level_tile("external", compared, [gained] if gain.known else ()))
    return made


def _sites(findings: Findings, condition: Condition, role: str) -> str:
    """Return the sites of a role in words: `external sites`, or how many of them have a defined metric.

    For example `2 of 3 external sites`.
    """
    alike = findings.alike(condition)
    everywhere = {site for member in alike for site in getattr(member.partition, role)}
    left_out = everywhere & set(findings.left_out(role, conditions=alike))
    if not left_out:
        return f"{role} sites"
    return f"{len(everywhere) - len(left_out)} of {len(everywhere)} {role} sites"


def _shown(x: float) -> float:
    """Round a score to three decimals as pages show it, so that a change too small to be visible counts as zero."""
    return round(x, 3)


NO_EXTERNAL_SITE = "The study has no external site, so it cannot say how the model travels."


def these_only(findings: Findings, condition: Condition, judged: Verdict, nouns: Nouns) -> str:
    """Return a warning that a verdict on fewer than FEWEST_SITES hospitals says nothing about others; else ''.

    External sites whose hospital trained with another scanner or department do not count as other hospitals. The result
    is '' as well if the verdict is "cannot tell". `judged` is the verdict, and `nouns` are the study's words for sites
    and patients.
    """
    outside = nouns.outside(one.partition for one in findings.alike(condition))
    apart = [site for site in judged.sites if site in outside.apart]
    if judged.word is Word.CANNOT_TELL or len(apart) >= FEWEST_SITES:
        return ""
    others = plural(nouns.other)
    if outside.shared:
        return (
            f"Outside, {nouns.counted(apart or outside.sites, owned=False)} alone can say little about other {others}."
        )
    sites = "One external site says" if len(judged.sites) == 1 else f"{len(judged.sites)} external sites say"
    return f"{sites} nothing about other {others}."


def all_of(verdicts: list[Verdict]) -> str:
    """Return a sentence that counts how many compared methods hold up, lose, or cannot be judged at external sites.

    `verdicts` has one verdict for each condition (algorithm x batch norm policy x settings).
    """
    words = [verdict.word for verdict in verdicts]
    holds = words.count(Word.HOLDS)
    loses = words.count(Word.LOSES)
    unclear = len(words) - holds - loses
    if unclear == len(words):
        return f"The data cannot tell for any of the {len(words)} conditions."
    parts = []
    where = "at external sites"
    if holds:
        parts.append(f"{holds} {verb(holds, 'hold')} up {where}")
        where = "there"
    if loses:
        parts.append(f"{loses} {verb(loses, 'lose')} {where}")
    if unclear:
        parts.append(f"for {unclear} the data cannot tell")
    return f"Of {len(words)} conditions {listed(parts)}."


def beside_control(controls: Controls, unit: str = "patients") -> str:
    """Return a warning if nothing significantly beats a classifier without a network at external sites; else ''.

    A condition (algorithm x batch norm policy x settings) is significantly better if the 95% interval of its paired
    difference from this control is above zero, with any inference method that uses no labels. The result is '' without
    a control. `unit` names the resampled units, such as patients.
    """
    compared = list(_differences(controls))
    if not compared or any(difference.low > 0 for _, _, difference in compared):
        return ""
    findings = controls.findings
    seen = f"{controls.about.sees} only, without a network"
    if all(math.isnan(difference.low) for _, _, difference in compared):
        return (
            f"Nobody can tell whether any condition is better at external sites than a control that sees {seen}: "
            "no interval can be given."
        )
    condition, key, _ = max(compared, key=lambda entry: entry[2].mean)
    metric = findings.headline
    control = controls.level(ALL if findings.averaged else condition.run.partition_id, "external")
    best = findings.effect("level", condition, key, "external", across=findings.averaged)
    around = interval(control, metric, f"over {unit}", otherwise="")
    return (
        f"No condition is surely better at external sites than a control that sees {seen}. Its {inner(metric)} there "
        f"is {level(control.mean, metric)}{around and f' ({around})'}; the best condition, "
        f"{findings.title(condition)} with {findings.name(key)}, has "
        f"{level(best.mean, metric)}."
    )


def shortcut(controls: Controls, condition: Condition, key: str) -> str:
    """Return a warning that the network may have learnt a shortcut, as judged by a control without a network; else ''.

    There is a warning if the control's loss from internal to external sites is significantly above zero and its mean
    exceeds the margin, or if the network is not significantly better than the control at internal sites. `key` is the
    id of the network's inference method.
    """
    findings = controls.findings
    partition, _ = controls.beside(condition)
    home, outside = (controls.level(partition, role) for role in ("internal", "external"))
    gap = findings.better(controls.gap(partition))
    control = controls.about
    parts = []
    if gap.low > 0 and gap.mean > findings.margin:
        at_home, elsewhere = (level(value.mean, findings.headline) for value in (home, outside))
        parts.append(
            f"{control.sees.capitalize()} alone, without a network, {control.does} at home ({at_home}) and much less "
            f"outside ({elsewhere}). The network may have learnt the same shortcut: {control.shortcut}."
        )
    if no_better_at_home(controls, condition, key):
        parts.append(f"At home the network is not shown to see more than {control.sees} alone.")
    return " ".join(parts)


def no_better_at_home(controls: Controls, condition: Condition, key: str) -> bool:
    """Return True if the network is not significantly better at internal sites than the control without a network.

    The test is whether the 95% interval of their paired difference reaches zero or below; without an interval, the
    result is False. `key` is the id of the network's inference method.
    """
    _, which = controls.beside(condition)
    return controls.difference(which, key, "internal").low <= 0


def beaten(controls: Controls, condition: Condition, key: str) -> str:
    """Return a sentence on how far a classifier without a network is significantly better than the network; else ''.

    External sites are compared first, then internal ones. Significant means that the 95% interval of the paired
    difference excludes zero. `key` is the id of the network's inference method.
    """
    findings = controls.findings
    _, which = controls.beside(condition)
    for role, where in (("external", "outside"), ("internal", "at home")):
        difference = controls.difference(which, key, role)
        if difference.high < 0:
            by = number(-difference.high, findings.headline), points(-difference.low, findings)
            return (
                f"{controls.about.sees.capitalize()} alone, without a network, do better {where}, by {' to '.join(by)}."
            )
    return ""


def _differences(controls: Controls) -> Iterator[tuple[Condition, str, Value]]:
    """Yield each condition with an inference id and the difference of its score from the control's.

    A condition is an algorithm with batch norm policy and settings; the control is a classifier without a network.
    Pairs without a known difference are skipped.
    """
    for id_, condition in distinct(controls.findings).items():
        for key in condition.inferences:
            difference = controls.difference(id_, key)
            if difference.known:
                yield condition, key, difference


def distinct(findings: Findings) -> dict[str, Condition]:
    """Map ids to conditions; if numbers are averaged over partitions, map each family id to its first condition.

    A family is a set of conditions (algorithm x batch norm policy x settings) that differ in their partition only.
    """
    conditions: dict[str, Condition] = {}
    for condition in findings.conditions:
        id_ = condition.id
        # conditions of a family differ in the sites held out, over which numbers are averaged
        if findings.averaged:
            id_ = condition.family
        conditions.setdefault(id_, condition)
    return conditions


NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NAMED = 4
"""The most external sites that a sentence names; more are only counted."""
INVENTED = "The {samples} are invented and show nothing about any {other}; if they were real, "
FAULTY = "Conclude nothing before the faults of the data that stand at the top of this page are corrected."


def three_sentences(
    findings: Findings,
    condition: Condition,
    judged: Verdict,
    nouns: Nouns,
    faulty: bool,
    synthetic: bool,
    beaten: str = "",
) -> list[str]:
    """Return three sentences for clinicians: what was tested where, what the result is, and what may be concluded.

    They hold at most three numbers, apart from digits in site names. If the data are `faulty`, nothing may be
    concluded. `beaten` is the text of a classifier without a network that does better; empty if none does. The list is
    empty if nothing has been scored. `judged` is the verdict, and `synthetic` says that the images are invented.
    """
    if not (judged.home.known or judged.loss.known or judged.reason is Reason.HOME_UNTESTED):
        return []
    told = Told(findings, condition, judged, nouns, beaten)
    concluded = told.said("concluded")
    last = FAULTY if faulty else f"{INVENTED.format_map(told.fields) if synthetic else 'So '}{concluded}"
    return [_tested(findings, condition, nouns), told.said("came_out"), last]


def in_letters(count: int) -> str:
    """Return a number up to twelve as a word, and a larger one in digits with thousands separators."""
    return NUMBERS[count] if count < len(NUMBERS) else f"{count:,}"


def _tested(findings: Findings, condition: Condition, nouns: Nouns) -> str:
    """Return a sentence that says which sites trained the model, and on whose images it was tested.

    `nouns` are the study's words for sites and patients.
    """
    inside = condition.partition.internal
    outside = nouns.outside(member.partition for member in findings.alike(condition))
    role = "external" if outside.sites else "internal"
    value = findings.effect("level", condition, condition.level_inference, role, across=findings.averaged)
    people = f"{value.patients:,.0f} {nouns.units}" if value.patients > 0 else nouns.units
    there = nouns.counted(outside.sites, in_letters, owned=not outside.shared)
    shared = f"; {outside.shared}" if outside.shared else ""
    together = condition.run.algorithm.collaboration.has_global_model
    if findings.averaged:
        return (
            f"{capital(there)} were left out of the training in turn, and each was then a test for "
            f"the model of the others, on {people}{shared}."
        )
    trained = f"{capital(nouns.counted(inside, in_letters))} trained a model together"
    if not together:
        trained = f"{capital(nouns.counted(inside, in_letters))} trained their own models"
    if not outside.sites:
        key = condition.level_inference
        scored = [site for site in inside if findings.value(condition, role, site, key).seeds]
        where = f"the same {noun(len(inside), nouns.each(inside))}"
        if 0 < len(scored) < len(inside):  # others have sent no rows
            where = listed(scored)
        return f"{trained}; it was tested on {people} of {where}."
    names = f" ({listed(outside.sites)})" if len(outside.sites) <= NAMED else ""
    # a scanner whose hospital trained with another one cannot be said to have taken no part
    where = "outside" if shared else "that took no part"
    return f"{trained}; it was tested on {people} of {there} {where}{names}{shared}."


def _marks(findings: Findings, condition: Condition, units: str) -> str:
    """Explain the round marks and bars of the answer's picture: mean score and 95% interval.

    With a single training, the text says that the mark is about this one model and not about the algorithm. `units`
    names the resampled units, such as patients.
    """
    name = inner(findings.headline)
    if len(condition.seeds) == 1:
        return (
            f"The {name} of this one model, not of the method that made it: trained once more, it may lie outside of "
            f"the bar. The bar is its 95% interval: of a hundred such tests with other {units}, about 95 have a bar "
            f"that holds the true value of this model. Few {units} make it long."
        )
    return (
        f"The mean {name} of trainings that differ by chance alone. The bar is its 95% interval: of a hundred studies "
        f"with other test {units} and other trainings on the same training {units}, about 95 have a bar that holds "
        f"the true value. Few {units}, or trainings that disagree, make it long."
    )


def how_to_read(
    findings: Findings, condition: Condition, nouns: Nouns, adapted: bool, control: bool
) -> Iterator[tuple[str, str]]:
    """Yield pairs of a part of the first screen and its explanation, for readers without statistics.

    `adapted` and `control` say whether the picture has marks for test-time adaptation and for a control without a
    network.
    """
    yield (
        "Rows",
        f"One for each {nouns.place}, with the number of tested {nouns.units}. "
        + (
            f"Each was tested by a model that the other {plural(nouns.place)} trained (outside). At home is "
            f"{home_of_all(findings, condition, nouns)}."
            if findings.averaged
            else "Those above the line trained the model (at home), those below did not (outside)."
        ),
    )
    yield "Round marks and bars", _marks(findings, condition, nouns.units)
    if adapted:
        yield (
            "Diamonds",
            f"The same model, adapted to the {nouns.samples} of that {nouns.place} without knowing any "
            f"{'diagnosis' if nouns.medical else 'label'}.",
        )
    if control:
        yield (
            "Squares",
            f"A simple rule that sees {findings.plan.study.task.control.sees} only. A model that is no better has not "
            "been shown to see more.",
        )
    blind = findings.blind(condition, condition.level_inference, "external")
    if not math.isnan(blind.chance):
        yield (
            "Dotted lines",
            "What guessing reaches, and what giving everybody the commonest answer reaches. In the row of the loss: "
            "with so much lost, the model is no better than a guess.",
        )
    if findings.margin:
        yield (
            "Grey band",
            f"The margin: a loss of {points(findings.margin, findings)} that the study counts as holding up. It holds "
            "up if the whole bar of the loss ends before the band does. If not, it loses if the whole bar is right of "
            "zero, and how much is open where the bar begins in the band. Else nobody can tell.",
        )
    yield (
        "ok, suspect, problem",
        "Checks that no reader can make: ok found nothing, suspect needs a look, a problem makes scores untrue, and "
        "unknown could not be checked.",
    )
