"""A process that stays warm beside Snakemake and forks one process for each local job.

The server imports what the jobs before have imported from installed libraries, never a module of fedshift: a job reads
the sources as they are when it starts. A job's process has the files, the folder and the environment of its client
(`fork_client`). It is killed when its client dies. The server ends when Snakemake does.

The server has a single thread of its own and of each numeric library, since a fork copies one thread only.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .ending import leave
from .fork_client import ADDRESS, FORWARDED, LIMITS, identity

LONGEST = 80
"""Most bytes of the path of the folder for temporary files; the path of a socket may have 107."""


def start(ahead: Sequence[str] = ()) -> None:
    """Start a server that ends with this process, and let the jobs that this process starts from now on use it.

    `ahead` are names of modules that later jobs will import: the server imports them while the first job works.
    Does nothing where the environment names a server already, where forking loaded libraries is unsafe (other systems
    than Linux), or where the path of the folder for temporary files is too long for a socket.
    """
    if ADDRESS in os.environ or sys.platform != "linux" or len(os.fsencode(tempfile.gettempdir())) > LONGEST:
        return
    path = Path(tempfile.mkdtemp(prefix="fedshift-")) / "socket"
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, path, *ahead],
        stdin=subprocess.PIPE,  # closed with this process: then the server ends
        stdout=subprocess.PIPE,
        env={**os.environ, **dict.fromkeys(LIMITS, "1")},
    )
    atexit.register(server.communicate)
    if server.stdout and server.stdout.readline():  # the socket is there
        os.environ[ADDRESS] = str(path)


class Child:
    """The process of one client: its connection, its descriptor, and the pipe that it names its modules on."""

    def __init__(self, pid: int, connection: socket.socket, names: int) -> None:
        self.pid, self.connection, self.names = pid, connection, names
        self.process = os.pidfd_open(pid)
        self.text = bytearray()

    def tell(self, line: int) -> None:
        """Send the client a line; it may have died."""
        with contextlib.suppress(OSError):
            self.connection.sendall(f"{line}\n".encode())

    def close(self) -> None:
        """Close all descriptors."""
        self.connection.close()
        _close([self.process, self.names])


class Server:
    """The loop that takes requests, forks, and tells each client how its process ended.

    Parameters
    ----------
    path : path of the socket on which clients ask
    lifeline : descriptor that is closed when the server is to end
    ahead : names of modules to import while a forked process works and nobody asks
    """

    def __init__(self, path: str, lifeline: int, ahead: Iterable[str] = ()) -> None:
        self.lifeline, self.ahead = lifeline, list(ahead)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(128)
        self.selector = selectors.DefaultSelector()
        self.children: set[Child] = set()
        self.request: dict[str, Any] | None = None
        self._watch(lifeline, self._end)
        self._watch(self.listener, self._accept)

    def _watch(self, one: int | socket.socket, call: Callable[[], None]) -> None:
        self.selector.register(one, selectors.EVENT_READ, call)

    def _ignore(self, *ones: int | socket.socket) -> None:
        for one in ones:
            with contextlib.suppress(KeyError):
                self.selector.unregister(one)

    def serve(self) -> dict[str, Any] | None:
        """Serve until the end. Returns None in the server, and the request in each process that was forked for one."""
        while self.selector.get_map():
            idle = bool(self.ahead and self.children)
            events = self.selector.select(0 if idle else None)
            if idle and not events:
                load([self.ahead.pop(0)])
            for key, _ in events:
                if key in self.selector.get_map().values():  # an event before may have ended it
                    key.data()
                if self.request is not None:
                    return self.request
        return None

    def _end(self) -> None:
        """Take no more requests. Jobs that run go on to their end, as they do where Snakemake alone is killed."""
        self._ignore(self.lifeline, self.listener)
        self.listener.close()

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        files: list[int] = []
        try:
            _, files, _, _ = socket.recv_fds(connection, 1, 3)
            request = json.loads(connection.makefile("rb").readline())
            if request["identity"] != identity() or threading.active_count() > 1:
                raise ValueError("other libraries")
        except (OSError, ValueError, KeyError):
            connection.close()
            _close(files)
            return
        names, report = os.pipe()
        gc.freeze()  # a collection in the forked process would copy the memory of all libraries to look at it
        if pid := os.fork():
            _close([*files, report])
            self._follow(Child(pid, connection, names))
            return
        self.request = {**request, "files": files, "report": report}
        self.selector.close()
        self.listener.close()
        connection.close()
        os.close(names)
        for child in self.children:
            child.close()

    def _follow(self, child: Child) -> None:
        def lost() -> None:
            """Kill the process of a client that died."""
            self._ignore(child.connection)
            os.kill(child.pid, signal.SIGKILL)

        def read() -> None:
            """Collect the names of modules, which the process writes at its end."""
            piece = os.read(child.names, 65536)
            child.text.extend(piece)
            if not piece:
                self._ignore(child.names)

        def done() -> None:
            """Tell the client how its process ended, and import what the process had imported."""
            _, status = os.waitpid(child.pid, 0)
            child.tell(status)
            while child.names in self.selector.get_map():
                read()
            self._ignore(child.process, child.connection)
            child.close()
            self.children.remove(child)
            if self.lifeline in self.selector.get_map():
                load(child.text.decode().split())

        self.children.add(child)
        self._watch(child.connection, lost)
        self._watch(child.names, read)
        self._watch(child.process, done)
        child.tell(child.pid)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def load(names: Iterable[str]) -> None:
    """Import modules, as far as they can be imported."""
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def installed() -> list[str]:
    """Return the names of the imported modules of installed libraries, in the order of import.

    Packages with plug-ins, fedshift first of all, are left out: they import fedshift, whose sources a job reads anew.
    """
    registry = sys.modules.get("fedshift.core.registry")
    own = {"fedshift", *(registry.packages() if registry else ())}
    folders = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})
    return [
        name
        for name, module in list(sys.modules.items())
        if str(getattr(module, "__file__", None)).startswith(folders) and name.partition(".")[0] not in own
    ]


def become(request: dict[str, Any]) -> None:
    """Give this process the files, folder, arguments, environment and signal handlers that the client's command has."""
    os.setpgid(0, 0)  # a Ctrl-C reaches the client, which forwards it
    for number in FORWARDED:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for target, descriptor in enumerate(request["files"]):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = request["argv"]
    sys.path[:] = request["path"]
    report, before = request["report"], set(sys.modules)

    @atexit.register
    def _say() -> None:
        os.write(report, "\n".join(name for name in installed() if name not in before).encode())
        os.close(report)


def main() -> None:
    """Serve; in a forked process, run the command of its client."""
    for number in FORWARDED:  # the server ends when Snakemake does
        signal.signal(number, signal.SIG_IGN)
    path = Path(sys.argv[1])
    server = Server(str(path), sys.stdin.fileno(), sys.argv[2:])
    print("ready", flush=True)
    os.dup2(2, 1)
    request = server.serve()
    if request is None:
        shutil.rmtree(path.parent)
        leave(0)  # libraries complain on the terminal where Python takes them apart
    else:
        become(request)
        runpy.run_module("fedshift", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
