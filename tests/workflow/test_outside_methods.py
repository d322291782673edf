"""Plug-ins of every kind, as people write them outside of the package: contract, a study to its page, and reruns."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tiny_project import Project

from fedshift.contract import cases
from fedshift.core import registry

ZOO = Path(__file__).parents[1] / "support" / "zoo"
FILES = sorted(path for path in (ZOO / "methods").glob("*.py") if not path.name.startswith("_"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_each_satisfies_the_contract(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", [])
    registry.forget()
    for case in cases(registry.add_file(file)):
        if not case.advice:
            case.check()
    registry.forget()


class Zoo(Project):
    """A project whose study uses all of them at once."""

    def again(self) -> set[str]:
        """Return the rules that would run, with the algorithm or add-on of each training."""
        jobs = self.jobs("zoo")
        runs = {job["run"] for job in jobs if job.rule == "train"}
        # The only run of FedAvg is that of the add-on.
        names = {file.stem: file.stem for file in FILES} | {"fedavg": "l2sp"}
        trained = {next(name for start, name in names.items() if run.startswith(start)) for run in runs}
        return trained | {job.rule for job in jobs} - {"train"}


@pytest.fixture(scope="module")
def finished_zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """The study, finished. Tests leave it as they find it."""
    made = Zoo.create(tmp_path_factory.mktemp("zoo") / "a project")
    assert isinstance(made, Zoo)
    shutil.copytree(ZOO / "methods", made.root / "methods", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ZOO / "zoo.yaml", made.root / "config" / "studies" / "zoo.yaml")
    config = made.root / "config" / "config.yaml"
    settings = yaml.safe_load(config.read_text(encoding="utf-8")) | {"plugins": "methods", "scale": "mini"}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    done = made.build("zoo")
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.mark.slow
def test_a_study_of_all_of_them_comes_to_its_page(finished_zoo: Zoo) -> None:
    results = finished_zoo.root / "results"
    scores = pd.read_csv(results / "studies" / "zoo" / "scores.csv")
    assert set(scores["metric"]) == {"kappa", "accuracy"}
    assert set(scores["inference"]) == {"source", "instance_bn", "moving_bn"}
    assert set(scores["site"]) == {"alpha", "beta", "gamma"}
    page = (finished_zoo.root / "reports" / "zoo.html").read_text(encoding="utf-8")
    assert "Inside and outside" in page and "Cohen&#39;s kappa" in page
    assert "Before round 1 each site sent the server, beside the model: class_counts" in page
    runs = {spec["algorithm"]["name"]: key for key, spec in finished_zoo.runs().items()}
    rounds = pd.read_parquet(results / "runs" / runs["extrapolated"] / "rounds.parquet")
    assert rounds.query("split == 'train'")["log_rate"].ge(1).all()
    rounds = pd.read_parquet(results / "runs" / runs["mime_lite"] / "rounds.parquet")
    assert rounds.query("split == 'train'").groupby("round")["log_norm"].nunique().tolist() == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "trained", "rule"),
    [
        ([("methods/extrapolated.py", "A server that goes further", "The server goes further")], set(), set()),
        ([("methods/_geometry.py", "(vector * vector)", "(vector**2)")], {"extrapolated", "mime_lite"}, {"score"}),
        ([("methods/label_weights.py", ".abs().sum(1)", ".norm(dim=1)")], {"label_weights"}, {"score"}),
        ([("methods/l2sp.py", "self.alpha * (", "2 * self.alpha * (")], {"l2sp"}, {"score"}),
        ([("methods/moving_bn.py", "weight *= self.rate", "weight *= self.rate**2")], set(), {"predict", "score"}),
        ([("methods/kappa.py", "if chance == 1", "if chance >= 1")], set(), {"score"}),
        ([("methods/inside_outside.py", "COLOURS[0]", "COLOURS[1]")], set(), {"report"}),
    ],
    ids=["docstring", "helper", "algorithm", "add-on", "inference", "metric", "figure"],
)
def test_a_change_runs_what_uses_it(
    finished_zoo: Zoo, edits: list[tuple[str, str, str]], trained: set[str], rule: set[str]
) -> None:
    with contextlib.ExitStack() as stack:
        for edit in edits:
            stack.enter_context(finished_zoo.edited(*edit))
        again = finished_zoo.again()
    assert again & {file.stem for file in FILES} == trained
    assert rule <= again
    if not rule:
        assert not again
    elif rule == {"report"}:
        assert not again & {"predict", "score"}
    elif rule == {"score"}:
        assert ("predict" in again) == bool(trained)


@pytest.mark.slow
def test_a_plugin_that_fails_in_a_job_is_named(finished_zoo: Zoo) -> None:
    """The last line of the call names file, line and error; the log has the traceback."""
    edit = ("methods/moving_bn.py", "weight *= self.rate\n", "weight *= self.rate / 0\n")
    with finished_zoo.edited(*edit):
        line = (
            (finished_zoo.root / edit[0])
            .read_text(encoding="utf-8")
            .split("\n")
            .index("            weight *= self.rate / 0")
        )
        done = finished_zoo.build("zoo")
        assert done.returncode == 1
        said = f"  methods/moving_bn.py, line {line + 1}: ZeroDivisionError: float division by zero"
        assert done.stderr.rstrip().splitlines()[-1] == said
    again = finished_zoo.build("zoo")
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
def test_a_broken_file_beside_them_stops_nothing(finished_zoo: Zoo) -> None:
    half = finished_zoo.root / "methods" / "half.py"
    half.write_text("def broken(:\n", encoding="utf-8")
    try:
        assert finished_zoo.again() == set()
    finally:
        half.unlink()
