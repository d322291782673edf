"""The resources that a job takes and uses, the provenance of a run, and the log of its rounds.

Jobs on one machine share its GPUs: each job uses one GPU, an idle one if there is any. The log has a line for people
and a JSON line for programs, from which a run resumes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..algorithms import LOGGED
from ..core import digest
from ..core.console import Progress, duration
from ..core.errors import UserError
from ..io.disk import disk_errors, try_lock
from ..io.tables import read_table
from ..io.text import read_json, require_columns, require_object, write_text

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from ..engine.server_side import ServerSide
    from ..study.run import Run


VISIBLE = "CUDA_VISIBLE_DEVICES"
COUNT = """
import ctypes
driver, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print(n.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(n)) == 0 else 0)
"""
"""Program, to be run by another Python, that asks the driver for the number of GPUs and prints it."""


def take_device(threads: int) -> torch.device:
    """Return the GPU of a job, or the CPU if there is none; torch uses `threads` CPU threads from now on.

    The precision and determinism of its arithmetic are set elsewhere: see `nn.device.arithmetic`.
    """
    import torch

    torch.set_num_threads(threads)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def one_gpu() -> Iterator[None]:
    """Make a single GPU visible inside the context: the one with the fewest jobs of this user.

    Enter the context before CUDA is used. A lock file for each GPU says that it is taken; the operating system frees it
    when the process ends. If all GPUs are taken, they are shared evenly: each gets a second job, and so on. With one
    GPU or none, as in a cluster job, nothing is done.
    """
    before = os.environ.get(VISIBLE)
    visible = map(str, range(_count())) if before is None else map(str.strip, before.split(","))
    gpus = [name for name in visible if name]
    if len(gpus) < 2:
        yield
        return
    with ExitStack() as stack:
        os.environ[VISIBLE] = _take(gpus, stack)
        try:
            yield
        finally:
            del os.environ[VISIBLE]
            if before is not None:
                os.environ[VISIBLE] = before


def _count() -> int:
    """Return the number of GPUs, counted by another process: after asking CUDA one cannot choose visible GPUs."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", COUNT], capture_output=True, text=True, check=False)
    return 0 if done.returncode else int(done.stdout)  # without a driver the program fails


def _take(gpus: list[str], stack: ExitStack) -> str:
    """Lock and return a GPU of `gpus` that no other process has taken, or else one that the fewest have taken.

    The lock is held until `stack` closes.
    """
    folder = Path(tempfile.gettempdir()) / f"fedshift-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # another user could have put a link there, to a file that this process would empty
    if folder.lstat().st_uid != os.getuid():
        raise UserError(folder, "belongs to another user", "set TMPDIR to a folder of yours")
    locks = ((gpu, folder / f"{gpu.replace('/', '-')}.{n}") for n in itertools.count() for gpu in gpus)
    return next(gpu for gpu, lock in locks if try_lock(stack.enter_context(lock.open("w", encoding="utf-8"))))


_STARTED = time.monotonic()
MEBIBYTE = 1024**2 if sys.platform == "darwin" else 1024
"""A mebibyte in the unit of `ru_maxrss`: bytes on macOS, kibibytes on Linux."""


def write_usage(path: Path) -> None:
    """Write seconds, peak memory (MiB) and CPU seconds of this process so far as TSV, with Snakemake's column names.

    Snakemake's own `benchmark` measures the processes below a job's shell, and a forked job is none of them. If several
    processes share a training, only the first writes, and multiplies its CPU seconds by their number.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = (used.ru_utime + used.ru_stime) * int(os.environ.get("WORLD_SIZE", "1"))
    seconds = time.monotonic() - _STARTED
    write_text(path, f"s\tmax_rss\tcpu_time\n{seconds:.2f}\t{used.ru_maxrss / MEBIBYTE:.1f}\t{cpu:.2f}\n")


PACKAGES = ("torch", "torchvision", "monai", "wilds", "numpy", "pandas", "snakemake")

INSTRUCTIONS = ("avx2", "avx512_f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_fp16")
"""Instruction sets of x86-64 by which oneDNN chooses its kernels, under torch's names, the oldest first."""
LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Environment variables that keep torch, oneDNN or MKL from instruction sets that a processor has."""

STAYED = "stayed_at_sites"
"""Entry of the manifest of a run that real sites trained: names of the tensors that stayed at the sites, in none of its
files."""
MANIFEST = {
    STAYED: "a list of texts",
    **dict.fromkeys(("git", "versions", "arithmetic", "gpu", "floats"), "a mapping"),
    **{"accepted": "a list", "search": "a mapping", "rounds": "a whole number", "best_round": "a whole number"},
    **dict.fromkeys(("best_value", "seconds", "peak_memory_mb"), "a number"),
    **{"floats_before": "a whole number", "started": "text"},
}
"""The entries of a manifest that other code reads, and the kind of value that each has if it is there."""


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the content of a run's manifest.json. Raises UserError for any other file."""
    remedy = "remove it, or copy the run's folder anew"
    try:
        return require_object(path, read_json(path), {}, MANIFEST)
    except UserError as error:
        raise UserError(path, f"is not a manifest of a run: {error.what}", remedy) from None


