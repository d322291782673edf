"""Near copies: what is found of images that were saved again, resized or mirrored, and what is not taken for one."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from fedshift.data.looks import ALIKE, CROPS, FAR, Album, alike, is_flat, is_grey, look, near_copies


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


def cropped(image: np.ndarray) -> np.ndarray:
    """Three of 64 pixels less along each side, from a corner, and as large as before."""
    part = Image.fromarray(image[3:, :-3])
    return np.asarray(part.resize(image.shape[1::-1], Image.Resampling.BILINEAR))


def cropped_and_mirrored(image: np.ndarray) -> np.ndarray:
    return mirrored(cropped(image))


@pytest.mark.parametrize("change", [saved_again, resized, mirrored, cropped, cropped_and_mirrored])
def test_copies_of_some_are_found_and_no_others(change: object) -> None:
    images = pictures(200)
    assert callable(change)
    images += [change(image) for image in images[:50]]
    pairs, complete = near_copies(np.stack([look(image) for image in images]), Album(images).likeness)
    assert complete
    assert set(pairs) <= {(k, 200 + k) for k in range(50)}
    assert len(pairs) >= 45


def test_only_pairs_that_are_asked_for_are_looked_at() -> None:
    images = [*pictures(20), *pictures(20)]
    codes = np.stack([look(image) for image in images])
    asked: list[int] = []

    def compared(i: int, j: int, crop: int) -> float:
        asked.extend([i, j])
        return Album(images).likeness(i, j, crop)

    assert near_copies(codes, compared, lambda i, j: i == 3) == ({(3, 23): pytest.approx(1.0)}, True)
    assert set(asked) == {3, 23}


def test_a_pair_is_compared_once_however_often_it_is_asked_for() -> None:
    images = [*pictures(3), *pictures(3)]
    codes = np.stack([look(image) for image in images])
    album = Album(images)
    first = near_copies(codes, album.likeness)
    compared = album.likeness.cache_info().misses
    assert first[0].keys() == {(0, 3), (1, 4), (2, 5)}
    assert near_copies(codes, album.likeness) == first
    assert album.likeness.cache_info().misses == compared


def test_the_search_says_where_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedshift.data.looks.MOST", 5)
    images = [*pictures(20), *pictures(20)]
    pairs, complete = near_copies(np.stack([look(image) for image in images]), Album(images).likeness)
    assert len(pairs) == 5
    assert not complete


def test_mirror_images_have_the_same_codes() -> None:
    """That of the whole comes first; the crops of a mirror image lie at the other end."""
    for image in pictures(20, 64):
        codes, others = look(image), look(mirrored(image))
        assert len(codes) == len(CROPS)
        assert codes[0] == others[0]
        assert sorted(codes) == sorted(others)
    for image in pictures(20, 61):
        assert look(image)[0] == look(mirrored(image))[0]


def test_the_code_of_a_crop_is_that_of_the_cut_image() -> None:
    """The last crop is the lower right corner; 32 small squares of 20 pixels, cut where its edge lies."""
    rng = np.random.default_rng(4)
    image = np.repeat(np.repeat(rng.integers(0, 256, (32, 32, 1), dtype=np.uint8), 20, 0), 20, 1).repeat(3, 2)
    top, left, side = CROPS[-1]
    assert (top, left) == (pytest.approx(1 - side), pytest.approx(1 - side))
    cut = image[round(640 * top) :, round(640 * left) :]
    by_hand = np.asarray(Image.fromarray(cut).convert("L").convert("F").resize((9, 8), Image.Resampling.BOX))
    bits = np.diff(by_hand, axis=1) > 0
    turned = np.diff(by_hand[:, ::-1], axis=1) > 0
    numbers = [int("".join(map(str, values.reshape(-1).astype(int))), 2) for values in (bits, turned)]
    assert look(image)[-1] == min(numbers)


def test_pairs_are_within_six_bits_and_those_within_three_are_all_found() -> None:
    """Against all pairs by brute force, with one code for each image: both orders come."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2**63, 300, dtype=np.uint64)
    for k in range(0, 100, 2):
        codes[k + 1] = codes[k] ^ np.bitwise_or.reduce(np.uint64(1) << rng.permutation(64)[: k % 6].astype(np.uint64))
    apart = {(i, j): (int(codes[i]) ^ int(codes[j])).bit_count() for i in range(300) for j in range(300) if i != j}
    found = [(i, j) for i, j, _ in alike(codes[:, None])]
    assert len(found) == len(set(found))
    assert {pair for pair, bits in apart.items() if bits <= 3} <= set(found)
    assert set(found) <= {pair for pair, bits in apart.items() if bits <= FAR}
    assert len(found) >= 60


