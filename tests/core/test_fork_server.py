"""A command that the fork server runs does what it does in a process of its own, and ends when it does."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from patience import PATIENCE, until

import fedshift
from fedshift.core.process import ADDRESS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is for Linux")
DEMO = Path(__file__).parents[2] / "config" / "studies" / "demo.yaml"
LIST = ["list", "algorithms"]


def _take_ctrl_c() -> None:
    """Let Ctrl-C act, also where the tests themselves run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Warm:
    """A fork server, and commands that use it."""

    def __init__(self, folder: Path, *ahead: str, environment: Mapping[str, str] = os.environ) -> None:
        self.socket = folder / "server" / "socket"
        self.socket.parent.mkdir()
        self.address = f"{sys.prefix}:{self.socket}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.socket))
            listener.listen()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedshift.core.fork_server", str(listener.fileno()), *ahead],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[listener.fileno()],
            )

    def start(self, arguments: list[str], **options: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fedshift", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_take_ctrl_c,
            **{"env": {**os.environ, ADDRESS: self.address}, **options},  # type: ignore[call-overload]
        )

    def run(self, arguments: list[str], **options: object) -> tuple[int, str, str]:
        process = self.start(arguments, **options)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def children(self) -> list[int]:
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        return [int(pid) for pid in text.split()]

    def end(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    server = Warm(tmp_path_factory.mktemp("warm"))
    yield server
    assert server.end() == 0
    assert not server.socket.parent.exists()


@pytest.fixture(autouse=True)
def project_with_nothing_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder where no run of the study `demo` has begun, so that `status --watch` goes on watching."""
    studies = tmp_path / "project" / "config" / "studies"
    studies.mkdir(parents=True)
    shutil.copy(DEMO, studies)
    monkeypatch.chdir(tmp_path / "project")


def plain(arguments: list[str], **options: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "fedshift", *arguments],
        capture_output=True,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    return done.returncode, done.stdout, done.stderr


@functools.cache
def version() -> tuple[int, str, str]:
    return plain(["--version"])


@pytest.mark.parametrize("arguments", [LIST, ["list", "nonsense"], ["check", "no such study"], ["--version"]])
def test_output_and_exit_code_are_those_of_an_ordinary_start(warm: Warm, arguments: list[str]) -> None:
    assert warm.run(arguments) == plain(arguments)


def test_the_folder_and_the_environment_are_the_clients(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "config" / "studies").mkdir(parents=True)
    assert warm.run(["check", "x"], cwd=tmp_path) == plain(["check", "x"], cwd=tmp_path)
    narrow = {**os.environ, ADDRESS: warm.address, "COLUMNS": "50"}
    wide = {**narrow, "COLUMNS": "200"}
    usages = [warm.run(["check", "--help"], env=environment)[1] for environment in (narrow, wide)]
    assert usages[0] != usages[1]


def mapped(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def test_libraries_are_loaded_ahead_while_a_command_works(tmp_path: Path) -> None:
    server, library = Warm(tmp_path, "no_such_module", "sqlite3"), "/_sqlite3."
    assert not mapped(server.process.pid, library), "nothing before the first command"
    assert server.run(LIST)[0] == 0
    assert mapped(server.process.pid, library)
    assert server.end() == 0


@pytest.mark.parametrize("own", [None, "glibc.malloc.check=1"])
def test_the_server_starts_with_large_pages_unless_the_user_sets_glibc(own: str | None) -> None:
    start = (
        "import pathlib; from fedshift.core import fork_server; fork_server.start();"
        "server = pathlib.Path('/proc/thread-self/children').read_text().split()[0];"
        "print(pathlib.Path(f'/proc/{server}/environ').read_text())"
    )
    kept = {key: value for key, value in os.environ.items() if key not in {ADDRESS, "GLIBC_TUNABLES"}}
    environment = kept | ({"GLIBC_TUNABLES": own} if own else {})
    out = subprocess.run([sys.executable, "-c", start], env=environment, capture_output=True, text=True, check=True)
    assert f"GLIBC_TUNABLES={own or 'glibc.malloc.hugetlb=1'}" in out.stdout.split("\0")


def test_signals_reach_the_command(warm: Warm) -> None:
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)):
        process = warm.start(["status", "demo", "--watch"])
        until(warm.children)
        assert process.stdout
        process.stdout.readline()  # it has begun to watch
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == code


def test_a_killed_client_takes_its_process_along(warm: Warm) -> None:
    process = warm.start(["status", "demo", "--watch"])
    until(warm.children)
    process.kill()
    process.wait(PATIENCE)
    until(lambda: not warm.children())


def test_a_killed_process_ends_its_client_alike(warm: Warm) -> None:
    process = warm.start(["status", "demo", "--watch"])
    until(warm.children)
    (child,) = warm.children()
    os.kill(child, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("why", ["threads", "no server"])
def test_other_commands_start_on_their_own(warm: Warm, why: str) -> None:
    arguments = ["status", "demo", "--watch", *(["--threads", "2"] if why == "threads" else [])]
    address = warm.address if why == "threads" else f"{sys.prefix}:{warm.socket.with_name('none')}"
    process = warm.start(arguments, env={**os.environ, ADDRESS: address})
    assert process.stdout
    assert process.stdout.readline()
    assert warm.children() == []
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def test_threads_of_python_alone_are_no_reason_to_start_anew(warm: Warm) -> None:
    """`prepare` reads images in threads; a start of its own would import what the server holds."""
    process = warm.start(["prepare", "no such study", "x", "--threads", "2"])
    until(warm.children)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 2


def test_another_python_is_refused(warm: Warm) -> None:
    code = (
        "import sys; sys.prefix = '/elsewhere'; sys.argv = ['fedshift', '--version']\n"
        "from fedshift.core.process import run_warm; print(run_warm())"
    )
    environment = {**os.environ, ADDRESS: warm.address}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def test_a_killed_server_takes_its_commands_along(tmp_path: Path) -> None:
    server = Warm(tmp_path)
    process = server.start(["status", "demo", "--watch"])
    until(server.children)
    assert process.stdout
    process.stdout.readline()
    (job,) = server.children()
    server.process.kill()
    server.process.wait(PATIENCE)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert said.splitlines() == [
        "study demo at scale mini: reading the state of its runs ...",
        "the fork server was ended, and with it this command",
    ]
    until(lambda: not Path(f"/proc/{job}").exists() or " Z " in Path(f"/proc/{job}/stat").read_text(encoding="ascii"))


@pytest.mark.parametrize("words", [b"", b"[1]\n", b"{}\n", b'{"folder": 1}\n', b"\xff\n", b"no JSON\n"])
def test_no_request_ends_the_server(warm: Warm, words: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(warm.socket))
        with Path(os.devnull).open("r+") as none:
            socket.send_fds(connection, [b"f"], [none.fileno()] * 3)
        connection.sendall(words)
    until(lambda: not warm.children())
    assert warm.run(["--version"]) == version()


def test_a_command_reads_the_sources_as_they_are(tmp_path: Path) -> None:
    """Also the modules that the server itself consists of."""
    package = shutil.copytree(Path(fedshift.__file__).parent, tmp_path / "src" / "fedshift")
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    server = Warm(tmp_path, environment=environment)
    with (package / "__init__.py").open("a", encoding="utf-8") as file:
        file.write('__version__ = "edited"\n')
    _, said, _ = server.run(["--version"], env={**environment, ADDRESS: server.address})
    assert said == "fedshift edited\n"
    assert server.end() == 0


def test_commands_go_on_when_the_workflow_has_gone(tmp_path: Path) -> None:
    server = Warm(tmp_path)
    process = server.start(["status", "demo", "--watch"])
    until(server.children)
    assert process.stdout
    process.stdout.readline()
    assert server.process.stdin
    server.process.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert server.process.wait(PATIENCE) == 0


TWICE = """
import os, signal, socket, time
from pathlib import Path
from fedshift.core import fork_server
from fedshift.core.process import ADDRESS


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def press(number, frame):
    raise KeyboardInterrupt


def pressed(server):
    communicate = server.communicate
    server.communicate = lambda: (signal.setitimer(signal.ITIMER_REAL, 0.1), communicate())
    wait_for(server)


signal.signal(signal.SIGALRM, press)
wait_for, fork_server.wait_for = fork_server.wait_for, pressed
fork_server.start()
busy = socket.socket(socket.AF_UNIX)  # a job that waits for its request: the server cannot end before it
busy.connect(os.environ[ADDRESS].rpartition(":")[2])
while not any(children(server) for server in children(os.getpid())):
    time.sleep(0.01)
"""


def test_a_second_ctrl_c_while_python_ends_prints_nothing() -> None:
    environment = {key: value for key, value in os.environ.items() if key != ADDRESS}
    command = [sys.executable, "-c", TWICE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
