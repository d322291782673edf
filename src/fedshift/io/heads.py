"""Heads of files on servers: whether an address answers, and whether its file has the size that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .download import Source, polite_headers, reason

if TYPE_CHECKING:
    import requests

TIMEOUT = (10, 20)  # seconds to connect, and for the head
NO_HEAD = (403, 404, 405, 501)
"""Status codes by which some servers refuse HEAD for files that they give."""
BUSY = 429


@dataclass(frozen=True)
class Answer:
    """A server's answer about a file."""

    alive: bool
    text: str

    def __str__(self) -> str:
        return f"{'answers' if self.alive else 'DEAD'}: {self.text}"


def ask(source: Source) -> Answer:
    """Return whether the server of a file gives it, by its head alone; the file is not downloaded.

    A server that is busy (429) counts as alive. One that tells another size than the known one does not.
    """
    import requests

    with requests.Session() as session:
        try:
            with session.head(
                str(source.url), headers=polite_headers(), timeout=TIMEOUT, allow_redirects=True
            ) as response:
                answer = _judged(source, response)
            if answer.alive or response.status_code not in NO_HEAD:
                return answer
            with session.get(str(source.url), headers=polite_headers(), timeout=TIMEOUT, stream=True) as response:
                return _judged(source, response)
        except (requests.RequestException, ValueError) as error:
            return Answer(False, reason(error))


def _judged(source: Source, response: requests.Response) -> Answer:
    """Return what an answer means for a file."""
    status = f"{response.status_code} {response.reason}"
    if response.status_code == BUSY:
        return Answer(True, f"{status}, so nothing is known about the file")
    if response.status_code != 200:
        return Answer(False, status)
    told = response.headers.get("Content-Length", "")
    if not told.isdecimal():
        return Answer(True, f"{status}, size not told")
    if source.size is not None and int(told) != source.size:
        return Answer(False, f"{int(told):,} bytes there, expected {source.size:,}")
    return Answer(True, f"{status}, {int(told):,} bytes")
