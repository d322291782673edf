"""Untrusted files: none hangs, none fills the memory, and each fault is told in one line."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from own_images import Project, listing, rows
from patience import PATIENCE

from fedshift.cli import parser as cli
from fedshift.core.errors import UserError
from fedshift.data.partition import Partition
from fedshift.datasets.own_images import OwnImages
from fedshift.io import disk
from fedshift.io.arrays import map_array, read_tensors
from fedshift.io.images import read_image
from fedshift.io.tables import read_table, read_texts
from fedshift.io.text import inert, read_json, read_yaml, require_columns, require_object, tell_outside, write_text
from fedshift.models import Model, initialise
from fedshift.models.mlp import MLP

READERS: dict[str, Callable[[Path], Any]] = {
    "x.json": read_json,
    "x.yaml": read_yaml,
    "x.csv": read_table,
    "y.csv": read_texts,
    "x.parquet": read_table,
    "x.npy": map_array,
    "x.safetensors": read_tensors,
    "x.png": read_image,
}


@contextmanager
def in_the_end() -> Iterator[None]:
    """Fail where the block does not end, as reading a pipe does not."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(int(PATIENCE))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- pipes, devices and folders


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with in_the_end():
        os.mkfifo(path)
        with pytest.raises(UserError, match=rf"{name}: is a pipe, a device or a socket, and not a file"):
            READERS[name](path)
        path.unlink()
        for device in ("/dev/zero", "/dev/random"):
            path.symlink_to(device)
            with pytest.raises(UserError, match=rf"{name}: is a pipe, a device or a socket, and not a file"):
                READERS[name](path)
            path.unlink()
        with socket.socket(socket.AF_UNIX) as server:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path)
                server.bind(name)
            with pytest.raises(UserError, match="is a pipe, a device or a socket"):
                READERS[name](path)
        path.unlink()
        path.mkdir()
        with pytest.raises(UserError, match=rf"{name}: is a folder, and not a file"):
            READERS[name](path)


@pytest.fixture(scope="module")
def trained_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


@pytest.mark.parametrize("name", ["spec.json", "model.safetensors", "clients.safetensors", "manifest.json"])
def test_a_pipe_in_an_untrusted_run_is_refused(
    trained_project: Project, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained_project.folder() / name
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    try:
        for words in (
            ["apply", str(trained_project.folder()), str(trained_project.table)],
            ["bundle", str(trained_project.folder())],
        ):
            if (name, words[0]) == ("manifest.json", "bundle"):
                continue  # which it does not read
            with in_the_end():
                assert cli.main([*words, "--out", str(tmp_path / "out")]) == 2
            (line,) = [line for line in capsys.readouterr().err.splitlines() if "and not a file" in line]
            assert name in line
    finally:
        path.unlink()
        path.write_bytes(content)


def test_a_pipe_among_images_is_refused_or_left_out(trained_project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for path in rows(trained_project, "far")["path"][:3]:
        (folder / path).write_bytes((trained_project.table.parent / path).read_bytes())
    os.mkfifo(folder / "pipe.png")
    (folder / "zero.png").symlink_to("/dev/zero")
    with in_the_end():
        with pytest.raises(UserError, match=r"(pipe|zero)\.png: is a pipe, a device or a socket"):
            trained_project.apply(folder, out=tmp_path / "a")
        found = trained_project.apply(folder, out=tmp_path / "b", skip_unreadable=True)
    assert set(found.unreadable) == {"pipe.png", "zero.png"}
    assert len(found.table) == 3


def test_a_pipe_for_a_log_or_a_lock_does_not_stop_the_status(tmp_path: Path) -> None:
    from fedshift.planning.status import is_locked, last_line, last_round

    os.mkfifo(tmp_path / "pipe")
    with in_the_end():
        assert last_line(tmp_path / "pipe") == ""
        assert last_round(tmp_path / "pipe") == {}
        assert is_locked(tmp_path / "pipe") is None


# ---- sizes


def test_a_json_without_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"x\.json: not a readable JSON file: 1099511627776 bytes are too many"):
        read_json(tmp_path / "x.json")


def test_tensors_that_do_not_fit_into_the_memory_are_one_line(tmp_path: Path) -> None:
    with (tmp_path / "x.safetensors").open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(UserError, match=r"x\.safetensors: this safetensors file does not fit into the memory"):
        read_tensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("number", [10**30, -(10**30), 2**63])
def test_numbers_beyond_64_bits_are_refused(tmp_path: Path, number: int) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"seed": number}))
    with pytest.raises(UserError, match=r"x\.json: not a readable JSON file: a number of \d+ digits"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text(json.dumps({"seed": 2**63 - 1}))
    assert read_json(tmp_path / "x.json") == {"seed": 2**63 - 1}


@pytest.mark.parametrize("hidden", [10**9, 10**12, 2**62])
def test_a_network_of_absurd_width_is_refused_before_it_is_made(hidden: int) -> None:
    with pytest.raises(UserError, match=r"model mlp: its network (would have .* parameters|does not fit)"):
        initialise(MLP(hidden=hidden), (3, 96, 96), 2, 0)


def test_a_network_that_cannot_be_measured_is_made_or_refused() -> None:
    import torch
    from torch import nn

    class Peculiar(Model):
        """It looks at its weights while it is made, which those without values do not allow."""

        def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
            network = nn.Linear(2, classes)
            assert float(network.weight.sum()) < 100
            return network

    class Greedy(Peculiar):
        """It asks for more memory than there is."""

        def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
            super().build(shape, classes)
            return nn.Linear(2**40, classes)

    assert initialise(Peculiar(), (2,), 3, 0).weight.shape == (3, 2)  # type: ignore[union-attr]
    with pytest.raises(UserError, match="its network does not fit into the memory; choose smaller settings"):
        initialise(Greedy(), (2,), 3, 0)
    assert torch.get_default_device() == torch.device("cpu")


def test_sites_and_classes_are_bounded() -> None:
    names = tuple(map(str, range(10_001)))
    began = time.process_time()
    for key in ("internal", "external"):
        with pytest.raises(ValueError, match=r"10001 sites are too many \(limit 10000\)"):
            Partition(**{"internal": ("a",)} | {key: names})
    with pytest.raises(ValueError, match=r"10001 classes are too many \(limit 10000\)"):
        OwnImages(table=Path("x.csv"), classes=names)
    assert len(Partition(internal=names[1:]).internal) == 10_000
    assert len(OwnImages(table=Path("x.csv"), classes=names[1:]).classes) == 10_000
    assert time.process_time() - began < 10


# ---- text


@pytest.mark.parametrize("name", ["\ud800", "tumour\udcff", "\udc00\ud800"])
def test_half_of_a_surrogate_pair_is_refused_when_it_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"classes": [name]}))
    with pytest.raises(UserError, match=r"spec\.json: not a readable JSON file: .*surrogates not allowed") as caught:
        read_json(tmp_path / "spec.json")
    str(caught.value).encode()
    for whole in ("\U0001f600", "\\ud800", "ud"):
        (tmp_path / "spec.json").write_text(json.dumps({"classes": [whole]}))
        assert read_json(tmp_path / "spec.json") == {"classes": [whole]}


