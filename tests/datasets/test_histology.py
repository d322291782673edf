"""Synthetic tissue: the label depends on the nuclei, not on the colour; the centres differ in colour."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from scipy import ndimage
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedshift.datasets._histology import CENTRES, CORE, SIZE, Stain, draw

INTERNAL, EXTERNAL = (0, 3, 4), (1, 2)
NUMBER = 200
MIDDLE = slice((SIZE - CORE) // 2, (SIZE + CORE) // 2)


@pytest.fixture(scope="module")
def patches() -> dict[int, np.ndarray]:
    """200 patches per centre, normal and tumour in turn."""

    def of(centre: int) -> Iterator[np.ndarray]:
        rng = np.random.default_rng([17, centre])
        return (draw(rng, bool(i % 2), CENTRES[centre]) for i in range(NUMBER))

    return {centre: np.stack(list(of(centre))).astype(float) for centre in range(5)}


LABELS = np.arange(NUMBER) % 2


def colour(patches: np.ndarray) -> np.ndarray:
    """Mean and standard deviation of each channel, and the mean colour of the central region."""
    core = patches[:, MIDDLE, MIDDLE]
    return np.hstack([patches.mean((1, 2)), patches.std((1, 2)), core.mean((1, 2))])


def nuclear_area(patch: np.ndarray, sigma: float = 0.7) -> float:
    """Mean area of the blobs in the central region where red, which haematoxylin absorbs, is dark."""
    red = ndimage.gaussian_filter(patch[..., 0], sigma)
    low, high = np.percentile(red, (5, 95))
    core = ndimage.binary_erosion(red < (low + high) / 2)[MIDDLE, MIDDLE]
    return core.sum() / max(ndimage.label(core)[1], 1)


@pytest.mark.parametrize("tumour", [False, True])
def test_a_patch_is_96_pixels_square_in_rgb(tumour: bool) -> None:
    patch = draw(np.random.default_rng(0), tumour, CENTRES[0])
    assert patch.shape == (96, 96, 3)
    assert patch.dtype == np.uint8
    assert patch.std() > 10


def test_the_generator_decides_the_patch() -> None:
    one, same, other = (draw(np.random.default_rng(seed), True, CENTRES[3]) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_the_tissue_is_the_same_in_every_stain() -> None:
    """Without noise, two centres show the same nuclei: dark where the other is dark."""
    one, two = (Stain(s.haematoxylin, s.eosin, s.strength, s.blur, s.gamma, 0) for s in CENTRES[:2])
    red = [draw(np.random.default_rng(4), True, stain)[..., 0].ravel() for stain in (one, two)]
    assert np.corrcoef(red)[0, 1] > 0.9


def test_colour_does_not_give_the_label_away_in_an_unseen_centre(patches: dict[int, np.ndarray]) -> None:
    probe = make_pipeline(StandardScaler(), LogisticRegression())
    probe.fit(np.vstack([colour(patches[c]) for c in INTERNAL]), np.tile(LABELS, len(INTERNAL)))
    for centre in EXTERNAL:
        features = colour(patches[centre])
        assert 0.4 <= balanced_accuracy_score(LABELS, probe.predict(features)) <= 0.6
        assert 0.38 <= roc_auc_score(LABELS, probe.predict_proba(features)[:, 1]) <= 0.62


@pytest.mark.parametrize("centre", range(5))
def test_colour_does_not_give_the_label_away_within_a_centre(patches: dict[int, np.ndarray], centre: int) -> None:
    features, fit = colour(patches[centre]), np.arange(NUMBER) < NUMBER / 2
    probe = make_pipeline(StandardScaler(), LogisticRegression()).fit(features[fit], LABELS[fit])
    assert balanced_accuracy_score(LABELS[~fit], probe.predict(features[~fit])) <= 0.62


@pytest.mark.parametrize("centre", range(5))
def test_tumour_nuclei_are_larger(patches: dict[int, np.ndarray], centre: int) -> None:
    areas = [nuclear_area(patch) for patch in patches[centre]]
    assert roc_auc_score(LABELS, areas) > 0.7


def test_the_external_centres_are_the_farthest_in_colour(patches: dict[int, np.ndarray]) -> None:
    mean = {centre: patches[centre].mean((0, 1, 2)) for centre in patches}
    middle = np.mean([mean[centre] for centre in INTERNAL], 0)
    distance = {centre: np.linalg.norm(mean[centre] - middle) for centre in mean}
    assert min(distance[c] for c in EXTERNAL) > 2 * max(distance[c] for c in INTERNAL)
    assert min(np.linalg.norm(mean[a] - mean[b]) for a in mean for b in range(a)) > 5


@pytest.mark.parametrize("stain", CENTRES)
def test_a_shift_of_1_is_the_stain_itself(stain: Stain) -> None:
    assert stain.away(1) == stain


@pytest.mark.parametrize("stain", CENTRES)
def test_a_shift_multiplies_the_distance_to_centre_0(stain: Stain) -> None:
    first, far = CENTRES[0], stain.away(1.5)
    for name in ("haematoxylin", "eosin", "strength", "gamma"):
        start, usual, shifted = (np.asarray(getattr(s, name)) for s in (first, stain, far))
        np.testing.assert_allclose(shifted - start, 1.5 * (usual - start), rtol=1e-12, atol=1e-12)
    assert (far.blur, far.noise) == (stain.blur, stain.noise)


def test_without_a_shift_all_centres_have_the_colours_of_centre_0() -> None:
    for stain in CENTRES:
        plain = stain.away(0)
        for name in ("haematoxylin", "eosin", "strength", "gamma"):
            np.testing.assert_allclose(getattr(plain, name), getattr(CENTRES[0], name), rtol=1e-12)
