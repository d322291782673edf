"""Files to download from a study's page, its citation, and the reporting checklists.

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
"""The largest file, in bytes, that is embedded in the page; of a larger one the page states the path."""
TYPES = {"csv": "text/csv", "md": "text/markdown", "tex": "application/x-tex", "svg": "image/svg+xml"}
FILES = {
    "Overview table": "tables/overview",
    "Table of sites": "tables/sites",
    "Table of conditions compared": "tables/conditions",
    "Beside the published values": "tables/comparison",
    **{table.title: table.name for table in (*SUMMARISED, DIVERGENCE, SCORES) if table.title},
}
"""Tables of a study that can be downloaded from its page: title to path in the study's folder, without extension."""
SYNTHETIC = "Synthetic: not a result. The images are invented."


def downloads(results: StudyResults) -> Iterator[tuple[str, list[Download], str]]:
    """Yield title, download links and path of each table with any rows; no links to files above EMBED bytes."""
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
    """Return a download link with the file embedded. For synthetic data, file name and content say so.

    `file` is the file's name, and `content` its bytes.
    """
    kind = file.rpartition(".")[2]
    name = f"{results.plan.name}-{file}"
    if results.synthetic:
        content, name = _marked(kind, content.decode()).encode(), f"synthetic-{name}"
    encoded = base64.b64encode(content).decode()
    return Download(kind.upper(), name, f"data:{TYPES[kind]};charset=utf-8;base64,{encoded}")


def _marked(kind: str, text: str) -> str:
    """Return a table with a note that its data are synthetic.

    The note is a last column of CSV, and text above other tables or in their caption. `kind` is the file extension;
    texts other than csv, md and tex are returned unchanged.
    """
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
    """How to cite the page of a study.

    Attributes
    ----------
    digest : the first characters of the digest of the study's declaration
    date : date on which the study's last run began; empty if no run is finished
    commit : git commit of the code that trained the runs; empty if runs differ in it, or none is finished
    text, bibtex : the citation as a sentence and as a BibTeX entry
    """

    digest: str
    date: str
    commit: str
    text: str
    bibtex: str


def citation(results: StudyResults, runs: list[Trained]) -> Citation:
    """Return how to cite a study's page, from the study's declaration and the manifests of its runs."""
    plan = results.plan
    digest = plan.view[:7]
    manifests = [run.manifest for run in runs if run.manifest]
    date = max((str(manifest.get("started", ""))[:10] for manifest in manifests), default="")
    commits = {str((manifest.get("git") or {}).get("commit") or "")[:7] for manifest in manifests}
    commit = commits.pop() if len(commits) == 1 else ""  # also where that of some run is not known
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
    """Escape the characters of a text that are special in TeX."""
    return _SPECIAL.sub(r"\\\1", text.replace("\\", r"\textbackslash "))


ITEMS = TEMPLATES / "checklists.csv"
"""CSV file with the items of both checklists in our words: who answers each item, and in which section of the page."""


@dataclass(frozen=True)
class Item:
    """One item of a reporting checklist.

    Attributes
    ----------
    checklist : name of the checklist
    number, topic : the item's number in the checklist, and its subject
    who : who can answer the item: `fedshift` alone, `partly` fedshift, or only `you`, the author
    section : id of the page's section that answers the item; empty if there is none
    prefilled : what that section says about the item
    field : field of the study's key `author` for the author's answer; empty if there is none
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
    """A reporting checklist with its items, each with whether it still needs text from the author.

    `name` is its name, `parts` the noun for its items, `source` its citation, and `lines` pairs each item with that
    flag.
    """

    name: str
    parts: str
    source: str
    lines: list[tuple[Item, bool]]

    @property
    def open(self) -> int:
        """The number of items that still need text from the authors."""
        return sum(is_open for _, is_open in self.lines)

    @property
    def summary(self) -> str:
        """One line with the checklist's name and its number of open items."""
        need = verb(self.open, "need")
        return f"{self.name}: prefilled by fedshift; {self.open} of {len(self.lines)} {self.parts} {need} you"


def items(checklist: str) -> list[Item]:
    """Return the items of the named checklist, in order."""
    with ITEMS.open(newline="", encoding="utf-8") as file:
        rows = [Item(**row) for row in csv.DictReader(file)]
    return [item for item in rows if item.checklist == checklist]


def checklists(author: Author) -> list[Checklist]:
    """Return the CLAIM and TRIPOD+AI checklists as far as they are filled in.

    An item that fedshift cannot answer alone is open until the matching field of `author` has text.
    """
    texts = author.statements()

    def checklist(name: str, parts: str, source: str) -> Checklist:
        lines = [(item, item.who != "fedshift" and item.field not in texts) for item in items(name)]
        return Checklist(name, parts, source, lines)

    return [
        checklist("CLAIM 2024", "items", "Tejani et al. 2024, Radiology: AI 6(4):e240300"),
        checklist("TRIPOD+AI", "parts of its 27 items", "Collins et al. 2024, BMJ 385:e078378"),
    ]
