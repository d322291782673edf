"""The gate in front of a SuperLink: a stranger on the network reaches the calls of a SuperNode and nothing else."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from flwr.superlink.routers.control.router import router as control
from flwr.superlink.routers.fleet.router import router as fleet
from patience import until

from fedshift.flower.keys import Keys, write
from fedshift.flower.nodes import CALLS, LARGEST, opened_gate
from fedshift.flower.processes import free_port


class Behind:
    """What stands in the place of a SuperLink, and notes the calls that reach it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size = 0
        while True:
            event = await receive()
            size += len(event.get("body", b""))
            if not event.get("more_body"):
                break
        self.calls.append(scope["path"])
        signed = dict(scope["headers"]).get(b"flwr-signature", b"none")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"signed", signed)]})
        await send({"type": "http.response.body", "body": f"{size}".encode()})


class Network:
    """A gate on the loopback device, and what stands behind it."""

    def __init__(self, folder: Path) -> None:
        (folder / "study.yaml").write_text("title: a\n")
        self.keys = Keys(folder / "federation")
        self.port, self.behind, self.inner = free_port(), Behind(), free_port()
        write(self.keys, "localhost", self.port, ["north"], folder / "study.yaml")
        self.context = ssl.create_default_context(cafile=str(self.keys.ca))

    def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes, str | None]:
        """Status, body and signature of the answer to a call, whose path is sent as it is."""
        connection = http.client.HTTPSConnection("localhost", self.port, context=self.context)
        connection.request(method, path, body, {"flwr-signature": "abc"})
        answer = connection.getresponse()
        found = answer.status, answer.read(), answer.getheader("signed")
        connection.close()
        return found


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    new = Network(tmp_path)
    pem, key = new.keys.server
    how: Any = {"log_config": None, "lifespan": "off", "ssl_certfile": f"{pem}", "ssl_keyfile": f"{key}"}
    server = uvicorn.Server(uvicorn.Config(new.behind, host="127.0.0.1", port=new.inner, **how))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    with opened_gate("127.0.0.1", new.port, new.keys.server, new.keys.ca, f"127.0.0.1:{new.inner}"):
        yield new
        server.should_exit = server.force_exit = True
        thread.join()


def test_the_gate_passes_on_the_calls_of_a_supernode_alone(network: Network) -> None:
    paths = {route.path for router in (control, fleet) for route in router.routes}
    assert paths >= CALLS
    assert len(paths - CALLS) > 10, "there is something to keep out"
    tricks = [f"/v1/fleet/{way}/control/stop-run" for way in ("..", "%2e%2e", ".", "get-run/..")]
    for path in [
        *sorted(paths - CALLS),
        *tricks,
        "//v1/fleet/get-run",
        "/v1/fleet/get-run/",
        "/v1/runtime/acquire-task",
    ]:
        assert network.call("POST", path)[0] == 404, path
    for path in CALLS:
        assert network.call("GET", path)[0] == 404
    assert network.behind.calls == []
    for path in sorted(CALLS):
        assert network.call("POST", path, b"12345") == (200, b"5", "abc")
    assert network.behind.calls == sorted(CALLS)


def test_a_call_larger_than_a_piece_of_a_message_is_refused(network: Network) -> None:
    path = min(CALLS)
    assert network.call("POST", path, b"x" * LARGEST)[:2] == (200, f"{LARGEST}".encode())
    assert network.call("POST", path, b"x" * (LARGEST + 1))[0] == 413
