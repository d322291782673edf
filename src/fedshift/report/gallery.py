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
from ..core.console import say
from ..core.errors import UserError
from ..datasets import Scale
from ..io.checksums import remedy
from ..io.paths import Paths, papers
from ..io.text import write_text
from ..papers import tables
from ..papers.comparison import VERDICTS
from ..papers.tables import Item
from ..study import Plan, calls
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
    items = _items(studies, entries)
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


def _items(studies: Path, entries: list[Entry]) -> dict[str, Item]:
    """Return the tables and figures of papers that a project lists; without a list, those that studies reproduce."""
    listing = papers(studies)
    items = tables.items(listing) if listing.exists() else {}
    reproduced = {one for entry in entries for one in entry.reproduces}
    own = listing.parent == studies.parent
    return {key: item for key, item in items.items() if own or key in reproduced}


def _of(item: Item, entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if item.id in entry.reproduces]


def _entries(studies: Path, paths: Paths) -> Iterator[Entry]:
    declared = tables.said(studies)
    earlier = sorted(p.parent.name for p in (paths.root / "results" / "studies").glob("*/headline.json"))
    for name in dict.fromkeys([*declared, *earlier]):
        path, page = study.named(name, studies) or studies / f"{name}.yaml", paths.page(name)
        listed = path.exists()
        written, damage = _written(path, listed, paths)
        words = declared.get(name) or written
        reproduces = words.get("reproduces") or ()
        yield Entry(
            name=name,
            title=str(words.get("title") or name),
            reproduces=tuple(map(str, reproduces)) if isinstance(reproduces, list | tuple) else (),
            state="damaged" if damage else _state(path, listed, written, page, paths),
            scale=str(written.get("scale", "")) if written.get("scaled", True) else "",
            synthetic=bool(written.get("synthetic")),
            lead=str(written.get("lead", "")),
            problems=(damage,) if damage else tuple(map(str, written.get("problems") or ())),
            trends=_trends(written.get("trends") or {}),
            published=_published(written.get("published") or {}),
            link=f"{quote(name)}.html" if page.exists() else "",
        )


def _written(path: Path, listed: bool, paths: Paths) -> tuple[dict[str, Any], str]:
    """Return what a study says of its results; or nothing, what is wrong with its headline.json and how to mend it.

    `path` is the YAML file of the study. One damaged file does not hide the other studies.
    """
    try:
        return headline.read(paths, path.stem) or {}, ""
    except UserError as error:
        file = headline.file(paths, path.stem).relative_to(paths.root)
        what = f"{file}: {error.what}. The result of this study is not shown."
    plan = _furthest(path, paths)[1] if listed else None
    if plan is not None:
        mend = remedy([file], calls.snakemake(plan, paths))
    else:
        mend = f"the study is not in this folder; remove it: rm {file}"
    say(f"{what} {mend}")
    return {}, f"{what} {mend[:1].upper()}{mend[1:]}"


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
    done, plan, fault = _furthest(path, paths)
    if plan is None:
        return f"not valid: {fault}"
    scale = f" at scale {plan.scale}" if plan.scaled else ""
    return f"incomplete: {done} of {len(plan.runs)} runs trained{scale}" if done else NOT_RUN


def _furthest(path: Path, paths: Paths) -> tuple[int, Plan | None, str]:
    """Return the finished runs of a study at the scale with most of them, and its plan; or what is wrong with it."""
    try:
        plans = [study.load(path, scale) for scale in get_args(Scale)]
    except UserError as error:
        return 0, None, str(error).splitlines()[0]
    counts = [sum(paths.run_files(run).manifest.exists() for run in plan.runs) for plan in plans]
    done, plan = max(zip(counts, plans, strict=True), key=lambda one: (one[0], len(one[1].runs)))
    return done, plan, ""


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
