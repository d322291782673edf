"""The parts of a study's page that several sections need, each computed once."""

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
from .history import Trained, broken_down, trained, unfinished
from .html import Drawn, PageCell, PageTable
from .phrases import Nouns, joined


class Missing(NamedTuple):
    """A run with predictions that could not be scored: which run and inference methods, and why.

    `inference` is "all" if one reason holds for all of them. `unusable` is True if predictions exist but cannot be
    scored.
    """

    run: str
    condition: str
    seed: str
    inference: str
    why: str
    unusable: bool


class StudyReport:
    """The results of a study together with texts and tables that several sections of its page share.

    Each attribute is computed when it is first read.
    """

    def __init__(self, results: StudyResults) -> None:
        self.results = results
        self.plan = results.plan
        self.findings = results.findings
        self.controls = results.controls

    @functools.cached_property
    def runs(self) -> list[Trained]:
        """The records of the study's runs: manifest, rounds, bytes sent and training time."""
        return trained(self.results)

    @functools.cached_property
    def people(self) -> list[Cohort]:
        """The cohort of each partition: images and patients by site and split, with the data checks."""
        return cohorts(self.results)

    @functools.cached_property
    def nouns(self) -> Nouns:
        """The nouns that the study's page uses for sites, samples and patients, such as hospital, image and lesion."""
        return Nouns.of(self.plan, known=all(cohort.patients for cohort in self.people))

    @functools.cached_property
    def problems(self) -> list[str]:
        """Each failed check of the data, such as patients in both training and test, as text."""
        return problems(self.people)

    @functools.cached_property
    def few(self) -> list[str]:
        """A clause for each site whose test samples are of one class only, or few of one class."""
        return events(self.people)

    @functools.cached_property
    def told(self) -> Answer:
        """The study's answer in sentences, and the trained method (algorithm x batch norm policy) that it is about."""
        faulty = bool(self.problems or self.few) or any(cohort.doubted for cohort in self.people)
        return answer(self.findings, self.nouns, faulty)

    @property
    def condition(self) -> Condition:
        """The condition (algorithm x batch norm policy x settings) that the page's answer is about."""
        return self.told.condition

    @functools.cached_property
    def broken(self) -> str:
        """A sentence about trainings that broke down; empty if none did."""
        return next(broken_down(self.runs, self.results.rounds), "")

    @functools.cached_property
    def late(self) -> str:
        """A sentence about trainings that may not have converged; empty if all have."""
        return next(unfinished(self.findings, self.runs, self.results.rounds), "")

    @functools.cached_property
    def missing(self) -> list[Missing]:
        """The runs with predictions that could not be scored, one entry for each run and reason."""
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
        """The scores of real sites that sent sums over groups of patients instead of one row for each image."""
        return list(levels(self.plan, self.results.paths))

    @property
    def sites_summed(self) -> list[str]:
        """The names of real sites that sent sums over groups of patients instead of one row for each image."""
        return list(dict.fromkeys(level.site for level in self.summed))

    @functools.cached_property
    def reproduction(self) -> Reproduction:
        """The study's numbers compared with the values and trends that the reproduced papers published."""
        return Reproduction.of(self.results)

    @property
    def control(self) -> str:
        """Sentences that compare the network with the control, a classifier of simple image features.

        They say whether the control suggests shortcut learning, and whether no compared method is significantly better
        than it.
        """
        found = shortcut(self.controls, self.condition, self.condition.level_inference)
        return joined(found, beside_control(self.controls, self.nouns.units))

    @functools.cached_property
    def cited(self) -> Citation:
        """The citation of the page as text and as BibTeX."""
        return citation(self.results, self.runs)

    @functools.cached_property
    def overlooked(self) -> Sequence[behind_means.Overlooked]:
        """How many structures each method missed with each inference method; empty for tasks without structures."""
        return behind_means.overlooked_counts(self.results)

    def drawn(self, name: str) -> Drawn | PageTable:
        """Return the figure `name` as drawn by its workflow job, or a table if its plug-in makes one instead.

        If its SVG file does not exist yet, the returned figure says so. Raises UserError if the file cannot be read.
        """
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
