"""`fedshift test-plugin FILE`: the contract on one file, which may lie anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedshift import cli
from fedshift.core import registry

GOOD = '''"""A metric."""

from typing import ClassVar

from fedshift.metrics import Metric


class Right(Metric):
    """The share of right predictions."""

    title: ClassVar[str] = "Right"
    percent: ClassVar[bool] = True

    def value(self, label, probability):
        return float((probability.argmax(1) == label).mean())
'''
BAD = '''"""A transform."""

from typing import ClassVar

import torch

from fedshift.transforms import Transform


class Noise(Transform):
    """Noise that is drawn from nowhere."""

    when: ClassVar[str] = "train"
    strength: float = 1.0

    def apply(self, x, rng):
        if len(x) == 1:
            raise KeyError("one image")
        return x + torch.rand(x.shape)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_added", [])
    registry.forget()
    return tmp_path


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    registry.forget()


def checked(file: Path, capsys: pytest.CaptureFixture[str], code: int) -> dict[str, str]:
    """Return the words after each check by its title, "" for one that passed; the last line under `last`."""
    assert cli.main(["test-plugin", str(file)]) == code
    out, err = capsys.readouterr()
    assert err == ""
    first, *lines, last = out.splitlines()
    results = {"first": first, "last": last}
    for line in lines:
        state, _, rest = line.partition("  ")
        before, again, title_of_another = rest.partition(": as in ")
        title, _, words = rest.rpartition(": ") if state == "failed" else (rest, "", "")
        if again:
            title, words = before, f"as in {title_of_another}"
        assert (state == "passed") == (not words)
        results[title] = words
    return results


def test_a_good_plug_in_passes_every_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "right.py").write_text(GOOD, encoding="utf-8")
    results = checked(folder / "right.py", capsys, 0)
    assert results["first"] == "metric right: The share of right predictions."
    assert results["last"] == f"{len(results) - 2} of {len(results) - 2} checks passed"
    assert {"it is built from its name", "right predictions score better than wrong ones"} <= set(results)


def test_a_file_of_the_package_is_checked_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert "passed" in checked(Path(registry.__file__).parents[1] / "metrics" / "auc.py", capsys, 0)["last"]


def test_each_requirement_that_is_broken_is_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "noise.py").write_text(BAD, encoding="utf-8")
    results = checked(folder / "noise.py", capsys, 1)
    failed = {title: words for title, words in results.items() if words and title not in ("first", "last")}
    assert len(failed) == 7
    assert failed["its class and settings are described: settings need Field(description=...)"] == "['strength']"
    light = next(title for title in failed if title.startswith("its file holds one public class"))
    assert light.endswith("or under TYPE_CHECKING: every job imports the file")
    assert failed[light] == "['torch']"
    drawn = "it keeps the dtype, gives the stated shape, and draws from the given generator alone"
    own = next(
        title for title in failed if title.startswith(f"{drawn}: (4, 3, 8, 8): it changes torch's global generator")
    )
    assert failed[own].startswith("draw from the generator that is given")
    for title in (
        f"{drawn}: (3, 1, 6, 6)",
        "it changes images",
        "its result for an image depends on that image alone",
    ):
        assert failed[title] == f"as in {f'{drawn}: (4, 3, 8, 8)'!r}"
    assert failed[f"{drawn}: (1, 3, 8, 8): KeyError"] == "'one image' (noise.py, line 18)"
    total = len(results) - 2
    assert results["last"] == f"{total - 7} of {total} checks passed"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "nothing.py: no such file; give the file of one plug-in"),
        ("x = 1\n", "nothing.py: holds 0 plug-ins, and must hold exactly one; begin the name of a"),
        ("import nowhere\n", "nothing.py, line 1: cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        (GOOD.replace("Right(Metric)", "Metric(Metric)"), "auc.py: there is another metric 'auc'"),
    ],
    ids=["no file", "no plug-in", "no import", "a name that is taken"],
)
def test_a_file_without_a_plug_in_is_one_line(
    folder: Path, text: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / ("auc.py" if words.startswith("auc") else "nothing.py")
    if text is not None:
        file.write_text(text, encoding="utf-8")
    assert cli.main(["test-plugin", file.name]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(words)
    assert (out, err.count("\n")) == ("", 1)
