"""The index reports/index.html: all studies, their outcomes, and the tables and figures of papers that they reproduce.

A study from an earlier call is shown as recorded in its headline.json, which is written together with its page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from .. import study
from ..analysis import published_words
from ..analysis.published_values import VERDICTS, Reproduction
from ..analysis.published_words import Item
from ..analysis.study_results import StudyResults
from ..analysis.values import DASH
from ..core.console import say
from ..core.errors import UserError
from ..datasets import Scale
from ..io.checksums import damage, remedy
from ..io.paths import Paths, one_spelling, papers
from ..io.text import read_json, require_object, write_json, write_text
from ..study import Plan, calls
from .html import render
from .phrases import capital

COMPLETE = "complete"
NOT_RUN = "not run"
KINDS = {
    "title": "text",
    "scale": "text",
    "lead": "text",
    "runs": "a whole number",
    "missing": "a whole number",
    "trends": "a mapping",
    "published": "a mapping",
    "reproduces": "a list of texts",
}
"""The entries of headline.json that the index reads, with the type that each must have if it exists."""


@dataclass(frozen=True)
class Entry:
    """One study in the index.

    Attributes
    ----------
    name, title : name of the YAML file, and title of the study
    reproduces : ids of the tables and figures of papers that it reproduces
    state : complete, or what is missing or wrong
    scale : mini or paper; empty if the data are the same at every scale
    synthetic : whether the data are invented
    lead : the study's answer in sentences
    problems : failed checks of the data
    trends, published : how many of the papers' trends and values hold; a dash without a result
    link : link to the page; empty without one
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
        """True if the study is complete, at its full scale, and on real data."""
        return self.state == COMPLETE and self.scale in ("paper", "") and not self.synthetic


def write(studies: Path, paths: Paths) -> Path:
    """Write reports/index.html and return its path.

    It lists the studies declared in the folder `studies`, and others that have a headline.json.
    """
    out = paths.page("index")
    entries = list(_entries(studies, paths))
    items = _items(studies, entries)
    of = {id_: [entry for entry in entries if id_ in entry.reproduces] for id_ in items}
    content = {
        "entries": entries,
        "own": [entry for entry in entries if not entry.reproduces],
        "of_papers": [entry for entry in entries if entry.reproduces],
        "items": items,
        "coverage": [(item, of[item.id]) for item in items.values() if item.kind != "S"],
        "settings": [(item, of[item.id]) for item in items.values() if item.kind == "S"],
        "kinds": published_words.KINDS,
        "synthetic": False,
        "missing": (),
    }
    write_text(out, render("index.html.j2", content))
    return out


def _items(studies: Path, entries: list[Entry]) -> dict[str, Item]:
    """Return the tables and figures of papers, by id, that the project lists or else that studies reproduce."""
    listing = papers(studies)
    items = published_words.items(listing) if listing.exists() else {}
    if listing.parent == studies.parent:
        return items
    reproduced = {item for entry in entries for item in entry.reproduces}
    return {key: item for key, item in items.items() if key in reproduced}


def write_headline(results: StudyResults, lead: str, reproduction: Reproduction, problems: Sequence[str] = ()) -> Path:
    """Write results/studies/{study}/headline.json, a study's summary for the index, and return its path.

    `lead` is the study's answer in sentences, and `problems` are the failed checks of its data. A run that lacks any
    prediction counts as missing. `reproduction` compares the results with those of papers.
    """
    plan = results.plan
    out = results.files.headline
    missing = {item["run"] for item in results.missing}
    headline: dict[str, Any] = {
        "study": plan.name,
        "file": one_spelling(plan.path),
        "title": plan.study.title,
        "scale": plan.scale,
        "scaled": plan.scaled,
        "synthetic": results.synthetic,
        "view": plan.view,
        "runs": len(plan.runs),
        "missing": len(missing & set(plan.runs)),
        "lead": lead,
        "problems": list(problems),
        "reproduces": list(plan.study.reproduces),
        **reproduction.headline(),
    }
    write_json(out, headline)
    return out


def read_headline(paths: Paths, study: str) -> dict[str, Any]:
    """Return the content of a study's headline.json; empty if there is none, or if it belongs to another study.

    Raises UserError if the file is damaged or unreadable.
    """
    path = paths.study_files(study).headline
    if not path.exists():
        return {}
    if fault := damage(path):
        raise UserError(path, fault)
    headline = require_object(path, read_json(path), {"study": "text"}, KINDS)
    if trends := headline.get("trends"):
        require_object(
            path, trends, dict.fromkeys(("held", "doubtful", "judged", "of"), "a whole number"), {"reason": "text"}
        )
    if published := headline.get("published"):
        require_object(path, published, dict.fromkeys(published, "a whole number"))
    return headline if headline["study"] == study else {}


