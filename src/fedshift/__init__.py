"""fedshift: reproducible federated-learning studies in medical imaging under feature shift."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = ["Federation", "Training", "UserError", "load_study", "open_run", "results"]

if TYPE_CHECKING:
    from .algorithms._training import Training
    from .core.errors import UserError
    from .interface.federation import Federation
    from .interface.runs import open_run
    from .interface.studies import load_study, results

_HOMES = {
    "Federation": "interface.federation",
    "Training": "algorithms",
    "UserError": "core.errors",
    "load_study": "interface.studies",
    "open_run": "interface.runs",
    "results": "interface.studies",
}


def __getattr__(name: str) -> Any:
    """Import the public name `name` at its first use, so that importing this package loads no torch."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
