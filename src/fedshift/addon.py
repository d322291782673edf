"""Add-ons: domain-generalisation methods on top of an algorithm."""

from __future__ import annotations

from typing import ClassVar

from .registry import Plugin


class Addon(Plugin):
    """Base of add-ons."""

    kind: ClassVar[str] = "addon"
