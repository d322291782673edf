"""Repeat a reproduction of docs/reproductions.md from archives on disk: `make reproduce STUDY=fedtan-fig6`.

The archives lie in the folder that FEDSHIFT_TEST_DATA names, or in folders inside of it, as CONTRIBUTING.md lists them.
They are linked into one folder, which the workflow searches before the network. Everything that is made lies in
build/reproductions/STUDY: data, results and the page. A script writes its table where it lies in docs/reproductions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
REPRODUCTIONS = ROOT / "docs" / "reproductions"
CIFAR = "cifar10_exact.npz"
PART = "cifar10_part.npz"
"""The images of CIFAR that are at hand, training images first: `dataset.images` of studies of corruptions."""
LOST = {"benchmark-cifar10c": "the order of its 1,500 images was not recorded"}
"""Studies that cannot be repeated, and why."""

SCRIPTS = {"fedtan-theorem1-mnist": ("gradient_deviation.py", "mnist")}
"""Reproductions that a script of this folder makes, with the folder of its data."""


def studies() -> dict[str, Path]:
    """Return the files of all studies with a folder in docs/reproductions, by name."""
    files = {file.stem: file for file in sorted(REPRODUCTIONS.glob("*/*.yaml"))}
    own = ((folder.name, ROOT / "config" / "studies" / f"{folder.name}.yaml") for folder in REPRODUCTIONS.iterdir())
    return files | {name: file for name, file in sorted(own) if file.is_file()}


def prepare(study: Path, data: Path, build: Path) -> tuple[Path, Path]:
    """Link all archives into one folder, and write what the study needs besides them in its working folder.

    Returns the working folder and the folder of links.
    """
    mirror = build / "mirror"
    folder = build / study.stem
    for made in (mirror, folder):
        made.mkdir(parents=True, exist_ok=True)
    for file in sorted(path for path in data.rglob("*") if path.is_file()):
        link = mirror / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(file.resolve())
    if PART in study.read_text(encoding="utf-8"):
        with np.load(mirror / CIFAR, allow_pickle=False) as official:
            x, y = (np.concatenate([official[f"{name}_train"], official[f"{name}_test"]]) for name in "xy")
        np.savez(folder / PART, x=x, y=y)
    return folder, mirror


def main(name: str, *arguments: str) -> int:
    """Repeat a reproduction; `arguments` are passed on to Snakemake. Returns its exit code, or 2 for bad input."""
    known = studies()
    data = Path(os.environ.get("FEDSHIFT_TEST_DATA") or ROOT.parent / "shared" / "data")
    if name not in known and name not in SCRIPTS:
        print(f"STUDY: {name or 'nothing'} is not one of {', '.join([*known, *SCRIPTS])}", file=sys.stderr)
        return 2
    if name in LOST:
        print(f"STUDY: {name} cannot be repeated: {LOST[name]}", file=sys.stderr)
        return 2
    if not data.is_dir():
        print(f"FEDSHIFT_TEST_DATA: no such folder: {data}; see CONTRIBUTING.md", file=sys.stderr)
        return 2
    if name in SCRIPTS:
        script, part = SCRIPTS[name]
        return subprocess.run([sys.executable, ROOT / "docs" / script, data / part], check=False).returncode
    folder, mirror = prepare(known[name], data, ROOT / "build" / "reproductions")
    command = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(ROOT / "Snakefile"), *arguments]
    settings = [f"study={known[name]}", "scale=paper", f"mirror={mirror}"]
    return subprocess.run([*command, "--config", *settings], cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or [""])))
