"""Imports go downward only, and what Snakemake imports to build its graph is light."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedshift

PACKAGE = Path(fedshift.__file__).parent
COMMON = Path(__file__).parents[2] / "workflow" / "rules" / "common.smk"

FLOORS: dict[int, str] = {
    0: "__init__ archive arrays bn corruptions/ devices digest disk errors fetch files paths progress registry rng "
    "state tissue training",
    1: "addon algorithm dataset figure inference metric model partition transform",
    2: "samples addons/ algorithms/ datasets/ figures/ inferences/ metrics/ models/ transforms/",
    3: "claims declaration fields papers printed run selector study",
    4: "amounts apply batches clients dryrun federation imagefiles ledger localwork lockstep planning predict prepare "
    "provenance ranks resume roundlog selection sizes standing status tally timing train upcoming variances workbench",
    5: "export/ report/",
    6: "__main__ cli commands",
}
"""Each module, and each folder of plug-ins, on its floor.

0 the ground, 1 one base class for each kind of plug-in, 2 the plug-ins, 3 what a study is, 4 what runs are made of, 5
what is said of them, 6 the command line.
"""

OPEN = {0, 3, 4, 5, 6}
"""Floors whose modules may import one another."""


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).with_suffix("").as_posix(), path


def floor_of(module: str) -> int | None:
    """The floor of a module, or of the folder of plug-ins that it is in."""
    place = f"{module.partition('/')[0]}/" if "/" in module else module
    return next((floor for floor, names in FLOORS.items() if place in names.split()), None)


def run_time(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for other in child.orelse:
                yield from [other, *run_time(other)]
        else:
            yield child
            yield from run_time(child)


def imports(module: str, path: Path) -> set[str]:
    """The modules of this package that a module imports when it runs, at its head or in a function."""
    parts = ["fedshift", *module.split("/")]
    found: set[str] = set()
    for node in run_time(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            found |= {"/".join([*base, alias.name]) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.replace(".", "/") for alias in node.names}
    return {target for name in found if (target := resolved(name)) and target != module}


def resolved(name: str) -> str | None:
    """`fedshift/files/read_json` -> `files`; nothing for other packages."""
    top, _, rest = name.partition("/")
    if top != "fedshift":
        return None
    while rest:
        if (PACKAGE / f"{rest}.py").exists():
            return rest
        if (PACKAGE / rest / "__init__.py").exists():
            return f"{rest}/__init__"
        rest = rest.rpartition("/")[0]
    return "__init__"


GRAPH = {module: imports(module, path) for module, path in modules()}


def test_every_module_has_one_floor() -> None:
    assert [module for module in GRAPH if floor_of(module) is None] == [], "put it on a floor"
    listed = [name for names in FLOORS.values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert [n for n in listed if not (PACKAGE / (n if n.endswith("/") else f"{n}.py")).exists()] == []


@pytest.mark.parametrize("module", GRAPH)
def test_imports_go_downward(module: str) -> None:
    here = floor_of(module)
    assert here is not None
    upward = []
    for target in sorted(GRAPH[module]):
        there = floor_of(target)
        assert there is not None
        beside = here == there and (here in OPEN or is_private_neighbour(module, target))
        if not (there < here or beside):
            upward.append(f"{target} (floor {there}) from {module} (floor {here})")
    assert upward == []


def is_private_neighbour(module: str, target: str) -> bool:
    """A helper, such as `metrics/_binary`, of plug-ins in its folder."""
    folder, _, name = target.rpartition("/")
    return bool(folder) and module.rpartition("/")[0] == folder and name.startswith("_")


def test_nothing_is_imported_in_a_circle() -> None:
    assert len(list(graphlib.TopologicalSorter(GRAPH).static_order())) == len(GRAPH)


def test_the_graph_sees_what_it_should() -> None:
    """A guard for the guard: known imports of all kinds are in it."""
    assert "federation" in GRAPH["train"]
    assert "train" in GRAPH["commands"], "in a function"
    assert "algorithm" in GRAPH["algorithms/fedavg"], "from a folder"
    assert "study" not in GRAPH["prepare"], "for type checkers only"
    assert "cli" in GRAPH["__main__"]
    assert "__init__" not in GRAPH["cli"], "`from . import study` is an import of study"


def head() -> str:
    """The imports of this package at the head of the workflow, and what it does with them."""
    lines = re.findall(r"^from fedshift.*", COMMON.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines
    return "\n".join(lines)


@functools.cache
def loaded() -> set[str]:
    """What is loaded once the workflow has read a study and asked for the digests of its jobs' code."""
    code = f"""
import sys
from pathlib import Path
import fedshift.study
{head()}
plan = study.load(Path("config/studies/demo.yaml"), "mini")
for run in plan.runs.values():
    study.code("train", *run.plugins)
for inference in plan.inferences.values():
    study.code("predict", inference)
for name in plan.study.metrics:
    study.code("report.score", registry.get("metric", name))
for name in plan.study.figures:
    study.code("report.results", registry.get("figure", name))
study.code("prepare", plan.study.dataset)
study.code("report.page")
print(*sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=COMMON.parents[2], capture_output=True, text=True, timeout=120, check=True
    )
    return {name.partition(".")[0] for name in run.stdout.split()}


@pytest.mark.parametrize("library", ["torch", "torchvision", "monai", "pandas", "scipy", "sklearn", "matplotlib"])
def test_the_workflow_is_built_without(library: str) -> None:
    assert library not in loaded()
