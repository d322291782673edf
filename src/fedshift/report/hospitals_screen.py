"""The first screen of a study of hospitals: the verdict on one condition, and the loss outside beside the margin."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from . import comparison_section, in_words
from .cohort import EVENTS
from .first_screen import Screen, screen
from .forest import Forest, forest, pooled
from .html import Claim, Tile
from .phrases import level
from .study_report import StudyReport
from .verdict_words import beaten, no_better_at_home


class Hospitals:
    """The condition that the page is about, as the first screen shows it."""

    def __init__(self, report: StudyReport) -> None:
        self.report = report
        self.findings = report.findings
        self.controls = report.controls
        self.told = report.told
        self.inference = self.findings.level_inference(self.told.condition)

    @functools.cached_property
    def beaten(self) -> str:
        """By how much the control without a network is better; empty where it is not."""
        return beaten(self.controls, self.told.condition, self.inference)

    @functools.cached_property
    def screen(self) -> Screen:
        """The verdict in a word and a sentence."""
        report, told = self.report, self.told
        to_do = self._to_do_first()
        return screen(
            self.findings, told.condition, told.judged, report.nouns, to_do, self.beaten, told.led, bool(report.late)
        )

    def _to_do_first(self) -> str:
        """Return what must be done before anybody can tell how many more patients would settle a question."""
        report = self.report
        if report.problems:
            return "First correct the data: see the problems above."
        if report.few:
            return f"First it takes {EVENTS} test {report.unit} of each class at every site."
        if any(cohort.doubted or not cohort.patients for cohort in report.people):
            return "First the table must say which images are of one patient."
        return ""

    @property
    def asked(self) -> list[Claim]:
        """The declared comparisons, with what is concluded of them."""
        return [*comparison_section.asked(self.findings, self.report.unit)]

    @property
    def in_words(self) -> list[str]:
        """What was tested, what came out, and what may be concluded."""
        report, told = self.report, self.told
        return in_words.sentences(
            self.findings,
            told.condition,
            told.judged,
            report.nouns,
            bool(report.problems),
            report.results.synthetic,
            bool(self.beaten),
        )

    @property
    def how_to_read(self) -> Iterator[tuple[str, str]]:
        """Each part of the picture with its meaning."""
        adapted = self.findings.compared_inference(self.told.condition) is not None
        return in_words.how_to_read(self.findings, self.told.condition, self.report.nouns, adapted, bool(self.controls))

    @property
    def tiles(self) -> list[Tile]:
        """The numbers behind the verdict, and those of the control."""
        return [*self.told.tiles, *self._control()]

    def _control(self) -> Iterator[Tile]:
        """Yield the score of the control without a network, at home and outside."""
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
        """Why the interval of the mean outside is narrower than those of its hospitals; empty where it is not."""
        return pooled(self.findings, self.told.condition, self.report.nouns)

    def picture(self, about: str, width: float) -> Forest:
        """Return the picture that answers; `width` is in inches."""
        report = self.report
        return forest(self.findings, self.controls, self.told.condition, self.screen, report.nouns, about, width)
