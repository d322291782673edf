"""Commands of Python modules in processes forked from one that has imported their libraries.

Most of the processor time of a short command is its imports. Each process of tests starts one server, a fork server of
`fedshift.core`: it imports libraries, never a module of fedshift that computes, so that a command reads the sources of
its project as they are. The jobs of a Snakemake that it has forked are forked from it, too. Where nothing
can be forked, commands start as usual.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
NOT_KEPT = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""Variables of the tests that a user does not have: commands read their own sources, with their bytecode."""


def environment() -> dict[str, str]:
    """Return the environment of a user's command: one thread, and lines that are wide enough."""
    kept = {key: value for key, value in os.environ.items() if key not in NOT_KEPT}
    return kept | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def address() -> dict[str, str]:
    """Return the environment variable that lets the jobs of any Snakemake be forked here; none where nothing can be."""
    from fedshift.core.process import ADDRESS

    return {ADDRESS: f"{sys.prefix}:{_server()}"} if sys.platform == "linux" else {}


def run(module: str, words: tuple[str, ...], folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE WORDS` in a folder, forked from a warm process."""
    command, warm = [sys.executable, "-m", module, *words], address()
    if not warm:
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    request = {"module": module, "argv": [module, *words], "folder": str(folder)}
    added = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
    request |= {"path": [str(folder), *added], "environment": {**env, **warm}}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open() as none:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(_server())
            socket.send_fds(connection, [b"f"], [none.fileno(), out.fileno(), err.fileno()])
            connection.sendall(json.dumps(request).encode() + b"\n")
            answers = connection.makefile("rb").read().splitlines()
        assert len(answers) == 2, "the server of forked commands refused, or has ended"
        out.seek(0)
        err.seek(0)
        code = os.waitstatus_to_exitcode(int(answers[1]))
        return subprocess.CompletedProcess(command, code, out.read().decode(), err.read().decode())


@functools.cache
def _server() -> str:
    """Start the server, which ends with this process, and return the path of its socket."""
    path = Path(tempfile.mkdtemp(prefix="forked-")) / "socket"  # not pytest's: names of sockets must be short
    env = environment() | dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(128)
        command, passed = [sys.executable, __file__, str(listener.fileno())], [listener.fileno()]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, pass_fds=passed)
    atexit.register(server.communicate)
    return str(path)


def _main() -> None:
    """Serve; in a forked process, run the module that a test names in a project's folder, or a job's command."""
    sys.path[0] = str(SOURCES)
    from fedshift.core.fork_server import LIBRARIES, become, serve
    from fedshift.core.process import leave

    libraries, listener = sys.path[1:], socket.socket(fileno=int(sys.argv[1]))
    connection = serve(listener, ["snakemake.cli", "torch", "monai.transforms", *LIBRARIES])
    if connection is None:
        shutil.rmtree(Path(listener.getsockname()).parent)
        leave(0)
    request = become(connection)
    module = request.get("module")
    if module:
        sys.path += libraries
    try:
        runpy.run_module(module or "fedshift", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    leave(0)


if __name__ == "__main__":
    _main()
