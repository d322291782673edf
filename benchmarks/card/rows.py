"""The rows of all parts: their file, which is replaced whole after each row, and their table. PyTorch is not needed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

Row = dict[str, Any]
NO_TIME = "no time left"
LONGEST = 10_500
"""Characters of all rows in the table at most: of a long output, some terminals keep no more than 12,000."""


def row(
    part: str,
    what: str,
    outcome: str,
    *,
    seconds: float = 0.0,
    reason: str = "",
    figures: Mapping[str, Any] = MappingProxyType({}),
) -> Row:
    """Return one row. `outcome` is measured, failed or skipped; a row that is not measured has a reason."""
    return {
        "part": part,
        "what": what,
        "outcome": outcome,
        "seconds": round(seconds, 2),
        **({"reason": reason} if reason else {}),
        **({"figures": dict(figures)} if figures else {}),
    }


class Rows:
    """The rows in FOLDER/gpu.json, with facts about the machine."""

    def __init__(self, folder: Path, parts: Collection[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "gpu.json"
        content = json.loads(self.file.read_text(encoding="utf-8")) if self.file.exists() else {}
        self.facts: dict[str, Any] = content.get("facts", {})
        self.rows: list[Row] = [row for row in content.get("rows", []) if row["part"] not in parts]
        """Rows of parts that are measured again are left out."""

    def add(self, row: Row) -> None:
        """Add a row, and write the file at once."""
        self.rows.append(row)
        self.write()

    def write(self) -> None:
        """Replace the file by one of the rows so far."""
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"facts": self.facts, "rows": self.rows}, indent=1) + "\n", encoding="utf-8")
        new.replace(self.file)

    def done(self) -> set[tuple[str, str]]:
        """Return part and name of each row."""
        return {(row["part"], row["what"]) for row in self.rows}

    @property
    def failed(self) -> list[Row]:
        """The rows that failed."""
        return [row for row in self.rows if row["outcome"] == "failed"]


def table(rows: Rows, parts: Mapping[str, str]) -> str:
    """Return all rows as text, part by part. Where it would be too long, measured rows of long parts are left out."""
    shown = {part: [line(row) for row in rows.rows if row["part"] == part] for part in parts}
    while sum(len(text) + 1 for lines in shown.values() for text in lines) > LONGEST:
        lines = shown[max(shown, key=lambda part: len("\n".join(shown[part])))]
        plain = [text for text in lines if not text.lstrip().startswith(("FAILED", "..."))]
        if not plain:
            break
        lines[:] = [text for text in lines if text not in plain] + [f"  ... {len(plain)} more in {rows.file.name}"]
    out = [", ".join(f"{name} {value}" for name, value in rows.facts.items())]
    for part, words in parts.items():
        if shown[part]:
            out += [f"{part}: {words}", *shown[part]]
    count = {
        outcome: sum(row["outcome"] == outcome for row in rows.rows) for outcome in ("measured", "failed", "skipped")
    }
    out.append(", ".join(f"{number} {outcome}" for outcome, number in count.items()))
    return "\n".join(out)


def line(row: Row) -> str:
    """Return a row as a line of the table."""
    figures = ", ".join(f"{name} {_short(value)}" for name, value in row.get("figures", {}).items())
    if row["outcome"] == "measured":
        return f"  {row['what']}: {figures}"
    word = "FAILED" if row["outcome"] == "failed" else "skipped"
    return f"  {word} {row['what']}: {row['reason']}" + (f"; {figures}" if figures else "")


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
