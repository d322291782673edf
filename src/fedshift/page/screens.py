"""The first screen of a study's page: a verdict on whether a model holds up, or a ranking of the compared methods."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from ..analysis import comparisons
from ..analysis import verdict as conclusions
from ..analysis.conditions import Condition
from ..analysis.controls import Controls
from ..analysis.findings import Findings
from ..analysis.values import Value, listed, number
from ..analysis.verdict import FEWEST_SITES, TOO_FEW, Outcome, Rank, Reason, Verdict, Word, ranks
from ..core.spelling import plural
from ..figures._canvas import COLOURS, legend, legend_height, short
from . import comparison_section
from .answer import beaten, how_to_read, no_better_at_home, three_sentences
from .cohort import EVENTS
from .forest import MOST, WIDTHS, Forest, forest, pooled
from .html import Claim, Screen, Tile
from .phrases import Nouns, bounds, capital, counted, heading, joined, level, over, points
from .study_report import StudyReport
from .verdict_texts import Told, low_level, magnitude, next_step

NORMAL = 1.96
"""Half the width of a 95% interval of a normal distribution, in standard errors."""
FAR = 50
"""If settling the verdict takes more than this multiple of the patients or trainings, no number of them is stated."""


def screen(
    findings: Findings,
    condition: Condition,
    judged: Verdict,
    nouns: Nouns,
    first: str = "",
    beaten: str = "",
    led: str = "",
    late: bool = False,
    controls: Controls | None = None,
) -> Screen:
    """Return the verdict on a condition (algorithm x batch norm policy x settings) as texts for the first screen.

    Parameters
    ----------
    judged : the verdict
    first : what the author must do before anything else; may be empty
    beaten : text saying that a classifier without a network is better; empty if none is
    led : name of the condition, and why the page is about it
    late : whether trainings may not have converged
    controls : scores of classifiers without a network, to compare with a low score of the network
    """
    told = Told(findings, condition, judged, nouns, beaten)
    word, tone, sentence = (told.said(what) for what in ("word", "tone", "sentence"))
    is_open = judged.word is Word.CANNOT_TELL and not first
    settle = _settle(findings, judged, nouns.units) if is_open else ""
    whom = ". ".join(filter(None, (led, _whom_it_holds_for(findings, condition, judged, nouns))))
    step = first or next_step(told, late)
    return Screen(word, tone, sentence, whom, settle, magnitude(findings, judged), step, low_level(told, controls))


def _whom_it_holds_for(findings: Findings, condition: Condition, judged: Verdict, nouns: Nouns) -> str:
    """Return a clause that lists the tested external sites, and those of them whose hospital also trained.

    `judged` is the verdict.
    """
    outside = nouns.outside(one.partition for one in findings.alike(condition))
    sites = outside.sites
    if not sites:
        return ""
    names = listed(sites) if len(sites) <= 4 else f"{', '.join(sites[:3])} and {len(sites) - 3} others"
    count = nouns.counted(sites, owned=not outside.shared)
    text = "; ".join(filter(None, (f"{count} outside: {names}", outside.shared)))
    few = sum(site in outside.apart for site in judged.sites) < FEWEST_SITES
    return f"{text}. Other {plural(nouns.other)} may differ" if few else text


def _settle(findings: Findings, judged: Verdict, unit: str) -> str:
    """Return sentences on how much more data would settle an open verdict, and the smallest loss it could show.

    `unit` names the resampled units, such as patients. The text is empty if more data would not help or no interval
    exists. `judged` is the verdict.
    """
    loss = judged.loss
    half = (loss.high - loss.low) / 2
    if judged.reason is Reason.HOME_IN_DOUBT:
        more = (f"test {unit}" if need == "patients" else need for need in judged.needs)
        return f"More {listed(list(more))} at home would settle it." if judged.needs else ""
    if math.isnan(half) or judged.reason is not Reason.TOO_WIDE:
        return ""
    seen = f"A loss under {points(half, findings)} could not have been seen."
    return f"{_more(loss, findings.margin, unit)} {seen}".strip()


def _more(loss: Value, margin: float, unit: str) -> str:
    """Return a sentence on how many patients and trainings would make the loss's interval decisive.

    The interval is decisive if it lies above zero or below the margin. The sentence assumes that the mean loss stays as
    it is; it is '' if a part of the variance is not known. `unit` names the resampled units, such as patients.
    """
    room = max(loss.mean, margin - loss.mean) / NORMAL
    trainings = loss.std / math.sqrt(loss.seeds) if loss.seeds > 1 else math.nan
    patients = (loss.high_patients - loss.low_patients) / (2 * NORMAL)
    if room <= 0 or math.isnan(trainings + patients) or not loss.patients > 0:
        return ""
    alone = {
        "trainings": (_times(trainings, patients, room), loss.seeds),
        unit: (_times(patients, trainings, room), loss.patients),
    }
    both = (trainings**2 + patients**2) / room**2
    if both <= 1:
        # normal errors would fit already: the interval is wide as few trainings hardly tell how much they differ
        few = f"{counted(loss.seeds, 'training')} hardly tell how they differ"
        return f"A few more trainings would settle it, if the loss stays where it is: {few}."
    possible = [f"{math.ceil(times * now):,} {what}" for what, (times, now) in alone.items() if times < FAR]
    if possible:
        return f"About {' or '.join(possible)} in all would settle it, if the loss stays where it is."
    if both < FAR:
        count = f"{math.ceil(both * loss.patients):,} {unit} and {math.ceil(both * loss.seeds)} trainings"
        return f"About {count} in all would settle it, if the loss stays where it is."
    return f"Far more {unit} and trainings would be needed to settle it."


def _times(shrinks: float, stays: float, room: float) -> float:
    """Return the factor by which a sample must grow so that the total standard error is `room`; inf if impossible.

    `shrinks` is the standard error that falls with this sample, and `stays` the standard error from other sources.
    """
    left = room**2 - stays**2
    return shrinks**2 / left if left > 0 else math.inf


_WORDS = {
    Outcome.DIFFERS: "A difference is shown",
    Outcome.TOO_SMALL: "Too small to matter",
    Outcome.ALIKE: "No difference is shown",
    Outcome.TRAININGS_DISAGREE: "Depends on the training",
    Outcome.SITES_DISAGREE: "Depends on the site",
    Outcome.FEW_TRAININGS: "Too few trainings to tell",
    Outcome.FEW_PATIENTS: "Too few {units} to tell",
}
"""The headline for each outcome of a declared comparison. `{units}` stands for what intervals resample, such as
patients."""
UNSURE = (
    Reason.NOT_COMPARABLE,
    Reason.HOME_WITHOUT_INTERVAL,
    Reason.HOME_IN_DOUBT,
    Reason.WITHOUT_INTERVAL,
    Reason.TOO_WIDE,
)
"""Reasons for an open verdict that test data of more patients could remove."""
SAID = 2
"""The most groups of methods, or declared comparisons, that the headline sentences mention."""
_METHOD, _CONTROL = "a federated method", "a control: pooled data, or each client alone"


class Methods:
    """The first screen of a study that ranks methods instead of asking whether one model holds up at external sites.

    Attributes
    ----------
    groups : list[list[Rank]]
        Conditions (algorithm x batch norm policy x settings) tested at the same sites, from the best mean to the worst.
        There is one group for each partition, unless the study averages over partitions.
    """

    asked: Sequence[Claim] = ()
    """Empty: on this screen a declared comparison is the headline, and is not listed again below it."""
    pooled = ""

    def __init__(self, report: StudyReport, groups: list[list[Rank]]) -> None:
        self.report = report
        self.findings = report.findings
        self.nouns = report.nouns
        self.role = comparisons.role(self.findings.conditions)
        self.groups = groups

    @classmethod
    def of(cls, report: StudyReport) -> Methods | None:
        """Return the first screen of a study that compares methods; None if the study asks whether one model holds up.

        A study compares methods if several of its conditions (algorithm x batch norm policy x settings) are tested at
        the same sites, and if it has no external site or does not know which images belong to one patient.
        """
        if report.nouns.known and any(one.partition.external for one in report.findings.conditions):
            return None
        groups = ranks(report.findings)
        return cls(report, groups) if groups else None

    @functools.cached_property
    def screen(self) -> Screen:
        """The headline: the result of the declared primary comparison or, without one, whether one method is best."""
        if declared := conclusions.declared(self.findings):
            told = [
                (self._word(one.outcome), comparison_section.pair(self.findings, one, self.nouns.units))
                for one in declared
            ]
        else:
            told = [self._best(group) for group in self.groups]
        words = list(dict.fromkeys(word for word, _ in told))
        step, settle = "", "Other trainings, data or networks may rank them otherwise."
        fewest = comparisons.FEWEST_TRAININGS
        if min(rank.level.seeds for group in self.groups for rank in group) < fewest:
            step = f"`seeds: {list(range(fewest))}`"
            settle = f"With fewer than {fewest} trainings of a condition, nothing is said of it as a method."
        sentence = joined(*(sentence for _, sentence in told[:SAID]))
        if len(told) > SAID:
            sentence += f" The other {len(told) - SAID} are below."
        word = words[0] if len(words) == 1 else "Depends on the setting"
        return Screen(word, "plain", sentence, self._whom(), settle, step=step)

    def _best(self, group: list[Rank]) -> tuple[str, str]:
        """Return headline and sentence on whether the best of a group of methods is significantly the best."""
        first, second = group[:2]
        alike = [rank for rank in group if rank.first == 1]
        control = ", a control" if first.entry.control else ""
        shown = level(first.level.mean, self.findings.headline)
        lead = f"the best mean is that of {self._title(first)} ({shown}{control})"
        lead = f"Setting {self._setting(group)}: {lead}" if len(self.groups) > 1 else capital(lead)
        found = conclusions.contrast(self.findings, first.entry, second.entry, self.role)
        if alike == [first]:
            return "One is best", f"{lead}, surely better than the others."
        if found is not None and found.outcome in TOO_FEW:
            return self._word(found.outcome), f"{lead}; nobody can tell whether it is better than the others."
        return "No single best", f"{lead}; {len(alike)} of {len(group)} conditions may be the best."

    def _word(self, outcome: Outcome) -> str:
        return _WORDS[outcome].format(units=self.nouns.units)

    def _whom(self) -> str:
        """Return a clause with the numbers of compared methods, test sites, patients and trainings."""
        best = self.groups[0][0]
        sites = counted(len(list(best.entry.sites(self.role))), f"{self.role} site")
        count = f"{counted(sum(map(len, self.groups)), 'condition')}"
        if len(self.groups) > 1:
            count += f" in {len(self.groups)} settings"
        return f"{count}, tested at {sites}, {over(best.level, self.nouns.units)}"

    def _title(self, rank: Rank) -> str:
        """Return the title of a ranked method, with its partition's name if the group has several partitions."""
        group = next(group for group in self.groups if rank in group)
        shared = len({one.entry.condition.held_out for one in group}) == 1
        return rank.entry.condition.title if shared else self.findings.title(rank.entry.condition)

    def _setting(self, group: list[Rank]) -> str:
        """Return the title of the partition (which sites are held out) that a group of ranked methods shares."""
        return group[0].entry.condition.held_out

    @property
    def tiles(self) -> Iterator[Tile]:
        """Yield the large numbers below the answer.

        These are the best and the worst mean score in each group of sites, and how many published values and trends
        of the paper agree.
        """
        metric, reproduction = self.findings.headline, self.report.reproduction
        for group in self.groups[:SAID]:
            setting = f", {self._setting(group)}" if len(self.groups) > 1 else ""
            best, last = (level(rank.level.mean, metric) for rank in (group[0], group[-1]))
            note = f"{self._title(group[0])}; last {self._title(group[-1])}, {last}"
            yield Tile(f"Best mean{setting}", best, note)
        published = reproduction.headline()["published"]
        if judged := published["within"] + published["outside"]:
            shown = f"{published['within']} of {judged}"
            yield Tile("Published values", shown, "within the combined uncertainty of both")
        if reproduction.claims:
            doubt = f"; {reproduction.doubtful} in doubt" if reproduction.doubtful else ""
            note = f"do not count: {reproduction.reason}" if reproduction.reason else f"surely hold here{doubt}"
            yield Tile("Trends of the paper", f"{reproduction.held} of {reproduction.judged}", note)

    @property
    def in_words(self) -> list[str]:
        """Three texts for clinicians: what was compared, what the result is, and what may be concluded."""
        clients = "" if self.nouns.known else "No patients are known, and it says nothing about any hospital."
        invented = ""
        if self.report.results.synthetic:
            invented = f"The {self.nouns.samples} are invented and show nothing about any data."
        last = "The order holds for these data, networks and trainings, and says nothing about the use for patients."
        return [f"Compared are {self.screen.whom}.", self.screen.sentence, joined(invented, last, clients)]

    @property
    def how_to_read(self) -> Iterator[tuple[str, str]]:
        """Pairs of a part of the ranking's picture and its explanation."""
        yield "Rows", f"One for each condition, the best mean first. Each mean is over the same {self.role} sites."
        yield (
            "Marks and bars",
            "The mean of trainings that differ by chance alone, with its 95% interval over "
            f"{self.nouns.units} and trainings. Two bars may overlap although one condition is surely better, since "
            f"pairs are compared on the same {self.nouns.units} and seeds.",
        )
        yield (
            "Ranks",
            "The ranks that a condition may have: behind all that are surely better, and before all that are surely "
            "worse, with an adjustment for all pairs.",
        )

    def picture(self, about: str, width: float) -> Forest:
        """Return a plot of each method's mean score with its 95% interval and possible ranks.

        `about` is a note that identifies the study, and `width` is in inches.
        """
        metric = self.findings.headline
        groups = [group[: max(MOST // len(self.groups), 2)] for group in self.groups[:MOST]]
        rows = [rank for group in groups for rank in group]
        # titles differ at their ends, so that the narrow picture breaks them and cuts none short
        letters, row = (40, 0.21) if width == WIDTHS["answer"] else (20, 0.27)
        title = f"{self.screen.word}. {heading(metric)}, mean over {self.role} sites"
        title = textwrap.fill(title, round(13 * width))
        below = f"95% intervals over {self.nouns.units} and trainings. {about}"
        if left_out := sum(map(len, self.groups)) - len(rows):
            below += f" {counted(left_out, 'further condition')} with worse means are left out."
        labels = [_CONTROL] if any(rank.entry.control for rank in rows) else []
        lines = len(rows) + (len(groups) if len(groups) > 1 else 0)
        size = (width, 1.2 + row * lines + 0.15 * title.count("\n") + legend_height([_METHOD, *labels], width))

        def paint(figure: Any) -> None:
            figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=9)
            axes = figure.subplots()
            self._levels(axes, groups, letters)
            axes.set_title(textwrap.fill(below, round(10 * width)), fontsize=6.5, weight="normal", pad=12)
            legend(figure)

        return Forest(size, self._described(rows), paint)

    def _levels(self, axes: Any, groups: list[list[Rank]], letters: int) -> None:
        """Draw one row for each method: its mean score, its 95% interval, and its possible ranks at the right edge.

        `letters` is the length at which titles are wrapped. `groups` are the methods tested at the same sites.
        """
        scale = 100.0 if self.findings.headline.percent else 1.0
        looks = {False: ("o", COLOURS[0], _METHOD), True: ("s", COLOURS[5], _CONTROL)}
        beside = {"xycoords": ("axes fraction", "data"), "va": "center"}
        names = list[str]()
        for group in groups:
            if len(groups) > 1:
                axes.annotate(self._setting(group), (0.005, len(names)), fontsize=8, weight="bold", **beside)
                names.append("")
            for rank in group:
                y = len(names)
                marker, colour, _ = looks[rank.entry.control]
                if not math.isnan(rank.level.low):
                    ends = [scale * rank.level.low, scale * rank.level.high]
                    axes.plot(ends, [y, y], color=colour, linewidth=1.6, solid_capstyle="butt")
                axes.plot([scale * rank.level.mean], [y], linestyle="none", marker=marker, color=colour, markersize=6)
                axes.annotate(_ranks(rank), (1.01, y), fontsize=8, **beside)
                names.append(textwrap.fill(short(self._title(rank), 2 * letters), letters))
        for control in dict.fromkeys(rank.entry.control for group in groups for rank in group):
            marker, colour, label = looks[control]
            axes.plot([], [], linestyle="none", marker=marker, color=colour, label=label)
        axes.annotate("rank", (1.01, 1), xycoords="axes fraction", fontsize=7, va="bottom")
        axes.set_yticks(range(len(names)), names, fontsize=9 if letters > 20 else 7)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)

    def _described(self, rows: Sequence[Rank]) -> str:
        """Return the content of the ranking's picture as text, for readers who cannot see it."""
        metric = self.findings.headline
        said = (
            f"{self._title(rank)}: {number(rank.level.mean, metric)} "
            f"({bounds(rank.level, metric, otherwise='no interval')}), rank {_ranks(rank)}."
            for rank in rows
        )
        return joined(
            f"{self.screen.word}. {self.screen.sentence}", f"{metric.title}, from the best mean to the worst:", *said
        )


def _ranks(rank: Rank) -> str:
    return str(rank.first) if rank.first == rank.last else f"{rank.first} to {rank.last}"


class Hospitals:
    """The first screen of a study that asks whether one model holds up at sites that took no part in its training."""

    def __init__(self, report: StudyReport) -> None:
        self.report = report
        self.findings = report.findings
        self.controls = report.controls
        self.told = report.told
        self.inference = self.told.condition.level_inference

    @functools.cached_property
    def beaten(self) -> str:
        """A sentence that a classifier without a network is significantly better, and by how much; else ''."""
        return beaten(self.controls, self.told.condition, self.inference)

    @functools.cached_property
    def screen(self) -> Screen:
        """The verdict on the condition (algorithm x batch norm policy) that the page is about, as texts to show."""
        report, told = self.report, self.told
        to_do = self._to_do_first()
        return screen(
            self.findings,
            told.condition,
            told.judged,
            report.nouns,
            to_do,
            self.beaten,
            told.led,
            bool(report.late),
            self.controls,
        )

    def _to_do_first(self) -> str:
        """Return what the author must do before all else, such as correcting faulty data; '' if nothing.

        Missing patient ids and rare classes count only if the verdict is open for a reason that more test data could
        remove.
        """
        report = self.report
        if report.problems:
            return "first correct the data: see the problems above."
        if self.told.judged.reason not in UNSURE:
            return ""
        if report.few:
            return f"first test {EVENTS} {report.nouns.units} of each class at every site."
        if any(cohort.doubted or not cohort.patients for cohort in report.people):
            return f"first say in the table which {report.nouns.samples} are of one patient."
        return ""

    @property
    def asked(self) -> list[Claim]:
        """The comparisons that the study declared beforehand, each with its result."""
        declared = conclusions.declared(self.findings)
        return [
            Claim("primary", comparison_section.pair(self.findings, one, self.report.nouns.units)) for one in declared
        ]

    @property
    def in_words(self) -> list[str]:
        """Three sentences for clinicians: what was tested, what the result is, and what may be concluded."""
        report, told = self.report, self.told
        return three_sentences(
            self.findings,
            told.condition,
            told.judged,
            report.nouns,
            bool(report.problems),
            report.results.synthetic,
            self.beaten,
        )

    @property
    def how_to_read(self) -> Iterator[tuple[str, str]]:
        """Pairs of a part of the first screen and its explanation."""
        adapted = self.told.condition.compared_inference is not None
        return how_to_read(self.findings, self.told.condition, self.report.nouns, adapted, bool(self.controls))

    @property
    def tiles(self) -> list[Tile]:
        """The large numbers: scores at internal and external sites, and the score of a classifier without a network."""
        return [*self.told.tiles, *self._control()]

    def _control(self) -> Iterator[Tile]:
        """Yield one large number: the score at external sites of the control, a classifier without a network."""
        partition, _ = self.controls.beside(self.told.condition)
        home, outside = (self.controls.level(partition, role) for role in ("internal", "external"))
        if outside.known:
            note = f"{level(home.mean, self.findings.headline)} at home" if home.known else ""
            if note and no_better_at_home(self.controls, self.told.condition, self.inference):
                note += ", where the network is not shown to see more"
            yield Tile(
                f"Outside, by {self.controls.about.sees} only", level(outside.mean, self.findings.headline), note
            )

    @property
    def pooled(self) -> str:
        """A sentence that explains why the mean over external sites has a narrower interval than each site; else ''."""
        return pooled(self.findings, self.told.condition, self.report.nouns)

    def picture(self, about: str, width: float) -> Forest:
        """Return the forest plot of the scores at each site.

        `about` is a note that identifies the study, and `width` is in inches.
        """
        report = self.report
        return forest(self.findings, self.controls, self.told.condition, self.screen, report.nouns, about, width)
