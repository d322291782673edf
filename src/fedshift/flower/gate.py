"""The gate in front of a SuperLink: what sites reach of it over the network.

All interfaces of a SuperLink share one port, and its control interface asks for no login: who reaches it may register
keys, stop runs and remove sites. Flower's accounts need a plug-in that it does not bring. So the SuperLink listens on
the loopback device alone. The gate has TLS, and passes on the calls of a SuperNode, which Flower signs, and no others.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from ..core.errors import UserError
from ..core.units import MIB

CALLS = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        *("activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab"),
        *("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received"),
    )
)
"""The calls of a SuperNode that has a registered key. It registers and removes no node."""
LARGEST = 16 * MIB
"""The most bytes of a call: Flower cuts messages into pieces of 5 MiB."""
PATIENCE = 60.0
STARTS = 30.0


class Gate:
    """An ASGI application that passes calls on to a SuperLink at an address (host:port) of the loopback device."""

    def __init__(self, superlink: str, ca: Path) -> None:
        self.base = f"https://{superlink}"
        self._context = ssl.create_default_context(cafile=str(ca))
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one call: as the SuperLink does, or with 404, 413 or 503, which a SuperNode repeats later."""
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
    """Return the body of a call; None if it is too large."""
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
    """Hold a gate at host and port open inside the context, with a certificate and its key, to a SuperLink."""
    options: dict[str, Any] = {"ssl_certfile": f"{certificate[0]}", "ssl_keyfile": f"{certificate[1]}"}
    options |= {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
    server = uvicorn.Server(uvicorn.Config(Gate(superlink, ca), host=host, port=port, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + STARTS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > until:
            raise UserError(f"{host}:{port}", "cannot be opened", "see whether another program has this port")
        time.sleep(0.05)
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
