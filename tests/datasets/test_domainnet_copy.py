"""DomainNet's ten classes from Parquet shards in the layout of the copy: the same images as from the archives."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedshift.core.errors import UserError, UserErrors
from fedshift.datasets import domainnet10 as copy
from fedshift.datasets.domainnet10 import NAMES, SITES, DomainNet10
from fedshift.io.text import read_json
from fedshift.jobs import prepare
from fedshift.study.run import Data

CLASSES = [*NAMES, "aircraft carrier"]  # one class that is not read
DATA = Data(dataset=DomainNet10(size=16), synthetic=False)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw files as the archives leave them: domain/domain/class/image."""
    root, rng = tmp_path_factory.mktemp("archives"), np.random.default_rng(0)
    for site in SITES:
        for k, name in enumerate(CLASSES):
            folder = root / site / site / name.replace(" ", "_")
            folder.mkdir(parents=True)
            for n in range(2):
                ending = "png" if site == "quickdraw" else "jpg"
                pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{site}_{k:03}_{n:06}.{ending}")
    return root


def write_shards(mirror: Path, archives: Path, monkeypatch: pytest.MonkeyPatch, prefix: str = "") -> None:
    """Write all images into the four shards, in turn, and let their checksums be the published ones."""
    (mirror / "data").mkdir(parents=True)
    files = sorted(archives.rglob("*.*g"))
    names = sorted(CLASSES)
    features = {"label": {"names": names}, "domain": {"names": list(SITES)}}
    shards = {}
    for k, shard in enumerate(copy.SHARDS):
        part = files[k::4]
        content = {
            "image": [{"bytes": f.read_bytes(), "path": prefix + f.name} for f in part],
            "domain": [SITES.index(f.parts[-3]) for f in part],
            "label": [
                names.index(f.parts[-2].replace("_c", " c") if "craft" in f.parts[-2] else f.parts[-2]) for f in part
            ],
        }
        table = pa.table(content).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        path = mirror / "data" / f"{shard}.parquet"
        pq.write_table(table, path, row_group_size=10)
        shards[shard] = (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(copy, "SHARDS", shards)
    monkeypatch.setattr(copy, "IMAGES", dict.fromkeys(SITES, 2 * len(CLASSES)))


def test_the_copy_gives_the_same_images_as_the_archives(
    archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, raw = tmp_path / "mirror", tmp_path / "raw"
    write_shards(mirror, archives, monkeypatch)
    prepare.obtain(DATA, raw, mirror)
    ours, theirs = DATA.dataset.open(raw), DATA.dataset.open(archives)
    pd.testing.assert_frame_equal(ours.samples, theirs.samples)
    for i in range(len(ours.samples)):
        np.testing.assert_array_equal(ours.image(i), theirs.image(i))
    received = read_json(raw / "source.json")["received"]
    assert received["origin"].endswith(
        f"(https://huggingface.co/datasets/wltjr1007/DomainNet/tree/{copy.HUB.revision})"
    )
    assert received["verified"][0] == "published checksum of 4 files"
    assert sorted(p.name for p in raw.iterdir()) == sorted([*SITES, "source.json"])
    shutil.rmtree(mirror)
    prepare.obtain(DATA, raw, None)  # again: it is there
    assert read_json(raw / "source.json")["received"] == received


def test_a_copy_without_the_names_of_the_archives_is_refused(
    archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "mirror", archives, monkeypatch, prefix="x_")
    with pytest.raises(UserError, match=r"row \d+: its image is named 'x_clipart_.*unlike any in DomainNet's archives"):
        prepare.obtain(DATA, tmp_path / "raw", tmp_path / "mirror")


def test_wrong_counts_are_a_line_each(archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path / "mirror", archives, monkeypatch)
    monkeypatch.setattr(copy, "IMAGES", dict.fromkeys(SITES, 22) | {"real": 23})
    with pytest.raises(UserErrors) as caught:
        prepare.obtain(DATA, tmp_path / "raw", tmp_path / "mirror")
    assert [error.what for error in caught.value.errors] == ["22 images of real, expected 23"]
    assert not (tmp_path / "raw" / "real").exists()


def test_the_published_numbers_agree_with_those_of_the_copy() -> None:
    assert sum(copy.IMAGES.values()) == 176_743 + 409_832
    assert sum(size for size, _ in copy.SHARDS.values()) == 18_521_436_207
    assert set(copy.IMAGES) == set(SITES)
