"""Several processes share the clients of one federation, and it comes to the same as in one."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks_worker as worker
import torch
from patience import PATIENCE
from rotation import of_day

from fedshift.core.errors import UserError
from fedshift.engine.ranks import ALONE, Ranks, require_own_gpus

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def launched(count: int, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The outcome of a command that torchrun starts so many times."""
    words = [*LAUNCH, f"--nproc-per-node={count}", *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, **options)


@pytest.fixture(scope="module", params=[2, 3])
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of two, and of three, processes has kept."""
    out = tmp_path_factory.mktemp("ranks")
    path = os.pathsep.join([str(Path(worker.__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = launched(request.param, worker.__file__, str(out), env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(request.param)]


@functools.cache
def alone(name: str) -> dict[str, Any]:
    """Return what one process comes to, for comparison with two and with three."""
    return worker.outcome(worker.cases()[name], ALONE)


def compare(one: Any, other: Any, close: float, path: str = "") -> None:
    """Equal, or numbers this close."""
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert list(one) == list(other), path
        for key in one:
            compare(one[key], other[key], close, f"{path}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for n, (a, b) in enumerate(zip(one, other, strict=True)):
            compare(a, b, close, f"{path}/{n}")
    elif isinstance(one, torch.Tensor | float):
        torch.testing.assert_close(one, other, rtol=close, atol=close, equal_nan=True, msg=lambda m: f"{path}: {m}")
    else:
        assert one == other, path


@pytest.mark.parametrize("name", of_day(worker.cases(), 4))
def test_processes_come_to_what_one_comes_to(name: str, together: list[dict[str, Any]]) -> None:
    outcome = alone(name)
    assert "global" in outcome
    for kept in together:
        compare(kept["cases"][name], outcome, close=1e-9)


def test_all_processes_hold_the_same_bits(together: list[dict[str, Any]]) -> None:
    for kept in together[1:]:
        compare(kept["cases"], together[0]["cases"], close=0)


def test_what_one_process_raises_is_raised_in_all(together: list[dict[str, Any]]) -> None:
    bad = "UserError: client 'b': has no images; leave it out"
    strange = "UserError: another process: failed: StrangeError: 1 and 2; see its traceback"
    for rank, kept in enumerate(together):
        assert kept["heard"] == [bad, "Interrupted: ", "StrangeError: 1 and 2" if rank == 1 else strange]


@pytest.mark.parametrize(
    ("work", "count", "owner"),
    [
        ([1, 1, 1, 1], 2, [0, 1, 0, 1]),
        ([10, 1, 1, 8], 2, [0, 1, 1, 1]),  # 10 against 8 + 1 + 1
        ([5, 4, 3, 3, 3], 2, [0, 1, 1, 0, 1]),  # 5 + 3 against 4 + 3 + 3
        ([2, 1], 4, [0, 1]),
        ([3, 3], 1, [0, 0]),
    ],
)
def test_work_is_balanced_by_size(work: list[float], count: int, owner: list[int]) -> None:
    ranks = Ranks()
    ranks.count = count
    assert ranks.share_out(work) == owner


@pytest.mark.parametrize(("gpus", "shared"), [(["a", "b"], ""), (["", ""], ""), (["a", "b", "b"], "b")])
def test_two_processes_on_one_gpu_are_refused_in_a_clear_line(gpus: list[str], shared: str) -> None:
    class Several(Ranks):
        count = len(gpus)

        def each(self, task: Callable[[], Any]) -> list[Any]:
            return gpus

    if not shared:
        require_own_gpus(Several(), gpus[0])
        return
    with pytest.raises(UserError) as caught:
        require_own_gpus(Several(), gpus[0])
    remedy = "ask for as many processes as there are GPUs, or leave out `processes`"
    assert str(caught.value) == f"processes: 2 of 3 processes would share one GPU ({shared}); {remedy}"


def test_one_process_does_all_by_itself() -> None:
    tensors = {"a": torch.ones(2)}
    assert ALONE.each(lambda: 3) == [3]
    assert ALONE.first(lambda: 4) == 4
    assert ALONE.sum(tensors)["a"] is tensors["a"]
