"""Damage to a finished study is noticed: the fast part of the campaign, which damages one file of each kind."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import damage
import pytest

from fedshift.io.arrays import read_tensors, write_tensors
from fedshift.io.checksums import record
from fedshift.io.paths import Paths, checksum
from fedshift.io.tables import read_table, write_table
from fedshift.io.text import read_json, write_json
from fedshift.jobs import accept


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> damage.Finished:
    return damage.Finished(tmp_path_factory.mktemp("damage"))


def test_each_file_of_a_finished_study_is_guarded(finished: damage.Finished) -> None:
    """A flip with the old time, in every file: `verify` and each command that reads the file name it."""
    table = damage.Table()
    with finished.here():
        for output in finished.outputs:
            for file in output.files:
                finished.trial(file, "flip", True, damage.readers(output, file), table)
    assert table.trials["flip"] == sum(len(output.files) for output in finished.outputs) >= 30
    assert not table.silent, str(table)


@pytest.mark.parametrize("keep_time", [False, True])
@pytest.mark.parametrize("kind", ["cut", "empty", "delete"])
def test_verify_notices_every_kind_of_damage(finished: damage.Finished, kind: str, keep_time: bool) -> None:
    table = damage.Table()
    with finished.here():
        for output in finished.outputs:
            finished.trial(output.files[0], kind, keep_time, (), table)
    assert not table.silent, str(table)


def test_verify_says_that_all_is_well_and_counts(finished: damage.Finished) -> None:
    with finished.here():
        code, said = finished.call("verify")
    number = sum(len(output.files) for output in finished.outputs) + 1  # the index
    assert (code, said) == (0, f"study.yaml: all {number} files are there and as they were written\n")


def test_verify_reads_the_index_of_all_studies(finished: damage.Finished) -> None:
    index = Paths().page("index")
    with finished.here(), finished.damaged(index, "flip", True):
        code, said = finished.call("verify")
    assert code == 2
    assert f"{index}: is damaged" in said
    assert said.endswith(f"make it again: fedshift run study.yaml --forcerun {index}\n")


def test_verify_names_one_file_of_each_job_to_make_again(finished: damage.Finished) -> None:
    with finished.here():
        files = Paths().run_files(finished.run.id)
        with contextlib.ExitStack() as stack:
            for file in (files.model, files.rounds):
                stack.enter_context(finished.damaged(file, "flip", True))
            code, said = finished.call("verify")
    assert code == 2
    assert f"{files.model}: is damaged" in said
    assert f"{files.rounds}: is damaged" in said
    call = "fedshift run study.yaml"
    assert said.splitlines()[-1].endswith(
        f"2 files are damaged or changed, 0 are missing; make it again: {call} --forcerun {files.model}"
    )


def test_verify_names_files_that_an_earlier_version_wrote(finished: damage.Finished) -> None:
    with finished.here():
        record = checksum(Paths().partition(finished.run.partition_id))
        content = record.read_bytes()
        record.unlink()
        try:
            code, said = finished.call("verify")
        finally:
            record.write_bytes(content)
    assert code == 0
    assert "1 files of rule partition have no recorded checksum" in said
    assert said.endswith("files are there and all but 1 were checked\n")


def test_verify_forces_nothing_that_the_next_call_makes_by_itself(finished: damage.Finished) -> None:
    with finished.here():
        manifest, partition = Paths().run_files(finished.run.id).manifest, Paths().partition(finished.run.partition_id)
        with finished.damaged(manifest, "delete", True):
            assert finished.call("verify")[1].endswith("make it again: fedshift run study.yaml\n")
            with finished.damaged(partition, "delete", True):
                assert finished.call("verify")[1].endswith(f"fedshift run study.yaml --forcerun {partition}\n")


def test_verify_of_a_study_that_was_not_run_names_the_call(
    finished: damage.Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with finished.here():
        text = Path("study.yaml").read_text().replace("images/samples.csv", str(Path("images/samples.csv").resolve()))
    (tmp_path / "study.yaml").write_text(text)
    monkeypatch.setattr(finished, "root", tmp_path)
    with finished.here():
        code, said = finished.call("verify")
    assert code == 2
    assert "was not run: it has no files; fedshift run study.yaml" in said


def test_a_lost_run_comes_back_when_its_command_is_repeated(finished: damage.Finished) -> None:
    with finished.here():
        files = Paths().run_files(finished.run.id)
        before = {file: file.read_bytes() for file in files.trained}
        for file in files.trained:
            file.unlink()
        code, said = finished.call("train")
        assert code == 0
        assert "without training" in said
        assert {file: file.read_bytes() for file in files.trained} == before


def test_verify_names_a_damaged_copy_in_the_store(finished: damage.Finished) -> None:
    with finished.here():
        (entry,) = accept.kept(Paths())
        with finished.damaged(entry.files.model, "flip", True):
            code, said = finished.call("verify")
    assert code == 0
    assert f"rm -r {entry.folder}" in said


def test_clean_removes_superseded_runs_alone(finished: damage.Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    with finished.here():
        (entry,) = accept.kept(Paths())
        old = accept.Kept(entry.folder.with_name("0" * 32))
        old.folder.mkdir()
        for file in entry.files.trained:
            (old.folder / file.name).write_bytes(b"other")
        monkeypatch.setitem(finished.words, "clean", ["clean"])
        monkeypatch.setattr(damage, "SCALELESS", ("index", "clean"))
        code, said = finished.call("clean")
        assert code == 0
        assert f"removed {old.folder}" in said
        assert [kept.folder for kept in accept.kept(Paths())] == [entry.folder]


def parquet_of(name: str, id_: str) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        table = read_table(file)
        table.attrs[name] = id_
        write_table(file, table)

    return write


def tensors_of(id_: str) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        tensors, metadata = read_tensors(file)
        write_tensors(file, tensors, metadata | {"run": id_})

    return write


def json_of(name: str, value: object) -> Callable[[Path], None]:
    return lambda file: write_json(file, read_json(file) | {name: value})


def other_weights(file: Path) -> None:
    tensors, metadata = read_tensors(file)
    write_tensors(file, {key: value + 1 for key, value in tensors.items()}, metadata)


@contextlib.contextmanager
def recorded_anew(file: Path, change: Callable[[Path], None]) -> Iterator[None]:
    """Change a file inside the context, and record its checksum; put both back after it."""
    before = {path: path.read_bytes() for path in (file, checksum(file))}
    change(file)
    record(file)
    try:
        yield
    finally:
        for path, content in before.items():
            path.write_bytes(content)


@pytest.mark.parametrize(
    ("pattern", "change", "readers", "names"),
    [
        ("runs/*/predictions-*.parquet", parquet_of("run", "other"), ["score", "report"], "predictions"),
        ("runs/*/predictions-*.parquet", parquet_of("inference", "other"), ["score"], "predictions"),
        ("runs/*/model.safetensors", other_weights, ["score"], "predictions"),
        ("runs/*/model.safetensors", tensors_of("other"), ["predict"], "safetensors"),
        ("runs/*/clients.safetensors", tensors_of("other"), ["predict"], "clients.safetensors"),
        ("runs/*/spec.json", json_of("seed", 7), ["predict"], "spec.json|manifest.json"),
        ("runs/*/rounds.parquet", parquet_of("run", "other"), [], "rounds.parquet"),
        ("runs/*/manifest.json", json_of("run", "other"), [], "manifest.json"),
        ("partitions/*.parquet", parquet_of("partition", "other"), ["train", "score"], "partitions"),
        ("controls/*.parquet", parquet_of("partition", "other"), ["report"], "controls"),
        ("data/*/samples.parquet", parquet_of("data", "other"), ["train", "predict"], "samples.parquet"),
        ("data/*/card.json", json_of("data", "other"), ["train"], "card.json"),
    ],
)
def test_a_file_in_the_place_of_another_is_noticed_although_its_checksum_is_right(
    finished: damage.Finished, pattern: str, change: Callable[[Path], None], readers: list[str], names: str
) -> None:
    """As a copied folder brings them: the file and its recorded checksum belong together."""
    with finished.here():
        (file,) = Path("results").glob(pattern)
        with recorded_anew(file, change):
            said = {command: finished.call(command) for command in ("verify", *readers)}
        assert finished.call("verify")[0] == 0
    for command, (code, text) in said.items():
        assert code == 2, f"{command} takes it: {text}"
        assert re.search(rf"({names})[^\n]*: (was (written|made)|belongs to)", text), text


def torn_patient(file: Path) -> None:
    """Move one training image of a patient into the test split."""
    table = read_table(file)
    table.loc[table.index[table["split"] == "train"][0], "split"] = "test"
    write_table(file, table)


def first_row(column: str, factor: float) -> Callable[[Path], None]:
    """Give the first row the value 1 - factor * value in a column."""

    def change(file: Path) -> None:
        table = read_table(file)
        table.loc[0, column] = 1 - factor * table.loc[0, column]
        write_table(file, table)

    return change


@pytest.mark.parametrize(
    ("pattern", "change", "said"),
    [
        ("partitions/*.parquet", torn_patient, "agrees with no predictions: one of the two was changed"),
        ("runs/*/predictions-*.parquet", first_row("label", 1), "a label differs from the samples"),
        ("studies/*/scores.csv", first_row("value", 0.5), "does not follow from the predictions"),
    ],
    ids=["torn patient", "flipped label", "better score"],
)
def test_verify_deep_finds_what_was_changed_and_recorded_anew(
    finished: damage.Finished, pattern: str, change: Callable[[Path], None], said: str
) -> None:
    with finished.here():
        (file,) = Path("results").glob(pattern)
        assert finished.call("verify", "--deep")[0] == 0
        with recorded_anew(file, change):
            shallow, (code, text) = finished.call("verify"), finished.call("verify", "--deep")
    early = "predictions-" in shallow[1]
    assert early == (change is torn_patient), "its checksum is right, but its samples are not those that were predicted"
    assert shallow[0] == (2 if early else 0)
    assert code == 2
    assert re.search(rf"{re.escape(str(file))}: [^\n]*{said}", text), text
    assert str(file) in text.rpartition("--forcerun ")[2]
