"""Digests of code that lies outside of the package: what counts in a plug-in's folder, package or module."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from fedshift.core import digest, places
from fedshift.core.digest import Code

FEDSHIFT = {
    "__init__.py": "",
    "core/__init__.py": "",
    "core/errors.py": "class UserError(ValueError):\n    pass\n",
    "io/__init__.py": "def write(x):\n    return x\n",
    "algorithms/__init__.py": "from ._base import Algorithm\n",
    "algorithms/_base.py": "from ..steps import step\n\n\nclass Algorithm:\n    def act(self): step()\n",
    "steps.py": "def step():\n    return 1\n",
}
HALF = '''"""A method."""

import numpy as np
from fedshift.algorithms import Algorithm
from fedshift.core.errors import UserError

from . import _tools
from ._share import SHARE


class Half(Algorithm):
    """Half of it."""

    def update(self, server):
        """Go half the way."""
        if not server:
            raise UserError("server", "there is none")
        return _tools.part(np.mean(server)) * SHARE  # half
'''
LAB = {
    "half.py": HALF,
    "_share.py": "SHARE = 0.5\nother = 1\n",
    "_tools.py": "from ._deep import BASE\n\n\ndef part(x):\n    return x - BASE\n",
    "_deep.py": "BASE = 1\n",
    "core.py": "from ._share import SHARE\n\nvalue = SHARE\n",
    "unused.py": "x = 1\n",
}
Writer = Callable[..., str]


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


@pytest.fixture
def made(tmp_path: Path) -> Writer:
    """Return the digest of a module of a folder of plug-ins, with some of its files, or of fedshift's, changed."""
    write(tmp_path / "fedshift", FEDSHIFT)
    write(tmp_path / "plugins", LAB)
    name = places._package(tmp_path / "plugins")

    def digest_of(module: str = "half", fedshift: dict[str, str] | None = None, **files: str) -> str:
        write(tmp_path / "fedshift", fedshift or {})
        write(tmp_path / "plugins", {f"{file}.py": text for file, text in files.items()})
        return Code(tmp_path / "fedshift").digest(frozenset({f"{name}.{module}"}))

    return digest_of


@pytest.mark.parametrize(
    "files",
    [
        {"half": HALF.replace("  # half", "  # a comment")},
        {"half": HALF.replace("Half of it.", "Other words.").replace("Go half", "Go a part of")},
        {"half": HALF.replace("there is none", "it is missing")},
        {"half": HALF.replace("_tools\n", "_tools as t\n").replace("_tools.", "t.")},
        {"_share": LAB["_share.py"].replace("other = 1", "other = 2")},
        {"unused": "x = 2\n"},
        {"fedshift": {"core/errors.py": "class UserError(Exception):\n    pass\n"}},
    ],
    ids=["comment", "docstring", "error", "name of an import", "unused name", "unused file", "infrastructure"],
)
def test_what_does_not_count(made: Writer, files: dict[str, str]) -> None:
    assert made() == made(**files)


@pytest.mark.parametrize(
    "files",
    [
        {"half": HALF.replace("* SHARE", "+ SHARE")},
        {"half": HALF.replace("np.mean", "np.median")},
        {"_share": LAB["_share.py"].replace("0.5", "0.4")},
        {"_tools": LAB["_tools.py"].replace("x - BASE", "x + BASE")},
        {"_deep": "BASE = 2\n"},
        {"fedshift": {"steps.py": "def step():\n    return 2\n"}},
    ],
    ids=["formula", "function of a library", "helper", "module of helpers", "helper of a helper", "the base class"],
)
def test_what_counts(made: Writer, files: dict[str, str]) -> None:
    assert made() != made(**files)


def test_a_star_imports_what_is_used(made: Writer) -> None:
    star = made(half=HALF.replace("import SHARE", "import *"))
    assert star == made(_share="SHARE = 0.5\nmore = 1\n")
    assert star != made(_share="SHARE = 0.4\n")


def test_a_name_of_a_room_is_none_of_fedshifts(made: Writer) -> None:
    """A plug-in may be called `core`, which is infrastructure in the package alone."""
    assert made("core") != made("core", _share="SHARE = 0.4\n")


def test_neither_the_folder_nor_the_way_of_import_counts(
    made: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same code in another folder, in a package on the path, and in modules beside each other."""
    inside = made()
    write(tmp_path / "elsewhere", LAB)
    write(tmp_path / "path" / "lab", {**LAB, "__init__.py": ""})
    beside = {
        name.replace("half", "full"): text.replace("from . ", "").replace("from ._", "from _")
        for name, text in LAB.items()
    }
    write(tmp_path / "path", beside)
    monkeypatch.syspath_prepend(tmp_path / "path")
    importlib.invalidate_caches()
    moved = f"{places._package(tmp_path / 'elsewhere')}.half"
    for module in (moved, "lab.half", "full"):
        assert Code(tmp_path / "fedshift").digest(frozenset({module})) == inside, module
    write(tmp_path / "path", {"_deep.py": "BASE = 2\n"})
    assert Code(tmp_path / "fedshift").digest(frozenset({"full"})) != inside


def test_a_library_beside_an_installed_plug_in_does_not_count(
    made: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    text = HALF.replace("import numpy as np", "import numpy as np\nimport some_library").replace(
        "np.mean", "some_library.f"
    )
    write(site, {"some_library.py": "def f(x):\n    return x\n"})
    write(site / "lab2", {**LAB, "__init__.py": "", "half.py": text})
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    before = Code(tmp_path / "fedshift").digest(frozenset({"lab2.half"}))
    write(site, {"some_library.py": "def f(x):\n    return 2 * x\n"})
    assert Code(tmp_path / "fedshift").digest(frozenset({"lab2.half"})) == before
    write(site / "lab2", {"_deep.py": "BASE = 2\n"})
    assert Code(tmp_path / "fedshift").digest(frozenset({"lab2.half"})) != before


def test_digests_of_this_package_do_not_see_modules_beside_it() -> None:
    assert not Code(Path(digest.__file__).parents[1]).sources.followed("numpy", "fedshift.core.rng")
