"""The jobs that Snakemake would run, from a dry run of Snakemake itself."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..io.shipped import workflow_of
from ..study.calls import dry_run


@dataclass(frozen=True)
class Job:
    """A job that would run: its rule, the values of its wildcards joined by "-", and Snakemake's first reason."""

    rule: str
    id: str
    reason: str


class _Listener(logging.Handler):
    """A log handler that collects the jobs and the errors which Snakemake reports."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a job or an error."""
        from snakemake_interface_logger_plugins.common import LogEvent

        if getattr(record, "event", None) == LogEvent.JOB_INFO:
            job: Any = record
            reason = re.split("[:;]", str(job.reason))[0].strip().lower()
            self.jobs.append(Job(job.rule_name, "-".join(map(str, job.wildcards.values())), reason))
        elif record.levelno >= logging.ERROR:
            self.errors.append(record.getMessage())


@contextlib.contextmanager
def _no_new_folder(folder: Path) -> Iterator[None]:
    """Remove what a dry run of Snakemake leaves below `folder`, unless that was there before.

    Folders with other files in them stay: another call of Snakemake may have begun.
    """
    existed = folder.exists()
    try:
        yield
    finally:
        if not existed:
            (folder / "iocache" / "latest.pkl").unlink(missing_ok=True)
            for path in sorted((*folder.rglob("*/"), folder), reverse=True):
                with contextlib.suppress(OSError):
                    path.rmdir()


def pending_jobs(config: Mapping[str, Any]) -> list[Job]:
    """Return the jobs that `snakemake --config` with these values would run now, in the current folder.

    This takes seconds and leaves nothing behind. Raises UserError where the file does not exist, and where Snakemake
    fails.
    """
    from snakemake.api import SnakemakeApi
    from snakemake.logging import logger
    from snakemake.settings.types import ConfigSettings, DAGSettings, OutputSettings, ResourceSettings

    snakefile = workflow_of(Path())
    listener = _Listener()
    with (
        _no_new_folder(Path(".snakemake")),
        contextlib.redirect_stderr(io.StringIO()),
        SnakemakeApi(OutputSettings(dryrun=True)) as api,
    ):
        logger.addHandler(listener)
        try:
            workflow = api.workflow(
                resource_settings=ResourceSettings(cores=1),
                config_settings=ConfigSettings(config=dict(config)),
                snakefile=snakefile,
            )
            workflow.dag(DAGSettings()).execute_workflow(executor="dryrun")
        except Exception as error:
            messages = listener.errors or [str(error) or type(error).__name__]
            raise UserError(snakefile, f"Snakemake's dry run failed: {messages[-1]}", f"see {dry_run()}") from error
    return [job for job in listener.jobs if job.rule != "all"]
