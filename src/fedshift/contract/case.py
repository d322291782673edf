"""A case of the contract: one requirement, for one plug-in and one setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..core.errors import UserError
from ..core.plugin import Plugin
from ..core.registry import build


class Broken(AssertionError):  # noqa: N818 - a requirement is broken, and no error was made
    """A requirement of the contract that a plug-in does not satisfy."""


@dataclass(frozen=True)
class Case:
    """A requirement in words, and the function that raises an error, usually Broken, where it does not hold."""

    title: str
    check: Callable[[], None]


def require(holds: bool, what: str) -> None:
    """Raise Broken with some words unless something holds."""
    if not holds:
        raise Broken(what)


def refusal(call: Callable[[], object], what: str) -> str:
    """Return the words of the UserError that a call raises. Raises Broken, with `what`, if it raises none."""
    try:
        call()
    except UserError as error:
        return str(error)
    raise Broken(what)


def needed(cls: type[Plugin]) -> dict[str, Any]:
    """Return values for the settings that have no default: the first of their examples, else a path."""
    required = {k: field for k, field in cls.model_fields.items() if field.is_required()}
    return {k: (field.examples or ["images.csv"])[0] for k, field in required.items()}


def made(cls: type[Plugin], **settings: Any) -> Any:
    """Return a plug-in that is built by its name, with its defaults."""
    return build(cls.kind, {"name": cls.name, **needed(cls), **settings})


class Generators:
    """The global random generators as they are now."""

    def __init__(self) -> None:
        self.torch = torch.random.get_rng_state()
        self.numpy = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002

    def require_unchanged(self) -> None:
        """Raise Broken if anything was drawn from a global generator since."""
        require(torch.equal(torch.random.get_rng_state(), self.torch), "it drew from torch's global generator")
        now = np.random.get_state()[1]  # type: ignore[index]  # noqa: NPY002
        require(np.array_equal(now, self.numpy), "it drew from NumPy's global generator")
