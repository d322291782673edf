"""Files that were made for some arguments: the next test of this process that asks for the same gets a copy."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from pydantic import BaseModel

_FOLDERS: dict[Hashable, Path] = {}


def written(root: Path, arguments: tuple[Any, ...], make: Callable[[Path], object]) -> None:
    """Let `make` write into the folder `root`, or copy what it wrote for equal arguments.

    Nothing is kept where arguments cannot be told apart for certain, such as tables, and of what fails.
    """
    try:
        key = _key((make.__module__, make.__qualname__, *arguments))
    except TypeError:
        make(root)
        return
    if key not in _FOLDERS:
        folder = Path(tempfile.mkdtemp(prefix="once-"))
        try:
            make(folder)
        except Exception:
            shutil.rmtree(folder)
            make(root)  # an error names the folder that the test knows
            raise
        _FOLDERS[key] = folder
    shutil.copytree(_FOLDERS[key], root, dirs_exist_ok=True)


def forget() -> None:
    """Remove all that was written. Processes that run tests end without what is registered for their end."""
    for folder in _FOLDERS.values():
        shutil.rmtree(folder, ignore_errors=True)
    _FOLDERS.clear()


def _key(value: Any) -> Hashable:
    """Return what equal arguments have in common; raise TypeError where that is unknown.

    Functions are equal if they have the same code in the same place and hold on to the same things.
    """
    if value is None or isinstance(value, bool | int | float | str | Path):
        return type(value), repr(value)
    if isinstance(value, Mapping):
        return tuple((key, _key(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    cls = type(value)
    if isinstance(value, BaseModel) and "<locals>" not in cls.__qualname__:
        return cls.__module__, cls.__qualname__, _key(value.model_dump())
    if isinstance(value, FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        return (
            value.__module__,
            value.__qualname__,
            value.__code__,
            _key([held, value.__defaults__, value.__kwdefaults__]),
        )
    raise TypeError(cls)
