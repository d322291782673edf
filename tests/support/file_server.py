"""A server of files on the loopback interface, with HEAD, ranges, redirects, and faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from patience import PATIENCE


class FileServer(ThreadingHTTPServer):
    """Serves `files`, contents by path. A path without a file is answered with 404.

    `faults` holds, by path, words that its next requests take one by one: a number is sent as the status, `half` sends
    half of the rest and ends the connection, `sent` answers as usual. `redirects` leads a path to another, with headers
    of its own. `seen` lists method, path and headers of all requests.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[str]] = {}
        self.redirects: dict[str, tuple[str, dict[str, str]]] = {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.ranges = True
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *args: object) -> None:
        pass  # clients hang up

    def paths(self, method: str = "GET") -> list[str]:
        return [path for how, path, _ in self.seen if how == method]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE
    server: FileServer

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        server, headers = self.server, {k.lower(): v for k, v in self.headers.items()}
        server.seen.append((self.command, self.path, headers))
        word = (server.faults.get(self.path) or ["sent"]).pop(0)
        if self.path in server.redirects:
            place, more = server.redirects[self.path]
            return self._head(302, {"Location": place, "Content-Length": "0", **more})
        if self.path not in server.files or word.isdigit():
            return self._head(int(word) if word.isdigit() else 404, {"Content-Length": "0"})
        content, start = server.files[self.path], 0
        if server.ranges and "range" in headers:
            start = int(headers["range"].removeprefix("bytes=").rstrip("-"))
        told = {"Content-Length": str(len(content) - start), "ETag": '"one"'}
        if start:
            told["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._head(206 if start else 200, told)
        if body:
            rest = content[start:]
            self.close_connection = word == "half"
            self.wfile.write(rest[: len(rest) // 2] if word == "half" else rest)
        return None

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def serving() -> Iterator[FileServer]:
    with FileServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join(PATIENCE)
