"""The commands and examples of README and docs work without changes."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
import yaml
from examples import PACKAGE, ROOT, Copy, examples

import fedshift
from fedshift import study
from fedshift.core import registry


def blocks(path: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), re.S)


def test_the_first_python_example() -> None:
    code, _ = blocks("docs/python.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {}
    exec(code, names)
    federation = names["federation"]
    assert federation.server.round == 5
    assert {row["site"] for row in federation.history} == {"north", "south", "west"}
    assert all(tensor.isfinite().all() for tensor in federation.global_state().values())


def test_the_study_of_the_docs(tmp_path: Path) -> None:
    smallest = blocks("docs/add-a-study.md", "yml")[0]
    (tmp_path / "smallest.yaml").write_text(smallest, encoding="utf-8")
    assert len(study.load(tmp_path / "smallest.yaml", "paper").runs) == 2
    text, more, search = blocks("docs/add-a-study.md", "yaml")
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    for scale in ("mini", "paper"):
        plan = study.load(path, scale)  # type: ignore[arg-type]
        assert len(plan.runs) == 9
        assert list(plan.inferences) == ["source", "tsmobn", study.inference_id(plan.study.inferences[2][0])]
    path.write_text(yaml.safe_dump(yaml.safe_load(text) | yaml.safe_load(more)), encoding="utf-8")
    plan = study.load(path, "paper")
    assert len(plan.runs) == 3 * (2 * 2 + 1 + 1)
    asked = [len(plan.predictions(run)) for run in plan.runs if run.startswith("fedavg-")]
    # Momentum 0 in batches of 32, and the default, are named twice.
    assert asked == 3 * [9 + 10 + 10 + 3 - 2]
    path.write_text(yaml.safe_dump(yaml.safe_load(text) | yaml.safe_load(search)), encoding="utf-8")
    plan = study.load(path, "paper")
    assert len(plan.searches) == 3 * 2 and len(plan.trainings) == 3 * (2 * 3 + 1)


def test_the_study_of_masks_of_the_docs(tmp_path: Path) -> None:
    text, nested = blocks("docs/segmentation.md", "yaml")
    path = tmp_path / "masks.yaml"
    path.write_text(text, encoding="utf-8")
    plan = study.load(path, "paper")
    assert len(plan.runs) == 2 * 3
    assert {data.task.columns(("background", "vessel"))[0] for data in plan.data.values()} == {"tp_vessel"}
    path.write_text(yaml.safe_dump(yaml.safe_load(text) | yaml.safe_load(nested), sort_keys=False), encoding="utf-8")
    assert study.load(path, "paper").study.task.columns(("ground", "rim", "cup"))[6] == "tp_cup"


def test_five_lines_of_an_own_hospital(tmp_path: Path) -> None:
    (lines,) = blocks("README.md", "yaml")
    example = yaml.safe_load((ROOT / "config/studies/own-hospitals-example.yaml").read_text(encoding="utf-8"))
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(example | yaml.safe_load(lines)), encoding="utf-8")
    assert study.load(path, "mini").study.partition[0].internal == ("north", "south", "west")


@pytest.mark.parametrize(
    ("path", "name"),
    [("norms.md", "discs"), ("own-hospital.md", "own-hospitals-example"), ("concepts/conformal.md", "demo")],
)
def test_further_keys_of_the_docs_are_those_of_a_study(path: str, name: str, tmp_path: Path) -> None:
    example = yaml.safe_load((ROOT / f"config/studies/{name}.yaml").read_text(encoding="utf-8"))
    (lines,) = blocks(f"docs/{path}", "yaml")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(example | yaml.safe_load(lines)), encoding="utf-8")
    assert study.load(tmp_path / "mine.yaml", "paper").runs


# ---- the plug-ins of the docs

EXAMPLES = examples()
PATHS = [example.path for example in EXAMPLES]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("docs"))


def test_every_kind_has_a_page_with_an_example_that_has_settings_or_state() -> None:
    assert {example.kind for example in EXAMPLES} == set(registry.KINDS), "each needs a page docs/add-a-KIND.md"
    assert len({example.name for example in EXAMPLES}) == len(EXAMPLES)
    for example in EXAMPLES:
        assert "Field(" in example.code, f"{example.page}: {example.name} shows no setting"
        assert f"pytest tests/contract -k {example.name}" in (ROOT / "docs" / example.page).read_text("utf-8") or (
            sum(other.page == example.page for other in EXAMPLES) > 1
        ), f"{example.page} does not say how {example.name} is tested"


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("algorithm", "algorithms"),
        ("addon", "add-ons"),
        ("inference", "inference"),
        ("dataset", "datasets"),
        ("model", "models"),
    ],
)
def test_what_is_in_it_is_listed(kind: str, row: str) -> None:
    (line,) = re.findall(rf"^\| {row} \| .*$", (ROOT / "docs" / "included.md").read_text(encoding="utf-8"), re.M)
    plugins = registry.discover(kind).items()

    def listed(word: str) -> bool:
        return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", line, re.I) is not None

    assert [name for name, cls in plugins if not (listed(name) or listed(cls.display_name))] == []


def test_examples_pass_ruff(copy: Copy) -> None:
    copy.passes("ruff", "check", "--no-cache", files=PATHS)
    copy.passes("ruff", "format", "--check", "--no-cache", files=PATHS)


def test_examples_pass_mypy(copy: Copy) -> None:
    copy.passes("mypy", "--cache-dir", str(ROOT / ".mypy_cache"), files=PATHS)


def test_examples_satisfy_the_contract(copy: Copy) -> None:
    """One run of the contract, limited to the examples; and each example is really among what ran."""
    chosen = " or ".join(example.name for example in EXAMPLES)
    done = copy.run("pytest", "-q", "-rA", "-p", "no:cacheprovider", "tests/contract", "-k", chosen)
    assert done.returncode == 0, f"an example of docs/add-a*.md breaks the contract:\n{done.stdout[-6000:]}"
    for example in EXAMPLES:
        passed = re.findall(rf"^PASSED .*\b{example.name}\b", done.stdout, re.M)
        assert len(passed) > 5, f"{example.page}: only {len(passed)} tests of the contract ran for {example.name}"


def test_examples_are_found_by_the_command_line(copy: Copy) -> None:
    env = forked.environment() | {"PYTHONPATH": str(copy.root / "src")}
    for kind in registry.KINDS:
        listed = forked.run("fedshift", ("list", f"{kind}s"), copy.root, env)
        assert listed.returncode == 0, listed.stderr
        for example in EXAMPLES:
            assert (f"\n{example.name}" in f"\n{listed.stdout}") == (example.kind == kind)


def as_a_module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Register an example as the module that it would be, and return its class."""
    (example,) = [example for example in EXAMPLES if example.name == name]
    module = types.ModuleType(f"fedshift.{example.kind}s.{name}")
    module.__package__ = f"fedshift.{example.kind}s"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(example.code, module.__dict__)
    (cls,) = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    monkeypatch.setitem(registry.discover(example.kind), name, cls)
    return cls


