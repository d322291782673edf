"""Damage and loss under Snakemake: named with the call that mends it, and no finished run is trained again."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from tiny_project import Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A study of one run, finished."""
    root = tmp_path_factory.mktemp("damage") / "a project"
    small = {"runs": [{"algorithm": "fedavg"}], "seeds": [0], "inferences": ["source"], "figures": ["convergence"]}
    return Project.finished(root, **small)


def contents(project: Project) -> dict[str, bytes]:
    """The bytes of all results, without logs, measured times and records of checksums."""
    files = (
        path for name in ("runs", "studies", "data", "partitions") for path in results(project).rglob(f"{name}/**/*")
    )
    return {
        str(p): p.read_bytes() for p in files if p.is_file() and not p.name.startswith(".") and p.suffix != ".jsonl"
    }


def results(project: Project) -> Path:
    return project.root / "results"


def flip(path: Path, keep_time: bool) -> None:
    before, content = path.stat(), path.read_bytes()
    place = len(content) // 2
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_damaged_input_is_named_until_it_is_mended_and_no_run_is_lost(finished_project: Project) -> None:
    before = contents(finished_project)
    (card,) = results(finished_project).glob("data/*/card.json")
    name = str(card.relative_to(finished_project.root))
    flip(card, keep_time=False)
    for _ in range(2):  # the second call finds the run's files gone, and must not take the page for the whole
        done = finished_project.build()
        assert done.returncode == 1
        said = done.stdout + done.stderr
        assert f"{name}: is damaged or was changed" in said
        assert f"--config study=tiny --forcerun {name}" in said
        assert "Traceback" not in said
    call = said[said.index("make it again: snakemake ") :].splitlines()[0].removeprefix("make it again: ")
    words = ["2" if word == "all" else word for word in shlex.split(call)[1:]]
    done = finished_project.snakemake(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = results(finished_project).glob("logs/train/*.log")
    assert "without training" in log.read_text()
    assert contents(finished_project) == before
    assert finished_project.jobs() == set()


def test_other_labels_in_a_table_with_an_older_time_are_noticed(finished_project: Project) -> None:
    table = finished_project.root / "own images" / "samples.csv"
    before, text = table.stat(), table.read_text()
    table.write_text(text.replace("A0.png,0,A,A0", "A0.png,1,A,A0"))
    os.utime(table, (0, 0))
    try:
        assert {"prepare", "partition", "train"} <= {job.rule for job in finished_project.jobs()}
    finally:
        table.write_text(text)
        os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert finished_project.jobs() == set()


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("runs/*/manifest.json", "train"),
        ("runs/*/predictions-*.parquet", "predict"),
        ("studies/*/scores.csv", "score"),
    ],
)
def test_a_result_that_is_gone_is_made_again_although_the_page_is_there(
    finished_project: Project, name: str, rule: str
) -> None:
    (file,) = results(finished_project).glob(name)
    moved = file.with_name("aside")
    file.rename(moved)
    try:
        assert rule in {job.rule for job in finished_project.jobs()}
    finally:
        moved.rename(file)
    assert finished_project.jobs() == set()
