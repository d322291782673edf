"""The training job: its files, and the same bits whether or not it was killed on the way."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import disc_study
import numpy as np
import pandas as pd
import pytest
import torch
from patience import PATIENCE, until
from PIL import Image

from fedshift import study
from fedshift.algorithms import Algorithm, Local
from fedshift.core.errors import Interrupted, UserError
from fedshift.core.registry import build
from fedshift.data.prepared import Prepared
from fedshift.engine.federation import Federation
from fedshift.inferences.source import Source
from fedshift.io import disk
from fedshift.io.arrays import read_tensors
from fedshift.io.paths import TRAINED, Paths, checksum
from fedshift.io.tables import read_table, write_table
from fedshift.io.text import read_json
from fedshift.jobs import run_files
from fedshift.jobs import train as job
from fedshift.jobs.predict import load_run, predict
from fedshift.jobs.prepare import obtain, prepare
from fedshift.study.run import Run

SITES = {"north": 30, "south, or so": 25, "east": 20, "far": 6}
CLIENTS = ("north", "south, or so", "east")
SIDE = 8
STUDY = """
title: A few images a site
dataset: {{ name: own_images, table: {table}, size: 8 }}
partition:
  internal: [north, "south, or so", east]
  external: [far]
  split: {{ train: 0.6, val: 0.2, test: 0.2 }}
model: {{ name: mlp, hidden: 6 }}
transforms: [scale_intensity]
training: {{ rounds: {rounds}, batch_size: 8, lr: 0.1, momentum: 0.5 }}
runs: [{{ algorithm: fedavg, bn: local }}]
inferences: [source]
"""


class Project:
    """A project folder: a study, and its prepared data."""

    def __init__(self, root: Path) -> None:
        self.root, self.paths = root, Paths(root)

    def run(self, name: str = "tiny", augmented: bool = True, **training: Any) -> Run:
        """The study's run, with images flipped at random and other settings of training."""
        (run,) = study.load(self.root / f"{name}.yaml", "paper").runs.values()
        flips = [build("transform", "flip").spec()] if augmented else []
        changes = {
            "transforms": [*run.spec["transforms"], *flips],
            "training": {**run.spec["training"], **training},
        }
        return Run.model_validate({**run.spec, **changes})

    def folder(self, run: Run | None = None) -> Path:
        return self.paths.run((run or self.run()).id)

    def models(self, run: Run | None = None) -> dict[str, bytes]:
        return {n: (self.folder(run) / n).read_bytes() for n in ("model.safetensors", "clients.safetensors")}

    def log(self, run: Run | None = None) -> Path:
        return self.folder(run) / "rounds.jsonl"

    def checkpoint(self, run: Run | None = None) -> Path:
        return self.folder(run) / "checkpoint" / "state.safetensors"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Random images whose brightness depends on site and label, prepared as the workflow does."""
    root = tmp_path_factory.mktemp("template")
    rng, rows = np.random.default_rng(0), []
    for k, (site, n) in enumerate(SITES.items()):
        for i in range(n):
            pixels = rng.integers(0, 120, (SIDE, SIDE, 3)) + 30 * k + 40 * (i % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(root / f"{k}-{i}.png")
            rows.append({"path": f"{k}-{i}.png", "label": i % 2, "site": site})
    write_table(root / "images.csv", pd.DataFrame(rows))
    for name, rounds in (("tiny", 4), ("long", 1_000_000)):
        (root / f"{name}.yaml").write_text(STUDY.format(table=root / "images.csv", rounds=rounds))
    project = Project(root)
    run = project.run()
    raw, data = project.paths.raw(run.data.raw), project.paths.data(run.data.id)
    obtain(run.data, raw, None)
    prepare(run.data, raw, data)
    write_table(project.paths.partition(run.partition_id), run.partition.assign(read_table(data / "samples.parquet")))
    return project


@pytest.fixture
def prepared_project(template: Project, tmp_path: Path) -> Project:
    shutil.copytree(template.root, tmp_path / "project")
    return Project(tmp_path / "project")


@pytest.fixture(scope="module")
def whole(template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return an equal project after a run that nothing disturbed."""
    root = tmp_path_factory.mktemp("whole") / "project"
    shutil.copytree(template.root, root)
    job.train(Project(root).run(), Paths(root), code="code")
    return Project(root)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# ---- files


