"""Settings of a call, such as `--set training.lr=0.01`: judged as those of the file are, and kept by the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.cli.projects import arguments
from fedshift.core.errors import UserError
from fedshift.planning.call import Call
from fedshift.study.calls import DEFAULTS, complete, written

STUDY: dict[str, Any] = {
    "title": "Changed",
    "dataset": "gaussians",
    "partition": {"internal": ["a", "b"], "external": []},
    "model": "mlp",
    "training": {"lr": 0.5, "rounds": 3},
    "runs": [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "training": {"lr": 0.25}}],
    "inferences": ["source"],
    "scales": {"mini": {"training": {"rounds": 2}}},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    return tmp_path / "s.yaml"


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("training.lr=0.01", lambda plan: [run.training.lr for run in plan.runs.values()] == [0.01, 0.01]),
        ("training.rounds=7", lambda plan: {run.training.rounds for run in plan.runs.values()} == {7}),
        ("seeds=[4, 5]", lambda plan: sorted(run.seed for run in plan.runs.values()) == [4, 4, 5, 5]),
        ("title='Other: words'", lambda plan: plan.study.title == "Other: words"),
        ("model.hidden=9", lambda plan: {run.model.hidden for run in plan.runs.values()} == {9}),
        ("runs.1.bn=local", lambda plan: [run.bn for run in plan.runs.values()] == ["aggregated", "local"]),
        ("runs.bn=local", lambda plan: {run.bn for run in plan.runs.values()} == {"local"}),
        ("partition.split.folds=2", lambda plan: len(plan.runs) == 4),
        ("margin=null", lambda plan: plan.study.margin is None),
    ],
)
def test_a_setting_takes_the_place_of_that_of_the_file(path: Path, setting: str, found: Any) -> None:
    plan = study.load(path, "mini", [setting])
    assert found(plan), setting
    assert plan.settings == (setting,)
    assert plan.view != study.load(path, "mini").view or setting == "margin=null"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.lrr=1", "s.yaml.training.lrr: unknown key 'lrr'; did you mean 'lr'?"),
        ("training.lr=-1", "s.yaml.training.lr: "),
        ("trainig.lr=1", "s.yaml.trainig: unknown key 'trainig'; did you mean 'training'?"),
        ("training.lr", "--set: 'training.lr' is not KEY=VALUE; write it as training.lr=0.01"),
        ("=3", "--set: '=3' is not KEY=VALUE"),
        ("training.lr.x=1", "--set training.lr.x: 'x' is no key there: the value is 0.5"),
        ("runs.2.bn=local", "--set runs.2.bn: no member 2: there are 2, and the first one is 0"),
        ("seeds=[0", "--set seeds: '[0' is no value in YAML"),
        ("seeds=2020-01-01", "--set seeds: '2020-01-01' is no value in YAML"),
    ],
)
def test_a_setting_is_judged_as_the_file_is(path: Path, setting: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        study.load(path, "mini", [setting])
    assert words in str(caught.value)


def test_each_command_of_a_study_takes_settings(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(path), "--set", "seeds=[0, 1, 2]"]) == 0
    assert "6 runs" in capsys.readouterr().out
    assert cli.main(["status", str(path), "--set", "training.lr=x"]) == 2
    assert "s.yaml.training.lr" in capsys.readouterr().err


def test_the_settings_of_a_call_reach_snakemake_and_its_jobs(path: Path) -> None:
    told = arguments(cli._parsed(cli.parser(), ["run", "demo", "--set", "training.lr=0.01", "--set", "seeds=[0, 1]"]))
    assert told[:3] == ["--config", "study=demo", 'set=["training.lr=0.01", "seeds=[0, 1]"]']
    settings = complete({"study": "s", "set": yaml.safe_load(told[2].removeprefix("set="))})
    assert settings["set"] == ["training.lr=0.01", "seeds=[0, 1]"]
    assert complete({"set": "training.lr=0.01"})["set"] == ["training.lr=0.01"]
    with pytest.raises(UserError, match="--config set: 3 is not a list of texts"):
        complete({"set": 3})
    plan = study.load(path, "mini", settings["set"])
    call = Call({"s": plan}, DEFAULTS | {"study": str(path), "set": settings["set"]}, [])
    for words in (call.studies, call.study("s")):
        assert words.endswith(" --set training.lr=0.01 --set 'seeds=[0, 1]'")
    elsewhere = written("s", {}, folder=path.parent, changes=plan.settings)
    assert elsewhere == "fedshift run s --set training.lr=0.01 --set 'seeds=[0, 1]'"
