"""`fedshift check` says which metric leads the page where the first of the list does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift.cli import parser

STUDY = """
title: Another metric
dataset: digits_five
partition: {{ internal: [mnist, svhn], external: [usps] }}
model: digit_cnn
training: {{ rounds: 1 }}
runs: [{{ algorithm: fedavg }}]
inferences: [source]
{metrics}
"""
SAID = "accuracy leads the page; if auc is to lead, say headline: auc"


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ("metrics: [auc, accuracy]", True),
        ("metrics: [auc]", True),
        ("metrics: [accuracy, auc]", False),
        ("metrics: [auc, accuracy]\nheadline: accuracy", False),
        ("metrics: [accuracy, auc]\nheadline: auc", False),
        ("", False),
    ],
)
def test_a_first_metric_that_does_not_lead(
    metrics: str, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "other.yaml"
    path.write_text(STUDY.format(metrics=metrics))
    assert parser.main(["check", str(path), "--scale", "mini"]) == 0
    assert (SAID in capsys.readouterr().out) is said