def test_the_files_of_a_run(whole: Project) -> None:
    expected = ["clients.safetensors", "manifest.json", "model.safetensors", "rounds.jsonl", "rounds.parquet"]
    assert names(whole.folder()) == sorted([*expected, "spec.json", *(checksum(Path(n)).name for n in TRAINED)])


def test_tensors_are_safetensors_and_nothing_else(whole: Project) -> None:
    """A length, a JSON header, and exactly the bytes that the header lays out: no room for a pickle."""
    for content in whole.models().values():
        end = 8 + int.from_bytes(content[:8], "little")
        spans = sorted(v["data_offsets"] for k, v in json.loads(content[8:end]).items() if k != "__metadata__")
        assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])]
        assert end + spans[-1][1] == len(content)


def test_the_model_and_what_stays_at_the_clients(whole: Project) -> None:
    shared, _ = read_tensors(whole.folder() / "model.safetensors")
    own, _ = read_tensors(whole.folder() / "clients.safetensors")
    stays = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert set(own) == {f"{site}/2.{name}" for site in CLIENTS for name in stays}
    assert set(shared) == {*(f"2.{name}" for name in stays), "1.weight", "1.bias", "4.weight", "4.bias"}
    for name in stays[:-1]:
        mean = torch.stack([own[f"{site}/2.{name}"].double() for site in CLIENTS]).mean(0)
        torch.testing.assert_close(shared[f"2.{name}"].double(), mean, rtol=1e-6, atol=1e-6)


def test_rounds(whole: Project) -> None:
    rounds = read_table(whole.folder() / "rounds.parquet")
    assert list(rounds) == [
        "round",
        "site",
        "split",
        "loss",
        "accuracy",
        "floats_down",
        "floats_up",
        "messages",
        "seconds",
    ]
    assert len(rounds) == 4 * 3 * 2
    assert set(rounds["site"]) == set(CLIENTS)
    floats = 3 * SIDE * SIDE * 6 + 6 + 6 * 2 + 2
    assert set(rounds.loc[rounds["split"] == "train", "floats_up"]) == {floats}


def test_the_manifest_says_what_is_needed_to_repeat_the_run(whole: Project) -> None:
    manifest = read_json(whole.folder() / "manifest.json")
    assert {"run", "seed", "code", "git", "versions", "device", "threads", "started", "seconds"} <= manifest.keys()
    assert manifest["run"] == whole.run().id
    assert manifest["code"] == "code"
    assert manifest["seed"] == 0
    assert manifest["rounds"] == 4
    assert 1 <= manifest["best_round"] <= 4
    assert {"fedshift", "torch", "numpy", "python"} <= manifest["versions"].keys()
    assert torch.__version__.startswith(manifest["versions"]["torch"])
    assert manifest["arithmetic"]["torch"] == torch.backends.cpu.get_cpu_capability()
    rounds = read_table(whole.folder() / "rounds.parquet")
    assert manifest["floats"]["up"] == rounds["floats_up"].sum()
    means = rounds[rounds["split"] == "val"].groupby("round")["accuracy"].mean()
    assert manifest["best_value"] == pytest.approx(means.max())
    assert manifest["best_round"] == means.idxmax()


def test_the_spec_is_the_run(whole: Project) -> None:
    assert load_run(whole.folder()) == whole.run()


def test_twice_the_same_run_is_twice_the_same_bytes(whole: Project, prepared_project: Project) -> None:
    job.train(prepared_project.run(), prepared_project.paths, code="other code")
    assert prepared_project.models() == whole.models()


def test_another_seed_is_another_model(whole: Project, prepared_project: Project) -> None:
    run = Run.model_validate({**prepared_project.run().spec, "seed": 1})
    job.train(run, prepared_project.paths)
    assert prepared_project.models(run).keys() == whole.models().keys()
    assert not prepared_project.models(run).items() & whole.models().items()


