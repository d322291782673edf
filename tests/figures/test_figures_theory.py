"""The toy example, the corollary and the convergence rates of FedBN, against algebra."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.figures import convergence_rates as rates
from fedshift.figures import ntk, toy
from fedshift.figures.convergence_rates import ConvergenceRates


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


def test_inputs_have_mean_zero() -> None:
    """Draw n has 2 + n % 4 clients of 4 samples; their scales are at most 2, which bounds the error of a mean."""
    for k in range(4):
        x = np.concatenate([ntk.sample(n)[0] for n in range(k, 800, 4)])
        assert np.abs(x.mean(axis=0)).max() < 4 * 2 / len(x) ** 0.5


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


# ---- convergence rates


def two_at_right_angles(width: int = 1) -> rates.Problem:
    """Two clients with a sample each, of inputs (1, 0) and (0, 1) and target 0; every v is (3, 4), and every c is 1."""
    v = np.tile([3.0, 4.0], (width, 1))
    return rates.Problem(np.eye(2), np.array([0, 1]), np.zeros(2), v, np.ones(width))


@pytest.mark.parametrize("local", [False, True])
def test_network_and_gradients_by_hand(local: bool) -> None:
    """z = (3, 4) / 5 and gamma = 5 / alpha = 1 / 2, so f = (0.3, 0.4).

    With targets 0: d/dgamma = f z, by client if local. d/dv of z_1 is (1, 0) / 5 - 0.6 (3, 4) / 25 = (0.128, -0.096),
    and of z_2 (0, 1) / 5 - 0.8 (3, 4) / 25 = (-0.096, 0.072); both times gamma f.
    """
    problem = two_at_right_angles()
    v, gamma = rates.start(problem, local)
    assert gamma == pytest.approx(np.full((1, 2 if local else 1), 5 / rates.ALPHA))
    f, z, _ = rates.output(problem, v, gamma)
    assert f == pytest.approx([0.3, 0.4])
    assert z[0] == pytest.approx([0.6, 0.8])
    by_v, by_gamma, loss = rates.gradients(problem, v, gamma)
    assert loss == pytest.approx(0.25)
    assert by_gamma[0] == pytest.approx([0.3 * 0.6, 0.4 * 0.8] if local else [0.3 * 0.6 + 0.4 * 0.8])
    by_hand = 0.5 * (0.3 * np.array([0.128, -0.096]) + 0.4 * np.array([-0.096, 0.072]))
    assert by_v[0] == pytest.approx(by_hand)


@pytest.mark.parametrize("local", [False, True])
def test_evolution_matrix_by_hand(local: bool) -> None:
    """G = z z^T, without its cross terms if local; V / alpha^2 = gamma^2 (gradients of z) (gradients of z)^T."""
    problem = two_at_right_angles()
    slopes = np.array([[0.128, -0.096], [-0.096, 0.072]])
    g = np.array([[0.36, 0.0 if local else 0.48], [0.0 if local else 0.48, 0.64]])
    assert rates.evolution(problem, *rates.start(problem, local)) == pytest.approx(0.25 * slopes @ slopes.T + g)


@pytest.mark.parametrize("local", [False, True])
def test_evolution_matrix_is_the_product_of_numerical_gradients(local: bool) -> None:
    problem = rates.federation(1, 7)
    v, gamma = rates.start(problem, local)
    columns = []
    for array in (v, gamma):
        for place in np.ndindex(array.shape):
            ends = []
            for step in (1e-6, -1e-6):
                array[place] += step
                ends.append(rates.output(problem, v, gamma)[0])
                array[place] -= step
            columns.append((ends[0] - ends[1]) / 2e-6)
    jacobian = np.stack(columns, axis=1)
    assert rates.evolution(problem, v, gamma) == pytest.approx(jacobian @ jacobian.T, abs=1e-7)
    error = rates.output(problem, v, gamma)[0] - problem.targets
    found = np.concatenate([g.ravel() for g in rates.gradients(problem, v, gamma)[:2]])
    assert found == pytest.approx(jacobian.T @ error, abs=1e-6)


@pytest.mark.parametrize("local", [False, True])
def test_smallest_eigenvalue_of_the_infinitely_wide_network_by_hand(local: bool) -> None:
    """At right angles in two dimensions: 1/4 on the diagonal, 1/(4 pi) beside it, which FedBN's matrix leaves out."""
    wanted = 0.25 if local else 0.25 - 1 / (4 * np.pi)
    assert rates.limit(two_at_right_angles(), local) == pytest.approx(wanted)


@pytest.mark.parametrize("local", [False, True])
def test_a_wide_network_is_near_the_limit(local: bool) -> None:
    """Without V, whose part is 1 / alpha^2: G(0) of 200,000 units, each product below |x_p| |x_q|."""
    problem = rates.federation(0, 200_000)
    _, z, _ = rates.output(problem, *rates.start(problem, local))
    g = np.maximum(z, 0).T @ np.maximum(z, 0) / len(z)
    if local:
        g = ntk.within_clients(g, problem.client)
    largest = (problem.inputs**2).sum(axis=1).max()
    assert np.linalg.eigvalsh(g)[0] == pytest.approx(rates.limit(problem, local), abs=4 * largest / 200_000**0.5)


@pytest.mark.parametrize("local", [False, True])
def test_a_step_of_descent_is_that_of_the_linearised_network(local: bool) -> None:
    """f(1) - y = (I - eta Lambda(0)) (f(0) - y) up to the square of the step: an eighth of it leaves a 64th."""
    problem = rates.federation(2, 400)
    v, gamma = rates.start(problem, local)
    error = rates.output(problem, v, gamma)[0] - problem.targets
    by_v, by_gamma, _ = rates.gradients(problem, v, gamma)
    left = []
    for rate in (0.08, 0.01):
        after = rates.output(problem, v - rate * by_v, gamma - rate * by_gamma)[0] - problem.targets
        left.append(np.abs(after - error + rate * rates.evolution(problem, v, gamma) @ error).max())
    assert left[1] < 1.3 * left[0] / 64


def test_the_bound_is_the_theorems_and_the_caption_counts() -> None:
    from invented import made

    way = rates.Descent(limit=0.5, rate=0.4, loss=np.array([8.0, 7.0, 6.0]), least=np.ones(3))
    assert way.bound == pytest.approx([8.0, 8.0 * 0.9, 8.0 * 0.81])
    figure = ConvergenceRates(draws=3, width=200, steps=40)
    pairs = [rates.descents(n, 200, 40) for n in range(3)]
    for averaged, local in pairs:
        assert averaged.rate == local.rate
        assert averaged.loss[0] == local.loss[0], "both start as the same network"
        assert averaged.limit <= local.limit, "corollary 4.6"
    lower = sum(local.loss[-1] < averaged.loss[-1] for averaged, local in pairs)
    assert f"lower after 40 steps in {lower} of 3 federations" in figure.caption(made())
