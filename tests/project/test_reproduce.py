"""Each file of docs/reproductions has one command that makes it again, and extracts are what the list says."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from fedshift.core.errors import UserError
from fedshift.io import checksums
from fedshift.io.paths import Paths
from fedshift.io.tables import write_table

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reproductions"
REPRODUCE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "reproduce.py"))
LIST = REPRODUCE["LIST"]
WRITTEN = [file for entry in LIST.values() for file in entry["writes"]]


def test_every_table_has_one_command_that_writes_it() -> None:
    """No table without a source, none with two; claims rest on tables that are there and in the list."""
    tables = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.csv")}
    assert tables - set(WRITTEN) == set()
    assert len(WRITTEN) == len(set(WRITTEN))
    claims = yaml.safe_load((FOLDER / "claims.yaml").read_text(encoding="utf-8"))
    kinds = ("trend", "levels", "deviations", "seeds", "printed")
    used = {piece[kind] for claim in claims for piece in claim.get("evidence", ()) for kind in kinds if kind in piece}
    assert len(used) > 20
    assert used <= tables


@pytest.mark.parametrize("name", LIST)
def test_what_is_listed_can_be_started(name: str) -> None:
    """A reproduction is a study or a script; each file is copied, or an extract of a table that studies have."""
    entry = LIST[name]
    if "script" in entry:
        assert (ROOT / "docs" / entry["script"]).is_file()
    else:
        assert name in REPRODUCE["studies"]()
    for source in entry["writes"].values():
        assert isinstance(source, str) or set(source) == {"table", "where", "keys", "means", "digits"}


def test_the_page_has_the_command_of_each_study_in_small() -> None:
    """Each has one line with its command, or the reason why there is none. `test_claims` compares the whole table."""
    page = (FOLDER.parent / "reproductions.md").read_text(encoding="utf-8")
    for name in {path.stem for path in FOLDER.glob("*/*.yaml")} | set(LIST):
        commands = page.count(f"| `make reproduce STUDY={name}` |")
        reasons = page.count(f"| {name} cannot be repeated: ")
        assert (commands, reasons) == ((0, 1) if "lost" in LIST[name] else (1, 0)), name


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The working folder of two invented runs, with scores and rounds of two clients and one further site."""
    paths = Paths(tmp_path)
    scores, words = [], {"addon": "", "held_out": "none", "momentum": None, "batch_size": None, "order": None}
    for run, images, bn in (("few", 74, "aggregated"), ("many", 371, "local")):
        files = paths.run_files(run)
        spec = {"partition": {"limit": {"train": images}}, "training": {"local_epochs": 1}}
        files.folder.mkdir(parents=True)
        files.spec.write_text(json.dumps(spec), encoding="utf-8")
        rounds = pd.DataFrame(
            [
                [1, "y", "averaged", 2.25],
                [1, "x", "train", 9.0],
                [1, "x", "averaged", 2.0],
                [2, "x", "averaged", 1 / 3],
            ],
            columns=["round", "site", "split", "loss"],
        )
        write_table(files.rounds, rounds.assign(accuracy=0.5, seconds=1.0, floats_down=0, floats_up=0))
        for site, role, metric, inference, value in (
            ("x", "internal", "accuracy", "source", 0.5),
            ("y", "internal", "accuracy", "source(personalise={'source': 'val'})", 0.75),
            ("x", "internal", "auc", "source", 0.125),
            ("x", "internal", "accuracy", "tsmobn", 0.125),
            ("z", "external", "accuracy", "source", 0.125),
        ):
            about = {"run": run, "seed": 1, "algorithm": f"fedavg [partition.limit.train={images}]", "bn": bn}
            measured = {"site": site, "role": role, "inference": inference, "metric": metric, "value": value, "n": 4}
            scores.append(about | words | measured)
    folder = paths.study("tiny")
    folder.mkdir(parents=True)
    write_table(folder / "scores.csv", pd.DataFrame(scores))
    (folder / "trends.csv").write_bytes(b"claim,held\n\xce\xbc = 0,yes\n")
    return tmp_path


