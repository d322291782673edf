"""All parts of the tests run whatever becomes of one, and one summary ends them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "good/test_good.py": "import pytest\ndef test_a(): pass\n@pytest.mark.skip\ndef test_b(): pass\n",
    "bad/test_bad.py": "def test_c(): assert False\ndef test_d(): pass\n",
    "broken/test_broken.py": "import nothing_of_this_name\n",
    "broken/test_whole.py": "def test_e(): pass\n",
    "torn/test_torn.py": "import pytest\n@pytest.fixture\ndef left():\n    yield\n    assert False\n"
    "def test_f(left): pass\n",
    "dies/test_dies.py": "import os\ndef test_g(): os._exit(7)\n",
    "empty/test_empty.py": "",
}
CALL = """
import sys
sys.path.insert(0, {tests!r})
import parts
parts.PARTS = [parts.Part(name, {python!r} if name != "missing" else "nowhere", words) for name, words in {parts!r}]
sys.exit(parts.main())
"""
"""Each part has the environment of this test; its Python is found as that of any environment is."""


def called(folder: Path, **parts: list[str]) -> tuple[int, list[str]]:
    """The exit status of a call with some parts, and the lines that it prints."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    code = CALL.format(tests=str(ROOT / "tests"), python=sys.prefix, parts=list(parts.items()))
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def row(lines: list[str], name: str) -> list[str]:
    """The numbers of a part in the summary: passed, failed, skipped."""
    (found,) = (line.split() for line in lines if line.startswith(f"{name} "))
    return found[1:4]


@pytest.mark.slow
def test_parts_that_are_whole_end_with_0(tmp_path: Path) -> None:
    status, lines = called(tmp_path, one=["good"], spread=["good", "-n", "2"])
    assert status == 0
    assert row(lines, "one") == row(lines, "spread") == ["1", "0", "1"]
    assert lines[-1] == "2 passed, 0 failed, 2 skipped"


FAULTS = {
    "bad": (["bad"], "1 1 0", "bad/test_bad.py::test_c"),
    "broken": (["broken"], "1 1 0", "broken/test_broken.py::broken.test_broken"),
    "missing": (["good"], "0 1 0", "part missing: [Errno 2] No such file or directory: 'nowhere/bin/python'"),
    "torn": (["torn"], "0 1 0", "torn/test_torn.py::test_f"),
    "dies": (["dies", "-p", "no:xdist"], "0 1 0", "part dies: pytest ended with status 7, after 0 tests"),
    "taken": (["dies", "good", "-n", "1"], "1 1 1", "dies/test_dies.py::test_g"),
    "empty": (["empty"], "0 1 0", "part empty: pytest ended with status 5, after 0 tests"),
    "absent": (["absent"], "0 1 0", "part absent: pytest ended with status 4, after 0 tests"),
    "whole": (["good"], "1 0 1", ""),
}
"""Parts, one after the other: what pytest is called with, the numbers of the summary, and what it names as failed."""


@pytest.mark.slow
def test_a_part_that_fails_stops_no_other(tmp_path: Path) -> None:
    status, lines = called(tmp_path, **{name: words for name, (words, _, _) in FAULTS.items()})
    assert status == 1
    assert {name: " ".join(row(lines, name)) for name in FAULTS} == {name: row for name, (_, row, _) in FAULTS.items()}
    end = lines.index("part         passed   failed  skipped  minutes")
    names = [f"FAILED {name}" for _, _, name in FAULTS.values() if name]
    assert lines[end - len(names) : end] == names
    assert lines[-1] == "4 passed, 8 failed, 2 skipped"


@pytest.fixture
def parts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("parts", ROOT / "tests" / "parts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["parts"] = module
    spec.loader.exec_module(module)
    return module


def test_each_file_of_tests_belongs_to_one_part(parts: ModuleType) -> None:
    """Files of the real parts, by the folders that each is called with and those that it leaves out."""
    for file in (ROOT / "tests").rglob("test_*.py"):
        name = file.relative_to(ROOT).as_posix()
        holders = [part.name for part in parts.PARTS if holds(part.arguments, name)]
        expected = ["flower", "main"] if name.startswith("tests/flower/") else holders[:1]
        assert holders == expected and holders, (name, holders)


def holds(arguments: list[str], name: str) -> bool:
    """Return whether a call of pytest collects a file."""
    left = [word.removeprefix("--ignore=") for word in arguments if word.startswith("--ignore=")]
    taken = [word for word in arguments if word.startswith("tests")]
    inside = [any(name == path or name.startswith(f"{path}/") for path in paths) for paths in (taken, left)]
    return inside == [True, False]
