"""The examples in the docstrings of the Python interface, executed in the folder of a finished study."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import my_study
import pytest

import fedshift
from fedshift import interface

MODULES = [module.name for module in pkgutil.iter_modules(interface.__path__, f"{interface.__name__}.")]
PUBLIC = {name: getattr(fedshift, name) for name in fedshift.__all__}
FINDER = doctest.DocTestFinder(exclude_empty=True)


def examples(thing: object, name: str) -> list[doctest.DocTest]:
    """Return the docstrings of a thing that have examples, and those of its own methods."""
    module = importlib.import_module(thing.__module__) if not inspect.ismodule(thing) else thing
    return [test for test in FINDER.find(thing, name, module=module, globs={}) if test.examples]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        my_study.made(root)
    return root


TESTS = {
    test.name: test
    for module in [*map(importlib.import_module, MODULES), fedshift.Training, fedshift.UserError]
    for test in examples(module, module.__name__)
}


@pytest.mark.parametrize("name", TESTS)
def test_an_example_does_what_it_says(name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    outcome = runner.run(TESTS[name], out=told.append, clear_globs=True)
    assert outcome.attempted and not outcome.failed, "".join(told)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name: str) -> None:
    assert examples(PUBLIC[name], name)[0].name == name, "the docstring of a public name shows how it is used"
