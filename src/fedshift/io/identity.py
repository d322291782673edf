"""Identities: what files say of themselves, and names that tell nothing about a person.

A file states the id of the run, partition or data that it was written for. Checksums detect damage, not files that were
exchanged together with their checksums. Pseudonyms are keyed digests, which only the holder of the key can make again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core import digest
from ..core.errors import UserError
from .checksums import checksum_of
from .disk import disk_errors, write_private
from .paths import RunFiles
from .text import read_json, readable, require_regular


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
"""Endings of the files that state something, where the rule that writes them says what; see `planning.call`."""


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
    """Return what predictions state: ids of run and inferences, and, where recorded, the checksums of the tensors."""
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


DIGITS = 12
SHORTEST = 32
"""Characters that a key must have."""


@dataclass(frozen=True)
class Pseudonyms:
    """Digests of names under a secret, without which one could try all numbers of patients to find the right one."""

    secret: bytes = field(repr=False)

    @classmethod
    def read(cls, key: Path) -> Pseudonyms:
        """Return the digests under the secret in a file, which may be made. Raises UserError for a short secret."""
        require_regular(key)
        if not key.exists():
            with disk_errors(key):
                key.parent.mkdir(parents=True, exist_ok=True)
                write_private(key, f"{secrets.token_hex(32)}\n".encode())
        secret = key.read_bytes().strip()
        if len(secret) < SHORTEST:
            problem = f"has fewer than {SHORTEST} characters, too few for a secret"
            raise UserError(key, problem, "name a file that is not there: it will be made")
        return cls(secret)

    def __call__(self, kind: str, name: str) -> str:
        """Return the digest of a name of some kind, 12 hex digits."""
        return hmac.new(self.secret, f"{kind}\0{name}".encode(), hashlib.sha256).hexdigest()[:DIGITS]