def test_predictions_of_clients_use_their_own_batch_norm_and_of_others_the_global(whole: Project) -> None:
    out = whole.root / "predictions.parquet"
    predict(whole.folder(), {"source": Source()}, whole.paths, out)
    got = read_table(out).set_index("sample")
    got = got[got["split"] == "test"]
    prepared = Prepared(whole.paths.data(whole.run().data.id))
    shared, own = (read_tensors(whole.folder() / n)[0] for n in whole.models())
    assert {site: int(n) for site, n in got["site"].value_counts().items()} == {
        "north": 6,
        "south, or so": 5,
        "east": 4,
        "far": 6,
    }
    for site, part in got.groupby("site"):
        state = {**shared, **{k.removeprefix(f"{site}/"): v for k, v in own.items() if k.startswith(f"{site}/")}}
        w1, b1, gamma, beta, mean, var, w2, b2 = (
            state[k].double().numpy()
            for k in (
                *("1.weight", "1.bias", "2.weight", "2.bias", "2.running_mean", "2.running_var"),
                *("4.weight", "4.bias"),
            )
        )
        rows = [prepared.samples["sample"].tolist().index(s) for s in part.index]
        x = prepared.images[rows].transpose(0, 3, 1, 2).reshape(len(rows), -1) / 255
        h = np.maximum(gamma * (x @ w1.T + b1 - mean) / np.sqrt(var + 1e-5) + beta, 0)
        odds = np.exp(h @ w2.T + b2)
        np.testing.assert_allclose(part[["p0", "p1"]], odds / odds.sum(1, keepdims=True), rtol=2e-5)
        assert part["label"].tolist() == prepared.samples["label"].iloc[rows].tolist()


# ---- killed and started again


class Killed(BaseException):
    """Not an Exception: nothing may catch it."""


