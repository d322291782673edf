"""fedshift: reproducible federated-learning studies in medical imaging under feature shift."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = ["Federation", "Training", "UserError"]

if TYPE_CHECKING:
    from .algorithms._training import Training
    from .core.errors import UserError
    from .engine.federation import Federation


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the workflow imports this package without torch."""
    import importlib

    homes = {"Federation": "engine.federation", "Training": "algorithms", "UserError": "core.errors"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{homes[name]}", __name__), name)
