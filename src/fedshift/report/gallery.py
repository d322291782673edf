"""reports/index.html: all studies, the tables and figures of papers that they reproduce, and the outcomes.

Studies of earlier calls are shown by their headline.json, which was written with their pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from .. import study
from ..analysis.values import DASH
from ..core.errors import UserError
from ..datasets import Scale
from ..io.paths import Paths, papers
from ..io.text import write_text
from ..papers import tables
from ..papers.comparison import VERDICTS
from ..papers.tables import Item
from . import headline
from .html import render

COMPLETE, NOT_RUN = "complete", "not run"


@dataclass(frozen=True)
class Entry:
    """One study in the index.

    `link` is empty without a page, and `scale` where data are the same at every scale; `trends` and `published` are
    dashes without a result.
    """

    name: str
    title: str
    reproduces: tuple[str, ...]
    state: str
    scale: str
    synthetic: bool
    lead: str
    problems: tuple[str, ...]
    trends: str
    published: str
    link: str

    @property
    def counts(self) -> bool:
        """True where the study is complete, not at a smaller scale, and on real data."""
        return self.state == COMPLETE and self.scale in ("paper", "") and not self.synthetic


def write(studies: Path, paths: Paths) -> Path:
    """Write reports/index.html with the studies of a folder and others that have a headline.json."""
    out = paths.page("index")
    entries = list(_entries(studies, paths))
    listing = papers(studies)
    items = tables.items(listing) if listing.exists() else {}
    content = {
        "entries": entries,
        "own": [entry for entry in entries if not entry.reproduces],
        "of_papers": [entry for entry in entries if entry.reproduces],
        "items": items,
        "coverage": [(item, _of(item, entries)) for item in items.values() if item.kind != "S"],
        "settings": [(item, _of(item, entries)) for item in items.values() if item.kind == "S"],
        "kinds": tables.KINDS,
    }
    write_text(out, render("index.html.j2", content))
    return out


def _of(item: Item, entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if item.id in entry.reproduces]


def _entries(studies: Path, paths: Paths) -> Iterator[Entry]:
    declared = tables.said(studies)
    earlier = sorted(p.parent.name for p in (paths.root / "results" / "studies").glob("*/headline.json"))
    for name in dict.fromkeys([*declared, *earlier]):
        written, page = headline.read(paths, name) or {}, paths.page(name)
        words = declared.get(name) or written
        reproduces = words.get("reproduces") or ()
        yield Entry(
            name=name,
            title=str(words.get("title") or name),
            reproduces=tuple(map(str, reproduces)) if isinstance(reproduces, list | tuple) else (),
            state=_state(studies / f"{name}.yaml", name in declared, written, page, paths),
            scale=str(written.get("scale", "")) if written.get("scaled", True) else "",
            synthetic=bool(written.get("synthetic")),
            lead=str(written.get("lead", "")),
            problems=tuple(map(str, written.get("problems") or ())),
            trends=_trends(written.get("trends") or {}),
            published=_published(written.get("published") or {}),
            link=f"{quote(name)}.html" if page.exists() else "",
        )


def _state(path: Path, listed: bool, written: dict[str, Any], page: Path, paths: Paths) -> str:
    """Return that a study is complete, or what it lacks."""
    if not written:
        if page.exists():
            return "an old page: run fedshift page again"
        return _begun(path, paths) if listed else NOT_RUN
    if not page.exists():
        return "its page is missing: run fedshift page again"
    if listed:
        try:
            if study.load(path, written.get("scale", "")).view != written.get("view"):
                return "out of date: the study has changed since"
        except UserError as error:
            return f"not valid: {str(error).splitlines()[0]}"
    runs, missing = written.get("runs", 0), written.get("missing", 0)
    return f"incomplete: {runs - missing} of {runs} runs" if missing else COMPLETE


def _begun(path: Path, paths: Paths) -> str:
    """Return how far a study without a page has come, at the scale with most finished runs."""
    most = (0, 0, "")
    try:
        for scale in get_args(Scale):
            plan = study.load(path, scale)
            done = sum(paths.run_files(run).manifest.exists() for run in plan.runs)
            most = max(most, (done, len(plan.runs), f" at scale {scale}" if plan.scaled else ""))
    except UserError as error:
        return f"not valid: {str(error).splitlines()[0]}"
    return f"incomplete: {most[0]} of {most[1]} runs trained{most[2]}" if most[0] else NOT_RUN


def _trends(counts: dict[str, Any]) -> str:
    """Return how many trends hold: `3 of 4 hold`."""
    if not counts.get("of"):
        return DASH
    if counts.get("reason"):
        return f"do not count: {counts['reason']}"
    rest = counts["of"] - counts["judged"]
    return f"{counts['held']} of {counts['judged']} hold" + (f"; {rest} not run" if rest else "")


def _published(counts: dict[str, Any]) -> str:
    """Return how many published values got each verdict: `41 within, 15 outside`."""
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts.get(verdict)) or DASH
