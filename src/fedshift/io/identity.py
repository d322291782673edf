"""Ids that files state about themselves, and pseudonyms, which tell nothing about a person.

A file states the id of the run, partition or data that it was written for. Checksums detect damage, not files that were
exchanged together with their checksums. Pseudonyms are keyed digests, which only the holder of the key can make again.
"""

from __future__ import annotations

import contextlib
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
    """Return what a file states about itself: attributes of a Parquet table, metadata of safetensors, or a JSON.

    Return {} for other files. A JSON is read whole, and of spec.json the digest is returned, under the name spec; of
    other files only the head is read. Raises UserError for an unreadable file.
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
"""Endings of files that may state ids of a run, a partition or data; `planning.call` lists the ids by rule."""


def silent(path: Path, ids: Iterable[str]) -> bool:
    """Return whether a file states none of the named `ids`, such as run, although a file with its ending could.

    Raises UserError for an unreadable file.
    """
    return path.suffix in STATING and bool(ids) and not set(ids) & stated(path).keys()


def differs(path: Path, **ids: str) -> str:
    """Return, in a few words, how the ids that a file states differ from the expected `ids`; "" if they do not.

    An id that the file does not state counts as equal, since an earlier version wrote the file.
    """
    found = stated(path)
    for name, expected in ids.items():
        if found.get(name, expected) != expected:
            if name in ("network", "spec"):
                return f"was made with another {name} than that of its run"
            return f"was written for {name} {found[name]}, and lies in the place of {name} {expected}"
    return ""


def require(path: Path, **ids: str) -> None:
    """Raise UserError if a file states other ids than the expected `ids`, given by name, such as run="3f2a"."""
    if problem := differs(path, **ids):
        raise UserError(path, problem, "remove it; the same call of Snakemake makes it again")


def of_run(files: RunFiles) -> dict[str, str]:
    """Return the ids that the files of a trained run state: the run's id, and in the manifest a digest of its spec."""
    return {"run": files.folder.name, "spec": digest.of(read_json(files.spec))}


def of_predictions(files: RunFiles, inferences: Iterable[str]) -> dict[str, str]:
    """Return the ids that a table of predictions states: of the run and of the `inferences`.

    If checksums of the run's tensors are recorded, they are added as the id of the network.
    """
    ids = {"run": files.folder.name, "inference": " ".join(inferences)}
    sums = [checksum_of(file) for file in (files.model, files.clients)]
    return ids | {"network": " ".join(sums)} if all(sums) else ids


def require_own(out: Path, marker: str) -> None:
    """Raise UserError if `out` is a file, or a folder that contains files not listed in its JSON file `marker`."""
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
"""The least number of characters of a secret for pseudonyms."""


def kept_secret(key: Path) -> bytes:
    """Return the secret in the file `key`; a missing file is made, with a random secret that only this user can read.

    Of processes that make it at the same time one succeeds, and the others return its secret. Raises UserError for a
    secret with fewer than SHORTEST characters, such as one that another process has begun to write.
    """
    require_regular(key)
    with disk_errors(key):
        key.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            write_private(key, f"{secrets.token_hex(SHORTEST)}\n".encode())
        secret = key.read_bytes().strip()
    if len(secret) < SHORTEST:
        problem = f"has fewer than {SHORTEST} characters, too few for a secret"
        raise UserError(key, problem, "move it away, and a new one will be made")
    return secret


@dataclass(frozen=True)
class Pseudonyms:
    """Function from names, such as patient ids, to pseudonyms: digests that are keyed with a secret.

    Without a secret one could try all patient ids to find the right one.
    """

    secret: bytes = field(repr=False)

    @classmethod
    def read(cls, key: Path) -> Pseudonyms:
        """Return the pseudonyms for the secret in the file `key`, which is made if it does not exist."""
        return cls(kept_secret(key))

    def __call__(self, kind: str, name: str) -> str:
        """Return the pseudonym of a name, 12 hex digits.

        `kind`, such as patient, keeps equal names of two kinds apart.
        """
        return hmac.new(self.secret, f"{kind}\0{name}".encode(), hashlib.sha256).hexdigest()[:DIGITS]
