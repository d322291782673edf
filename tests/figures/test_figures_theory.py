"""The toy example and the corollary of FedBN, against algebra."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.figures import ntk, toy


def expected(w: float, s: float, slope: float) -> float:
    """E (cos(w x) - cos(slope x) - noise)^2 over x ~ N(0, s^2), since E cos(t x) = exp(-t^2 s^2 / 2)."""

    def mean_cos(t: float) -> float:
        return float(np.exp(-((t * s) ** 2) / 2))

    squares = (1 + mean_cos(2 * w)) / 2 + (1 + mean_cos(2 * slope)) / 2
    return squares - mean_cos(w - slope) - mean_cos(w + slope) + toy.NOISE**2


@pytest.mark.parametrize("k", [0, 1])
@pytest.mark.parametrize("w", [0.001, 1.0, 2.0, 4.0, 6.0, 12.0])
def test_error_is_near_its_expectation(k: int, w: float) -> None:
    s = toy.STDS[k]
    x, y = toy.client(k)
    standard_error = ((np.cos(w * x) - y) ** 2).std() / toy.SAMPLES**0.5
    assert toy.error(w, 1.0, x, y)[0] == pytest.approx(expected(w, s, toy.W_TRUE / s), abs=4 * standard_error)


@pytest.mark.parametrize("k", [0, 1])
def test_the_best_weight_is_the_true_one(k: int) -> None:
    x, y = toy.client(k)
    w = np.linspace(*toy.WEIGHTS, 2401)
    s = toy.STDS[k]
    assert w[toy.error(w, 1.0, x, y).argmin()] == pytest.approx(toy.W_TRUE / s, rel=0.03)
    assert w[toy.error(w, s, x, y).argmin()] == pytest.approx(toy.W_TRUE, rel=0.03)
    assert toy.error(toy.W_TRUE, s, x, y)[0] == pytest.approx(toy.NOISE**2, rel=0.2)


def test_averaging_the_scale_too_is_worse() -> None:
    clients = [toy.client(k) for k in range(2)]
    for of, (own, both) in zip(clients, toy.averaged(clients), strict=True):
        assert own[0] == both[0] == pytest.approx(toy.W_TRUE, rel=0.02)
        assert own[1] == pytest.approx(of[0].std())
        assert both[1] == pytest.approx(np.mean(toy.STDS), rel=0.05)
        assert toy.error(*own, *of)[0] < 0.05 < 0.5 < toy.error(*both, *of)[0]


def test_why_labels_depend_on_the_normalised_feature() -> None:
    """Were they cos(w_true x) of the client's own x, averaging both would be exact, against the paper's claim."""
    best = [toy.W_TRUE * s for s in toy.STDS]  # with gamma = s
    w, gamma = np.mean(best), np.mean(toy.STDS)
    for s in toy.STDS:
        assert expected(w / gamma, s, toy.W_TRUE) == pytest.approx(toy.NOISE**2)
        assert expected(w / s, s, toy.W_TRUE) > 0.5


def test_gram_is_the_expectation_over_random_weights() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3))
    active = np.maximum(np.random.default_rng(1).standard_normal((400_000, 3)) @ x.T, 0)
    assert ntk.gram(x) == pytest.approx(active.T @ active / len(active), abs=0.03)


def test_gram_of_known_angles() -> None:
    """E relu(v.x)^2 = |x|^2 / 2; at right angles 1 / (2 pi); of opposites nothing."""
    x = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [3.0, 0.0]])
    right = 1 / (2 * np.pi)
    wanted = [[0.5, right, 0, 1.5], [right, 0.5, right, 3 * right], [0, right, 0.5, 0], [1.5, 3 * right, 0, 4.5]]
    assert ntk.gram(x) == pytest.approx(np.array(wanted), abs=1e-12)


def test_smallest_eigenvalues_by_hand() -> None:
    """Two samples at right angles: 1/2 -+ 1/(2 pi) together, and 1/2 each at a client of its own."""
    x = np.eye(2)
    assert ntk.eigenvalues(x, np.array([0, 1])) == pytest.approx((0.5 - 1 / (2 * np.pi), 0.5))
    assert ntk.eigenvalues(x, np.array([0, 0])) == pytest.approx((0.5 - 1 / (2 * np.pi),) * 2)


def test_interlacing() -> None:
    """Blocks are principal submatrices: none of their eigenvalues is below the whole's smallest."""
    for n in range(200):
        x, client = ntk.sample(n)
        whole, blocks = ntk.eigenvalues(x, client)
        own = min(np.linalg.eigvalsh(ntk.gram(x[client == c]))[0] for c in set(client))
        assert blocks == pytest.approx(own)
        assert ntk.holds(whole, blocks)
        assert 0 < whole < blocks


def test_what_the_caption_says_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from invented import made

    assert "in all of 50 draws" in ntk.NTK().caption(made())
    monkeypatch.setattr(ntk, "eigenvalues", lambda x, client: (1.0, 0.5 if len(x) == 8 else 1.0))
    assert "in 3 of 4 draws" in ntk.NTK(draws=4).caption(made()), "two clients of four samples are the first draw"


def test_toy_tells_its_constants_and_errors() -> None:
    from invented import made

    words = toy.Toy().caption(made())
    assert "s = 0.5 and 1.5" in words
    assert "cos(3 x / s)" in words
    clients = [toy.client(k) for k in range(2)]
    for of, (own, both) in zip(clients, toy.averaged(clients), strict=True):
        for spot in (own, both):
            assert f"{toy.error(*spot, *of)[0]:.2f}" in words
