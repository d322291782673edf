# This file expands the studies of this call to runs. Everything else about studies is in src/fedshift/study/.
import os
import sys
from pathlib import Path
from re import escape
from shlex import quote

# Jobs run `python -m fedshift` with this Python, whether or not the environment is activated, and with the sources that
# lie beside the workflow. Where there are none, the package is installed.
SOURCES = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1] / "src"
if (SOURCES / "fedshift").is_dir() and str(SOURCES) not in sys.path:
    sys.path.insert(0, str(SOURCES))

import snakemake_logger_plugin_fedshift as terminal
from fedshift import study
from fedshift.core import digest, fork_server, registry
from fedshift.io import shipped
from fedshift.io.paths import SUMMARISED, Paths, memory, papers
from fedshift.io.shipped import folders as plugin_folders
from fedshift.jobs import accept
from fedshift.analysis import published_words
from fedshift.analysis.published_words import require
from fedshift.analysis.published_words import of_ledger
from fedshift.planning.call import Call, errors_end_the_call, finished, in_words, lift_default_limit
from fedshift.planning.call import require_own_name, say_last, say_pages
from fedshift.study import calls

PATHS = Paths()
INDEX = PATHS.page("index")
for name, folder in {"PATH": Path(sys.executable).parent, "PYTHONPATH": shipped.python_path(workflow)}.items():
    os.environ[name] = os.pathsep.join(filter(None, [folder and str(folder), os.environ.get(name)]))
IMPORTED = not workflow.modifier.is_main_snakefile()  # as a module of another workflow


with errors_end_the_call():
    calls.require_own_paths(workflow)
    config = calls.complete(config, foreign=IMPORTED)
    PLUGINS = plugin_folders(config["plugins"], "--config")
    for folder in PLUGINS:
        registry.add_folder(folder)
    PLANS = study.select(str(config["study"]), config["scale"], Path(config["studies"]), config["set"])
    for plan in PLANS.values():
        plan.require_files()
        require(plan)
        require_own_name(plan, PATHS)
    ACCEPTED = accept.Ledger(PATHS)


FOLLOW = calls.fedshift(["status", str(config["study"]), "--watch"], PLANS, Path(config["studies"]))
# A page that is there does not hide that a file behind it is gone.
PAGES = [plan for plan in PLANS.values() if PATHS.page(plan.name).exists()]
GONE = sorted({file for plan in PAGES for file in finished(plan, PATHS) if not file.exists()})
CALL = Call(PLANS, config, PLUGINS)
TEMPLATES = {p.name: digest.of_file(p) for p in sorted((shipped.PACKAGE / "page" / "templates").iterdir())}
OTHER_PAGES = {"index.html.j2", "applied.html.j2"}  # all other templates are parts of a study's page


if not IMPORTED:
    terminal.CALL = terminal.Call(
        in_words(CALL.runs), lambda: say_pages([PATHS.page(plan.name) for plan in PAGES], INDEX)
    )


# A job finds its run through its study: no setting of a run is on a command line. Snakemake compares a parameter with its
# value in the last call only if its function takes nothing but wildcards: a change of the first three reruns nothing.
def asked(wildcards, output):
    return CALL.studies


def mirror(wildcards, output):
    return CALL.mirror


def launch(wildcards, output):
    return CALL.launch


def named(wildcards):
    return CALL.study(wildcards.study)


def run_of(wildcards):
    return CALL.run(wildcards.run)


def prepared(data):
    """Return the files of a prepared dataset as inputs of a job.

    The card has the checksums of the arrays. So their times need not count, and arrays of any size that come out equal
    leave later jobs alone.
    """
    files = PATHS.data_files(data.id)
    return [ancient(files.images), ancient(files.samples), files.card]


def plugins(kind, names):
    """Return plug-in classes, whose code is part of a job's identity."""
    return [registry.get(kind, name) for name in names]


wildcard_constraints:
    raw="|".join(CALL.raw),
    data="|".join(CALL.data),
    partition="|".join(CALL.partitions),
    run="[A-Za-z0-9_-]+",  # all ids of thousands of runs would stand in each pattern that Snakemake handles
    inference="|".join(CALL.inferences),
    study="|".join(map(escape, PLANS)),
