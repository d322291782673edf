"""Published values beside ours: which cell is meant, and how far apart is too far."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import papers_study
import pytest
from papers_study import WORDS, beside_paper, compared, read, table

from fedshift.analysis import published_values, published_words, score
from fedshift.analysis.published_words import require
from fedshift.analysis.study_results import load
from fedshift.core.errors import UserError
from fedshift.io.text import write_text
from fedshift.page import summary

NAN = math.nan


@pytest.mark.parametrize(
    ("given", "wanted"),
    [  # t at 97.5 %, from a printed table: 2.306 (8), 4.303 (2), 2.776 (4)
        ((0.02, 5, 0.02, 5), 2.306 * 0.02 * math.sqrt(2 / 5)),
        ((0.1, 3, NAN, 5), 4.303 * 0.1 * math.sqrt(1 / 3 + 1 / 5)),
        ((0.1, 3, NAN, 1), 4.303 * 0.1 * math.sqrt(1 / 3 + 1)),
        ((0.1, 3, 0.02, 1), 4.303 * 0.1 * math.sqrt(1 / 3 + 1)),
        ((NAN, 1, 0.02, 5), 2.776 * 0.02 * math.sqrt(1 + 1 / 5)),
        ((0.0, 3, 0.0, 5), 0.0),
        ((NAN, 1, NAN, 5), NAN),
        ((NAN, 0, 0.02, 5), NAN),
    ],
)
def test_the_combined_uncertainty(given: tuple[float, int, float, int], wanted: float) -> None:
    assert published_values.combined(*given) == pytest.approx(wanted, rel=2e-4, nan_ok=True)


def rows(root: Path, text: str, **changes: Any) -> list[dict[str, Any]]:
    return read(*compared(root, text, **changes), "comparison").to_dict("records")  # type: ignore[return-value]


def test_values_are_held_against_the_cell_that_they_are_of(tmp_path: Path) -> None:
    """FedAvg at centre1: 0.5, 0.6, 0.7, mean 0.6 and std 0.1; FedBN 0.1 and TsmoBN 0.2 more."""
    near, far, other = rows(tmp_path, "FedAvg,base,H4,61.5,10 FedBN,base,H4,20,1 FedBN,tsmobn,centre1,90.0,")
    assert list(near) == published_values.COLUMNS
    assert (near["mean"], near["std"], near["seeds"]) == pytest.approx((0.6, 0.1, 3))
    assert (near["published"], near["published_std"]) == pytest.approx((0.615, 0.1))
    assert near["difference"] == pytest.approx(-0.015)
    assert (near["verdict"], near["condition"], near["inference"]) == ("within", "FedAvg, aggregated BN", "source")
    assert near["condition_id"].startswith("fedavg-aggregated-")
    assert far["condition_id"].startswith("fedavg-local-")
    assert [row["inference_id"] for row in (near, far, other)] == ["source", "source", "tsmobn"]
    # 0.7 against 0.2: by far more than about 4.3 x 0.1 / sqrt(3) = 0.25
    assert (far["verdict"], far["condition"]) == ("outside", "FedAvg, local BN")
    assert far["difference"] == pytest.approx(0.5)
    # without a printed std ours counts for both: 4.303 x 0.1 x sqrt(1/3 + 1/5), and half of a printed 0.1 %
    assert other["combined"] == pytest.approx(4.303 * 0.1 * math.sqrt(8 / 15) + 0.0005, rel=2e-4)
    assert (other["mean"], other["verdict"]) == (pytest.approx(0.9), "within")


def test_summary_has_the_published_value_of_the_first_table(tmp_path: Path) -> None:
    table(tmp_path, "FedBN,,H4,55.5,", "second")
    published = {"tables": ["fake-table1", "second"], "words": WORDS}
    plan, paths = beside_paper(tmp_path, "FedBN,,H4,61.5,2 ", published=published)
    found = read(plan, paths, "summary")
    given = found[found["published"].notna()]
    assert given[["bn", "inference", "site", "metric"]].to_numpy().tolist() == [
        ["local", "source", "centre1", "accuracy"]
    ]
    assert given[["published", "published_std"]].to_numpy().tolist() == [pytest.approx([0.615, 0.02])]
    assert len(found) == 2 * 2 * 4 * 2
    assert len(read(plan, paths, "comparison")) == 2


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({"scale": "mini"}, "not comparable", "mini scale"),
        ({"synthetic": True}, "not comparable", "synthetic data"),
        ({"seeds": [0]}, "no spread", "one seed, and no printed standard deviation"),
        ({"without": {"bn": "local"}}, "not run", ""),
        ({"runs": [{"algorithm": "fedavg"}]}, "not run", ""),
    ],
)
def test_where_there_is_no_verdict_its_reason_is_told(
    tmp_path: Path, changes: dict[str, Any], verdict: str, reason: str
) -> None:
    (row,) = rows(tmp_path, "FedBN,base,H4,61.5,", **changes)
    assert (row["verdict"], row["reason"]) == (verdict, reason)


def test_one_seed_is_judged_by_the_printed_spread(tmp_path: Path) -> None:
    """0.6 against 0.615: 2.776 x 0.02 x sqrt(1 + 1/5) = 0.061."""
    (row,) = rows(tmp_path, "FedBN,base,H4,61.5,2", seeds=[0])
    assert row["verdict"] == "within"
    assert row["combined"] == pytest.approx(0.0608 + 0.0005, abs=1e-4)


def test_a_study_may_say_that_nothing_is_comparable(tmp_path: Path) -> None:
    published = {"tables": "fake-table1", "words": WORDS, "not_comparable": "no ImageNet weights"}
    (row,) = rows(tmp_path, "FedBN,base,H4,61.5,2", published=published)
    assert (row["verdict"], row["reason"]) == ("not comparable", "no ImageNet weights")


def test_what_saw_labels_of_the_site_gets_no_verdict(tmp_path: Path) -> None:
    adapted = {"name": "source", "personalise": {"source": "val"}}
    words = WORDS | {"adapted": {"inference": adapted}}
    plain, seen = rows(
        tmp_path,
        "FedBN,base,H4,70,10 FedBN,adapted,H4,70,10",
        published={"tables": "fake-table1", "words": words},
        inferences=["source", adapted],
    )
    assert (plain["verdict"], plain["reason"]) == ("within", "")
    assert (seen["mean"], seen["verdict"]) == (plain["mean"], "not comparable")
    assert seen["reason"] == "ours is adapted to labelled validation images of the site"


def test_a_value_that_two_tables_print_counts_once(tmp_path: Path) -> None:
    """0.7 +- 0.1 is 70, and far from 20; the first table's verdict is the one that counts."""
    table(tmp_path, "FedBN,base,H4,20,1", "second")
    published = {"tables": ["fake-table1", "second"], "words": WORDS}
    found = read(*compared(tmp_path, "FedBN,base,H4,70,10 FedBN,tsmobn,H4,20,1", published=published), "comparison")
    assert list(found["verdict"]) == ["within", "outside", "outside"]
    assert published_values.counts(found)["within"] == 1
    assert published_values.counts(found)["outside"] == 1
    assert published_values.sentence(found[found["table"] == "second"]).startswith("0 of 1 within")


