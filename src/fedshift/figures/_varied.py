"""The numeric settings that vary between the runs of a study, and the runs that can be compared for each of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

Settings = Mapping[str, Mapping[str, Any]]
"""By run, its settings by dotted path."""
Table = Mapping[str, Mapping[str, Hashable]]
"""By setting, its value in each run."""
FAMILY = ("algorithm.name", "bn", "addon", "addon.name", "model.name")
"""Settings that all runs of one line share."""
SECOND = ("training.rounds", "training.lr", "partition.limit.val")
"""Settings that are adapted to others: of two settings that vary together, these follow."""
SITES = ("partition.internal", "partition.external", "partition.held_out")
_ABSENT = "<absent>"


def swept(settings: Settings) -> dict[str, list[list[str]]]:
    """Return by setting the groups of runs that differ only in it, in settings that follow it, and in their seed."""
    varied: dict[str, list[list[str]]] = {}
    for family in _families(settings):
        table = _varying(family)
        for key in _leading(table):
            rest = [k for k in table if k != key and not _follows(table, k, key)]
            groups: dict[tuple[Hashable, ...], list[str]] = {}
            for run in family:
                groups.setdefault(tuple(table[k][run] for k in rest), []).append(run)
            several = [runs for runs in groups.values() if len({table[key][run] for run in runs}) > 1]
            if several:
                varied.setdefault(key, []).extend(several)
    return varied


def followers(settings: Settings) -> dict[str, list[str]]:
    """Return by setting that has a panel the numeric settings that change with it in any family of runs."""
    following: dict[str, dict[str, None]] = {}
    for family in _families(settings):
        table = _varying(family)
        for key in _leading(table):
            names = following.setdefault(key, {})
            names |= {k: None for k in table if k != key and _is_numeric(table[k]) and _follows(table, k, key)}
    return {key: list(names) for key, names in following.items()}


def _families(settings: Settings) -> list[Settings]:
    families: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for run, values in settings.items():
        families.setdefault(tuple(values.get(k) for k in FAMILY), {})[run] = values
    return list(families.values())


def _varying(family: Settings) -> Table:
    """Return the settings in which runs differ, except for the seed, with the value of each run."""
    keys = dict.fromkeys(k for values in family.values() for k in values if k != "seed")
    table = {k: {run: _hashable(values.get(k, _ABSENT)) for run, values in family.items()} for k in keys}
    return {k: values for k, values in table.items() if len(set(values.values())) > 1}


def _hashable(value: Any) -> Hashable:
    return value if isinstance(value, Hashable) else str(value)


def _is_numeric(values: Mapping[str, Hashable]) -> bool:
    """Return whether all values are numbers or None."""
    return all(v is None or (isinstance(v, int | float) and not isinstance(v, bool)) for v in values.values())


def _follows(table: Table, one: str, other: str) -> bool:
    """Return whether runs with equal `other` have equal `one`, which is numeric or about sites: it may be adapted."""
    pairs = {(table[one][run], table[other][run]) for run in table[one]}
    return (one in SITES or _is_numeric(table[one])) and len(pairs) == len(set(table[other].values()))


def _leading(table: Table) -> list[str]:
    """Return the numeric settings that follow no other; of those that vary together, the first not in SECOND."""
    keys = [k for k, v in table.items() if _is_numeric(v) and not k.endswith(".seed")]
    keys.sort(key=lambda k: k in SECOND)

    def leads(one: str, other: str) -> bool:
        return _follows(table, other, one) and (not _follows(table, one, other) or keys.index(one) < keys.index(other))

    return [k for k in keys if not any(leads(other, k) for other in keys if other != k)]