def test_images_of_one_colour_have_no_contrast_and_are_not_compared() -> None:
    black = np.zeros((8, 8, 3), dtype=np.uint8)
    assert is_flat(black)
    assert is_flat(np.full((8, 8, 3), (10, 20, 30), dtype=np.uint8))
    assert not is_flat(pictures(1)[0])
    assert not is_flat(np.array([1.0, 2.0], dtype=np.float32))
    assert near_copies(np.stack([look(black)] * 500), Album([black] * 500).likeness) == ({}, True)


def test_grey_images_have_equal_channels() -> None:
    colours = pictures(1)[0]
    grey = np.repeat(colours[:, :, :1], 3, axis=2)
    assert is_grey(grey)
    assert not is_grey(colours)
    nearly = grey.copy()
    nearly[-1, -1, 0] ^= 1
    assert not is_grey(nearly)
    assert not is_grey(colours[:, :, :1]), "one channel is not a colour image without colour"


def alike_by(share: float, number: int = 120) -> np.ndarray:
    """Pictures that have a share of one picture in common, as photographs of one organ have."""
    common, *own = (picture.astype(float) for picture in pictures(number + 1))
    return np.stack([share * common + (1 - share) * picture for picture in own]).round().astype(np.uint8)


SITES = ["north", "south"] * 60


def test_neighbours_are_the_second_nearest_of_other_sites() -> None:
    """By NumPy's correlation of all pairs, of means over blocks of 24 x 24."""
    images = alike_by(0.5, 24)
    images = np.stack([np.asarray(Image.fromarray(image).resize((24, 24), Image.Resampling.BOX)) for image in images])
    sites = SITES[:24]
    grey = [np.asarray(Image.fromarray(image).convert("L"), float).ravel() for image in images]
    expected = [
        sorted(np.corrcoef(grey[i], grey[j])[0, 1] for j in range(24) if sites[j] != sites[i])[-2] for i in range(24)
    ]
    np.testing.assert_allclose(Album(images, sites).neighbours, expected, atol=1e-5)
    assert not len(Album(images).neighbours) and not len(Album(images, ["north"] * 24).neighbours)


def test_a_site_that_is_another_one_saved_again_is_not_taken_for_a_kind() -> None:
    images = alike_by(0.0, 24)
    album = Album(np.concatenate([images, [saved_again(image) for image in images]]), ["north"] * 24 + ["south"] * 24)
    assert not album.of_one_kind and album.enough == ALIKE


@pytest.mark.parametrize(
    ("share", "more", "of_one_kind"), [(0.0, False, False), (0.83, True, False), (0.93, True, True)]
)
def test_more_is_asked_where_images_of_two_sites_are_alike(share: float, more: bool, of_one_kind: bool) -> None:
    album = Album(alike_by(share), SITES)
    assert (album.enough > ALIKE) == more
    assert album.of_one_kind == of_one_kind


def test_copies_are_found_among_images_that_are_alike() -> None:
    """At 0.97, neighbours of one kind count as copies; at what is unusual here, copies alone do."""
    images = alike_by(0.83, 40)
    images = np.concatenate([images, [saved_again(image) for image in images[:5]]])
    album = Album(images, [*SITES[:40], *SITES[1:6]])
    codes = np.stack([look(image) for image in images])
    usual = near_copies(codes, Album(images).likeness, lambda i, _: i < 5)[0]
    found = near_copies(codes, album.likeness, lambda i, _: i < 5, album.enough)[0]
    copies = {(k, 40 + k) for k in range(5)}
    assert copies < set(usual), "neighbours, too"
    assert set(found) == copies
