"""The examples in the docstrings of the Python interface, executed in the folder of a finished study."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import fedshift
from fedshift import interface

MODULES = [module.name for module in pkgutil.iter_modules(interface.__path__, f"{interface.__name__}.")]
PUBLIC = {name: getattr(fedshift, name) for name in fedshift.__all__}


def examples(thing: object, name: str) -> dict[str, doctest.DocTest]:
    """Return the docstrings of a module, class or function that have examples, by name, with those inside of it."""
    found = doctest.DocTestFinder().find(thing, name, globs={})
    return {test.name: test for test in found if test.examples}


TESTS = {
    name: test
    for module in [*MODULES, fedshift.Training.__module__, fedshift.UserError.__module__]
    for name, test in examples(importlib.import_module(module), module).items()
}


@pytest.mark.parametrize("name", TESTS)
def test_an_example_does_what_it_says(name: str, here: Path) -> None:
    said: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(TESTS[name], out=said.append, clear_globs=False)
    assert outcome.attempted
    assert not outcome.failed, "".join(said)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_shows_how_it_is_used(name: str) -> None:
    assert name in examples(PUBLIC[name], name)
