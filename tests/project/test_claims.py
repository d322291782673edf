"""The table of the papers' claims agrees with the files of the studies, and its rules are those of the page."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).parents[2]
CLAIMS: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "claims.py"))
Finding = CLAIMS["Finding"]
LIST = yaml.safe_load((ROOT / "docs/reproductions/claims.yaml").read_text(encoding="utf-8"))


def test_the_page_has_the_table_that_the_files_make() -> None:
    page = (ROOT / "docs/reproductions.md").read_text(encoding="utf-8")
    assert page == CLAIMS["written"](page), "write it again: make claims"


def test_every_claim_of_the_papers_has_a_row() -> None:
    """The papers put 51 claims in words: FedBN 19, TsmoBN 11, UniFed 8, FedTAN 13."""
    papers = [claim["paper"] for claim in LIST]
    assert {paper: papers.count(paper) for paper in papers} == {"FedBN": 19, "TsmoBN": 11, "UniFed": 8, "FedTAN": 13}
    for claim in LIST:
        assert claim.get("evidence") or claim["why"], "an untested claim says why"


@pytest.mark.parametrize(
    ("verdicts", "each", "expected"),
    [
        ([], False, "untested"),
        (["held", "held"], False, "held"),
        (["held", "failed"], False, "failed"),
        (["cannot tell", "failed"], False, "failed"),
        (["held", "cannot tell"], False, "cannot tell"),
        (["held", "failed"], True, "cannot tell"),
        (["failed", "failed"], True, "failed"),
    ],
)
def test_parts_and_repetitions_of_a_claim(verdicts: list[str], each: bool, expected: str) -> None:
    assert CLAIMS["judged"]([Finding(verdict, "") for verdict in verdicts], each) == expected


def test_the_sign_test_is_that_of_fair_coins() -> None:
    """0 of 5: 2 / 32. 1 of 6: 2 (1 + 6) / 64. A half is certain to be reached."""
    test = CLAIMS["sign_test"]
    assert (test(0, 5), test(5, 5), test(1, 6), test(2, 4)) == (0.0625, 0.0625, 0.21875, 1.0)


def test_a_difference_has_the_t_interval_over_its_seeds() -> None:
    """The quantiles are 2.776 for five seeds, and 12.706 for two."""
    assert CLAIMS["interval"](0.1, 0.02, 5, percent=True) == "+10.0 (+4.4 to +15.6)"
    assert CLAIMS["interval"](0.1, 0.02, 2, percent=True) == "+10.0 (−15.4 to +35.4)"
    assert CLAIMS["interval"](-0.5, float("nan"), 1, percent=False) == "−0.500"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which claims look for the tables of studies."""
    monkeypatch.setitem(CLAIMS["records"].__globals__, "FOLDER", tmp_path)
    return tmp_path


SUMMARY = """algorithm,metric,inference,site,mean,std,seeds
a,accuracy,source,x,0.80,0.02,4
b,accuracy,source,x,0.70,0.02,4
a,auc,source,x,0.1,0.1,4
"""


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [
        ({}, "held"),
        ({"by": 8}, "cannot tell"),
        ({"by": 15}, "failed"),
        ({"within": 15}, "held"),
        ({"within": 5}, "failed"),
    ],
)
def test_levels_are_compared_with_a_margin(folder: Path, bound: dict[str, float], verdict: str) -> None:
    """+10 points; each side has 0.02 / sqrt(4) = 1, so that 3.182 standard errors of four seeds are 4.5 points."""
    (folder / "s.csv").write_text(SUMMARY, encoding="utf-8")
    evidence = {"levels": "s.csv", "better": {"algorithm": "a"}, "than": {"algorithm": "b"}}
    found = CLAIMS["levels"](evidence | bound)
    assert found == Finding(verdict, "+10.0 (+5.5 to +14.5)")


SEEDS = """method,client,seed,round,loss
a,x,0,1,0.9
a,x,0,3,0.6
a,x,0,2,0.4
a,y,0,1,0.9
a,y,0,2,0.8
a,y,0,3,0.8
a,x,1,1,0.5
a,x,1,2,0.1
a,x,1,3,0.5
b,x,0,1,0.2
b,x,0,2,0.1
b,x,0,3,0.1
b,x,1,1,0.3
b,x,1,2,0.2
b,x,1,3,0.2
"""


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        # means over clients and rounds: a 0.7333 and 0.3667, b 0.1333 and 0.2333
        ({}, "+0.367 (−2.598 to +3.331)"),
        # the last round above the lowest: a has 0.2 and 0 at its clients, then 0.4; b has 0
        ({"over": "rise"}, "+0.250 (−1.656 to +2.156)"),
        ({"over": "wobble", "where": {"client": "x"}}, "+0.300 (−0.971 to +1.571)"),
        ({"over": "rise", "plus": [{"method": "b"}]}, "+0.000 (+0.000 to +0.000)"),
    ],
)
def test_seeds_are_compared_with_themselves(folder: Path, settings: dict[str, Any], numbers: str) -> None:
    (folder / "s.csv").write_text(SEEDS, encoding="utf-8")
    evidence = {"seeds": "s.csv", "value": "loss", "plus": [{"method": "a"}], "minus": [{"method": "b"}]}
    assert CLAIMS["seeds"](evidence | settings).numbers == numbers


