"""`fedshift sources`: the list needs no network, and --check asks each address for its head."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from file_server import FileServer, serving

from fedshift.cli import main
from fedshift.datasets.cifar10c import Cifar10C
from fedshift.datasets.gaussians import Gaussians
from fedshift.io import heads
from fedshift.io.download import Source
from fedshift.io.heads import ask


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as running:
        running.files = {"/one": b"1234567"}
        yield running


def test_the_list_names_every_source_without_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("socket.getaddrinfo")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert main(["sources"]) == 0
    out = capsys.readouterr().out
    assert "CIFAR-10-C.tar: 2,918,471,680 bytes, md5 56bf5dcef84df0e2308c6dcbcbbd8499\n" in out
    assert "camelyon17: Camelyon17-WILDS; licence: CC0 1.0\n  WILDS' archive\n    camelyon17_v1.0.tar.gz: " in out
    assert "validation-00002-of-00003.parquet: size not published, checksum not published\n      https://hugg" in out
    assert "own_images: your own files" in out
    assert "gaussians: " in out
    assert "nothing is downloaded" in out


def test_one_dataset_alone_and_a_misspelt_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sources", "cifar10c"]) == 0
    assert capsys.readouterr().out.count("\n") == 4
    assert main(["sources", "cifar10d"]) == 2
    assert "did you mean 'cifar10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "size", "fault", "alive", "words"),
    [
        ("/one", 7, "sent", True, "200 OK, 7 bytes"),
        ("/one", None, "sent", True, "200 OK, 7 bytes"),
        ("/one", 8, "sent", False, "7 bytes there, expected 8"),
        ("/one", 7, "429", True, "429 Too Many Requests"),
        ("/one", 7, "405", True, "200 OK, 7 bytes"),
        ("/one", 7, "500", False, "500 Internal Server Error"),
        ("/two", 7, "sent", False, "404 Not Found"),
    ],
)
def test_what_a_server_answers(
    server: FileServer, path: str, size: int | None, fault: str, alive: bool, words: str
) -> None:
    server.faults[path] = [fault, "sent"]
    answer = ask(Source(server.url + path, "x.bin", size=size))
    assert answer.alive is alive
    assert answer.text.startswith(words)
    assert all(headers["user-agent"].startswith("fedshift (") for _, _, headers in server.seen)
    assert server.paths("GET") == ([path] if fault == "405" or path == "/two" else []), "a head, and no file"


def test_a_server_that_is_not_there_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(heads, "TIMEOUT", (1, 1))
    answer = ask(Source("http://127.0.0.1:1/x", "x.bin"))
    assert not answer.alive
    assert "refused" in answer.text
    assert "Pool" not in answer.text


@pytest.mark.parametrize(("path", "code", "end"), [("/one", 0, "0 dead"), ("/two", 1, "1 dead")])
def test_check_fails_where_an_address_is_dead(
    server: FileServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    path: str,
    code: int,
    end: str,
) -> None:
    monkeypatch.setattr(Cifar10C, "sources", lambda self: [Source(server.url + path, "x.bin")])
    assert main(["sources", "cifar10c", "--check"]) == code
    out = capsys.readouterr().out
    assert out.endswith(f"1 addresses asked, {end}\n")
    assert ("DEAD: 404 Not Found" in out) is bool(code)


def test_a_dataset_without_files_is_asked_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert Gaussians().origins() == []
    assert main(["sources", "gaussians", "--check"]) == 0
    assert capsys.readouterr().out.endswith("0 addresses asked, 0 dead\n")
