"""A setting of Snakemake's scheduler that no option reaches."""

from __future__ import annotations

from typing import Any

DEFAULT = (100, 1)
"""Snakemake's limit, if none is given: so many jobs in so many seconds."""


def lift_default_limit(workflow: Any) -> None:
    """Take the default limit on the rate of jobs from a workflow that runs its jobs on this machine.

    With a limit, Snakemake (seen in 9.27) starts a timer each time it has looked for jobs to run, and looks again when
    the timer ends. While jobs wait for a free core, each job that ends so adds one look a second. In a study of 375
    jobs it took a fifth of all processor time. A limit that the user gives stays.
    """
    scheduler = getattr(workflow, "scheduler", None)
    limiter = getattr(scheduler, "job_rate_limiter", None)
    if scheduler and limiter and workflow.local_exec and (limiter.max_jobs, limiter.timespan) == DEFAULT:
        scheduler.job_rate_limiter = None
