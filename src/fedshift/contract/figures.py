"""The contract of figures: on any results, also where some are missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from xml.etree import ElementTree

import matplotlib

from ..figures import Figure
from ..figures._canvas import INK
from .case import Case, made, require
from .invented import made as results_of
from .invented import moment, row

NASTY = '<b>"&$x</b>'
Kind = type[Figure]
LIMIT = 200_000
"""Characters that a figure may have."""


def cases(cls: Kind) -> Iterator[Case]:
    """Yield what figures must satisfy."""
    for problem in ("scores", "nothing", "lost sites", "undefined values"):
        yield Case(f"it is deterministic and draws any results: {problem}", partial(draws, cls, problem))


def draws(cls: Kind, what: str) -> None:
    """Check that a figure is well-formed, the same each time, coloured by the page; names that are markup stay text."""
    figure = made(cls)
    scores = [row("FedAvg", site, 0.8, role) for site, role in ((NASTY, "internal"), ("east", "external"))]
    rounds = [moment(number, site, "train", 1 / number) for number in (1, 2) for site in (NASTY, "west")]
    results = results_of(scores, rounds, {"FedAvg-0": {"training.lr": 0.1}})
    if what == "nothing":
        empty = (results.scores.iloc[:0], results.rounds.iloc[:0])
        results = dataclasses.replace(results, scores=empty[0], rounds=empty[1], internal=(), external=())
    if what == "lost sites":
        results = dataclasses.replace(results, internal=(*results.internal, "x"), external=("y", *results.external))
    if what == "undefined values":
        undefined = results.scores.assign(value=float("nan")), results.rounds.assign(loss=float("nan"))
        results = dataclasses.replace(results, scores=undefined[0], rounds=undefined[1])
    style = dict(matplotlib.rcParams)
    text = figure.draw(results)
    require(dict(matplotlib.rcParams) == style, "it changes matplotlib.rcParams for the figures after it")
    words = "it draws other bytes the second time: draw from no random generator, and leave `results` unchanged"
    require(figure.draw(results) == text, words)
    # Parsed as XML: an unescaped name or an open tag raises here.
    root = ElementTree.fromstring(text)
    require(root.get("role") == "img", "its root needs role=img")
    head = f"{figure.title}: {figure.caption(results)[:20]}"
    require((root[0].text or "").startswith(head), f"its title must begin with {head!r}")
    require(bool(figure.title), "it needs a title")
    require("<b>" not in text, "markup in a name is not escaped")
    require(INK not in text, "text or axes have their own colour: leave it to the page, which may be dark")
    require(len(text) < LIMIT, f"it has {len(text):,} characters, and {LIMIT:,} are the most")
