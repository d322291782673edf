"""The tables and scores that a page offers as files. A page on invented data says so in the files as well."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterator

from ..analysis.results import StudyResults
from ..io.result_tables import DIVERGENCE, SCORES, SUMMARISED
from .html import Download

EMBED = 100_000
"""Files of more bytes are not embedded for download, only named."""
TYPES = {"csv": "text/csv", "md": "text/markdown", "tex": "application/x-tex", "svg": "image/svg+xml"}
FILES = {
    "Overview table": "tables/overview",
    "Table of sites": "tables/sites",
    "Table of conditions compared": "tables/conditions",
    "Beside the published values": "tables/comparison",
    **{table.title: table.name for table in (*SUMMARISED, DIVERGENCE, SCORES) if table.title},
}
"""The files of a study that a reader may want, without their endings, by their titles."""
SYNTHETIC = "Synthetic: not a result. The images are invented."


def downloads(results: StudyResults) -> Iterator[tuple[str, list[Download], str]]:
    """Yield title, links, and place of each file with any content. Files that are too large have a place only."""
    for title, stem in FILES.items():
        first = results.files.folder / f"{stem}.csv"
        if not first.is_file() or len(results.content(f"{stem}.csv").splitlines()) < 2:
            continue
        paths = [first.with_suffix(f".{kind}") for kind in ("csv", "md", "tex")]
        # a page stays one file that a mail can carry
        small = [path for path in paths if path.exists() and path.stat().st_size <= EMBED]
        links = [download(results, path.name, results.content(f"{stem}{path.suffix}")) for path in small]
        yield title, links, f"results/studies/{results.plan.name}/{stem}.csv"


def download(results: StudyResults, file: str, content: bytes) -> Download:
    """Return a link that holds a file of a study. Name and content of invented data say that they are."""
    kind = file.rpartition(".")[2]
    name = f"{results.plan.name}-{file}"
    if results.synthetic:
        content, name = _marked(kind, content.decode()).encode(), f"synthetic-{name}"
    encoded = base64.b64encode(content).decode()
    return Download(kind.upper(), name, f"data:{TYPES[kind]};charset=utf-8;base64,{encoded}")


def _marked(kind: str, text: str) -> str:
    """Return a table that says that it is synthetic: in a last column, above it, or in its caption."""
    if kind == "md":
        return f"**{SYNTHETIC}**\n\n{text}"
    if kind == "tex":
        return f"% {SYNTHETIC}\n" + text.replace(r"\caption{", rf"\caption{{{SYNTHETIC} ", 1)
    if kind != "csv":
        return text
    out = io.StringIO()
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    csv.writer(out, lineterminator="\n").writerows([[*header, "synthetic"], *([*row, "yes"] for row in rows)])
    return out.getvalue()
