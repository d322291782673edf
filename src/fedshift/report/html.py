"""Pages from templates. Each is one file that loads nothing, and all text in it is escaped."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def _environment() -> Environment:
    """Return what templates are filled by; it compiles each of them once."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("fedshift.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, content: dict[str, Any]) -> str:
    """Return a template filled with its content. All pages share the style sheet, as `css`."""
    from markupsafe import Markup

    css = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    return _environment().get_template(template).render(content | {"css": Markup(css)})  # our own file
