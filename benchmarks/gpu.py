"""`make gpu`: what fedshift does on a GPU, in short parts in order of worth, within some minutes.

    python benchmarks/gpu.py [PART...] [--minutes 7] [--out FOLDER]

Each row is written to FOLDER/gpu.json at once; a table of all rows there comes last. A row that fails costs itself
alone, also where it hangs or ends its process, and what does not fit into the time that is left is skipped. A second
call with other parts adds its rows. Exit code: 0, or 1 if a row failed, or 2 without a GPU.

It needs a checkout, PYTHONPATH with its src, and PyTorch; Snakemake for the part `demo` alone.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from card.rows import Rows, table
from card.supervisor import NO_DEVICE, Supervisor

PARTS = {
    "facts": "the card, its copies and its matrix products",
    "right": "what the CPU computes, the same bits each time and after a restart; difference: how far from the CPU, "
    "relative to how far training has moved a tensor, and its bound",
    "engine": "images a second of training: a bare loop on data of the device, the engine on the same data (ratio, "
    "goal 0.9), and the engine that reads uint8 from the host as jobs do",
    "prediction": "images a second of DenseNet121 at 96 pixels, and hours for Camelyon17's 455,954 patches",
    "together": "images a second of several trainings at once on one card",
    "hours": "hours of studies at scale paper, from measured steps",
    "demo": "the demo by snakemake --profile profiles/gpu, and its verdict",
    "prototypes": "what further work would bring: each gain is over the way of today",
    "mitosis": "a fold of benchmark-mitosis at 96 pixels, from an archive in .gpu/data",
}
"""Modules of `card`, in order of worth, and what their rows say."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=7, help="time for all of it (default: 7)")
    parser.add_argument("--out", type=Path, help="folder of gpu.json (default: benchmarks/results/gpu-DATE)")
    parser.add_argument("--device", default="cuda", help="cuda; on another, such as cpu, everything is small (--small)")
    parser.add_argument("--load", default="", help="a Python file to run first, which registers the device")
    parser.add_argument("--small", action="store_true", help="small sizes, whose figures say nothing about speed")
    parser.add_argument("--worker", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"unknown part {min(unknown)!r}; known: {', '.join(PARTS)}")
    parts = [part for part in PARTS if part in (given.parts or PARTS)]
    out = given.out or Path(__file__).parent / "results" / f"gpu-{time.strftime('%Y-%m-%d', time.gmtime())}"
    small = given.small or given.device != "cuda"
    if given.worker is not None:
        from card import setting, worker

        return worker.work(setting.Setting(given.device, small, given.load), Rows(out), parts, given.worker)
    # Asked to stop, it still ends the worker.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = Rows(out, parts)
    rows.write()
    command = [sys.executable, __file__, "--out", str(out), "--device", given.device, "--load", given.load]
    command += [*["--small"] * small, "--worker"]
    code = Supervisor(rows, parts, command, 60 * given.minutes, start=600 if small else 120).run()
    if code == NO_DEVICE:
        print(f"no {given.device} device here: try --device cpu, which goes through all parts in a small form")
    else:
        print(table(rows, PARTS), f"kept in {rows.file}", sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
