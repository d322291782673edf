"""The hint of `fedshift check` about a table of own images that seems to have been moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedshift import study
from fedshift.cli.data import moved
from fedshift.datasets.own_images import TABLE
from fedshift.io import checksums
from fedshift.io.paths import Paths, memory
from fedshift.io.text import write_json


def plan(root: Path, **dataset: Any) -> study.Plan:
    declared = {
        "title": "t",
        "dataset": {"name": "own_images", **dataset},
        "partition": {"internal": ["A"], "external": ["B"]},
        "model": "mlp",
        "runs": [{"algorithm": "fedavg"}],
        "inferences": ["source"],
    }
    (root / "s.yaml").write_text(yaml.safe_dump(declared))
    return study.load(root / "s.yaml", "paper")


def test_a_table_with_the_rows_of_one_that_has_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checksums, "SETTLED", -(10**12))
    paths, new = Paths(tmp_path), tmp_path / "new.csv"
    new.write_text("path,label,site\na.png,0,A\n")
    assert list(moved(plan(tmp_path, table="new.csv"), paths)) == [], "nothing has results"
    (earlier,) = plan(tmp_path, table="old.csv").data
    write_json(paths.data_files(earlier).card, {"dataset": {"table": "old.csv"}})
    checksums.contents({TABLE: new}, memory(paths.data(earlier)))
    (hint,) = moved(plan(tmp_path, table="new.csv"), paths)
    assert hint == "  warning: old.csv has the same rows, and results: was it moved? See moved_from"
    assert list(moved(plan(tmp_path, table="new.csv", moved_from="old.csv"), paths)) == []
    for written in ("old.csv", "./old.csv", str(tmp_path / "old.csv")):
        (tmp_path / "old.csv").write_text(new.read_text())
        assert list(moved(plan(tmp_path, table=written, size=32), paths)) == [], "another size, the same table"
    new.write_text("path,label,site\na.png,1,A\n")
    assert list(moved(plan(tmp_path, table="new.csv"), paths)) == [], "other rows"
