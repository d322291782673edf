"""What files say they were written for, and secrets for pseudonyms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from fedshift.core.errors import UserError
from fedshift.hospitals.rows import drawn
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


def test_a_secret_that_was_cut_short_hides_nobody(tmp_path: Path) -> None:
    """A secret may be empty where a disk was full: anybody could then make the pseudonyms."""
    for short in (b"", b" \n" * 40, b"0123456789abcdef"):
        (tmp_path / "key").write_bytes(short)
        with pytest.raises(UserError, match="has fewer than 32 characters, too few for a secret; move it away"):
            drawn("patient", pd.Series(["a", "b"]), tmp_path / "key")


def test_a_secret_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    key, other = tmp_path / "new" / "key", tmp_path / "other"
    write = (
        "import resource, signal, sys; from pathlib import Path; from fedshift.io import identity;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20));"
        "identity.kept_secret(Path(sys.argv[1]))"
    )
    run = subprocess.run([sys.executable, "-B", "-c", write, key], capture_output=True, text=True, check=False)
    assert "File too large" in run.stderr and not key.exists()
    secret = identity.kept_secret(key)
    assert len(secret) == 64 and secret != identity.kept_secret(other)
    assert identity.kept_secret(key) == secret
