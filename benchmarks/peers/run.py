"""Compare fedshift with other frameworks: `python benchmarks/peers/run.py [--only A B] [--peers fedshift flower]`.

A peer trains through its own public interface, in an environment of its own which shares the torch of this one, on one
thread. Its time is compared with that of a bare loop in the same process, in turn. A row of a peer that does not train
is no row. Results are kept in benchmarks/results/DATE.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[0] = str(HERE.parent)  # in the place of this folder

import results  # noqa: E402
import torch  # noqa: E402
from measure import Measurement, compared  # noqa: E402
from peers.works import WORKS, write  # noqa: E402

ROOT = HERE.parents[1]
LIMIT = 300
"""Seconds after which a command is stopped."""
SHARED = "torch", "torchvision", "triton"
"""Packages that environments take from this one."""
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True)
class Peer:
    """How a peer is had: packages, or the folder `path` of a repository at a commit, importable from `root` in it."""

    title: str
    module: str
    packages: tuple[str, ...] = ()
    repository: str = ""
    commit: str = ""
    path: str = ""
    root: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    cannot: Mapping[str, str] = field(default_factory=dict)
    elapsed: bool = False


PEERS = {
    "bare": Peer("bare loop", "bare"),
    "naive": Peer("naive FedAvg", "naive"),
    "fedshift": Peer("**fedshift**", "ours", options={"stacked": False}),
    "stacked": Peer(
        "fedshift, `stacked: auto`",
        "ours",
        cannot=dict.fromkeys("ACD", "`auto` trains convolutional networks one after another, as the row above"),
    ),
    "flower": Peer("Flower 1.42, simulation", "flower", ("flwr[simulation]==1.42.0",), elapsed=True),
    "pfl": Peer("pfl 0.6", "apple", ("pfl==0.6.0",)),
    "fluke": Peer("fluke 0.8.1", "fluke_fl", ("fluke-fl==0.8.1",)),
    "fedlab": Peer("FedLab 1.3", "fed_lab", ("fedlab==1.3.0",)),
    "pfllib": Peer(
        "PFLlib, d832e76",
        "pfl_lib",
        ("h5py", "scikit-learn"),
        "https://github.com/TsingZ0/PFLlib",
        "d832e76f6a23b833038949ec1e4fdefe63a4d350",
        "system",
        "system",
        cannot={"D": "its clients have cross-entropy as loss, and are tested on classes"},
    ),
    "flamby": Peer(
        "FLamby, edacf54",
        "owkin",
        ("opacus", "tensorboard", "tqdm"),
        "https://github.com/owkin/FLamby",
        "edacf54d5211520583b0133d55ac39b6fda8324b",
        "flamby/strategies",
    ),
}


class LackingError(Exception):
    """Why there is no row."""


def ran(*command: str | Path, **own: str) -> None:
    """Run a command with variables of the environment; say its last words if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, **own})
    except subprocess.TimeoutExpired:
        raise LackingError(f"{Path(command[0]).name} took more than {LIMIT} s") from None
    if done.returncode:
        raise LackingError((done.stderr.strip() or "no words").splitlines()[-1])


def environment(peer: Peer, cache: Path) -> Path:
    """Return the Python of a peer's environment, which is made if it is not there."""
    if not peer.packages:
        return Path(sys.executable)
    folder = cache / peer.module
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        print(f"{peer.title}: installing {', '.join(peer.packages)}", flush=True)
        ran(sys.executable, "-m", "venv", "--clear", "--without-pip", folder)
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        (site / "venv.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        never = folder / "shared.txt"
        never.write_text("".join(f"{name}; python_version < '3'\n" for name in SHARED))
        uv = Path(sys.executable).with_name("uv")
        ran(uv, "pip", "install", "--python", python, "--override", never, *peer.packages)
        ready.touch()
    return python


def source(peer: Peer, cache: Path) -> Path:
    """Return the folder that a peer without a package is imported from, or for others the sources of fedshift."""
    if not peer.repository:
        return ROOT / "src"
    folder = cache / "sources" / peer.module
    if not folder.exists():
        ran("git", "clone", "--quiet", "--no-checkout", "--filter=blob:none", peer.repository, folder)
    ran("git", "-C", folder, "checkout", "--quiet", peer.commit, "--", peer.path)
    return folder / peer.root


def measured(peer: Peer, work: str, what: str, cache: Path) -> list[Measurement]:
    """Time a peer on a work: ratio of processor time, that of elapsed time where several processes work, and memory."""
    if work in peer.cannot:
        raise LackingError(f"cannot: {peer.cannot[work]}")
    python, result = environment(peer, cache), cache / "result.json"
    own = {"PYTHONPATH": f"{HERE.parent}{os.pathsep}{source(peer, cache)}", "OMP_NUM_THREADS": "1", **SILENT}
    command = "-m", "peers.timing", peer.module, cache / f"work-{work}.pt", result, json.dumps(peer.options)
    ran(python, *command, **own)
    row = json.loads(result.read_text(encoding="utf-8"))
    seconds, title = row["seconds"], f"{what}: bare loop, {peer.title.strip('*')}, a round"
    rows = [compared(title, [(bare, its) for bare, _, its, _ in seconds])]
    if peer.elapsed:
        rows.append(compared(f"{title}, elapsed", [(bare, its) for _, bare, _, its in seconds]))
    return [*rows, Measurement(f"{title}, memory added", row["added"], "MiB")]


def cell(rows: list[Measurement]) -> str:
    ratio, *elapsed, memory = rows
    more = "".join(f", elapsed {row.value:.2f}" for row in elapsed)
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}){more}; {memory.value:.0f} MiB"


def lines(peer: Peer) -> int:
    """Lines of code of a peer's file: all but its docstring, comments and blank lines."""
    code = (HERE / f"{peer.module}.py").read_text(encoding="utf-8").split('"""', 2)[2].splitlines()
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=WORKS, default=list(WORKS), help="works (default: all)")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="peers (default: all)")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "peers", help="folder of their environments")
    given = parser.parse_args()
    cache = given.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    whats = {work: write(work, cache) for work in given.only}
    reasons = list[str]()
    table = ["| | lines | " + " | ".join(whats) + " |", "|---" * (2 + len(whats)) + "|"]
    for name in given.peers:
        cells = []
        for work, what in whats.items():
            try:
                rows = measured(PEERS[name], work, what, cache)
                results.keep({f"peers {work} {name}": rows})
                cells.append(cell(rows))
            except LackingError as why:
                cells.append("-")
                reasons.append(f"{PEERS[name].title}, {work}: {why}")
                print(reasons[-1], flush=True)
        table.append(f"| {PEERS[name].title} | {lines(PEERS[name])} | " + " | ".join(cells) + " |")
    print("", *table, "", *(f"{work}: {what}" for work, what in whats.items()), *reasons, sep="\n")


if __name__ == "__main__":
    main()
