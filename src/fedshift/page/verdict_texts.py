"""The texts of a page for each possible verdict, and the change to the study that it suggests next."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from ..analysis.comparisons import FEWEST_TRAININGS
from ..analysis.conditions import Condition
from ..analysis.controls import Controls
from ..analysis.estimates import FEWEST
from ..analysis.findings import Findings
from ..analysis.values import inner, listed, number
from ..analysis.verdict import Recovery, Verdict, Word, incomparable
from ..core.spelling import plural
from .phrases import HOSPITALS, Nouns, blind, change_interval, interval, level, over, points, signed, why_none

SITES = 4
"""The most sites that a sentence names."""


class Text(NamedTuple):
    """The texts for one kind of verdict; fields in braces are filled with numbers and names by `Told`.

    Attributes
    ----------
    word, tone : headline of the first screen, and whether its style is good, bad or plain
    sentence : meaning of the headline
    came_out, concluded : for clinicians, the result and what may be concluded from it
    then : the suggested next action, if none of `steps` applies
    steps : names of changes to the study file that may help (see `next_step`), in order of preference
    detail : the verdict as the rest of a sentence that begins with the name of a method
    """

    word: str
    tone: str
    sentence: str
    came_out: str
    concluded: str
    then: str
    steps: tuple[str, ...] = ()
    detail: str = ""


_FEW = "At the {places} that trained it, {home_is}, but too few {units} were tested to say how sure the result is."
_FEWER = "you may not conclude whether it holds up in {these}: more {units} must be tested first."
_ALIKE = (
    "you may expect it to work about as well in {these} as at home, but this says nothing about other {others}{use}."
)
_NO_WORSE = (
    "you may expect it to work at least as well in {these} as at home, but this says nothing about other {others}{use}."
)
_HOLDS = "holds up at {outside}: the loss is {signed_loss} ({change}), {limit} throughout."
_LOSES = "loses {loss} at {outside} ({change}){recovery}."
_TEST_ELSEWHERE = "before it is used in another {other}, test it there{apply}."
_ADD_ONE = "train with such a {place} as well, and test in another one."
_MORE = "test more {units}: an interval takes {fewest} of each class at a {place}."
_DIFFERS = "look at what differs between these {places}, such as the device or who is tested there."
_FINISH = "finish the runs: What is missing has the command."
_LESS_WELL = "you may conclude that it works less well in {these} than at home, but not"

TEXTS = {
    "HOLDS": Text(
        "Holds up",
        "good",
        "Outside it is at most {high} worse than at home; the margin is {margin}.",
        "Outside, {its} was at most {high} worse than at home, even allowing for chance.",
        _ALIKE,
        _TEST_ELSEWHERE,
        detail=_HOLDS,
    ),
    "HOLDS_WITH_A_LOSS": Text(
        "Holds up",
        "good",
        "Outside it is at most {high} worse than at home; the margin is {margin}. That something is lost is sure.",
        "Outside, {its} was {loss} worse than at home, and at most {high}, even allowing for chance.",
        "you may expect it to work nearly as well in {these} as at home, with a small loss, but this says nothing "
        "about other {others}{use}.",
        _TEST_ELSEWHERE,
        detail=_HOLDS,
    ),
    "HOLDS_WITHOUT_LOSS": Text(
        "Holds up",
        "good",
        "Outside it is surely no worse than at home.",
        "Outside, {its} was no worse than at home, even allowing for chance.",
        _NO_WORSE,
        _TEST_ELSEWHERE,
        detail=_HOLDS,
    ),
    "BEATEN": Text(
        "A simple classifier is better",
        "plain",
        "{beaten} From home to outside the network {kept}{margin_beside}.",
        "A simple classifier without a network did better; from home to outside the network {kept}, even allowing for "
        "chance.",
        "you may not conclude that a network is of use: it works about as well in {these} as at home, but a simple "
        "classifier without a network works better.",
        "try more rounds or pretrained weights; until the network is better, the classifier is the better choice here.",
        steps=("rounds",),
        detail=_HOLDS,
    ),
    "LOSES": Text(
        "Loses",
        "bad",
        "Outside {it} is {loss} worse than at home (at least {least}){size}.{any_loss}{worst}",
        "Outside, {its} was {loss} worse than at home, and at least {low} of that are hardly chance.",
        f"{_LESS_WELL} how it would do in any other {{other}}.",
        _ADD_ONE,
        steps=("adapt",),
        detail=_LOSES,
    ),
    "LOSES_OPEN": Text(
        "Loses, how much is open",
        "bad",
        "Outside {it} is surely worse than at home, by {least} to {high}; the margin is {margin}.{worst}",
        "Outside, {its} was {loss} worse than at home; that something is lost is hardly chance, how much is open.",
        f"{_LESS_WELL} whether so much is lost that it matters, or how it would do in any other {{other}}.",
        _ADD_ONE,
        steps=("adapt",),
        detail=_LOSES,
    ),
    "NOT_COMPARABLE": Text(
        "Cannot tell",
        "plain",
        "At {where} all test samples are of one class, so that the scores there and elsewhere differ in kind.",
        "At the {places} that trained it, {home_is}; outside, all {samples} of a {place} are of one class, and a score "
        "there means something else.",
        "you may not compare the scores at home with those outside, and conclude nothing.",
        "test {samples} of each class at {where}.",
        detail="cannot tell: {metric} compares classes, and at {everywhere} all test samples are of one class, or it "
        "is not defined.",
    ),
    "BELOW_CHANCE": Text(
        "Worse than guessing",
        "bad",
        "At {below} it does worse than a guess. Are the labels coded the other way round there?",
        "At {below} its answers point the wrong way, and a guess would do better.",
        "you may conclude nothing until somebody has checked how the labels are coded there.",
        "compare the labels of a few {samples} at {below} with where they come from.",
        detail="cannot tell: it is worse than guessing at {below}. Are the labels coded the other way round there?",
    ),
    "HOME_FAILS": Text(
        "Does not work at home",
        "bad",
        "At home its {gate} is {gate_home}; {blind} has {guess}.{hint}",
        "Even at the {places} that trained it, its {gate} was {gate_home}, and {blind} would have reached {guess}.",
        "you may conclude that it is of no more use at home than {blind}, and need not ask how it does elsewhere.",
        "check labels, learning rate and rounds: it must work at home first.",
        steps=("weights", "rounds"),
        detail="cannot tell: it does not work at home, where {gate} is {gate_home} ({above}).",
    ),
    "HOME_IN_DOUBT": Text(
        "Not shown to work at home",
        "plain",
        "At home its {gate} is {gate_home}, which may be no better than {blind} ({guess} there).{hint}",
        "Even at the {places} that trained it, its {gate} was {gate_home}, which may be no better than the {guess} of "
        "{blind}.",
        "you may not conclude that it is of more use than {blind}, at home or elsewhere.",
        "show first that it works at home; until then, do not rely on it anywhere.",
        steps=("weights", "rounds", "folds", "seeds"),
        detail="cannot tell: it is not shown to work at home, where {gate} is {gate_home} ({above}).{more}",
    ),
    "WEAK_AT_HOME": Text(
        "Weak at home, and as weak outside",
        "plain",
        "At home its {gate} is {gate_home}, hardly above the {guess} of {blind}; outside it loses at most {high}.",
        "Even at the {places} that trained it, its {gate} was {gate_home}, hardly above the {guess} of {blind}, and "
        "outside it was as weak.",
        "you may conclude that it travels, but not that it is of much use anywhere.",
        "improve it at home first, such as with more rounds or pretrained weights.",
        steps=("weights", "rounds"),
        detail="is weak at home, where {gate} is {gate_home} ({above}), and as weak at {outside}: the loss is "
        "{signed_loss} ({change}).",
    ),
    "HOME_WITHOUT_INTERVAL": Text(
        "Cannot tell",
        "plain",
        "No interval can be given: {why_none}.",
        _FEW,
        _FEWER,
        _MORE,
        steps=("interval", "folds"),
        detail="cannot tell: at home {metric} is {home}, but no interval can be given ({why_none}).",
    ),
    "WITHOUT_INTERVAL": Text(
        "Cannot tell",
        "plain",
        "No interval can be given: {why_none}.",
        _FEW,
        _FEWER,
        _MORE,
        steps=("interval", "folds"),
        detail="cannot tell: the loss outside is {signed_loss}, but no interval can be given ({why_none}).",
    ),
    "SITES_DISAGREE": Text(
        "Depends on the {place}",
        "plain",
        "Outside it is surely worse at one {place} and surely better at another.",
        "It did worse than at home in one {place} and better in another, and neither is chance.",
        "you may read each {place} by itself, but conclude nothing from their mean, and nothing about other {others}.",
        _DIFFERS,
        detail="cannot tell from the mean: it loses {loses_at} and gains {gains_at}. The mean loss of {signed_loss} "
        "says nothing of either.",
    ),
    "SITE_FAILS": Text(
        "Depends on the {place}",
        "bad",
        "At {worst_site} it is {worst_loss} worse than at home, surely more than the margin of {margin}; on average "
        "over all {places} outside it is {signed_loss} worse.",
        "At {worst_site} {its} was {worst_loss} worse than at home, which is hardly chance.",
        "you may not expect it to work at {worst_site} as it does at home, whatever the mean over {places} says, and "
        "conclude nothing about other {others}.",
        "look at what is different at {worst_site}, such as the device or who is tested there.",
        detail="cannot tell from the mean: it loses {worst_loss} at {worst_site} ({worst_change}), surely more than "
        "the margin of {margin}. The mean loss of {signed_loss} hides it.",
    ),
    "TOO_WIDE": Text(
        "Cannot tell",
        "plain",
        "Outside it may be {high} worse than at home, or {or_better}.",
        "Outside, {its} came out {loss} {side} than at home, but with other {units} or another training it may be "
        "{high} worse, or {or_else}.",
        "you may conclude neither that it holds up in {these} nor that it fails there, and nothing about other "
        "{others}.",
        "more {needed}; until then, neither rely on it nor reject it.",
        steps=("seeds", "folds"),
        detail="cannot tell: the loss outside is {signed_loss}, but its 95% interval ({signed} {over}) includes "
        "{zero}.{more}",
    ),
    "ALONE": Text(
        "No common model",
        "plain",
        "Each {place} has its own model, which no other {place} can use.",
        "There, {home_is}.",
        "you may not conclude how any of these models would do in another {other}.",
        "train one model for all, such as with `algorithm: fedavg`.",
    ),
    "NO_EXTERNAL_SITE": Text(
        "No {place} outside",
        "plain",
        "All {places} of this study took part in the training.",
        "There, {home_is}.",
        "you may not conclude how it would do in a {other} that took no part.",
        "test it in a {other} that took no part.",
        steps=("outside",),
    ),
    "HOME_UNTESTED": Text(
        "Nothing to compare with",
        "plain",
        "The {places} that trained keep no test {samples}.",
        "The {places} that trained it kept no {samples} for a test, so that there is nothing to compare with.",
        "you may read the scores outside as they are, but not conclude that anything was lost.",
        "keep {samples} for a test at home.",
        steps=("tests",),
        detail="cannot tell: there are no test samples at home to compare with.",
    ),
    "NOT_SCORED": Text(
        "No result yet",
        "plain",
        "No run of this study has been scored.",
        _FEW,
        _FEWER,
        _FINISH,
    ),
    "INCOMPLETE": Text(
        "No result yet",
        "plain",
        "Runs or predictions are missing, so that {places} inside and outside cannot be compared yet.",
        "At the {places} that trained it, {home_is}; runs or predictions are missing, and nothing can be compared yet.",
        "you may conclude nothing before the study is complete.",
        _FINISH,
    ),
}
"""The texts of each kind of verdict, by the names that `outcome` returns."""


def outcome(findings: Findings, condition: Condition, judged: Verdict, beaten: str = "") -> str:
    """Return the key in TEXTS for a verdict, such as HOLDS, LOSES_OPEN or INCOMPLETE.

    `beaten` is a text saying that a classifier without a network does better, or ''. A model that holds up at external
    sites is then not shown as good. `judged` is the verdict.
    """
    loss = judged.loss
    if judged.word is Word.HOLDS and beaten:
        return "BEATEN"
    if judged.word is Word.HOLDS and round(loss.high, 3) <= 0:
        return "HOLDS_WITHOUT_LOSS"
    if judged.word is Word.HOLDS:
        return "HOLDS_WITH_A_LOSS" if loss.low > 0 else "HOLDS"
    if judged.word is Word.LOSES:
        return "LOSES_OPEN" if judged.open else "LOSES"
    name = judged.reason.name if judged.reason else "NOT_SCORED"
    key = condition.level_inference
    if name == "NOT_SCORED" and any(findings.scored(one, key) for one in findings.alike(condition)):
        return "INCOMPLETE"
    return name


class Told:
    """The texts for the verdict on one condition, with numbers and names filled in.

    A condition is an algorithm with batch norm policy and settings. `nouns` are the study's words for sites and
    patients, and `beaten` is as in `outcome`.
    """

    def __init__(
        self,
        findings: Findings,
        condition: Condition,
        judged: Verdict,
        nouns: Nouns = HOSPITALS,
        beaten: str = "",
    ) -> None:
        self.findings = findings
        self.condition = condition
        self.judged = judged
        self.nouns = nouns
        self.unit = nouns.units
        self.text = TEXTS[outcome(findings, condition, judged, beaten)]
        self.fields = self._numbers() | self._at_home() | self._places() | {"beaten": beaten}

    def said(self, what: str) -> str:
        """Return the text of a field of `Text`, such as "sentence", with its numbers and names filled in."""
        return str(getattr(self.text, what)).format_map(self.fields)

    def _numbers(self) -> dict[str, str]:
        """Return the values of text fields about the loss at external sites, its interval and the margin."""
        findings, loss = self.findings, self.judged.loss
        its = f"its {inner(findings.headline)}"
        margin = points(findings.margin, findings) if findings.margin else "none"
        low, high, mean = (points(abs(x), findings) for x in (loss.low, loss.high, loss.mean))
        better = loss.mean < 0
        needs = [self.unit if need == "patients" else need for need in self.judged.needs]
        return {
            "it": "it" if findings.headline.percent else its,
            "its": its,
            "metric": inner(findings.headline),
            "loss": mean,
            "signed_loss": points(loss.mean, findings),
            "low": low,
            "high": high,
            "least": number(loss.low, findings.headline),
            "margin": margin,
            "margin_beside": f"; the margin is {margin}" if findings.margin else "",
            "size": f", {size}" if (size := magnitude(findings, self.judged)) else "",
            "any_loss": "" if findings.margin else " There is no margin: any sure loss counts.",
            "limit": f"under the margin of {margin}" if findings.margin else "below zero",
            "zero": f"both no loss and {margin}, the margin" if findings.margin else "no loss",
            "side": "better" if better else "worse",
            "or_else": "clearly better" if better else "no worse at all",
            "or_better": f"{low} better" if loss.low < 0 else "as good",
            "kept": f"loses at most {high}" if loss.high > 0 else "surely loses nothing",
            "change": change_interval(loss, findings, self.unit),
            "signed": signed(loss, findings),
            "over": over(loss, self.unit),
            "more": f" More {listed(needs)} would narrow the interval." if needs else "",
            "needed": listed(needs or [self.unit]),
            "fewest": str(FEWEST),
        } | self._recovery()

    def _at_home(self) -> dict[str, str]:
        """Return the values of text fields about the score at internal sites and the score of guessing."""
        findings, above, metric = self.findings, self.judged.above, self.findings.gate
        key = self.condition.level_inference
        home = findings.effect("level", self.condition, key, "internal", across=findings.averaged, metric=metric.name)
        sign = 1 if metric.higher_is_better else -1
        moved = metric.name == findings.headline.name and self.judged.home.majority != self.judged.home.chance
        who = "always giving the commonest class" if moved else "guessing"
        hint = ""
        if moved and metric.name == "accuracy":
            hint = " Accuracy alone cannot say whether it has learnt anything: `metrics: [auc]` would."
        distance = "no interval"
        if not math.isnan(above.low):
            distance = f"{number(above.low, metric, True)} to {number(above.high, metric, True)} above that of a guess"
        if metric.name == findings.headline.name:
            own = interval(self.judged.home, metric, over(self.judged.home, self.unit))
            distance = "; ".join(filter(None, (own, blind(self.judged.home, findings), distance)))
        return {
            "home": level(self.judged.home.mean, findings.headline),
            "home_is": f"its {inner(findings.headline)} was {level(self.judged.home.mean, findings.headline)}",
            "gate": inner(metric),
            "gate_home": level(home.mean, metric),
            "guess": level(home.mean - sign * above.mean, metric),
            "blind": who,
            "above": distance,
            "hint": hint,
            "why_none": why_none(findings, self.condition, self.unit),
        }

    def _places(self) -> dict[str, str]:
        """Return the values of text fields that name sites, and the study's nouns for sites, samples and patients."""
        findings, judged, nouns = self.findings, self.judged, self.nouns
        alone = incomparable(findings, self.condition)
        these = nouns.each(judged.sites)
        vectors = len(self.condition.run.data.dataset.shape or ()) == 1
        fields = {
            "these": f"this {these}" if len(judged.sites) == 1 else f"these {plural(these)}",
            "below": listed(list(judged.below)),
            "where": listed(alone[:SITES]),
            "everywhere": listed(alone),
            "outside": external_sites(findings, self.condition),
            "worst": "",
            "loses_at": "",
            "gains_at": "",
            "place": nouns.place,
            "places": plural(nouns.place),
            "other": nouns.other,
            "others": plural(nouns.other),
            "units": nouns.units,
            "samples": nouns.samples,
            "apply": "" if vectors else f" on labelled {nouns.samples}, with `fedshift apply`",
            "use": ", or about its use for patients" if nouns.medical else "",
        }
        if judged.worst:
            site = judged.worst[0]
            value = judged.sites[site]
            lost = points(value.mean, findings)
            change = change_interval(value, findings, self.unit)
            fields |= {"worst_site": site, "worst_loss": lost, "worst_change": change}
            fields["worst"] = f" At {site} it is {lost} worse, surely more than at the others."
        if opposite := judged.opposite(findings.margin):
            loses, gains = opposite
            fields["loses_at"], fields["gains_at"] = (
                f"{points(value.mean, findings)} at {site} ({change_interval(value, findings, self.unit)})"
                for site, value in ((loses, judged.sites[loses]), (gains, judged.sites[gains].turned()))
            )
        return fields

    def _recovery(self) -> dict[str, str]:
        """Return the values of text fields on how much of the loss at external sites test-time adaptation recovers."""
        key = self.condition.compared_inference
        if self.judged.recovery is None or key is None:
            return {"recovery": ""}
        gain = self.findings.gain(self.condition, key, "external", across=self.findings.averaged)
        amount, name = points(abs(gain.mean), self.findings), self.findings.name(key)
        recovery = {
            Recovery.RECOVERS: f", and {name} recovers {amount}",
            Recovery.WORSENS: f", and {name} loses another {amount}",
            Recovery.IN_DOUBT: f", and it is not shown that {name} recovers any of it",
        }[self.judged.recovery]
        return {"recovery": recovery, "adapted": name, "gain": amount}


