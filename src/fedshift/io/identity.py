"""What files say of themselves: the id of the run, partition or data that they were written for, and of whom they are.

Checksums detect damage, not files that were exchanged together with their checksums.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..core import digest
from ..core.errors import UserError
from .checksums import checksum_of
from .paths import RunFiles
from .text import read_json, readable


def stated(path: Path) -> dict[str, Any]:
    """Return what a file states about itself: the attributes of a Parquet table, the metadata of safetensors, or JSON.

    Empty for other files. Only the head of a file is read, but all of a JSON. Raises UserError where it is unreadable.
    """
    found: Any = {}
    if path.suffix == ".json":
        found = read_json(path)
        if path.name == RunFiles(path.parent).spec.name:
            found = {"spec": digest.of(found)}
    elif path.suffix == ".parquet":
        import pyarrow.parquet as pq

        with readable(path, "table"):
            metadata = pq.read_schema(path).metadata or {}
            found = json.loads(metadata.get(b"pandas", b"{}")).get("attributes")
    elif path.suffix == ".safetensors":
        with readable(path, "safetensors"), path.open("rb") as file:
            found = json.loads(file.read(int.from_bytes(file.read(8), "little"))).get("__metadata__")
    return found if isinstance(found, dict) else {}


STATING = (".json", ".parquet", ".safetensors")
"""Endings of the files that state something, where the rule that writes them says what; see `planning.files`."""


def silent(path: Path, ids: Iterable[str]) -> bool:
    """Return whether a file states none of some ids, although files of its kind do. Raises UserError as `stated`."""
    return path.suffix in STATING and bool(ids) and not set(ids) & stated(path).keys()


def differs(path: Path, **ids: str) -> str:
    """Return how a file states other ids than these: a few words, or "" where it does not.

    A file that states nothing of the kind is taken as it is: an earlier version wrote it.
    """
    found = stated(path)
    for name, expected in ids.items():
        if found.get(name, expected) != expected:
            if name in ("network", "spec"):
                return f"was made with another {name} than that of its run"
            return f"was written for {name} {found[name]}, and lies in the place of {name} {expected}"
    return ""


def require(path: Path, **ids: str) -> None:
    """Raise UserError for a file that states other ids than these."""
    if problem := differs(path, **ids):
        raise UserError(path, problem, "remove it; the same call of Snakemake makes it again")


def of_run(files: RunFiles) -> dict[str, str]:
    """Return what the files of a training state: the run's id, and in the manifest a digest of its spec."""
    return {"run": files.folder.name, "spec": digest.of(read_json(files.spec))}


def of_predictions(files: RunFiles, inferences: Iterable[str]) -> dict[str, str]:
    """Return what predictions of a run state: its id, the ids of the inferences, and checksums of the tensors.

    Without checksums where none were recorded.
    """
    ids = {"run": files.folder.name, "inference": " ".join(inferences)}
    sums = [checksum_of(file) for file in (files.model, files.clients)]
    return ids | {"network": " ".join(sums)} if all(sums) else ids


def require_own(out: Path, marker: str) -> None:
    """Raise UserError if `out` is a file, or a folder that contains files not listed in its file `marker`."""
    if not out.exists():
        return
    written = {marker}
    if (out / marker).is_file():
        content = read_json(out / marker)
        if isinstance(content, dict) and isinstance(content.get("files"), list):
            written.update(map(str, content["files"]))
    names = [path.relative_to(out).as_posix() for path in out.rglob("*")] if out.is_dir() else [out.name]
    for name in names:
        if name not in written:
            problem = f"holds {name}, which fedshift did not write there"
            raise UserError(out, problem, "choose another folder with --out, or remove it yourself")
