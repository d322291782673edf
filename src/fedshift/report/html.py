"""Pages from templates. Each is one file that loads nothing, and all text in it is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, content: dict[str, Any]) -> str:
    """Return a template filled with its content. All pages share the style sheet, as `css`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("fedshift.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    css = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(content | {"css": Markup(css)})  # our own file
