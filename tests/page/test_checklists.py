"""The checklists on the page count what the authors still owe."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import fake_study
import pytest
from fake_study import EVIL
from outline import Outline

from fedshift.core.errors import UserError
from fedshift.core.registry import validated
from fedshift.page import downloads
from fedshift.page.downloads import Item
from fedshift.page.html import _environment
from fedshift.page.sections import from_authors, reporting
from fedshift.study.declaration import Author, Study

CLAIM = downloads.items("CLAIM 2024")
TRIPOD_AI = downloads.items("TRIPOD+AI")

SECTIONS = {"answer", "words", "care", "sites", "cohort", "protocol", "provenance"}
"""Sections that every page has."""


def test_the_items_of_claim_are_divided_as_counted_by_hand() -> None:
    """15 by the tool alone, 14 by the author alone, and 15 partly: the 14 of the list, and item 10."""
    assert [item.number for item in CLAIM] == [str(n) for n in range(1, 45)]
    assert Counter(item.who for item in CLAIM) == {"fedshift": 15, "partly": 15, "you": 14}


def test_tripod_has_27_items_in_52_parts() -> None:
    assert len(TRIPOD_AI) == len({item.number for item in TRIPOD_AI}) == 52
    assert {int(item.number.rstrip("abcdefg")) for item in TRIPOD_AI} == set(range(1, 28))


@pytest.mark.parametrize("item", [*CLAIM, *TRIPOD_AI], ids=lambda item: item.topic)
def test_an_item_says_where_it_is_filled(item: Item) -> None:
    assert (item.section in SECTIONS and bool(item.prefilled)) == (item.who != "you")
    assert (item.field in Author.model_fields) == (item.who != "fedshift")


def test_every_statement_fills_an_item() -> None:
    assert {item.field for item in (*CLAIM, *TRIPOD_AI)} - {""} == set(Author.model_fields)


@pytest.mark.parametrize(
    ("author", "claim", "tripod"),
    [
        ({}, 29, 37),
        ({"ethics": " \n"}, 29, 37),
        ({"reference_standard": "A pathologist's reading."}, 27, 36),
        ({"reference_standard": "x", "eligibility": "y", "ethics": "z"}, 26, 33),
        (dict.fromkeys(Author.model_fields, "x"), 0, 0),
    ],
)
def test_an_item_is_open_until_its_field_has_text(author: dict[str, str], claim: int, tripod: int) -> None:
    """Of TRIPOD+AI the tool fills 7, 12a to 12g, 13, 15, 21, 22, 23a, 23b and 24 alone: 15 of 52."""
    lists = downloads.checklists(Author(**author))
    assert [one.open for one in lists] == [claim, tripod]
    assert lists[0].summary == f"CLAIM 2024: prefilled by fedshift; {claim} of 44 items need you"


def shown(author: Author) -> Outline:
    section = _environment().get_template("macros.html.j2").module.section  # type: ignore[attr-defined]
    return Outline(section(from_authors(author)) + section(reporting(author)))


def test_statements_are_shown_as_text() -> None:
    outline = shown(Author(ethics=f"Waived {EVIL}", reference_standard="Read twice, see https://doi.org/10.1/x"))
    assert "Ethics Waived <script>alert(1)</script>" in outline.text
    assert "script" not in [tag for tag, _ in outline.tags]
    assert ("a", "https://doi.org/10.1/x") in [(tag, attributes.get("href")) for tag, attributes in outline.tags]
    assert "The authors have stated nothing yet" not in outline.text


def test_without_statements_the_page_says_where_they_belong() -> None:
    text = shown(Author()).text
    assert "belongs under the key author of the study's YAML file" in text
    assert "14 Definition of the reference standard you – open : author.reference_standard" in text
    assert "9 Preprocessing fedshift Transforms filled" in text


def test_statements_change_the_page_and_no_run(tmp_path: Path) -> None:
    author: dict[str, Any] = {"author": {"limitations": "One country."}}
    one, other = fake_study.plan(tmp_path), fake_study.plan(tmp_path, **author)
    assert list(one.runs) == list(other.runs)
    assert one.view != other.view


def test_an_unknown_statement_is_an_error() -> None:
    study = fake_study.study().model_dump(mode="json") | {"dataset": "camelyon17", "author": {"ethic": "x"}}
    with pytest.raises(UserError, match=r"author.ethic"):
        validated(Study, study, "study.yaml")
