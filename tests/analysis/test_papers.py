"""The list of the papers' tables and figures, the published tables, and the studies that name them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fedshift import study
from fedshift.analysis import published_words
from fedshift.analysis.published_words import Words, require
from fedshift.core.errors import UserError

ROOT = Path(__file__).parents[2]
ITEMS = published_words.items(ROOT / "config" / "papers.csv")
TABLES = sorted(p for p in (ROOT / "config" / "published").glob("*.csv") if p.stem != "misprints")
STUDIES = study.names(ROOT / "config" / "studies")
PRINTED = {  # values in each table, as the papers print them
    "fedbn-table1": 56, "fedbn-table11": 20, "fedbn-table12": 10, "fedbn-table13": 90, "fedbn-table14": 105,
    "fedbn-table15": 15, "fedbn-table16": 15, "fedbn-table16-relabelled": 15, "fedbn-table17": 6,
    "tsmobn-table1": 150, "tsmobn-table2": 40, "tsmobn-table3": 28, "tsmobn-table4": 105, "tsmobn-tableE4": 20,
    "tsmobn-tableE5": 40, "tsmobn-tableE6": 150, "tsmobn-tableE7": 20, "tsmobn-tableE8": 28, "tsmobn-tableE9": 90,
    "tsmobn-tableE10": 12, "tsmobn-tableE11": 80, "tsmobn-tableE12": 80, "tsmobn-tableE13": 96,
    "unifed-table2": 240, "unifed-table3": 270,
    "fedtan-table1": 12, "fedtan-table2": 8, "fedtan-table3": 9, "fedtan-table4": 12, "fedtan-table5": 12,
}  # fmt: skip


def plan(name: str) -> study.Plan:
    return study.load(ROOT / "config" / "studies" / f"{name}.yaml", "paper")


def test_every_item_has_its_words() -> None:
    assert Counter(item.paper for item in ITEMS.values()).keys() == {"FedBN", "TsmoBN", "UniFed", "FedTAN"}
    for item in ITEMS.values():
        assert item.id.startswith(item.paper.lower() + "-")
        assert item.place
        assert item.what


def test_every_table_with_numbers_is_there_and_whole() -> None:
    """The ids of kind R are the files of published values, and each has as many as the paper prints."""
    assert {path.stem for path in TABLES} == {item.id for item in ITEMS.values() if item.kind == "R"} == set(PRINTED)
    for path in TABLES:
        rows = published_words.rows(path)
        assert len(rows) == PRINTED[path.stem]
        assert len({(r.method, r.variant, r.site, r.metric) for r in rows}) == len(rows)
        for row in rows:
            if row.metric == "accuracy_percent":
                assert 0 < row.value <= 100


def test_every_misprint_is_of_a_printed_value() -> None:
    found = {r.misprint for path in TABLES for r in published_words.rows(path) if r.misprint}
    lines = (ROOT / "config" / "published" / "misprints.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert sum(bool(r.misprint) for path in TABLES for r in published_words.rows(path)) == len(lines)
    assert all(text.startswith("misprint") for text in found)


@pytest.mark.parametrize("name", STUDIES)
def test_what_a_study_reproduces_is_in_the_list(name: str) -> None:
    assert set(plan(name).study.reproduces) <= set(ITEMS)


@pytest.mark.parametrize("name", STUDIES)
def test_every_word_of_the_published_tables_and_the_trends_is_known(name: str) -> None:
    made = plan(name)
    require(made)
    for path in made.published:
        targets = Words(made).of(path)
        assert any(target.cell for target in targets), f"{name} runs nothing of {path.stem}"


def test_every_table_and_figure_with_results_has_a_study() -> None:
    covered = {item for name in STUDIES for item in plan(name).study.reproduces}
    assert sorted(item.id for item in ITEMS.values() if item.kind != "S" and item.id not in covered) == []


def test_a_wrong_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "papers.csv"
    head = "id,paper,place,kind,what\n"
    path.write_text(head + "a-1,A,table 1,X,what\n")
    with pytest.raises(UserError, match=r"papers\.csv, row 2: unknown kind 'X'"):
        published_words.items(path)
    path.write_text(head + "a-1,A,table 1,R,what\n" * 2)
    with pytest.raises(UserError, match=r"papers\.csv, row 3: 'a-1' appears twice"):
        published_words.items(path)