def test_an_argument_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedshift", "check", b"\xff.yaml"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        ("=1+1", "'=1+1"),
        ("+49", "'+49"),
        ("-a.png", "'-a.png"),
        ("@x", "'@x"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("a=1", "a=1"),
        ("", ""),
    ],
)
def test_a_cell_that_a_spreadsheet_would_run_gets_an_apostrophe(cell: str, wanted: str) -> None:
    assert inert(cell) == wanted


def test_predictions_hold_no_formula(trained_project: Project, tmp_path: Path) -> None:
    """Names of files, sites and patients as an untrusted table has them; the class is that of the run."""
    image = trained_project.table.parent / rows(trained_project, "far")["path"].iloc[0]
    names = ["=HYPERLINK(1).png", "+1.png", "-1.png", "@SUM(A1).png", "plain.png"]
    for name in names:
        (tmp_path / name).write_bytes(image.read_bytes())
    table = pd.DataFrame(
        {"path": names, "site": ["=1", "+1", "-1", "@1", "a"], "patient": ["=p", "b", "-p", "@p", "+p"]}
    )
    table.to_csv(tmp_path / "table.csv", index=False)
    found = trained_project.apply(tmp_path / "table.csv", out=tmp_path / "out")
    with (tmp_path / "out" / "predictions.csv").open(newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    assert [row["path"] for row in cells] == [*(f"'{name}" for name in names[:4]), "plain.png"]
    assert [row["site"] for row in cells] == ["'=1", "'+1", "'-1", "'@1", "a"]
    assert [row["patient"] for row in cells] == ["'=p", "b", "'-p", "'@p", "'+p"]
    assert list(found.table["path"]) == names, "the page has them as they are, as text"


# ---- paths that lead elsewhere


def test_paths_that_lead_out_of_a_table_s_folder_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "images" / "table.csv"
    inside = ["a.png", "b/../a.png", "..png", str(tmp_path / "images" / "c.png"), "./d.png"]
    tell_outside(table, inside)
    assert capsys.readouterr().err == ""
    tell_outside(table, [*inside, "../secret.png", "/etc/x.png", "b/../../images2/x.png"])
    said = capsys.readouterr().err
    assert said.startswith(f"{table}: '../secret.png' leads out of its folder, as 2 more do; such images are read")
    assert said.count("\n") == 1


def test_apply_says_so_before_it_reads(
    trained_project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = trained_project.table.parent / rows(trained_project, "far")["path"].iloc[0]
    (tmp_path / "table.csv").write_text(f"path\n{image}\n")
    trained_project.apply(tmp_path / "table.csv", out=tmp_path / "out")
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{tmp_path / 'table.csv'}: '{image}' leads out of its folder; ")
    assert rest, "the progress comes later"
    trained_project.apply(listing(trained_project, "far.csv", rows(trained_project, "far")), out=tmp_path / "inside")
    assert "leads out" not in capsys.readouterr().err


def test_a_study_s_own_table_says_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "table.csv").write_text("path,label,site\n../up.png,0,a\n")
    OwnImages(table=tmp_path / "t" / "table.csv").examine(Path())
    assert "'../up.png' leads out of its folder" in capsys.readouterr().err


# ---- contents


def test_an_object_has_the_keys_that_it_needs(tmp_path: Path) -> None:
    needed = {"classes": "a list of texts", "synthetic": "true or false"}
    good: dict[str, Any] = {"classes": ["a"], "synthetic": False, "rounds": None}
    assert require_object(tmp_path, good, needed, {"rounds": "a whole number"}) == good
    for bad, words in (
        ([], "does not hold a mapping"),
        ({"classes": ["a"]}, "'synthetic' is not there, or is not true or false"),
        ({**good, "classes": ["a", 1]}, "'classes' is not there, or is not a list of texts"),
        ({**good, "synthetic": 0}, "'synthetic' is not there"),
        ({**good, "rounds": True}, "'rounds' is not a whole number"),
        ({**good, "rounds": 2.5}, "'rounds' is not a whole number"),
    ):
        with pytest.raises(UserError, match=words):
            require_object(tmp_path, bad, needed, {"rounds": "a whole number"})


def test_a_table_has_the_columns_that_it_needs(tmp_path: Path) -> None:
    table = pd.DataFrame({"site": ["a", "b"], "label": [0, 1], "value": [0.5, np.nan]})
    require_columns(tmp_path, table, {"site": "text", "label": "whole numbers", "value": "numbers"})
    for kinds, words in (
        ({"patient": "anything"}, "no column 'patient'"),
        ({"label": "text"}, "the column 'label' must hold only text"),
        ({"value": "whole numbers"}, "the column 'value' must hold only whole numbers"),
        ({"site": "numbers"}, "the column 'site' must hold only numbers"),
    ):
        with pytest.raises(UserError, match=words):
            require_columns(tmp_path, table, kinds)
    with pytest.raises(UserError, match="must hold only text"):
        require_columns(tmp_path, table.assign(site=["a", None]), {"site": "text"})


# ---- memory, disks and keys


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")]
)
@pytest.mark.parametrize("command", ["train", "prepare"])
def test_a_lack_of_memory_is_one_line(
    trained_project: Project,
    command: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def greedy(*_: object, **__: object) -> None:
        raise error

    monkeypatch.chdir(trained_project.root)
    monkeypatch.setattr(f"fedshift.jobs.{command}.{command}", greedy)
    key = trained_project.run().id if command == "train" else trained_project.data.id
    assert cli.main([command, "tiny.yaml", key, "--scale", "paper"]) == 2
    assert capsys.readouterr().err == (
        f"fedshift {command}: the memory does not suffice; close other programs, use fewer threads, smaller batches, "
        "images or networks, or a larger machine\n"
    )


def test_a_page_on_a_full_or_read_only_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reports").write_text("a file in the place of the folder")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config" / "studies").mkdir(parents=True)
    assert cli.main(["index"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "reports" in line and "check the path and its permissions" in line
    (tmp_path / "reports").unlink()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "commit", full)
    assert cli.main(["index"]) == 2
    assert capsys.readouterr().err.startswith("reports/index.html: no space left on the disk; free some space")
    assert list((tmp_path / "reports").iterdir()) == []


@pytest.mark.parametrize("when", ["while modules are imported", "in a module that makes another error of it"])
def test_ctrl_c_during_imports_is_one_line(tmp_path: Path, when: str) -> None:
    """A module that commands import presses Ctrl-C."""
    press = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    if "another" in when:
        press = "try:\n" + textwrap.indent(press, "    ") + "except BaseException:\n    raise ImportError('x')\n"
        (tmp_path / "pandas.py").write_text(press)
        command = [sys.executable, "-m", "fedshift", "index"]
    else:
        (tmp_path / "argparse.py").write_text(press)
        command = [sys.executable, "-m", "fedshift", "list", "algorithms"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(cli.__file__).parents[2]}"}
    # These tests may run in the background, where programs are started so that they ignore Ctrl-C.
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    said = "reading the results of all studies ...\n" if "another" in when else ""
    assert (done.returncode, done.stderr) == (130, f"{said}interrupted\n")


def test_a_command_in_another_thread_leaves_signals_alone() -> None:
    codes = list[int]()
    thread = threading.Thread(target=lambda: codes.append(cli.main(["list", "studies"])))
    thread.start()
    thread.join()
    assert codes == [0]


def test_text_is_written_whole_or_refused(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "x", "\ud800")
    assert list(tmp_path.iterdir()) == []
