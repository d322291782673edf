"""The papers on a study's page, and the index of all studies."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import once
import pandas as pd
import pytest
import yaml
from fake_study import EVIL
from outline import Outline
from papers_study import beside_paper, scored_beside

from fedshift.analysis.published_values import Claim, Reproduction
from fedshift.analysis.study_results import load
from fedshift.cli import parser as cli
from fedshift.io import checksums
from fedshift.io.paths import Paths
from fedshift.page import gallery, page, sections
from fedshift.study.plan import Plan

TREND = {"claim": f"Local BN is better {EVIL}", "better": {"bn": "local"}, "than": {"bn": "aggregated"}}
ROWS = "FedAvg,base,H4,61.5,10 FedBN,base,H4,20,1"
TINY: dict[str, Any] = {
    "title": f"Tiny {EVIL}",
    "dataset": {"name": "own_images", "table": "samples.csv"},
    "partition": {"internal": ["A", "B"], "external": ["C"]},
    "model": "mlp",
    "runs": [{"algorithm": "fedavg"}],
    "seeds": [0, 1],
    "inferences": ["source"],
}


def shown(root: Path, rows: str = ROWS, **changes: Any) -> tuple[Plan, Paths, str]:
    """Return a study beside a paper, and its page; both are made once for the same arguments."""
    changes = {"trends": [TREND], "reproduces": ["p-table1"]} | changes

    def make(folder: Path) -> None:
        page.write(load(*beside_paper(folder, rows, **changes)))

    once.written(root, (rows, changes), make)
    plan, paths = scored_beside(root, rows, **changes)
    return plan, paths, paths.page(plan.name).read_text(encoding="utf-8")


def test_the_page_shows_trends_and_published_values(tmp_path: Path) -> None:
    _, _, text = shown(tmp_path)
    assert "<script" not in text.lower()
    outline = Outline(text)
    places = [text.index(f'id="{name}"') for name in ("sites", "trends", "published", "cohort")]
    assert places == sorted(places)
    assert "1 of 1 surely hold." in outline.text
    assert f"yes Local BN is better {EVIL} (" not in outline.text
    assert (
        "bn local is above bn aggregated in accuracy at 2 of 4 sites; on average the difference is +5.0" in outline.text
    )
    assert "1 of 2 within the combined uncertainty; largest difference +50.00 (FedBN, base, H4)." in outline.text
    assert "of twenty values that agree, one will be outside by chance" in outline.text
    assert "Reproduces p-table1" in outline.text
    assert '<td class="num worse">outside' in text
    ids = [a["id"] for _, a in outline.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_mini_scale_does_not_count(tmp_path: Path) -> None:
    outline = Outline(shown(tmp_path, scale="mini")[2])
    assert "Does not count: mini scale." in outline.text
    assert "2 not comparable." in outline.text
    assert "not comparable (mini scale)" in outline.text


def test_long_tables_are_folded(tmp_path: Path) -> None:
    rows = " ".join(f"FedBN,{n},H4,{n},1" for n in range(41))
    words = {"words": {str(n): {} for n in range(41)} | {"H4": {"site": "centre1"}}}
    published = {"tables": "fake-table1", "where": {"inference": "source"}} | words
    assert "All 41 values" in Outline(shown(tmp_path, rows, published=published)[2]).text


def test_a_page_without_papers_has_neither_section(tmp_path: Path) -> None:
    text = shown(tmp_path, "", trends=[], reproduces=[])[2]
    assert 'id="trends"' not in text
    assert 'id="published"' not in text


def test_a_trend_in_doubt_is_not_counted_as_one_that_holds() -> None:
    """Of two that hold, one lies within the noise of seeds; one of two that fail does, too; one was not run."""
    outcomes = [("yes", ""), ("yes", "within the noise of seeds"), ("no", ""), ("no", "one seed"), ("not run", "")]
    claims = [Claim("a claim", held, "a sentence", doubt) for held, doubt in outcomes]
    counts = Reproduction(
        pd.DataFrame(columns=["condition_id", "inference_id", "site", "metric", "verdict"]), claims, ""
    ).headline()["trends"]
    assert counts == {"held": 1, "doubtful": 2, "judged": 4, "of": 5, "reason": ""}
    assert gallery._trends(counts) == "1 of 4 surely hold; 2 in doubt; 1 not run"
    tones = [sections._trend(claim, without_count=False).tone for claim in claims]
    assert tones == ["better", "", "worse", "", ""]


def test_the_headline_is_written_with_the_page(tmp_path: Path) -> None:
    plan, paths, text = shown(tmp_path, without={"bn": "aggregated", "seed": 2})
    told = json.loads(paths.study_files(plan.name).headline.read_text())
    assert (told["runs"], told["missing"], told["scale"], told["synthetic"]) == (6, 1, "paper", False)
    # it holds, but a seed is missing on one side
    assert told["trends"] == {"held": 0, "doubtful": 1, "judged": 1, "of": 1, "reason": ""}
    assert (told["published"]["within"], told["published"]["outside"]) == (1, 1)
    assert told["reproduces"] == ["p-table1"]
    assert html.escape(told["lead"])[:60] in text


def test_what_is_wrong_with_the_data_stands_in_the_headline_and_the_index(tmp_path: Path) -> None:
    """A patient of centre0 is at an external site."""

    def shared(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(patient=table["patient"].where(table["site"] != EVIL, "centre0/0"))

    plan, paths, _ = shown(tmp_path, change=shared)
    (problem,) = json.loads(paths.study_files(plan.name).headline.read_text())["problems"]
    assert problem.startswith("Patients shared by internal and external sites: 1 shared (10 images at centre0 and")
    text = gallery.write(tmp_path / "studies", paths).read_text(encoding="utf-8")
    assert f"PROBLEM {problem}" in Outline(text).text
    assert problem not in text, "names of sites are escaped"


@pytest.fixture
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study that was shown, in the folder's words, and two that were not."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "config" / "studies"
    folder.mkdir(parents=True)
    for name in ("begun", "new"):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(TINY | {"reproduces": ["p-fig1"]}))
    (tmp_path / "config" / "papers.csv").write_text(
        "id,paper,place,kind,what\np-table1,P,table 1,R,numbers\np-fig1,P,figure 1,F,<b>curves</b>\n"
        "p-fig2,P,figure 2,F,more\np-fig3,P,figure 3,S,a drawing\n"
    )
    shown(tmp_path)
    return tmp_path


def index(project: Path) -> tuple[str, str]:
    assert cli.main(["index"]) == 0
    text = (project / "reports" / "index.html").read_text(encoding="utf-8")
    return text, Outline(text).text


def test_the_index_shows_all_that_lies_there(project_folder: Path) -> None:
    text, words = index(project_folder)
    assert "<script" not in text.lower()
    assert "<b>curves" not in text
    assert "3 studies, 1 with a page." in words
    assert "1 of 3 complete at paper scale on real data." in words
    assert "Of 3 tables and figures of the papers with results, 2 have a study." in words
    assert "fake : complete" in words
    assert 'href="fake.html"' in text
    assert "Reproduces P table 1 (printed numbers)" in words
    assert "Trends: 1 of 1 surely hold. Published values: 1 within, 1 outside." in words
    assert words.count("not run") >= 2
    assert re.search(r"p-fig2 P figure 2 figure only more none –", words)
    assert "Settings and illustrations: 1" in words
    ids = [a["id"] for _, a in Outline(text).tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_own_studies_come_first_and_have_no_scale(project_folder: Path) -> None:
    (project_folder / "config/studies/mine.yaml").write_text(yaml.safe_dump(TINY))
    text = index(project_folder)[0]
    assert text.index('id="studies"') < text.index('id="mine"') < text.index('id="papers"') < text.index('id="fake"')
    own = text[text.index('id="studies"') : text.index('id="papers"')]
    assert "mine" in own and "begun" not in own
    assert not re.search(r"\b(mini|paper)\b", Outline(own).text)


def test_without_own_studies_the_index_names_the_template(project_folder: Path) -> None:
    assert "There are none yet. config/studies/own-hospitals-example.yaml is a template" in index(project_folder)[1]


def test_a_folder_of_own_studies_speaks_of_no_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the page, nor the index, nor the commands on them."""
    monkeypatch.chdir(tmp_path)
    text = shown(tmp_path, trends=[], reproduces=[], rows="")[2]
    (tmp_path / "config" / "studies").mkdir(parents=True, exist_ok=True)
    for html_text in (text, index(tmp_path)[0]):
        words = Outline(html_text.partition("<body>")[2]).text
        assert not re.search(r"\b(mini|paper|papers)\b", words, re.IGNORECASE)


