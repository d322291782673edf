"""A default of Snakemake's scheduler that no option takes away."""

from __future__ import annotations

from typing import Any

DEFAULT = (100, 1)
"""Snakemake's limit, if none is given: so many jobs in so many seconds."""


def lift_default_limit(workflow: Any) -> None:
    """Take the default limit on the rate of jobs from a workflow that runs its jobs on this machine.

    With any limit, Snakemake (seen in 9.27) starts a timer each time it has looked for jobs to run, and looks again
    when it ends: each job that ends adds a look a second, a fifth of all processor time in a study of 375 jobs.
    """
    limiter = workflow.scheduler.job_rate_limiter
    if limiter and workflow.local_exec and (limiter.max_jobs, limiter.timespan) == DEFAULT:
        workflow.scheduler.job_rate_limiter = None
