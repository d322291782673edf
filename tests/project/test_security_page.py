"""What docs/security.md says of real sites: each row that claims a protection names tests that attack it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_tables import tables

from fedshift.hospitals.hospital import SENTENCE
from fedshift.jobs.run_files import SUMS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").partition("## Federations of real sites")[2]
((_, *ROWS),) = tables(TEXT)
TESTS = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))


def test_there_are_rows_of_both_kinds() -> None:
    assert {bool(row[2]) for row in ROWS} == {True, False}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_row_without_a_test_says_that_it_is_not_protected(row: list[str]) -> None:
    threat, how, tests = row
    assert threat
    assert how.startswith("**not protected**") is not bool(tests)
    for name in re.findall(r"`(\w+)`", tests):
        assert f"def {name}(" in TESTS, name


def test_the_page_for_hospitals_says_what_each_site_is_told() -> None:
    page = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    assert SENTENCE in " ".join(page.split())
    assert SUMS in page
