"""An installation apart from any clone: the wheel, projects of one's own, and workflows that import fedshift."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path

import forked
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BUILT_FROM = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "Snakefile")
FOLDERS = ("workflow", "config", "envs", "profiles", "src")
MINI = """
title: The smallest study
dataset: { name: gaussians, samples: 40 }
partition: { internal: [client1, client2], split: { train: 0.5, val: 0, test: 0.5 }, by: class }
model: two_layer
training: { rounds: 1, batch_size: 20, select: last }
runs: [{ algorithm: fedavg }]
inferences: [source]
metrics: [accuracy]
figures: []
"""
IMPORTS = """
configfile: "config/config.yaml"


rule mine:
    input:
        "results/studies/mini/scores.csv",
    output:
        "mine.txt",
    shell:
        "head -1 {{input}} > {{output}}"


module fedshift:
    snakefile:
        {snakefile!r}
{config}

use rule * from fedshift as fedshift_*
"""
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}


@dataclass(frozen=True)
class Installation:
    """An environment with the wheel, and the libraries of this one without its fedshift."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def shipped(self) -> Path:
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.root)})) / "fedshift" / "shipped"

    def call(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Call a program of the environment in a folder."""
        command = [str(self.python), "-m", *words]
        return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def build(kind: str, source: Path, out: Path) -> Path:
    """Build a wheel or a source distribution, as `pip` does it."""
    code = f"import sys; from setuptools import build_meta as b; print(b.build_{kind}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, out], cwd=source, capture_output=True, text=True, check=True)
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built from the source distribution."""
    top = tmp_path_factory.mktemp("built")
    (top / "clone").mkdir()
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, top / "clone" / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, top / "clone" / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    with tarfile.open(build("sdist", top / "clone", top)) as archive:
        archive.extractall(top / "unpacked", filter="data")
    (unpacked,) = (top / "unpacked").iterdir()
    return build("wheel", unpacked, top)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    made = Installation(tmp_path_factory.mktemp("environment"))
    venv.create(made.root)
    pip = [sys.executable, "-m", "pip", "--python", str(made.python), "--disable-pip-version-check"]
    pip += ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, env=ENVIRONMENT, check=True, capture_output=True)
    (made.shipped.parents[1] / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


def files(folder: Path) -> set[str]:
    every = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in every if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_files_of_the_clone(installed: Installation) -> None:
    assert (installed.shipped / "Snakefile").read_bytes() == (ROOT / "Snakefile").read_bytes()
    for name in ("workflow", "config", "envs", "profiles"):
        assert files(installed.shipped / name) == files(ROOT / name)
    templates = Path("report", "templates")
    assert files(installed.shipped.parent / templates) == files(ROOT / "src" / "fedshift" / templates)


def test_a_project_of_ones_own(installed: Installation, tmp_path: Path) -> None:
    """New, run and status, where nothing of a clone is in reach. The second call finds all done."""
    project = tmp_path / "my project"
    assert installed.call(tmp_path, "fedshift", "new", str(project)).returncode == 0
    assert len((project / "Snakefile").read_text().splitlines()) == 3
    (project / "config" / "studies" / "mini.yaml").write_text(MINI)
    done = installed.call(project, "fedshift", "run", "mini", "--cores", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of " in done.stderr
    assert "fedshift status mini --watch" in done.stderr
    assert (project / "reports" / "mini.html").is_file()
    looked = installed.call(tmp_path, "fedshift", "status", "mini", "--directory", str(project), "--json")
    assert [run["state"] for run in json.loads(looked.stdout)["runs"]] == ["done"]
    again = installed.call(project, "snakemake", "-n", "--cores", "1", "--config", "study=mini")
    assert again.returncode == 0, again.stderr
    assert "Nothing to be done" in again.stdout + again.stderr


def test_run_passes_on_arguments_and_exit_codes(installed: Installation, tmp_path: Path) -> None:
    shown = installed.call(
        tmp_path, "fedshift", "run", "demo", "-d", "folder", "--scale", "mini", "--", "-n", "--quiet"
    )
    assert shown.returncode == 0, shown.stderr
    assert {path.name for path in (tmp_path / "folder").iterdir()} <= {".snakemake"}
    refused = installed.call(tmp_path, "fedshift", "run", "dmo")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1] == "study: unknown study 'dmo'; did you mean 'demo'?"


def dry_run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Plan with this environment, whose fedshift is that of the clone."""
    return forked.run("snakemake", ("-n", *words), folder, forked.environment())


def imports(folder: Path, snakefile: Path, config: str = "") -> None:
    """Write a workflow with keys of its own, which imports fedshift and needs the scores of its study."""
    (folder / "config" / "studies").mkdir(parents=True)
    (folder / "config" / "studies" / "mini.yaml").write_text(MINI)
    (folder / "config" / "config.yaml").write_text(
        "study: of something else\nsheet: samples.tsv\nfedshift: {study: mini}\n"
    )
    (folder / "Snakefile").write_text(IMPORTS.format(snakefile=str(snakefile), config=config))


def test_another_workflow_imports_the_module(installed: Installation, tmp_path: Path) -> None:
    imports(tmp_path, installed.shipped / "Snakefile", '    config:\n        config["fedshift"]\n')
    done = installed.call(tmp_path, "snakemake", "--cores", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "mine.txt").read_text().startswith("study,run,algorithm,")


def test_a_module_without_settings_builds_the_default(tmp_path: Path) -> None:
    imports(tmp_path, ROOT / "workflow" / "Snakefile")
    done = dry_run(tmp_path, "fedshift_all", "--config", "sheets=x")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reports/demo.html" in done.stdout + done.stderr


def test_the_workflow_that_snakedeploy_writes(tmp_path: Path) -> None:
    """It copies config, and imports every rule with the whole of it: the default target is that of fedshift."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "workflow").mkdir()
    module = f'module fedshift:\n    snakefile:\n        "{ROOT}/workflow/Snakefile"\n    config:\n        config\n\n\n'
    text = f'configfile: "config/config.yaml"\n\n\n{module}use rule * from fedshift\n'
    (tmp_path / "workflow" / "Snakefile").write_text(text)
    done = dry_run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reports/demo.html" in done.stdout + done.stderr


def test_another_folder_needs_no_config(tmp_path: Path) -> None:
    """The study is one that comes with fedshift. A misspelt key is still an error."""
    words = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(tmp_path), "--config"]
    done = dry_run(tmp_path.parent, *words, "study=unifed-table2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reports/unifed-table2.html" in done.stdout + done.stderr
    refused = dry_run(tmp_path.parent, *words, "stduy=demo")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1] == "--config: unknown key 'stduy'; did you mean 'study'?"
