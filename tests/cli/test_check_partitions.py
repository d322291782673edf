"""`fedshift check` on a user's own table: partitions that stand for several, dealt clients, schedules, transforms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from own_images import STUDY
from PIL import Image

from fedshift import cli


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where nothing is prepared."""
    monkeypatch.chdir(tmp_path)


def checked(tmp_path: Path, **changes: Any) -> int:
    """Check a study of 40 images of two sites, 10 of each class at each."""
    lines = ["path,label,site"]
    for i in range(40):
        Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,{i % 2},{('north', 'south')[i // 20]}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    dataset = STUDY["dataset"] | {"table": str(tmp_path / "table.csv")}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(STUDY | {"dataset": dataset} | changes), encoding="utf-8")
    return cli.main(["check", str(tmp_path / "mine.yaml")])


def test_it_counts_what_each_client_gets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal parts of 40 images to two clients, all of which train."""
    partition = {
        "internal": ["p", "q"],
        "deal": {"sites": ["north", "south"]},
        "split": {"train": 1.0, "val": 0, "test": 0},
    }
    assert checked(tmp_path, partition=partition) == 0
    out = capsys.readouterr().out
    assert "  clients p, q: images of north, south dealt to the clients in equal parts\n" in out
    assert out.count("(client): 20 images, patients unknown; ") == 2
    assert "north (internal): 20 images" in out


def test_it_says_how_many_partitions_leave_one_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a schedule by steps too, whose settings are a mapping."""
    partition = {"internal": ["north", "south"], "leave_one_out": True, "split": {"train": 0.6, "val": 0, "test": 0.4}}
    training = STUDY["training"] | {"schedule": "steps", "lr_steps": {2: 0.01}}
    assert checked(tmp_path, partition=partition, training=training) == 0
    out = capsys.readouterr().out
    assert "4 runs" in out, "two algorithms on two partitions"
    assert "  leave one out: 2 partitions, each without one of north, south\n" in out


def test_it_says_how_many_folds_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partition = {"internal": ["north", "south"], "split": {"folds": 5, "val": 0}}
    training = STUDY["training"] | {"select": "last"}
    assert checked(tmp_path, partition=partition, training=training) == 0
    out = capsys.readouterr().out
    assert "10 runs" in out, "two algorithms on five folds"
    assert "  folds: 5 partitions, each with other patients of the internal sites to test\n" in out


def test_it_refuses_transforms_that_cannot_work_and_too_large_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transforms = [{"name": "monai", "transform": "RandFlp"}, {"name": "monai", "transform": "RandZom"}]
    assert checked(tmp_path, transforms=transforms) == 2
    err = capsys.readouterr().err
    assert "unknown class 'RandFlp' of monai.transforms; did you mean 'RandFlip'?" in err
    assert "unknown class 'RandZom'" in err
    partition = {"internal": ["p", "q"], "deal": {"sites": ["north"], "least": 11}}
    assert checked(tmp_path, partition=partition) == 2
    assert "20 patients or images give no 2 clients of at least 11" in capsys.readouterr().err
