"""Distances in millimetres: from the table of samples to predictions, the control and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import disc_study
import numpy as np
import pandas as pd
import pytest
import torch
from fake_study import predictions_of

from fedshift.analysis import study_results
from fedshift.io.checksums import record
from fedshift.io.tables import read_table, write_table
from fedshift.jobs.control import control
from fedshift.jobs.predict import MaskReader, predict
from fedshift.page import sections
from fedshift.tasks import Segmentation

SIDE = 10
REFERENCE, PREDICTED = (np.zeros((SIDE, SIDE), dtype=np.int64) for _ in range(2))
REFERENCE[2:6, 2:6] = 1
PREDICTED[3:7, 2:6] = 1
"""A square of 4 x 4 pixels that is predicted a row too low: its edge has 12 pixels."""
SPACING = (2.0, 0.5)
EXPECTED = {"hd95": 2.0, "assd": 0.75, "nsd": 2 / 3}
"""By hand, with rows 2 mm apart and columns 0.5 mm.

Of the 12 edge pixels of each mask, four lie in a row that the other lacks, 2 mm away. Two lie in the middle of the
opposite row, a column beside the other edge: 0.5 mm. Six lie on the other edge. That is 9 mm in all, and 8 of 12 are
within 1 mm.
"""


def logits(*masks: np.ndarray) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.from_numpy(np.stack(masks)), 2).movedim(-1, 1).double()


def test_a_case_by_hand_with_pixels_that_are_not_square() -> None:
    task = Segmentation(tolerance=1, tolerance_in="mm")
    columns = task.columns(["ground", "square"])
    y = torch.from_numpy(np.stack([REFERENCE, REFERENCE]))
    both = task.predictions(logits(PREDICTED, PREDICTED), y, spacing=np.array([SPACING, (1.0, 1.0)])).numpy()
    rows = [dict(zip(columns, row, strict=True)) for row in both]
    assert {name: rows[0][f"{name}_square"] for name in EXPECTED} == pytest.approx(EXPECTED)
    assert [rows[1][f"{name}_square"] for name in EXPECTED] == pytest.approx([1, 0.5, 1])
    missed = task.predictions(logits(REFERENCE * 0), y[:1], spacing=np.array([SPACING])).numpy()[0]
    assert missed[columns.index("hd95_square")] == pytest.approx(np.hypot(20, 5)), "the diagonal"


@pytest.mark.parametrize(
    ("tolerance", "spacing", "agree"),
    [
        (1, (0.14, 0.14), 12),  # a row too low is one pixel: all edge pixels agree, however small the pixels
        (1, (3.0, 3.0), 12),
        (0.9, (0.14, 0.14), 6),
        (2, SPACING, 12),  # a pixel of 2 mm by 0.5 mm has the area of one of 1 mm by 1 mm, and a row is 2 mm
        (1.9, SPACING, 8),
    ],
)
def test_a_tolerance_is_in_pixels_by_default(tolerance: float, spacing: tuple[float, float], agree: int) -> None:
    """By hand, as above: of 12 edge pixels six lie on the other edge, and two a column or a row beside it."""
    task = Segmentation(tolerance=tolerance)
    (row,) = task.of_masks(PREDICTED[None], REFERENCE[None], 2, spacing=np.array([spacing]))
    assert dict(zip(task.columns(["ground", "square"]), row, strict=True))["nsd_square"] == pytest.approx(agree / 12)


@pytest.mark.parametrize(
    ("settings", "spacing", "doubted"),
    [
        ({}, 0.14, ""),
        ({"tolerance": 3}, 0.14, ""),
        ({"tolerance": 4}, np.nan, "a tolerance of 4 pixels"),
        ({"tolerance": 2, "tolerance_in": "mm"}, 0.14, "a tolerance of 2 mm, which is 14.3 pixels"),
        ({"tolerance": 2, "tolerance_in": "mm"}, 1.0, ""),
        ({"tolerance": 4, "tolerance_in": "mm"}, np.nan, "a tolerance of 4 mm, which is 4.0 pixels"),
    ],
)
def test_a_tolerance_of_many_pixels_is_doubted(settings: dict[str, Any], spacing: float, doubted: str) -> None:
    said = Segmentation(**settings).doubt(np.full((5, 2), spacing))
    assert (doubted in said) if doubted else not said


def test_each_image_has_its_own_spacing_in_any_order_and_batch() -> None:
    """Stored rows are predicted as 2, 0, 1, in batches of two and one."""
    spacing = np.array([(1.0, 1.0), (2.0, 0.5), (3.0, 3.0)])
    reader = MaskReader(Segmentation(), np.array([2, 0, 1]), spacing)
    y = torch.from_numpy(np.stack([REFERENCE] * 2))
    first = reader(logits(PREDICTED, PREDICTED), y).numpy()
    last = reader(logits(PREDICTED), y[:1]).numpy()
    assert np.concatenate([first, last])[:, 3].tolist() == [3.0, 1.0, 2.0]
    kept = reader.kept(np.concatenate([first[1:], last, first[:1]]))["mask"]
    assert len(kept) == 3 and all(kept)


def test_a_study_in_millimetres(tmp_path: Path) -> None:
    """Pixels of 3 x 3 mm make each distance three times as long, and leave counts as they are."""
    plan, paths = disc_study.finished(tmp_path, control=True)
    (run,) = plan.runs.values()
    (partition,) = plan.controls
    made = predictions_of(plan, paths, run.id)
    tables = [made, paths.control(partition)]
    before = [read_table(file) for file in tables]
    assert any("Distances are in pixels" in line for line in lines(plan, paths))
    samples = paths.data_files(run.data.id).samples
    known = read_table(samples)
    write_table(samples, known.assign(spacing_y=3.0, spacing_x=3.0))
    record(samples)  # or predictions would be kept, as those of the same samples
    predict(paths.run_files(run.id).folder, plan.inferences, paths, made)
    control(run, paths, paths.control(partition))
    for old, file in zip(before, tables, strict=True):
        new = read_table(file)
        distances = ["hd95_disc", "assd_disc"]
        np.testing.assert_allclose(new[distances], 3 * old[distances])
        np.testing.assert_allclose(new["nsd_disc"], old["nsd_disc"])
        counts = ["tp_disc", "fp_disc", "fn_disc"]
        pd.testing.assert_frame_equal(new[counts], old[counts])
    (said,) = [line for line in lines(plan, paths) if line.startswith("Distances")]
    assert said == "Distances are in millimetres. Surface Dice counts edges up to 2 pixels apart as agreeing."
    half = known.assign(spacing_y=3.0, spacing_x=3.0)
    half.loc[half["site"] == "east", ["spacing_y", "spacing_x"]] = np.nan
    write_table(samples, half)
    (said,) = [line for line in lines(plan, paths) if line.startswith("Distances")]
    assert "in millimetres where the size of pixels is known and in pixels elsewhere" in said


def lines(plan: study_results.Plan, paths: study_results.Paths) -> list[str]:
    return [concern.text for concern in sections.concerns(study_results.load(plan, paths), [], [])]
