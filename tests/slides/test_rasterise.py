"""Areas as pixels: even-odd at the centres of pixels, with half-open edges."""

from __future__ import annotations

import numpy as np
import pytest
from slide_files import square

from fedshift.slides.annotations import Shape, area, inside


def shape(*rings: list[list[float]]) -> Shape:
    return Shape(("Tumor",), tuple(np.array(ring, float) for ring in rings))


def drawn(*rings: list[list[float]], scale: float = 1.0, size: tuple[int, int] = (20, 20)) -> np.ndarray:
    return area([shape(*rings)], [], scale, size)


def test_the_square_of_the_recipe_has_576_pixels() -> None:
    mask = drawn(square(640, 1024), scale=16, size=(128, 128))
    assert mask.sum() == 24**2 == 576
    assert mask[40:64, 40:64].all()
    shares = mask.reshape(16, 8, 16, 8).mean((1, 3))
    assert (shares > 0).sum() == 9 and (shares[5:8, 5:8] == 1).all()


@pytest.mark.parametrize("edge", [4.25, 4.5, 4.75, 5.0])
def test_areas_that_share_an_edge_share_no_pixel_and_leave_none_out(edge: float) -> None:
    left = drawn([[1, 1], [edge, 1], [edge, 9], [1, 9]])
    right = drawn([[edge, 1], [9, 1], [9, 9], [edge, 9]])
    assert not (left & right).any()
    assert np.array_equal(left | right, drawn(square(1, 9)))
    assert left.sum() == 8 * (np.ceil(edge - 0.5) - 1), "a centre on the right edge is outside"


def test_a_triangle_holds_the_centres_below_its_diagonal() -> None:
    row, column = np.mgrid[:20, :20] + 0.5
    expected = (column >= 2) & (row < 15) & (column - 2 < row - 2)
    assert np.array_equal(drawn([[2, 2], [15, 15], [2, 15]]), expected)


def test_the_middle_of_a_pentagram_is_outside() -> None:
    angles = np.arange(5) * 4 * np.pi / 5
    star = 10 + 9 * np.stack([np.sin(angles), -np.cos(angles)], 1)
    mask = drawn(star.tolist())
    assert not mask[9:11, 9:11].any() and mask[3, 9:11].all()


def test_rings_inside_and_holes_are_taken_away() -> None:
    assert drawn(square(2, 18), square(5, 10)).sum() == 16**2 - 5**2
    assert area([shape(square(2, 18))], [shape(square(5, 10))], 1, (20, 20)).sum() == 16**2 - 5**2
    assert area([shape(square(2, 18)), shape(square(4, 6))], [], 1, (20, 20)).sum() == 16**2, "areas are united"


def test_what_leaves_the_grid_is_cut() -> None:
    assert np.array_equal(drawn(square(-50, 7)), drawn(square(0, 7)))
    assert drawn(square(15, 500)).sum() == 25
    assert not drawn(square(30, 40)).any() and not drawn([[1, 1], [5, 5]]).any()
    window, pixels = inside([np.array(square(3, 6), float)], 1, (20, 20))
    assert window == (slice(3, 6), slice(3, 6)) and pixels.shape == (3, 3)
