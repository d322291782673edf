"""Near copies: what is found of images that were saved again, resized or mirrored, and what is not taken for one."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from fedshift.data.looks import alike, is_flat, look, near_copies


def pictures(number: int, side: int = 64) -> list[np.ndarray]:
    """Smooth random colours: images that differ, with structure of several sizes."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(number):
        coarse = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        made.append(np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC)))
    return made


def saved_again(image: np.ndarray) -> np.ndarray:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=90)
    return np.asarray(Image.open(io.BytesIO(out.getvalue())))


def resized(image: np.ndarray) -> np.ndarray:
    small = Image.fromarray(image).resize((40, 40), Image.Resampling.LANCZOS)
    return np.asarray(small.resize(image.shape[1::-1], Image.Resampling.LANCZOS))


def mirrored(image: np.ndarray) -> np.ndarray:
    return image[:, ::-1].copy()


@pytest.mark.parametrize("change", [saved_again, resized, mirrored])
def test_copies_of_some_are_found_and_no_others(change: object) -> None:
    images = pictures(200)
    assert callable(change)
    images += [change(image) for image in images[:50]]
    codes = np.array([look(image) for image in images], dtype=np.uint64)
    pairs = near_copies(codes, lambda i: images[i])
    assert set(pairs) <= {(k, 200 + k) for k in range(50)}
    assert len(pairs) >= 45


def test_mirror_images_have_one_code() -> None:
    for image in pictures(20, 61):
        assert look(image) == look(mirrored(image))


def test_codes_within_three_bits_are_pairs_once() -> None:
    """Against all pairs by brute force."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2**63, 300, dtype=np.uint64)
    for k in range(0, 100, 2):
        codes[k + 1] = codes[k] ^ np.bitwise_or.reduce(np.uint64(1) << rng.permutation(64)[: k % 6].astype(np.uint64))
    expected = {
        (i, j) for i in range(300) for j in range(i + 1, 300) if (int(codes[i]) ^ int(codes[j])).bit_count() <= 3
    }
    found = list(alike(codes))
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert len(expected) >= 30


def test_images_of_one_colour_have_no_contrast_and_are_not_compared() -> None:
    black = np.zeros((8, 8, 3), dtype=np.uint8)
    assert is_flat(black)
    assert is_flat(np.full((8, 8, 3), (10, 20, 30), dtype=np.uint8))
    assert not is_flat(pictures(1)[0])
    assert not is_flat(np.array([1.0, 2.0], dtype=np.float32))
    assert near_copies(np.array([look(black)] * 500, dtype=np.uint64), lambda i: black) == []
