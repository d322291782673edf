"""One set of requirements, written in several files; and nothing of any machine in what is committed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fedshift

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "fedshift"
ENVIRONMENTS = sorted((ROOT / "envs").glob("*.yaml"))
CONDA = {"pytorch": "torch"}  # where conda has another name
ITSELF = "--editable ."
MODULES = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml", "markupsafe": "jinja2", "urllib3": "requests"}
STAGES = {
    "data": (["jobs/prepare", "data/partition", "datasets/_base", "io/download"], ["datasets", "transforms"]),
    "train": (
        ["jobs/train", "jobs/predict", "io/tables", "io/arrays", "jobs/record", "analysis/communication"],
        ["models", "algorithms", "addons", "inferences", "transforms"],
    ),
    "report": (
        ["jobs/control", "analysis/score", "page/summary", "analysis/study_results", "page/page", "page/gallery"],
        ["metrics", "figures"],
    ),
}
"""By environment: the modules whose functions its jobs call, and the folders of the plug-ins that they use."""
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OWN = [Requirement(r) for r in PYPROJECT["project"]["dependencies"]]
LOCKS = ("requirements.lock", "requirements-exports.lock", "requirements-docs.lock", "requirements-flower.lock")
"""What the package and its tests need; and, each beside it in an environment of its own, exports, the site, Flower."""


def bounds(requirements: list[Requirement]) -> dict[str, str]:
    return {canonicalize_name(r.name): str(r.specifier) for r in requirements}


def conda(path: Path) -> dict[str, str]:
    """The requirements of a conda environment, under the names that pip has for them."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content["channels"][-1] == "nodefaults"
    nested: list[Any] = content["dependencies"]
    flat = [r for entry in nested for r in (entry["pip"] if isinstance(entry, dict) else [entry])]
    found = bounds([Requirement(r) for r in flat if r not in ("pip", ITSELF)])
    assert found.pop("python") == PYPROJECT["project"]["requires-python"]
    return {CONDA.get(name, name): bound for name, bound in found.items()}