def test_misprints_are_among_what_a_summary_is_made_of(tmp_path: Path) -> None:
    table(tmp_path, "FedBN,base,H4,20,1")
    path = tmp_path / "config" / "published" / "fake-table1.csv"
    assert published_words.inputs([path]) == [path]
    write_text(path.with_name("misprints.csv"), "table,method,variant,site,metric,what\n")
    assert published_words.inputs([path]) == [path, path.with_name("misprints.csv")]


def test_a_misprint_gets_no_verdict(tmp_path: Path) -> None:
    text = "table,method,variant,site,metric,what\nfake-table1,FedBN,base,H4,accuracy_percent,a slip of the pen\n"
    write_text(tmp_path / "config" / "published" / "misprints.csv", text)
    wrong, right = rows(tmp_path, "FedBN,base,H4,1,2 FedBN,tsmobn,H4,88,2")
    assert (wrong["verdict"], wrong["reason"]) == ("not comparable", "a slip of the pen")
    assert right["verdict"] == "within"


def test_words_left_out_on_purpose_count_nowhere(tmp_path: Path) -> None:
    published = {"tables": "fake-table1", "words": WORDS | {"FedX": None, "other/*": None}}
    found = rows(tmp_path, "FedX,base,H4,1,2 FedBN,base,other/site,2,2 FedBN,base,H4,70,2", published=published)
    assert [row["published"] for row in found] == [pytest.approx(0.7)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FedBM,base,H4,1,2", "row 2: unknown word 'FedBM'; add it to published.words; did you mean 'FedBN'?"),
        ("FedBN,bass,H4,1,2", "row 2: unknown word 'bass'; add it to published.words; did you mean 'base'?"),
        ("FedBN,base,centre2,1,2", "row 2: unknown site 'centre2'; add it to published.words; did you mean 'centre"),
        ("FedBN,base,H4,one,2", "row 2: value 'one' is not a number"),
        ("FedBN,base;tsmobn,H4,1,2", "row 2: 'FedBN', 'base', 'tsmobn', 'H4': inference is both 'source' and 'tsmobn'"),
        ("FedAvg;,local_bn,H4,1,2", "row 2: unknown word 'FedAvg;'"),
    ],
)
def test_a_row_that_is_not_understood_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        beside_paper(tmp_path, text)
    assert f"fake-table1.csv, {said}" in str(caught.value)


