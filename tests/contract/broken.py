"""Wrong plug-ins: a right one in which some text is replaced, and the first fault that its contract finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift.contract import cases
from fedshift.core import registry


def first_fault(folder: Path, source: str) -> str:
    """Return what the contract says first of a plug-in with that source, or nothing if it passes."""
    file = folder / "wrong.py"
    file.write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_added", [])
        registry.forget()
        try:
            for case in cases(registry.add_file(file)):
                case.check()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    registry.forget()
    return ""


def replaced(source: str, *changes: str) -> str:
    """Return a source in which each second text stands in place of the one before it, which it must hold."""
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        if old not in source:
            pytest.fail(f"the plug-in does not hold {old!r}")
        source = source.replace(old, new)
    return source
