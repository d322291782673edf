"""Parts of a study's page by their ids."""

from __future__ import annotations

from fedshift.analysis.study_results import StudyResults
from fedshift.page.html import Section
from fedshift.page.sections import sections
from fedshift.page.study_report import StudyReport


def sections_of(found: StudyResults) -> dict[str, Section]:
    """Return the sections of the page of a study by their ids."""
    return {section.id: section for section in sections(StudyReport(found))}
