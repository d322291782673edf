"""The conditions of a study (algorithm x batch norm policy x add-on x settings), and how selectors name them.

    { algorithm: fedavg, bn: local, training.local_epochs: 4, inference: { name: tsmobn, momentum: 0.5 } }

All runs of a condition differ in the seed and, with cross-validation, in the fold only. A cell is a condition under an
inference at a site. Published values, trends and hypotheses name cells by selectors, such as the one above. The module
imports neither torch nor pandas, since the workflow reads selectors before anything runs.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
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
"""Stands for the value of a setting that a condition does not have."""
_NONE = "null"
TRANSFORMS = ("data.prepare", "transforms")
"""Dotted paths of the settings whose values are lists of transforms."""
_PLACE = ("inference", "role", "site")
UNION = "union"
"""Value of `site` in a selector that means the test images of all sites of a role together."""
MEAN = "mean"
"""Value of `client` of an inference in a selector: the mean of the scores of the networks of all clients."""


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition of a study (algorithm x batch norm policy x add-on x settings), with its runs.

    The runs differ in their seed and, with cross-validation, in the fold only.

    Attributes
    ----------
    id : an id that is derived from the settings, so that equal conditions of two studies share it; part of file names
    family : the id of the mean over partitions; conditions of one family differ in their partition alone
    algorithm, bn, addon, held_out : the columns of scores.csv that describe the condition. No two conditions of a study
        agree in all four.
    runs : the runs by their ids, one for each seed and fold
    inferences : ids of the inferences that the study asks of the runs, in the order of the study
    level_inference : the id of the inference whose scores are reported: the baseline (training statistics) if the study
        has it, else the first. One that uses labels of the site is taken only if there is no other.
    compared_inference : the id of the inference that is compared with the baseline: the first that adapts to a site
        without labels; None without one
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
        """The first run of the condition."""
        return next(iter(self.runs.values()))

    @property
    def partition(self) -> Partition:
        """The partition of the first run, into sites, roles and splits. Runs of other folds test other patients."""
        return self.run.partition

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs, each once."""
        return tuple(dict.fromkeys(run.seed for run in self.runs.values()))

    @property
    def folded(self) -> bool:
        """True if the patients of internal sites are tested by cross-validation, in several folds."""
        return len({run.partition.split.fold for run in self.runs.values()}) > 1

    @property
    def words(self) -> dict[str, str]:
        """The values of the columns algorithm, bn, addon and held_out of scores.csv, by column."""
        return {name: getattr(self, name) for name in CONDITION}

    @property
    def title(self) -> str:
        """The title for people, without the partition: `FedAvg, aggregated BN`."""
        run = self.run
        name = self.algorithm.replace(run.algorithm.name, run.algorithm.display_name, 1)
        addon = f" + {self.addon.replace(run.addon.name, run.addon.display_name, 1)}" if run.addon else ""
        return f"{name}{addon}, {self.bn.replace('_', ' ')} BN"

    def full_title(self, several: bool) -> str:
        """Return the title, followed by the partition if the study has `several`."""
        return f"{self.title}, held out {self.held_out}" if several else self.title

    @property
    def tests_inside(self) -> bool:
        """True if internal sites have test samples, False if all of their samples train or validate."""
        return self.partition.split.test > 0

    def sites(self) -> Iterator[tuple[str, str]]:
        """Yield role and name of each site with test samples, internal sites first, in the order of the study."""
        yield from (("internal", site) for site in self.partition.internal if self.tests_inside)
        yield from (("external", site) for site in self.partition.external)

    def setting(self, path: str) -> Any:
        """Return the value at a dotted `path` of a run's specification, or ABSENT if the path does not exist."""
        value: Any = self.run.spec
        for part in path.split("."):
            if not isinstance(value, dict) or part not in value:
                return ABSENT
            value = value[part]
        return value

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the runs without the seed: JSON values by dotted path."""
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
    """Return the id of the baseline inference, which uses training statistics and no labels of the site.

    Return None if the study does not have it.
    """
    return next((k for k, i in plan.inferences.items() if i.name == BASELINE and not i.uses_labels), None)


def several(conditions: Iterable[Condition]) -> bool:
    """Return whether the conditions are trained on more than one partition."""
    return len({condition.held_out for condition in conditions}) > 1


def averaged(conditions: Iterable[Condition]) -> bool:
    """Return whether the study reports means over partitions.

    It does if each of several partitions holds out other sites, as with leave-one-site-out. Partitions with the same
    clients, or without external sites, are compared instead.
    """
    all_ = list(conditions)
    clients = {one.held_out: frozenset(one.partition.internal) for one in all_}
    leave_out = all(one.partition.external for one in all_)
    return several(all_) and leave_out and len(set(clients.values())) == len(clients)


def _words(runs: dict[str, Run]) -> dict[str, tuple[str, str, str, str]]:
    """Return the columns algorithm, bn, addon and held_out of each condition by its id.

    `runs` maps the id of a condition to one of its runs. If conditions would be described alike, the settings in which
    they differ are added to the column `algorithm`. The value that most of them have is left out, if they can be told
    apart without it.
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
        told = _told(settings, names, usual=_usual(settings, names))
        if len(set(told.values())) < len(settings):
            told = _told(settings, names, usual={})
        for id_, inside in told.items():
            algorithm, bn, addon, held_out = words[id_]
            words[id_] = (f"{algorithm} [{inside}]" if inside else algorithm, bn, addon, held_out)
    return words


