"""Names of files: each once, in the folder that it belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift.io.paths import TRAINED, DataFiles, Paths, RunFiles, StudyFiles, papers


@pytest.mark.parametrize("files", [DataFiles, RunFiles, StudyFiles])
def test_no_two_files_of_a_folder_share_a_name(files: type[DataFiles | RunFiles | StudyFiles]) -> None:
    folder = Path("somewhere")
    values = [getattr(files(folder), name) for name, value in vars(files).items() if isinstance(value, property)]
    paths = [value for value in values if isinstance(value, Path)]
    groups = [path for value in values if isinstance(value, tuple) for path in value]
    assert all(path.is_relative_to(folder) for path in (*paths, *groups))
    assert len(set(paths)) == len(paths) > 1


def test_wildcards_of_the_workflow_stand_for_names() -> None:
    paths = Paths()
    assert str(paths.run_files("{run}").model) == "results/runs/{run}/model.safetensors"
    assert str(paths.predictions("{run}", "{inference}")) == "results/runs/{run}/predictions-{inference}.parquet"
    assert (
        str(paths.study_files("{study}").table("{table}", "{form}")) == "results/studies/{study}/tables/{table}.{form}"
    )
    assert str(paths.log("train", "{run}")) == "results/logs/train/{run}.log"


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "c")])
def test_too_few_or_too_many_names_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=f"takes 2 names, not {len(names)}"):
        Paths().log(*names)


def test_a_finished_training_has_its_manifest_and_no_checkpoint() -> None:
    files = RunFiles(Path("run"))
    assert [path.name for path in files.trained] == [*TRAINED]
    assert files.manifest in files.trained
    assert not {files.state, files.lock, files.round_log} & {*files.trained}


def test_every_run_and_study_is_a_folder_in_order_of_its_name(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    assert paths.every_run() == []
    assert paths.every_study() == []
    for name in "ba":
        paths.run(name).mkdir(parents=True)
        paths.study(name).mkdir(parents=True)
    (paths.run("a").parent / "notes.txt").touch()
    assert paths.every_run() == [paths.run_files("a"), paths.run_files("b")]
    assert paths.every_study() == [paths.study_files("a"), paths.study_files("b")]


def test_the_list_of_papers_is_beside_the_studies_or_comes_with_fedshift(tmp_path: Path) -> None:
    assert papers(tmp_path / "studies") == Path(__file__).parents[2] / "config" / "papers.csv"
    (tmp_path / "papers.csv").touch()
    assert papers(tmp_path / "studies") == tmp_path / "papers.csv"
