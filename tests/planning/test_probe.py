"""Hours from a probe: steps are counted by hand, and times are those of a clock that the test sets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from clock import Clock
from PIL import Image

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.io.paths import STUDIES, Paths
from fedshift.planning import probe
from fedshift.planning.probe import FORWARD, WARM_UP, Images, Prober, images_of, steps
from fedshift.study import Plan
from fedshift.study.run import Run

TINY: dict[str, Any] = {
    "title": "Tiny",
    "dataset": {"name": "own_images", "table": "../../own/samples.csv", "size": 8},
    "partition": {"internal": ["A", "B"], "external": ["C"]},
    "model": "mlp",
    "training": {"rounds": 10, "batch_size": 4},
    "runs": [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}],
    "inferences": ["source"],
}


@pytest.fixture(autouse=True)
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with 20 images at each of three sites, none of them prepared."""
    monkeypatch.chdir(tmp_path)
    Path("config/studies").mkdir(parents=True)
    Path("own").mkdir()
    rows = ["path,label,site"]
    for n in range(60):
        Image.new("RGB", (8, 8)).save(f"own/{n}.png")
        rows.append(f"{n}.png,{n % 2},{'ABC'[n // 20]}")
    Path("own/samples.csv").write_text("\n".join(rows))
    return tmp_path


def planned(**changes: Any) -> Plan:
    path = Path("config/studies/tiny.yaml")
    path.write_text(yaml.safe_dump(TINY | changes))
    return study.load(path, "mini")


def first(**training: Any) -> Run:
    return next(iter(planned(training=TINY["training"] | training).runs.values()))


# ---- steps


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({}, 3 + 2),  # 10 images in batches of 4; 9 images, whose last one joins the batch before
        ({"local_epochs": 2}, 6 + 4),
        ({"epochs_at": {"B": 3}}, 3 + 6),
        ({"local_steps": 7}, 14),
        ({"equal_steps": True}, 6),
        ({"participation": 0.5}, 2.5),
    ],
)
def test_the_steps_of_a_round_are_those_of_its_clients(training: dict[str, Any], expected: float) -> None:
    assert steps(first(**training), {"A": 10, "B": 9}) == expected


def test_pooled_images_are_those_of_one_client() -> None:
    run = next(iter(planned(runs=[{"algorithm": "pooled"}]).runs.values()))
    assert steps(run, {"A": 10, "B": 9}) == 5, "19 images in batches of 4"


# ---- times


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(probe, "time", clock)
    return clock


def test_whole_rounds_count_after_the_first(clock: Clock) -> None:
    watch = probe._Stopwatch(10.0, clock.monotonic)
    for clock.now in (100.0, 108.0, 116.0):
        watch.end_round()
    assert watch.seconds_a_step(steps=4, validated=2) == 2.0


def test_steps_count_where_a_round_is_too_long(clock: Clock) -> None:
    """Two slow steps warm up, then each takes 3 seconds. Two batches are evaluated for ten steps of a round."""
    watch = probe._Stopwatch(10.0, clock.monotonic)
    stopped = []
    for clock.now in (0.0, 50.0, 100.0, 103.0, 106.0, 109.0, 112.0):
        stopped.append(watch())
    assert stopped == [False] * 6 + [True], "ten seconds after the first step that counts"
    assert WARM_UP == 2
    assert watch.seconds_a_step(steps=10, validated=2) == pytest.approx(3.0 * (1 + FORWARD * 0.2))


# ---- hours


def test_runs_of_one_kind_share_a_probe_and_differ_by_their_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """BN policy and rounds leave the time of a step alone; a larger batch does not."""
    prober = Prober(Paths(), seconds=0.0)
    one, other = planned().runs.values()
    need = prober.train(one, 10)
    assert need.amount is not None
    assert need.amount > 0
    assert need.source == "probe of 0 seconds on images of noise in the size of yours"
    assert need.device.startswith("CPU")
    assert prober.train(other, 30).amount == pytest.approx(3 * need.amount)
    epochs = prober.train(first(local_epochs=2), 10).amount
    assert epochs == pytest.approx(2 * need.amount)
    prober.train(first(batch_size=8), 10)
    assert capsys.readouterr().err.splitlines() == [
        "probing fedavg, mlp, batches of 4: 0 seconds ...",
        "probing fedavg, mlp, batches of 8: 0 seconds ...",
    ]
    assert not Path("results").exists(), "nothing is written"


def test_without_the_number_of_images_there_are_no_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.zeros((3, 8, 8, 3), dtype=np.uint8)
    monkeypatch.setattr(probe, "images_of", lambda run, paths: Images(array, None, "images of the miniature"))
    need = Prober(Paths(), seconds=0.0).train(first(), 10)
    assert need.amount is None
    assert need.source.endswith("s a step in a probe, but the number of images is known once they are prepared")


def test_images_of_noise_have_the_size_and_the_sites_of_the_table() -> None:
    images = images_of(first(), Paths())
    assert images.array.shape == (probe.FEW, 8, 8, 3)
    assert images.samples is not None
    assert images.samples["site"].value_counts().to_dict() == {"A": 20, "B": 20, "C": 20}


def test_masks_and_data_that_are_drawn_can_be_probed() -> None:
    """Neither names files of the user; the network is trained on masks, and hours need the number of images."""
    run = next(iter(study.load(study.find("discs", STUDIES), "mini").runs.values()))
    images = images_of(run, Paths())
    assert images.masks is not None
    assert images.array.shape == (*images.masks.shape, 1) == (probe.FEW, 32, 32, 1)
    need = Prober(Paths(), seconds=0.0).train(run, 10)
    assert need.amount is None
    assert need.source.endswith("s a step in a probe, but the number of images is known once they are prepared")


def test_the_command_says_how_to_get_hours(capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    assert cli.main(["plan", "tiny"]) == 0
    hint = "To estimate the time of a first training, train it for some seconds: fedshift plan tiny --probe"
    assert hint in capsys.readouterr().out.splitlines()
    assert cli.main(["plan", "tiny", "--probe"]) == 0
    out = capsys.readouterr().out
    assert hint not in out
    assert re.search(r"^  train +2 +[0-9.]+ CPU-minutes +probe of 10 seconds on images of noise", out, re.MULTILINE)


def test_a_pace_is_measured_on_the_images_that_are_given() -> None:
    given = Images(np.zeros((6, 8, 8, 3), np.uint8), None, "black images")
    asked: list[str] = []

    def images(run: Run, paths: Paths) -> Images:
        asked.append(run.data.id)
        return given

    prober = Prober(Paths(), seconds=0.01, images=images)
    run, other = planned().runs.values()
    pace = prober.pace(run, torch.device("cpu"))
    assert pace.images is given
    assert pace.seconds > 0
    assert prober.pace(other, torch.device("cpu")) is pace, "runs that differ in the BN policy take as long"
    assert asked == [run.data.id]
