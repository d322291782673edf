"""Faults of real processes on the loopback device: sites and SuperLinks that are killed, strangers, and latecomers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from patience import PATIENCE
from three_sites import SITES

from fedshift import study
from fedshift.core.errors import UserError
from fedshift.flower import keys, nodes, processes
from fedshift.hospitals.hospital import Hospital
from fedshift.io.paths import Paths

pytestmark = pytest.mark.slow


LEAP = """
import runpy, time
from pathlib import Path
from types import SimpleNamespace
from fedshift.hospitals import study_server

clock = lambda: time.monotonic() + 1e6 * Path("leap").exists()
study_server.time = SimpleNamespace(sleep=time.sleep, monotonic=clock)
runpy.run_module("fedshift", run_name="__main__", alter_sys=True)
"""
"""A server whose patience with sites ends when there is a file `leap` in its folder."""


def children(process: subprocess.Popen[bytes], program: str) -> list[int]:
    """Numbers of the processes that a process has started, and whose command names a program."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(process.pid)], capture_output=True, text=True
    )
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if program in line]


def test_a_superlink_that_is_killed_starts_again_and_the_run_goes_on_with_the_same_bits(towns: Any) -> None:
    town = towns(rounds=4)
    server = town.serve()
    sites = [town.site(name) for name in SITES]
    town.wait_for("server", "round 2/4")
    (link,) = children(server, "flower-superlink")
    os.kill(link, signal.SIGKILL)
    town.wait_for("server", "the SuperLink has ended; starting another one")
    town.wait_for("server", "going on after round")
    assert server.wait(PATIENCE) == 0, town.said("server")
    assert [site.wait(PATIENCE) for site in sites] == [0, 0, 0]
    real, expected = town.trained()[0], town.simulated()
    assert real.keys() == expected.keys()
    assert all(torch.equal(real[name], expected[name]) for name in real)
    assert (town.root / "server" / "reports" / "study.html").exists()
    assert not children(server, "flower")


def test_a_site_that_is_killed_is_missing_and_comes_back_after_75_seconds(towns: Any) -> None:
    town = towns(rounds=30)
    server = town.serve()
    sites = {name: town.site(name) for name in SITES}
    town.wait_for("server", "round 2/30")
    (node,) = children(sites["south"], "flower-supernode")
    sites["south"].kill()
    sites["south"].wait()
    killed = time.monotonic()
    town.wait_for("server", "no answer of 'south'")
    assert not Path(f"/proc/{node}").exists(), "the SuperNode ends with its site"
    time.sleep(max(0.0, 75 - (time.monotonic() - killed)))
    again = town.site("south")
    assert server.wait(2 * PATIENCE) == 0, town.said("server")
    assert again.wait(PATIENCE) == 0
    missing = town.trained()[1]["missing"]
    assert {entry["site"] for entry in missing} == {"south"}
    lost = {entry["round"] for entry in missing if entry["kind"] == "train"}
    assert lost
    assert max(lost) < 30, "it took part in the last round again"
    rounds = pd.read_parquet(next(iter(Paths(town.root / "server").every_run())).rounds)
    took_part = rounds[rounds["split"] == "train"].groupby("round")["site"].agg(set)
    assert all(("south" in sites) == (number not in lost) for number, sites in took_part.items())


def test_a_site_that_is_killed_and_started_at_once_comes_back_and_the_run_is_that_of_the_simulation(towns: Any) -> None:
    town = towns(rounds=20)
    server = town.serve()
    sites = {name: town.site(name) for name in SITES}
    town.wait_for("server", "round 2/20")
    sites["south"].kill()
    sites["south"].wait()
    again = town.site("south")
    assert server.wait(2 * PATIENCE) == 0, town.said("server")
    assert again.wait(PATIENCE) == 0
    missing = town.trained()[1]["missing"]
    assert {entry["site"] for entry in missing} == {"south"}
    assert max(entry["round"] for entry in missing) < 20, "it took part in the last round again"
    town.require_replay()


def wait_for_a_round(town: Any, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server has finished one more round."""
    before, until = town.said("server").count("  loss "), time.monotonic() + PATIENCE
    while town.said("server").count("  loss ") == before:
        assert server.poll() is None, f"the study is over before all kills: {town.said('server')}"
        assert time.monotonic() < until, town.said("server")
        time.sleep(0.5)


def test_after_twenty_kills_of_sites_and_of_the_superlink_the_run_is_that_of_its_replay(towns: Any) -> None:
    """A site and the SuperLink are killed in turn, each after one more round, however long that takes."""
    town = towns(rounds=90)
    server = town.serve()
    sites = {name: town.site(name) for name in SITES}
    town.wait_for("server", "round 2/90")
    for kill in range(10):
        name = SITES[kill % len(SITES)]
        sites[name].kill()
        sites[name].wait()
        sites[name] = town.site(name)
        wait_for_a_round(town, server)
        (link,) = children(server, "flower-superlink")
        os.kill(link, signal.SIGKILL)
        wait_for_a_round(town, server)
    assert server.wait(2 * PATIENCE) == 0, town.said("server")
    assert [site.wait(PATIENCE) for site in sites.values()] == [0, 0, 0]
    assert not any("Traceback" in town.said(folder) for folder in ("server", *SITES))
    missing = town.trained()[1]["missing"]
    print(f"{len(missing)} missing answers in 90 rounds")
    town.require_replay()


def test_sites_that_never_come_are_named_and_a_second_site_of_a_name_is_turned_away(towns: Any) -> None:
    town = towns(rounds=2, secure=False)
    server = town.serve(("-c", LEAP))
    town.site("east")
    town.wait_for("server", "site 'east' is connected")
    second = town.site("east", log="second.txt")
    assert second.wait(PATIENCE) == 2
    assert "turned this site away: another site is connected as 'east'" in town.said("east", "second.txt")
    (town.root / "server" / "leap").touch()
    assert server.wait(PATIENCE) == 2
    last = town.said("server").strip().splitlines()[-1]
    assert last.startswith("sites north, south: did not connect within 10:00")


def test_a_stranger_is_not_let_in_and_is_told_why(towns: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    town = towns(rounds=2)
    town.serve()
    town.wait_for("server", "open for sites at")
    other = keys.Keys(tmp_path / "other")
    keys.write(other, "localhost", town.port, ["east"], town.root / "server" / "study.yaml")
    monkeypatch.setattr(processes, "TRIES", 1)
    with contextlib.chdir(town.root / "east"):
        plan = study.load(Path("study.yaml"), "mini")
        stranger = Hospital(plan, "east", Path("images.csv"), rows=True, offers=False)
        ca = town.root / "server" / "federation" / "ca.crt"
        with pytest.raises(UserError, match="does not let this site in: its key is unknown there"):
            nodes.take_part(stranger, f"localhost:{town.port}", ca, other.site("east") / "key")
