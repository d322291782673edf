"""What the workflow asks of the studies of a call."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from fedshift import study
from fedshift.core.errors import UserError
from fedshift.planning.call import Call, errors_end_the_call

STUDIES = Path(__file__).parents[2] / "config" / "studies"
CONFIG = {"study": "demo", "scale": "mini", "studies": "my studies", "mirror": "", "processes": 1}


def call(plugins: tuple[Path, ...] = (), **changes: Any) -> Call:
    return Call(study.select("demo", "mini", STUDIES), CONFIG | changes, plugins)


def test_the_members_of_studies_by_id() -> None:
    found, plan = call(), study.load(STUDIES / "demo.yaml", "mini")
    assert found.runs.keys() == plan.runs.keys()
    assert [data.id for data in found.raw.values()] == list(found.data) == list(plan.data)
    assert found.partitions.keys() == {run.partition_id for run in plan.runs.values()}
    names = sorted(plugin.name for members in found.inferences.values() for plugin in members)
    assert names == ["source", "tsmobn"]


def test_an_unknown_run_is_named() -> None:
    with pytest.raises(UserError, match="run 'fedavg-0'"):
        call().run("fedavg-0")


def test_arguments_are_quoted() -> None:
    found = call((Path("my plugins"),), mirror="a mirror")
    assert found.studies == "demo --scale mini --studies 'my studies' --plugins 'my plugins'"
    assert found.study("demo") == f"{quote(str(STUDIES / 'demo.yaml'))} --scale mini --plugins 'my plugins'"
    assert (found.mirror, call().mirror) == ("--mirror 'a mirror'", "")


def test_several_processes_are_launched_by_torch() -> None:
    assert call().launch == ""
    assert call(processes=3).launch == "torch.distributed.run --standalone --nproc-per-node=3 -m"


def test_libraries_are_those_of_the_trainings() -> None:
    outlines = Call(study.select("medsegbench-polyps", "mini", STUDIES), CONFIG, "")
    assert outlines.slow_libraries(list(outlines.runs)) == ["torch", "monai.networks.nets"]
    assert call().slow_libraries(list(call().runs)) == ["torch"]
    assert call().slow_libraries([]) == []


def test_an_error_ends_the_call_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    at_end: list[str] = []
    monkeypatch.setattr("fedshift.planning.call.say_at_end", at_end.extend)
    with pytest.raises(SystemExit) as end, errors_end_the_call():
        raise UserError("study.yaml", "is empty", "write a study")
    assert end.value.code == UserError.exit_code
    assert at_end == ["study.yaml: is empty; write a study"]
