"""The page says where raw files came from, what about them was verified, and what was not."""

from __future__ import annotations

import re
from typing import Any

from fedshift.page.html import Section, _environment
from fedshift.page.sections import _data

CARD: dict[str, Any] = {"title": "T", "version": "1", "source": "s", "licence": "l", "citation": "c", "checksums": {}}
RECEIVED = {"origin": "the copy (https://hub.example/x)", "verified": ["counts"], "unverified": ["<pixels>", "order"]}


def facts(card: dict[str, Any]) -> dict[str, str]:
    section = _environment().get_template("macros.html.j2").module.section  # type: ignore[attr-defined]
    page = section(Section("provenance", "Provenance", [*_data(card)]))
    return dict(re.findall(r"<dt>(.*?)</dt><dd><p>(.*?)</p></dd>", page))


def test_a_record_of_the_files_is_shown() -> None:
    shown = facts(CARD | {"received": RECEIVED})
    assert shown["Obtained from"].startswith('the copy (<a href="https://hub.example/x"')
    assert shown["Verified"] == "counts"
    assert shown["Not verified"] == "&lt;pixels&gt;; order"


def test_nothing_is_said_of_data_that_were_not_downloaded() -> None:
    assert not {"Obtained from", "Verified", "Not verified"} & facts(CARD).keys()
    assert "Verified" not in facts(CARD | {"received": RECEIVED | {"verified": []}})
