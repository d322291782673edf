"""Correlations in sliding windows against NumPy's own, and results that threads share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedshift.datasets.abide import connectivity, recent, scales


def by_numpy(window: np.ndarray, clip: bool = True) -> np.ndarray:
    """Fisher's z of the correlations of a window (frames, regions), pair by pair in the order (0, 1), (0, 2), ..."""
    r = np.corrcoef(window.T)
    z = np.arctanh(np.array([r[a, b] for a in range(len(r)) for b in range(a + 1, len(r))]))
    return np.maximum(z, 0) if clip else z


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize(("frames", "window"), [(40, 32), (32, 32), (12, 5)])
def test_windows_are_numpys_correlations(frames: int, window: int, clip: bool) -> None:
    series = np.random.default_rng(0).normal(5, 100, (frames, 6)).cumsum(axis=0)
    found = connectivity(series, window, clip)
    assert (found.shape, found.dtype) == ((frames - window + 1, 15), np.float32)
    expected = [by_numpy(series[start : start + window], clip) for start in range(frames - window + 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert (found < 0).any() != clip


def test_a_constant_region_correlates_with_nothing() -> None:
    """0.1 is no binary number: the mean of 32 of them may be another."""
    series = np.random.default_rng(0).normal(size=(40, 4))
    series[:, 2] = 0.1
    series[:36, 3] = 0  # in some windows
    found = connectivity(series, 32, clip=False)
    pairs = {pair: found[:, k] for k, pair in enumerate(zip(*np.triu_indices(4, 1), strict=True))}
    for other in (0, 1, 3):
        assert (pairs[tuple(sorted((other, 2)))] == 0).all()
    assert [bool(v) for v in pairs[0, 3]] == [False] * 5 + [True] * 4
    np.testing.assert_allclose(pairs[0, 1][0], by_numpy(series[:32, :2], clip=False)[0], rtol=1e-5)


def test_regions_that_are_the_same_or_opposite_stay_finite() -> None:
    one = np.random.default_rng(0).normal(size=(32, 1))
    (found,) = connectivity(np.hstack([one, 3 * one + 1, -one]), 32, clip=False)
    limit = np.arctanh(1 - 1e-7)
    np.testing.assert_allclose(found, [limit, -limit, -limit], rtol=1e-3)


def test_sites_have_the_mean_and_deviation_of_all_their_vectors() -> None:
    rng = np.random.default_rng(0)
    given = [rng.normal(k, 1 + k, (n, 3)).astype(np.float32) for k, n in enumerate((5, 9, 4, 7))]
    given[3][:, 1] = given[1][:, 1] = 2.0  # constant at site b
    sites = np.array(["a", "b", "a", "b"])
    found = scales(sites, lambda k: given[k])
    for site, parts in (("a", [0, 2]), ("b", [1, 3])):
        x = np.concatenate([given[k] for k in parts]).astype(np.float64)
        np.testing.assert_allclose(found[site][0], x.mean(0), rtol=1e-10)
        np.testing.assert_allclose(found[site][1], np.where(x.std(0) > 0, x.std(0), 1), rtol=1e-10)
    assert found["b"][1][1] == 1


def test_recent_results_are_made_once_and_few_are_kept() -> None:
    made: list[int] = []

    def make(k: int) -> np.ndarray:
        made.append(k)
        return np.full(2, k)

    cached = recent(make, size=2)
    assert [int(cached(k)[0]) for k in (0, 1, 0, 2, 0, 1)] == [0, 1, 0, 2, 0, 1]
    assert made == [0, 1, 2, 1], "1 was the oldest when 2 came"


def test_threads_that_ask_for_the_same_wait_for_one() -> None:
    made, together = [], threading.Barrier(4)

    def make(k: int) -> np.ndarray:
        made.append(k)
        return np.full(1, k)

    cached = recent(make)

    def ask(_: int) -> int:
        together.wait()
        return int(cached(7)[0])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [7] * 4
    assert made == [7]