def magnitude(findings: Findings, judged: Verdict) -> str:
    """Return the size of a significant loss as a multiple of the margin or, without one, of the lead over guessing.

    The text is '' if the verdict is not that the model loses. `judged` is the verdict.
    """
    if judged.word is not Word.LOSES:
        return ""
    loss, home = judged.loss.mean, findings.better(judged.home)
    if findings.margin:
        return f"{loss / findings.margin:.1f} times the margin"
    if home.mean > home.chance:
        return f"{100 * loss / (home.mean - home.chance):.0f} % of its lead over a guess"
    return ""


def low_level(told: Told, controls: Controls | None) -> str:
    """Return a warning that the score is low in absolute terms although the model holds up at external sites; else ''.

    At internal sites the score counts as low if it is nearer to that of a model without knowledge (a guess, or always
    the commonest class) than to a perfect one. What is enough in practice depends on the use, so there is no other
    limit. If a control without a network has a score in the same metric, the text states it. `told` has the verdict and
    its texts.
    """
    findings, metric, above = told.findings, told.findings.gate, told.judged.above
    key = told.condition.level_inference
    home = findings.effect("level", told.condition, key, "internal", across=findings.averaged, metric=metric.name)
    perfect = metric.ends[metric.higher_is_better]
    # a level or a guess that is not known is NaN, which compares as False
    if told.judged.word is not Word.HOLDS or not above.mean < abs(perfect - home.mean) < math.inf:
        return ""
    text = (
        "The level is low in itself: at home its {gate} is {gate_home}, nearer to the {guess} of {blind} than to a "
        "perfect score."
    ).format_map(told.fields)
    if controls is None:
        return text
    partition, which = controls.beside(told.condition)
    control = controls.level(partition, "internal", metric=metric.name)
    if control.known:
        text += f" A control that sees {controls.about.sees} only, without a network, has {level(control.mean, metric)}"
        unsure = metric is findings.headline and controls.difference(which, key, "internal").low <= 0
        text += " there, and the network is not shown to be better." if unsure else " there."
    return text


