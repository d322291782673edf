"""Exports: trackers get what the files of a study's runs say, once, and nothing is lost on the way."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from patience import PATIENCE

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.export import mlflow as tracker
from fedshift.io import shipped
from fedshift.io.paths import TRAINED, Paths
from fedshift.io.tables import write_table
from fedshift.io.text import read_json, write_json, write_text
from fedshift.study.plan import Plan

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as Logged

STUDY = """
title: Tiny
dataset: {{name: own_images, table: own.csv, size: 8}}
partition: {{internal: {internal}, external: [C]}}
model: mlp
training: {{rounds: 2, batch_size: 2, lr: 0.25}}
runs: [{{algorithm: fedavg}}]
seeds: [0, 1]
inferences: [source, {{name: tsmobn, momentum: 0.5}}]
"""
NAN = float("nan")
COLUMNS = ["round", "site", "split", "loss", "accuracy", "floats_down", "floats_up", "messages", "seconds"]
ROUNDS = [
    (1, "A", "train", 0.9, 0.5, 100, 50, 2, 1.0),
    (1, "B", "train", 0.7, 0.6, 200, 50, 2, 2.0),
    (1, "A", "val", 0.8, 0.25, 0, 0, 0, 0.5),
    (1, "B", "val", NAN, 0.75, 0, 0, 0, 0.5),
    (2, "A", "train", 0.5, 0.7, 100, 50, 3, 1.5),
    (2, "B", "train", 0.3, 0.8, 200, 50, 3, 2.5),
    (2, "A", "val", 0.4, 0.5, 0, 0, 0, 0.25),
    (2, "B", "val", 0.6, 1.0, 0, 0, 0, 0.75),
    (2, "C", "test", 0.7, 0.625, 0, 0, 0, 1.0),
]
CURVES = {
    "loss/train/A": {1: 0.9, 2: 0.5},
    "loss/train/B": {1: 0.7, 2: 0.3},
    "loss/train/mean": {1: 0.8, 2: 0.4},
    "loss/val/A": {1: 0.8, 2: 0.4},
    "loss/val/B": {2: 0.6},
    "loss/val/mean": {2: 0.5},
    "loss/test/C": {2: 0.7},
    "loss/test/mean": {2: 0.7},
    "accuracy/train/A": {1: 0.5, 2: 0.7},
    "accuracy/train/B": {1: 0.6, 2: 0.8},
    "accuracy/train/mean": {1: 0.55, 2: 0.75},
    "accuracy/val/A": {1: 0.25, 2: 0.5},
    "accuracy/val/B": {1: 0.75, 2: 1.0},
    "accuracy/val/mean": {1: 0.5, 2: 0.75},
    "accuracy/test/C": {2: 0.625},
    "accuracy/test/mean": {2: 0.625},
    "total/floats_down": {1: 300, 2: 300},
    "total/floats_up": {1: 100, 2: 100},
    "total/messages": {1: 4, 2: 6},
    "total/seconds": {1: 4, 2: 6},
}
"""The result of ROUNDS, by hand: B has no validation loss in round 1, and so there is no mean of it."""
BEGAN = 1735689600
"""2025-01-01, midnight in Greenwich."""
MANIFEST = {
    "started": "2025-01-01T00:00:00+00:00",
    "seconds": 10.0,
    "rounds": 2,
    "best_round": 2,
    "best_value": 0.75,
    "device": "CPU",
    "code": "0123456789ab",
    "git": {"commit": "a" * 40, "dirty": True},
}
LEFT = "\nleft out 1 of 2 runs, which are not trained; see fedshift status"
PATHS = Paths()
Series = dict[str, dict[int, float]]


@pytest.fixture(autouse=True)
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty project, entered, with no tracker named in the environment."""
    (tmp_path / "config" / "studies").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for all tests, each with a study of its own: making it takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def planned(name: str, internal: tuple[str, ...] = ("A", "B"), text: str = STUDY) -> Plan:
    path = Path("config/studies") / f"{name}.yaml"
    path.write_text(text.format(internal=json.dumps(internal)))
    return study.load(path, "mini")