def locked(lock: str) -> list[tuple[Requirement, list[str]]]:
    """Each requirement of a lock with its hashes."""
    text = (ROOT / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    entries = [line.split("--hash=") for line in text.splitlines() if line.strip()]
    return [(Requirement(head.strip()), [h.strip() for h in hashes]) for head, *hashes in entries]


def test_the_conda_environment_asks_for_what_the_package_asks_for() -> None:
    assert conda(ROOT / "environment.yml") == bounds(OWN)


def test_the_conda_environment_has_the_command() -> None:
    """The package brings the command. Jobs do not have it: the workflow passes them the folder of the sources."""
    *_, last = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    assert ITSELF in last["pip"]
    assert PYPROJECT["project"]["scripts"].keys() == {"fedshift"}


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_the_environment_of_a_job_has_the_same_bounds(path: Path) -> None:
    assert conda(path).items() <= bounds(OWN).items()


def test_every_environment_belongs_to_a_stage_and_is_used() -> None:
    assert [path.stem for path in ENVIRONMENTS] == sorted(STAGES)
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    for name in STAGES:
        assert f"../../envs/{name}.yaml" in rules


def imports(path: Path, deep: bool = True) -> Iterator[str]:
    """Modules that a file imports when it runs: `fedshift.x` of this package, else the name of the distribution."""
    package = ["fedshift", *path.relative_to(SOURCES).parts[:-1]]

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            hidden = isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING"
            if not hidden and (deep or not isinstance(child, ast.FunctionDef)):
                yield child
                yield from walk(child)

    for node in walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) + 1 - node.level], *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names] if node.level else [str(node.module)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            top = name.split(".")[0]
            yield name if top == "fedshift" else MODULES.get(top, top)


def module(name: str) -> Path | None:
    """The file of `fedshift.x`, or of the module that has it as a member."""
    stem = SOURCES.joinpath(*name.split(".")[1:])
    files = (stem.with_suffix(".py"), stem.parent.with_suffix(".py"), stem / "__init__.py")
    return next((file for file in files if file.is_file() and SOURCES in file.parents), None)


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_the_environment_of_a_job_has_all_that_its_code_imports(stage: str) -> None:
    stages, folders = STAGES[stage]
    jobs = [SOURCES / f"{name}.py" for name in stages]
    jobs += [path for folder in folders for path in (SOURCES / folder).glob("*.py")]
    todo, seen = [SOURCES / "cli" / "parser.py", *jobs], set[Path]()
    needed: set[str] = set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in imports(path, deep=path in jobs):  # of other modules, a job need not call every function
            if name.startswith("fedshift"):
                todo += filter(None, [module(name)])
            elif name not in sys.stdlib_module_names:
                needed.add(name)
    assert len(seen) > 15, "the walk has lost its way"
    assert needed - conda(ROOT / "envs" / f"{stage}.yaml").keys() == set()


@pytest.mark.parametrize(("lock", "least"), [(LOCKS[0], 100), (LOCKS[1], 30), (LOCKS[2], 10)])
def test_every_locked_requirement_has_one_version_and_hashes(lock: str, least: int) -> None:
    found = locked(lock)
    assert len(found) > least
    for requirement, hashes in found:
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
        assert requirement.url is None
        assert hashes, requirement
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", h) for h in hashes), requirement


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_names_no_index(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert "://" not in text
    assert not [line for line in text.splitlines() if line.startswith("-")]


def versions(*locks: str) -> dict[str, list[str]]:
    """The locked versions of each distribution."""
    found: dict[str, list[str]] = {}
    for requirement, _ in [entry for lock in locks for entry in locked(lock)]:
        version = str(requirement.specifier).removeprefix("==")
        found.setdefault(canonicalize_name(requirement.name), []).append(version)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_has_a_fitting_version_of_every_requirement(lock: str) -> None:
    groups, extras = PYPROJECT["dependency-groups"], PYPROJECT["project"]["optional-dependencies"]
    needs = {
        LOCKS[0]: [*PYPROJECT["project"]["dependencies"], *groups["dev"], *groups["setup"]],
        LOCKS[1]: [requirement for name, extra in extras.items() if name != "flower" for requirement in extra],
        LOCKS[2]: groups["docs"],
        LOCKS[3]: extras["flower"],
    }
    wanted = map(Requirement, needs[lock])
    found = versions(*dict.fromkeys([LOCKS[0], lock]))
    for requirement in wanted:
        fitting = found.get(canonicalize_name(requirement.name))
        assert fitting, f"{requirement} is not in the lock: make lock"
        assert all(requirement.specifier.contains(v) for v in fitting), f"{requirement}: locked is {fitting}"


def test_what_exports_and_the_site_need_is_beside_the_environment_and_not_in_it() -> None:
    """MONAI imports them where they are installed, a second for each job."""
    default, exports, docs, flower = (versions(lock) for lock in LOCKS)
    assert default.keys() & exports.keys() == set()
    assert default.keys() & flower.keys() == {"certifi", "rich"}  # of which Flower wants other versions
    assert default.keys() & docs.keys() == {"colorama"}  # which the default one has on Windows alone
    assert {"mlflow-skinny", "pytorch-ignite"} <= exports.keys()
    assert {"mkdocs", "mkdocs-material", "mkdocstrings-python"} <= docs.keys()
    assert "flwr" in flower


def test_nothing_committed_names_a_machine_or_an_index() -> None:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git checkout")
    folders = ("home", "root", "Users", "work", "mnt", "scratch")
    bad = {
        "a path of a machine": rf"(?<![\w.~/-])/(?:{'|'.join(folders)})/\w",
        "this very folder": re.escape(str(ROOT)),
        "a package index": r"(?<!emit-)index" + r"-url\b|/simp" + r"le/?[\s'\"]|pythonhos" + "ted",
        "a private address": r"://(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d",
    }
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        for what, pattern in bad.items():
            found += [f"{name}: {what}: {match.group()!r}" for match in re.finditer(pattern, text)]
    assert found == []


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PYPROJECT["project"]["version"] == citation["version"] == fedshift.__version__
