# The studies asked for, expanded. Everything else about them is in src/fedshift/study.py.
import os
import sys
from pathlib import Path

# Jobs run `python -m fedshift` with this Python and these sources, whether or not the environment is activated.
SOURCES = Path(workflow.basedir) / "src"
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")]))
if str(SOURCES) not in sys.path:
    sys.path.insert(0, str(SOURCES))

from fedshift import digest, registry, study
from fedshift.errors import UserError
from fedshift.paths import Paths

PATHS = Paths()
try:
    PLANS = study.select(str(config["study"]), config["scale"], Path(config["studies"]))
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)

RUNS = {key: run for plan in PLANS.values() for key, run in plan.runs.items()}
INFERENCES = {key: i for plan in PLANS.values() for key, i in plan.inferences.items()}
DATA = {run.data.id: run.data for run in RUNS.values()}
RAW = {data.raw: data for data in DATA.values()}
PARTITIONS = {run.partition_id: run for run in RUNS.values()}

# How a job finds its study again: no setting of a run stands on a command line. The first names all studies of
# this call, and may differ from call to call without making a job anew; the second names one.
STUDY = "{config[study]:q} --scale {config[scale]} --studies {config[studies]:q}"
VIEW = "{params.path:q} --scale {config[scale]}"
TEMPLATES = [digest.of_file(path) for path in sorted((SOURCES / "fedshift" / "templates").iterdir())]


def plugins(kind, names):
    return [registry.get(kind, name) for name in names]


wildcard_constraints:
    raw="[a-z0-9_]+-[0-9a-f]{10}",
    data="[a-z0-9_]+-[0-9a-f]{10}",
    partition="[0-9a-f]{10}",
    run="[a-z0-9_]+-[a-z_]+-[0-9a-f]{10}",
    inference="[a-z0-9_]+(-[0-9a-f]{8})?",
    study="[^/]+",
    figure="[a-z0-9_]+",
