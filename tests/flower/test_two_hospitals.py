"""The tutorial for two hospitals, carried out as its readers would, and `make federation`: all on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from tutorial import steps

from fedshift.flower.processes import free_port
from fedshift.io.tables import read_table

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "tutorials" / "two-hospitals.md"


@pytest.mark.slow
def test_the_tutorial_for_two_hospitals_ends_with_a_page(tmp_path: Path) -> None:
    port, running = str(free_port()), dict[str, subprocess.Popen[bytes]]()
    for step in steps(PAGE):
        if step.title:
            (tmp_path / step.title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / step.title).write_text(step.text, encoding="utf-8")
            continue
        if step.language == "python":
            subprocess.run([sys.executable, "-c", step.text], cwd=tmp_path, check=True)
            continue
        # Nobody is there to be asked, and the port of the page may be taken.
        text = step.text.replace("8765", port).replace("--keys from-server", "--keys from-server --yes")
        text = text.replace("fedshift ", f"exec '{sys.executable}' -m fedshift ")
        name = f"{len(running)}"
        with (tmp_path / f"{name}.txt").open("wb") as out:
            shell = ["bash", "-euc", text]
            running[name] = subprocess.Popen(shell, cwd=tmp_path, env=os.environ, stdout=out, stderr=out)
        if "--init" in text or text.startswith("cp "):
            assert running[name].wait(PATIENCE) == 0, (tmp_path / f"{name}.txt").read_text()
    try:
        assert [process.wait(PATIENCE) for process in running.values()] == [0] * 5
    finally:
        for process in running.values():
            process.terminate()
    assert (tmp_path / "server" / "reports" / "study.html").exists()
    scores = read_table(tmp_path / "server" / "results" / "studies" / "study" / "scores.csv")
    assert set(scores["site"]) == {"north", "south"}


@pytest.mark.slow
def test_three_hospitals_on_this_machine_come_to_the_simulation(tmp_path: Path) -> None:
    """What `make federation` does, in a path with a space."""
    command = [sys.executable, DOCS / "federate.py", "--folder", tmp_path / "a folder"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal: difference 0" in done.stdout
