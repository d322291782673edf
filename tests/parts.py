"""Run all tests in parts: each part runs whatever became of the others, and one summary ends them.

    python tests/parts.py [--all] [--coverage]

A part is a call of pytest with workers of its own. Besides a test that fails, a part fails by an environment that is
missing, by a process that dies, and where it has no tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

SETTINGS = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "", "REQUIRE_DOCS": "1"}
"""Bytecode is written whatever the environment says, or hundreds of processes would each compile the sources anew."""
WORKERS = os.environ.get("WORKERS") or str((os.cpu_count() or 1) + 1)
"""One more than there are cores, since tests of a cluster, of signals and of disks wait most of their time."""
SPREAD = ("-n", WORKERS, "--dist", "loadfile", "--no-loadscope-reorder")
COUNTED = ("passed", "failed", "skipped")


@dataclass(frozen=True)
class Part:
    """A call of pytest: its name, the folder of its environment, and its arguments."""

    name: str
    environment: str
    arguments: Sequence[str]


ELSEWHERE = ("tests/export", "tests/slides", "tests/faults/test_misread.py", "tests/models/test_lite0_weights.py")
EXPORTS = Part("exports", ".venv-exports", (*SPREAD, *ELSEWHERE))
FLOWER = Part("flower", ".venv-flower", ("tests/flower",))
MAIN = Part("main", ".venv", (*SPREAD, "--durations=15", "tests", *(f"--ignore={path}" for path in ELSEWHERE)))
PARTS = (EXPORTS, FLOWER, MAIN)


@dataclass(frozen=True)
class Outcome:
    """How each test of a part ended (passed, failed or skipped), by its name, and the minutes that all took."""

    tests: dict[str, str]
    minutes: float = 0.0

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.tests.values())


def called(part: Part, report: Path, arguments: Iterable[str]) -> int:
    """Call pytest for a part, and return its exit status. Raise OSError where its environment is missing."""
    command = [f"{part.environment}/bin/python", "-m", "pytest", *part.arguments, *arguments]
    command += ["--continue-on-collection-errors", "-o", "junit_family=xunit1", f"--junit-xml={report}"]
    with subprocess.Popen(command, env=os.environ | SETTINGS) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # pytest has it, too
            process.wait()
            raise


def ends(report: Path) -> dict[str, str]:
    """Return how each test of a report ended that pytest wrote in JUnit's XML."""
    tests: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        name = "::".join(filter(None, (case.get("file"), case.get("name"))))
        if kinds & {"failure", "error"}:  # also of a teardown, which has an entry of its own
            tests[name] = "failed"
        else:
            tests.setdefault(name, "skipped" if "skipped" in kinds else "passed")
    return tests


def run(part: Part, arguments: Iterable[str] = ()) -> Outcome:
    """Run a part. What is wrong with the part as a whole counts as one more test that failed."""
    began, tests = time.monotonic(), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        try:
            status = called(part, report, arguments)
            tests = ends(report) if report.exists() else {}
            problem = f"pytest ended with status {status}, after {len(tests)} tests"
        except (OSError, ElementTree.ParseError) as error:
            status, problem = -1, str(error)
    if status != ("failed" in tests.values()):  # pytest ends with 0 where all is well, and with 1 where a test failed
        tests[f"part {part.name}: {problem}"] = "failed"
    return Outcome(tests, (time.monotonic() - began) / 60)


def run_all(parts: Iterable[Part], arguments: Iterable[str] = ()) -> dict[str, Outcome]:
    """Run parts one after the other, with further arguments of pytest. After Ctrl-C there is no further part."""
    outcomes: dict[str, Outcome] = {}
    for part in parts:
        print(f"\n==== {part.name}: tests in {part.environment}", flush=True)
        try:
            outcomes[part.name] = run(part, arguments)
        except KeyboardInterrupt:
            outcomes[part.name] = Outcome({f"part {part.name}: interrupted": "failed"})
            break
    return outcomes


def summary(outcomes: dict[str, Outcome]) -> str:
    """Return the tests that failed, a line for each part, and the sums as pytest writes them."""
    failed = [name for outcome in outcomes.values() for name, end in outcome.tests.items() if end == "failed"]
    table = [f"{'part':10}" + "".join(f"{word:>9}" for word in (*COUNTED, "minutes"))]
    for name, outcome in outcomes.items():
        table.append(
            f"{name:10}" + "".join(f"{outcome.counts[word]:9}" for word in COUNTED) + f"{outcome.minutes:9.1f}"
        )
    total = sum((outcome.counts for outcome in outcomes.values()), Counter())
    sums = ", ".join(f"{total[word]} {word}" for word in COUNTED)
    return "\n".join(["", *(f"FAILED {name}" for name in failed), *table, sums])


def main() -> int:
    parser = argparse.ArgumentParser(description="Run all tests in parts, and end with one summary.")
    parser.add_argument(
        "--all", action="store_true", help="what a day has only a part of, too, and real sites over Flower"
    )
    parser.add_argument("--coverage", action="store_true", help="list the lines of src that no test reaches")
    chosen = parser.parse_args()
    parts = [part for part in PARTS if chosen.all or part is not FLOWER]
    if not chosen.all:
        # For all processes the day is that on which the first of them begins.
        os.environ |= {"TESTS": "day", "TESTS_DAY": str(date.today().toordinal())}
    if chosen.coverage:
        coverage = [sys.executable, "-m", "coverage"]
        subprocess.run([*coverage, "erase"], check=True)
        outcomes = run_all(parts, ["--cov", "--cov-append", "--cov-report="])
        subprocess.run([*coverage, "report"], check=False)
    else:
        outcomes = run_all(parts)
    print(summary(outcomes), flush=True)
    return int(any("failed" in outcome.tests.values() for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