def dying(call: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
    """`call`, that dies instead where `when` says so of its arguments."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            raise Killed
        return call(*args, **kwargs)

    return wrapped


Moment = tuple[Any, str, Callable[..., bool]]

MOMENTS: dict[str, Moment] = {
    "in the first round": (Algorithm, "loss", lambda _, local, *__: local.steps == 1),
    "in the third round": (Algorithm, "loss", lambda _, local, *__: (local.round, local.client) == (3, "north")),
    "before the third checkpoint": (
        job,
        "write_tensors",
        lambda path, _, meta: path.name == "state.safetensors" and json.loads(meta["progress"])["round"] == 3,
    ),
    "while the third checkpoint is written": (
        disk,
        "commit",
        lambda new, path: path.name == "state.safetensors" and rb"{\"round\": 3," in new.read_bytes(),
    ),
    "after the second checkpoint": (Federation, "round", lambda federation, *_: federation.server.round == 2),
    "after the last round": (run_files, "write_json", lambda path, *_: path.name == "spec.json"),
    "before the clients' tensors": (run_files, "write_tensors", lambda path, *_: path.name == "clients.safetensors"),
    "before the manifest": (run_files, "write_json", lambda path, *_: path.name == "manifest.json"),
}


def train_and_die(project: Project, run: Run, moment: Moment, code: str = "code") -> None:
    owner, name, when = moment
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, name, dying(getattr(owner, name), when))
        job.train(run, project.paths, code=code)


def stop_after(project: Project, number: int, run: Run, code: str = "code") -> None:
    """Train, and die after so many rounds and their checkpoint."""
    train_and_die(project, run, (Federation, "round", lambda f, *_: f.server.round == number), code)


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_the_bytes_are_the_same(moment: str, whole: Project, prepared_project: Project) -> None:
    train_and_die(prepared_project, prepared_project.run(), MOMENTS[moment])
    assert "manifest.json" not in names(prepared_project.folder())
    assert not [n for n in names(prepared_project.folder()) if n.startswith(".")], "nothing half written"

    job.train(prepared_project.run(), prepared_project.paths, code="code")
    assert prepared_project.models() == whole.models()
    assert names(prepared_project.folder()) == names(whole.folder()), "and the checkpoint is gone"
    tables = [read_table(p.folder() / "rounds.parquet").drop(columns="seconds") for p in (prepared_project, whole)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    logged = [json.loads(line)["round"] for line in prepared_project.log().read_text().splitlines()]
    assert logged == [1, 2, 3, 4], "a line for each round"


def test_killed_twice_and_in_the_middle_of_a_line(whole: Project, prepared_project: Project) -> None:
    for number in (1, 3):
        stop_after(prepared_project, number, prepared_project.run())
        with prepared_project.log().open("a") as log:
            log.write('{"round": ')
    job.train(prepared_project.run(), prepared_project.paths, code="code")
    assert prepared_project.models() == whole.models()
    assert [json.loads(line)["round"] for line in prepared_project.log().read_text().splitlines()] == [1, 2, 3, 4]


def test_a_run_of_masks_that_was_killed_has_the_same_bytes(tmp_path: Path) -> None:
    transforms = ["scale_intensity", "flip", "rotate"]
    plan, paths = disc_study.finished(tmp_path, transforms=transforms, runs=[{"algorithm": "fedavg", "bn": "local"}])
    (run,) = plan.runs.values()
    project = Project(tmp_path)
    whole = project.models(run)
    shutil.rmtree(project.folder(run))
    shutil.rmtree(paths.store, ignore_errors=True)
    stop_after(project, 1, run)
    assert names(project.checkpoint(run).parent)
    job.train(run, paths, code="code")
    assert project.models(run) == whole


def test_a_resume_goes_on_from_the_checkpoint_and_says_so(
    prepared_project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    stop_after(prepared_project, 3, prepared_project.run())
    capfd.readouterr()
    job.train(prepared_project.run(), prepared_project.paths, code="code")
    said = capfd.readouterr().err
    assert "resuming after round 3" in said
    assert "round 4/4" in said
    assert "round 3/4" not in said


def cut(checkpoint: Path) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes()[:-10])


def flip(file: Path, share: float) -> None:
    """Turn one bit, so far into the file."""
    content = bytearray(file.read_bytes())
    content[int(share * len(content))] ^= 4
    file.write_bytes(content)


def flipped(checkpoint: Path) -> None:
    flip(checkpoint, 0.9)


def flipped_log(checkpoint: Path) -> None:
    flip(checkpoint.parents[1] / "rounds.jsonl", 0.4)


def without_log(checkpoint: Path) -> None:
    (checkpoint.parents[1] / "rounds.jsonl").unlink()


def of_other_data(checkpoint: Path) -> None:
    """Another image under the same name changes the checksum in the card."""
    (card,) = checkpoint.parents[4].glob("results/data/*/card.json")
    text = card.read_text()
    card.write_text(text.replace("sha256:", "sha256:0"))


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (cut, "code", "starting anew: .*state.safetensors: not a readable safetensors file"),
        (flipped, "code", "starting anew: .*state.safetensors: is damaged: its checksum does not agree"),
        (flipped_log, "code", r"starting anew: .*rounds\.jsonl: does not hold rounds 1 to 2"),
        (without_log, "code", r"starting anew: .*rounds\.jsonl: does not hold rounds 1 to 2"),
        (lambda checkpoint: None, "other code", "starting anew: .*was made by other code or from other data"),
        (of_other_data, "code", "starting anew: .*was made by other code or from other data"),
    ],
    ids=["truncated", "a flipped bit", "a flipped bit in the log", "log lost", "other code", "other data"],
)
def test_a_checkpoint_that_does_not_fit_is_not_used(
    spoil: Callable[[Path], None],
    code: str,
    said: str,
    whole: Project,
    prepared_project: Project,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stop_after(prepared_project, 2, prepared_project.run())
    spoil(prepared_project.checkpoint())
    capfd.readouterr()
    job.train(prepared_project.run(), prepared_project.paths, code=code)
    log = capfd.readouterr().err
    assert re.search(said, log)
    assert "round 1/4" in log
    assert prepared_project.models() == whole.models()


def test_patience_that_has_ended_stays_ended(prepared_project: Project) -> None:
    run = prepared_project.run(rounds=50, patience=2)
    job.train(run, prepared_project.paths)
    stopped = read_json(prepared_project.folder(run) / "manifest.json")["rounds"]
    assert stopped < 50
    expected = prepared_project.models(run)
    shutil.rmtree(prepared_project.folder(run))
    train_and_die(prepared_project, run, MOMENTS["after the last round"], code="")
    job.train(run, prepared_project.paths)
    assert prepared_project.models(run) == expected
    assert read_json(prepared_project.folder(run) / "manifest.json")["rounds"] == stopped


def test_a_network_is_made_for_images_as_transforms_leave_them(prepared_project: Project) -> None:
    """Stored with 8 pixels a side, the network sees 12."""
    run = prepared_project.run()
    larger = Run.model_validate({**run.spec, "transforms": [*run.spec["transforms"], {"name": "resize", "size": 12}]})
    job.train(larger, prepared_project.paths)
    shared, _ = read_tensors(prepared_project.folder(larger) / "model.safetensors")
    assert shared["1.weight"].shape[1] == 3 * 12 * 12
    out = prepared_project.folder(larger) / "predictions.parquet"
    predict(prepared_project.folder(larger), {"source": Source()}, prepared_project.paths, out)
    assert len(read_table(out))


# ---- real signals, real processes

SUICIDE = """
import os, pathlib, signal, sys
from fedshift import study
from fedshift.jobs import train
from fedshift.io.paths import Paths

save = train._Checkpoint.save

def save_and_die(self, federation):
    save(self, federation)
    if federation.server.round == 2 and federation.ranks.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)

