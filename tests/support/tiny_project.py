"""A copy of the workflow with a study that takes seconds, in a folder whose name has a space."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import numpy as np
import yaml
from PIL import Image

ROOT = Path(__file__).parents[2]
BUILT = shutil.ignore_patterns("*.egg-info", "*.pyc.*")
"""Files that no copy of the sources needs. Bytecode is copied, or each project would compile all of it again."""
STUDY: dict[str, Any] = {
    "title": "A tiny study",
    "dataset": {"name": "own_images", "table": "../../own images/samples.csv", "size": 16},
    "partition": {"internal": ["A", "B"], "external": ["C"]},
    "model": "mlp",
    "training": {"rounds": 2, "batch_size": 4, "lr": 0.01},
    "runs": [{"algorithm": "fedavg"}, {"algorithm": "damped", "bn": "local"}],
    "seeds": [0, 1],
    "inferences": ["source", "tsmobn"],
    "metrics": ["accuracy", "auc"],
    "figures": ["sites"],
}
ALGORITHM = '''"""A server that goes half the way: a plug-in of the user's own."""

from fedshift.algorithms import Algorithm


class Damped(Algorithm):
    """Half of the mean update."""

    def update(self, server, mean):
        server.shared.lerp_(mean["shared"], 0.5)
'''


@dataclass(frozen=True)
class Job:
    """A rule with its wildcards, as a dry run lists it."""

    rule: str
    wildcards: str = ""

    def __getitem__(self, name: str) -> str:
        return dict(item.split("=") for item in self.wildcards.split(", "))[name]


@dataclass(frozen=True)
class Project:
    """A project folder and the means to call Snakemake in it."""

    root: Path

    @classmethod
    def create(cls, root: Path, **changes: Any) -> Project:
        for name in ("Snakefile", "workflow", "profiles", "envs", "config/config.yaml", "src"):
            source, target = ROOT / name, root / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=BUILT)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        (root / "src" / "fedshift" / "algorithms" / "damped.py").write_text(ALGORITHM, encoding="utf-8")
        _images(root / "own images")
        project = cls(root)
        project.study(**changes)
        return project

    @classmethod
    def finished(cls, root: Path, **changes: Any) -> Project:
        """Return a project whose study is built."""
        project = cls.create(root, **changes)
        done = project.build()
        assert done.returncode == 0, done.stdout + done.stderr
        return project

    def study(self, name: str = "tiny", **changes: Any) -> Path:
        """Write a study: STUDY with changes."""
        path = self.root / "config" / "studies" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(STUDY | changes, sort_keys=False), encoding="utf-8")
        return path

    def runs(self) -> dict[str, dict[str, Any]]:
        """The specs of all finished runs by id."""
        found = (self.root / "results" / "runs").glob("*/spec.json")
        return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in found}

    def files(self) -> set[str]:
        """Return all files of the project, hidden ones too, but not Snakemake's own."""
        every = (p.relative_to(self.root) for p in self.root.rglob("*") if p.is_file())
        return {str(p) for p in every if p.parts[0] not in (".snakemake", "src")}

    def snakemake(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Call Snakemake as a user does, in a process that need not import Snakemake's libraries."""
        return forked.run("snakemake", words, self.root, forked.environment() | environment)

    def cold_snakemake(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Call Snakemake as a user does, by a new Python, with the bytecode that the environment has."""
        command, kept = [sys.executable, "-m", "snakemake", *words], forked.environment() | environment
        return subprocess.run(command, cwd=self.root, env=kept, capture_output=True, text=True, check=False)

    def build(self, study: str = "tiny", *words: str) -> subprocess.CompletedProcess[str]:
        return self.snakemake("--cores", "2", *words, "--config", f"study={study}")

    def jobs(self, study: str = "tiny", *settings: str) -> set[Job]:
        """Return the jobs that a call would run, by a dry run, without the target rule."""
        done = self.snakemake("--dry-run", "--config", f"study={study}", *settings)
        assert done.returncode == 0, done.stderr
        blocks = re.split(r"\n(?=\[|(?:local)?rule )", done.stdout + done.stderr)
        found = set()
        for block in blocks:
            if head := re.match(r"(?:local)?rule (\w+):\n", block):
                wildcards = re.search(r"^    wildcards: (.*)$", block, re.MULTILINE)
                found.add(Job(head[1], wildcards[1] if wildcards else ""))
        return {job for job in found if job.rule != "all"}

    @contextmanager
    def edited(self, name: str, old: str, new: str) -> Iterator[None]:
        """A file in which `old`, which must be there once, reads `new`; put back afterwards."""
        path = self.root / name
        before, times = path.read_text(encoding="utf-8"), path.stat()
        assert before.count(old) == 1, f"{old!r} stands {before.count(old)} times in {name}"
        path.write_text(before.replace(old, new), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(before, encoding="utf-8")
            # Bytecode of a file of the same size and second counts as its own: the edited one must have another time.
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _images(folder: Path, sites: str = "ABC", patients: int = 6, each: int = 4) -> None:
    """Grey noise, darker or lighter by class, of `patients` patients at each site."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = ["path,label,site,patient"]
    for site in sites:
        for n in range(patients * each):
            label, patient = n % 2, n // each
            pixels = rng.integers(0, 156, (16, 16, 3)) + 100 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{site}{n}.png")
            rows.append(f"{site}{n}.png,{label},{site},{site}{patient}")
    (folder / "samples.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
