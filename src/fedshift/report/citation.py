"""How to cite a page: as text and as BibTeX, with the digest of its study, so that a reader finds the same one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .. import __version__
from ..analysis.results import StudyResults
from .history import Trained

_SPECIAL = re.compile(r"([&%$#_{}])")


@dataclass(frozen=True)
class Citation:
    """A page as others cite it.

    Attributes
    ----------
    study, digest : name of the study, and the first letters of the digest of its declaration
    date, commit : when its last run began, and the commit of its code; empty where runs differ, or none is finished
    text, bibtex : what is copied
    """

    study: str
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
    return Citation(plan.name, digest, date, commit, text, bibtex)


def _escaped(text: str) -> str:
    """Return a text with the characters that are special in TeX escaped."""
    return _SPECIAL.sub(r"\\\1", text.replace("\\", r"\textbackslash "))
