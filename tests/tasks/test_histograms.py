"""Histograms of the probability of structures, against pixels counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.core.units import IGNORED
from fedshift.tasks.segmentation import THRESHOLDS, histograms

P = np.array([[0.0, 0.3, 0.5, 0.99], [0.6, 1.0, np.nan, 0.2]])
"""The probability of class 1 in an image of two rows."""
REFERENCE = np.array([[0, 1, 1, 1], [0, 2, 1, IGNORED]])


def test_thresholds_begin_with_the_whole_image_and_rise() -> None:
    assert THRESHOLDS[0] == 0 and (np.diff(THRESHOLDS) > 0).all() and THRESHOLDS[-1] < 1
    assert len(THRESHOLDS) == 102 and THRESHOLDS[51] == pytest.approx(0.5, abs=1e-12)
    assert np.log(THRESHOLDS[1:] / (1 - THRESHOLDS[1:])) == pytest.approx(np.linspace(-10, 10, 101), abs=1e-6)


def test_pixels_are_counted_between_thresholds() -> None:
    """What reaches a threshold counts as held; a pixel of unknown class counts nowhere, and NaN is 0."""
    rest = (1 - P) / 2
    found = histograms(np.stack([rest, P, rest])[None], REFERENCE[None], [(1,), (1, 2), (2,)])
    assert found.shape == (1, 3, 2, 102) and found.dtype == np.int32
    reached = found[..., ::-1].cumsum(-1)[..., ::-1][0]
    for k, classes in enumerate([(1,), (1, 2), (2,)]):
        p = np.nan_to_num(np.stack([rest, P, rest])[list(classes)].sum(0))
        inside = np.isin(REFERENCE, classes)
        for at, threshold in enumerate(THRESHOLDS):
            held = p >= threshold
            assert reached[k, 0, at] == (held & inside).sum()
            assert reached[k, 1, at] == (held & ~inside & (REFERENCE != IGNORED)).sum()
    assert reached[0, :, 0].tolist() == [4, 3], "the whole image"
