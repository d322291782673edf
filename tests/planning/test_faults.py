"""The last lines of a call that failed: each fault once, with the logs that it stands in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedshift.planning.call import faults

NAN = "client 'A': loss is nan in round 5; lower training.lr"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def snakemake(*logs: str) -> Path:
    """Snakemake's log, in which the jobs with these logs failed, among other lines."""
    parts = ["Select jobs to execute...", "    log: results/logs/train/well.log"]
    for log in logs:
        parts += ["Error in rule train:", "    jobid: 7", f"    log: {log} (check log file(s) for error details)"]
    path = Path("snakemake.log")
    path.write_text("\n".join([*parts, "Shutting down, this might take some time.\n"]))
    return path


def test_each_fault_stands_once_and_last() -> None:
    for name, text in {"a": NAN, "b": NAN, "c": "table.csv, line 3: label is empty; fill it in"}.items():
        Path(f"{name}.log").write_text(f"round 4/10  loss 0.2\n{text}\n")
    assert faults([snakemake("a.log", "c.log", "b.log")]) == [
        "",
        "3 jobs failed. Finished work is kept: when this is corrected, the same call goes on from there.",
        "a.log, and 1 more with the same fault:",
        f"  {NAN}",
        "c.log:",
        "  table.csv, line 3: label is empty; fill it in",
    ]


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (
            "prepare: 3/9 images (33%), 2 images/s, ETA 0:03\nx: is wrong; a\ny: is wrong; b\n",
            ["x: is wrong; a", "y: is wrong; b"],
        ),
        ("a: 1\nTraceback (most recent call last):\n  File x: y\nZeroDivisionError: 0\n", ["ZeroDivisionError: 0"]),
        ("round 4/10  loss 0.2\nKilled\n", ["Killed"]),
        ("".join(f"row {n}: is wrong\n" for n in range(9)), [f"row {n}: is wrong" for n in range(4, 9)]),
        ("", ["its log is empty"]),
    ],
)
def test_the_lines_of_a_log_that_tell(log: str, lines: list[str]) -> None:
    Path("a log.log").write_text(log)
    assert faults([snakemake("a log.log")])[3:] == [f"  {line}" for line in lines]


def test_a_lost_log_is_no_error() -> None:
    assert faults([snakemake("gone.log")])[2:] == ["gone.log:", "  its log is empty"]


def test_without_failed_jobs_nothing_is_said() -> None:
    assert faults([snakemake(), Path("none.log")]) == []


def test_it_is_said_when_all_else_has_been_said() -> None:
    Path("a.log").write_text(NAN)
    code = f"""
import sys
from fedshift.planning.call import say_last
say_last([{str(snakemake("a.log"))!r}])
print("At least one job did not complete successfully.", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[0] == "At least one job did not complete successfully."
    assert done.stderr.splitlines()[-1] == f"  {NAN}"