def _entries(studies: Path, paths: Paths) -> Iterator[Entry]:
    """Yield the declared studies, then those that only have results of earlier calls."""
    declared = published_words.said(studies)
    earlier = sorted(p.parent.name for p in (paths.root / "results" / "studies").glob("*/headline.json"))
    for name in dict.fromkeys([*declared, *earlier]):
        path = study.named(name, studies) or studies / f"{name}.yaml"
        page = paths.page(name)
        headline, fault = _headline(path, paths)
        # the YAML is newer than headline.json, which is as old as the page
        words = declared.get(name) or headline
        reproduces = words.get("reproduces")
        if not isinstance(reproduces, list | tuple):
            reproduces = ()
        yield Entry(
            name=name,
            title=str(words.get("title") or name),
            reproduces=tuple(map(str, reproduces)),
            state="damaged" if fault else _state(path, headline, page, paths),
            scale=str(headline.get("scale", "")) if headline.get("scaled", True) else "",
            synthetic=bool(headline.get("synthetic")),
            lead=str(headline.get("lead", "")),
            problems=tuple(filter(None, [fault, *map(str, headline.get("problems") or ())])),
            trends=_trends(headline.get("trends") or {}),
            published=_published(headline.get("published") or {}),
            link=f"{quote(name)}.html" if page.exists() else "",
        )


def _headline(path: Path, paths: Paths) -> tuple[dict[str, Any], str]:
    """Return the content of a study's headline.json, and what is wrong with the file.

    For an intact file the second part is ''; for a damaged one the first is empty and the second names the remedy.
    `path` is the study's YAML file. The fault is printed as well, and does not stop the other studies.
    """
    try:
        return read_headline(paths, path.stem), ""
    except UserError as error:
        file = paths.study_files(path.stem).headline.relative_to(paths.root)
        fault = f"{file}: {error.what}. The result of this study is not shown."
    mend = f"the study is not in this folder; remove it: rm {file}"
    _, plan, _ = _furthest(path, paths)
    if plan is not None:
        mend = remedy([file], calls.snakemake(plan, paths))
    say(f"{fault} {mend}")
    return {}, f"{fault} {capital(mend)}"


def _state(path: Path, headline: dict[str, Any], page: Path, paths: Paths) -> str:
    """Return the state of a study: complete, or what is missing, outdated or invalid.

    `headline` is the content of its headline.json, and `page` the path of its page.
    """
    if page.exists() and not headline:
        return "an old page: run fedshift report again"
    if not headline:
        return _begun(path, paths)
    if not page.exists():
        return "its page is missing: run fedshift report again"
    if path.exists():
        try:
            # `view` is a digest of the whole study, without comments
            if study.load(path, headline.get("scale", "")).view != headline.get("view"):
                return "out of date: the study has changed since"
        except UserError as error:
            return f"not valid: {str(error).splitlines()[0]}"
    runs, missing = headline.get("runs", 0), headline.get("missing", 0)
    return f"incomplete: {runs - missing} of {runs} runs" if missing else COMPLETE


def _begun(path: Path, paths: Paths) -> str:
    """Return how many runs of a study without a page are finished, at the scale that has most."""
    if not path.exists():
        return NOT_RUN
    done, plan, fault = _furthest(path, paths)
    if plan is None:
        return f"not valid: {fault}"
    if not done:
        return NOT_RUN
    scale = f" at scale {plan.scale}" if plan.scaled else ""
    return f"incomplete: {done} of {len(plan.runs)} runs trained{scale}"


def _furthest(path: Path, paths: Paths) -> tuple[int, Plan | None, str]:
    """Return the number of finished runs and the plan at the scale with most finished runs, and ''.

    If the study's YAML file `path` is not valid, return 0, None and what is wrong with it.
    """
    try:
        plans = [study.load(path, scale) for scale in get_args(Scale)]
    except UserError as error:
        return 0, None, str(error).splitlines()[0]
    counts = [sum(paths.run_files(run).manifest.exists() for run in plan.runs) for plan in plans]
    done, plan = max(zip(counts, plans, strict=True), key=lambda entry: (entry[0], len(entry[1].runs)))
    return done, plan, ""


def _trends(counts: dict[str, Any]) -> str:
    """Return how many trends of papers hold as text: `3 of 4 surely hold; 1 in doubt`; a dash if none is declared.

    `counts` is the entry `trends` of headline.json.
    """
    if not counts.get("of"):
        return DASH
    if counts.get("reason"):
        return f"do not count: {counts['reason']}"
    text = f"{counts['held']} of {counts['judged']} surely hold"
    if counts["doubtful"]:
        text += f"; {counts['doubtful']} in doubt"
    if counts["of"] > counts["judged"]:
        text += f"; {counts['of'] - counts['judged']} not run"
    return text


def _published(counts: dict[str, Any]) -> str:
    """Return how many published values got each verdict as text: `41 within, 15 outside`; a dash without any.

    `counts` maps each verdict to a number.
    """
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts.get(verdict)) or DASH
