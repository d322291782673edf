"""Readers and writers. What is written is there whole or not at all (see `disk`); what is unreadable is named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UserError

if TYPE_CHECKING:
    pass
from .text import read_json


def require_own(out: Path, marker: str, option: str) -> None:
    """Raise UserError for a folder, or a file, that holds anything which the file `marker` in it does not list.

    `option` is how another folder is chosen.
    """
    if not out.exists():
        return
    known = read_json(out / marker) if (out / marker).is_file() else None
    listed = known.get("files") if isinstance(known, dict) else None
    own = {marker, *map(str, listed if isinstance(listed, list) else ())}
    found = (path.relative_to(out).as_posix() for path in out.rglob("*")) if out.is_dir() else iter((out.name,))
    if foreign := next((name for name in found if name not in own), ""):
        what = f"holds {foreign}, which fedshift did not write there"
        raise UserError(out, what, f"choose another folder with {option}, or remove it yourself")
