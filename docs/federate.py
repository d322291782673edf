"""A federation of three hospitals on this machine, each a process with its own folder, and the same study simulated.

`make federation` calls it: it deals the demo's miniature to the hospitals, writes certificates and keys, starts the
server and the three sites, and compares the tensors that they have trained with those of the simulation.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from fedshift.core import registry
from fedshift.flower import keys
from fedshift.flower.processes import free_port
from fedshift.io.arrays import read_tensors
from fedshift.io.paths import Paths
from fedshift.io.text import read_json

SITES = ("centre0", "centre3", "centre4")
SIDE = 48
"""Side of the images in pixels, cut from the centre of the miniature's patches: the part that their label is about."""
STUDY = f"""title: Three hospitals train a tumour detector over Flower
question: Are batch-norm layers better shared between hospitals, or kept at home?
dataset:
  name: own_images
  table: images.csv
  classes: [normal, tumour]
  size: {SIDE}
  title: Miniature of synthetic tissue, dealt to three hospitals
partition:
  internal: [{", ".join(SITES)}]
  split: {{ train: 0.6, val: 0.2, test: 0.2 }}
model: densenet_small
transforms: [scale_intensity, random_crop]
training: {{ rounds: 2, batch_size: 16, lr: 0.06, momentum: 0.9, select: last }}
runs:
  - algorithm: fedavg
    bn: [aggregated, local]
seeds: [0]
inferences: [source]
"""
"""Two rounds, and no transform of MONAI, which each site would load for seconds: messages and starts take the time."""


def deal(folder: Path) -> None:
    """Write images.csv and the images of each site into a folder of its own, and all of them into `simulation`."""
    dataset = registry.build("dataset", {"name": "camelyon17", "shift": 1.6, "patches": 60, "patients": 20})
    (folder / "raw").mkdir()
    dataset.miniature(folder / "raw")
    opened = dataset.open(folder / "raw")
    samples = opened.samples
    tables: dict[str, list[dict[str, object]]] = {site: [] for site in SITES}
    with contextlib.chdir(folder):
        for i in np.flatnonzero(samples["site"].isin(SITES)):
            row = samples.iloc[i]
            image = opened.image(int(i))
            start = (image.shape[0] - SIDE) // 2
            file = Path("images", f"{row['site']}-{i:04d}.png")
            for place in (row["site"], "simulation"):
                (Path(place) / file).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image[start : start + SIDE, start : start + SIDE]).save(Path(place) / file)
            label = ("normal", "tumour")[row["label"]]
            tables[row["site"]].append({"path": file, "label": label, "site": row["site"], "patient": row["patient"]})
    for place, rows in (*tables.items(), ("simulation", [row for site in SITES for row in tables[site]])):
        pd.DataFrame(rows).to_csv(folder / place / "images.csv", index=False)


def federate(folder: Path, port: int) -> float:
    """Run server and sites as processes until the page is there, and return the seconds that it took."""
    began = time.monotonic()
    for place in ("server", *SITES):
        (folder / place).mkdir()
        (folder / place / "study.yaml").write_text(STUDY, encoding="utf-8")
    server_keys = keys.Keys(folder / "server" / "federation")
    keys.write(server_keys, "localhost", port, SITES, folder / "server" / "study.yaml")
    server = _fedshift(folder / "server", "serve", "study.yaml", "--wait", "600")
    sites = []
    try:
        deal(folder)  # while the server starts
        print(f"{', '.join(SITES)} have their images in {folder}; starting the three sites", flush=True)
        for name in SITES:
            shutil.copytree(server_keys.site(name), folder / name / "from-server")
            options = ("--site", name, "--data", "images.csv", "--keys", "from-server", "--yes")
            sites.append(_fedshift(folder / name, "site", "study.yaml", *options))
        if server.wait():
            raise SystemExit(f"the server has failed; see {folder / 'server'}")
        for process in sites:
            process.wait(600)
    finally:
        for process in (server, *sites):
            process.terminate()
            process.wait(600)
    return time.monotonic() - began


def _fedshift(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a command in a folder, with its output in fedshift.log there."""
    with (folder / "fedshift.log").open("ab") as log:
        command = [sys.executable, "-m", "fedshift", *words]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)


def compare(folder: Path) -> bool:
    """Replay each run in one process with the images of all sites, and say how far its tensors are from the sites'."""
    from fedshift.jobs import replay  # needs torch, which server and sites load while this process deals images

    equal = True
    for served in Paths(folder / "server").every_run():
        began = time.monotonic()
        simulated = replay.again(served, folder / "simulation" / "images.csv")
        seconds = time.monotonic() - began
        found = [problem for _, problem in replay.faults(served, simulated)]
        for site in SITES:
            bn = read_json(served.spec)["bn"]
            (there,) = (f for f in Paths(folder / site).every_run() if read_json(f.spec)["bn"] == bn)
            gaps = replay.differing(simulated.networks(site).states[0], read_tensors(there.model)[0])
            found += [f"{site}: {name} differs by {gap:g}" for name, gap in gaps.items()]
        equal = equal and not found
        print(f"  {served.folder.name}, simulated in {seconds:.0f} s: {'; '.join(found) or 'difference 0'}")
    return equal


def main() -> int:
    """Run the federation and the simulation, and print how far apart they are, and where the page is.

    Returns 1 if they differ, or if there is no page.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("results", "federation"), help="folder of all files")
    folder: Path = parser.parse_args().folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    seconds = federate(folder, free_port())
    print(f"trained and scored over Flower in {seconds:.0f} s; simulating the same study", flush=True)
    equal = compare(folder)
    print("equal: difference 0" if equal else "the simulation differs")
    page = folder / "server" / Paths().page("study")
    print(f"the page: {page}" if page.exists() else f"no page; see {folder / 'server' / 'fedshift.log'}")
    return 0 if equal and page.exists() else 1


if __name__ == "__main__":
    sys.exit(main())
