"""The federation of docs/federate.py over NVFlare: its server and three sites in POC mode, and the study simulated.

Call it with a Python that has fedshift and NVFlare. NVFlare's programs are started and stopped here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from federate import SITES, compare, deal

CLASSES = "fedshift.nvflare."
JOB = {
    "meta.json": {"name": "fedshift", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}},
    "app/config/config_fed_server.json": {
        "format_version": 2,
        "workflows": [{"id": "study", "path": f"{CLASSES}job.StudyController", "args": {}}],
    },
    "app/config/config_fed_client.json": {
        "format_version": 2,
        "executors": [{"tasks": ["fedshift"], "executor": {"path": f"{CLASSES}job.StudyExecutor", "args": {}}}],
    },
}
"""Files of a job, which are the same for every study."""


def nvflare(folder: Path, *words: str) -> str:
    """Call NVFlare's command and return what it says."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "NVFLARE_POC_WORKSPACE": f"{folder / 'poc'}", "OMP_NUM_THREADS": "1"}
    command = [f"{Path(sys.executable).with_name('nvflare')}", *words]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def write_kit(kit: Path, **settings: object) -> None:
    """Write what the owner of a startup kit decides: the folder of the study, and that fedshift's classes may run."""
    resources = json.loads((kit / "local" / "resources.json.default").read_text())
    resources["class_allow_list"].append(CLASSES)
    (kit / "local" / "resources.json").write_text(json.dumps(resources, indent=2))
    (kit / "local" / "fedshift.json").write_text(json.dumps(settings, indent=2))


def federate(folder: Path) -> None:
    """Prepare and start server and sites, submit the job, and wait for its end."""
    print(nvflare(folder, "poc", "prepare", "-c", *SITES, "--force"))
    kits = folder / "poc" / "example_project" / "prod_00"
    for name in ("server", *SITES):
        # The server has no rows to allow, and does not look.
        write_kit(kits / name, folder=f"{folder / name}", study="study.yaml", rows=True)
    for name, content in JOB.items():
        (folder / "job" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "job" / name).write_text(json.dumps(content, indent=2))
    admin = ("--startup-kit", f"{kits / 'admin@nvidia.com'}")
    nvflare(folder, "poc", "start", "-ex", "admin@nvidia.com", "--no-wait")
    try:
        until = time.monotonic() + 300
        while not (found := re.search(r"job_id: (\S+)", said := nvflare(folder, "job", "submit", "-j", "job", *admin))):
            if time.monotonic() > until:
                raise SystemExit(said)
            time.sleep(5)
        print(nvflare(folder, "job", "wait", found[1], *admin))
    finally:
        nvflare(folder, "poc", "stop")


def main() -> None:
    """Run the federation and the simulation, and print how far apart they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("results", "nvflare"), help="folder of all files")
    folder: Path = parser.parse_args().folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    deal(folder)
    began = time.monotonic()
    federate(folder)
    print(f"trained and scored over NVFlare in {time.monotonic() - began:.0f} s; simulating the same study", flush=True)
    print("equal: difference 0" if compare(folder) else "the simulation differs")


if __name__ == "__main__":
    main()
