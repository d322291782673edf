"""The way in which docstrings of fedshift describe parameters, for mkdocstrings: `name : description`, without a type.

The numpy convention has the type in that place. Types are in the signatures here, so what stands there is moved to
where the convention has the description.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

SECTION = re.compile(r"(?<=\n)((?:Parameters|Attributes)\n-+\n)(.*?)(?=\n\n\S|\Z)", re.S)
ENTRY = re.compile(r"^(\w+(?:, \w+)*) : (.*)$", re.M)


class Described(Extension):
    """An extension of Griffe that reads the text after a parameter's name as its description."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the sections of a docstring that list parameters or attributes."""
        if obj.docstring:
            obj.docstring.value = described(obj.docstring.value)


def described(docstring: str) -> str:
    """Return a docstring in which each parameter has its description on a line of its own."""
    return SECTION.sub(lambda section: section[1] + ENTRY.sub(r"\1\n    \2", section[2]), docstring)
