"""What the page of a study is made of, each part made once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from ..analysis.conditions import Condition
from ..analysis.published_values import Reproduction
from ..analysis.score import Level, levels
from ..analysis.study_results import StudyResults
from ..core import registry
from ..figures import Figure
from ..io.text import readable
from . import behind_means
from .answer import Answer, answer, beside_control, shortcut
from .cohort import Cohort, cohorts, events, problems
from .downloads import Citation, citation, download
from .history import Trained, trained, unfinished
from .html import Drawn, PageCell, PageTable
from .phrases import Nouns, joined


class Missing(NamedTuple):
    """What could not be scored of a run: one entry where all inferences are missing for one reason.

    An `unusable` entry has predictions, which cannot be scored.
    """

    run: str
    condition: str
    seed: str
    inference: str
    why: str
    unusable: bool


class StudyReport:
    """The results of a study, and what several parts of its page say of them."""

    def __init__(self, results: StudyResults) -> None:
        self.results = results
        self.plan = results.plan
        self.findings = results.findings
        self.controls = results.controls

    @functools.cached_property
    def runs(self) -> list[Trained]:
        """The record of each run."""
        return trained(self.results)

    @functools.cached_property
    def people(self) -> list[Cohort]:
        """The cohort of each partition."""
        return cohorts(self.results)

    @functools.cached_property
    def nouns(self) -> Nouns:
        """What sites are called, and what intervals resample."""
        return Nouns.of(self.plan, known=all(cohort.patients for cohort in self.people))

    @functools.cached_property
    def problems(self) -> list[str]:
        """The faults of the data that make scores untrue."""
        return problems(self.people)

    @functools.cached_property
    def few(self) -> list[str]:
        """What is said of sites with one class, or with few samples of one."""
        return events(self.people)

    @functools.cached_property
    def told(self) -> Answer:
        """The answer in sentences, and the condition that it is about."""
        faulty = bool(self.problems or self.few) or any(cohort.doubted for cohort in self.people)
        return answer(self.findings, self.nouns, faulty)

    @property
    def condition(self) -> Condition:
        """The condition that the page is about."""
        return self.told.condition

    @functools.cached_property
    def late(self) -> str:
        """What is said of trainings that may not have converged; empty if all have."""
        return next(unfinished(self.findings, self.runs, self.results.rounds), "")

    @functools.cached_property
    def missing(self) -> list[Missing]:
        """What could not be scored."""
        findings, results = self.findings, self.results
        conditions = {name: condition for condition in findings.conditions for name in condition.runs}
        inferences: dict[tuple[str, str], list[str]] = {}
        for item in results.missing:
            inferences.setdefault((item["run"], item["why"]), []).append(findings.name(item["inference"]))
        return [
            Missing(
                run,
                conditions[run].title,
                str(conditions[run].runs[run].seed),
                "all" if len(named) == len(findings.keys) else ", ".join(named),
                why,
                results.paths.predictions(run, self.plan.prediction_jobs[run]).exists(),
            )
            for (run, why), named in inferences.items()
            if run in conditions
        ]

    @functools.cached_property
    def summed(self) -> list[Level]:
        """The scores of real sites that sent sums in the place of rows."""
        return list(levels(self.plan, self.results.paths))

    @property
    def sites_summed(self) -> list[str]:
        """The names of these sites."""
        return list(dict.fromkeys(level.site for level in self.summed))

    @functools.cached_property
    def reproduction(self) -> Reproduction:
        """Our numbers beside those of the papers."""
        return Reproduction.of(self.results)

    @property
    def control(self) -> str:
        """What the control without a network says of shortcuts, and of the conditions."""
        found = shortcut(self.controls, self.condition, self.condition.level_inference)
        return joined(found, beside_control(self.controls, self.nouns.units))

    @functools.cached_property
    def cited(self) -> Citation:
        """How the page is cited."""
        return citation(self.results, self.runs)

    @functools.cached_property
    def overlooked(self) -> Sequence[behind_means.Overlooked]:
        """How often objects are missed altogether, for tasks that have any."""
        return behind_means.overlooked_counts(self.results)

    def drawn(self, name: str) -> Drawn | PageTable:
        """Return a figure as it was drawn by its rule, or the table that it has in the place of a picture."""
        figure: Figure = registry.build("figure", name)
        if numbers := figure.table(self.results.for_figures):
            marks = dict.fromkeys(numbers.best, "best")
            rows = [
                [PageCell(text, mark=marks.get((y, x), "")) for x, text in enumerate(row)]
                for y, row in enumerate(numbers.rows)
            ]
            caption = figure.heading(self.results.for_figures).removesuffix(".")
            return PageTable(caption, numbers.header, rows, numbers.heads)
        path = self.results.files.figure(name)
        if not path.exists():
            return Drawn(figure.title, "This figure has not been drawn.", "")
        with readable(path, "figure"):
            svg = path.read_text(encoding="utf-8")
        # Its texts were escaped when it was drawn. The page's content policy lets nothing in a forged one run or load.
        link = download(self.results, f"{name}.svg", svg.encode())
        return Drawn(figure.title, figure.caption(self.results.for_figures), svg, [link], list(figure.parts(svg)))
