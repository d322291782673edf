"""Why a program of Flower has ended: a SuperNode may be refused, and a SuperLink is started again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedshift.flower.processes import REFUSED, EndedError, NotLetInError, Process


@pytest.mark.parametrize(
    ("program", "said", "error"),
    [
        ("flower-supernode", '{"code": 2004, "public_details": "Node activation failed"}', NotLetInError),
        ("flower-supernode", "Exit Code: 305", NotLetInError),
        ("flower-supernode", "out of memory", EndedError),
        ("flower-superlink", '{"code": 2004, "public_details": "Node activation failed"}', EndedError),
        ("flower-superlink", "", EndedError),
    ],
)
def test_a_superlink_that_refused_a_site_and_ended_is_started_again(
    program: str, said: str, error: type[Exception], tmp_path: Path
) -> None:
    """`serve` starts a SuperLink again after an EndedError alone; any other error ends the study of all sites."""
    log = tmp_path / f"{program}.log"
    log.write_text(f"of an earlier start: 2004\n{said}\n")
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    child.wait()
    refused = REFUSED if program == "flower-supernode" else ()
    with pytest.raises(error) as caught:
        Process(program, child, log, len("of an earlier start: 2004\n"), refused).require_alive()
    assert type(caught.value) is error


def test_a_program_that_runs_has_not_ended(tmp_path: Path) -> None:
    log = tmp_path / "flower-supernode.log"
    log.write_text("2004")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        Process("flower-supernode", child, log, 0, REFUSED).require_alive()
    finally:
        child.kill()
        child.wait()
