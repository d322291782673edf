"""Processor time and peak memory of planning studies of many runs: `python benchmarks/large_studies.py 500 2000 5000`.

Nothing is trained. Each command is a process of its own, in a folder of its own.
Processor time is that of all its processes; memory is the most that one of them had.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
STUDY = """title: {runs} runs
dataset: camelyon17
partition: {{ internal: [centre0, centre3, centre4], external: [centre1, centre2] }}
model: mlp
transforms: [scale_intensity]
training: {{ rounds: 2, batch_size: 8, lr: 0.01 }}
runs: [{{ algorithm: fedavg, bn: [aggregated, local] }}]
seeds: {seeds}
inferences: [source, tsmobn]
metrics: [accuracy, auc]
figures: [sites]
"""
COMMANDS = {
    "fedshift check": ["-m", "fedshift", "check", "large", "--scale", "mini"],
    "fedshift plan": ["-m", "fedshift", "plan", "large"],
    "fedshift status": ["-m", "fedshift", "status", "large"],
    "snakemake -n": ["-m", "snakemake", "-n", "--quiet", "--config", "study=large"],
}


def project(folder: Path, study: str) -> None:
    """Write a project with this checkout's workflow and one study, `large`."""
    for name in ("Snakefile", "workflow", "profiles", "envs", "src"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "config" / "studies").mkdir(parents=True)
    (folder / "config" / "config.yaml").symlink_to(ROOT / "config" / "config.yaml")
    (folder / "config" / "studies" / "large.yaml").write_text(study, encoding="utf-8")


def cost(folder: Path, words: list[str], watch: Callable[[int], object] = int) -> tuple[float, float]:
    """Return the processor time in seconds and the peak memory in MiB of a command of Python.

    `watch` is called with the number of its process twice a second.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen([sys.executable, *words], cwd=folder, env=environment, stdout=said, stderr=said)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            watch(process.pid)
            time.sleep(0.5)
        _, status, usage = ended
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        assert process.returncode == 0, said.read()[-3000:]
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    print("| command | runs | processor time | peak memory |\n|---|---|---|---|", flush=True)
    for runs in map(int, sys.argv[1:] or ("500", "2000", "5000")):
        for name, words in COMMANDS.items():
            with tempfile.TemporaryDirectory() as folder:
                project(Path(folder), STUDY.format(runs=runs, seeds=list(range(runs // 2))))
                seconds, memory = cost(Path(folder), words)
            print(f"| `{name}` | {runs:,} | {seconds:.1f} s | {memory:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