def git() -> dict[str, Any]:
    """Return the git commit of this code, and whether library files differ from it; {} outside a repository."""

    def ask(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[1]), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "dirty": bool(ask("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return {}


def versions() -> dict[str, str]:
    """Return the versions of Python, of fedshift and of the installed packages that influence results, by name."""
    found = {"python": platform.python_version(), "fedshift": __version__}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):  # the environment of a job need not hold them all
            found[name] = version(name)
    return found


def arithmetic() -> dict[str, str]:
    """Return the facts that decide in which order a CPU adds numbers, apart from the number of threads, by name.

    `torch` is the instruction set of torch's own kernels, such as AVX512, and `oneDNN` is on or off. `processor` lists
    those of `INSTRUCTIONS` that the machine has, from which oneDNN and MKL choose; an older torch lists none. Variables
    of `LIMITS` that are set follow by their names.
    """
    import torch

    present: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    onednn = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return {
        "torch": torch.backends.cpu.get_cpu_capability(),
        "oneDNN": "on" if onednn else "off",
        "processor": " ".join(name for name in INSTRUCTIONS if present.get(name)) or "unknown",
        **{name: os.environ[name] for name in LIMITS if os.environ.get(name)},
    }


def peak_memory_mb() -> float:
    """Return the highest resident memory of this process so far, in MiB. Memory-mapped pages that were read count."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEBIBYTE


def name_of(device: torch.device) -> str:
    """Return the name of a device: of a GPU its model, of a CPU its architecture."""
    import torch

    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else f"CPU ({platform.machine()})"


def gpu(device: torch.device) -> dict[str, str]:
    """Return driver and compute capability of a GPU, which decide its kernels beside its model; {} for a CPU."""
    import torch

    if device.type != "cuda":
        return {}
    driver = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # a card of another maker has no such program
        ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=20).stdout.partition("\n")[0]
    capability = torch.cuda.get_device_capability(device)
    return {"driver": driver.strip() or "unknown", "capability": ".".join(map(str, capability))}


def manifest(
    run: Run,
    federation: ServerSide,
    *,
    code: str,
    threads: int,
    device: torch.device,
    started: datetime,
    processes: int = 1,
) -> dict[str, Any]:
    """Return the content of a run's manifest.json: the provenance of the run, and its selected round.

    `code` is the digest of the training code. `started` is when this process took up the run; `seconds` counts all
    rounds, also those of earlier processes. `processes` is the number of processes that shared the clients.
    """
    selected = federation.selected
    # kernels of a CPU give the same bits each time
    deterministic = run.training.deterministic if device.type == "cuda" else True
    best_value = statistics.fmean(selected.values) if selected and selected.values else None
    content = {
        "run": run.id,
        "spec": digest.of(run.spec),
        "seed": run.seed,
        "code": code,
        "git": git(),
        "versions": versions(),
        "device": name_of(device),
        "gpu": gpu(device),
        "precision": run.training.precision,
        "channels_last": federation.trainer.channels_last,
        "deterministic": deterministic,
        "threads": threads,
        "arithmetic": arithmetic(),
        "processes": processes,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(sum(row["seconds"] for row in federation.history), 1),
        "rounds": federation.server.round,
        "best_round": selected.round if selected else federation.server.round,
        "best_value": best_value,
        "floats": federation.ledger(),
    }
    if run.model.origin:
        content["weights"] = run.model.origin
    before = federation.beforehand.floats(broadcast=False)
    if before:
        content["floats_before"] = before
    if federation.server.offers:
        content["sent_before"] = sorted(federation.server.offers)
    content["peak_memory_mb"] = round(peak_memory_mb(), 1)
    return content


Row = dict[str, Any]
ROUNDS = {"round": "whole numbers", "site": "text", "split": "text"}
ROUNDS |= dict.fromkeys(("loss", "accuracy", "seconds", "floats_down", "floats_up"), "numbers")
"""The columns of rounds.parquet, and the kind of values in each."""


def read_rounds(path: Path) -> pd.DataFrame:
    """Return the table of a run's rounds, rounds.parquet. Raises UserError for a file of other content."""
    table = read_table(path)
    require_columns(path, table, ROUNDS, "copy the run's folder anew, or train the run again")
    return table


class RoundLog:
    """Log that appends a line for each round to standard error and to a JSON-lines file.

    `sum` is the checksum (CRC-32) of the file so far. A JSON line holds round, loss (mean over clients), the numbers
    that plug-ins log (means over the clients that have them), split and accuracy (by site), seconds, eta, and under
    `rows` the round's part of the history. Lines are appended, so the cost of a round does not depend on the number of
    rounds before.
    """

    def __init__(self, path: Path, rounds: int) -> None:
        self.path, self.rounds = path, rounds
        self.sum = 0
        self.bar: Progress | None = None

    def read(self, until: int, checksum: int) -> list[Row]:
        """Return the history (a row for each round, site and split) of rounds 1 to `until`.

        Raises UserError if the file lacks one of these rounds, or their lines do not have the `checksum`.
        """
        with suppress(OSError):
            lines = self._lines(until)
            if len(lines) == until and zlib.crc32(b"".join(lines)) == checksum:
                return [row for line in lines for row in json.loads(line)["rows"]]
        raise UserError(self.path, f"does not hold rounds 1 to {until}")

    def _lines(self, until: int) -> list[bytes]:
        # before the first round the file need not be there
        return self.path.read_bytes().splitlines(keepends=True)[:until] if until else []

    def start(self, done: int) -> None:
        """Begin the log after round `done`, and drop the lines of later rounds, which no checkpoint holds."""
        self.first = done
        self.clock = time.monotonic()
        lines = b"".join(self._lines(done))
        self.sum = zlib.crc32(lines)
        write_text(self.path, lines.decode())
        self.bar = Progress("rounds", self.rounds - done, "round") if sys.stderr.isatty() else None

    def append(self, number: int, rows: Iterable[Row]) -> None:
        """Log round `number` with its rows of the history, and wait until they are on the disk."""
        rows = list(rows)
        training = [r for r in rows if r["split"] == "train"]
        scored = [r for r in rows if r["split"] == "val"] or training
        entry = {
            "round": number,
            "loss": sum(r["loss"] for r in training) / len(training),
            "logged": _logged(training),
            "split": scored[0]["split"],
            "accuracy": {r["site"]: r["accuracy"] for r in scored},
            "seconds": sum(r["seconds"] for r in rows),
            "eta": (time.monotonic() - self.clock) / (number - self.first) * (self.rounds - number),
            "rows": rows,
        }
        line = json.dumps(entry).encode() + b"\n"
        with disk_errors(self.path), self.path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.sum = zlib.crc32(line, self.sum)
        self._say(entry)

    def _say(self, entry: Row) -> None:
        sites = ", ".join(f"{site} {value:.3f}" for site, value in entry["accuracy"].items())
        line = (
            f"round {entry['round']}/{self.rounds}  loss {entry['loss']:.4f}{in_words(entry['logged'])}  "
            f"{entry['split']} accuracy {sites}  {entry['seconds']:.1f} s  ETA {duration(entry['eta'])}"
        )
        if self.bar:
            self.bar.say(line)
            self.bar.update()
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the progress bar, if there is one."""
        if self.bar:
            self.bar.close()


def in_words(logged: Mapping[str, float]) -> str:
    """Return the numbers that plug-ins log, as the text that follows a loss in a line; "" without any."""
    return "".join(f", {name} {value:.4g}" for name, value in logged.items())


def _logged(rows: Iterable[Row]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for column, value in row.items():
            if column.startswith(LOGGED):
                values.setdefault(column.removeprefix(LOGGED), []).append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
