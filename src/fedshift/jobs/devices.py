"""What a job computes on. Jobs of one machine share its GPUs: each is pinned to one, an idle one where there is any."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UserError
from ..io.disk import try_lock

if TYPE_CHECKING:
    import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"


def take_device(threads: int) -> torch.device:
    """The GPU of a job, or the CPU where there is none, of which it takes so many threads from now on."""
    import torch

    torch.set_num_threads(threads)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def one_gpu() -> Iterator[None]:
    """Inside, a single GPU is visible: the one with the fewest jobs of this user. To be entered before CUDA is used.

    A lock file of each GPU says that it is taken; the system frees it when the process dies. Where all are taken, GPUs
    are shared evenly: a second job each, and so on. Where there is one GPU or none, as in a job of a cluster, nothing
    is done.
    """
    given, gpus = os.environ.get(VISIBLE), _visible()
    if len(gpus) < 2:
        yield
        return
    with ExitStack() as held:
        os.environ[VISIBLE] = _take(gpus, held)
        try:
            yield
        finally:
            del os.environ[VISIBLE]
            os.environ |= {VISIBLE: given} if given is not None else {}


def _visible() -> list[str]:
    """The GPUs that this process may use, by number or name."""
    if (given := os.environ.get(VISIBLE)) is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    import torch

    return [str(n) for n in range(torch.cuda.device_count())]  # counted without a context on any of them


def _take(gpus: list[str], held: ExitStack) -> str:
    """The first GPU that no other process has taken, else the first that one other has, and so on."""
    folder = _own(Path(tempfile.gettempdir()) / f"fedshift-gpus-{os.getuid()}")
    locks = ((gpu, folder / f"{gpu.replace('/', '-')}.{n}") for n in itertools.count() for gpu in gpus)
    return next(gpu for gpu, lock in locks if try_lock(held.enter_context(lock.open("w", encoding="utf-8"))))


def _own(folder: Path) -> Path:
    """A folder that nobody else can have put anything into."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise UserError(folder, "belongs to another user", "remove it, or set TMPDIR")
    return folder
