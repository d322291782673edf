"""The plug-ins of the documentation: their code, and a copy of the package that holds them as files of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fedshift

ROOT = Path(__file__).parents[2]
PACKAGE = Path(fedshift.__file__).parent
_EXAMPLE = re.compile(r"`src/fedshift/(\w+)s/(\w+)\.py`:\n\n```python\n(.*?)```", re.S)


@dataclass(frozen=True)
class Example:
    """One plug-in that a page of the documentation shows as a whole file."""

    page: str
    kind: str
    name: str
    code: str

    @property
    def path(self) -> str:
        """Return the path of the file from the root of the project."""
        return f"src/fedshift/{self.kind}s/{self.name}.py"


def examples() -> list[Example]:
    """Return all examples of docs/add-a*.md, in the order of pages."""
    pages = sorted((ROOT / "docs").glob("add-a*.md"))
    return [Example(p.name, *found) for p in pages for found in _EXAMPLE.findall(p.read_text(encoding="utf-8"))]


class Copy:
    """A copy of the package and of its contract tests, with every example written into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, root / "src" / "fedshift", ignore=ignore)
        for folder in ("contract", "support"):
            shutil.copytree(ROOT / "tests" / folder, root / "tests" / folder, ignore=ignore)
        for file in ("pyproject.toml", "tests/conftest.py"):
            shutil.copy(ROOT / file, root / file)
        for example in examples():
            (root / example.path).write_text(example.code, encoding="utf-8")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a Python module on the copy, such as `ruff check FILE`."""
        path = os.pathsep.join([str(self.root / "src"), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": path, "MYPYPATH": "src", "TESTS": ""},  # as an author calls them
            capture_output=True,
            text=True,
            check=False,
        )

    def passes(self, *arguments: str, files: Sequence[str] = ()) -> None:
        """Assert that a module succeeds on the copy, and show what it printed if it does not."""
        done = self.run(*arguments, *files)
        command = " ".join(arguments)
        assert done.returncode == 0, f"an example of docs/add-a*.md fails `{command}`:\n{done.stdout}\n{done.stderr}"
