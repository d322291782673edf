"""Tutorials of the documentation, carried out as a reader would: files are written, commands run, top to bottom."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import forked

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.M | re.S)


@dataclass(frozen=True)
class Step:
    """One block of a tutorial: a file to write (`title` is its path), or commands in `bash` or `python`."""

    language: str
    title: str | None
    text: str


def steps(page: Path) -> Iterator[Step]:
    """Yield the steps of a tutorial in order. Blocks in other languages are for reading alone."""
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        step = Step(found["language"], found["title"], found["text"])
        if step.title or step.language in ("bash", "python"):
            yield step


class Reader:
    """Somebody who carries out a tutorial in an empty folder; `cd` in a command holds for the steps after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        sources = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
        self.environment = {**os.environ, **forked.address(), "PATH": path, "PYTHONPATH": sources}

    def follow(self, page: Path) -> float:
        """Carry out a page and return the seconds of CPU that it took. Fails with the output of a failing command."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for step in steps(page):
            if step.title:
                file = self.folder / step.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(step.text, encoding="utf-8")
            else:
                self._run(step, page)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def _run(self, step: Step, page: Path) -> None:
        where = self.folder.parent / "where"
        shell = ["bash", "-euo", "pipefail", "-c", f'{step.text}\npwd > "{where}"']
        command = shell if step.language == "bash" else [sys.executable, "-c", step.text]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (
            f"{page.name}: this step fails with code {done.returncode}:\n\n{step.text}\n"
            f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        if step.language == "bash":
            self.folder = Path(where.read_text(encoding="utf-8").strip())
