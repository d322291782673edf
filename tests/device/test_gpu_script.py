"""`benchmarks/gpu.py` in its small form: all parts on the CPU and on the stand-in, and what it does when they fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu
import pytest
import standin
import torch
from card import loads, prototypes, right
from card.setting import Setting, WrongError
from rotation import of_day

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]
FIRST = next(iter(gpu.PARTS))
SHOWN = 12_000
"""Characters of an output that must be enough for its table."""


def called(out: Path, *arguments: str, **environment: str) -> tuple[int, str, list[Row]]:
    """Return exit code, output and rows of a call."""
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *arguments, "--out", str(out)]
    with_one = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(command, capture_output=True, text=True, env=with_one, timeout=3600, check=False)
    rows = json.loads((out / "gpu.json").read_text(encoding="utf-8"))["rows"] if (out / "gpu.json").exists() else []
    return done.returncode, done.stdout, rows


@pytest.mark.slow
@pytest.mark.parametrize("device", of_day(("cpu", "standin"), 2))
def test_all_parts(request: pytest.FixtureRequest, tmp_path: Path, device: str) -> None:
    arguments, environment = ["--device", device, "--minutes", "60"], {}
    if device == "standin":
        if not standin.compiler():
            assert not os.environ.get("REQUIRE_COMPILER"), "g++ is not there"
            pytest.skip("needs g++, which builds the stand-in accelerator")
        library = standin.build(request.config.cache.mkdir("standin"))  # type: ignore[union-attr]
        arguments += ["--load", str(Path(__file__).with_name("registered.py"))]
        environment["STANDIN"] = str(library)
    code, output, rows = called(tmp_path, *arguments, **environment)
    failed = [row for row in rows if row["outcome"] == "failed"]
    assert failed == []
    assert code == 0
    assert {row["part"] for row in rows} == gpu.PARTS.keys()
    # What needs a GPU of NVIDIA, an archive, or the long form.
    for part in gpu.PARTS.keys() - {"mitosis"}:
        assert any(row["outcome"] == "measured" for row in rows if row["part"] == part), part
    compared = [row["figures"] for row in rows if "bound" in row.get("figures", {})]
    assert len(compared) >= 12
    assert all(figures["difference"] <= figures["bound"] <= right.OF_MASKS for figures in compared)
    if device == "cpu":
        differences = [figures["difference"] for figures in compared]
        assert max(differences) > 0, "the CPU is compared with itself in another order of sums"
    assert all(row["what"] in output for row in rows)
    assert len(output) < SHOWN


def test_what_fails_costs_its_own_row_alone(tmp_path: Path) -> None:
    load = str(Path(__file__).with_name("broken_part.py"))
    code, output, rows = called(tmp_path, FIRST, "--device", "cpu", "--load", load, "--minutes", "60")
    assert code == 1
    assert [(row["what"], row["outcome"], row.get("reason")) for row in rows] == [
        ("wrong", "failed", "is not what it must be"),
        ("raises", "failed", "ValueError: one line"),
        ("lacks", "skipped", "no such thing here"),
        ("dies", "failed", "its process ended with code 3"),
        ("hangs", "failed", "no answer in 1 s"),
        ("goes on", "measured", None),
        ("is too long", "skipped", "no time left"),
        ("the part", "failed", "KeyError: 'no more'"),
    ]
    assert rows[0]["figures"] == {"difference": 2.0}
    assert "FAILED hangs: no answer in 1 s" in output


def test_it_ends_within_its_minutes(tmp_path: Path) -> None:
    load = str(Path(__file__).with_name("broken_part.py"))
    # On a busy machine, the worker may still be starting then.
    arguments = (FIRST, "demo", "--device", "cpu", "--load", load, "--minutes", "0.2")
    _, _, rows = called(tmp_path, *arguments, HANG="1")
    assert rows[-2]["part"] == FIRST
    assert rows[-1] == {
        "part": "demo",
        "what": "what is left",
        "outcome": "skipped",
        "seconds": 0,
        "reason": "no time left",
    }
    assert sum(row["seconds"] for row in rows) <= 13


def test_without_time_nothing_is_begun_and_other_parts_keep_their_rows(tmp_path: Path) -> None:
    kept = {"part": "right", "what": "fedavg", "outcome": "measured", "seconds": 1.0}
    (tmp_path / "gpu.json").write_text(json.dumps({"facts": {"card": "a card"}, "rows": [kept]}))
    parts = [part for part in gpu.PARTS if part != "right"]
    code, output, rows = called(tmp_path, *parts, "--device", "cpu", "--minutes", "0")
    assert code == 0
    assert rows[0] == kept
    assert [row["part"] for row in rows[1:]] == parts
    assert {(row["outcome"], row["reason"]) for row in rows[1:]} == {("skipped", "no time left")}
    assert "a card" in output


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    code, output, rows = called(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (code, rows) == (2, [])
    assert output == "no cuda device here: try --device cpu, which goes through all parts in a small form\n"


def test_a_number_that_is_off_is_found() -> None:
    variants = {"": {"algorithm": "fedavg"}}
    figures = right.compared(Setting("cpu", small=True), right.BOUND, variants)
    with pytest.raises(WrongError, match="differs from the CPU"):
        right.compared(Setting("cpu", small=True), figures["difference"] / 2, variants)


def test_bits_that_differ_are_found() -> None:
    made = right.federation(torch.device("cpu"), False, {}).run()
    other = right.federation(torch.device("cpu"), False, {}).run()
    assert right.same_bits(made, other)
    other.server.shared[0] = torch.nextafter(other.server.shared[0], torch.tensor(torch.inf))
    assert not right.same_bits(made, other)


def test_stacked_clients_take_the_steps_of_the_bare_loop() -> None:
    """Batches that hold all samples of a client have no order that could differ."""
    load = loads.Load("mlp", (6,), 3, clients=3, images=8, batch=8)
    network, cpu = load.network().double(), torch.device("cpu")
    data = loads.resident(load.read(cpu), cpu)
    for samples in data.values():
        samples.x = samples.x.double()
    bare = load.bare(network, data, cpu, "float32")
    stacked = prototypes.stacked_round(load, network, data, cpu)
    for _ in range(2):
        torch.testing.assert_close(stacked(), bare(), rtol=1e-12, atol=1e-12)
