"""A site whose file of an algorithm differs from the server's is refused, with one line on both sides."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from served_sites import Hospitals, trained
from three_sites import STUDY, write

from fedshift import study
from fedshift.core import digest, registry
from fedshift.core.errors import UserError

DAMPED = '''"""A server that goes a part of the way."""

from fedshift.algorithms import Algorithm


class Damped(Algorithm):
    """A part of the mean update."""

    def update(self, server, mean):
        server.shared.lerp_(mean["shared"], 0.5)
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of an algorithm in a folder of plug-ins, known to the registry until the test ends."""
    monkeypatch.setattr(registry, "_added", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "plugins").mkdir()
    file = tmp_path / "plugins" / "damped.py"
    file.write_text(DAMPED, encoding="utf-8")
    importlib.invalidate_caches()
    registry.add_folder(file.parent)
    yield file
    for name in [name for name in sys.modules if name.startswith("fedshift_plugins")]:
        del sys.modules[name]
    monkeypatch.undo()
    registry.forget()
    digest._installed.cache_clear()


@pytest.mark.parametrize(("old", "new", "differs"), [("0.5", "0.25", True), ("A part of", "Half of", False)])
def test_another_file_of_the_algorithm_is_refused_before_the_first_round(
    old: str, new: str, differs: bool, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "town"
    runs = [{"algorithm": "damped", "bn": "aggregated"}]
    write(root, STUDY | {"model": "mlp", "runs": runs})
    hospitals = Hospitals(root)
    # The server has another version of the file than the sites had when they started.
    file.write_text(DAMPED.replace(old, new), encoding="utf-8")
    digest._installed.cache_clear()
    with contextlib.chdir(root / "server"):
        (run,) = study.load(Path("study.yaml"), "mini").runs.values()
    if not differs:
        assert not trained(run, hospitals).missing, "a docstring is no code"
        return
    with pytest.raises(UserError) as raised:
        trained(run, hospitals)
    line = "the coordinator has another specification or code than site 'north'; give both the same study, and install"
    at_server, at_site = str(raised.value).splitlines(), capsys.readouterr().err.splitlines()
    assert len(at_server) == 3, "a line for each site"
    assert line in at_server[1]
    assert next(said for said in at_site if line in said).startswith("refused join: ")
    assert not [said for said in at_site if "answered" in said], "nothing has left any site"
