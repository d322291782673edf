"""Digests of code that lies outside of the package: what counts in a plug-in's folder, package or module."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from fedshift.core import digest, registry
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


def digest_of(folder: Path, module: str) -> str:
    """The digest of a module and the `fedshift` in a folder."""
    return Code(folder / "fedshift").digest(frozenset({module}))


@pytest.fixture
def made(tmp_path: Path) -> Writer:
    """Return the digest of a module of a folder of plug-ins, with some of its files, or of fedshift's, changed."""
    write(tmp_path / "fedshift", FEDSHIFT)
    write(tmp_path / "plugins", LAB)
    name = registry._package(tmp_path / "plugins")

    def made_of(module: str = "half", fedshift: dict[str, str] | None = None, **files: str) -> str:
        write(tmp_path / "fedshift", fedshift or {})
        write(tmp_path / "plugins", {f"{file}.py": text for file, text in files.items()})
        return digest_of(tmp_path, f"{name}.{module}")

    return made_of


@pytest.mark.parametrize(
    "files",
    [
        {"half": HALF.replace("  # half", "  # a comment")},
        {"half": HALF.replace("Half of it.", "Other words.").replace("Go half", "Go a part of")},
        {"unused": "x = 2\n"},
        {"fedshift": {"core/errors.py": "class UserError(Exception):\n    pass\n"}},
    ],
    ids=["comment", "docstring", "unused file", "infrastructure"],
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


def test_a_star_imports_a_module(made: Writer) -> None:
    star = made(half=HALF.replace("import SHARE", "import *"))
    assert star != made(_share="SHARE = 0.4\n")


def test_a_plug_in_may_have_the_name_of_a_folder_of_fedshift(made: Writer) -> None:
    assert made("core") != made("core", _share="SHARE = 0.4\n")


def test_neither_the_folder_nor_the_package_counts(
    made: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same code in another folder, and in a package on the path."""
    inside = made()
    write(tmp_path / "elsewhere", LAB)
    write(tmp_path / "path" / "lab", {**LAB, "__init__.py": ""})
    monkeypatch.syspath_prepend(tmp_path / "path")
    importlib.invalidate_caches()
    for module in (f"{registry._package(tmp_path / 'elsewhere')}.half", "lab.half"):
        assert digest_of(tmp_path, module) == inside, module


def test_modules_beside_a_plug_in_count(made: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path / "path",
        {name: text.replace("from . ", "").replace("from ._", "from _") for name, text in LAB.items()},
    )
    monkeypatch.syspath_prepend(tmp_path / "path")
    importlib.invalidate_caches()
    before = digest_of(tmp_path, "half")
    write(tmp_path / "path", {"unused.py": "x = 2\n"})
    assert digest_of(tmp_path, "half") == before
    write(tmp_path / "path", {"_deep.py": "BASE = 2\n"})
    assert digest_of(tmp_path, "half") != before


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
    before = digest_of(tmp_path, "lab2.half")
    write(site, {"some_library.py": "def f(x):\n    return 2 * x\n"})
    assert digest_of(tmp_path, "lab2.half") == before
    write(site / "lab2", {"_deep.py": "BASE = 2\n"})
    assert digest_of(tmp_path, "lab2.half") != before


def test_digests_of_this_package_do_not_see_modules_beside_it() -> None:
    modules = Code(Path(digest.__file__).parents[1]).modules("fedshift.core.rng")
    assert {name.partition(".")[0] for name in modules} == {"fedshift"}
