"""The numeric settings that vary between the runs of a study, and the runs that can be compared for each of them."""

from __future__ import annotations

from collections import defaultdict
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
        for key in _leading(family):
            # What follows the setting may differ along a line; everything else is the same on it.
            fixed = [name for name in family if name != key and not _follows(family, name, key)]
            groups: dict[tuple[Hashable, ...], list[str]] = defaultdict(list)
            for run in family[key]:
                groups[tuple(family[name][run] for name in fixed)].append(run)
            for runs in groups.values():
                if len({family[key][run] for run in runs}) > 1:
                    varied.setdefault(key, []).append(runs)
    return varied


def followers(settings: Settings) -> dict[str, list[str]]:
    """Return by varied setting the numeric settings that change with it in any family of runs."""
    following: dict[str, list[str]] = defaultdict(list)
    for family in _families(settings):
        for key in _leading(family):
            names = (name for name in family if name != key and _is_numeric(family[name]))
            following[key] += [name for name in names if _follows(family, name, key)]
    return {key: list(dict.fromkeys(names)) for key, names in following.items()}


def _families(settings: Settings) -> list[Table]:
    """Return the settings, the seed apart, in which runs of one algorithm, BN policy, add-on and model differ."""
    families: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for run, values in settings.items():
        families[tuple(values.get(key) for key in FAMILY)][run] = values
    return [_varying(family) for family in families.values()]


def _varying(family: Settings) -> Table:
    names = dict.fromkeys(name for values in family.values() for name in values if name != "seed")
    table = {name: {run: _hashable(values.get(name, _ABSENT)) for run, values in family.items()} for name in names}
    return {name: values for name, values in table.items() if len(set(values.values())) > 1}


def _hashable(value: Any) -> Hashable:
    return value if isinstance(value, Hashable) else str(value)


def _is_numeric(values: Mapping[str, Hashable]) -> bool:
    """Return whether all values are numbers or None."""
    return all(v is None or (isinstance(v, int | float) and not isinstance(v, bool)) for v in values.values())


def _follows(table: Table, name: str, leader: str) -> bool:
    """Return whether `leader` determines the setting `name`, which is numeric or about sites: it may be adapted."""
    # As many pairs as values of the leader: each of these values goes with one value of the setting.
    pairs = set(zip(table[name].values(), table[leader].values(), strict=True))
    return (name in SITES or _is_numeric(table[name])) and len(pairs) == len(set(table[leader].values()))


def _leading(table: Table) -> list[str]:
    """Return the numeric settings; of those that vary together only the first, and SECOND last.

    A setting that is coarser than another one needs no rule here: all runs with equal values of the finer one have
    equal values of the coarser one, so that `swept` finds no group for it.
    """
    names = [name for name, values in table.items() if _is_numeric(values) and not name.endswith(".seed")]
    names.sort(key=lambda name: name in SECOND)

    def together(name: str, earlier: str) -> bool:
        return _follows(table, name, earlier) and _follows(table, earlier, name)

    return [name for n, name in enumerate(names) if not any(together(name, earlier) for earlier in names[:n])]
