"""Plug-ins from outside: files in a folder of the project, paths of classes, and what goes wrong with them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedshift.core import registry
from fedshift.core.errors import UserError

DAMPED = '''"""A server that goes a part of the way."""

from fedshift.algorithms import Algorithm

from ._share import SHARE


class Damped(Algorithm):
    """A part of the mean update."""

    def update(self, server, mean):
        server.shared.lerp_(mean["shared"], SHARE)
'''
SPREAD = '''"""A metric."""

from fedshift.metrics import Metric


class Spread(Metric):
    """The number of samples."""

    title = "Spread"
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of two plug-ins and a helper in a project, which is the current folder. Not known to the registry."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_added", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    place = tmp_path / "plugins"
    place.mkdir()
    for name, text in {"damped": DAMPED, "spread": SPREAD, "_share": "SHARE = 0.5\n"}.items():
        (place / f"{name}.py").write_text(text, encoding="utf-8")
    registry.forget()
    importlib.invalidate_caches()
    yield place
    for name in [name for name in sys.modules if name.startswith(("fedshift_plugins", "lab"))]:
        del sys.modules[name]
    monkeypatch.undo()
    registry.forget()


def test_files_of_a_folder_are_plug_ins_of_any_kind(folder: Path) -> None:
    registry.add_folder(Path("plugins"))
    damped = registry.get("algorithm", "damped")
    assert (damped.name, damped.kind, damped().identity()["name"]) == ("damped", "algorithm", "damped")
    assert registry.build("metric", "spread").title == "Spread"
    assert registry.origins("algorithm")["damped"] == "plugins/damped.py"
    assert registry.origins("algorithm")["fedavg"] == "built in"
    assert "damped" in registry.names("algorithm")
    assert "damped" not in registry.discover("metric")
    registry.add_folder(folder)  # the same folder by another name
    assert registry.get("algorithm", "damped") is damped
    assert str(folder) not in sys.path


def test_two_folders_may_have_helpers_of_one_name(folder: Path) -> None:
    other = folder.with_name("others")
    other.mkdir()
    (other / "_share.py").write_text("SHARE = 0.25\n", encoding="utf-8")
    (other / "slow.py").write_text(DAMPED.replace("Damped", "Slow"), encoding="utf-8")
    for place in (folder, other):
        registry.add_folder(place)
    shares = [sys.modules[registry.get("algorithm", name).__module__].SHARE for name in ("damped", "slow")]
    assert shares == [0.5, 0.25]


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        (
            "fedavg",
            DAMPED,
            "plugins/fedavg.py: there is another algorithm 'fedavg': fedshift.algorithms.fedavg (built in)",
        ),
        (
            "manifest",
            'from fedshift.datasets import Dataset\n\n\nclass Manifest(Dataset):\n    """Images."""\n',
            "plugins/manifest.py: there is another dataset 'manifest': fedshift.datasets.own_images (built in); rename",
        ),
        ("wrong", "def f(:\n", "plugins/wrong.py, line 1: cannot be imported: SyntaxError: invalid syntax; "),
        (
            "wrong",
            "\nimport nothing_there\n",
            "plugins/wrong.py, line 2: cannot be imported: ModuleNotFoundError: No module named 'nothing_there'; ",
        ),
        (
            "wrong",
            "from _share import SHARE\n",
            "plugins/wrong.py, line 1: cannot be imported: ModuleNotFoundError: No module named '_share'; "
            "_share.py lies beside it: write `from ._share import ...`",
        ),
        ("wrong", "x = 1\n", "plugins/wrong.py: holds 0 plug-ins, and must hold exactly one; begin the name of a help"),
        ("wrong", DAMPED + SPREAD, "plugins/wrong.py: holds 2 plug-ins, and must hold exactly one; give each its own"),
        ("my-own", DAMPED, "plugins/my-own.py: cannot name a plug-in; use letters, digits and underscores"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(folder: Path, name: str, text: str, error: str) -> None:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    registry.add_folder(folder)
    with pytest.raises(UserError) as caught:
        registry.get("dataset" if name == "manifest" else "algorithm", name)
    assert str(caught.value).startswith(error)
    assert "\n" not in str(caught.value)


def test_a_file_beside_a_plug_in_that_is_named_is_not_imported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "half.py").write_text("def broken(:\n", encoding="utf-8")
    (folder / "loud.py").write_text("print('imported')\n", encoding="utf-8")
    (folder / "accuracy.py").write_text(SPREAD, encoding="utf-8")
    registry.add_folder(folder)
    assert registry.get("algorithm", "damped").name == "damped"
    assert registry.build("algorithm", "fedavg").name == "fedavg"
    with pytest.raises(UserError, match="there is another metric 'accuracy'"):
        registry.get("metric", "accuracy")
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "")


def test_each_wrong_file_is_one_warning_where_all_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text("x = 1\n", encoding="utf-8")
    (folder / "fedavg.py").write_text(DAMPED, encoding="utf-8")
    registry.add_folder(folder)
    for kind in registry.KINDS:
        assert registry.discover(kind)
    assert "damped" in registry.discover("algorithm")
    warnings = capsys.readouterr().err.splitlines()
    assert sorted(line.partition(":")[2].partition(":")[0].strip() for line in warnings) == [
        "plugins/fedavg.py",
        "plugins/one.py",
        "plugins/two.py",
    ]


def test_a_folder_that_is_not_there(folder: Path) -> None:
    with pytest.raises(UserError, match="plugins: no such folder: nowhere; "):
        registry.add_folder(Path("nowhere"))


def test_a_class_is_named_by_its_path(folder: Path) -> None:
    """In a module of the project's folder, which need not be on the path: its name can be part of ids and paths."""
    Path("lab").mkdir()
    Path("lab", "half.py").write_text(DAMPED.replace("from ._share import SHARE", "SHARE = 0.5"), encoding="utf-8")
    plugin = registry.build("algorithm", {"name": "lab.half:Damped"})
    assert plugin.name == plugin.spec()["name"] == plugin.identity()["name"] == "lab-half--Damped"
    assert registry.build("algorithm", plugin.spec()) == plugin
    assert registry.get("algorithm", "fedshift.algorithms.fedavg:FedAvg") is registry.get("algorithm", "fedavg")
    assert registry.get("algorithm", "fedavg").name == "fedavg"
    assert sys.path[-1] == str(Path.cwd()), "what is installed comes first"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("lab:Half", "there is no module 'lab'; modules are looked for among installed packages and in the project's"),
        ("json.lab:Half", "there is no module 'json.lab'; "),
        ("json:Half", "json has no 'Half'; known: none"),
        ("fedshift.algorithms.fedavg:Fedavg", "fedshift.algorithms.fedavg has no 'Fedavg'; did you mean 'FedAvg'?"),
        ("fedshift.metrics.auc:Auc", "fedshift.metrics.auc has no 'Auc'"),
        ("json:JSONDecoder", "'json:JSONDecoder' is another class, and no plug-in of the kind algorithm"),
        ("fedshift.models.mlp:Mlp", "fedshift.models.mlp has no 'Mlp'"),
        ("fedshift.metrics._classes:Accuracy", "is a plug-in of the kind metric, and no plug-in of the kind algorithm"),
        (":Half", "is not the path of a class; write module:Class"),
        ("lab:", "is not the path of a class; write module:Class"),
        ("../lab:Half", "is not the path of a class; write module:Class"),
    ],
)
def test_a_path_that_leads_to_no_plug_in_of_the_kind(folder: Path, path: str, error: str) -> None:
    with pytest.raises(UserError) as caught:
        registry.build("algorithm", path, "study.yaml.algorithm")
    assert str(caught.value).startswith("study.yaml.algorithm: ")
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", registry.KINDS)
def test_the_base_class_of_a_kind_is_imported_from_its_package(kind: str) -> None:
    package = importlib.import_module(f"fedshift.{kind}s")
    base = getattr(package, kind.capitalize())
    assert base.kind == kind
    assert all(issubclass(cls, base) for cls in registry.discover(kind).values())
