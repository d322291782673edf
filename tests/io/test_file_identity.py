"""What files say they were written for."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from fedshift.core.errors import UserError
from fedshift.io import identity
from fedshift.io.arrays import write_tensors
from fedshift.io.tables import write_table
from fedshift.io.text import write_json


@pytest.fixture(params=["a.parquet", "a.safetensors", "a.json"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of each form that states its run."""
    path = tmp_path / request.param
    if path.suffix == ".parquet":
        table = pd.DataFrame({"x": [1.0]})
        table.attrs["run"] = "mine"
        write_table(path, table)
    elif path.suffix == ".safetensors":
        write_tensors(path, {"x": torch.zeros(2)}, {"run": "mine"})
    else:
        write_json(path, {"run": "mine"})
    return path


def test_an_id_is_compared_where_the_file_states_one(file: Path) -> None:
    assert identity.differs(file, run="mine", partition="not stated") == ""
    identity.require(file, run="mine")
    with pytest.raises(UserError, match="was written for run mine, and lies in the place of run other; remove it"):
        identity.require(file, run="other")


def test_a_file_of_an_earlier_version_or_of_another_form_states_nothing(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", pd.DataFrame({"x": [1.0]}))
    write_json(tmp_path / "l.json", [1])
    write_tensors(tmp_path / "m.safetensors", {}, {})
    (tmp_path / "p.svg").write_text("<svg/>")
    for name in ("t.parquet", "l.json", "m.safetensors", "p.svg"):
        assert identity.differs(tmp_path / name, run="other") == ""


@pytest.mark.parametrize("name", ["a.parquet", "a.safetensors", "a.json"])
def test_an_unreadable_file_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff" * 20)
    with pytest.raises(UserError) as caught:
        identity.stated(tmp_path / name)
    assert name in caught.value.where
    assert "\n" not in str(caught.value)
