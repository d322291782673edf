"""Projects of users' own: `fedshift new`, and the call of Snakemake behind `fedshift run`."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.cli.projects import arguments
from fedshift.io.shipped import SHIPPED, SNAKEFILE, has_workflow, workflow_of
from fedshift.study.calls import DEFAULTS

FILES = {"Snakefile", ".gitignore", "config/config.yaml", "config/studies/my-study.yaml", "plugins/README.md"} | {
    "profiles/default/config.yaml"
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def words(*argv: str) -> list[str]:
    """The arguments that Snakemake gets from `fedshift run`."""
    return arguments(cli._parsed(cli.parser(), ["run", *argv]))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("folder", ["project", "a/b c", "."])
def test_a_new_project_is_ready_to_run(folder: str) -> None:
    Path("notes.txt").write_text("stay")
    assert cli.main(["new", folder]) == 0
    assert files(Path(folder)) >= FILES
    assert Path("notes.txt").read_text() == "stay"
    assert has_workflow(Path(folder))
    settings = yaml.safe_load(Path(folder, "config/config.yaml").read_text())
    assert settings.keys() <= DEFAULTS.keys()
    # Without it, plain `snakemake` cannot go on after a kill.
    assert yaml.safe_load(Path(folder, "profiles/default/config.yaml").read_text())["rerun-incomplete"] is True
    plans = study.select(settings["study"], settings["scale"], Path(folder, "config/studies"))
    plans["my-study"].require_files()
    assert len(study.load(Path(folder, "config/studies/my-study.yaml"), "paper").runs) == 6


def test_new_writes_over_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("Snakefile").write_text("rule mine:\n")
    assert cli.main(["new", "."]) == 2
    assert capsys.readouterr().err == "Snakefile: exists already; name another folder, or remove this file\n"
    assert files(Path()) == {"Snakefile"}


def test_run_in_an_empty_folder_takes_the_workflow_that_comes_with_fedshift() -> None:
    default = str(SHIPPED / "profiles" / "default")
    start = ["--config", "study=demo", "--snakefile", str(SNAKEFILE), "--workflow-profile", default]
    assert words("demo") == [*start, "--cores", "all"]
    assert words("demo", "--cores", "3", "-n", "--forcerun", "a", "--", "b") == [
        *start, "--cores", "3", "-n", "--forcerun", "a", "--", "b"
    ]  # fmt: skip
    assert words("demo", "--scale", "paper", "--", "-n")[:3] == ["--config", "study=demo", "scale=paper"]
    assert words("demo", "--", "-n")[-3:] == ["--cores", "all", "-n"]


@pytest.mark.parametrize("of_cores", [["-c4"], ["-j", "2"], ["--jobs=2"], ["--profile", "mine"]])
def test_cores_are_all_unless_given(of_cores: list[str]) -> None:
    assert "all" not in words("demo", "--", *of_cores)


def test_a_profile_of_fedshift_has_a_short_name() -> None:
    told = words("demo", "--profile", "slurm")
    assert told[told.index("--profile") + 1] == str(SHIPPED / "profiles" / "slurm")
    assert "--cores" not in told
    assert "mine" in words("demo", "--profile", "mine")


@pytest.mark.parametrize("rest", [["--config", "processes=2"], ["--config=processes=2"], ["-C", "processes=2"]])
def test_further_settings_do_not_replace_the_study(rest: list[str]) -> None:
    """Snakemake reads only the last option `--config`."""
    told = words("demo", "--scale", "mini", "--mirror", "files", "--", "-n", *rest)
    assert sum(word in ("--config", "-C") for word in told) == 1
    at = next(number for number, word in enumerate(told) if word in ("--config", "-C"))
    assert told[at + 1 :] == ["study=demo", "scale=mini", "mirror=files", "processes=2"]


def test_a_project_has_its_own_workflow_and_a_foreign_one_is_left_alone() -> None:
    assert cli.main(["new", "project"]) == 0
    Path("foreign").mkdir()
    Path("foreign/Snakefile").write_text("rule mine:\n")
    assert workflow_of(Path("project")) == Path("project/Snakefile")
    assert workflow_of(Path("foreign")) == SNAKEFILE
    told = words("demo", "-d", "project")
    assert str(Path("project/Snakefile").absolute()) in told
    assert told[-4:] == ["--directory", "project", "--cores", "all"]


def test_other_commands_refuse_what_they_do_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["check", "demo", "--forcerun", "x"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("unrecognized arguments: --forcerun x\n")


def test_a_command_works_in_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "project"]) == 0
    capsys.readouterr()
    assert cli.main(["list", "studies", "--directory", "project"]) == 0
    assert "my-study" in capsys.readouterr().out.splitlines()
    assert Path.cwd() == tmp_path
    assert cli.main(["list", "studies", "-d", "nowhere"]) == 2
    assert capsys.readouterr().err == "nowhere: No such file or directory; check the path and its permissions\n"


def as_nobody(*argv: str) -> tuple[int, str]:
    """Exit code and words of a command that a user without rights calls; root may write everywhere."""
    read, write = os.pipe()
    if not (child := os.fork()):
        # pytest's folder is not that of another user
        os.chdir("/")
        with os.fdopen(write, "w") as sys.stderr:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setuid(65534)
            code = cli.main(argv)
        os._exit(code)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


@pytest.mark.parametrize("folder", [".", "results", ".snakemake", "reports"])
def test_a_project_that_may_not_be_written_is_one_line(folder: str) -> None:
    project = tempfile.mkdtemp(prefix="fedshift-", dir="/tmp")
    try:
        for name in (".", "results", ".snakemake", "reports"):
            Path(project, name).mkdir(exist_ok=True)
            Path(project, name).chmod(0o755 if name == folder else 0o777)
        if os.geteuid() != 0:
            Path(project, folder).chmod(0o555)
        code, said = as_nobody("run", "demo", "-d", project, "--", "--version")
    finally:
        Path(project, folder).chmod(0o755)
        shutil.rmtree(project)
    where = Path(project, folder)
    assert (code, said) == (
        2,
        f"{where}: cannot be written: Permission denied; check the path and its permissions, or choose another "
        "folder\n",
    )


@pytest.mark.parametrize(("name", "where"), [("results", "results"), ("project", "project")])
def test_a_file_in_the_place_of_a_folder_is_one_line(
    name: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text("")
    folder = ["-d", name] if name == "project" else []
    assert cli.main(["run", "demo", *folder]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"{tmp_path / where}: is a file, and a folder is needed here; move the file away, or choose another folder\n"
    )


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert cli.main(["run", "demo"]) == 2
    said = capsys.readouterr().err
    assert said.endswith(
        ": no space left on the disk; free some space and start again: no half-written file was left\n"
    )
    assert list(Path().iterdir()) == [], "nor the file with which that was tried"
