"""The way in which docstrings of fedshift describe parameters, for mkdocstrings: `name : description`, without a type.

The numpy convention has the type in that place, and in the section Returns. Types are in the signatures here, so what
stands there is moved to where the convention has the description.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from griffe import Extension, Object

SECTION = re.compile(r"(?<=\n)(Parameters|Attributes|Returns|Yields)\n(-+)\n(.*?)(?=\n\n\S|\Z)", re.S)
ENTRY = re.compile(r"^(\w+(?:, \w+)*) : (.*)$", re.M)
INSIDE = r"\1\n    \2"


class Described(Extension):
    """An extension of Griffe that reads the text after a parameter's name as its description."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the sections of a docstring that list parameters or attributes."""
        if obj.docstring:
            obj.docstring.value = described(obj.docstring.value)


def described(docstring: str) -> str:
    """Return a docstring in which each parameter, and what is returned, has its description on lines of its own."""
    return SECTION.sub(_described, docstring)


def _described(section: re.Match[str]) -> str:
    title, line, text = section.groups()
    if title in ("Parameters", "Attributes"):
        return f"{title}\n{line}\n{ENTRY.sub(INSIDE, text)}"
    return f"{title}\n{line}\n:\n{textwrap.indent(text, '    ')}"
