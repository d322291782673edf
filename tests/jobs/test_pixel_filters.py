"""The control of masks: filter responses of known surfaces, its threshold, and what it may not depend on."""

from __future__ import annotations

import textwrap
from pathlib import Path

import disc_study
import numpy as np
import pytest

from fedshift.analysis import study_results
from fedshift.analysis.predictions import Predictions
from fedshift.io.tables import read_table
from fedshift.jobs.control import best_threshold, control, labelled, pixel_features
from fedshift.page import page
from fedshift.page.forest import LONGEST

ROWS, COLUMNS = np.mgrid[:64, :64].astype(float)
PLACES = {"north": "internal", "south": "internal", "east": "external"}
MIDDLE = 32 * 64 + 32
"""The pixel in the middle of such an image, where no filter of the scales sees the rim."""


def responses(surface: np.ndarray) -> list[float]:
    image = surface[:, :, None].astype(np.uint8)
    values = pixel_features(image)
    assert values.shape == (64 * 64, 13)
    middle: list[float] = values[MIDDLE].tolist()
    return middle


def test_a_plane_has_its_slope_as_gradient_and_no_curvature() -> None:
    """2 r + c has the gradient (2, 1), and smoothing leaves a plane as it is.

    Weights of second derivatives are cut off at four standard deviations: their sum is up to 1e-4 instead of 0.
    """
    value, *scales = responses(2 * ROWS + COLUMNS)
    assert value == 96
    for k in range(3):
        smooth, gradient, largest, least = scales[4 * k : 4 * k + 4]
        assert smooth == pytest.approx(96, abs=1e-3)
        assert gradient == pytest.approx(5**0.5, rel=1e-3)
        assert [largest, least] == pytest.approx([0, 0], abs=1e-4 * 96)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_curvatures_of_a_paraboloid_are_its_eigenvalues(sign: int) -> None:
    """(u^2 + u v + v^2) / 32 has the Hessian [[2, 1], [1, 2]] / 32, with the eigenvalues 3/32 and 1/32.

    A turned one has the same. Smoothing by s adds s^2 (f_uu + f_vv) / 2 = s^2 / 16. Bytes are off by a half at most,
    which the widest Gaussian averages away.
    """
    u, v = ROWS - 32, COLUMNS - 32
    value, *scales = responses(((u**2 + sign * u * v + v**2) / 32).round())
    assert value == 0
    smooth, gradient, largest, least = scales[8:]
    assert smooth == pytest.approx(16 / 16, abs=0.1)
    assert gradient == pytest.approx(0, abs=0.02)
    assert [largest, least] == pytest.approx([3 / 32, 1 / 32], abs=0.005)


def test_each_channel_has_its_own_responses_and_the_rim_goes_on() -> None:
    image = np.full((8, 6, 3), (200, 100, 50), dtype=np.uint8)
    values = pixel_features(image)
    expected = [[level, *([level, 0, 0, 0] * 3)] for level in (200, 100, 50)]
    np.testing.assert_allclose(values, [np.concatenate(expected)] * 48, atol=1e-4 * 200)


def test_a_pixel_has_its_likeliest_structure_from_the_threshold_on() -> None:
    p = np.array([[0.7, 0.1, 0.2], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.75, 0.25, 0.0]])
    assert labelled(p, 0.5).tolist() == [0, 1, 2, 0]
    assert labelled(p, 0.25).tolist() == [2, 1, 2, 1]


def test_the_threshold_has_the_best_dice() -> None:
    """Up to 0.2 all four are found: 2 x 2 / (4 + 2). From 0.25 to 0.4 the first three: 4/5. Above, 1 of 2: 2/3."""
    labels = np.array([0, 1, 2, 0])
    found = np.array([0.45, 0.42, 0.55, 0.22])
    p = np.stack([1 - found, found / 2, found / 2], axis=1)
    assert best_threshold(p, labels) == 0.25


def test_a_study_of_masks_has_a_control_that_outlines_what_stands_out(tmp_path: Path) -> None:
    """Discs of north and south are 45 and more grey levels brighter than the ground, with noise of 8."""
    plan, paths = disc_study.finished(tmp_path, control=True)
    (partition,) = plan.controls
    table = read_table(paths.control(partition))
    columns = ["tp_disc", "fp_disc", "fn_disc", "hd95_disc", "assd_disc", "nsd_disc"]
    assert list(table) == ["sample", "site", "role", "label", *columns]
    assigned = read_table(paths.partition(partition))
    assert set(table["sample"]) == set(assigned.loc[assigned["split"] == "test", "sample"])
    (run,) = plan.runs.values()
    masks = np.load(paths.data_files(run.data.id).masks)
    samples = read_table(paths.data_files(run.data.id).samples)
    size = dict(zip(samples["sample"], (masks > 0).sum((1, 2)), strict=True))
    assert (table["tp_disc"] + table["fn_disc"]).tolist() == [size[name] for name in table["sample"]]
    # By hand: a patient's pixels are summed, Dice is made, and a site's score is the mean over its patients.
    patient = table["sample"].map(samples.set_index("sample")["patient"])
    sums = table.groupby([table["site"], patient])[["tp_disc", "fp_disc", "fn_disc"]].sum()
    dice = 2 * sums["tp_disc"] / (2 * sums["tp_disc"] + sums["fp_disc"] + sums["fn_disc"])
    by_site = dice.groupby("site").mean()
    assert by_site[["north", "south"]].min() > 0.85
    found = study_results.load(plan, paths)
    levels = {site: found.controls.level(partition, role, site) for site, role in PLACES.items()}
    assert {site: value.mean for site, value in levels.items()} == pytest.approx(by_site.to_dict())
    tested = Predictions(plan, paths).parts(run, "source")
    assert {part.site: len(part.samples) for part in tested} == {site: int(v.n) for site, v in levels.items()}
    (condition,) = found.findings.conditions
    for role in ("internal", "external"):
        network = found.findings.effect("level", condition, "source", role).mean
        expected = network - by_site[[site for site in by_site.index if PLACES[site] == role]].mean()
        assert found.controls.difference(condition.id, "source", role).mean == pytest.approx(expected)
    # On the first screen, and in words.
    html = page.write(study_results.load(plan, paths)).read_text(encoding="utf-8")
    legend = textwrap.wrap("colours and edges around each pixel only, without a network", LONGEST)
    assert all(f">{line}</" in html for line in legend), "in the picture, which breaks long lines"
    assert "Outside, by colours and edges around each pixel only" in html
    assert "Control: colours and edges around each pixel only, no network" in html
    assert "colour and texture" not in html
    first = paths.control(partition).read_bytes()
    control(run, paths, paths.control(partition))
    assert paths.control(partition).read_bytes() == first
