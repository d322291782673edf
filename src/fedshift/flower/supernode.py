"""A site over Flower: its SuperNode, and the loop in which it answers the server."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

from ..core.console import say
from ..core.errors import UserError
from ..hospitals.hospital import Hospital
from . import processes
from .wire import LOST, POLL, Over, answer_tasks


def credentials(folder: Path | None, server: str | None) -> tuple[Path | None, Path | None, str]:
    """Return the authority's certificate, the site's key and the server's address, from the folder of the site.

    Raises UserError where one of them is not there.
    """
    if folder is None:
        if server is None:
            raise UserError("fedshift site", "does not know the server", "name the folder of this site: --keys DIR")
        return None, None, server
    ca, key, address = folder / "ca.crt", folder / "key", folder / "address.txt"
    for file in (ca, key, address):
        if not file.exists():
            raise UserError(file, "no such file", "fedshift serve STUDY --init writes it for each site")
    return ca, key, server or address.read_text(encoding="utf-8").strip()


def take_part(hospital: Hospital, address: str, ca: Path | None, key: Path | None) -> None:
    """Connect to the server at an address (host:port), and answer its messages until it says that the study is over.

    A site that was killed still counts as connected for a minute: it tries again until the server has noticed.
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