@pytest.fixture
def nesterov(monkeypatch: pytest.MonkeyPatch) -> Any:
    return as_a_module("nesterov", monkeypatch)


def test_the_algorithm_of_the_docs_is_server_momentum(nesterov: Any) -> None:
    """On identity data the mean after a round is a x: then d = (1 - a) x, v <- b v + d, x <- x - d - b v, by hand."""
    rate, beta, rounds = 0.1, 0.5, 3
    net = torch.nn.Linear(1, 2, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(net.weight, 1.0)
    x, y = torch.zeros(4, 1, dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    training = {"lr": rate, "weight_decay": 1.0, "batch_size": 4}  # no signal: each step is x <- (1 - rate) x
    algorithm = {"name": "nesterov", "beta": beta}
    trained = fedshift.Federation(net, {"a": (x, y)}, algorithm=algorithm, training=training).run(rounds)
    weight, v = 1.0, 0.0
    for _ in range(rounds):
        step = rate * weight
        v = beta * v + step
        weight -= step + beta * v
    torch.testing.assert_close(trained.global_state()["weight"], torch.full((2, 1), weight, dtype=torch.float64))


def test_without_momentum_it_is_fedavg(nesterov: Any) -> None:
    g = torch.Generator().manual_seed(0)
    clients = {n: (torch.randn(20, 3, generator=g), torch.randint(2, (20,), generator=g)) for n in "ab"}
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    plain, same = (
        fedshift.Federation(net, clients, algorithm=a, bn="aggregated").run(2).global_state()
        for a in ("fedavg", {"name": "nesterov", "beta": 0.0})
    )
    for name in plain:
        torch.testing.assert_close(same[name], plain[name], rtol=1e-5, atol=1e-6)


def test_a_client_of_the_docs_keeps_its_momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client, one step a round, inputs 1, labels 0: m <- b m + softmax(w) - (1, 0), w <- w - rate m, in NumPy."""
    as_a_module("kept_momentum", monkeypatch)
    rate, beta, rounds = 0.5, 0.5, 3
    net = torch.nn.Linear(1, 2, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(net.weight, 1.0)
    x, y = torch.ones(4, 1, dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    algorithm, training = {"name": "kept_momentum", "beta": beta}, {"lr": rate, "batch_size": 4}
    trained = fedshift.Federation(net, {"a": (x, y)}, algorithm=algorithm, training=training).run(rounds)
    weight, m = np.ones(2), np.zeros(2)
    for _ in range(rounds):
        m = beta * m + np.exp(weight) / np.exp(weight).sum() - np.array([1.0, 0.0])
        weight = weight - rate * m
    np.testing.assert_allclose(trained.global_state()["weight"][:, 0], weight, rtol=1e-12)


# ---- decisions, folders, links


def links(path: Path) -> list[str]:
    """Return all targets of links in a Markdown file, without anchors."""
    return re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))


def test_records_of_decisions_are_short_and_listed() -> None:
    index = ROOT / "docs/decisions/README.md"
    records = sorted(index.parent.glob("[0-9]*.md"))
    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    assert [link for link in links(index) if "/" not in link] == [record.name for record in records]
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert re.findall(r"^## (.*)$", text, re.M) == ["Context", "Decision", "Consequences"], record.name
        assert 15 <= len(text.splitlines()) <= 40, record.name


def test_every_decision_about_a_paper_is_listed() -> None:
    index = ROOT / "docs/decisions/README.md"
    listed = {(index.parent / link).resolve() for link in links(index)}
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "config/studies").glob("*.yaml")]
    for file in files:
        if re.search(r"\bour\s+decision\b", file.read_text(encoding="utf-8"), re.I):
            assert listed & {file.resolve(), file.resolve().parent}, f"list {file.name} in {index}"


def test_the_tour_names_the_folders_that_are_there() -> None:
    tour = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)/` \|", tour, re.M)
    folders = sorted(folder.parent.name for folder in PACKAGE.glob("*/__init__.py"))
    assert sorted(named) == folders, "the table of folders in docs/tour.md must name each folder of src/fedshift once"


def test_hooks_before_a_commit_are_checks_of_make_lint_and_download_nothing() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    programs = {hook["entry"].split()[0] for hook in config["repos"][0]["hooks"]}
    assert programs == {".venv/bin/ruff", ".venv/bin/snakefmt", ".venv/bin/mypy", ".venv/bin/lint-imports"}
    for program in programs:
        assert program.replace(".venv/bin", "$(BIN)") in recipe, f"make lint does not run {program}"


def test_links_of_the_docs_lead_somewhere() -> None:
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert "://" in target or (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_tests_that_the_docs_show_pass() -> None:
    """A block after the comment `executed` is run, and its test functions are called."""
    called = 0
    for path in sorted((ROOT / "docs").glob("*.md")):
        for code in re.findall(r"<!-- executed[^>]*-->\n\n```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S):
            names: dict[str, Any] = {}
            exec(code, names)
            for test in [value for name, value in names.items() if name.startswith("test_")]:
                test()
                called += 1
    assert called
