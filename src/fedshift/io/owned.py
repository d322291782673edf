"""Folders that are replaced: only files that this program wrote there itself."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import UserError
from .text import read_json


def require_own(out: Path, marker: str, option: str) -> None:
    """Raise UserError for a folder that holds anything which the file `marker` in it does not list, or for a file.

    `option` is the command-line option that chooses another folder.
    """
    if not out.exists():
        return
    known = read_json(out / marker) if (out / marker).is_file() else None
    listed = known.get("files") if isinstance(known, dict) else None
    written = {marker, *map(str, listed if isinstance(listed, list) else ())}
    names = (path.relative_to(out).as_posix() for path in out.rglob("*")) if out.is_dir() else iter((out.name,))
    if foreign := next((name for name in names if name not in written), ""):
        what = f"holds {foreign}, which fedshift did not write there"
        raise UserError(out, what, f"choose another folder with {option}, or remove it yourself")