train._Checkpoint.save = save_and_die
train.CHEAP = float("inf")  # a checkpoint each round, however long it takes to write
(run,) = study.load(pathlib.Path("tiny.yaml"), "paper").runs.values()
train.train(run, Paths(), code="code")
"""


def test_a_process_killed_by_sigkill(prepared_project: Project) -> None:
    run = prepared_project.run(augmented=False)
    killed = subprocess.run(
        [sys.executable, "-c", SUICIDE], cwd=prepared_project.root, capture_output=True, timeout=PATIENCE
    )
    assert killed.returncode == -signal.SIGKILL
    assert prepared_project.checkpoint(run).exists()
    job.train(run, prepared_project.paths, code="code")
    got = prepared_project.models(run)
    shutil.rmtree(prepared_project.folder(run))
    job.train(run, prepared_project.paths, code="code")
    assert prepared_project.models(run) == got


def torchrun(project: Project, *command: str) -> int:
    """The exit code of two processes, each with one thread."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command]
    return subprocess.run(launch, cwd=project.root, capture_output=True, timeout=PATIENCE).returncode


def test_two_processes_killed_on_the_way_come_to_the_bytes_of_two_and_the_numbers_of_one(
    prepared_project: Project,
) -> None:
    run = prepared_project.run(augmented=False)
    (prepared_project.root / "suicide.py").write_text(SUICIDE)
    assert torchrun(prepared_project, "suicide.py")
    assert json.loads(read_tensors(prepared_project.checkpoint(run))[1]["progress"])["round"] == 2
    (prepared_project.root / "train.py").write_text(SUICIDE.replace("server.round == 2", "server.round == 0"))
    assert torchrun(prepared_project, "train.py") == 0
    gone_on = prepared_project.models(run)
    assert read_json(prepared_project.folder(run) / "manifest.json")["processes"] == 2
    shutil.rmtree(prepared_project.folder(run))
    assert torchrun(prepared_project, "train.py") == 0
    assert prepared_project.models(run) == gone_on
    two = [read_tensors(prepared_project.folder(run) / name)[0] for name in prepared_project.models(run)]
    shutil.rmtree(prepared_project.folder(run))
    job.train(run, prepared_project.paths, code="code")
    one = [read_tensors(prepared_project.folder(run) / name)[0] for name in prepared_project.models(run)]
    torch.testing.assert_close(two, one, rtol=1e-6, atol=1e-6)


COMMAND_LINE = """
import runpy
from fedshift.jobs import train

train.CHEAP = float("inf")
runpy.run_module("fedshift", run_name="__main__", alter_sys=True)
"""


