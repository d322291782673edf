"""Flower's processes: a SuperLink at the server, a SuperNode at a site, each in its own group, ended with ours."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import Interrupted, UserError
from ..io.disk import write_private
from ..io.shipped import extra

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Environment variables that keep Flower from calling its makers and from installing packages."""
GRACE = 10.0
"""Seconds in which a process that was asked to end may end by itself."""
STARTS = 600.0
"""Seconds in which a program of Flower opens its port. One that ends before is noticed at once."""
AGAIN = 15.0
"""Seconds until a SuperNode that the server did not let in is started again."""
TRIES = 12
"""How often a SuperNode that the server does not let in is started."""
REFUSED = ("2004", "Exit Code: 305")
"""Texts in the log of a SuperNode that ended since the SuperLink did not let it in."""


class EndedError(UserError):
    """A program of Flower has ended although it is still needed."""


class NotLetInError(UserError):
    """The server refuses a SuperNode: it comes too early, or again before the server has noticed that it was gone."""


def require_flower() -> None:
    """Raise UserError where Flower is not installed; set the environment variables QUIET."""
    with extra("flower", "a federation of real sites"):
        import flwr  # noqa: F401 - only whether it is there
    os.environ.update(QUIET)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise Interrupted inside the context at SIGTERM or SIGINT, so that all processes started in it end, too."""

    def stop(number: int, _: object) -> None:
        error = Interrupted()
        error.exit_code = 128 + number
        raise error

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_local(address: str) -> bool:
    """Return whether an address (host:port) is on the loopback device of this machine."""
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def require_tls(address: str, ca: Path | None) -> None:
    """Raise UserError for an address (host:port) beyond this machine if `ca`, the certificate for TLS, is None."""
    if ca is None and not is_local(address):
        problem = "without certificates, messages would go over the network in the clear"
        raise UserError(address, problem, "fedshift serve STUDY --init writes them; without them use 127.0.0.1")


def secret_file(folder: Path) -> Path:
    """Write a new secret into `folder` that only this user can read, and return its file.

    A program of Flower gives tasks only to processes that know the secret.
    """
    file = folder / "secret"
    file.unlink(missing_ok=True)
    write_private(file, secrets.token_bytes(32))
    return file


def free_port() -> int:
    """Return the number of a free port of the loopback device."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(program: str, options: Sequence[str], home: Path, refused: Sequence[str] = ()) -> Iterator[Process]:
    """Run one of Flower's programs inside the context, and yield it; afterwards end it and its child processes.

    `home` is the folder of the program's files and of its log. If the program ends with any text of `refused` in its
    log, the server did not let it in.
    """
    home.mkdir(parents=True, exist_ok=True)
    log = home / f"{program}.log"
    with _without_space(Path(sys.executable).parent) as folder:
        with log.open("ab") as out:
            start = out.tell()
            child = subprocess.Popen(
                [str(folder / Path(sys.executable).name), str(folder / program), *options],
                env=os.environ | QUIET | {"FLWR_HOME": str(home.absolute())},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_ends_with_parent,
            )
        process = Process(program, child, log, start, refused)
        try:
            yield process
        finally:
            process.end()


@contextmanager
def _without_space(folder: Path) -> Iterator[Path]:
    """Yield the folder of this environment's programs, by a path that has no space.

    Flower splits the folders of its database's migrations at spaces, and then makes no table. Where the path has a
    space, a temporary link stands for it. Raises UserError if the folder for temporary files has one, too.
    """
    if " " not in str(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="fedshift-") as temporary:
        if " " in temporary:
            problem = "has a space, and Flower makes no database there"
            raise UserError(temporary, problem, "set TMPDIR to another folder")
        # The environment itself is linked: Python finds its packages beside the folder of its programs.
        link = Path(temporary) / "environment"
        link.symlink_to(folder.parent, target_is_directory=True)
        yield link / folder.name


def _ends_with_parent() -> None:
    """Make Linux end this process when its parent is killed; other systems do not."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Process:
    """A running program of Flower.

    `start` is the size of the log file in bytes when the program began, and `refused` holds texts which in the log mean
    that the server did not let it in.
    """

    def __init__(
        self, program: str, child: subprocess.Popen[bytes], log: Path, start: int, refused: Sequence[str] = ()
    ) -> None:
        self.program, self.child, self.log, self.start, self.refused = program, child, log, start, refused

    def require_alive(self) -> None:
        """Raise EndedError or NotLetInError if the program has ended, with the reason as far as it is known."""
        code = self.child.poll()
        if code is None:
            return
        text = self.log.read_bytes()[self.start :].decode("utf-8", errors="replace")
        if any(sign in text for sign in self.refused):
            problem = "the server does not let this site in: its key is unknown there, or it still counts as connected"
            raise NotLetInError(self.program, problem, "ask the server's people for the folder of this site")
        raise EndedError(self.program, f"has ended with code {code}", f"see {self.log}")

    def wait_for_port(self, address: str) -> None:
        """Wait until an address (host:port) accepts connections.

        Raises UserError if the program ends before, or the port stays closed for STARTS seconds.
        """
        host, _, port = address.rpartition(":")
        until = time.monotonic() + STARTS
        while time.monotonic() < until:
            self.require_alive()
            with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), 1):
                return
            time.sleep(0.2)
        raise UserError(address, f"does not open within {STARTS:.0f} s", f"see {self.log}")

    def end(self) -> None:
        """End the program and all processes of its group: by SIGTERM, and those that remain by SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(GRACE)