def external_sites(findings: Findings, condition: Condition) -> str:
    """Return a phrase that counts the external sites at which the headline metric is defined.

    For example `its 2 external sites`.
    """
    alike = findings.alike(condition)
    sites = {site for member in alike for site in member.partition.external}
    count = len(sites - set(findings.left_out("external", conditions=alike)))
    return f"its {count} external sites" if count > 1 else "its single external site"


UNEQUAL = 0.1
"""Classes count as imbalanced if the commonest one exceeds an equal share by more than this."""
FEWEST_SITES = 3
"""The fewest internal sites from which one can be held out of the training."""


def next_step(told: Told, late: bool) -> str:
    """Return what the author should do next: the first of the verdict's `steps` that would change the study.

    If no step applies, this is the verdict's general advice. YAML and commands are in backticks. `late` says that
    trainings may not have converged. `told` has the verdict and its texts.
    """
    steps = _settings(told, late) if told.text.steps else {}
    if told.judged.recovery is Recovery.RECOVERS:
        adapted = "adapted with {adapted}, it did {gain} better outside: see whether it does in other {others}."
        steps["adapt"] = adapted.format_map(told.fields)
    if not told.findings.headline.has_interval:
        steps["interval"] = "name a `headline` that has intervals."
    return next((steps[name] for name in told.text.steps if name in steps), told.said("then"))


