"""Digests of code that were computed before: parsing the sources takes a second, reading them a fiftieth of that.

They are kept in the user's cache folder, by the text of all sources, and so never hold for other sources.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from platformdirs import user_cache_path

from .limits import Limit

MOST: Limit[int] = 20
"""Number of states of the sources whose digests are kept."""
DIGEST = re.compile(r"[0-9a-f]{12}")


class DigestCache:
    """The digests of jobs' code for the sources in a folder, as they are when this is made.

    Where the cache folder cannot be read or written, every digest is computed. A damaged file counts as none.

    Parameters
    ----------
    root : folder of a package
    """

    def __init__(self, root: Path) -> None:
        self.path = user_cache_path("fedshift") / f"code-{_state(root)}.json"
        self.known = self._read()

    def get(self, modules: Iterable[str]) -> str | None:
        """Return the digest of the code behind some modules; None if it is not known."""
        return self.known.get(" ".join(sorted(modules)))

    def put(self, modules: Iterable[str], digest: str) -> None:
        """Keep a digest."""
        self.known[" ".join(sorted(modules))] = digest
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self.known), encoding="utf-8")
            part.replace(self.path)
            self._tidy()

    def _read(self) -> dict[str, str]:
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        whole = isinstance(known, dict) and all(isinstance(d, str) and DIGEST.fullmatch(d) for d in known.values())
        return known if whole else {}

    def _tidy(self) -> None:
        """Remove the files that were written longest ago."""
        files = sorted(self.path.parent.glob("code-*.json"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MOST]:
            file.unlink(missing_ok=True)


def _state(root: Path) -> str:
    """Return a digest of all sources in a folder, and of the Python that parses them."""
    state = hashlib.sha256(repr(sys.version_info).encode())
    for file in sorted(root.rglob("*.py")):
        state.update(f"\n{file.relative_to(root)}\n{hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    return state.hexdigest()[:32]
