"""How often Snakemake looks for jobs to run while jobs wait."""

from __future__ import annotations

from pathlib import Path

import forked
import pytest

SNAKEFILE = """
from fedshift.planning.call import lift_default_limit

import snakemake.scheduling.job_scheduler as scheduling

looks = []
select = scheduling.JobScheduler.job_selector
scheduling.JobScheduler.job_selector = lambda self, jobs: looks.append(1) or select(self, jobs)

rule all:
    input: expand("done/{number}", number=range(config["jobs"]))

rule one:
    output: "done/{number}"
    shell: "sleep 0.4; touch {output}"

onstart:
    if config["lifted"]:
        lift_default_limit(workflow)

onsuccess:
    limiter = workflow.scheduler.job_rate_limiter
    print("looks", len(looks), limiter and limiter.max_jobs)
"""


JOBS = 30


def looks(folder: Path, lifted: int, jobs: int, *words: str) -> tuple[int, str]:
    """Return how often Snakemake looked for jobs, and its limit in the end."""
    folder.mkdir()
    (folder / "Snakefile").write_text(SNAKEFILE, encoding="utf-8")
    settings = ("--config", f"lifted={lifted}", f"jobs={jobs}")
    done = forked.run("snakemake", ("--cores", "2", *words, *settings), folder, forked.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    _, number, limit = next(line for line in done.stdout.splitlines() if line.startswith("looks ")).split()
    return int(number), limit


@pytest.mark.slow
def test_snakemake_looks_for_jobs_when_one_has_ended_and_not_all_the_time(tmp_path: Path) -> None:
    before, limit = looks(tmp_path / "before", 0, JOBS)
    after, none = looks(tmp_path / "after", 1, JOBS)
    assert (limit, none) == ("100", "None")
    assert after <= JOBS  # at the start, and when a job has ended while others wait
    assert before > 1.5 * after, "Snakemake has mended this: lift_default_limit can go"


@pytest.mark.slow
def test_a_limit_of_the_user_stays(tmp_path: Path) -> None:
    _, limit = looks(tmp_path / "own", 1, 1, "--max-jobs-per-timespan", "50/1s")
    assert limit == "50"
