"""`fedshift sources`: the list needs no network."""

from __future__ import annotations

import pytest

from fedshift.cli import main


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
