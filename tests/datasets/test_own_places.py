"""Places and times of own files: what the identity of a dataset and its fingerprint make of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedshift.core import registry
from fedshift.datasets.own_images import OwnImages
from fedshift.io.paths import one_spelling
from fedshift.io.tables import write_table


def own(table: Path | str, **settings: object) -> OwnImages:
    made = registry.build("dataset", {"name": "own_images", "table": str(table), **settings})
    assert isinstance(made, OwnImages)
    return made


def images(folder: Path) -> Path:
    folder.mkdir()
    for n in range(3):
        Image.fromarray(np.full((8, 8, 3), 60 * n, np.uint8)).save(folder / f"{n}.png")
    rows = pd.DataFrame({"path": ["0.png", "1.png", "2.png"], "label": [0, 1, 1], "site": list("AAB")})
    write_table(folder / "table.csv", rows)
    return folder / "table.csv"


def test_a_file_in_the_working_folder_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project" / "images").mkdir(parents=True)
    (tmp_path / "project" / "link").symlink_to("images")
    (tmp_path / "entrance").symlink_to("project")
    (tmp_path / "project" / "far").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path / "project")
    inside = ["images/t.csv", "./images/../images/t.csv", "link/t.csv", tmp_path / "project" / "images" / "t.csv"]
    inside += [tmp_path / "entrance" / "link" / "t.csv", "../project/images/t.csv", "far/project/images/t.csv"]
    assert {one_spelling(Path(path)) for path in inside} == {"images/t.csv"}
    outside = [tmp_path / "t.csv", "../t.csv", f"{tmp_path}/project/../t.csv"]
    assert {one_spelling(Path(path)) for path in outside} == {str(tmp_path / "t.csv")}
    assert one_spelling(Path("far/t.csv")) == "far/t.csv", "the link is part of the project, its end is not"


def test_identities_of_earlier_versions_stay() -> None:
    settings = {"classes": ["negative", "positive"], "archive": None, "url": None, "sha256": None, "size": 96}
    for table in ("images/t.csv", "/data/t.csv"):
        assert own(table).identity() == {"name": "manifest", "table": table, **settings}
    assert own("new/t.csv", moved_from="images/t.csv").identity() == own("images/t.csv").identity()
    assert own("./t.csv", archive="a.tar").identity()["table"] == "t.csv", "a path in an archive has one spelling"


def test_places_and_times_leave_the_fingerprint(tmp_path: Path) -> None:
    table = images(tmp_path / "one")
    before = own(table).fingerprint()
    for file in table.parent.iterdir():
        os.utime(file, (1, 1))
    shutil.copytree(table.parent, tmp_path / "two")
    for other in (table, tmp_path / "two" / "table.csv"):
        assert own(other).fingerprint() == before


@pytest.mark.parametrize("name", ["table.csv", "1.png"])
def test_each_byte_counts_whatever_the_time(tmp_path: Path, name: str) -> None:
    table, memory = images(tmp_path / "one"), tmp_path / "memory.json"
    before, file = own(table).fingerprint(memory), table.with_name(name)
    about, content = file.stat(), file.read_bytes()
    file.write_bytes(content.replace(b"2.png,1,B", b"2.png,1,A") if name == "table.csv" else content[:-1] + b"!")
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert own(table).fingerprint(memory) != before
    file.write_bytes(content)
    assert own(table).fingerprint(memory) == before
    (table.parent / "2.png").unlink()
    assert own(table).fingerprint(memory) != before
