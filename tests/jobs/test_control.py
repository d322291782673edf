"""The control of colour and texture: its numbers worked out one pixel at a time, and what it may not depend on."""

from __future__ import annotations

from pathlib import Path

import fake_study
import numpy as np
import pandas as pd
import pytest

from fedshift import cli
from fedshift.core.errors import UserError
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table
from fedshift.jobs import control
from fedshift.study.plan import Run

RANDOM = np.random.default_rng(3).integers(0, 256, (5, 9, 8, 3), dtype=np.uint8)


def patterns(grey: np.ndarray) -> list[float]:
    """The shares of local binary patterns of one image, pixel by pixel."""
    around = [(-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1)]
    counts = [0] * 10
    for i in range(1, grey.shape[0] - 1):
        for j in range(1, grey.shape[1] - 1):
            bits = [grey[i + a, j + b] >= grey[i, j] for a, b in around]
            changes = sum(bits[k] != bits[k - 1] for k in range(8))
            counts[sum(bits) if changes <= 2 else 9] += 1
    return [count / sum(counts) for count in counts]


def energies(grey: np.ndarray) -> list[float]:
    across, along = np.diff(grey, axis=1), np.diff(grey, axis=0)
    inner = grey[1:-1, 1:-1]
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * inner
    return [np.log1p((across**2).mean() + (along**2).mean()), np.log1p((laplacian**2).mean())]


def by_hand(image: np.ndarray) -> list[float]:
    x = image.astype(float)
    channels = [x[..., c] for c in range(3)]
    out = [*(c.mean() for c in channels), *(c.std() for c in channels)]
    out += [q for c in channels for q in np.percentile(c, [5, 25, 50, 75, 95], method="inverted_cdf")]
    out += [np.corrcoef(channels[a].ravel(), channels[b].ravel())[0, 1] for a, b in ((0, 1), (0, 2), (1, 2))]
    saturation = x.max(2) - x.min(2)
    out += [saturation.mean(), saturation.std()]
    edges = [np.sqrt((c[:-1, 1:] - c[:-1, :-1]) ** 2 + (c[1:, :-1] - c[:-1, :-1]) ** 2) for c in channels]
    out += [*(e.mean() for e in edges), *(e.std() for e in edges)]
    grey = x.mean(2)
    halved = grey[:8].reshape(4, 2, 4, 2).mean((1, 3))  # the ninth row has no partner
    return [*out, *energies(grey), *energies(halved), *patterns(grey)]


def test_the_features_of_each_image_are_those_worked_out_by_hand() -> None:
    np.testing.assert_allclose(
        control.image_features(RANDOM), [by_hand(image) for image in RANDOM], rtol=2e-5, atol=1e-5
    )


def test_an_rgb_image_of_a_usual_size_has_48_numbers_and_a_grey_one_less() -> None:
    image = np.full((1, 96, 96, 3), (200, 100, 50), dtype=np.uint8)
    values = control.image_features(image)
    assert values.shape == (1, 48)
    assert values[0, :6].tolist() == [200, 100, 50, 0, 0, 0]
    assert values[0, 24:26].tolist() == [150, 0], "saturation"
    assert values[0, -10:].tolist() == [0] * 8 + [1, 0], "all neighbours are as bright as the centre"
    assert control.image_features(image[..., :1]).shape == (1, 7 + 2 + 6 + 10)
    assert control.image_features(image[:, :1, :1]).shape == (1, 26), "no edges in a single pixel"


def test_neither_blocks_nor_the_order_of_rows_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.array([4, 0, 3])
    whole = control.read_features(RANDOM, rows)
    monkeypatch.setattr(control, "BLOCK", 1)
    np.testing.assert_array_equal(control.read_features(RANDOM, rows), whole)
    np.testing.assert_array_equal(whole, control.image_features(RANDOM)[rows])


def test_the_penalty_is_chosen_by_the_log_loss_of_the_validation_samples() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    rng = np.random.default_rng(0)
    x, val = rng.normal(size=(40, 12)), rng.normal(size=(60, 12))
    y, val_y = ((part[:, 0] + rng.normal(size=len(part)) > 0).astype(int) for part in (x, val))
    mean, std = x.mean(0), x.std(0)
    losses = {}
    for c in control.CS:
        model = LogisticRegression(C=c, max_iter=1000).fit((x - mean) / std, y)
        losses[c] = log_loss(val_y, model.predict_proba((val - mean) / std))
    model, c = control.fit(x, y, val, val_y)
    assert c == min(losses, key=losses.__getitem__) != control.CS[-1]
    assert log_loss(val_y, control.probabilities(model, val, 2)) == pytest.approx(losses[c])
    assert control.fit(x, y, val[:0], val_y[:0])[1] == control.DEFAULT_C


