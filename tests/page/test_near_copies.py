"""Near copies on the page: which pairs it shows as pictures, with which words, and where it shows none."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from near_copies import with_copies
from outline import Outline
from PIL import Image

from fedshift.page import cohort, sections

FIGURE = re.compile(
    r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)">([^<]*)<br>([^<]*)</p>|<figcaption>(Correlation[^<]*)<'
)


def test_the_nearest_pairs_stand_side_by_side_below_their_sentence(tmp_path: Path) -> None:
    """Three of four pairs: the prepared pixels, with site, split, sample, and the correlation of means of 2 x 2."""
    written, images, trained = with_copies(tmp_path)
    html = written.read_text(encoding="utf-8")
    text = Outline(html).text
    assert f"{cohort.NEAR}: 4 pairs (" in text and "4 images at centre1)" in text
    found = FIGURE.findall(html)
    assert len(found) == 3 * 3
    copied = set()
    correlations = []
    for source, copy, caption in zip(found[::3], found[1::3], found[2::3], strict=True):
        number = trained.index(source[3])
        copied.add(number)
        assert source[2] == f"{source[3].split('/')[0]}, train"
        assert copy[2:4] == ("centre1, external", f"centre1/{number}/0")
        for png, alt, place, sample, _ in (source, copy):
            shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(png))))
            assert np.array_equal(shown, images[sample])
            assert alt.endswith(f": {place}, {sample}")
        said = re.fullmatch(r"Correlation (\d\.\d{3}), two patients", caption[4])
        assert said
        correlations.append(float(said[1]))
        grey = (
            np.asarray(Image.fromarray(images[sample]).convert("L"), float) for _, _, _, sample, _ in (source, copy)
        )
        small = [one.reshape(16, 2, 16, 2).mean(axis=(1, 3)).reshape(-1) for one in grey]
        assert correlations[-1] == pytest.approx(np.corrcoef(*small)[0, 1], abs=0.01)
    assert len(copied) == 3
    assert correlations == sorted(correlations, reverse=True)
    assert html.index(cohort.NEAR) < html.index("3 pairs as pictures") < html.index('id="sites"')
    assert html == with_copies(tmp_path / "again")[0].read_text(encoding="utf-8"), "the same bytes each time"


@pytest.mark.parametrize("figures", [["convergence", "sites"], []])
def test_a_study_without_images_on_its_page_shows_no_pair(figures: list[str], tmp_path: Path) -> None:
    html = with_copies(tmp_path, figures=figures)[0].read_text(encoding="utf-8")
    assert cohort.NEAR in html and "4 pairs" in html
    assert "data:image/png" not in html and "as pictures" not in html


def test_whose_images_are_shown_is_said() -> None:
    assert "to share it without them, write figures: [convergence, sites]" in sections.about_pairs(synthetic=False)
    assert "no hospital made them" in sections.about_pairs(synthetic=True)
