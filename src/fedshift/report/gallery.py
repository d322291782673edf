"""reports/index.html: all studies, what of the papers they reproduce, and how it turned out.

Studies of other calls are shown as they were left: by their headline.json, which is written with their pages.
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
from ..io.paths import Paths
from ..io.text import write_text
from ..papers import tables
from ..papers.comparison import VERDICTS
from ..papers.tables import Item
from . import headline
from .html import render

COMPLETE, NOT_RUN = "complete", "not run"


@dataclass(frozen=True)
class Entry:
    """One study. `link` is empty without a page; `trends` and `published` are dashes where nothing counts."""

    name: str
    title: str
    reproduces: tuple[str, ...]
    state: str
    scale: str
    synthetic: bool
    lead: str
    trends: str
    published: str
    link: str

    @property
    def counts(self) -> bool:
        """Whether it is a result of the real thing."""
        return self.state == COMPLETE and self.scale == "paper" and not self.synthetic


def write(studies: Path, paths: Paths) -> Path:
    """Writes reports/index.html, of the studies of a folder and of others that left a headline.json."""
    out = paths.page("index")
    entries = list(_entries(studies, paths))
    listing = studies.parent / "papers.csv"
    items = tables.items(listing) if listing.exists() else {}
    content = {
        "entries": entries,
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
    said = tables.said(studies)
    left = sorted(p.parent.name for p in (paths.root / "results" / "studies").glob("*/headline.json"))
    for name in dict.fromkeys([*said, *left]):
        told, page = headline.read(paths, name) or {}, paths.page(name)
        words = said.get(name) or told
        reproduces = words.get("reproduces") or ()
        scale = str(told.get("scale", ""))
        yield Entry(
            name=name,
            title=str(words.get("title") or name),
            reproduces=tuple(map(str, reproduces)) if isinstance(reproduces, list | tuple) else (),
            state=_state(studies / f"{name}.yaml", name in said, told, page, paths),
            scale=scale,
            synthetic=bool(told.get("synthetic")),
            lead=str(told.get("lead", "")),
            trends=_trends(told.get("trends") or {}),
            published=_published(told.get("published") or {}),
            link=f"{quote(name)}.html" if page.exists() else "",
        )


def _state(path: Path, listed: bool, told: dict[str, Any], page: Path, paths: Paths) -> str:
    """Complete, or what it lacks."""
    if not told:
        if page.exists():
            return "an old page: make it anew"
        return _begun(path, paths) if listed else NOT_RUN
    if not page.exists():
        return "its page is gone: make it anew"
    if listed:
        try:
            if study.load(path, told.get("scale", "")).view != told.get("view"):
                return "out of date: the study has changed since"
        except UserError as error:
            return f"not valid: {str(error).splitlines()[0]}"
    runs, missing = told.get("runs", 0), told.get("missing", 0)
    return f"incomplete: {runs - missing} of {runs} runs" if missing else COMPLETE


def _begun(path: Path, paths: Paths) -> str:
    """How far a study without a page has come, at the scale of which most is done."""
    best = (0, 0, "")
    try:
        for scale in get_args(Scale):
            runs = study.load(path, scale).runs
            done = sum((paths.run(run) / "manifest.json").exists() for run in runs)
            best = max(best, (done, len(runs), scale))
    except UserError as error:
        return f"not valid: {str(error).splitlines()[0]}"
    return f"incomplete: {best[0]} of {best[1]} runs trained at scale {best[2]}" if best[0] else NOT_RUN


def _trends(told: dict[str, Any]) -> str:
    """`3 of 4 hold`."""
    if not told.get("of"):
        return DASH
    if told.get("reason"):
        return f"do not count: {told['reason']}"
    rest = told["of"] - told["judged"]
    return f"{told['held']} of {told['judged']} hold" + (f"; {rest} not run" if rest else "")


def _published(told: dict[str, Any]) -> str:
    """`41 within, 15 outside`."""
    return ", ".join(f"{told[verdict]} {verdict}" for verdict in VERDICTS if told.get(verdict)) or DASH
