"""What a command says before it works: what it does, with which study, at which scale."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.cli.group import take_project_scale
from fedshift.core import console

QUICK = {"list", "sources", "repeat", "new", "clean", "completion"}
"""Commands that load no large library, read no table, and start no other program."""
BY_THEMSELVES = {"check", "run"}
"""Commands that announce each part of their work, or do not open the study."""
TINY = """
title: Tiny
dataset: { name: own_images, table: ../../own/samples.csv, size: 8 }
partition: { internal: [A], external: [B] }
model: mlp
runs: [{ algorithm: fedavg }]
inferences: [source]
figures: [sites]
scales: { mini: { training: { rounds: 2 } } }
"""
BLOCKED = """
import json, sys
from importlib.abc import MetaPathFinder
from fedshift.cli import parser as cli

class Blocked(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("torch", "pandas", "scipy", "snakemake"):
            raise SystemExit(f"{name} is imported")

sys.meta_path.insert(0, Blocked())
for command in json.loads(sys.argv[1]):
    print("#", command[0], file=sys.stderr)
    try:
        cli.main(command)
    except SystemExit as stop:
        print(stop, file=sys.stderr)
"""
"""A program that runs commands in which the import of a large library ends the command."""


@pytest.fixture(autouse=True)
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("config/studies").mkdir(parents=True)
    Path("config/studies/tiny.yaml").write_text(TINY)
    Path("own").mkdir()
    Path("own/samples.csv").write_text("path,label,site\n")
    return tmp_path


def commands() -> dict[str, argparse.ArgumentParser]:
    (choice,) = [action.choices for action in cli.parser()._actions if isinstance(action.choices, dict)]
    return choice


def calls() -> Iterator[list[str]]:
    """Yield a call of each command that announces its work."""
    (run,) = study.load(Path("config/studies/tiny.yaml"), "mini").runs.values()
    ids = {"download": run.data.raw, "prepare": run.data.id, "predict": run.id, "train": run.id, "choose": run.id}
    values = {
        **{"study": "tiny", "inference": "source", "figure": "sites", "format": "mlflow", "run": run.id},
        **{"images": "own", "one": "tiny", "other": "tiny", "slides": "slides.csv", "out": "out", "file": "plugin.py"},
        **{"folder": "own", "site": "A", "reason": "none", "data": "own/samples.csv"},
    }
    for name, command in commands().items():
        if name in QUICK | BY_THEMSELVES:
            continue
        wanted = values | {"id": ids.get(name, run.partition_id)}
        arguments = [wanted[action.dest] for action in command._actions if not action.option_strings]
        required = [action for action in command._actions if action.option_strings and action.required]
        options = [word for action in required for word in (action.option_strings[-1], wanted[action.dest])]
        yield [name, *arguments, *options]


def test_every_command_that_may_take_long_says_what_it_does_before_it_loads_a_library() -> None:
    """Standard error is read by another program here. Each import of a large library ends the command."""
    wanted = list(calls())
    done = subprocess.run([sys.executable, "-c", BLOCKED, json.dumps(wanted)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [part.splitlines() for part in done.stderr.split("# ")[1:]]
    assert [lines[0] for lines in said] == [call[0] for call in wanted]
    assert not [lines for lines in said if not lines[1].endswith(" ...")]
    with_study = {call[0] for call in wanted if "study" in cli.parser().parse_args(call)}
    subjects = {lines[1].partition(":")[0] for lines in said if lines[0] in with_study}
    assert subjects == {"study tiny at scale mini"}
    assert sum("is imported" in line for lines in said for line in lines) >= 10, "they were stopped there"


def test_the_log_of_a_job_has_no_such_line() -> None:
    environment = forked.environment() | {"PYTHONPATH": str(forked.SOURCES)}
    done = forked.run("fedshift", ("status", "tiny"), Path.cwd(), environment)  # both streams are files
    assert done.returncode == 0, done.stderr
    assert "..." not in done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["terminal", "pipe", "file"])
def test_only_a_stream_that_somebody_may_watch_is_told(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "file":
        reader = writer = os.open("said", os.O_RDWR | os.O_CREAT)
    else:
        reader, writer = os.openpty() if kind == "terminal" else os.pipe()
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        console.announce("counting")
        said = os.read(reader, 100).decode().strip() if kind != "file" else Path("said").read_text()
    assert said == ("" if kind == "file" else "counting ...")


@pytest.mark.parametrize("scale", ["mini", "paper"])
def test_all_commands_take_the_scale_of_the_project(scale: str) -> None:
    """All but check, which checks every scale."""
    Path("config/config.yaml").write_text(f"scale: {scale}\n")
    taken = {}
    for call in calls():
        args = cli.parser().parse_args(call)
        if hasattr(args, "scale"):
            take_project_scale(args)
            taken[call[0]] = args.scale
    assert {"ledger", "status", "plan", "export", "diff", "verify", "accept", "report"} <= taken.keys()
    assert set(taken.values()) == {scale}


def test_what_is_printed_names_the_scale(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "tiny"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "Study tiny at scale mini:"
    assert cli.main(["status", "tiny", "--scale", "paper"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "Study tiny at scale paper:"
    Path("config/studies/tiny.yaml").write_text(TINY.partition("scales:")[0])
    assert cli.main(["status", "tiny"]) == 0
    assert "scale" not in capsys.readouterr().out, "it makes no difference in this study"
