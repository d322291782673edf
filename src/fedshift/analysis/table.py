"""Tables of text cells, written as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass

from ..io.paths import StudyFiles
from ..io.text import inert, write_text

_MARKDOWN = {c: f"\\{c}" for c in "\\`*_[]<>#|~$&"}

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "\N{NO-BREAK SPACE}": "~",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


@dataclass(frozen=True)
class Table:
    """A table of text cells. The first `heads` columns name what a row is about."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    heads: int = 1

    def csv(self) -> str:
        """Return the table as CSV. A cell that a spreadsheet would run as a formula gets an apostrophe."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([[_inert(c) for c in row] for row in (self.header, *self.rows)])
        return out.getvalue()

    def md(self) -> str:
        """Return the table in Markdown, with its caption below."""
        lines = [self.header, [":--"] * self.heads + ["--:"] * (len(self.header) - self.heads), *self.rows]
        escaped = [line if n == 1 else [_escape(c, _MARKDOWN) for c in line] for n, line in enumerate(lines)]
        return (
            "\n".join("| " + " | ".join(line) + " |" for line in escaped) + f"\n\n{_escape(self.caption, _MARKDOWN)}\n"
        )

    def tex(self) -> str:
        """Return the table in LaTeX, for the package booktabs."""
        align = "l" * self.heads + "r" * (len(self.header) - self.heads)
        lines = [" & ".join(_escape(c, _LATEX) for c in row) + r" \\" for row in (self.header, *self.rows)]
        return "\n".join(
            [
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{_escape(self.caption, _LATEX)}}}",
                rf"  \begin{{tabular}}{{{align}}}",
                r"    \toprule",
                f"    {lines[0]}",
                r"    \midrule",
                *(f"    {line}" for line in lines[1:]),
                r"    \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
                "",
            ]
        )


def _escape(text: str, special: dict[str, str]) -> str:
    return "".join(special.get(c, c) for c in re.sub(r"[\r\n\t]+", " ", text))


def _inert(cell: str) -> str:
    cell = cell.replace("\N{NO-BREAK SPACE}", " ")
    if cell[:1] == "+" and cell[1:2].isdigit():
        return cell[1:]
    return inert(cell)


def save(files: StudyFiles, name: str, table: Table) -> None:
    """Write tables/{name}.{csv,md,tex} of a study."""
    for kind in ("csv", "md", "tex"):
        write_text(files.table(name, kind), getattr(table, kind)())
