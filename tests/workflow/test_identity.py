"""Files count by their content: times and places make Snakemake do nothing again, and damage is named or mended."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_project import Project

pytestmark = pytest.mark.slow

DATASET = {"name": "own_images", "table": "../../own images/samples.csv", "size": 16}
SMALL: dict[str, Any] = {
    "runs": [{"algorithm": "fedavg"}],
    "seeds": [0],
    "inferences": ["source"],
    "figures": ["convergence"],
}
WORDS = {"score", "report", "index"}
"""The rules that run again where the text of a study changes."""


@pytest.fixture(scope="module")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A study of one run, finished. Tests leave it as they find it."""
    return Project.finished(tmp_path_factory.mktemp("identity") / "a project", **SMALL)


def results(project: Project) -> Path:
    return project.root / "results"


def images(project: Project) -> Path:
    return project.root / "own images"


def rules(project: Project) -> set[str]:
    return {job.rule for job in project.jobs()}


def respelt(project: Project, **dataset: str) -> set[str]:
    """Return the rules that would run if the study named its dataset so."""
    project.study(**SMALL, dataset=DATASET | dataset)
    try:
        return rules(project)
    finally:
        project.study(**SMALL)


def test_times_of_images_and_table_do_not_count(finished_project: Project) -> None:
    for file in (images(finished_project) / "A0.png", images(finished_project) / "samples.csv"):
        os.utime(file)
    for number, file in enumerate(sorted(images(finished_project).glob("B*.png"))):  # as rsync does it without --times
        copy = file.with_name("copy")
        shutil.copyfile(file, copy)
        copy.rename(file)
        os.utime(file, (number, number))
    assert finished_project.jobs() == set()


def test_a_path_may_be_written_in_any_way(finished_project: Project) -> None:
    (finished_project.root / "link").symlink_to(images(finished_project))
    try:
        table = str(finished_project.root / "own images" / "samples.csv")
        assert respelt(finished_project, table=table) <= WORDS
        assert respelt(finished_project, table="../../link/../link/./samples.csv") <= WORDS
    finally:
        (finished_project.root / "link").unlink()


def test_a_folder_may_be_moved(finished_project: Project) -> None:
    images(finished_project).rename(finished_project.root / "moved")
    try:
        assert respelt(finished_project, table="../../moved/samples.csv", moved_from=DATASET["table"]) <= WORDS  # type: ignore[arg-type]
        assert {"prepare", "train"} <= respelt(finished_project, table="../../moved/samples.csv")
    finally:
        (finished_project.root / "moved").rename(images(finished_project))


def test_a_project_may_be_moved_and_cloned(finished_project: Project) -> None:
    for copy in (shutil.copy2, shutil.copyfile):  # with the times of files, and without
        clone = Project(finished_project.root.with_name(copy.__name__))
        shutil.copytree(finished_project.root, clone.root, copy_function=copy)
        assert clone.jobs() == set(), copy


@pytest.mark.parametrize("name", ["A0.png", "samples.csv"])
def test_a_change_with_an_older_time_and_the_same_size_counts(finished_project: Project, name: str) -> None:
    file = images(finished_project) / name
    before, content = file.stat(), file.read_bytes()
    if name.endswith(".csv"):
        changed = content.replace(b"A0.png,0,A,A0", b"A0.png,1,A,A0")
    else:
        changed = content[:-20] + bytes([content[-20] ^ 1]) + content[-19:]
    other = file.with_name("other")
    other.write_bytes(changed)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns - 10**15))
    assert other.stat().st_size == before.st_size
    other.rename(file)
    try:
        assert {"prepare", "partition", "train", "predict"} <= rules(finished_project)
    finally:
        file.write_bytes(content)
    assert finished_project.jobs() == set()


def test_arrays_that_come_out_equal_leave_all_that_was_made_from_them(finished_project: Project) -> None:
    file = images(finished_project) / "C3.png"
    pixels, content = np.asarray(Image.open(file)), file.read_bytes()
    Image.fromarray(pixels).save(file, compress_level=0)
    assert file.read_bytes() != content
    assert "prepare" in rules(finished_project)
    done = finished_project.build("tiny", "--until", "prepare")
    assert done.returncode == 0, done.stdout + done.stderr
    (card,) = results(finished_project).glob("data/*/card.json")
    compared = 4000
    assert card.stat().st_size < compared < card.with_name("images.npy").stat().st_size
    assert finished_project.jobs("tiny", "--max-checksum-file-size", str(compared)) == set(), "arrays may have any size"


# --- damage and loss: named with the call that mends it, and no finished run is trained again -----------------------


def contents(project: Project) -> dict[str, bytes]:
    """The bytes of all results, without logs, measured times and records of checksums."""
    files = (
        path for name in ("runs", "studies", "data", "partitions") for path in results(project).rglob(f"{name}/**/*")
    )
    return {
        str(p): p.read_bytes() for p in files if p.is_file() and not p.name.startswith(".") and p.suffix != ".jsonl"
    }


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


@pytest.mark.parametrize(
    ("name", "rule"),
    [("runs/*/manifest.json", "train"), ("runs/*/predictions-*.parquet", "predict"), ("studies/*/scores.csv", "score")],
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