def test_sigterm_saves_and_exits_with_143(prepared_project: Project) -> None:
    """The saved state is that after the last whole round, as in an undisturbed training."""
    run = prepared_project.run("long", augmented=False)
    command = [sys.executable, "-c", COMMAND_LINE, "train", "long.yaml", run.id, "--scale", "paper"]
    log = prepared_project.log(run)
    with subprocess.Popen(command, cwd=prepared_project.root, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: process.poll() is not None or (log.exists() and len(log.read_text().splitlines()) > 1))
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert said.splitlines()[-1] == "stopped; start again to go on from the last round"
    assert "Traceback" not in said
    assert names(prepared_project.folder(run)) == ["checkpoint", "rounds.jsonl"]

    tensors, meta = read_tensors(prepared_project.checkpoint(run))
    done = json.loads(meta["progress"])["round"]
    assert len(log.read_text().splitlines()) == done >= 2
    shutil.rmtree(prepared_project.folder(run))
    stop_after(prepared_project, done, run, code=study.code("jobs.train", *run.plugins))
    again, same = read_tensors(prepared_project.checkpoint(run))
    assert same["identity"] == meta["identity"]
    assert all(torch.equal(again[k], tensors[k]) for k in tensors.keys() | again.keys())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_act_between_batches_and_only_while_training(number: int, prepared_project: Project) -> None:
    before = signal.getsignal(number)
    loss = Algorithm.loss

    def signalled(self: Algorithm, local: Local, *batch: torch.Tensor) -> Any:
        if local.round == 3:
            os.kill(os.getpid(), number)
        return loss(self, local, *batch)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Algorithm, "loss", signalled)
        job.train(prepared_project.run(), prepared_project.paths)
    assert signal.getsignal(number) is before
    assert json.loads(read_tensors(prepared_project.checkpoint())[1]["progress"])["round"] == 2


# ---- bad input


def test_a_client_with_less_than_a_batch_is_an_error_before_anything_is_written(prepared_project: Project) -> None:
    run = prepared_project.run(batch_size=13)
    with pytest.raises(UserError, match="client 'east': has 12 training images, fewer than one batch of 13; lower"):
        job.train(run, prepared_project.paths)
    assert not prepared_project.folder(run).exists()


def test_missing_data_are_named(prepared_project: Project) -> None:
    run = prepared_project.run()
    prepared_project.paths.partition(run.partition_id).unlink()
    with pytest.raises(UserError, match=rf"{run.partition_id}\.parquet: no such file"):
        job.train(run, prepared_project.paths)
    assert not prepared_project.folder(run).exists()


# ---- memory


class Recorder:
    """A memory map that notes how many images each request takes."""

    def __init__(self, images: np.memmap) -> None:
        self.images, self.taken = images, list[int]()
        self.shape, self.ndim, self.dtype = images.shape, images.ndim, images.dtype

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Any) -> Any:
        out = self.images[rows]
        self.taken.append(len(out))
        return out


def test_a_training_step_reads_one_batch_from_the_memory_map(
    prepared_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders = []

    def load(path: Path, mmap_mode: str) -> Recorder:
        assert mmap_mode == "r"
        recorders.append(Recorder(np.lib.format.open_memmap(path, mode="r")))
        return recorders[-1]

    monkeypatch.setattr(np, "load", load)
    job.train(prepared_project.run(rounds=2), prepared_project.paths)
    (recorder,) = recorders
    # 18, 15 and 12 train in batches of 8; 6, 5 and 4 validate
    expected = {"east": [8, 4], "north": [8, 8, 2], "south, or so": [8, 7]}
    assert recorder.taken == 2 * [*(n for site in sorted(expected) for n in expected[site]), 4, 6, 5]


def test_an_epoch_is_each_of_the_clients_own_images_once_with_its_label(prepared_project: Project) -> None:
    seen: dict[str, list[tuple[bytes, int]]] = {site: [] for site in CLIENTS}

    class Watching(Algorithm):
        def loss(self, local: Local, x: torch.Tensor, y: torch.Tensor) -> Any:
            pixels = (x * 255).round().byte().permute(0, 2, 3, 1).numpy()
            seen[local.client] += [(image.tobytes(), int(label)) for image, label in zip(pixels, y, strict=True)]
            return super().loss(local, x, y)

    run = prepared_project.run(augmented=False, rounds=1)
    job.train(run.model_copy(update={"algorithm": Watching()}), prepared_project.paths)
    prepared = Prepared(prepared_project.paths.data(run.data.id))
    partition = read_table(prepared_project.paths.partition(run.partition_id))
    for site, given in seen.items():
        mine = partition.loc[(partition["site"] == site) & (partition["split"] == "train"), "sample"]
        rows = prepared.samples.index[prepared.samples["sample"].isin(mine)]
        expected = [(prepared.images[row].tobytes(), int(prepared.samples["label"][row])) for row in rows]
        assert len(set(expected)) == len(mine)
        assert sorted(given) == sorted(expected)
