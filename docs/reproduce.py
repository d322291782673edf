"""Repeat a reproduction of docs/reproductions.md from archives on disk: `make reproduce STUDY=fedtan-fig6`.

The archives lie in the folder that FEDSHIFT_TEST_DATA names, or in folders inside of it, as CONTRIBUTING.md lists them.
They are linked into one folder, which the workflow searches before the network. Everything that is made lies in
build/reproductions/STUDY: data, results and the page. At the end, the tables and extracts that
docs/reproductions/studies.yaml lists are written where they lie in docs/reproductions. A script writes its own.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

import fedshift
from fedshift.core.errors import UserError
from fedshift.io.checksums import require
from fedshift.io.paths import Paths
from fedshift.io.text import write_text

ROOT = Path(__file__).parents[1]
REPRODUCTIONS = ROOT / "docs" / "reproductions"
CIFAR = "cifar10_exact.npz"
PART = "cifar10_part.npz"
"""The images of CIFAR that are at hand, training images first: `dataset.images` of studies of corruptions."""
LIST: dict[str, dict[str, Any]] = yaml.safe_load((REPRODUCTIONS / "studies.yaml").read_text(encoding="utf-8"))
"""The reproductions by study: what each writes, by which script, and why it cannot be repeated."""
PLAIN = ("algorithm", "inference")
"""Columns that name a plug-in, before its settings."""


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


def extracts(name: str, root: Path) -> dict[str, str]:
    """Return the content of each file that a study writes into docs/reproductions, by its path there.

    `root` is the working folder, in which the study's results are. Raises UserError where a table is not there.
    """
    folder = Paths(root).study(name)
    return {
        file: _copied(folder / source) if isinstance(source, str) else _table(folder, source).to_csv(index=False)
        for file, source in LIST.get(name, {}).get("writes", {}).items()
    }


def _copied(path: Path) -> str:
    """Return the text of a file of a study's results."""
    if not path.is_file():
        raise UserError(path, "no such file", "run the study to its end")
    require([path])
    return path.read_bytes().decode("utf-8")


def _table(folder: Path, source: Mapping[str, Any]) -> pd.DataFrame:
    """Return an extract of a table of a study's results, as studies.yaml describes it."""
    tables = fedshift.results(folder)
    rows = tables.rounds if source["table"] == "rounds" else tables.table(source["table"])
    for name, wanted in source["where"].items():
        rows = rows[_column(folder, rows, name).isin(wanted if isinstance(wanted, list) else [wanted])]
    if rows.empty:
        raise UserError(folder, f"no row of {source['table']} has {dict(source['where'])}", "correct studies.yaml")
    keys = [_column(folder, rows, name).rename(key) for key, name in source["keys"].items()]
    means = {mean: rows[column] for mean, column in source["means"].items()}
    return pd.DataFrame(means).groupby(keys, dropna=False).mean().round(source["digits"]).reset_index()


def _column(folder: Path, rows: pd.DataFrame, name: str) -> pd.Series:
    """Return a column of a table, or the setting of each row's run that a name such as `training.rounds` stands for."""
    if "." in name:
        settings = {run: _setting(folder, run, name) for run in rows["run"].unique()}
        return rows["run"].map(settings)
    return rows[name].str.extract(r"^(\w+)", expand=False) if name in PLAIN else rows[name]


def _setting(folder: Path, run: str, name: str) -> Any:
    spec = json.loads(Paths(folder.parents[2]).run_files(run).spec.read_text(encoding="utf-8"))
    return functools.reduce(lambda part, key: part[key], name.split("."), spec)


def write(name: str, root: Path, out: Path = REPRODUCTIONS) -> None:
    """Write the files of a study whose results lie in `root`; if one is missing, write none and raise UserError."""
    for file, text in extracts(name, root).items():
        (out / file).parent.mkdir(exist_ok=True)
        write_text(out / file, text)
        print(f"wrote docs/reproductions/{file}")


def repeat(name: str, *arguments: str) -> int:
    """Repeat a reproduction; `arguments` are passed on to Snakemake. Returns its exit code. Raises UserError."""
    known = studies()
    entry = LIST.get(name, {})
    data = Path(os.environ.get("FEDSHIFT_TEST_DATA") or ROOT.parent / "shared" / "data")
    if name not in known and name not in LIST:
        raise UserError("STUDY", f"{name or 'nothing'} is not one of {', '.join(sorted(known | LIST))}")
    if "lost" in entry:
        raise UserError("STUDY", f"{name} cannot be repeated: {entry['lost']}")
    if not data.is_dir():
        raise UserError("FEDSHIFT_TEST_DATA", f"no such folder: {data}", "see CONTRIBUTING.md")
    if "script" in entry:
        archives = [data / entry["data"]] if "data" in entry else []
        runpy.run_path(str(ROOT / "docs" / entry["script"]))["main"](*archives)
        return 0
    folder, mirror = prepare(known[name], data, ROOT / "build" / "reproductions")
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), *arguments]
    # Relative, since the page names the study's file: a page that is passed on names no folder of this machine.
    settings = [f"study={os.path.relpath(known[name], folder)}", "scale=paper", f"mirror={mirror}"]
    failed = subprocess.run([*command, "--config", *settings], cwd=folder, check=False).returncode
    if not failed:
        write(name, folder)
    return failed


def main(name: str = "", *arguments: str) -> int:
    """Repeat a reproduction by its name; say bad input in one line. Returns the exit code."""
    try:
        return repeat(name, *arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
