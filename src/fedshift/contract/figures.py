"""Checks of figures, on invented results of a study, some of which are missing or undefined."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pandas as pd

from ..analysis import score
from ..core import registry
from ..figures import Figure, Results
from ..figures._canvas import INK
from .case import Broken, Case, made, require

NASTY = '<b>"&$x</b>'
"""A site's name full of markup, which a figure must escape."""
Kind = type[Figure]
LIMIT = 200_000
"""The most characters that the SVG of a figure may have."""


def row(condition: str, site: str, value: float, role: str = "internal", **columns: Any) -> dict[str, Any]:
    """Return an invented row of a study's score table: the accuracy `value` at a site. `columns` replace or add values.

    `condition` (algorithm x batch norm policy x settings) and seed make the run's id.
    """
    seed = columns.get("seed", 0)
    return {
        "run": f"{condition}-{seed}",
        "condition": condition,
        "held_out": "",
        "site": site,
        "role": role,
        "inference": "source",
        "shown": "Source",
        "momentum": None,
        "batch_size": None,
        "order": None,
        "seed": seed,
        "metric": "accuracy",
        "value": value,
        "n": 100,
    } | columns


def moment(number: int, site: str, split: str, loss: float, accuracy: float = 0.5, **columns: Any) -> dict[str, Any]:
    """Return an invented row of a study's table of rounds: loss and accuracy at a site in round `number`.

    `split` is train or val; only rows of train have traffic. `columns` replace or add values.
    """
    moved = 1000 * (split == "train")
    base = {"round": number, "site": site, "split": split, "loss": loss, "accuracy": accuracy, "seed": 0}
    base |= {"floats_down": moved, "floats_up": moved, "condition": "FedAvg", "held_out": ""} | columns
    return {"run": f"{base['condition']}-{base['seed']}-{base['held_out']}"} | base


def results_of(
    scores: Iterable[dict[str, Any]] = (),
    rounds: Iterable[dict[str, Any]] = (),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    metric: str = "accuracy",
) -> Results:
    """Return a study's results made of rows of scores and of rounds (see `row` and `moment`).

    Sites are ordered by their first row. `settings` maps a run's id to its settings by dotted path, and `metric` is the
    headline metric.
    """
    table = pd.DataFrame(list(scores))
    history = pd.DataFrame(list(rounds))
    if len(table):
        table = table.astype(score.TYPES)
    both: list[Any] = [t[t["role"] == r]["site"] if len(t) else [] for t in (table,) for r in ("internal", "external")]
    trained: Any = history[history["split"] == "train"]["site"] if len(history) else []
    return Results(
        scores=table,
        rounds=history,
        internal=tuple(dict.fromkeys([*both[0], *(s for s in trained if s != "pooled")])),
        external=tuple(dict.fromkeys(both[1])),
        headline=registry.build("metric", metric),
        classes=("a", "b"),
        settings=settings or {},
    )


def cases(cls: Kind) -> Iterator[Case]:
    """Yield the checks that a figure class must pass."""
    for problem in ("scores", "nothing", "lost sites", "undefined values"):
        yield Case(f"it is deterministic and draws any results: {problem}", partial(draws, cls, problem))


def _costly(*arguments: object) -> Any:
    """Raise Broken: stands for a slow function of the results that a caption must not call."""
    raise Broken("its caption reads predictions, which takes long; do that in `draw`")


def _require_harmless(figure: Figure, root: ElementTree.Element) -> None:
    """Raise Broken if an SVG has a script, a link out of the page, or images although `shows_images` is False."""
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    require("script" not in tags, "it holds a script, and a page is looked at only")
    links = [v for e in root.iter() for k, v in e.attrib.items() if k.endswith("href") and v[:1] != "#"]
    away = [link[:40] for link in links if not link.startswith("data:")]
    require(not away, f"it points out of the page, which is read without a network: {away}")
    require(
        "image" not in tags or figure.shows_images, "it shows images: say `shows_images = True`, so that pages know"
    )


def draws(cls: Kind, what: str) -> None:
    """Check the SVG and the caption that a figure makes of invented results, of which `what` names the defect.

    The SVG must be well-formed XML with escaped names, the same each time, without colours of its own for text, and
    below LIMIT characters. Results and matplotlib's settings must stay unchanged.
    """
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
    before = results.scores.copy(), results.rounds.copy()
    text = figure.draw(results)
    require(isinstance(text, str), f"it draws {type(text).__name__}, and must return the SVG as text")
    same = all(map(pd.DataFrame.equals, before, (results.scores, results.rounds)))
    require(same, "it changes the tables of `results`, which other figures read; work on a copy")
    require(dict(matplotlib.rcParams) == style, "it changes matplotlib.rcParams for the figures after it")
    words = "it draws other bytes the second time: draw from no random generator, and leave `results` unchanged"
    require(figure.draw(results) == text, words)
    # Parsed as XML: an unescaped name or an open tag raises here.
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise Broken(f"no XML ({error}); escape names by xml.sax.saxutils.escape, or draw by `picture`") from error
    _require_harmless(figure, root)
    require(root.get("role") == "img", "its root needs role=img")
    costly: Any = dict.fromkeys(("mistakes", "outlines", "cases", "curves"), _costly)
    caption = figure.caption(dataclasses.replace(results, **costly))
    require(isinstance(caption, str), f"its caption is a {type(caption).__name__}, and must be text")
    head = f"{figure.title}: {caption[:20]}"
    require((root[0].text or "").startswith(head), f"its title must begin with {head!r}")
    require(bool(figure.title), "it needs a title")
    require("<b>" not in text, "markup in a name is not escaped")
    require(INK not in text, "text or axes have their own colour: leave it to the page, which may be dark")
    require(len(text) < LIMIT, f"it has {len(text):,} characters, and {LIMIT:,} are the most")