@pytest.mark.parametrize(
    ("seed", "by", "verdict"), [(["0", "1"], -2, "held"), (["0", "1"], 2, "failed"), ("0", -2, "cannot tell")]
)
def test_a_single_seed_decides_nothing(folder: Path, seed: Any, by: float, verdict: str) -> None:
    (folder / "s.csv").write_text(SEEDS, encoding="utf-8")
    evidence = {"seeds": "s.csv", "value": "loss", "where": {"seed": seed, "client": "x"}, "over": "rise", "by": by}
    evidence |= {"plus": [{"method": "a"}], "minus": [{"method": "b"}]}
    assert CLAIMS["seeds"](evidence).verdict == verdict


TRENDS = """claim,sentence,held,mean_difference,se,seeds,by,within,sites_for,sites,doubt
a,by 1 points,yes,0.1,0.01,5,0.01,,2,2,
b,x,yes,0.1,0.2,5,0,,2,2,within the noise of seeds
c,x,cannot tell,,,,,,,,neither side is above chance
d,x,yes,-0.013,0.002,3,-0.02,,1,1,
e,x,yes,-0.010,0.002,3,-0.02,,1,1,
f,x,yes,-0.010,0.002,3,0,0.02,1,1,
g,x,yes,-0.013,0.002,3,0,0.02,1,1,
"""


@pytest.fixture
def trends(folder: Path) -> Path:
    (folder / "t.csv").write_text(TRENDS, encoding="utf-8")
    (folder / "studies.yaml").write_text("s: { untrained: few steps, writes: { u.csv: t.csv } }\n", encoding="utf-8")
    return folder


def test_doubtful_trends_decide_nothing(trends: Path) -> None:
    found = [CLAIMS["trend"]({"trend": "t.csv", "row": row}) for row in "abc"]
    assert [one.verdict for one in found] == ["held", "cannot tell", "cannot tell"]
    assert found[0].numbers == "+10.0 (+7.2 to +12.8), 2 of 2"
    against = [CLAIMS["trend"]({"trend": "t.csv", "row": "a", "by": by}).verdict for by in (7, 9, 13)]
    assert against == ["held", "cannot tell", "failed"], "another margin than the trend's"


@pytest.mark.parametrize(("row", "verdict"), [("d", "cannot tell"), ("e", "held"), ("f", "held"), ("g", "cannot tell")])
def test_the_noise_of_a_trend_is_about_its_own_margin(trends: Path, row: str, verdict: str) -> None:
    """Half of the interval of three seeds is 4.303 * 0.002 = 0.0086, between 0.007 and 0.010."""
    assert CLAIMS["trend"]({"trend": "t.csv", "row": row}).verdict == verdict


def test_networks_far_from_trained_decide_nothing(trends: Path) -> None:
    (trends / "u.csv").write_text(TRENDS, encoding="utf-8")
    found = [CLAIMS["finding"]({"trend": name, "row": "a"}) for name in ("t.csv", "u.csv")]
    assert [one.verdict for one in found] == ["held", "cannot tell"]
    assert found[1].numbers.endswith("(far from trained)")


def test_all_that_a_study_says_of_a_claim_is_listed() -> None:
    """The loss at the paper's own digits, which hardly differs, stands beside that of the small study."""
    (claim,) = [one for one in LIST if one["claim"] == "the training loss falls faster with FedBN"]
    folder = ROOT / "docs/reproductions"
    rows = {
        path for path in folder.glob("fedbn-*/trends*.csv") if claim["evidence"][0]["row"] in path.read_text("utf-8")
    }
    assert {str(path.relative_to(folder)) for path in rows} == {part["trend"] for part in claim["evidence"]}


def test_two_claims_of_fedbn_are_stronger_than_its_tables() -> None:
    """The page has 5.4 points over training alone on Office-Caltech10, and 6 of 45 pairs of table 13 against it."""
    table = pd.read_csv(ROOT / "config/published/fedbn-table1.csv")
    office = table[table["site"].str.startswith("office")].groupby("method")["value"].mean()
    others = office.drop("FedBN")
    assert office["FedBN"] - others.max() == pytest.approx(5.4, abs=0.05)
    grid = pd.read_csv(ROOT / "config/published/fedbn-table13.csv")
    wide = grid.pivot(index=["variant", "site"], columns="method", values="value")
    assert (len(wide), int((wide["FedBN"] < wide["FedAvg"]).sum())) == (45, 6)
