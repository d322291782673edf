"""What `fedshift check` says of settings: methods switched off, the first metric, a moved table, and partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from own_images import STUDY as OWN
from PIL import Image

from fedshift import cli, study
from fedshift.cli.data import moved
from fedshift.datasets.own_images import TABLE
from fedshift.io import checksums
from fedshift.io.paths import Paths, memory
from fedshift.io.text import write_json

STUDY: dict[str, Any] = {
    "title": "Five digits",
    "dataset": "digits_five",
    "partition": {"internal": ["mnist", "svhn"], "external": ["usps"]},
    "model": "digit_cnn",
    "training": {"rounds": 1},
    "runs": [{"algorithm": "fedavg"}],
    "inferences": ["source"],
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where nothing is prepared."""
    monkeypatch.chdir(tmp_path)


def written(changes: dict[str, Any]) -> Path:
    """Write STUDY with changes."""
    path = Path("study.yaml")
    path.write_text(yaml.safe_dump(STUDY | changes), encoding="utf-8")
    return path


def checked(capsys: pytest.CaptureFixture[str], changes: dict[str, Any], scale: str = "paper") -> str:
    """Return what is printed of STUDY with changes, which nothing is wrong with."""
    assert cli.main(["check", str(written(changes)), "--scale", scale]) == 0
    return capsys.readouterr().out


# ---- settings


def test_a_published_constant_that_switches_a_method_off_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """With ten classes no cosine with an even mean is below 1 / sqrt(10); the defaults suit them."""
    out = checked(capsys, {"inferences": ["source", "eta", {"name": "eta", "similarity": 0.05}, "sar"]})
    lines = [line for line in out.splitlines() if "lets hardly any image pass" in line]
    said = "with 10 classes no cosine with an even mean is below 0.316"
    assert lines == [f"study.yaml: eta: similarity 0.05 lets hardly any image pass: {said}"]


@pytest.mark.parametrize(
    ("further", "said"),
    [([], 1), (["normalize"], 0), ([{"name": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}], 0)],
    ids=["none", "of ImageNet", "own"],
)
def test_pretrained_weights_want_the_images_that_they_saw(
    further: list[Any], said: int, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"model": {"name": "mobilenet_v2", "pretrained": True}}
    changes |= {"transforms": [{"name": "resize", "size": 32}, *further], "inferences": ["source", "eta", "sar"]}
    words = "study.yaml: transforms: do not include normalize, but the pretrained weights were"
    assert checked(capsys, changes).count(words) == said


@pytest.mark.parametrize(
    ("metrics", "headline", "said"),
    [
        (["auc", "accuracy"], None, True),
        (["auc"], None, True),
        (["accuracy", "auc"], None, False),
        (["auc", "accuracy"], "accuracy", False),
        (["accuracy", "auc"], "auc", False),
        (None, None, False),
    ],
)
def test_a_first_metric_that_does_not_lead(
    metrics: list[str] | None, headline: str | None, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {key: of for key, of in {"metrics": metrics, "headline": headline}.items() if of}
    words = "accuracy comes first on the page; to show auc first, add headline: auc"
    assert (words in checked(capsys, changes, "mini")) is said


# ---- a table of own images that seems to have been moved


def own(**dataset: Any) -> study.Plan:
    changes = {"dataset": {"name": "own_images", **dataset}, "partition": {"internal": ["A"], "external": ["B"]}}
    return study.load(written(changes | {"model": "mlp"}), "paper")


def test_a_table_with_the_rows_of_one_that_has_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "SETTLED", -(10**12))
    paths, new = Paths(tmp_path), tmp_path / "new.csv"
    new.write_text("path,label,site\na.png,0,A\n")
    assert list(moved(own(table="new.csv"), paths)) == [], "nothing has results"
    (earlier,) = own(table="old.csv").data
    write_json(paths.data_files(earlier).card, {"dataset": {"table": "old.csv"}})
    checksums.contents({TABLE: new}, memory(paths.data(earlier)))
    (hint,) = moved(own(table="new.csv"), paths)
    assert hint == "  warning: old.csv has the same rows, and results: was it moved? See moved_from"
    assert list(moved(own(table="new.csv", moved_from="old.csv"), paths)) == []
    for named in ("old.csv", "./old.csv", str(tmp_path / "old.csv")):
        (tmp_path / "old.csv").write_text(new.read_text())
        assert list(moved(own(table=named, size=32), paths)) == [], "another size, the same table"
    new.write_text("path,label,site\na.png,1,A\n")
    assert list(moved(own(table="new.csv"), paths)) == [], "other rows"


# ---- partitions of own images


def of_own(tmp_path: Path, **changes: Any) -> int:
    """Check a study of 40 images of two sites, 10 of each class at each."""
    lines = ["path,label,site"]
    for i in range(40):
        Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,{i % 2},{('north', 'south')[i // 20]}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    dataset = OWN["dataset"] | {"table": str(tmp_path / "table.csv")}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(OWN | {"dataset": dataset} | changes), encoding="utf-8")
    return cli.main(["check", str(tmp_path / "mine.yaml")])


def test_it_counts_what_each_client_gets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal parts of 40 images to two clients, all of which train."""
    partition = {
        "internal": ["p", "q"],
        "deal": {"sites": ["north", "south"]},
        "split": {"train": 1.0, "val": 0, "test": 0},
    }
    assert of_own(tmp_path, partition=partition) == 0
    out = capsys.readouterr().out
    assert "  clients p, q: images of north, south dealt to the clients in equal parts\n" in out
    assert out.count("(client): 20 images, patients unknown; ") == 2
    assert "north (internal): 20 images" in out


def test_it_says_how_many_partitions_leave_one_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a schedule by steps too, whose settings are a mapping."""
    partition = {"internal": ["north", "south"], "leave_one_out": True, "split": {"train": 0.6, "val": 0, "test": 0.4}}
    training = OWN["training"] | {"schedule": "steps", "lr_steps": {2: 0.01}}
    assert of_own(tmp_path, partition=partition, training=training) == 0
    out = capsys.readouterr().out
    assert "4 runs" in out, "two algorithms on two partitions"
    assert "  leave one out: 2 partitions, each without one of north, south\n" in out


def test_it_says_how_many_folds_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partition = {"internal": ["north", "south"], "split": {"folds": 5, "val": 0}}
    training = OWN["training"] | {"select": "last"}
    assert of_own(tmp_path, partition=partition, training=training) == 0
    out = capsys.readouterr().out
    assert "10 runs" in out, "two algorithms on five folds"
    assert "  folds: 5 partitions, each with other patients of the internal sites to test\n" in out


def test_it_refuses_transforms_that_cannot_work_and_too_large_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transforms = [{"name": "monai", "transform": "RandFlp"}, {"name": "monai", "transform": "RandZom"}]
    assert of_own(tmp_path, transforms=transforms) == 2
    err = capsys.readouterr().err
    assert "unknown class 'RandFlp' of monai.transforms; did you mean 'RandFlip'?" in err
    assert "unknown class 'RandZom'" in err
    partition = {"internal": ["p", "q"], "deal": {"sites": ["north"], "least": 11}}
    assert of_own(tmp_path, partition=partition) == 2
    assert "20 patients or images cannot fill 2 clients with at least 11" in capsys.readouterr().err