def _usual(settings: Mapping[str, dict[str, str]], names: list[str]) -> dict[str, str]:
    """Return the value of each named setting that more conditions have than any other value, where there is one.

    `settings` holds the settings of each condition as JSON by dotted path.
    """
    usual = {}
    for key in names:
        # conditions differ in each of these settings, so that it has a second value
        (value, most), (_, second) = Counter(one.get(key, _NONE) for one in settings.values()).most_common(2)
        if most > second:
            usual[key] = value
    return usual


def _told(settings: Mapping[str, dict[str, str]], names: list[str], usual: dict[str, str]) -> dict[str, str]:
    """Return the text about each condition's named settings, without those that it lacks and those that are usual."""
    told = {}
    for id_, values in settings.items():
        present = [key for key in names if values.get(key, _NONE) not in (_NONE, usual.get(key))]
        told[id_] = ", ".join(_word(key, values[key]) for key in present)
    return told


def _word(key: str, value: str) -> str:
    """Return a setting as text for people: `lr=0.1`, or the names of transforms. `key` is its path, `value` is JSON."""
    if key in TRANSFORMS:
        labels = [registry.build("transform", spec).label for spec in json.loads(value)]
        return f"{key.removeprefix('data.')}={'+'.join(labels) or 'none'}"
    return f"{key.removeprefix('training.')}={value}"


def _settings(run: Run) -> dict[str, str]:
    """Return the settings of a run without the seed: JSON values by dotted path."""
    return {key: json.dumps(value) for key, value in run.settings.items() if key != "seed"}


