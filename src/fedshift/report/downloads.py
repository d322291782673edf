"""The tables and scores that a page offers as files. A page on invented data says so in the files as well."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis.results import StudyResults

EMBED = 100_000
"""Files of more bytes are not embedded for download, only named."""
TYPES = {"csv": "text/csv", "md": "text/markdown", "tex": "application/x-tex"}
FILES = {
    "Overview table": "tables/overview",
    "Table of sites": "tables/sites",
    "Summary": "summary",
    "Effects": "effects",
    "Controls": "controls",
    "Calibration": "calibration",
    "Test-time adaptation": "collapse",
    "Operating points": "operating_points",
    "Comparisons of conditions": "comparisons",
    "Table of conditions compared": "tables/conditions",
    "Beside the published values": "tables/comparison",
    "Trends": "trends",
    "Subgroups": "subgroups",
    "All scores": "scores",
}
"""The files of a study that a reader may want, without their endings, by their titles."""
SYNTHETIC = "Synthetic: not a result. The images are invented."


@dataclass(frozen=True)
class Download:
    """A link that holds its own file."""

    label: str
    name: str
    uri: str


def downloads(results: StudyResults) -> Iterator[tuple[str, list[Download], str]]:
    """Yield title, links, and place of each file with any content. There is no link to a file that is too large."""
    for title, stem in FILES.items():
        if not _has_rows(results, f"{stem}.csv"):
            continue
        links = []
        for kind in TYPES:
            path = results.files.folder / f"{stem}.{kind}"
            if path.exists() and path.stat().st_size <= EMBED:
                content = results.content(f"{stem}.{kind}")
                name = f"{results.plan.name}-{path.name}"
                links.append(marked(kind, name, content) if results.synthetic else link(kind, name, content))
        yield title, links, f"results/studies/{results.plan.name}/{stem}.csv"


def _has_rows(results: StudyResults, name: str) -> bool:
    """Return whether a CSV is there and has anything below its header."""
    return (results.files.folder / name).is_file() and len(results.content(name).splitlines()) > 1


def marked(kind: str, name: str, content: bytes) -> Download:
    """Return a link to a table of invented data, whose name and content say so."""
    text = _MARKS[kind](content.decode())
    return link(kind, f"synthetic-{name}", text.encode())


def _csv(text: str) -> str:
    """Return a CSV with a last column that says that each row is synthetic."""
    out = io.StringIO()
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    lines = [[*header, "synthetic"], *([*row, "yes"] for row in rows)]
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def _md(text: str) -> str:
    return f"**{SYNTHETIC}**\n\n{text}"


def _tex(text: str) -> str:
    """Return a table in LaTeX that says in a comment and in its caption that it is synthetic."""
    return f"% {SYNTHETIC}\n" + text.replace(r"\caption{", rf"\caption{{{SYNTHETIC} ", 1)


_MARKS = {"csv": _csv, "md": _md, "tex": _tex}


def link(kind: str, name: str, content: bytes) -> Download:
    """Return a link that holds a table: CSV, Markdown or LaTeX."""
    return embedded(kind.upper(), name, content, TYPES[kind])


def embedded(label: str, name: str, content: bytes, media_type: str) -> Download:
    """Return a link that holds a file's content."""
    encoded = base64.b64encode(content).decode()
    return Download(label, name, f"data:{media_type};charset=utf-8;base64,{encoded}")
