"""Which jobs Snakemake would run, asked of Snakemake itself by a dry run."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError


@dataclass(frozen=True)
class Job:
    """A job that would run: its rule, its wildcards' values joined by "-", and Snakemake's first reason."""

    rule: str
    id: str
    reason: str


class _Listener(logging.Handler):
    """Keeps what Snakemake says of each job, and its errors."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        from snakemake_interface_logger_plugins.common import LogEvent

        if getattr(record, "event", None) == LogEvent.JOB_INFO:
            told: Any = record
            reason = re.split("[:;]", str(told.reason))[0].strip().lower()
            self.jobs.append(Job(told.rule_name, "-".join(map(str, told.wildcards.values())), reason))
        elif record.levelno >= logging.ERROR:
            self.errors.append(record.getMessage())


MISSING = "missing output files"
"""The reason of a job whose files are not all there."""


def upcoming(settings: Mapping[str, Any], snakefile: Path = Path("Snakefile")) -> list[Job]:
    """The jobs that `snakemake --config` with these settings would run now, in the folder of `snakefile`.

    Takes seconds. Raises UserError where there is no such file, and where Snakemake cannot tell.
    """
    from snakemake.api import SnakemakeApi
    from snakemake.logging import logger
    from snakemake.settings.types import ConfigSettings, DAGSettings, OutputSettings, ResourceSettings

    if not snakefile.is_file():
        raise UserError(snakefile, "no such file", "call this in the project's folder")
    listener = _Listener()
    with SnakemakeApi(OutputSettings(dryrun=True)) as api:
        logger.handlers[:] = [listener]
        try:
            workflow = api.workflow(
                resource_settings=ResourceSettings(cores=1),
                config_settings=ConfigSettings(config=dict(settings)),
                snakefile=snakefile,
            )
            workflow.dag(DAGSettings()).execute_workflow(executor="dryrun")
        except Exception as error:
            said = listener.errors or [str(error) or type(error).__name__]
            raise UserError(snakefile, f"Snakemake's dry run failed: {said[-1]}", "see snakemake -n") from error
    return [job for job in listener.jobs if job.rule != "all"]
