"""Histograms of pixel values: shares, distances and images by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from invented import made
from scored_study import summarised

from fedshift.analysis import study_results
from fedshift.figures import Results
from fedshift.figures.pixel_histograms import BINS, PixelHistograms, distance, histograms


def of(*values: int) -> np.ndarray:
    """A grey image of one row of pixels."""
    return np.array(values, dtype=np.uint8).reshape(1, 1, -1, 1)


def given(**images: np.ndarray) -> Results:
    shown = {site: (image, np.zeros(len(image), dtype=int)) for site, image in images.items()}
    return dataclasses.replace(made(), images=lambda each: shown, internal=("north",), external=("south", "gone"))


def test_bins_hold_eight_values_each() -> None:
    share = histograms(of(0, 7, 8, 255))
    assert share.shape == (1, BINS)
    assert share[0, [0, 1, BINS - 1]] == pytest.approx([0.5, 0.25, 0.25])
    assert share.sum() == 1


def test_channels_are_counted_apart() -> None:
    image = np.zeros((2, 3, 4, 3), dtype=np.uint8)
    image[..., 1] = 128
    share = histograms(image)
    assert [int(channel.argmax()) for channel in share] == [0, 16, 0]
    assert list(share.max(axis=1)) == [1, 1, 1]


def test_distances_by_hand() -> None:
    """Equal 0, disjoint 1; a quarter of the pixels moved, 1/4; the mean over channels; other channels, 1."""
    still = histograms(of(0, 0, 100, 200))
    assert distance(still, still) == 0
    assert distance(still, histograms(of(50, 50, 150, 250))) == 1
    assert distance(still, histograms(of(0, 16, 100, 200))) == 0.25
    both = np.concatenate([still, still])
    assert distance(both, np.concatenate([still, histograms(of(50, 50, 150, 250))])) == 0.5
    assert distance(still, both) == 1


def test_the_caption_names_the_sites_that_are_farthest_apart() -> None:
    words = PixelHistograms().caption(given(north=of(0, 0, 100, 200), south=of(0, 16, 100, 200)))
    assert "Farthest apart are north and south, whose histograms share 75 % of their area" in words
    assert "Farthest" not in PixelHistograms().caption(given(north=of(0)))
    assert "needs images" in PixelHistograms().caption(given())


def test_grey_and_coloured_sites_are_drawn_together_and_in_black_alone() -> None:
    for images in ({"north": of(1, 2), "south": np.zeros((1, 2, 2, 3), np.uint8)}, {"north": of(0, 0)}):
        text = PixelHistograms().draw(given(**images))
        assert PixelHistograms().draw(given(**images)) == text
        words = ["".join(e.itertext()) for e in ElementTree.fromstring(text).iter() if e.tag.endswith("text")]
        assert set(images) <= set(words)
        assert "Pixels (%)" in words


def test_a_study_draws_as_many_random_images_as_are_asked_for(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path)
    shown = study_results.load(plan, paths).for_figures
    few, many = shown.images(3), shown.images(1000)
    samples = study_results.load(plan, paths).samples(next(iter(plan.data)))
    for site, (patches, _) in shown.images(6).items():
        assert len(few[site][0]) == 3
        assert len(many[site][0]) == (samples["site"] == site).sum()
        rows = {image.tobytes() for image in patches}
        assert {image.tobytes() for image in few[site][0]} <= rows <= {image.tobytes() for image in many[site][0]}
    text = PixelHistograms().draw(shown)
    assert "Nothing to draw" not in text
