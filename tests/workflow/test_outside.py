"""A study whose methods lie outside of the package, and what a change of their files makes the workflow do again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_project import Project

from fedshift.io.arrays import read_tensors

pytestmark = pytest.mark.slow

PART = '''"""A server that goes a part of the way."""

from fedshift.algorithms import Algorithm

from {package}_share import SHARE


class {name}(Algorithm):
    """A part of the mean update."""

    def update(self, server, mean):
        server.shared.lerp_(mean["shared"], SHARE)
'''
STUDY = {
    "runs": [{"algorithm": ["fedavg", "half", "quarter", "methods:Eighth"]}],
    "training": {"rounds": 1, "batch_size": 4, "lr": 0.01},
    "seeds": [0],
    "inferences": ["source"],
    "metrics": ["accuracy", "share_right"],
}
METRIC = '''"""A metric of the project."""

from fedshift.metrics._classes import Accuracy


class ShareRight(Accuracy):
    """The share of right predictions, by another name."""
'''


class Outside(Project):
    """A project with a folder of plug-ins, a module, and a second package that is installed beside fedshift."""

    @property
    def site(self) -> Path:
        return self.root.parent / "site"

    def snakemake(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return super().snakemake(*words, PYTHONPATH=str(self.site), **environment)

    def fedshift(self, *words: str) -> str:
        path = {"PYTHONPATH": f"{self.root / 'src'}:{self.site}", "PATH": "/usr/bin:/bin"}
        command = [sys.executable, "-m", "fedshift", *words]
        return subprocess.run(command, cwd=self.root, env=path, capture_output=True, text=True, check=True).stdout

    def again(self) -> set[str]:
        """Return the algorithms that would be trained again, and other rules that would run, but for those after."""
        jobs = self.jobs()
        trained = {job["run"].partition("-aggregated-")[0] for job in jobs if job.rule == "train"}
        rules = {job.rule for job in jobs} - {"train"}
        after = {"predict", "report", "index"}
        return trained | (rules - after if "score" in rules else rules)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Outside:
    """The study, finished. Tests leave it as they find it."""
    made = Outside.create(tmp_path_factory.mktemp("outside") / "a project", **STUDY)
    assert isinstance(made, Outside)
    config = yaml.safe_load((made.root / "config" / "config.yaml").read_text(encoding="utf-8"))
    write(
        made.root,
        {
            "config/config.yaml": yaml.safe_dump(config | {"plugins": "own plugins"}),
            "own plugins/half.py": PART.format(name="Half", package="."),
            "own plugins/_share.py": "SHARE = 0.5\n",
            "own plugins/share_right.py": METRIC,
            "methods.py": PART.format(name="Eighth", package=""),
            "_share.py": "SHARE = 0.125\n",
        },
    )
    write(
        made.site,
        {
            "lab/__init__.py": "",
            "lab/quarter.py": PART.format(name="Slow", package="."),
            "lab/_share.py": "SHARE = 0.25\n",
            "lab_methods-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: lab-methods\nVersion: 1.2\n",
            "lab_methods-1.2.dist-info/entry_points.txt": "[fedshift.algorithms]\nquarter = lab.quarter:Slow\n",
        },
    )
    done = made.build()
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def test_methods_from_all_three_places_are_trained(finished_project: Outside) -> None:
    """After one round a method that goes a part s of the way is at x + s (mean - x): all on one line, at their s."""
    models = {}
    for key, spec in finished_project.runs().items():
        model = finished_project.root / "results" / "runs" / key / "model.safetensors"
        models[spec["algorithm"]["name"]] = read_tensors(model)[0]
    assert set(models) == {"fedavg", "half", "quarter", "methods--Eighth"}
    ways = [{k: a - models[other][k] for k, a in models["fedavg"].items()} for other in ("half", "quarter")]
    ways.append({k: a - models["methods--Eighth"][k] for k, a in models["fedavg"].items()})
    weights = [way["1.weight" if "1.weight" in way else next(iter(way))].double() for way in ways]
    assert weights[0].abs().max() > 1e-4
    for way, left in zip(weights, (0.5, 0.75, 0.875), strict=True):
        assert (way / left - weights[0] / 0.5).abs().max() < 1e-5
    scores = (finished_project.root / "results" / "studies" / "tiny" / "scores.csv").read_text(encoding="utf-8")
    assert "share_right" in scores


@pytest.mark.parametrize(
    ("edits", "again"),
    [
        (
            [
                ("own plugins/half.py", "A part of the mean update.", "Some of the mean update."),
                ("own plugins/_share.py", "0.5", "0.5  # a part"),
                ("../site/lab/quarter.py", "SHARE)", "SHARE)  # a part"),
                ("methods.py", "A part of the mean update.", "Some of the mean update."),
            ],
            set(),
        ),
        ([("own plugins/_share.py", "0.5", "0.75")], {"half"}),
        ([("../site/lab/_share.py", "0.25", "0.75"), ("_share.py", "0.125", "0.75")], {"quarter", "methods--Eighth"}),
        ([("own plugins/share_right.py", "ight(Accuracy):", "ight(Accuracy):\n    percent = False")], {"score"}),
    ],
    ids=["words", "helper", "installed package and module", "metric"],
)
def test_a_change_of_a_file_runs_exactly_its_runs_again(
    finished_project: Outside, edits: list[tuple[str, str, str]], again: set[str]
) -> None:
    with contextlib.ExitStack() as stack:
        for edit in edits:
            stack.enter_context(finished_project.edited(*edit))
        jobs = finished_project.again()
    assert jobs - {"score"} == again - {"score"}
    assert ("score" in jobs) == bool(again)


def test_a_moved_folder_trains_nothing_again(finished_project: Outside) -> None:
    (finished_project.root / "own plugins").rename(finished_project.root / "moved")
    try:
        with finished_project.edited("config/config.yaml", "own plugins", "moved"):
            assert finished_project.again() - {"score", "ledger"} == set()
    finally:
        (finished_project.root / "moved").rename(finished_project.root / "own plugins")


def test_the_list_says_where_each_comes_from(finished_project: Outside) -> None:
    lines = dict(line.split(maxsplit=1) for line in finished_project.fedshift("list", "algorithms").splitlines())
    places = {name: lines[name] for name in ("fedavg", "half", "quarter")}
    assert places == {"fedavg": "built in", "half": "own plugins/half.py", "quarter": "lab-methods 1.2"}
    schema = finished_project.fedshift("schema")
    assert '"half"' in schema and '"quarter"' in schema
