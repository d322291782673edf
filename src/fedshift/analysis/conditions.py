"""The conditions of a study, runs that differ in their seed only, and its cells: conditions at a site, by selectors.

    { algorithm: fedavg, bn: local, training.local_epochs: 4, inference: { name: tsmobn, momentum: 0.5 } }

Published values, trends and hypotheses name what they are about by selectors. Imports neither torch nor pandas: the
workflow reads them before anything runs.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core import digest, registry
from ..core.errors import UserError
from ..study.published import BASELINE, CHOICES, resolved

if TYPE_CHECKING:
    from ..data.partition import Partition
    from ..study.plan import Plan
    from ..study.run import Run


CONDITION = ["algorithm", "bn", "addon", "held_out"]
"""The columns of scores.csv that describe a condition in words."""
ALL = "*"
"""In the column held_out: the mean over all partitions. In the column site: the mean over all sites of a role."""
ABSENT = object()
"""The value of a setting that a condition does not have."""
_NONE = "null"
TRANSFORMS = ("data.prepare", "transforms")
"""Settings that are lists of transforms."""
_PLACE = ("inference", "role", "site")
UNION = "union"
"""A site of selectors: the test images of all sites of a role together."""
MEAN = "mean"
"""A client of an inference in selectors: each client's network predicts, and the mean of their scores counts."""