def test_a_row_that_may_mean_several_conditions_is_refused(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg"}, {"algorithm": "fedavg", "training": {"lr": 0.5}}]
    with pytest.raises(UserError, match=r"2 conditions of the study fit, not one; .* published\.words: training\.lr"):
        beside_paper(tmp_path, "FedAvg,base,H4,1,2", runs=runs)


def test_all_unknown_words_are_told_at_once_and_each_once(tmp_path: Path) -> None:
    table(tmp_path, "FedX,base,H4,1,2 FedX,tsmobn,H4,1,2 FedBN,ours,H4,1,2")
    plan = papers_study.fake_study.plan(tmp_path, published={"tables": "fake-table1", "words": WORDS})
    with pytest.raises(UserError) as caught:
        require(plan)
    lines = str(caught.value).splitlines()
    assert [line.partition(": unknown word ")[2].partition(";")[0] for line in lines] == ["'FedX'", "'ours'"]


def test_a_site_of_several_roles_takes_where(tmp_path: Path) -> None:
    partition = [
        {"internal": ["centre0", "centre3"], "external": ["centre1"]},
        {"internal": ["centre0", "centre1"], "external": ["centre3"]},
    ]
    published = {"tables": "fake-table1", "words": WORDS}
    with pytest.raises(UserError, match=r"2 conditions of the study fit, not one; .*role"):
        beside_paper(tmp_path, "FedBN,base,H4,70,2", partition=partition, published=published)
    (row,) = rows(
        tmp_path, "FedBN,base,H4,70,2", partition=partition, published=published | {"where": {"role": "external"}}
    )
    assert row["condition"] == "FedAvg, local BN, held out centre1"


def test_the_line_over_a_table(tmp_path: Path) -> None:
    published = {"tables": "fake-table1", "words": WORDS | {"FedX": {"algorithm": "fedprox"}}}
    plan, paths = beside_paper(tmp_path, "FedAvg,base,H4,61.5,10 FedBN,base,H4,20,1 FedX,,H4,1,1 ", published=published)
    ((shown, line),) = published_values.tables(read(plan, paths, "comparison"))
    far = "largest difference +50.00 (FedBN, base, H4)"
    assert line == f"1 of 2 within the combined uncertainty; 1 not run; {far}"
    nb = "\N{NO-BREAK SPACE}"
    assert "Metric" not in shown.header, "it is the same in all rows"
    assert shown.rows[1][0] == "FedBN"
    assert shown.rows[1][-5:-1] == ("3", f"20.00{nb}±{nb}1.00", "+50.00", shown.rows[1][-2])
    assert shown.rows[1][-1] == "outside"
    assert shown.rows[2][-1] == "not run"
    for kind in ("csv", "md", "tex"):
        assert (paths.study(plan.name) / "tables" / f"comparison.{kind}").is_file()
    cells = list(csv.reader((paths.study(plan.name) / "tables" / "comparison.csv").read_text().splitlines()))
    assert cells[2][:3] == ["fake-table1", "FedBN", "base"]


def test_a_study_without_published_values_has_empty_tables(tmp_path: Path) -> None:
    plan, paths = beside_paper(tmp_path)
    assert read(plan, paths, "comparison").empty
    assert read(plan, paths, "trends").empty


def test_a_published_table_must_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("method,site,metric\n")
    with pytest.raises(UserError, match=r"t\.csv: no column value"):
        published_words.rows(path)
    path.write_text("method,site,metric,value\nFedBN,A,accuracy\n")
    with pytest.raises(UserError, match=r"t\.csv, row 2: has too many or too few cells"):
        published_words.rows(path)


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    plan, paths = beside_paper(tmp_path, "FedAvg,base,H4,61.5,10")
    path = paths.study(plan.name) / "comparison.csv"
    before = path.read_bytes()
    score.score(plan, paths)
    summary.summarise(load(plan, paths))
    assert path.read_bytes() == before