def trained(plan: Plan, rows: list[tuple[Any, ...]] = ROUNDS, number: int = 0, **changes: Any) -> str:
    """The files of one run of a study. Returns its id."""
    run = list(plan.runs.values())[number]
    for name in TRAINED:
        write_text(PATHS.run(run.id) / name, "")
    write_json(PATHS.run(run.id) / "spec.json", run.spec)
    write_json(PATHS.run(run.id) / "manifest.json", MANIFEST | changes)
    write_table(PATHS.run(run.id) / "rounds.parquet", pd.DataFrame(rows, columns=COLUMNS))
    return run.id


def scored(plan: Plan, *rows: tuple[str, str, str, float | None]) -> None:
    """scores.csv, with (run, inference, site, accuracy)."""
    lines = ["study,run,algorithm,bn,addon,held_out,site,role,inference,momentum,batch_size,order,seed,metric,value,n"]
    settings = {"source": "source,,,", "tsmobn": "tsmobn,0.5,32,0"}
    for run, how, site, value in rows:
        shown, role = "" if value is None else value, "external" if site == "C" else "internal"
        lines.append(f'{plan.name},{run},fedavg,aggregated,,C,"{site}",{role},{settings[how]},0,accuracy,{shown},8')
    write_text(PATHS.study(plan.name) / "scores.csv", "\n".join(lines) + "\n")


