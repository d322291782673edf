"""Trained runs, opened: their predictions are those of the workflow and of NumPy, and bad input is one line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import my_study
import numpy as np
import pytest
import torch
from fake_study import predictions_of
from predicting import by_hand, state_of

import fedshift
from fedshift.inferences.source import Source
from fedshift.inferences.tsmobn import TsmoBN
from fedshift.interface.runs import TrainedRun
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table
from fedshift.study.plan import Plan

VARIED: dict[str, Any] = {
    "transforms": ["scale_intensity", "fedrdn"],
    "training": {"rounds": 2, "batch_size": 8, "lr": 0.1},
    "runs": [
        {"algorithm": "fedavg", "bn": "local", "inferences": ["eata", {"name": "tsmobn", "client": "south"}]},
        {"algorithm": "local"},
        {"algorithm": "apfl"},
        {"algorithm": "fedrod"},
    ],
    "seeds": [0],
    "inferences": ["tsmobn", {"name": "source", "personalise": {"source": "test_excluded", "batch_size": 4}}],
}


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Plan, Paths]]:
    """Runs of which sites have networks of their own, several or none, with images normalised by each site."""
    root = tmp_path_factory.mktemp("varied")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield my_study.finished(root, **VARIED)


def first(**settings: Any) -> TrainedRun:
    study = fedshift.load_study(my_study.NAME)
    return study.open_run(next(iter(study.runs)), **settings)


def check_stored(run: TrainedRun, plan: Plan, paths: Paths) -> int:
    """Compare all predictions of test images that the workflow has stored for a run, to the bit."""
    compared = 0
    for key in plan.predictions(run.id):
        table = read_table(predictions_of(plan, paths, run.id))
        table = table[table["split"] == "test"]
        if "inference" in table:
            table = table[table["inference"] == key]
        inference = plan.inferences[key]
        for site, rows in table.groupby("site"):
            x, y = run.images(str(site))
            np.testing.assert_array_equal(y, rows["label"])
            stored = rows[["p0", "p1"]].to_numpy()
            if inference.uses_labels:
                chosen = ~rows["adapted"].to_numpy(dtype=bool)
                accuracy = (stored.argmax(1) == y)[chosen].mean()
                assert run.evaluate(x, y, inference, str(site)) == {"accuracy": pytest.approx(accuracy, abs=1e-12)}
                assert not chosen.all()
            else:
                np.testing.assert_array_equal(run.predict(x, site=str(site), inference=inference), stored)
            compared += len(rows)
    return compared


def test_predictions_are_those_of_the_workflow_to_the_bit(here: Path) -> None:
    study = fedshift.load_study(my_study.NAME)
    for name in study.runs:
        assert check_stored(study.open_run(name), study.plan, Paths()) == 2 * (8 + 8 + 40)


def test_so_they_are_with_networks_and_statistics_of_sites(varied: tuple[Plan, Paths]) -> None:
    plan, paths = varied
    assert len(plan.runs) == 4
    for name in plan.runs:
        assert check_stored(fedshift.open_run(paths.run(name)), plan, paths) > 0


@pytest.mark.parametrize("inference", [Source(), TsmoBN(momentum=0.5, batch_size=16)])
@pytest.mark.parametrize("site", ["north", "south", "far"])
def test_predictions_are_those_of_numpy(here: Path, inference: Any, site: str) -> None:
    run = first()
    x, _ = run.images(site)
    inputs = x.transpose(0, 3, 1, 2).reshape(len(x), -1).astype(float) / 255
    expected = by_hand(state_of(Paths(), run.id, site), inputs, inference)
    np.testing.assert_allclose(run.predict(x, site=site, inference=inference), expected, rtol=1e-4, atol=1e-5)


def test_a_network_takes_what_the_transforms_give(here: Path) -> None:
    run = first()
    x, _ = run.images("south")
    with torch.no_grad():
        logits = run.model("south")(torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255).double()
    np.testing.assert_allclose(logits.softmax(1).numpy(), run.predict(x, site="south"), rtol=0, atol=1e-6)
    assert not run.model("south").training


def test_a_network_may_be_changed_without_harm(here: Path) -> None:
    run = first()
    x, _ = run.images("far")
    before = run.predict(x)
    model = run.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(run.predict(x), before)


def test_scores_are_counted(here: Path) -> None:
    """Accuracy is the share of the larger probability; the AUC counts ordered pairs, ties by half."""
    run = first()
    x, y = run.images("far")
    p = run.predict(x, site="far")[:, 1]
    pairs = p[y == 1][:, None] - p[y == 0][None]
    expected = {"accuracy": np.mean((p > 0.5) == y), "auc": np.mean((pairs > 0) + 0.5 * (pairs == 0))}
    assert run.evaluate(x, y, site="far", metrics=["accuracy", "auc"]) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(run.evaluate(x[y == 0], y[y == 0], metrics=["auc"])["auc"]), "one class has no AUC"


def test_what_a_run_says_of_itself(here: Path) -> None:
    run = first()
    assert run.classes == fedshift.load_study(my_study.NAME).plan.study.dataset.classes
    assert run.shape == (3, 8, 8)
    assert run.manifest["run"] == run.id == run.folder.name
    assert run.spec["training"]["rounds"] == run.rounds["round"].max() == 4
    assert set(run.rounds["site"]) == {"north", "south"}


def test_a_run_is_found_by_its_id_and_by_its_folder(here: Path) -> None:
    run = first()
    assert fedshift.open_run(run.id).spec == fedshift.open_run(run.folder.resolve()).spec == run.spec


# ---- bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run, x, y: run.predict(x, site="nord"), "site: unknown site 'nord'; did you mean 'north'?"),
        (lambda run, x, y: run.model("nord"), "site: unknown site 'nord'; did you mean 'north'?"),
        (lambda run, x, y: run.images("far", "train"), "site 'far': has no images of the split 'train'; see"),
        (lambda run, x, y: run.predict(x, inference="tsmob"), "inference: unknown inference 'tsmob'; did you mean"),
        (lambda run, x, y: run.predict(x, batch_size=0), "batch_size: Input should be greater than or equal to 1"),
        (lambda run, x, y: run.predict(x, inference={"name": "source", "client": "far"}), "is not an internal site"),
        (lambda run, x, y: run.predict(x / 255), "x: holds float64 (40, 8, 8, 3), and this run takes uint8 (n, 8, 8"),
        (lambda run, x, y: run.predict(x[:, :4]), "x: holds uint8 (40, 4, 8, 3), and this run takes uint8 (n, 8, 8, 3"),
        (lambda run, x, y: run.predict(x[:0]), "x: holds uint8 (0, 8, 8, 3), and"),
        (lambda run, x, y: run.evaluate(x, y + 1), "y: must be a class number, 0 to 1, for each of 40 images; give"),
        (lambda run, x, y: run.evaluate(x, y[1:]), "y: must be a class number, 0 to 1, for each of 40 images; give"),
        (lambda run, x, y: run.evaluate(x, y, metrics=["accurcy"]), "unknown metric 'accurcy'; did you mean 'accu"),
        (
            lambda run, x, y: run.predict(x, inference={"name": "source", "personalise": {}}),
            "inference: source adapts to labelled inputs; call evaluate with their labels",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(here: Path, call: Any, words: str) -> None:
    run = first()
    with pytest.raises(fedshift.UserError) as caught:
        call(run, *run.images("far"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_clients_that_train_alone_have_no_network_for_others(varied: tuple[Plan, Paths]) -> None:
    plan, paths = varied
    (name,) = [name for name, run in plan.runs.items() if run.algorithm.name == "local"]
    run = fedshift.open_run(paths.run(name))
    words = "site: each client trains alone, so sites outside have no network; name one of north, south"
    with pytest.raises(fedshift.UserError, match=words):
        run.model("far")
    x, _ = run.images("far")
    with pytest.raises(fedshift.UserError, match=words):
        run.predict(x)
    assert run.predict(x, inference={"name": "source", "client": "south"}).shape == (40, 2)


def test_a_run_away_from_its_project_predicts_but_has_no_images(here: Path, tmp_path: Path) -> None:
    run = first()
    x, _ = run.images("far")
    shutil.copytree(run.folder, tmp_path / "copy")
    away = tmp_path / "elsewhere"
    away.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(away)
        copy = fedshift.open_run(tmp_path / "copy")
        np.testing.assert_array_equal(copy.predict(x, inference="tsmobn"), run.predict(x, inference="tsmobn"))
        with pytest.raises(fedshift.UserError, match=r"card\.json: no such file"):
            copy.images("far")


@pytest.mark.parametrize("name", ["model.safetensors", "rounds.parquet", "spec.json", "manifest.json"])
def test_a_damaged_file_is_one_line(here: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(first().folder, tmp_path / "run")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(fedshift.UserError) as caught:
        fedshift.open_run(folder)
    assert str(caught.value).startswith(f"{folder / name}: is damaged or was changed")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "clients.safetensors", "rounds.parquet", "manifest.json"])
def test_a_missing_file_is_one_line(here: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(first().folder, tmp_path / "run")
    (folder / name).unlink()
    with pytest.raises(fedshift.UserError, match=rf"{name}: (is not a manifest of a run: )?no such file"):
        run = fedshift.open_run(folder)
        run.model()
        run.rounds  # noqa: B018


def test_an_unknown_run_is_one_line(here: Path) -> None:
    with pytest.raises(fedshift.UserError, match=r"results/runs/lost: no such run, or it is not trained"):
        fedshift.open_run("lost")
    with pytest.raises(fedshift.UserError, match=r"study my-study.*: has no run 'lost'; known: fedavg-local-"):
        fedshift.load_study(my_study.NAME).open_run("lost")
