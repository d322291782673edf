"""What a reader takes along: tables as files, how to cite the page, and the reporting checklists.

CLAIM 2024: Tejani et al. 2024, Radiology: Artificial Intelligence 6(4):e240300, 44 items.
TRIPOD+AI: Collins et al. 2024, BMJ 385:e078378, 27 items in 52 parts.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .. import __version__
from ..analysis.study_results import StudyResults
from ..io.paths import DIVERGENCE, SCORES, SUMMARISED
from ..study.declaration import Author
from .history import Trained
from .html import TEMPLATES, Download
from .phrases import verb

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


_SPECIAL = re.compile(r"([&%$#_{}])")


@dataclass(frozen=True)
class Citation:
    """A page as others cite it.

    Attributes
    ----------
    digest : the first letters of the digest of the study's declaration
    date, commit : when its last run began, and the commit of its code; empty where runs differ, or none is finished
    text, bibtex : what is copied
    """

    digest: str
    date: str
    commit: str
    text: str
    bibtex: str


def citation(results: StudyResults, runs: list[Trained]) -> Citation:
    """Return the citation of a study's page, from its declaration and the records of its runs."""
    plan = results.plan
    digest = plan.view[:7]
    manifests = [run.manifest for run in runs if run.manifest]
    date = max((str(manifest.get("started", ""))[:10] for manifest in manifests), default="")
    commits = {str((manifest.get("git") or {}).get("commit") or "")[:7] for manifest in manifests} - {""}
    commit = commits.pop() if len(commits) == 1 else ""
    about = f"Study {plan.name}, {digest}"
    if plan.scaled:
        about += f", scale {plan.scale}"
    tool = f"fedshift {__version__}"
    if commit:
        tool += f", commit {commit}"
    if results.synthetic:
        about += "; synthetic images, not a result"
    title = plan.study.title.rstrip(".")
    stop = "" if title.endswith(("?", "!")) else "."
    text = f"{title}{stop} {about}. Page made with {tool}{date and f', {date}'}."
    fields = {"title": f"{{{_escaped(title)}}}", "year": date[:4], "howpublished": _escaped(f"Page made with {tool}")}
    fields["note"] = _escaped(about + (date and f", {date}"))
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    key = re.sub(r"[^A-Za-z0-9-]", "-", plan.name)
    bibtex = "\n".join([f"@misc{{{key}-{digest},", *lines, "}"])
    return Citation(digest, date, commit, text, bibtex)


def _escaped(text: str) -> str:
    """Return a text with the characters that are special in TeX escaped."""
    return _SPECIAL.sub(r"\\\1", text.replace("\\", r"\textbackslash "))


ITEMS = TEMPLATES / "checklists.csv"
"""The items of both checklists in their order and in our words: who answers each, and where on the page."""


@dataclass(frozen=True)
class Item:
    """One item of a checklist.

    Attributes
    ----------
    checklist : name of the checklist
    number, topic : as the checklist counts it, and its subject
    who : `fedshift` answers it alone, `partly`, or only `you`, the author, can
    section : id of the section of the page with the part of fedshift; empty where there is none
    prefilled : what that section says about it
    field : field of the study's key `author` with the author's part; empty where there is none
    """

    checklist: str
    number: str
    topic: str
    who: str
    section: str
    prefilled: str
    field: str


@dataclass(frozen=True)
class Checklist:
    """A checklist: its name, what it counts (`parts`), its citation, and its items, each with whether it is open.

    An item is open while the author's part has no text.
    """

    name: str
    parts: str
    source: str
    lines: list[tuple[Item, bool]]

    @property
    def open(self) -> int:
        """The number of items that the authors have still to fill."""
        return sum(is_open for _, is_open in self.lines)

    @property
    def summary(self) -> str:
        """One line with the number of open items."""
        need = verb(self.open, "need")
        return f"{self.name}: prefilled by fedshift; {self.open} of {len(self.lines)} {self.parts} {need} you"


def items(checklist: str) -> list[Item]:
    """Return the items of a checklist in its order."""
    with ITEMS.open(newline="", encoding="utf-8") as file:
        rows = [Item(**row) for row in csv.DictReader(file)]
    return [item for item in rows if item.checklist == checklist]


def checklists(author: Author) -> list[Checklist]:
    """Return both checklists. An item that fedshift does not answer alone is open until the author's field has text."""
    texts = author.statements()

    def checklist(name: str, parts: str, source: str) -> Checklist:
        lines = [(item, item.who != "fedshift" and item.field not in texts) for item in items(name)]
        return Checklist(name, parts, source, lines)

    return [
        checklist("CLAIM 2024", "items", "Tejani et al. 2024, Radiology: AI 6(4):e240300"),
        checklist("TRIPOD+AI", "parts of its 27 items", "Collins et al. 2024, BMJ 385:e078378"),
    ]
