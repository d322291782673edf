"""The keys of config/config.yaml, the calls that messages name, and paths that count from a study."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from snakemake.path_modifier import PathModifier
from snakemake.settings.types import DeploymentMethod

from fedshift import study
from fedshift.core.errors import UserError
from fedshift.io import shipped
from fedshift.io.paths import Paths, papers
from fedshift.io.shipped import SHIPPED
from fedshift.study import calls
from fedshift.study.calls import DEFAULTS, complete, require_own_paths, scale_of
from fedshift.study.published import table_path

ROOT = Path(__file__).parents[2]
OWN: dict[str, Any] = {
    "title": "Own",
    "partition": {"internal": ["A"], "external": ["B"]},
    "model": "mlp",
    "runs": [{"algorithm": "fedavg"}],
    "inferences": ["source"],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(folder: str, table: str | Path, **dataset: str) -> Path:
    """A study of a table of own images, in a folder."""
    path = Path(folder, "own.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    spec = {"name": "own_images", "size": 8, "table": str(table), **dataset}
    path.write_text(yaml.safe_dump(OWN | {"dataset": spec}), encoding="utf-8")
    return path


def the_run(path: Path) -> tuple[str, str]:
    """The ids of the data and of the run of a study."""
    ((key, run),) = study.load(path, "mini").runs.items()
    return run.data.id, key


# ---- keys


def test_missing_and_empty_keys_have_their_defaults() -> None:
    assert complete({}) == DEFAULTS
    assert complete({"study": "x", "scale": None}) == DEFAULTS | {"study": "x"}


def test_unknown_keys_are_refused_and_those_of_another_workflow_are_not() -> None:
    with pytest.raises(UserError, match=r"^--config: unknown key 'scal'; did you mean 'scale'\?$"):
        complete({"scal": "paper"})
    assert complete({"scal": "paper", "samples": "x.tsv"}, foreign=True) == DEFAULTS


def test_every_key_is_documented_and_has_the_default_of_the_file() -> None:
    assert yaml.safe_load((ROOT / "config" / "config.yaml").read_text()) == DEFAULTS
    rows = re.findall(
        r"^\| `(\w+)` \| (?:`([^`]+)`|none) \|", (ROOT / "config" / "README.md").read_text(), re.MULTILINE
    )
    assert {key: value and yaml.safe_load(value) for key, value in rows} == DEFAULTS | dict.fromkeys(
        ["mirror", "plugins"], ""
    )


@pytest.mark.parametrize("paths", [{"prefix": "a"}, {"prefix": None, "replace_prefix": {"results/": "b/"}}])
def test_a_module_with_other_paths_is_refused(paths: dict[str, Any]) -> None:
    other = PathModifier(paths.get("replace_prefix"), paths["prefix"], None)
    other.apply_default_storage = lambda path: path  # type: ignore[method-assign]
    with pytest.raises(UserError, match="prefix or replace_prefix"):
        require_own_paths(SimpleNamespace(modifier=SimpleNamespace(path_modifier=other)))
    plain = SimpleNamespace(modifier=SimpleNamespace(path_modifier=PathModifier(None, None, None)))
    require_own_paths(plain)


def test_conda_jobs_of_an_installation_see_the_package_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the libraries beside it, which are those of another Python."""

    def workflow(*methods: DeploymentMethod) -> SimpleNamespace:
        return SimpleNamespace(deployment_settings=SimpleNamespace(deployment_method=set(methods)))

    assert shipped.python_path(workflow()) == shipped.PACKAGE.parent, "the sources of a clone"
    monkeypatch.setattr(shipped, "SHIPPED", shipped.INSIDE)
    assert shipped.python_path(workflow()) is None
    for _ in range(2):
        folder = shipped.python_path(workflow(DeploymentMethod.CONDA))
        assert folder is not None
        assert [path.resolve() for path in folder.iterdir()] == [shipped.PACKAGE]
    assert folder.is_relative_to(tmp_path)


# ---- the scale of a call


@pytest.mark.parametrize(("text", "scale"), [("", "mini"), ("scale:\n", "mini"), ("scale: paper\n", "paper")])
def test_the_scale_of_a_project_is_that_of_its_configuration(text: str, scale: str) -> None:
    assert scale_of() == "mini", "without a configuration"
    Path("config").mkdir(exist_ok=True)
    Path("config/config.yaml").write_text(text)
    assert scale_of() == scale


