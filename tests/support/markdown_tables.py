"""The tables of a page in Markdown."""

from __future__ import annotations

import re


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, row by row; the head comes first, and the line below it is left out."""
    found = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines())
        found.append([head, *rows])
    return found
