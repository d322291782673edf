"""The command `fedshift sources`: where the raw files of datasets come from, and whether their servers answer."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from ..core import registry
from ..core.limits import Limit
from ..datasets import Dataset
from ..io.download import Source
from ..io.heads import Answer, ask
from .group import Group

AT_ONCE: Limit[int] = 4
"""Most servers that are asked at the same time."""


def add(group: Group) -> None:
    """Add the command sources."""
    command = group.add(sources, "sources", "list the addresses, licences, sizes and checksums of raw files")
    command.add_argument("dataset", nargs="?", help="name of a dataset, with its default settings; default: all")
    command.add_argument("--check", action="store_true", help="ask each address for its head; exit code 1 if one fails")


def sources(args: argparse.Namespace) -> int:
    """Print where raw files come from and, with --check, what their servers answer; 1 if an address is dead."""
    sets = dict(_datasets([args.dataset] if args.dataset else registry.names("dataset")))
    known = {dataset.name: dataset.origins() for dataset in sets.values() if dataset}
    files = [source for origins in known.values() for origin in origins for source in origin.sources]
    answers = _ask(files) if args.check else {}
    for name, dataset in sets.items():
        for line in _lines(name, dataset, answers):
            print(line)
    dead = sorted({str(source.url) for source, answer in answers.items() if not answer.alive})
    if args.check:
        print(f"{len(answers)} addresses asked, {len(dead)} dead")
    return int(bool(dead))


def _datasets(names: Iterable[str]) -> Iterator[tuple[str, Dataset | None]]:
    """Yield datasets with their default settings by name; None for one that needs settings of the user."""
    for name in names:
        cls = registry.get("dataset", name)
        needs = any(field.is_required() for field in cls.model_fields.values())
        yield cls.name, None if needs else registry.build("dataset", name)


def _ask(files: Iterable[Source]) -> Mapping[Source, Answer]:
    """Return what the server of each file answers; each file is asked for once."""
    asked = [source for source in dict.fromkeys(files) if source.url]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(asked, pool.map(ask, asked), strict=True))


def _lines(name: str, dataset: Dataset | None, answers: Mapping[Source, Answer]) -> Iterator[str]:
    """Yield the lines about a dataset: its title and licence, and each origin with its files."""
    if dataset is None:
        yield f"{name}: your own files, where the study says"
        return
    card, origins = dataset.card(), dataset.origins()
    yield f"{name}: {card.title}; licence: {card.licence}"
    if not origins:
        yield "  made here: nothing is downloaded"
    for origin in origins:
        yield f"  {origin.name}{f'; licence: {origin.licence}' if origin.licence else ''}"
        for source in origin.sources:
            yield f"    {source.filename}: {_known(source)}"
            yield f"      {source.url or f'no lasting address: by hand, into the mirror, from {source.page}'}"
            if source in answers:
                yield f"      {answers[source]}"


def _known(source: Source) -> str:
    """Return size and checksum of a file, as far as they are published."""
    size = "size not published" if source.size is None else f"{source.size:,} bytes"
    sums = [f"{kind} {value}" for kind in ("sha256", "md5") if (value := getattr(source, kind))]
    return f"{size}, {' and '.join(sums) or 'checksum not published'}"
