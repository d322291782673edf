"""The conditions of a study: runs that differ in their seed only, with an id and the words that people read.

Imports no pandas: the workflow reads the published tables of a study, which name conditions, before anything runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core import digest, registry
from ..study.published import BASELINE

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


@dataclass(frozen=True, eq=False)
class Condition:
    """Runs of a study that differ in their seed only and, where patients are tested in folds, in the fold.

    Attributes
    ----------
    id : str
        Derived from the settings of the runs, so that equal conditions of two studies share it. It names files.
    family : str
        The id of the mean over partitions: conditions of one family differ in their partition.
    algorithm, bn, addon, held_out : str
        The words of scores.csv. No two conditions of a study agree in all four.
    runs : dict[str, Run]
        The runs by their ids, one for each seed and fold.
    inferences : tuple[str, ...]
        Ids of the inferences that the study asks of the runs, in the order of the study.
    level_inference : str
        The id of the inference whose levels are reported: the baseline if it is asked for, else the first. One that
        uses labels of the site is reported only where there is no other.
    compared_inference : str | None
        The id of the inference that is compared with the baseline: the first that adapts to a site, and needs no
        labels.
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

    Partitions of the same clients (iid data or not, more data or less), or that leave out nothing (more clients or
    fewer), are compared, not averaged.
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
    """Return the names of the settings by which runs differ, sorted.

    A list or a number is left out if its value follows from another returned setting. Of settings that determine each
    other, one is returned: one that every run has, the first by name. Runs that differ in any setting still differ in a
    returned one.
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
