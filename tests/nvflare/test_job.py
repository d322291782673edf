"""Both sides of a job of NVFlare in this process: messages, a study, and what a site does not allow."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from messages import SENT, require_sent
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.utils import fobs
from three_sites import SITES, STUDY, write

from fedshift.core.errors import UserError
from fedshift.engine.messages import Fault, Message
from fedshift.io.paths import Paths
from fedshift.io.text import read_json
from fedshift.jobs import replay
from fedshift.nvflare.job import Settings, StudyController, StudyExecutor, message_of, shareable_of


def through_nvflare(shareable: Any) -> Any:
    """What arrives at the other side, after NVFlare's own bytes."""
    return fobs.loads(fobs.dumps(shareable))


def context(root: Path, name: str, **settings: Any) -> FLContext:
    """The context of the server or of a site, whose startup kit lies in root/kits."""
    local = root / "kits" / name
    local.mkdir(parents=True, exist_ok=True)
    about = {"folder": f"{root / name}", "study": "study.yaml"} | settings
    (local / "fedshift.json").write_text(json.dumps(about))
    new = FLContext()
    new.set_prop(FLContextKey.WORKSPACE_OBJECT, SimpleNamespace(get_site_config_dir=lambda: f"{local}"))
    new.put(ReservedKey.IDENTITY_NAME, name, private=False, sticky=False)
    return new


class Job(StudyController):
    """A controller whose tasks are done at once by executors in this process; sites in `gone` do nothing."""

    def __init__(self, root: Path, gone: tuple[str, ...] = (), **settings: Any) -> None:
        super().__init__()
        self.sites = {name: (StudyExecutor(), context(root, name, **settings)) for name in SITES}
        self.gone, self.panic = gone, ""

    def broadcast(self, task: Any, fl_ctx: FLContext, targets: Any = None, min_responses: int = 1, **_: Any) -> None:
        (name,) = targets
        message = message_of(task.data)
        assert isinstance(message, Message)
        if name in self.gone and message.kind == "train":
            task.completion_status = SimpleNamespace(value="client_dead")
            return
        executor, site = self.sites[name]
        result = executor.execute(task.name, through_nvflare(task.data), site, Signal())
        done = SimpleNamespace(client=SimpleNamespace(name=name), result=through_nvflare(result))
        task.result_received_cb(client_task=done, fl_ctx=fl_ctx)
        task.completion_status = SimpleNamespace(value="ok")

    def system_panic(self, reason: str, fl_ctx: FLContext) -> None:
        self.panic = reason

    def done(self, root: Path) -> Job:
        """This job after the study, with the server's files in root/server."""
        server = context(root, "server")
        clients = [SimpleNamespace(name=name) for name in SITES]
        server.get_engine = lambda: SimpleNamespace(get_clients=lambda: clients)
        self.control_flow(Signal(), server)
        return self


def test_a_message_comes_back_bit_by_bit() -> None:
    require_sent(message_of(through_nvflare(shareable_of(SENT))))


def test_a_fault_comes_back_and_an_error_of_nvflare_becomes_one() -> None:
    assert message_of(through_nvflare(shareable_of(Fault("has another study")))) == Fault("has another study")
    failed = message_of(make_reply(ReturnCode.EXECUTION_EXCEPTION))
    assert isinstance(failed, Fault)
    assert "EXECUTION_EXCEPTION" in failed.reason


@pytest.mark.parametrize("gone", [(), ("north",)])
def test_a_study_gives_the_bits_of_its_replay_in_simulation(gone: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, STUDY | {"model": "mlp"})
    job = Job(tmp_path, gone, rows=True).done(tmp_path)
    assert not job.panic
    (files,) = Paths(tmp_path / "server").every_run()
    missing = [(entry["site"], entry["kind"]) for entry in read_json(files.manifest)["missing"]]
    assert missing == [(name, "train") for name in gone] * STUDY["training"]["rounds"]
    table = _all_images(tmp_path)
    assert replay.faults(files, replay.again(files, table)) == []
    assert Paths(tmp_path / "server").predictions(files.folder.name, "source").exists()


def _all_images(root: Path) -> Path:
    import pandas as pd

    tables = [pd.read_csv(root / site / "images.csv") for site in SITES]
    listed = [t.assign(path=[f"{root / site / p}" for p in t["path"]]) for site, t in zip(SITES, tables, strict=True)]
    pd.concat(listed).to_csv(root / "all.csv", index=False)
    return root / "all.csv"


def test_rows_stay_at_a_site_that_has_not_allowed_them(tmp_path: Path) -> None:
    write(tmp_path, STUDY | {"model": "mlp"})
    Job(tmp_path).done(tmp_path)
    (files,) = Paths(tmp_path / "server").every_run()
    assert files.manifest.exists()
    assert not Paths(tmp_path / "server").predictions(files.folder.name, "source").exists()


def test_another_study_at_a_site_ends_the_job_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, STUDY | {"model": "mlp"})
    text = (tmp_path / "north" / "study.yaml").read_text()
    (tmp_path / "north" / "study.yaml").write_text(text.replace("rounds: 2", "rounds: 3"))
    assert "server and site have different studies" in Job(tmp_path).done(tmp_path).panic


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path), pytest.raises(UserError, match="tables"):
        Settings.read(context(tmp_path, "north", tables="images.csv"))
