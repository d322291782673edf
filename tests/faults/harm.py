"""Faults that campaigns share: damage to files, and faults at a disk event inside a job.

As a program, `python harm.py ROOT COUNT FAULT -m fedshift ...` runs a job with a fault at a disk event in ROOT.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# ---- damage to a file


def flip(content: bytes, share: float) -> bytes:
    """Turn the bit that lies at a share of the content; an empty file gets a byte."""
    content = content or b"\0"
    place, bit = divmod(int(share * 8 * len(content)), 8)
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def cut(content: bytes, share: float) -> bytes:
    return content[: int(share * len(content))]


DAMAGES: dict[str, Callable[[bytes, float], bytes | None]] = {
    "flip": flip,
    "cut": cut,
    "empty": lambda content, share: b"",
    "delete": lambda content, share: None,
}
"""What is left of a file after each kind of damage; None where it is gone."""


def damage(file: Path, kind: str, keep_time: bool, share: float = 0.5) -> bool:
    """Damage a file, with a new time or with its old one, and return whether that changed anything."""
    before, content = file.stat(), file.read_bytes()
    left = DAMAGES[kind](content, share)
    if left is None:
        file.unlink()
    else:
        file.write_bytes(left)
        if keep_time:
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    return left != content


# ---- faults at a disk event

DISK = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
"""Audit events that count as disk events, where they write; a sync is one more."""


@dataclass(frozen=True)
class Fault:
    """A fault at the disk event of a number."""

    kind: str = "none"
    """`none`, `signal`, `cut and kill` as a loss of power does it, or `no space`, from there on."""
    event: int = 0
    number: int = signal.SIGKILL
    share: float = 0.5
    """How much is left of a file that is cut."""

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


NONE = Fault()


@contextlib.contextmanager
def at_disk(fault: Fault, folder: Path, count: Path) -> Iterator[None]:
    """Inside, the fault happens at its disk event in `folder`; `count` gets how many there were."""
    done, fsync, prefix = 0, os.fsync, str(folder.resolve())
    durable: dict[str, int] = {}

    def event(descriptor: int | None = None, grows: bool = True) -> None:
        nonlocal done
        done += 1
        if done < fault.event or (done > fault.event and not (fault.kind == "no space" and grows)):
            return
        if fault.kind in ("cut and kill", "no space") and descriptor is not None:
            with contextlib.suppress(OSError):  # a folder, or open for reading
                target = os.path.realpath(f"/proc/self/fd/{descriptor}")
                kept, size = durable.get(target, 0), os.fstat(descriptor).st_size
                os.truncate(target, kept + int(fault.share * (size - kept)))
        if fault.kind == "cut and kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "signal":
            os.kill(os.getpid(), fault.number)
        if fault.kind == "no space":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def hook(name: str, given: tuple[Any, ...]) -> None:
        if name not in DISK or not isinstance(given[0], str | os.PathLike):
            return
        path = os.path.abspath(os.fspath(given[0]))  # noqa: PTH100 - resolve() would raise events of its own
        writes = name != "open" or (len(given) > 2 and bool(given[2] & (os.O_WRONLY | os.O_RDWR)))
        if writes and path.startswith(prefix):
            event(grows=name in ("open", "os.mkdir"))

    def synced(descriptor: int) -> None:
        path = os.path.realpath(f"/proc/self/fd/{descriptor}")
        if path.startswith(prefix):
            event(descriptor)
        fsync(descriptor)
        durable[path] = os.fstat(descriptor).st_size

    os.fsync = synced
    sys.addaudithook(hook)
    try:
        yield
    finally:
        os.fsync, prefix = fsync, "\0"  # hooks stay: this one has nothing more to see
        if fault.kind == "none":
            count.write_text(str(done))


def main(root: str, count: str, fault: str, *words: str) -> None:
    from fedshift.core import process

    process.leave = sys.exit  # type: ignore[assignment] - the events are counted after the command
    sys.argv = ["fedshift", *words[words.index("fedshift") + 1 :]]
    with at_disk(Fault(**json.loads(fault)), Path(root), Path(count)):
        runpy.run_module("fedshift", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