def test_what_is_unfinished_or_out_of_date_is_told(project_folder: Path) -> None:
    from fedshift import study

    runs = study.load(project_folder / "config/studies/begun.yaml", "mini").runs
    folder = project_folder / "results" / "runs" / next(iter(runs))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text("{}")
    (project_folder / "config/studies/new.yaml").write_text("title: [")
    shutil.copy(project_folder / "config/studies/begun.yaml", project_folder / "config/studies/fake.yaml")
    (project_folder / "reports" / "old.html").write_text("x")
    (project_folder / "config/studies/old.yaml").write_text(yaml.safe_dump(TINY))
    words = index(project_folder)[1]
    assert "begun : incomplete: 1 of 2 runs trained Reproduces" in words
    assert "new : not valid:" in words
    assert "fake : out of date: the study has changed since" in words
    assert "old : an old page: run fedshift report again" in words
    (project_folder / "reports" / "fake.html").unlink()
    assert "its page is missing" in index(project_folder)[1]


def test_the_index_needs_no_list_of_papers(project_folder: Path) -> None:
    (project_folder / "config" / "papers.csv").unlink()
    text, words = index(project_folder)
    assert 'id="coverage"' not in text
    assert "p-table1 (not in the list of papers)" in words


def test_made_up_data_and_a_broken_file(project_folder: Path) -> None:
    paths = Paths(project_folder)
    shown(project_folder, synthetic=True)
    assert "synthetic" in index(project_folder)[1]
    assert "Trends: do not count: synthetic data" in index(project_folder)[1]
    paths.study_files("fake").headline.write_text("{")
    assert "PROBLEM results/studies/fake/headline.json: not a readable JSON file" in index(project_folder)[1]


