"""The matrix of algorithms, BN policies and add-ons on real processes: a SuperLink, and three sites with SuperNodes.

Each algorithm and policy is trained alone and with one add-on, which changes from pair to pair. All runs share the
link; while one waits for its answers, others go on.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import matrix_site
import pytest
from combinations import ADDONS, Combination, all_combinations, reason
from patience import PATIENCE
from toy import SIZES

from fedshift.engine.coordinator import Coordinator
from fedshift.engine.messages import Message
from fedshift.flower import processes, wire
from fedshift.flower.nodes import superlink
from fedshift.hospitals.study_server import OfRun, wait_for_sites

pytestmark = pytest.mark.slow
AT_ONCE = 12
"""Runs that are under way at the same time."""
ALONE = [c for c in all_combinations() if not c.addon and not reason(c)]
WITH_ADDON = [c._replace(addon=ADDONS[1 + k % (len(ADDONS) - 1)]) for k, c in enumerate(ALONE)]
TRIED = ALONE + [c for c in WITH_ADDON if not c.in_turn]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which each run has the states of its sites."""
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="module")
def link(folder: Path) -> Iterator[wire.FlowerTransport]:
    """A link to three sites, each a process with its SuperNode."""
    processes.require_flower()
    address, sites = f"127.0.0.1:{processes.free_port()}", list[subprocess.Popen[bytes]]()
    with contextlib.ExitStack() as stack:
        with contextlib.chdir(folder):
            Path("results", "federation", "server").mkdir(parents=True)
            program, local, ca, secret = stack.enter_context(superlink(None, address))
        for name in SIZES:
            (folder / name).mkdir()
            command = [sys.executable, matrix_site.__file__, name, address, str(folder)]
            out = stack.enter_context((folder / name / "log.txt").open("wb"))
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            sites.append(subprocess.Popen(command, cwd=folder / name, env=environment, stdout=out, stderr=out))
            stack.callback(sites[-1].terminate)
        transport = wire.FlowerTransport(stack.enter_context(wire.opened_run(local, ca, secret)), [*SIZES], print)
        wait_for_sites(transport, PATIENCE, program.require_alive)
        yield transport
        dict(transport.ask(dict.fromkeys(transport.names, Message("over", {}, {}))))
        assert [site.wait(PATIENCE) for site in sites] == [0] * len(sites)


@pytest.fixture(scope="module")
def trained(link: wire.FlowerTransport) -> dict[Combination, Future[Coordinator]]:
    """The coordinator of each combination after its last round, or what was raised."""
    turn = threading.Lock()

    def pause(seconds: float) -> None:
        turn.release()
        time.sleep(seconds)
        turn.acquire()

    def train(combination: Combination) -> Coordinator:
        # The random state of torch belongs to the process: a run gives its turn away only while it waits.
        with turn:
            return Coordinator.open(combination.opened(), OfRun(link, str(combination))).run()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(AT_ONCE) as threads:
        patch.setattr(wire, "POLL", 1.0)
        patch.setattr(wire, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
        return {combination: threads.submit(train, combination) for combination in TRIED}


@pytest.mark.parametrize("combination", TRIED, ids=str)
def test_the_difference_from_the_simulation_is_0(
    combination: Combination, trained: dict[Combination, Future[Coordinator]], folder: Path
) -> None:
    sites = combination.in_memory(folder / str(combination))
    assert combination.difference(trained[combination].result(), sites) == 0
