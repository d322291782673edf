"""A run of real sites, replayed in simulation from the log of who answered: with its bits, or with what differs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from served_sites import Lost, serve

from fedshift.cli.parser import main
from fedshift.io import checksums
from fedshift.io.arrays import read_tensors, write_tensors
from fedshift.io.paths import RunFiles
from fedshift.io.tables import read_table, write_table
from fedshift.io.text import read_json, write_json
from fedshift.jobs.replay import differing

TRAINING = {"rounds": 3, "batch_size": 4, "lr": 0.05}
LOST = [("train", 2, "north"), ("evaluate", 1, "south")]
SCAFFOLD = [{"algorithm": "scaffold", "bn": "aggregated"}]


def replay(files: RunFiles, *words: str) -> int:
    return main(["replay", str(files.folder), *words])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """A run of three rounds, in which one site missed the second round, and another one the first validation."""
    root = tmp_path_factory.mktemp("served") / "town"
    return serve(root, LOST, runs=SCAFFOLD, training=TRAINING | {"select": "last"})


@pytest.fixture
def copy(served: RunFiles, tmp_path: Path) -> RunFiles:
    shutil.copytree(served.folder, tmp_path / "run")
    return RunFiles(tmp_path / "run")


def table(served: RunFiles) -> str:
    return str(served.folder.parents[3] / "all.csv")


def test_a_run_in_which_a_site_missed_a_round_is_replayed_bit_by_bit(served: RunFiles, capsys: Any) -> None:
    assert {(m["kind"], m["round"], m["site"]) for m in read_json(served.manifest)["missing"]} == {*LOST}
    assert replay(served, "--data", table(served)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "compared: all 3 rounds by losses, and round 3, which the run keeps, by tensors",
        "equal: difference 0",
    ]
    assert not [*served.folder.parents[1].glob("replay*")]


def test_a_site_that_answered_after_all_gives_another_run(copy: RunFiles, served: RunFiles, capsys: Any) -> None:
    manifest = read_json(copy.manifest)
    manifest["missing"] = [m for m in manifest["missing"] if m["kind"] != "train"]
    rewrite_json(copy, manifest)
    assert replay(copy, "--data", table(served)) == 1
    said = capsys.readouterr().out
    assert "differs in round 2: 'north' has a row train on one side alone" in said
    assert "differs in round 3: model.safetensors: " in said


def rewrite_json(files: RunFiles, content: Any) -> None:
    write_json(files.manifest, content)
    checksums.record(files.manifest)


def test_a_falsified_tensor_is_named_with_its_difference(copy: RunFiles, served: RunFiles, capsys: Any) -> None:
    tensors, about = read_tensors(copy.model)
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[0] += 0.25
    write_tensors(copy.model, tensors, about)
    checksums.record(copy.model)
    assert replay(copy, "--data", table(served)) == 1
    said = capsys.readouterr().out.splitlines()[1:]
    assert said == [
        f"differs in round 3: model.safetensors: {name} differs by 0.25; 1 of {len(tensors)} do, by up to 0.25"
    ]


def test_a_falsified_loss_is_named_with_its_round(copy: RunFiles, served: RunFiles, capsys: Any) -> None:
    rounds = read_table(copy.rounds)
    row = rounds.index[(rounds["round"] == 2) & (rounds["site"] == "south") & (rounds["split"] == "val")][0]
    rounds.loc[row, "loss"] = 0.125
    write_table(copy.rounds, rounds)
    checksums.record(copy.rounds)
    assert replay(copy, "--data", table(served)) == 1
    assert "differs in round 2: loss of 'south' (val) is 0.125, and " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("runs", "training", "lost"),
    [
        # A site that is lost in the middle of a joint step, and one that is lost after it.
        (
            [{"algorithm": "fedtan", "bn": "aggregated"}],
            {"weights": "uniform"},
            [("first_step", 1, "east"), ("train", 2, "north")],
        ),
        # Batch norm stays at the sites, and a round is selected.
        ([{"algorithm": "fedavg", "bn": "local"}], {"select": "best_validation"}, LOST),
        # Heads are trained once more after the last round, at the sites alone.
        ([{"algorithm": {"name": "fedrep", "tune_heads": True}, "bn": "aggregated"}], {}, [("finish", 4, "east")]),
    ],
)
def test_all_kinds_of_answers_may_be_missing(
    runs: Any, training: dict[str, Any], lost: Lost, tmp_path: Path, capsys: Any
) -> None:
    files = serve(tmp_path, lost, runs=runs, training=TRAINING | {"select": "last"} | training)
    assert {(m["kind"], m["round"], m["site"]) for m in read_json(files.manifest)["missing"]} == {*lost}
    assert replay(files, "--data", table(files)) == 0, capsys.readouterr().out


def test_bad_input_is_one_line_and_exits_with_2(copy: RunFiles, served: RunFiles, tmp_path: Path, capsys: Any) -> None:
    def said(*words: str) -> str:
        assert main(["replay", *words]) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if "training the run again" not in line]
        return lines[-1]

    assert "no such run, or it is not trained" in said(str(tmp_path / "nowhere"))
    assert "images.csv: no such table; name one that lists the images of all sites: --data CSV" in said(
        str(copy.folder)
    )
    images = pd.read_csv(table(served))
    images["path"] = [str(Path(table(served)).parent / path) for path in images["path"]]
    images[images["site"] != "east"].to_csv(tmp_path / "two.csv", index=False)
    assert "east" in said(str(copy.folder), "--data", str(tmp_path / "two.csv"))
    images.drop(index=images.index[images["site"] == "north"][:8]).to_csv(tmp_path / "few.csv", index=False)
    assert "site 'north'" in said(str(copy.folder), "--data", str(tmp_path / "few.csv"))
    manifest = read_json(copy.manifest)
    del manifest["missing"]
    rewrite_json(copy, manifest)
    assert "does not say which sites answered" in said(str(copy.folder), "--data", table(served))
    copy.model.write_bytes(copy.model.read_bytes()[:-1])
    assert "model.safetensors" in said(str(copy.folder), "--data", table(served))


def test_differences_between_tensors() -> None:
    here = {"a": torch.tensor([1.0, 2.0]), "b": torch.zeros(2), "c": torch.zeros(1), "d": torch.tensor([float("nan")])}
    there = {"a": torch.tensor([1.0, 2.5]), "b": torch.zeros(2), "c": torch.zeros(2), "d": torch.zeros(1)}
    assert differing(here, there) == {"a": 0.5, "c": float("inf"), "d": float("inf")}
    assert differing({"a": here["a"]}, {"b": here["b"]}) == {"a": float("inf"), "b": float("inf")}
    assert differing(here | {"d": torch.zeros(1)}, here | {"d": torch.zeros(1)}) == {}
