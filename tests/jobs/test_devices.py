"""Jobs of one machine and its GPUs, which are names here: no GPU is needed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from patience import PATIENCE

from fedshift.core.errors import UserError
from fedshift.jobs import record
from fedshift.jobs.record import VISIBLE, one_gpu


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def taken(jobs: ExitStack) -> str:
    """The GPU of one more job, whose environment begins as this process's does."""
    with pytest.MonkeyPatch.context() as own:
        own.setenv(VISIBLE, os.environ[VISIBLE])
        jobs.enter_context(record.one_gpu())
        return os.environ[VISIBLE]


@pytest.mark.parametrize("gpus", ["0,1,2", "GPU-5ac1, MIG-GPU-5ac1/2/0 ,7"])
def test_each_job_has_a_gpu_of_its_own_then_they_are_shared_evenly(gpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, gpus)
    names = [name.strip() for name in gpus.split(",")]
    with ExitStack() as jobs:
        assert [taken(jobs) for _ in range(7)] == [*names, *names, names[0]]


def test_a_gpu_is_free_again_after_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0,1,2")
    with ExitStack() as jobs:
        taken(jobs)
        with ExitStack() as short:
            assert taken(short) == "1"
            assert taken(jobs) == "2"
        assert taken(jobs) == "1"


JOB = """
import os, sys
sys.path.insert(0, sys.argv[1])
from fedshift.jobs.record import one_gpu
with one_gpu():
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.read()
"""


def test_a_job_that_is_killed_frees_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "3,5")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-c", JOB, str(Path(record.__file__).parents[2])]
    with ExitStack() as jobs:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as other:
            assert other.stdout
            assert other.stdout.readline() == "3\n"
            assert taken(jobs) == "5"
            other.send_signal(signal.SIGKILL)
            other.wait(PATIENCE)
        assert taken(jobs) == "3"


@pytest.mark.parametrize("gpus", ["", "2", "GPU-5ac1"])
def test_where_there_is_nothing_to_choose_nothing_is_done(
    gpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, gpus)
    with one_gpu():
        assert os.environ[VISIBLE] == gpus
    assert list(tmp_path.iterdir()) == []


DRIVER = """
#include <stdlib.h>
int cuInit(unsigned flags) { return getenv("BROKEN_DRIVER") ? 999 : 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
"""


def test_gpus_are_counted_by_the_driver_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count in this process would fix its GPUs, whatever the environment says later."""
    if not (compiler := shutil.which("gcc") or shutil.which("cc")):
        pytest.skip("needs a C compiler, which builds a driver that counts two")
    (tmp_path / "driver.c").write_text(DRIVER)
    command = [compiler, "-shared", "-fPIC", "driver.c", "-o", "libcuda.so.1"]
    subprocess.run(command, cwd=tmp_path, check=True)
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr("torch.cuda.device_count", lambda: pytest.fail("CUDA was asked in this process"))
    with one_gpu():
        assert os.environ[VISIBLE] == "0"
    assert VISIBLE not in os.environ
    monkeypatch.setenv("BROKEN_DRIVER", "1")
    with one_gpu():
        assert VISIBLE not in os.environ


def test_no_driver_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "COUNT", record.COUNT.replace("libcuda.so.1", "no such library"))
    monkeypatch.delenv(VISIBLE, raising=False)
    with one_gpu():
        assert VISIBLE not in os.environ


@pytest.mark.parametrize(("there", "expected"), [(True, "cuda"), (False, "cpu")])
def test_a_job_takes_a_gpu_where_there_is_one(there: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    assert record.take_device(1).type == expected


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "1,0")
    with pytest.raises(ZeroDivisionError), one_gpu():
        assert os.environ[VISIBLE] == "1"
        _ = 1 / 0
    assert os.environ[VISIBLE] == "1,0"


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0,1")
    other = os.getuid() + 1
    (tmp_path / f"fedshift-gpus-{other}").mkdir()
    monkeypatch.setattr("os.getuid", lambda: other)
    with pytest.raises(UserError, match="belongs to another user; set TMPDIR to a folder of yours"), one_gpu():
        pass
