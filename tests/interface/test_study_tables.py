"""Studies and their results, opened: what they hold, and one line where that cannot be read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import my_study
import numpy as np
import pandas as pd
import pytest

import fedshift
from fedshift.io.paths import Paths


def test_a_study_says_what_it_asks_and_what_it_runs(here: Path) -> None:
    by_name = fedshift.load_study(my_study.NAME)
    by_path = fedshift.load_study(here / "config" / "studies" / "my-study.yaml", "paper")
    for study in (by_name, by_path):
        assert (study.name, study.title, study.question) == (my_study.NAME, *list(my_study.STUDY.values())[:2])
        assert {(run.algorithm.name, run.bn, run.seed) for run in study.runs.values()} == {
            ("fedavg", "local", 0),
            ("fedavg", "local", 1),
        }
    assert set(by_name.runs) == {folder.name for folder in (here / "results" / "runs").iterdir()}
    (condition,) = by_name.conditions.values()
    assert set(condition.runs) == set(by_name.runs)


def test_a_study_is_read_without_torch_and_pandas(here: Path) -> None:
    code = "import fedshift, sys; print(len(fedshift.load_study('my-study').runs), *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    runs, *modules = done.stdout.split()
    assert runs == "2"
    assert not {"torch", "pandas", "scipy", "sklearn", "matplotlib"} & set(modules)


def test_results_are_the_files_of_the_study(here: Path) -> None:
    tables = fedshift.results(my_study.NAME)
    folder = here / "results" / "studies" / my_study.NAME
    for name in ("scores", "summary", "effects", "comparisons", "comparison"):
        written = pd.read_csv(folder / f"{name}.csv")
        read = getattr(tables, name)
        assert list(read) == list(written)
        assert len(read) == len(written)
    np.testing.assert_array_equal(tables.scores["value"], pd.read_csv(folder / "scores.csv")["value"])
    for name in ("overview", "sites", "conditions"):
        written = pd.read_csv(folder / "tables" / f"{name}.csv", dtype=str)
        pd.testing.assert_frame_equal(getattr(tables, name).astype(object), written.astype(object), check_dtype=False)
    assert tables.names == [name for name in tables.names if len(tables.table(name).columns)]


def test_rounds_are_those_of_all_runs(here: Path) -> None:
    rounds = fedshift.results(my_study.NAME).rounds
    for name, run in fedshift.load_study(my_study.NAME).runs.items():
        mine = rounds[rounds["run"] == name]
        assert set(mine["seed"]) == {run.seed}
        assert set(mine["bn"]) == {"local"}
        log = [json.loads(line) for line in Paths().run_files(name).round_log.read_text().splitlines()]
        logged = [row["loss"] for entry in log for row in entry["rows"]]
        np.testing.assert_array_equal(mine["loss"], logged)


def test_every_way_to_name_a_study_gives_its_results(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, folder = fedshift.load_study(my_study.NAME), Path("results", "studies", my_study.NAME)
    found = [fedshift.results(named) for named in (my_study.NAME, str(folder), folder.absolute(), study)]
    assert {tables.folder for tables in found} == {folder.absolute()}
    monkeypatch.chdir(folder)
    assert [len(tables.scores) for tables in found] == [len(study.results().scores)] * 4, "from another folder, too"


Harm = Callable[[Path], object]


def another_table(text: str) -> Harm:
    """Write another table, which no record of a checksum speaks of."""
    return lambda path: (path.write_text(text), path.with_name(".scores.csv.sha256").unlink())


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda path: path.unlink(), "scores.csv: no such file; score and report the study first"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "scores.csv: is damaged or was changed: its SHA-256"),
        (lambda path: path.write_text(""), "scores.csv: is empty, and was not when it was written"),
        (another_table("a,b\n1,2\n"), "scores.csv: no column 'run', 'site', 'role'"),
        (another_table("\x00\x01"), "scores.csv: "),
    ],
    ids=["gone", "cut", "empty", "other columns", "no text"],
)
def test_a_table_that_is_not_as_it_was_written_is_one_line(here: Path, tmp_path: Path, harm: Harm, words: str) -> None:
    folder = shutil.copytree(here / "results" / "studies" / my_study.NAME, tmp_path / "study")
    harm(folder / "scores.csv")
    with pytest.raises(fedshift.UserError) as caught:
        fedshift.results(folder).scores  # noqa: B018
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_study_that_has_not_run_has_no_results(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = here / "config" / "studies" / "my-study.yaml"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fedshift.UserError, match=r"results/studies/my-study: no such folder; run the study first"):
        fedshift.load_study(path).results()
    with pytest.raises(fedshift.UserError, match="my-study: no such folder, and no results of a study of this name"):
        fedshift.results("my-study")


def test_a_wrong_study_is_one_line_a_fault(here: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("title: x\ndatasett: y\n")
    with pytest.raises(fedshift.UserError) as caught:
        fedshift.load_study(tmp_path / "wrong.yaml")
    assert f"{tmp_path / 'wrong.yaml'}.datasett: unknown key 'datasett'; did you mean 'dataset'?" in str(caught.value)
    with pytest.raises(fedshift.UserError, match=r"scale: unknown scale 'tiny'; known: mini, paper"):
        fedshift.load_study("my-study", "tiny")  # type: ignore[arg-type]
