"""The machine of a job: its GPU, and the time and memory that it used.

Jobs on one machine share its GPUs: each job uses one GPU, an idle one if there is any.
"""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UserError
from ..io.disk import try_lock
from ..io.text import write_text

if TYPE_CHECKING:
    import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"
COUNT = """
import ctypes
driver, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print(n.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(n)) == 0 else 0)
"""
"""Program that asks the driver how many GPUs there are."""


def take_device(threads: int) -> torch.device:
    """Return the GPU of a job, or the CPU if there is none; torch uses `threads` CPU threads from now on.

    How it computes is up to those who use it: see `nn.device.arithmetic`.
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
    if before is None:
        gpus = [str(n) for n in range(_count())]
    else:
        gpus = [name.strip() for name in before.split(",") if name.strip()]
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
    """Count the GPUs in another process.

    Once a process has asked CUDA, it ignores a later choice of visible devices: all jobs would share the first GPU.
    """
    done = subprocess.run([sys.executable, "-I", "-S", "-c", COUNT], capture_output=True, text=True, check=False)
    return 0 if done.returncode else int(done.stdout)  # without a driver the program fails


def _take(gpus: list[str], stack: ExitStack) -> str:
    """Return the first GPU that no other process has taken, else the first that one process has taken, and so on."""
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

    Snakemake's own `benchmark` measures the processes below a job's shell, and a forked job is none of them.
    Of the processes that share a training, the first writes, and multiplies its CPU seconds by their number.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = (used.ru_utime + used.ru_stime) * int(os.environ.get("WORLD_SIZE", "1"))
    seconds = time.monotonic() - _STARTED
    write_text(path, f"s\tmax_rss\tcpu_time\n{seconds:.2f}\t{used.ru_maxrss / MEBIBYTE:.1f}\t{cpu:.2f}\n")
