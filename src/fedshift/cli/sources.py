"""The command `fedshift sources`: where the raw files of datasets come from."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from ..core import registry
from ..datasets import Dataset
from ..io.download import Source
from .group import Group


def add(group: Group) -> None:
    """Add the command `fedshift sources` to a group."""
    command = group.add(sources)
    command.add_argument("dataset", nargs="?", help="name of a dataset, with its default settings; default: all")


def sources(args: argparse.Namespace) -> int:
    """List the addresses, licences, sizes and checksums of raw files."""
    names = [args.dataset] if args.dataset else registry.names("dataset")
    for name, dataset in _datasets(names):
        for line in _lines(name, dataset):
            print(line)
    return 0


def _datasets(names: Iterable[str]) -> Iterator[tuple[str, Dataset | None]]:
    """Yield datasets with their default settings by name; None for one that needs settings of the user."""
    for name in names:
        cls = registry.get("dataset", name)
        needs = any(field.is_required() for field in cls.model_fields.values())
        yield cls.name, None if needs else registry.build("dataset", name)


def _lines(name: str, dataset: Dataset | None) -> Iterator[str]:
    """Yield the lines about a dataset: its title and licence, and each origin with its files."""
    if dataset is None:
        yield f"{name}: your own files, where the study says"
        return
    card = dataset.card()
    origins = dataset.origins()
    yield f"{name}: {card.title}; licence: {card.licence}"
    if not origins:
        yield "  made here: nothing is downloaded"
    for origin in origins:
        licence = origin.licence and f"; licence: {origin.licence}"
        yield f"  {origin.name}{licence}"
        for source in origin.sources:
            yield f"    {source.filename}: {_known(source)}"
            yield f"      {source.url or f'no lasting address: by hand, into the mirror, from {source.page}'}"


def _known(source: Source) -> str:
    """Return size and checksum of a file, as far as they are published."""
    size = "size not published" if source.size is None else f"{source.size:,} bytes"
    sums = [f"{kind} {value}" for kind, value in (("sha256", source.sha256), ("md5", source.md5)) if value]
    return f"{size}, {' and '.join(sums) or 'checksum not published'}"
