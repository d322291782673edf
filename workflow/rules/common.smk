# This file expands the studies of this call to runs. Everything else about studies is in src/fedshift/study/.
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from re import escape
from shlex import quote

# Jobs run `python -m fedshift` with this Python, whether or not the environment is activated, and with the sources that
# lie beside the workflow. Where there are none, the package is installed.
SOURCES = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1] / "src"
if (SOURCES / "fedshift").is_dir() and str(SOURCES) not in sys.path:
    sys.path.insert(0, str(SOURCES))

from fedshift import study
from fedshift.core import digest, fork_server, registry
from fedshift.core.errors import Known, UserError
from fedshift.io import shipped
from fedshift.io.paths import Paths, memory, papers
from fedshift.io.plugin_folders import folders as plugin_folders
from fedshift.jobs.accept import Ledger
from fedshift.papers import tables as published
from fedshift.papers.pairs import of_rounds, require
from fedshift.papers.words import of_ledger
from fedshift.planning.faults import say_last
from fedshift.planning.files import finished
from fedshift.planning.scheduler import lift_default_limit
from fedshift.planning.terminal import say_pages, take_over
from fedshift.study import calls, settings

PATHS = Paths()
INDEX = PATHS.page("index")
for name, folder in {"PATH": Path(sys.executable).parent, "PYTHONPATH": shipped.python_path(workflow)}.items():
    os.environ[name] = os.pathsep.join(filter(None, [folder and str(folder), os.environ.get(name)]))
IMPORTED = not workflow.modifier.is_main_snakefile()  # as a module of another workflow


@contextmanager
def errors_end_the_call():
    """End the call where the block raises UserError, with its words and its exit code."""
    try:
        yield
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


with errors_end_the_call():
    settings.require_own_paths(workflow)
    config = settings.complete(config, foreign=IMPORTED)
    PLUGINS = plugin_folders(config["plugins"], Path(), "--config")
    for folder in PLUGINS:
        registry.add_folder(folder)
    PLANS = study.select(str(config["study"]), config["scale"], Path(config["studies"]))
    for plan in PLANS.values():
        plan.require_files()
        require(plan)
    ACCEPTED = Ledger(PATHS)


FOLLOW = calls.fedshift(["status", str(config["study"]), "--watch"], PLANS, Path(config["studies"]))
# A page that is there does not hide that a file behind it is gone.
PAGES = [plan for plan in PLANS.values() if PATHS.page(plan.name).exists()]
GONE = sorted({file for plan in PAGES for file in finished(plan, PATHS) if not file.exists()})
TRAININGS = {key: run for plan in PLANS.values() for key, run in plan.trainings.items()}
SEARCHES = Known("search", {key: run for plan in PLANS.values() for key, run in plan.searches.items()})
ORACLES = {key: job for plan in PLANS.values() for key, job in plan.oracles.items()}
RUNS = Known("run", TRAININGS | SEARCHES)
INFERENCES = {
    key: list({plan.inferences[one].name: plan.inferences[one] for one in members}.values())
    for plan in PLANS.values()
    for key, members in plan.sweeps.items()
}
DATA = {run.data.id: run.data for run in RUNS.values()}
RAW = {data.raw: data for data in DATA.values()}
PARTITIONS = {run.partition_id: run for run in RUNS.values()}
CONTROLS = {key: run for plan in PLANS.values() for key, run in plan.controls.items()}
TEMPLATES = {p.name: digest.of_file(p) for p in sorted((shipped.PACKAGE / "report" / "templates").iterdir())}
OTHER_PAGES = {"index.html.j2", "applied.html.j2"}  # all other templates are parts of a study's page


OWN = "".join(f" --plugins {quote(str(folder))}" for folder in PLUGINS)


if not IMPORTED:
    take_over(workflow, RUNS, idle=lambda: say_pages([PATHS.page(plan.name) for plan in PAGES], INDEX))


# A job finds its run through its study: no setting of a run is on a command line. Snakemake compares a parameter with its
# value in the last call only if its function takes nothing but wildcards: a change of the first two reruns nothing.
def asked(wildcards, output):
    """Return the arguments that name all studies of this call."""
    return f"{quote(str(config['study']))} --scale {config['scale']} --studies {quote(str(config['studies']))}{OWN}"


def mirror(wildcards, output):
    """Return the option for a mirror of the data files, if there is one."""
    return f"--mirror {quote(str(config['mirror']))}" if config["mirror"] else ""


def launch(wildcards, output):
    """Return how Python starts a training of several processes, which share its clients; nothing for one process."""
    processes = int(config["processes"])
    return f"torch.distributed.run --standalone --nproc-per-node={processes} -m" if processes > 1 else ""


def prepared(data):
    """Return the files of a prepared dataset as inputs of a job.

    The card has the checksums of the arrays. So their times need not count, and arrays of any size that come out equal
    leave later jobs alone.
    """
    files = PATHS.data_files(data.id)
    return [ancient(files.images), ancient(files.samples), files.card]


def named(wildcards):
    """Return the arguments that name the study of a page."""
    return f"{quote(str(PLANS[wildcards.study].path))} --scale {config['scale']}{OWN}"


def imported_by_trainings(jobs):
    """Return the names of slow modules that the trainings among these jobs import; none without a training."""
    trained = [RUNS[job.wildcards.run] for job in jobs if job.rule.name.endswith("train")]
    slow = [name for run in trained for transform in run.transforms for name in transform.libraries]
    return list(dict.fromkeys(["torch", *slow])) if trained else []


def plugins(kind, names):
    """Return plug-in classes, whose code is part of a job's identity."""
    return [registry.get(kind, name) for name in names]


wildcard_constraints:
    raw="|".join(RAW),
    data="|".join(DATA),
    partition="|".join(PARTITIONS),
    run="[A-Za-z0-9_-]+",  # all ids of thousands of runs would stand in each pattern that Snakemake handles
    inference="|".join(INFERENCES),
    study="|".join(map(escape, PLANS)),
    figure="[A-Za-z0-9_-]+",
