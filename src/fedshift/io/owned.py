"""Replacing an output folder, of which only files that fedshift wrote are ever deleted."""

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
    written = {marker}
    if (out / marker).is_file():
        content = read_json(out / marker)
        if isinstance(content, dict) and isinstance(content.get("files"), list):
            written.update(map(str, content["files"]))
    names = [out.name]
    if out.is_dir():
        names = [path.relative_to(out).as_posix() for path in out.rglob("*")]
    for name in names:
        if name not in written:
            problem = f"holds {name}, which fedshift did not write there"
            raise UserError(out, problem, f"choose another folder with {option}, or remove it yourself")