@dataclass(frozen=True, eq=False)
class Condition:
    """Runs of a study that differ in their seed only and, where patients are tested in folds, in the fold.

    Attributes
    ----------
    id : derived from the settings of the runs, so that equal conditions of two studies share it. It names files.
    family : the id of the mean over partitions: conditions of one family differ in their partition
    algorithm, bn, addon, held_out : the words of scores.csv. No two conditions of a study agree in all four.
    runs : the runs by their ids, one for each seed and fold
    inferences : ids of the inferences that the study asks of the runs, in the order of the study
    level_inference : the id of the inference whose levels are reported: the baseline if it is asked for, else the
        first. One that uses labels of the site is reported only where there is no other.
    compared_inference : the id of the inference that is compared with the baseline: the first that adapts to a site,
        and needs no labels
    """

    id: str
    family: str
    algorithm: str
    bn: str
    addon: str
    held_out: str
    runs: dict[str, Run]
    inferences: tuple[str, ...]
    level_inference: str
    compared_inference: str | None

    @property
    def run(self) -> Run:
        """The first of the runs. The others differ from it in their seed and fold only."""
        return next(iter(self.runs.values()))

    @property
    def partition(self) -> Partition:
        """The partition that all runs are trained on."""
        return self.run.partition

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs, each once."""
        return tuple(dict.fromkeys(run.seed for run in self.runs.values()))

    @property
    def folded(self) -> bool:
        """True where the runs test the patients of internal sites in several folds."""
        return len({run.partition.split.fold for run in self.runs.values()}) > 1

    @property
    def words(self) -> dict[str, str]:
        """The columns CONDITION."""
        return {name: getattr(self, name) for name in CONDITION}

    @property
    def title(self) -> str:
        """The name for people, without the partition: `FedAvg, aggregated BN`."""
        run = self.run
        name = self.algorithm.replace(run.algorithm.name, run.algorithm.display_name, 1)
        addon = f" + {self.addon.replace(run.addon.name, run.addon.display_name, 1)}" if run.addon else ""
        return f"{name}{addon}, {self.bn.replace('_', ' ')} BN"

    def full_title(self, several: bool) -> str:
        """Return the title, with the partition where the study has several."""
        return f"{self.title}, held out {self.held_out}" if several else self.title

    @property
    def tests_inside(self) -> bool:
        """True where internal sites keep test samples. If not, all of theirs train or validate."""
        return self.partition.split.test > 0

    def sites(self) -> Iterator[tuple[str, str]]:
        """Yield role and site wherever there are test samples: internal sites first, in the order of the study."""
        yield from (("internal", site) for site in self.partition.internal if self.tests_inside)
        yield from (("external", site) for site in self.partition.external)

    def setting(self, path: str) -> Any:
        """Return the value at a dotted path of the specification, or ABSENT."""
        value: Any = self.run.spec
        for part in path.split("."):
            if not isinstance(value, dict) or part not in value:
                return ABSENT
            value = value[part]
        return value

    @property
    def settings(self) -> dict[str, str]:
        """Every setting but the seed by its dotted path, values as JSON."""
        return _settings(self.run)


def conditions(plan: Plan) -> dict[str, Condition]:
    """Return the conditions of a plan by their ids, in the order of the study."""
    runs: dict[str, dict[str, Run]] = {}
    for name, run in plan.runs.items():
        runs.setdefault(run.condition, {})[name] = run
    words = _words({id_: next(iter(members.values())) for id_, members in runs.items()})
    families: dict[tuple[str, ...], list[str]] = {}
    for id_, (*method, _) in words.items():
        families.setdefault(tuple(method), []).append(id_)
    made, baseline = {}, plain(plan)
    for id_, members in runs.items():
        predicted = {inference for name in members for inference in plan.predictions(name)}
        asked = {key: inference for key, inference in plan.inferences.items() if key in predicted}
        unlabelled = [key for key, inference in asked.items() if not inference.uses_labels]
        level = baseline if baseline in unlabelled else next(iter(unlabelled or asked), "")
        compared = next((key for key in unlabelled if asked[key].adapts), None)
        run, alike = next(iter(members.values())), families[tuple(words[id_][:-1])]
        family = f"{run.algorithm.name}-{run.bn}-{digest.of(sorted(alike))}"
        made[id_] = Condition(id_, family, *words[id_], members, tuple(asked), level, compared)
    return made


def plain(plan: Plan) -> str | None:
    """Return the id of the baseline inference: training statistics, and no labels of the site. None without one."""
    return next((k for k, i in plan.inferences.items() if i.name == BASELINE and not i.uses_labels), None)


def several(conditions: Iterable[Condition]) -> bool:
    """Return whether the conditions are trained on several partitions."""
    return len({condition.held_out for condition in conditions}) > 1


def averaged(conditions: Iterable[Condition]) -> bool:
    """Return whether a mean over partitions says something: where each of them leaves out other sites.

    Partitions of the same clients, or that leave out nothing (more clients or fewer), are compared, not averaged.
    """
    all_ = list(conditions)
    clients = {one.held_out: frozenset(one.partition.internal) for one in all_}
    leave_out = all(one.partition.external for one in all_)
    return several(all_) and leave_out and len(set(clients.values())) == len(clients)


def _words(runs: dict[str, Run]) -> dict[str, tuple[str, str, str, str]]:
    """Return the columns CONDITION of each condition, given one of its runs.

    Where conditions would be called the same, the settings that tell them apart are added to the algorithm.
    """
    words: dict[str, tuple[str, str, str, str]] = {
        id_: (run.method, run.bn, run.addon.label if run.addon else "", run.partition.without_fold().title)
        for id_, run in runs.items()
    }
    alike: dict[tuple[str, ...], list[str]] = {}
    for id_, columns in words.items():
        alike.setdefault(columns, []).append(id_)
    for group in alike.values():
        settings = {id_: _settings(runs[id_]) for id_ in group} if len(group) > 1 else {}
        names = distinguishing_settings(list(settings.values()))
        for id_, values in settings.items():
            present = {key: values[key] for key in names if values.get(key, _NONE) != _NONE}
            inside = ", ".join(_word(key, value) for key, value in present.items())
            algorithm, bn, addon, held_out = words[id_]
            words[id_] = (f"{algorithm} [{inside}]" if inside else algorithm, bn, addon, held_out)
    return words


def _word(key: str, value: str) -> str:
    """Return a setting in words: `lr=0.1`, or the names of transforms."""
    if key in TRANSFORMS:
        labels = [registry.build("transform", spec).label for spec in json.loads(value)]
        return f"{key.removeprefix('data.')}={'+'.join(labels) or 'none'}"
    return f"{key.removeprefix('training.')}={value}"


def _settings(run: Run) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in run.settings.items() if key != "seed"}


def distinguishing_settings(runs: list[dict[str, str]]) -> list[str]:
    """Return the names of the settings by which runs differ, sorted; runs that differ still differ in a returned one.

    A list or a number is left out if its value follows from another returned setting. Of settings that determine each
    other, one is returned: one that every run has, the first by name.
    """
    columns = {key: [run.get(key, _NONE) for run in runs] for run in runs for key in run}
    names = [key for key, values in columns.items() if len(set(values)) > 1]
    names.sort(key=lambda key: (_has_lists(columns[key]), _NONE in columns[key], key))

    def decides(other: str, one: str) -> bool:
        pairs = set(zip(columns[other], columns[one], strict=True))
        return not _has_lists(columns[other]) and len(pairs) == len(set(columns[other]))

    for one in names[::-1]:
        # a setting of which any value is a text or a truth value always stays
        words = any(value.startswith(('"', "t", "f")) for value in columns[one])
        if not words and any(decides(other, one) for other in names if other != one):
            names.remove(one)
    return sorted(names)


def _has_lists(values: list[str]) -> bool:
    return any(value.startswith("[") for value in values)


@dataclass(frozen=True)
class Cell:
    """A condition under an inference at a site. The inference is empty for quantities recorded while training.

    With several `networks`, ids of inferences, the cell is the mean of the scores under each of them. The site UNION
    stands for all test images of the role.
    """

    condition: Condition
    inference: str
    role: str
    site: str
    networks: tuple[str, ...] = ()

    def key(self, metric: str) -> tuple[str, ...]:
        """Return the values of `values.LEVELS` for a metric of this cell."""
        return self.condition.id, self.role, self.site, self.inference, metric

    @property
    def ids(self) -> str:
        """The ids of condition and inference in one word: `fedavg-local-0123456789/source`; several for a mean."""
        inferences = self.networks or (self.inference,)
        return " ".join("/".join(filter(None, [self.condition.id, inference])) for inference in inferences)


def differing(cells: Iterable[Cell]) -> list[str]:
    """Return the settings in which cells differ, without the seed."""
    cells = list(cells)
    columns = [cell.condition.settings | {name: getattr(cell, name) for name in _PLACE} for cell in cells]
    names = dict.fromkeys(name for column in columns for name in column if name not in _PLACE)
    return [name for name in (*names, *_PLACE) if len({column.get(name) for column in columns}) > 1]


class Finder:
    """The conditions of a plan, looked up by selector."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.conditions = list(conditions(plan).values())

    def cells(self, selector: Mapping[str, Any], *, predicted: bool = True) -> list[Cell]:
        """Return every condition, inference, role and site that fits a merged selector, in the order of the study.

        Where no inference is named it is `source`, if the study asks for that. With `predicted` False: the internal
        sites, without an inference, for quantities that are recorded while training. Raises UserError for a setting
        that no run has.
        """
        return list(self._cells(digest.canonical(selector), predicted))

    @functools.cache  # noqa: B019 - lives as long as the finder
    def _cells(self, canonical: str, predicted: bool) -> tuple[Cell, ...]:
        wanted = resolved(json.loads(canonical))
        for path in (key for key in wanted if "." in key):
            if all(condition.setting(path) is ABSENT for condition in self.conditions):
                raise UserError(path, "no run of the study has this setting")
        union = predicted and wanted.get("site") == UNION
        return tuple(
            Cell(condition, " ".join(networks), role, site, networks[1:] and networks)
            for condition in self.conditions
            if all(_has(condition, key, value) for key, value in wanted.items())
            for networks in self._networks(condition, wanted, predicted)
            for role, site in _sites(condition, predicted, union)
            if wanted.get("role", role) == role and wanted.get("site", site) == site
        )

    def _networks(self, condition: Condition, wanted: Mapping[str, Any], predicted: bool) -> list[tuple[str, ...]]:
        """Return the ids of a condition's inferences that a selector means, each alone; or all those of a mean at once.

        A mean needs the network of every client: none is returned where one is not predicted.
        """
        named = wanted.get("inference", {})
        if not predicted or named.get("client") != MEAN:
            return [(inference,) for inference in self._inferences(condition, wanted, predicted)]
        networks = []
        for client in condition.partition.internal:
            networks += self._inferences(condition, {**wanted, "inference": {**named, "client": client}}, predicted)
        return [] if len(networks) < len(condition.partition.internal) else [tuple(networks)]

    def _inferences(self, condition: Condition, wanted: Mapping[str, Any], predicted: bool) -> list[str]:
        """Return the ids of a condition's inferences that a selector means, the plain source where it names none.

        Quantities that are not `predicted` have no inference: its id is empty.
        """
        if not predicted:
            return [""]
        inferences = {key: self.plan.inferences[key] for key in condition.inferences}
        if named := wanted.get("inference"):
            fit = [key for key, i in inferences.items() if named.items() <= i.spec().items()]
            # Of a sweep, the one whose other settings are the defaults is meant.
            changed = {key: set(inferences[key].model_dump(mode="json", exclude_defaults=True)) for key in fit}
            return [key for key in fit if changed[key] <= named.keys()] or fit
        plain = [key for key, i in inferences.items() if i.name == BASELINE and not i.uses_labels]
        return plain[:1] or list(inferences)


