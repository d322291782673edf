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
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import UserError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Environment variables that keep Flower from calling its makers and from installing packages."""
GRACE = 10.0
"""Seconds in which a process may end by itself."""
STARTS = 90.0
"""Seconds in which a SuperLink opens its port."""
EXITS = {
    "305": "the server does not accept this site: its key is not registered there, or the site still counts as connected "
    "(then start it again after a minute)",
}
"""What exit codes of Flower mean for its user."""


def require_flower() -> None:
    """Raise UserError where Flower is not installed, and take its switches into the environment."""
    try:
        import flwr  # noqa: F401 - only whether it is there
    except ModuleNotFoundError:
        remedy = "pip install 'fedshift[flower]', in a clone: make flower, and .venv-flower/bin/python -m fedshift"
        raise UserError("Flower", "is not installed", remedy) from None
    os.environ.update(QUIET)


def require_tls(address: str, ca: Path | None) -> None:
    """Raise UserError for an address (host:port) beyond this machine without TLS."""
    host = address.rpartition(":")[0].strip("[]")
    local = host == "localhost"
    with contextlib.suppress(ValueError):
        local = local or ipaddress.ip_address(host).is_loopback
    if ca is None and not local:
        problem = "without certificates, messages would go over the network in the clear"
        raise UserError(address, problem, "fedshift serve STUDY --init writes them; without them use 127.0.0.1")


def secret_file(folder: Path) -> Path:
    """Write a new secret that only this user can read, by which Flower's processes know ours, and return its file."""
    file = folder / "secret"
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
        out.write(secrets.token_bytes(32))
    return file


def free_port() -> int:
    """Return the number of a free port of the loopback device."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(program: str, options: Sequence[str], home: Path) -> Iterator[Process]:
    """Run one of Flower's programs inside the context, and end it and all processes that it started afterwards.

    `home` is the folder of its files and of its log.
    """
    home.mkdir(parents=True, exist_ok=True)
    log = home / f"{program}.log"
    command = [str(Path(sys.executable).with_name(program)), *options]
    with log.open("ab") as out:
        child = subprocess.Popen(
            command,
            env=os.environ | QUIET | {"FLWR_HOME": str(home.absolute())},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_ends_with_parent,
        )
    process = Process(program, child, log)
    try:
        yield process
    finally:
        process.end()


def _ends_with_parent() -> None:
    """Ask Linux to end this process if its parent is killed; elsewhere only the parent ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Process:
    """A running program of Flower, with its log."""

    def __init__(self, program: str, child: subprocess.Popen[bytes], log: Path) -> None:
        self.program, self.child, self.log = program, child, log

    def require_alive(self) -> None:
        """Raise UserError if the program has ended, with the reason as far as it is known."""
        code = self.child.poll()
        if code is None:
            return
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        known = next((why for number, why in EXITS.items() if any(f"Exit Code: {number}" in line for line in lines)), "")
        raise UserError(self.program, known or f"has ended with code {code}", f"see {self.log}")

    def wait_for_port(self, address: str) -> None:
        """Wait until an address (host:port) can be reached. Raises UserError if the program ends before."""
        host, _, port = address.rpartition(":")
        until = time.monotonic() + STARTS
        while time.monotonic() < until:
            self.require_alive()
            with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), 1):
                return
            time.sleep(0.2)
        raise UserError(address, f"does not open within {STARTS:.0f} s", f"see {self.log}")

    def end(self) -> None:
        """End the program and all processes of its group: first by asking, then by force."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(GRACE)
