"""Both ends of a study over Flower: the server's SuperLink behind a gate, and the SuperNode of a site.

The SuperLink is started again if it ends. All its interfaces share one port, and its control interface asks for no
login: who reaches it may register keys, stop runs and remove sites. Flower's accounts need a plug-in that it does not
bring. So the SuperLink listens on the loopback device alone. The gate has TLS, and passes on the calls of a SuperNode,
which Flower signs, and no others.
"""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn

from ..core.console import say
from ..core.errors import UserError
from ..core.units import MIB
from ..hospitals import agreed, study_server
from ..hospitals.hospital import Hospital
from ..io.paths import Paths
from . import processes
from .processes import EndedError, Process, free_port, is_local, running, secret_file
from .wire import LOST, POLL, FlowerTransport, Over, answer_tasks, opened_run, register, registered

if TYPE_CHECKING:
    from ..study.plan import Plan
    from .keys import Keys


STARTS = 5
"""How often a SuperLink is started in a row, without a finished round, before the server gives up."""
CALLS = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        *("activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab"),
        *("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received"),
    )
)
"""The calls that the gate passes on: those of a SuperNode with a registered key, which registers and removes no
node."""
LARGEST = 16 * MIB
"""The most bytes of a call: Flower cuts messages into pieces of 5 MiB."""
PATIENCE, OPENS = 60.0, 30.0
"""Seconds for an answer of the SuperLink, and seconds within which the gate must open."""


def serve(plan: Plan, keys: Keys | None, address: str, wait: float, threads: int, resume: bool) -> list[str]:
    """Train all runs of a study with its sites, and return the names of sites that sent no results for the page.

    `address` (host:port) is where sites reach this machine; without `keys` it is on the loopback device. A SuperLink
    that ends is started again: a new run of Flower goes on after the last finished round. Raises UserError for sites
    that do not come within `wait` seconds, and for rounds of an earlier call that `resume` does not ask to go on with.
    """
    stopped = [run for run in plan.runs if Paths().run_files(run).state.exists()]
    if stopped and not resume:
        problem = "was stopped before its last round"
        raise UserError(Paths().run(stopped[0]), problem, "go on with it: --resume; or remove its folder")
    if not resume:
        shutil.rmtree(_home(), ignore_errors=True)
    _home().mkdir(parents=True, exist_ok=True)
    before, starts = _finished(plan), 0
    while True:
        try:
            return _served(plan, keys, address, wait, threads)
        except EndedError as error:
            finished = _finished(plan)
            starts = 1 if finished != before else starts + 1
            before = finished
            if starts == STARTS:
                raise UserError("flower-superlink", f"has ended {STARTS} times in one round", error.remedy) from error
            say("the SuperLink has ended; starting another one, which goes on after the last finished round")


def _finished(plan: Plan) -> list[int]:
    """Return the time, in nanoseconds, at which each run last wrote the state of a finished round; 0 if never."""
    states = [Paths().run_files(run).state for run in plan.runs]
    return [state.stat().st_mtime_ns if state.exists() else 0 for state in states]


def _served(plan: Plan, keys: Keys | None, address: str, wait: float, threads: int) -> list[str]:
    """Train all runs with one SuperLink; see `serve`. Raises EndedError if the SuperLink ends before the last run."""
    with superlink(keys, address) as (program, local, ca, secret):
        try:
            with opened_run(local, ca, secret) as grid:
                names = partial(registered, local, ca) if keys else None
                transport = FlowerTransport(grid, agreed.sites(plan), say, names)
                return study_server.serve(plan, transport, wait, threads, program.require_alive)
        except LOST as error:
            time.sleep(1)
            program.require_alive()
            raise UserError(program.program, f"refuses a call: {error}", f"see {program.log}") from error


def _home() -> Path:
    return Paths().results / "federation" / "server"


@contextmanager
def superlink(keys: Keys | None, address: str) -> Iterator[tuple[Process, str, bytes | None, bytes]]:
    """Run a SuperLink inside the context; yield its process, local address, authority's certificate, and secret.

    The SuperLink listens on the loopback device alone. With `keys`, sites reach it through the gate at `address`;
    without them, the certificate is None, and `address` is the local one.
    """
    port = address.rpartition(":")[2]
    inner = str(free_port()) if keys else port
    local = f"127.0.0.1:{inner}"
    home = _home()
    secret = secret_file(home)
    options = ["--isolation", "process", "--superexec-auth-secret-file", str(secret.absolute())]
    options += ["--host", "127.0.0.1", "--port", inner]
    options += ["--disable-runtime-dependency-installation", "--database", str((home / "state.db").absolute())]
    ca = None
    if keys:
        certificate, key = keys.server
        ca = keys.ca.read_bytes()
        options += ["--enable-supernode-auth"]
        options += ["--ssl-ca-certfile", str(keys.ca.absolute()), "--ssl-certfile", str(certificate.absolute())]
        options += ["--ssl-keyfile", str(key.absolute())]
    else:
        options += ["--insecure"]
    with ExitStack() as stack:
        program = stack.enter_context(running("flower-superlink", options, home))
        program.wait_for_port(local)
        if keys:
            for name in keys.names:
                register(local, ca, name, keys.public(name).read_bytes())
            host = "127.0.0.1" if is_local(address) else "0.0.0.0"
            stack.enter_context(opened_gate(host, int(port), keys.server, keys.ca, local))
        say(f"open for sites at {address}")
        yield program, local, ca, secret.read_bytes()


