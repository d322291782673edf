"""Copies at the Hugging Face Hub: addresses, shards in bounded memory, and damage that is named."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_server import FileServer, serving
from PIL import Image

from fedshift.core.errors import UserError
from fedshift.io import download
from fedshift.io.download import Source, fetch
from fedshift.io.origins import Hub, class_names, rows

COPY = Hub("owner/name", "0123abc")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "BACKOFF", 0)
    with serving() as running:
        yield running


def png(mode: str = "RGBA", seed: int = 0) -> bytes:
    shape = (9, 7, len(mode))
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8), mode).save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, images: list[bytes], group: int = 3, **options: object) -> Path:
    table = pa.table(
        {"image": [{"bytes": b, "path": f"{k}.png"} for k, b in enumerate(images)], "label": range(len(images))}
    )
    head = {"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(head)})
    pq.write_table(table, path, row_group_size=group, **options)
    return path


def test_addresses_hold_the_revision_and_the_names_of_the_hub() -> None:
    first, last = COPY.shards("validation", 2)
    assert first.url == (
        "https://huggingface.co/datasets/owner/name/resolve/0123abc/data/validation-00000-of-00002.parquet"
    )
    assert last.filename == "validation-00001-of-00002.parquet"
    known = COPY.source("data/x.parquet", size=7, sha256="0" * 64)
    assert (known.filename, known.size, known.sha256) == ("x.parquet", 7, "0" * 64)


def test_another_endpoint_changes_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example/hub/")
    assert COPY.source("a.parquet").url == "http://mirror.example/hub/datasets/owner/name/resolve/0123abc/a.parquet"
    monkeypatch.setenv("HF_ENDPOINT", "mirror.example")
    with pytest.raises(UserError, match=r"HF_ENDPOINT: 'mirror.example' is not the address of a server"):
        COPY.source("a.parquet")


def test_rows_come_in_their_order_with_their_bytes(tmp_path: Path) -> None:
    images = [png(seed=k) for k in range(8)]
    shard = write(tmp_path / "x.parquet", images)
    assert pq.ParquetFile(shard).num_row_groups == 3
    read = list(rows(shard, ["label", "image"]))
    assert [row["label"] for row in read] == list(range(8))
    assert [row["image"] for row in read] == [{"bytes": b, "path": f"{k}.png"} for k, b in enumerate(images)]
    assert class_names(shard, "label") == ["no", "yes"]


def test_a_damaged_row_group_is_named(tmp_path: Path) -> None:
    shard = write(
        tmp_path / "x.parquet", [png(seed=k) for k in range(9)], use_dictionary=False, write_page_checksum=True
    )
    content = bytearray(shard.read_bytes())
    group = pq.ParquetFile(shard).metadata.row_group(1).column(0)
    at = group.data_page_offset + group.total_compressed_size // 2
    content[at] ^= 0xFF
    shard.write_bytes(content)
    reader = rows(shard, ["image"])
    for _ in range(3):
        next(reader)
    with pytest.raises(UserError, match=r"x\.parquet: row group 1 cannot be read: .*delete it and start again") as seen:
        next(reader)
    assert len(str(seen.value).splitlines()) == 1


def test_no_shard_half_a_shard_and_a_lacking_column(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.parquet: no such file"):
        next(rows(tmp_path / "x.parquet", ["image"]))
    shard = write(tmp_path / "x.parquet", [png()])
    with pytest.raises(UserError, match="no column 'center': it has image, label"):
        next(rows(shard, ["image", "center"]))
    shard.write_bytes(shard.read_bytes()[:200])
    with pytest.raises(UserError, match=r"x\.parquet: cannot be read"):
        next(rows(shard, ["image"]))


def test_the_checksum_that_the_hub_tells_is_compared(server: FileServer, tmp_path: Path) -> None:
    """Its answer leads to a store, and names the SHA-256 of the file on the way."""
    content = b"PAR1" + bytes(5000)
    server.files["/store"] = content
    server.redirects["/x"] = ("/store", {"X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"'})
    source = Source(f"{server.url}/x", "x.parquet")
    server.faults["/store"] = ["half"]
    assert fetch(source, tmp_path / "1", None).read_bytes() == content
    server.redirects["/x"] = ("/store", {"X-Linked-ETag": f'"{"0" * 64}"'})
    with pytest.raises(UserError, match=r"x\.parquet: sha256 is .*, expected 0000.*the download was deleted"):
        fetch(source, tmp_path / "2", None)
    assert list((tmp_path / "2").iterdir()) == []


def test_every_request_has_a_name_of_its_own(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/x"] = b"content"
    fetch(Source(f"{server.url}/x", "x.bin"), tmp_path, None)
    monkeypatch.setenv("FEDSHIFT_CONTACT", "mailto:me@example.org")
    fetch(Source(f"{server.url}/x", "y.bin"), tmp_path, None)
    first, second = (headers["user-agent"] for _, _, headers in server.seen)
    assert first.startswith("fedshift (")
    assert "requests" not in first
    assert second.endswith("; mailto:me@example.org)")


def test_memory_does_not_grow_with_the_row_group(tmp_path: Path) -> None:
    """Of one row group of 48 MB in pages of 1.5 MB, Arrow holds less than a third at any time."""
    noise = np.random.default_rng(0).bytes(96_000)
    images = [noise[k:] + noise[:k] for k in range(500)]
    shard = write(tmp_path / "x.parquet", images, 500, use_dictionary=False, write_batch_size=16)
    before, total, most = pa.total_allocated_bytes(), 0, 0
    for row in rows(shard, ["image"]):
        total, most = total + len(row["image"]["bytes"]), max(most, pa.total_allocated_bytes() - before)
    assert total == 48_000_000
    assert most < 16_000_000
