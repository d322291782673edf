"""Differences between two sides, against predictions whose scores are known."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import fake_study
import pandas as pd
import pytest
from scored_study import scored

from fedshift.analysis import diff
from fedshift.cli.parser import main
from fedshift.core.errors import UserError

ONE: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "seeds": [0, 1], "metrics": ["accuracy"]}


def folder(root: Path, name: str, right: fake_study.ShareRight = fake_study.helps, **changes: Any) -> Path:
    """The results of a study, scored; sides are called by the name of their project."""
    plan, paths = scored(root / name, right, **ONE | changes)
    return paths.study(plan.name)


def lines(one: Path, other: Path, threshold: float = 0.0) -> list[str]:
    sides = [dataclasses.replace(diff.of_folder(path), name=path.parents[2].name) for path in (one, other)]
    return list(diff.differences(*sides, threshold))


def test_a_copy_does_not_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = folder(tmp_path, "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert lines(one, tmp_path / "b" / "results" / "studies" / "fake") == []
    assert main(["diff", str(one), str(tmp_path / "b" / "results" / "studies" / "fake")]) == 0
    assert capsys.readouterr().out == "no differences\n"


def test_scores_come_with_the_largest_difference_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """60 % of 60 right at both external sites; after the change half at one, and 10 % more at the other with seed 1."""

    def other(run: Any, inference: str, site: str, role: str) -> float:
        if inference == "source" and site == "centre1":
            return 0.3
        worse = inference == "source" and site == fake_study.EVIL and run.seed == 1
        return 0.7 if worse else fake_study.helps(run, inference, site, role)

    one, two = folder(tmp_path, "a"), folder(tmp_path, "b", other)
    words = "source (batch_size 256), fedavg, aggregated BN, held out centre1+<script>alert(1)</script>, seed"
    found = lines(one, two)
    assert [line.replace(" (batch_size 256)", "") for line in found] == [
        line.replace(" (batch_size 256)", "")
        for line in (
            f"accuracy at centre1 (external), {words} 0: 0.6 -> 0.3 (-0.3)",
            f"accuracy at centre1 (external), {words} 1: 0.6 -> 0.3 (-0.3)",
            f"accuracy at {fake_study.EVIL} (external), {words} 1: 0.6 -> 0.7 (+0.1)",
        )
    ]
    assert lines(one, two, 0.15) == found[:2]
    assert lines(one, two, 0.5) == []
    assert main(["diff", str(one), str(two)]) == 1
    assert capsys.readouterr().out.splitlines() == found
    assert main(["diff", str(one), str(two), "--threshold", "0.5"]) == 0


def test_settings_are_told_with_both_values(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}]
    one = folder(tmp_path, "a", runs=runs)
    two = folder(tmp_path, "b", runs=runs, training={"rounds": 5, "lr": 0.5})
    found = lines(one, two)
    assert "training.rounds: 4 -> 5 (all conditions that both have)" in found
    assert len(found) == 2
    third = folder(tmp_path, "c", runs=[{"algorithm": "fedavg"}, runs[0] | {"bn": "local", "training": {"lr": 0.5}}])
    (line,) = lines(one, third)
    assert line.startswith("training.lr: ")
    assert line.endswith(" -> 0.5 (fedavg, local BN, held out centre1+<script>alert(1)</script>)")


def test_what_one_side_alone_has_is_one_line_each(tmp_path: Path) -> None:
    one = folder(tmp_path, "a", runs=[{"algorithm": ["fedavg", "fedprox"]}], metrics=["accuracy", "brier"])
    two = folder(tmp_path, "b", inferences=["source"], seeds=[0, 1, 2])
    held_out = "held out centre1+<script>alert(1)</script>"
    assert [line.partition(" (")[0] for line in lines(one, two)] == [
        f"only in a: fedprox, aggregated BN, {held_out}",
        f"only in b: fedavg, aggregated BN, {held_out}, seed 2",
        "only in a: inference tsmobn",
        "only in a: metric brier",
    ]


def test_a_score_that_is_not_defined_any_more_is_the_first(tmp_path: Path) -> None:
    one, two = folder(tmp_path, "a"), folder(tmp_path, "b", fake_study.harms)
    table = pd.read_csv(two / "scores.csv")
    table.loc[(table["site"] == "centre0") & (table["seed"] == 1) & (table["inference"] == "source"), "value"] = None
    table.to_csv(two / "scores.csv", index=False)
    first, *rest = lines(one, two, 0.1)
    assert first.startswith("accuracy at centre0 (internal), source")
    assert first.endswith("seed 1: 0.9 -> not defined")
    assert [line.endswith("0.8 -> 0.4 (-0.4)") for line in rest] == [True] * 4


def test_settings_that_are_not_known_are_noted_and_no_difference(tmp_path: Path) -> None:
    one = folder(tmp_path, "a")
    shutil.copytree(one, tmp_path / "alone")
    sides = diff.of_folder(one), diff.of_folder(tmp_path / "alone")
    assert list(diff.differences(*sides)) == []
    assert list(diff.notes(*sides)) == [f"{tmp_path / 'alone'}: the settings of 2 runs are not known, and not compared"]


def test_two_studies_before_they_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        "{title: T, dataset: gaussians, partition: {internal: ['0'], external: ['1']}, model: mlp, "
        "runs: [{algorithm: fedavg}], inferences: [source], training: {rounds: ROUNDS}}"
    )
    for name, rounds in (("first", "3"), ("second", "7")):
        (tmp_path / f"{name}.yaml").write_text(text.replace("ROUNDS", rounds), encoding="utf-8")
    assert main(["diff", "first.yaml", "second.yaml"]) == 1
    out = capsys.readouterr()
    assert out.out == "training.rounds: 3 -> 7 (all conditions that both have)\n"
    assert "neither side has scores" in out.err
    assert main(["diff", "first.yaml", "first.yaml"]) == 0
    assert main(["diff", "first.yaml", "second.yaml", "--set", "training.rounds=5"]) == 0


def test_a_side_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for side, words in (("empty", "no such file; score the study first"), ("nothing", "unknown study 'nothing'")):
        assert main(["diff", side, side]) == UserError.exit_code == 2
        assert words in capsys.readouterr().err