SEEDS = LIST["fedbn-digits-small"]["writes"]["fedbn-digits-small/seeds.csv"]
LOSSES = LIST["fedbn-digits-small"]["writes"]["fedbn-digits-small/losses.csv"]
TINY = {"tiny": {"writes": {"tiny/seeds.csv": SEEDS, "tiny/losses.csv": LOSSES, "tiny/trends.csv": "trends.csv"}}}


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for what the list of one invented study writes."""
    monkeypatch.setitem(REPRODUCE["extracts"].__globals__, "LIST", TINY)
    (folder := tmp_path / "docs").mkdir()
    return folder


def test_extracts_are_means_of_the_chosen_rows(results: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """(0.5 + 0.75) / 2 at home, by seed and setting of the run; losses of the averaged model with 371 images alone."""
    REPRODUCE["write"]("tiny", results, out)
    assert (out / "tiny/seeds.csv").read_text(encoding="utf-8") == (
        "algorithm,bn,images,local_epochs,seed,accuracy\nfedavg,aggregated,74,1,1,0.625\nfedavg,local,371,1,1,0.625\n"
    )
    assert (out / "tiny/losses.csv").read_text(encoding="utf-8") == (
        "bn,seed,client,round,training_loss\nlocal,1,x,1,2.0\nlocal,1,x,2,0.33333\nlocal,1,y,1,2.25\n"
    )
    assert (out / "tiny/trends.csv").read_text(encoding="utf-8") == "claim,held\nμ = 0,yes\n"
    assert capsys.readouterr().out.count("wrote docs/reproductions/tiny/") == 3


def test_divergence_is_taken_outside_alone(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = LIST["unifed-eight"]["writes"]["unifed-table2/divergence-eight.csv"]
    ids = {"condition_id": "c", "algorithm": "moon", "bn": "local", "run": "many", "seed": 1, "n": 9, "n_internal": 9}
    rows = [
        ids | {"inference_id": i, "inference": i, "role": role, "site": site, "features": 2, "a_distance": d, "mmd": m}
        for i, role, site, d, m in (
            ("tsmobn", "external", "z", 0.5, 0.0625),
            ("source", "external", "z", 1.25, 0.1234567),
            ("source", "internal", "x", 2.0, 0.5),
        )
    ]
    write_table(Paths(results).study("tiny") / "divergence.csv", pd.DataFrame(rows))
    monkeypatch.setitem(REPRODUCE["extracts"].__globals__, "LIST", {"tiny": {"writes": {"d.csv": source}}})
    assert REPRODUCE["extracts"]("tiny", results)["d.csv"] == (
        "algorithm,bn,seed,site,inference,a_distance,mmd\n"
        "moon,local,1,z,source,1.25,0.123457\nmoon,local,1,z,tsmobn,0.5,0.0625\n"
    )


@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_nothing_is_written_where_a_table_is_not_as_the_study_left_it(harm: str, results: Path, out: Path) -> None:
    table = Paths(results).study("tiny") / "trends.csv"
    checksums.record(table)
    if harm == "missing":
        table.unlink()
    else:
        table.write_bytes(b"claim,held\nmu,yes\n")
    with pytest.raises(UserError, match=f"^{re.escape(str(table))}[^\n]+$"):
        REPRODUCE["write"]("tiny", results, out)
    assert list(out.iterdir()) == []


def test_an_extract_without_rows_is_not_written(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"tiny": {"writes": {"tiny/losses.csv": LOSSES | {"where": {"algorithm": "fedbn"}}}}}
    monkeypatch.setitem(REPRODUCE["extracts"].__globals__, "LIST", listed)
    with pytest.raises(UserError, match=r"no row of rounds has \{'algorithm': 'fedbn'\}"):
        REPRODUCE["extracts"]("tiny", results)


@pytest.mark.parametrize(
    ("seeds", "summary"),
    [
        ("fedbn-digits-small/seeds.csv", "fedbn-digits-small/summary.csv"),
        ("unifed-table2/seeds-eight.csv", "unifed-table2/summary-eight.csv"),
    ],
)
def test_extracts_by_seed_have_the_means_of_the_summary(seeds: str, summary: str) -> None:
    """The mean over seeds of means over clients is the mean over clients of means over seeds."""
    table = pd.read_csv(FOLDER / summary)
    at_home = table[(table["role"] == "internal") & (table["metric"] == "accuracy")]
    at_home = at_home[at_home["inference"].str.match("source")]
    by_seed = pd.read_csv(FOLDER / seeds)
    keys = [name for name in by_seed if name not in ("seed", "accuracy")]
    ours = by_seed.groupby(keys)["accuracy"].mean().sort_values().to_numpy()
    # each value of the extract is rounded to six digits
    np.testing.assert_allclose(ours, at_home.groupby("condition_id")["mean"].mean().sort_values(), atol=5e-7)


def test_the_claims_of_theory_are_computed_again() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "fedbn_theory.py"))
    committed = pd.read_csv(FOLDER / "fedbn-fig9/trends-figures.csv", dtype=str, keep_default_na=False)
    assert committed.to_numpy().tolist() == [script["smallest_eigenvalues"](), script["toy_errors"]()]
    assert list(committed) == list(script["HEAD"])


def test_traffic_is_counted_without_training(tmp_path: Path) -> None:
    """The eight printed values that are no misprint, and the table as it is committed."""
    script = runpy.run_path(str(ROOT / "docs" / "counted_traffic.py"))
    made = script["counted"](tmp_path)
    assert (made["verdict"] == "within").sum() == 8 and "outside" not in set(made["verdict"])
    assert made.to_csv(index=False) == (FOLDER / "fedtan-table3/comparison.csv").read_text(encoding="utf-8")


def test_a_reproduction_finds_archives_and_the_images_that_it_needs(tmp_path: Path) -> None:
    """Archives of folders are linked into one; images of CIFAR are written with the training images first."""
    data = tmp_path / "data"
    (data / "mnist").mkdir(parents=True)
    (data / "mnist" / "labels.gz").write_bytes(b"labels")
    x = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1)
    parts = {"x_train": x[:3], "y_train": [0, 1, 2], "x_test": x[3:], "y_test": [3, 4]}
    np.savez(data / "cifar10_exact.npz", **parts)
    study = REPRODUCE["studies"]()["unifed-table2-small"]
    folder, mirror = REPRODUCE["prepare"](study, data, tmp_path / "build")
    assert (mirror / "labels.gz").read_bytes() == b"labels"
    with np.load(folder / "cifar10_part.npz") as made:
        assert made["x"].ravel().tolist() == made["y"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "lacks"), [("fedtan-theorem1-mnist", "train-images-idx3-ubyte.gz"), ("mitosis-md", "mitosis_md.tar")]
)
def test_a_reproduction_by_a_script_says_what_it_lacks(
    name: str, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDSHIFT_TEST_DATA", str(tmp_path))
    assert REPRODUCE["main"](name) == 2
    assert lacks in capsys.readouterr().err


def test_clients_of_theorem_1_have_two_digits_each() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "gradient_deviation.py"))
    y = np.arange(40) % 10
    x = y[:, None, None] * np.ones((1, 28, 28), dtype=np.uint8)
    xs, ys = next(script["batches"](x, y, seed=0))
    for client, (images, labels) in enumerate(zip(xs, ys, strict=True)):
        assert set(labels) == {2 * client, 2 * client + 1}
        np.testing.assert_allclose(images, np.repeat(labels[:, None] / 255, 784, axis=1))


def test_unknown_and_lost_reproductions_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert [REPRODUCE["main"](name) for name in ("nothing", "benchmark-cifar10c")] == [2, 2]
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("STUDY: nothing is not one of ")
    assert "fedtan-fig6" in said[0]
    assert said[1] == "STUDY: benchmark-cifar10c cannot be repeated: the order of its 1,500 images was not recorded"