def _settings(told: Told, late: bool) -> dict[str, str]:
    """Map the names of suggested changes, such as folds or seeds, to lines of YAML (in backticks) for the study file.

    A change that would have no effect is absent. `late` says that trainings may not have converged. `told` has the
    verdict and its texts.
    """
    findings, condition, judged = told.findings, told.condition, told.judged
    run, key, inside = condition.run, condition.level_inference, condition.partition.internal
    steps = {"tests": "partition: { split: { train: 0.6, val: 0.2, test: 0.2 } }"}
    # folds test every patient of an internal site once: they help where fewer are tested at home than outside
    outside = findings.effect("level", condition, key, "external")
    if not condition.partition.split.folds and not judged.home.patients > outside.patients:
        steps["folds"] = "partition: { split: { folds: 5 } }"
    if len(condition.seeds) < FEWEST_TRAININGS:
        steps["seeds"] = f"seeds: {json.dumps(list(range(FEWEST_TRAININGS)))}"
    # with weights, a rare class counts as much as a common one
    equal = 1 / max(len(findings.plan.study.dataset.classes), 2)
    most = [findings.value(condition, role, site, key, "accuracy").majority for role, site in condition.sites()]
    if run.training.class_weights is None and any(share > equal + UNEQUAL for share in most):
        steps["weights"] = "training: { class_weights: balanced }"
    if late:
        steps["rounds"] = f"training: {{ rounds: {2 * run.training.rounds} }}"
    if len(inside) >= FEWEST_SITES:
        lists = (json.dumps(list(sites), ensure_ascii=False) for sites in (inside[:-1], inside[-1:]))
        steps["outside"] = "partition: {{ internal: {}, external: {} }}".format(*lists)
    return {name: f"`{line}`" for name, line in steps.items()}