def distinguishing_settings(runs: list[dict[str, str]]) -> list[str]:
    """Return the names of the settings by which runs differ, sorted; they suffice to tell different runs apart.

    `runs` holds the settings of each run as JSON by dotted path. A setting is left out if its values are numbers or
    lists and follow from another returned setting. Of settings that determine each other, one stays: preferably one
    that every run has, then the first by name.
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
    """Return whether any of some values, written as JSON, is a list."""
    return any(value.startswith("[") for value in values)


@dataclass(frozen=True)
class Cell:
    """A condition under an inference at a site: the place of one score.

    Attributes
    ----------
    inference : the id of the inference; empty for quantities that are recorded during training
    site : the site; UNION for all test images of the role
    networks : ids of several inferences if the cell stands for the mean of the scores under each of them, else empty
    """

    condition: Condition
    inference: str
    role: str
    site: str
    networks: tuple[str, ...] = ()

    def key(self, metric: str) -> tuple[str, ...]:
        """Return the id of the condition, role, site, id of the inference and `metric` of a score of this cell."""
        return self.condition.id, self.role, self.site, self.inference, metric

    @property
    def ids(self) -> str:
        """The ids of condition and inference as text, such as `fedavg-local-0123456789/source`.

        A cell with several networks has such a text for each of them, with spaces between.
        """
        inferences = self.networks or (self.inference,)
        return " ".join("/".join(filter(None, [self.condition.id, inference])) for inference in inferences)


def differing(cells: Iterable[Cell]) -> list[str]:
    """Return the names of all settings, except the seed, in which cells differ; inference, role and site count, too.

    A cell is a condition under an inference at a site.
    """
    cells = list(cells)
    columns = [cell.condition.settings | {name: getattr(cell, name) for name in _PLACE} for cell in cells]
    names = dict.fromkeys(name for column in columns for name in column if name not in _PLACE)
    return [name for name in (*names, *_PLACE) if len({column.get(name) for column in columns}) > 1]


class Finder:
    """A search in a plan for the conditions and sites that a selector (wanted values of settings) names."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.conditions = list(conditions(plan).values())

    def cells(self, selector: Mapping[str, Any], *, predicted: bool = True) -> list[Cell]:
        """Return all cells (condition, inference, role, site) that match a selector, in the order of the study.

        `selector` maps settings to wanted values. If it names no inference, the baseline `source` is meant, if the
        study has it. With `predicted` False, return internal sites without an inference, for quantities that are
        recorded during training. Raises UserError for a setting that no run has.
        """
        return list(self._cells(digest.canonical(selector), predicted))

    @functools.cache  # noqa: B019 - lives as long as the finder
    def _cells(self, canonical: str, predicted: bool) -> tuple[Cell, ...]:
        """Return the cells for a selector that is written as canonical JSON, which serves as key of the cache.

        See `cells`.
        """
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
        """Return the ids of a condition's inferences that a selector means, as one tuple for each cell.

        `wanted` is the selector. A tuple has several ids if the selector asks for the mean over the networks of all
        clients. Return an empty list if the network of one of these clients is not predicted.
        """
        named = wanted.get("inference", {})
        if not predicted or named.get("client") != MEAN:
            return [(inference,) for inference in self._inferences(condition, wanted, predicted)]
        networks = []
        for client in condition.partition.internal:
            networks += self._inferences(condition, {**wanted, "inference": {**named, "client": client}}, predicted)
        return [] if len(networks) < len(condition.partition.internal) else [tuple(networks)]

    def _inferences(self, condition: Condition, wanted: Mapping[str, Any], predicted: bool) -> list[str]:
        """Return the ids of a condition's inferences that a selector means. `wanted` is the selector.

        If the selector names no inference, that is the baseline, or every inference if there is no baseline. If not
        `predicted`, return one empty id: a quantity that is recorded during training has no inference.
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
    """Return role and name of the sites at which a condition has values.

    These are the tested sites or, if not `predicted`, the internal sites. With `union`, the site is `union` for each
    role.
    """
    if union:
        return [(role, UNION) for role in dict.fromkeys(role for role, _ in condition.sites())]
    partition = condition.partition
    sites = set(condition.run.tested if predicted else partition.internal)
    return [(role, site) for role in CHOICES["role"] for site in getattr(partition, role) if site in sites]


def _has(condition: Condition, key: str, value: Any) -> bool:
    """Return whether a condition has the setting `key` with `value`; True for `site`, `role` and `inference`.

    The last three are no settings of a condition, and are matched elsewhere.
    """
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
    """Return the pairs of cells that the study declares as its primary comparison; [] if it declares none.

    A cell stands for its condition and inference at all sites. Both cells of a pair have the same data and the same
    external sites. Raises UserError if a side matches no condition, or no pair is left; at mini scale, return []
    instead.
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
                f"{where}.{name}", "matches no condition of the study", "name settings and values that its runs have"
            )
    both = itertools.product(*(side.values() for side in sides.values()))
    made = [(first, second) for first, second in both if first.ids != second.ids and _alike(first, second)]
    if not made and not mini:
        raise UserError(
            where,
            "condition and against share no external sites",
            "compare conditions with the same data and partition",
        )
    return made


def _alike(first: Cell, second: Cell) -> bool:
    """Return whether the conditions of two cells have the same data and the same external sites."""
    tested = [(cell.condition.run.data.source, cell.condition.partition.external) for cell in (first, second)]
    return bool(tested[0] == tested[1])