def test_a_damaged_headline_is_named_with_its_command_beside_the_other_studies(
    project_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is still JSON, but not what was written. A study that is in no folder has no command but `rm`."""
    paths = Paths(project_folder)
    shutil.copy(project_folder / "config/studies/begun.yaml", project_folder / "config/studies/fake.yaml")
    files = [paths.study_files(name).headline for name in ("fake", "foreign")]
    files[1].parent.mkdir(parents=True)
    content = files[0].read_text(encoding="utf-8")
    for file in files:
        file.write_text(content, encoding="utf-8")
        checksums.record(file)
        file.write_text(content.replace("1", "2"), encoding="utf-8")
    text, words = index(project_folder)
    said = capsys.readouterr()
    for entry in ("begun : not run", "new : not run", "fake : damaged", "foreign : damaged"):
        assert entry in words
    fault = "is damaged or was changed: its SHA-256 checksum is not the one recorded when it was written"
    again = "fedshift run fake --forcerun results/studies/fake/headline.json"
    mends = {
        "fake": f"Make it again: {again}",
        "foreign": "The study is not in this folder; remove it: rm results/studies/foreign/headline.json",
    }
    for name, mend in mends.items():
        line = f"results/studies/{name}/headline.json: {fault}. The result of this study is not shown. {mend}"
        assert line in words
        assert line.lower() in (said.out + said.err).lower()
    assert 'href="fake.html"' in text, "its page is whole"


def test_no_study_may_be_called_index(project_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project_folder / "config/studies/index.yaml").write_text(yaml.safe_dump(TINY))
    assert cli.main(["check", "index"]) == 2
    assert "reports/index.html is the index of all studies" in capsys.readouterr().err