def test_an_unknown_scale_in_the_configuration() -> None:
    Path("config").mkdir(exist_ok=True)
    Path("config/config.yaml").write_text("scale: papers\n")
    with pytest.raises(UserError, match=r"config/config.yaml.scale: unknown scale 'papers'; did you mean 'paper'"):
        scale_of()


# ---- calls


@pytest.mark.parametrize("snakefile", ["that of the clone", "one that includes it", ""])
def test_the_call_is_that_of_the_docs_for_the_folder(snakefile: str) -> None:
    """A clone is run with snakemake; a project, whose Snakefile includes the workflow, with fedshift run."""
    start = "fedshift run demo --scale mini"
    if snakefile == "that of the clone":
        Path("Snakefile").symlink_to(shipped.SNAKEFILE)
        start = "snakemake --cores all --config study=demo scale=mini"
    elif snakefile:
        Path("Snakefile").write_text("from fedshift.io.shipped import SNAKEFILE\n")
    assert calls.unlock().startswith(start.split()[0])
    assert calls.dry_run().startswith(start.split()[0])
    plan = study.load(study.find("demo", Path("config/studies")), "mini")
    assert plan.path == SHIPPED / "config" / "studies" / "demo.yaml"
    assert calls.snakemake(plan, Paths()) == start
    assert calls.snakemake(plan, Paths(), [Path("a b")]) == f"{start} -- 'a b'"


def test_a_study_that_hides_a_shipped_one_is_not_confused_with_it() -> None:
    shipped = study.load(study.find("demo", Path("config/studies")), "mini")
    own = written("config/studies", "t.csv").rename("config/studies/demo.yaml")
    assert study.find("demo", Path("config/studies")) == own
    assert str(shipped.path) in calls.snakemake(shipped, Paths())


# ---- where studies and published tables are


def test_all_studies_are_the_projects_own_if_it_has_any() -> None:
    folder = Path("config/studies")
    assert set(study.known(folder)) == set(study.names(SHIPPED / "config" / "studies"))
    written("config/studies", "t.csv")
    assert list(study.select("all", "mini", folder)) == ["own"]
    assert {"own", "demo"} <= set(study.known(folder))


def test_published_tables_are_those_of_the_project_before_the_shipped() -> None:
    folder = Path("config/studies")
    assert table_path("unifed-table2", folder) == SHIPPED / "config" / "published" / "unifed-table2.csv"
    assert papers(folder) == SHIPPED / "config" / "papers.csv"
    own = [Path("config/published/unifed-table2.csv"), Path("config/papers.csv")]
    for file in own:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert [table_path("unifed-table2", folder), papers(folder)] == own
    assert table_path("unifed-table2", Path("elsewhere/studies")) == own[0]


# ---- paths in a study


def test_a_table_is_the_same_however_its_path_is_written(tmp_path: Path) -> None:
    """The ids are those of a study beside Snakefile that says images/t.csv."""
    wanted = the_run(written(".", "images/t.csv"))
    for folder in ("config/studies", "studies", str(tmp_path / "config" / "studies")):
        for table in (tmp_path / "images" / "t.csv", os.path.relpath("images/t.csv", folder)):
            assert the_run(written(folder, table)) == wanted
    assert the_run(written("config/studies", "images/t.csv")) != wanted
    moved = written("config/studies", "../../new/t.csv", moved_from="../../images/t.csv")
    assert the_run(moved) == wanted


def test_a_table_in_an_archive_counts_from_its_top() -> None:
    ids = {the_run(written(folder, "t.csv", archive="a.tar")) for folder in (".", "config/studies")}
    assert len(ids) == 1


def test_settings_of_some_runs_count_from_the_study_too() -> None:
    path = written("config/studies", "../../a.csv")
    spec = yaml.safe_load(path.read_text())
    spec["runs"] = [{"algorithm": "fedavg"}, {"algorithm": "fedavg", "dataset": {"table": "../../b.csv"}}]
    path.write_text(yaml.safe_dump(spec))
    tables = [run.data.dataset.table for run in study.load(path, "mini").runs.values()]
    assert tables == [Path("a.csv"), Path("b.csv")]


def test_a_path_that_counts_from_the_working_folder_is_refused_with_the_right_one() -> None:
    Path("images").mkdir()
    Path("images/t.csv").touch()
    path = written("config/studies", "images/t.csv")
    with pytest.raises(UserError) as error:
        study.load(path, "mini").require_files()
    assert str(error.value) == (
        "config/studies/own.yaml.dataset: no such file: config/studies/images/t.csv; "
        "paths count from the folder of the study: write ../../images/t.csv"
    )
    study.load(written("config/studies", "../../images/t.csv"), "mini").require_files()