def exported(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Return what an export prints."""
    assert cli.main(["export", *argv]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    return err.strip()


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a bad call gets."""
    assert cli.main(["export", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.strip()


def tsmobn(plan: Plan) -> str:
    """The id of the second inference: its name, and a digest of what differs from the defaults."""
    return "tsmobn-" + hashlib.sha256(b'{"momentum":0.5}').hexdigest()[:8]


def marked(site: str, clean: str) -> str:
    """Return the name of a site in a tag, which does not allow all characters."""
    return f"{clean}-{hashlib.sha256(json.dumps(site).encode()).hexdigest()[:8]}"


def client(uri: str) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(uri)


def logged(uri: str, name: str) -> dict[str, Logged]:
    """The runs of a study that are there, by fedshift's id; each once."""
    experiment = client(uri).get_experiment_by_name(f"fedshift/{name}")
    runs = client(uri).search_runs([experiment.experiment_id])
    found = {run.data.tags["fedshift.run"]: run for run in runs}
    assert len(found) == len(runs)
    return found


def series(uri: str, run: Logged) -> Series:
    history = {tag: client(uri).get_metric_history(run.info.run_id, tag) for tag in run.data.metrics}
    return {tag: {m.step: m.value for m in metrics} for tag, metrics in history.items()}


def test_mlflow_has_all_rounds_scores_and_settings(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned("whole")
    first, second = trained(plan), trained(plan, ROUNDS[:2], 1)
    scored(plan, (first, "source", "C", 0.5), (first, "tsmobn", "C", 0.875), (first, "tsmobn", "A", None))
    said = exported(capsys, "mlflow", "whole", "--to", uri)
    assert said == f"logged 2 runs to the experiment fedshift/whole of {uri}", "and MLflow itself says nothing"
    found = logged(uri, "whole")
    assert sorted(found) == sorted([first, second])
    run = found[first]
    scores = {"accuracy/source/C": {2: 0.5}, f"accuracy/{tsmobn(plan)}/C": {2: 0.875}}
    assert series(uri, run) == {tag: pytest.approx(values) for tag, values in (CURVES | scores).items()}
    params = run.data.params
    assert params["training.lr"] == "0.25"
    assert params["algorithm.name"] == "fedavg"
    assert params["partition.internal"] == '["A", "B"]'
    assert params["partition.held_out"] == '""'
    assert (params["addon"], params["data.synthetic"], params["seed"]) == ("null", "false", "0")
    assert params[f"inferences.{tsmobn(plan)}"] == '{"momentum": 0.5}'
    assert len(params) == len(flat(read_json(PATHS.run(first) / "spec.json"))) + 1
    assert (run.info.status, run.info.run_name) == ("FINISHED", first)
    assert (run.info.start_time, run.info.end_time) == (1000 * BEGAN, 1000 * (BEGAN + 10))
    times = {m.step: m.timestamp for m in client(uri).get_metric_history(run.info.run_id, "loss/train/A")}
    assert times == {1: 1000 * (BEGAN + 4), 2: 1000 * (BEGAN + 10)}
    tags = {"synthetic": "false", "best_round": "2", "seconds": "10.0", "device": "CPU", "commit": "a" * 40}
    assert tags.items() <= run.data.tags.items()
    assert run.data.tags["uncommitted"] == "true"


def flat(spec: dict[str, Any]) -> list[str]:
    """Return the settings of a spec, flattened independently."""
    return [name for key, v in spec.items() for name in (flat(v) if isinstance(v, dict) else [key])]


def test_without_scores_the_rounds_are_told(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(planned("rounds"))
    exported(capsys, "mlflow", "rounds", "--to", uri)
    assert series(uri, logged(uri, "rounds")[run]) == {tag: pytest.approx(values) for tag, values in CURVES.items()}


def test_mlflow_has_each_run_once(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned("once")
    first, second = trained(plan), trained(plan, number=1)
    scored(plan, (first, "source", "C", 0.5))
    exported(capsys, "mlflow", "once", "--to", uri)
    before = {name: run.info.run_id for name, run in logged(uri, "once").items()}
    said = exported(capsys, "mlflow", "once", "--to", uri)
    assert said == f"logged 0 runs to the experiment fedshift/once of {uri}; 2 more were there already"
    assert {name: run.info.run_id for name, run in logged(uri, "once").items()} == before
    scored(plan, (first, "source", "C", 0.75))
    said = exported(capsys, "mlflow", "once", "--to", uri)
    assert said == f"logged 1 runs to the experiment fedshift/once of {uri}; 1 more were there already"
    after = logged(uri, "once")
    assert after[second].info.run_id == before[second]
    assert series(uri, after[first])["accuracy/source/C"] == {2: 0.75}
    assert client(uri).get_run(before[first]).info.lifecycle_stage == "deleted"


def test_a_run_that_was_logged_by_half_is_logged_anew(
    uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier one stays until the new one is whole, and runs of others stay for good."""
    from mlflow import MlflowClient

    plan = planned("half")
    run = trained(plan)
    exported(capsys, "mlflow", "half", "--to", uri)
    (earlier,) = logged(uri, "half").values()
    own = client(uri).create_run(earlier.info.experiment_id).info.run_id
    scored(plan, (run, "source", "C", 0.5))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", interrupt)
        assert cli.main(["export", "mlflow", "half", "--to", uri]) == 130
    capsys.readouterr()
    there = client(uri).search_runs([earlier.info.experiment_id])
    assert len(there) == 3
    assert earlier.info.run_id in [r.info.run_id for r in there]
    exported(capsys, "mlflow", "half", "--to", uri)
    there = [r for r in client(uri).search_runs([earlier.info.experiment_id]) if r.info.run_id != own]
    assert [r.info.status for r in there] == ["FINISHED"]
    assert series(uri, there[0]) == {k: pytest.approx(v) for k, v in (CURVES | {"accuracy/source/C": {2: 0.5}}).items()}


def test_mlflow_needs_no_torch_and_leaves_the_loggers_alone(uri: str) -> None:
    """The export runs in a process of its own, with this module's database."""
    trained(planned("alone"))
    code = f"""
import logging, sys
from fedshift import cli
assert cli.main(["export", "mlflow", "alone", "--to", {uri!r}]) == 0
print("torch" in sys.modules, logging.root.manager.disable, logging.root.handlers, logging.root.level)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout == f"False 0 [] {logging.WARNING}\n"
    work = "study alone: exporting rounds and scores ..."
    assert done.stderr == f"{work}\nlogged 1 runs to the experiment fedshift/alone of {uri}{LEFT}\n"
    assert sorted(p.name for p in Path().iterdir()) == ["config", "results"], "no mlruns, no mlflow.db"


def test_mlflow_is_quiet_for_a_while(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise MLflow prints an address for each run that a server gets."""
    with tracker._quiet():
        print("View run at")
        logging.getLogger("mlflow").warning("a table")
    print("as before")
    logging.getLogger("else").warning("as before")
    assert capsys.readouterr().out == "as before\n"
    assert caplog.messages == ["as before"]


def test_more_rounds_and_settings_than_a_server_takes_at_once_are_logged(uri: str) -> None:
    """MLflow takes 1000 values and 100 parameters in one request."""
    losses = {number: 1 / number for number in range(1, 1201)}
    account = tracker.Account(
        id="many",
        settings={f"setting{k}": k for k in range(120)},
        rounds=tuple(("loss", number, value) for number, value in losses.items()),
        scores=(),
        facts={"synthetic": False},
        kept=1,
        clock={number: float(number) for number in range(1201)},
    )
    tracker.export([account], "many", uri)
    found = logged(uri, "many")["many"]
    assert series(uri, found) == {"loss": losses}
    assert found.data.params == {f"setting{k}": str(k) for k in range(120)}


def test_a_parameter_is_cut_to_what_mlflow_takes(
    uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(planned("small"))
    monkeypatch.setattr(tracker, "LONGEST_PARAMETER", 9)
    exported(capsys, "mlflow", "small", "--to", uri)
    found = logged(uri, "small")[run]
    assert series(uri, found) == {tag: pytest.approx(values) for tag, values in CURVES.items()}
    assert found.data.params["partition.internal"] == '["A", "B…'
    assert found.data.params["training.lr"] == "0.25"


def test_where_mlflow_keeps_runs_if_nothing_is_said(
    uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(planned("said"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert exported(capsys, "mlflow", "said") == f"logged 1 runs to the experiment fedshift/said of {uri}{LEFT}"
    assert not Path("results/exports").exists()


def test_a_database_of_the_project(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The module's database stands in for one that exists already, since a new one takes time."""
    trained(planned("here"))
    exported(capsys, "mlflow", "here", "--to", uri)
    copy = Path("results/exports/mlflow.db")
    copy.parent.mkdir(parents=True)
    shutil.copy(uri.removeprefix("sqlite:///"), copy)
    planned("there")
    said = exported(capsys, "mlflow", "there")
    assert said == "logged 1 runs to the experiment fedshift/there of sqlite:///results/exports/mlflow.db" + LEFT
    (run,) = logged("sqlite:///results/exports/mlflow.db", "there").values()
    assert run.info.artifact_uri.startswith((Path.cwd() / "results/exports/mlflow/there").as_uri())


def test_a_server_that_does_not_answer_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    trained(planned("tiny"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = refused(capsys, "mlflow", "tiny", "--to", f"http://me:secret@127.0.0.1:{port}")
    assert said == (
        f"http://127.0.0.1:{port}: the MLflow server does not answer (ConnectionError); start the server, or name "
        "another with --to or MLFLOW_TRACKING_URI"
    )


@pytest.mark.parametrize("place", ["sqlite:///own.csv", "sqlite:////proc/none/x.db", "nowhere://x", "mysql+none://x/y"])
def test_a_place_that_mlflow_cannot_write_to_gets_one_line(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    trained(planned("tiny"))
    Path("own.csv").write_text("path,label,site\n" * 100)
    refused(capsys, "mlflow", "tiny", "--to", place)
    assert Path("own.csv").read_text() == "path,label,site\n" * 100


def test_an_experiment_that_was_deleted_is_not_brought_back(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    trained(planned("deleted"))
    exported(capsys, "mlflow", "deleted", "--to", uri)
    client(uri).delete_experiment(client(uri).get_experiment_by_name("fedshift/deleted").experiment_id)
    said = refused(capsys, "mlflow", "deleted", "--to", uri)
    assert said == "experiment fedshift/deleted: was deleted in MLflow; restore it there, or remove it for good"


def test_sites_with_any_name_are_kept_apart(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a_b", "a/b", "a:b", "mean", "..", "<i>", "Zürich", "", "x" * 300]
    plan = planned("names", tuple(names))
    rows = [(1, site, "train", float(n), 0.5, 1, 1, 1, 1.0) for n, site in enumerate(names)]
    run = trained(plan, rows)
    scored(plan, (run, "source", "a/b", 0.25), (run, "source", "a_b", 0.5))
    clean = ["a_b", "a_b", "a_b", "mean", "..", "_i_", "Zürich", "", "x" * 100]
    tags = [s if s in ("a_b", "Zürich") else marked(s, c) for s, c in zip(names, clean, strict=True)]
    wanted: Series = {f"loss/train/{tag}": {1: float(n)} for n, tag in enumerate(tags)}
    wanted |= {"loss/train/mean": {1: 4.0}, "accuracy/source/a_b": {2: 0.5}, f"accuracy/source/{tags[1]}": {2: 0.25}}
    exported(capsys, "mlflow", "names", "--to", uri)
    found = series(uri, logged(uri, "names")[run])
    assert {tag: found[tag] for tag in wanted} == wanted
    assert len([tag for tag in found if tag.startswith("loss/")]) == len(names) + 1


def test_a_name_that_looks_like_a_changed_one_is_changed_too() -> None:
    assert tracker.word(tracker.word("a/b")) != tracker.word("a/b")
    assert tracker.word("centre-1") == "centre-1"


def test_drawn_images_are_named_as_such(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = STUDY.replace("name: own_images, table: own.csv, size: 8", "name: camelyon17")
    run = trained(planned("drawn", text=text))
    exported(capsys, "mlflow", "drawn", "--to", uri)
    found = logged(uri, "drawn")[run]
    assert found.info.run_name == f"{run}-synthetic"
    assert (found.data.tags["synthetic"], found.data.params["data.synthetic"]) == ("true", "true")


@pytest.mark.parametrize("name", TRAINED)
def test_a_study_without_a_whole_run_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(planned("tiny"))
    (PATHS.run(run) / name).unlink()
    assert refused(capsys, "mlflow", "tiny") == (
        "study tiny: no run is trained: there is nothing to export; train: fedshift run tiny"
    )
    assert not Path("results/exports").exists()


@pytest.mark.parametrize("changes", [{"started": "yesterday"}, {"started": None}, {"best_round": None}])
def test_a_manifest_that_is_none_gets_one_line(
    changes: dict[str, Any], uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(planned("tiny"), **changes)
    said = refused(capsys, "mlflow", "tiny", "--to", uri)
    assert said.startswith(f"results/runs/{run}/manifest.json: is not a manifest")


@pytest.mark.parametrize("package", ["mlflow", "sqlalchemy"])
def test_a_package_that_is_missing_gets_one_line(
    package: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a clone the packages have an environment of their own."""
    trained(planned("tiny"))
    monkeypatch.setitem(sys.modules, package, None)
    problem = f"export to mlflow: needs packages that are not installed ({package})"
    make = "call make exports in the clone, and .venv-exports/bin/python -m fedshift in place of fedshift"
    assert refused(capsys, "mlflow", "tiny") == f"{problem}; {make}"
    monkeypatch.setattr(shipped, "SHIPPED", shipped.INSIDE)
    assert refused(capsys, "mlflow", "tiny") == f"{problem}; pip install 'fedshift[mlflow]'"
    assert not Path("results/exports").exists()
