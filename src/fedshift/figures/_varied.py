"""Which numeric settings the runs of a study vary, and which runs can then be compared."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

Settings = Mapping[str, Mapping[str, Any]]
"""Of each run, its settings by dotted path."""
Table = Mapping[str, Mapping[str, Hashable]]
"""Of each setting, its value in each run."""
FAMILY = ("algorithm.name", "bn", "addon", "addon.name", "model.name")
"""Runs that differ in one of these are never on one line."""
SECOND = ("training.rounds", "training.lr", "partition.limit.val")
"""Settings that are adapted to others: of two that vary together, they are the one that follows."""
SITES = ("partition.internal", "partition.external", "partition.held_out")
_ABSENT = "<absent>"


def swept(settings: Settings) -> dict[str, list[list[str]]]:
    """By setting, groups of runs that differ in it, in what follows from it, and in their seed alone."""
    found: dict[str, list[list[str]]] = {}
    for family in _families(settings):
        table = _varying(family)
        for key in _leading(table):
            rest = [k for k in table if k != key and not _follows(table, k, key)]
            groups: dict[tuple[Hashable, ...], list[str]] = {}
            for run in family:
                groups.setdefault(tuple(table[k][run] for k in rest), []).append(run)
            several = [runs for runs in groups.values() if len({table[key][run] for run in runs}) > 1]
            if several:
                found.setdefault(key, []).extend(several)
    return found


def followers(settings: Settings) -> dict[str, list[str]]:
    """By setting that has a panel, the numeric ones that change with it in any family."""
    found: dict[str, dict[str, None]] = {}
    for family in _families(settings):
        table = _varying(family)
        for key in _leading(table):
            names = found.setdefault(key, {})
            names |= {k: None for k in table if k != key and _is_numeric(table[k]) and _follows(table, k, key)}
    return {key: list(names) for key, names in found.items()}


def _families(settings: Settings) -> list[Settings]:
    found: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for run, own in settings.items():
        found.setdefault(tuple(own.get(k) for k in FAMILY), {})[run] = own
    return list(found.values())


def _varying(family: Settings) -> Table:
    """The settings in which runs differ, their seed apart: the value of each run."""
    keys = dict.fromkeys(k for own in family.values() for k in own if k != "seed")
    table = {k: {run: _hashable(own.get(k, _ABSENT)) for run, own in family.items()} for k in keys}
    return {k: values for k, values in table.items() if len(set(values.values())) > 1}


def _hashable(value: Any) -> Hashable:
    return value if isinstance(value, Hashable) else str(value)


def _is_numeric(values: Mapping[str, Hashable]) -> bool:
    """Whether all are numbers, or None beside numbers."""
    return all(v is None or (isinstance(v, int | float) and not isinstance(v, bool)) for v in values.values())


def _follows(table: Table, one: str, other: str) -> bool:
    """Whether `one` may be adapted to `other`: runs that agree in `other` agree in `one`. Words never are."""
    pairs = {(table[one][run], table[other][run]) for run in table[one]}
    return (one in SITES or _is_numeric(table[one])) and len(pairs) == len(set(table[other].values()))


def _leading(table: Table) -> list[str]:
    """The numeric settings that follow no other: of those that vary together, the first not in SECOND."""
    keys = [k for k, v in table.items() if _is_numeric(v) and not k.endswith(".seed")]
    keys.sort(key=lambda k: k in SECOND)

    def leads(one: str, other: str) -> bool:
        return _follows(table, other, one) and (not _follows(table, one, other) or keys.index(one) < keys.index(other))

    return [k for k in keys if not any(leads(other, k) for other in keys if other != k)]
