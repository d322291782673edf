"""What the workflow asks of the studies of a call: their members by id, and the arguments of its jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from ..core.console import say_at_end
from ..core.errors import UserError
from ..core.plugin import Plugin
from ..study.plan import Plan
from ..study.run import Run


@contextmanager
def errors_end_the_call() -> Iterator[None]:
    """End the call where the block raises UserError, with its exit code, and its words as the last line."""
    try:
        yield
    except UserError as error:
        say_at_end([str(error)])
        sys.exit(error.exit_code)


class Call:
    """The members of all studies of a call, by the ids that stand in the names of files.

    Attributes
    ----------
    runs : trainings, and choices among trainings
    oracles : for each run, the prediction job by which a search chooses with the results at external sites
    inferences : the inferences of each prediction job
    data, raw : prepared and raw datasets
    partitions, controls : for each partition, a run that uses it; with controls, if the study has them
    """

    def __init__(self, plans: Mapping[str, Plan], config: Mapping[str, Any], plugins: Sequence[Path]) -> None:
        self.plans = plans
        self.config = config
        self.plugins = "".join(f" --plugins {quote(str(folder))}" for folder in plugins)
        self.runs: dict[str, Run] = {}
        self.oracles: dict[str, str] = {}
        self.inferences: dict[str, list[Plugin]] = {}
        self.controls: dict[str, Run] = {}
        for plan in plans.values():
            self.runs |= plan.trainings | plan.searches
            self.oracles |= plan.oracles
            self.controls |= plan.controls
            for key, members in plan.sweeps.items():
                chosen = [plan.inferences[member] for member in members]
                # Inferences of one name have one code: each counts once in the identity of a job.
                self.inferences[key] = list({plugin.name: plugin for plugin in chosen}.values())
        self.data = {run.data.id: run.data for run in self.runs.values()}
        self.raw = {data.raw: data for data in self.data.values()}
        self.partitions = {run.partition_id: run for run in self.runs.values()}

    def run(self, key: str) -> Run:
        """Return a run. Raises UserError for an unknown id."""
        if key not in self.runs:
            problem = "no study of this call has this run"
            raise UserError(f"run {key!r}", problem, "fedshift check STUDY --ids lists all ids")
        return self.runs[key]

    @property
    def studies(self) -> str:
        """The arguments that name all studies of this call."""
        study = quote(str(self.config["study"]))
        folder = quote(str(self.config["studies"]))
        return f"{study} --scale {self.config['scale']} --studies {folder}{self.plugins}{self.settings}"

    def study(self, name: str) -> str:
        """Return the arguments that name the study of a page."""
        return f"{quote(str(self.plans[name].path))} --scale {self.config['scale']}{self.plugins}{self.settings}"

    @property
    def settings(self) -> str:
        """The options that repeat the settings of this call."""
        return "".join(f" --set {quote(setting)}" for setting in self.config.get("set") or ())

    @property
    def mirror(self) -> str:
        """The option for a mirror of the data files, if there is one."""
        if not self.config["mirror"]:
            return ""
        return f"--mirror {quote(str(self.config['mirror']))}"

    @property
    def launch(self) -> str:
        """How Python starts a training of several processes, which share its clients; nothing for one process."""
        processes = int(self.config["processes"])
        if processes == 1:
            return ""
        return f"torch.distributed.run --standalone --nproc-per-node={processes} -m"

    def slow_libraries(self, runs: Iterable[str]) -> list[str]:
        """Return the names of slow modules that the trainings of runs import; none without a training."""
        named = [name for key in runs for plugin in self.run(key).plugins for name in ("torch", *plugin.libraries)]
        return list(dict.fromkeys(named))
