"""Figures of a study's folder, looked at before a page holds them: shapes, text and small images, nothing that runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from ..core.errors import UserError
from ..io.text import readable

NAMESPACES = ("{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}")
SHAPES = frozenset(
    {
        *("svg", "g", "defs", "title", "desc", "clipPath", "use", "symbol", "image", "text", "tspan", "path", "rect"),
        *("line", "circle", "ellipse", "polyline", "polygon", "linearGradient", "radialGradient", "stop", "pattern"),
    }
)
"""The elements that a figure may have."""
ELSEWHERE = re.compile(r"url\(\s*['\"]?(?!#)|javascript:|@import|expression\(", re.IGNORECASE)
"""Attributes that fetch or run something."""


def read_drawing(path: Path) -> str:
    """Return the text of a figure. Raises UserError for a file that is no figure, or might run or fetch something.

    Raises FileNotFoundError where the figure has not been drawn.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    with readable(path, "figure"):
        text = path.read_text(encoding="utf-8")
        if "<!" in text or "<?" in text:
            raise ValueError("it has a declaration, a comment or an instruction")
        root = ElementTree.fromstring(text)
        if root.tag != f"{NAMESPACES[0]}svg":
            raise ValueError("it is no SVG")
    if fault := next(_faults(root), ""):
        raise UserError(path, f"{fault}, which no figure of fedshift has", "draw it again with fedshift figure")
    return text


def _faults(root: ElementTree.Element) -> Iterator[str]:
    """Yield what in a drawing is neither shape nor text, or leads out of the file."""
    for element in root.iter():
        name = str(element.tag).removeprefix(NAMESPACES[0])
        if name not in SHAPES:
            yield f"holds an element {name[:40]!r}"
        for key, value in element.attrib.items():
            attribute = key.removeprefix(NAMESPACES[1]).lower()
            link = attribute == "href" and not value.startswith(("#", "data:image/png;base64,"))
            if attribute.startswith("on") or link or ELSEWHERE.search(value):
                yield f"holds an attribute {attribute[:40]!r} that runs or fetches something"