def _sites(condition: Condition, predicted: bool, union: bool) -> list[tuple[str, str]]:
    """Return role and site where a condition is tested or, if not `predicted`, trained; for a `union` UNION by role."""
    if union:
        return [(role, UNION) for role in dict.fromkeys(role for role, _ in condition.sites())]
    partition = condition.partition
    sites = set(condition.run.tested if predicted else partition.internal)
    return [(role, site) for role in CHOICES["role"] for site in getattr(partition, role) if site in sites]


def _has(condition: Condition, key: str, value: Any) -> bool:
    """Return whether a condition has a setting of a resolved selector; True of its sites and inferences."""
    if key in ("algorithm", "addon", "model"):
        setting = condition.run.spec[key]
        if value is None or setting is None:
            return value is setting
        return all(setting.get(name, ABSENT) == v for name, v in value.items())
    if key == "held_out":
        return bool(condition.partition.title == value)
    if key == "norms":
        return list(condition.run.norms) == value
    if key == "bn" or "." in key:
        return bool(condition.setting(key) == value)
    return True


def primary_pairs(plan: Plan) -> list[tuple[Cell, Cell]]:
    """Return the two sides of each comparison that the study declares as its primary one; none without one.

    A side is a condition under an inference. Both have the same data and the same external sites. Raises UserError
    where a side matches no condition; at mini scale there are then no pairs.
    """
    primary = plan.study.primary
    mini = plan.scale == "mini"
    if primary is None:
        return []
    where = f"{plan.path}.primary"
    finder = Finder(plan)
    sides = {}
    for name in ("condition", "against"):
        try:
            # Any site stands for the condition here: pairs are formed of conditions, and sites follow from them.
            sides[name] = {cell.ids: cell for cell in finder.cells(getattr(primary, name))}
        except UserError as error:
            if mini:
                return []
            raise UserError(f"{where}.{name}", f"{error.where} {error.what}", error.remedy) from None
        if not sides[name] and not mini:
            raise UserError(
                f"{where}.{name}", "matches no condition of the study", "use settings and values of its runs"
            )
    both = itertools.product(*(side.values() for side in sides.values()))
    made = [(first, second) for first, second in both if first.ids != second.ids and _alike(first, second)]
    if not made and not mini:
        raise UserError(where, "condition and against are not tested at the same sites", "compare within a partition")
    return made


def _alike(first: Cell, second: Cell) -> bool:
    """Return whether two conditions test the same data at the same external sites."""
    tested = [(cell.condition.run.data.source, cell.condition.partition.external) for cell in (first, second)]
    return bool(tested[0] == tested[1])