def instructions(plan: Plan, keys: Keys, study: str) -> Iterator[str]:
    """Yield the lines that `fedshift serve --init` prints: which site gets which folder, and both sides' commands."""
    yield f"Certificates are in {keys.folder}; {keys.folder / 'server'} stays on this machine."
    for name in agreed.sites(plan):
        yield f"Give {keys.site(name)} to {name}, over a way that nobody else reads. There:"
        yield f"  fedshift site {name}/{plan.path.name} --site {name} --data images.csv --keys {name}"
    yield "Here, when the sites are told:"
    yield f"  fedshift serve {study}"


class Gate:
    """An ASGI application that passes calls on to a SuperLink at an address (host:port) of the loopback device.

    Only POST requests for CALLS of at most LARGEST bytes pass. `ca` is the file of the certificate by which the
    SuperLink is checked.
    """

    def __init__(self, superlink: str, ca: Path) -> None:
        self.base = f"https://{superlink}"
        self._context = ssl.create_default_context(cafile=str(ca))
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer an HTTP request as the SuperLink does, or with 404, 413 or 503; after 503 a SuperNode tries again."""
        if scope["type"] != "http":
            return
        status, headers, body = 404, list[tuple[bytes, bytes]](), b""
        if scope["method"] == "POST" and scope["path"] in CALLS:
            content = await _content(receive)
            status = 413
            if content is not None:
                status, headers, body = await self._passed_on(scope, content)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _passed_on(self, scope: Any, content: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        if self._client is None:
            self._client = httpx.AsyncClient(verify=self._context, timeout=PATIENCE, trust_env=False)
        sent = [(k, v) for k, v in scope["headers"] if k not in (b"host", b"content-length", b"accept-encoding")]
        try:
            reply = await self._client.post(self.base + scope["path"], content=content, headers=sent)
        except httpx.HTTPError:
            return 503, [], b""
        own = (b"content-length", b"content-encoding", b"transfer-encoding", b"connection")
        return reply.status_code, [(k, v) for k, v in reply.headers.raw if k.lower() not in own], reply.content


async def _content(receive: Any) -> bytes | None:
    """Return the body of an HTTP request that ASGI's `receive` gives piece by piece; None if it exceeds LARGEST."""
    parts, size = [], 0
    while True:
        event = await receive()
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST:
            return None
        if not event.get("more_body"):
            return b"".join(parts)


@contextmanager
def opened_gate(host: str, port: int, certificate: tuple[Path, Path], ca: Path, superlink: str) -> Iterator[None]:
    """Serve a Gate at `host` and `port` inside the context, which passes calls on to a SuperLink (host:port).

    `certificate` holds the files of the gate's certificate and private key, and `ca` that of the authority's
    certificate. Raises UserError if the port cannot be opened.
    """
    options: dict[str, Any] = {"ssl_certfile": f"{certificate[0]}", "ssl_keyfile": f"{certificate[1]}"}
    options |= {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
    server = uvicorn.Server(uvicorn.Config(Gate(superlink, ca), host=host, port=port, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + OPENS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > until:
            raise UserError(f"{host}:{port}", "cannot be opened", "see whether another program has this port")
        time.sleep(0.05)
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


def credentials(folder: Path | None, server: str | None) -> tuple[Path | None, Path | None, str]:
    """Return the authority's certificate, the private key and the server's address of a site.

    They are files in `folder`; `server` (host:port) takes precedence over the address there. Without a folder,
    certificate and key are None. Raises UserError for a missing file, or if the server is unknown.
    """
    if folder is None:
        if server is None:
            raise UserError(
                "fedshift site",
                "does not know the address of the server",
                "name the folder of this site, which the study's server made: --keys DIR",
            )
        return None, None, server
    ca, key, address = folder / "ca.crt", folder / "key", folder / "address.txt"
    for file in (ca, key, address):
        if not file.exists():
            raise UserError(file, "no such file", "fedshift serve STUDY --init writes it for each site")
    return ca, key, server or address.read_text(encoding="utf-8").strip()


def take_part(hospital: Hospital, address: str, ca: Path | None, key: Path | None) -> None:
    """Connect to the server at an address (host:port), and answer its messages until it says that the study is over.

    `ca` and `key` are the files of the authority's certificate and of the site's private key, None without TLS. A site
    that was killed still counts as connected for a minute: connecting is tried again until the server has noticed.
    """
    home = hospital.paths.results / "federation" / hospital.name
    home.mkdir(parents=True, exist_ok=True)
    secret = processes.secret_file(home)
    port = processes.free_port()
    options = ["--superlink", address, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    options += ["--superexec-auth-secret-file", str(secret.absolute())]
    options += ["--root-certificates", str(ca.absolute())] if ca else ["--insecure"]
    options += ["--auth-supernode-private-key", str(key.absolute())] if key else []
    for attempt in range(processes.TRIES):
        try:
            with processes.running("flower-supernode", options, home, processes.REFUSED) as node:

                def wait(node: processes.Process = node) -> None:
                    node.require_alive()
                    time.sleep(POLL)

                node.wait_for_port(f"127.0.0.1:{port}")
                say(f"{hospital.name!r} waits for messages of {address}")
                try:
                    answer_tasks(f"127.0.0.1:{port}", secret.read_bytes(), hospital.answer, wait)
                except LOST:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        node.child.wait(processes.GRACE)
                    node.require_alive()
        except processes.NotLetInError:
            if attempt == processes.TRIES - 1:
                raise
            say(f"the server does not let this site in (yet); trying again in {processes.AGAIN:.0f} s")
            time.sleep(processes.AGAIN)
        except Over:
            say("the study is over; this site has done its part")
            return
