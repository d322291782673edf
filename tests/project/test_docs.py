"""What README and docs tell people to type works as it stands."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fedshift
from fedshift import study
from fedshift.core import registry

ROOT = Path(__file__).parents[2]


def blocks(path: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), re.S)


def test_the_python_example_of_the_readme() -> None:
    (code,) = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    here: dict[str, Any] = {}
    exec(code, here)
    federation = here["federation"]
    assert federation.server.round == 5
    assert {row["site"] for row in federation.history} == {"north", "south", "west"}
    assert all(tensor.isfinite().all() for tensor in federation.global_state().values())


def test_the_study_of_the_docs(tmp_path: Path) -> None:
    text, more = blocks("docs/add-a-study.md", "yaml")
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    for scale in ("mini", "paper"):
        plan = study.load(path, scale)  # type: ignore[arg-type]
        assert len(plan.runs) == 9
        assert list(plan.inferences) == ["source", "tsmobn", study.inference_id(plan.study.inferences[2][0])]
    path.write_text(yaml.safe_dump(yaml.safe_load(text) | yaml.safe_load(more)), encoding="utf-8")
    plan = study.load(path, "paper")
    assert len(plan.runs) == 3 * (2 * 2 + 1 + 1)
    sweeps = [plan.sweeps[s] for run, asked in plan.asked.items() if run.startswith("fedavg-") for s in asked]
    assert [len(s) for s in sweeps] == 3 * [9, 10, 10]


def test_five_lines_of_an_own_hospital(tmp_path: Path) -> None:
    (lines,) = blocks("README.md", "yaml")
    example = yaml.safe_load((ROOT / "config/studies/own-hospitals-example.yaml").read_text(encoding="utf-8"))
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(example | yaml.safe_load(lines)), encoding="utf-8")
    assert study.load(path, "mini").study.partition[0].internal == ("north", "south", "west")


@pytest.fixture
def fedavgm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The algorithm that the docs add, as the module that it would be."""
    (code,) = blocks("docs/add-an-algorithm.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    module = types.ModuleType("fedshift.algorithms.fedavgm")
    module.__package__ = "fedshift.algorithms"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(code, module.__dict__)
    monkeypatch.setitem(registry.discover("algorithm"), "fedavgm", module.FedAvgM)
    return module.FedAvgM


def test_the_algorithm_of_the_docs_is_server_momentum(fedavgm: Any) -> None:
    """With identity data the mean after a round is a x: then x follows v <- b v + (1 - a) x, x <- x - v, by hand."""
    rate, beta, rounds = 0.1, 0.5, 3
    net = torch.nn.Linear(1, 2, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(net.weight, 1.0)
    x, y = torch.zeros(4, 1, dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    training = {"lr": rate, "weight_decay": 1.0, "batch_size": 4}  # no signal: each step is x <- (1 - rate) x
    given = {"name": "fedavgm", "beta": beta}
    found = fedshift.Federation(net, {"a": (x, y)}, algorithm=given, training=training).run(rounds)
    weight, v = 1.0, 0.0
    for _ in range(rounds):
        v = beta * v + rate * weight
        weight -= v
    torch.testing.assert_close(found.global_state()["weight"], torch.full((2, 1), weight, dtype=torch.float64))


def test_without_momentum_it_is_fedavg(fedavgm: Any) -> None:
    g = torch.Generator().manual_seed(0)
    clients = {n: (torch.randn(20, 3, generator=g), torch.randint(2, (20,), generator=g)) for n in "ab"}
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    plain, same = (
        fedshift.Federation(net, clients, algorithm=a, bn="aggregated").run(2).global_state()
        for a in ("fedavg", {"name": "fedavgm", "beta": 0.0})
    )
    for name in plain:
        torch.testing.assert_close(same[name], plain[name], rtol=1e-5, atol=1e-6)


def test_links_of_the_docs_lead_somewhere() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert "://" in target or (path.parent / target).exists(), f"{path.name}: {target}"