def test_a_class_that_does_not_train_has_probability_zero() -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.array([0, 0, 0, 2, 2, 2])
    model, _ = control.fit(x, y, x[:0], y[:0])
    p = control.probabilities(model, x, 4)
    assert (p[:, [1, 3]] == 0).all() and p.sum(1) == pytest.approx(np.ones(6))
    alone, _ = control.fit(x, np.ones(6, dtype=int), x, y)
    assert control.probabilities(alone, x, 3).tolist() == [[0, 1, 0]] * 6


def coloured(root: Path) -> tuple[Run, Paths]:
    """A study whose positive images are red at internal sites and at centre1, and blue at the other external site."""
    plan, paths = fake_study.build(root)
    (data,) = plan.data
    samples, images = read_table(paths.data(data) / "samples.parquet"), np.load(paths.data(data) / "images.npy")
    channel = np.where(samples["site"] == fake_study.EXTERNAL[1], 2, 0)
    for row in np.flatnonzero(samples["label"] == 1):
        images[row, ..., channel[row]] = images[row, ..., channel[row]] // 4 + 190
    np.save(paths.data(data) / "images.npy", images)
    return next(iter(plan.runs.values())), paths


def test_the_job_predicts_the_test_images_of_all_sites(tmp_path: Path) -> None:
    run, paths = coloured(tmp_path)
    out = paths.control(run.partition_id)
    control.control(run, paths, out)
    table, assigned = read_table(out), read_table(paths.partition(run.partition_id))
    assert list(table) == ["sample", "site", "role", "label", "p0", "p1"]
    assert set(table["sample"]) == set(assigned.loc[assigned["split"] == "test", "sample"])
    assert (table["p0"] + table["p1"]).to_numpy() == pytest.approx(np.ones(len(table)))
    right = ((table["p1"] > 0.5) == (table["label"] == 1)).groupby(table["site"]).mean()
    assert right[[*fake_study.INTERNAL, "centre1"]].tolist() == [1, 1, 1]
    assert right[fake_study.EXTERNAL[1]] < 0.6, "another colour says nothing"
    first = out.read_bytes()
    control.control(run, paths, out)
    assert out.read_bytes() == first


def test_external_images_change_nothing_inside(tmp_path: Path) -> None:
    run, paths = coloured(tmp_path)
    out = paths.control(run.partition_id)
    control.control(run, paths, out)
    before = read_table(out)
    files = paths.data_files(run.data.id)
    images = np.load(files.images)
    images[read_table(files.samples)["site"].isin(fake_study.EXTERNAL)] = 0
    np.save(files.images, images)
    control.control(run, paths, out)
    after = read_table(out)
    inside = (before["role"] == "internal").to_numpy()
    pd.testing.assert_frame_equal(before[inside], after[inside])
    assert (before["p1"] != after["p1"])[~inside].any()


def test_vectors_have_no_control(tmp_path: Path) -> None:
    run, paths = coloured(tmp_path)
    np.save(
        paths.data(run.data.id) / "images.npy",
        np.zeros((len(read_table(paths.data_files(run.data.id).samples)), 7), np.float32),
    )
    with pytest.raises(UserError, match="holds no images, so it has no control; set control: false in the study"):
        control.control(run, paths, tmp_path / "out.parquet")


def test_a_study_has_a_control_of_each_partition_unless_it_is_switched_off(tmp_path: Path) -> None:
    two = [{"internal": ["A"], "external": ["B"]}, {"internal": ["B"], "external": ["A"]}]
    plan = fake_study.plan(tmp_path, partition=two)
    assert list(plan.controls) == list(dict.fromkeys(run.partition_id for run in plan.runs.values()))
    assert len(plan.controls) == 2
    assert fake_study.plan(tmp_path, partition=two, control=False).controls == {}
    vectors = {"dataset": "gaussians", "partition": {"internal": ["client0", "client1"]}}
    assert fake_study.plan(tmp_path, **vectors).controls == {}
    with pytest.raises(UserError, match=r"fake\.yaml\.control: the samples of gaussians are vectors"):
        fake_study.plan(tmp_path, **vectors, control=True)


def test_the_control_changes_no_id_of_a_run(tmp_path: Path) -> None:
    plans = [fake_study.plan(tmp_path, control=value) for value in (None, True, False)]
    assert plans[0].runs.keys() == plans[1].runs.keys() == plans[2].runs.keys()


def test_the_command_names_an_unknown_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    study = "title: T\ndataset: camelyon17\npartition: { internal: [centre0], external: [centre1] }\nmodel: mlp\n"
    (tmp_path / "s.yaml").write_text(study + "runs: [{ algorithm: fedavg }]\ninferences: [source]\n")
    assert cli.main(["control", "s.yaml", "lost"]) == 2
    assert "has no partition with a control 'lost'" in capsys.readouterr().err
