"""HarmoFL and amplitude interpolation: spectra by NumPy, limits, what clients exchange, and what acts at test time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy import Noted, clients, differing, gap, network

from fedshift import Federation, UserError
from fedshift.addons import extended
from fedshift.addons._spectrum import amplitudes, exchanged
from fedshift.addons.amplitude import Amplitude
from fedshift.addons.harmofl import HarmoFL
from fedshift.core.rng import keyed

SETTINGS: dict[str, Any] = {"rounds": 3, "batch_size": 4, "lr": 0.02, "select": "last"}
SIZES = [(8, 8), (7, 9), (9, 6)]


def images(shape: tuple[int, int] = (8, 8), n: int = 3, seed: int = 0) -> Tensor:
    """Images from 0 to 1."""
    return torch.from_numpy(np.random.default_rng(seed).random((n, 2, *shape)))


def positive() -> dict[str, Noted]:
    """Clients whose images are not negative, and of different brightness."""
    given = enumerate(clients().items())
    return {name: Noted((x - x.min()) / (x.max() - x.min()) + 0.1 * k, y) for k, (name, (x, y)) in given}


def federation(addon: Any, data: Any = None, **options: Any) -> Federation:
    return Federation(network(), data or positive(), addon=addon, **{"training": SETTINGS, **options})


# ---- spectra


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("half_width", [0, 1, 2])
def test_the_window_is_numpys_and_own_amplitudes_change_nothing(shape: tuple[int, int], half_width: int) -> None:
    x, y = images(shape), images(shape, seed=1)
    k = np.arange(-half_width, half_width + 1)
    spectrum = np.fft.fft2(x.numpy())
    window = (..., k[:, None] % shape[0], k[None, :] % shape[1])
    np.testing.assert_allclose(amplitudes(x, half_width), np.abs(spectrum[window]), rtol=1e-12)
    np.testing.assert_allclose(exchanged(x, amplitudes(x, half_width), half_width), x, atol=1e-12)
    swapped = spectrum.copy()
    swapped[window] = np.abs(np.fft.fft2(y.numpy())[window]) * np.exp(1j * np.angle(spectrum[window]))
    expected = np.fft.ifft2(swapped)
    assert np.abs(expected.imag).max() < 1e-12
    out = exchanged(x, amplitudes(y, half_width), half_width)
    np.testing.assert_allclose(out, expected.real, atol=1e-12)
    assert float((out - x).abs().max()) > 1e-3
    np.testing.assert_allclose(exchanged(out, amplitudes(y, half_width), half_width), out, atol=1e-12)


def test_the_lowest_frequency_is_a_shift_of_the_mean() -> None:
    x, y = images(), images(seed=1)
    expected = x - x.mean((2, 3), keepdim=True) + y.mean((2, 3), keepdim=True)
    np.testing.assert_allclose(exchanged(x, amplitudes(y, 0), 0), expected, atol=1e-12)
    flat = torch.full((1, 2, 8, 8), 0.5, dtype=torch.float64)
    out = exchanged(flat, amplitudes(y[:1], 0), 0)
    assert float((out - out[..., :1, :1]).abs().max()) < 1e-12, "a constant image stays constant"


def test_vectors_and_small_images_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="the network's inputs are not images") as caught:
        Amplitude().offer(Noted(images()[:, :, 0], torch.zeros(3).long()))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="frequencies up to 3 are more than images of 6 x 6 have"):
        federation({"name": "harmofl", "half_width": 3}).run(1)
    with pytest.raises(UserError, match="the network takes no images"):
        extended(HarmoFL(), torch.nn.Linear(2, 2), 0)


# ---- HarmoFL


def test_clients_learn_their_amplitudes_in_round_1_and_share_them_afterwards() -> None:
    data = positive()
    trained = federation("harmofl", data, training={**SETTINGS, "weights": "uniform"}).run(1)
    own = []
    for samples in data.values():
        mean = np.zeros(2)
        for step, index in enumerate(samples.taken):
            batch = samples.x[index].sum((2, 3)).mean(0).numpy()
            mean = batch if step == 0 else 0.9 * mean + 0.1 * batch
        own.append(mean)
    state = trained.global_state()["harmofl_amplitude"]
    np.testing.assert_allclose(state.flatten(), np.mean(own, 0), rtol=1e-12)
    assert np.ptp(own, axis=0).min() > 0.1
    assert torch.equal(trained.run().global_state()["harmofl_amplitude"], state), "they are fixed"
    assert trained.history[0]["floats_up"] == federation(None).run(1).history[0]["floats_up"] + 2


def test_the_trained_network_harmonises_at_test_time() -> None:
    """It is the plain network on harmonised images, whose mean no longer matters."""
    trained = federation("harmofl").run()
    state, x = trained.global_state(), positive()["b"].x
    model, plain = extended(HarmoFL(), network(), 0).eval(), network().eval()
    model.load_state_dict(state)
    plain.load_state_dict({k: v for k, v in state.items() if k != "harmofl_amplitude"})
    shifted = x - x.mean((2, 3), keepdim=True) + state["harmofl_amplitude"].flatten()[:, None, None] / 36
    np.testing.assert_allclose(model(x).detach(), plain(shifted).detach(), rtol=1e-9)
    np.testing.assert_allclose(model(x + 0.3).detach(), model(x).detach(), rtol=1e-9)
    assert gap({"": plain(x).detach()}, {"": plain(shifted).detach()}) > 1e-4


def test_clients_with_statistics_at_home_keep_their_amplitudes() -> None:
    trained = federation("harmofl", bn="local", training={**SETTINGS, "participation": 0.6, "rounds": 6}).run()
    states = [trained.client_state(name)["harmofl_amplitude"] for name in "abc"]
    assert all(state.all() for state in states), "a client that begins later learns its own"
    assert len({tuple(state.flatten().tolist()) for state in states}) == 3


# ---- amplitude interpolation


def test_without_foreign_amplitudes_both_losses_are_equal() -> None:
    """With mix 0 the changed images are the images: twice the loss of FedAvg, up to the second move of statistics."""
    none, doubled, real = (
        federation(addon, training={**SETTINGS, "lr": lr}).run()
        for addon, lr in (
            (None, 0.02),
            ({"name": "amplitude", "mix": 0}, 0.01),
            ({"name": "amplitude", "mix": 1}, 0.01),
        )
    )
    names = [name for name, _ in network().named_parameters()]
    states = [{k: one.global_state()[k] for k in names} for one in (none, doubled, real)]
    assert gap(states[1], states[0]) < 1e-12
    assert gap(states[2], states[0]) > 1e-4
    off = federation({"name": "amplitude", "weight": 0}).run()
    assert not differing(off.global_state(), none.global_state())


def test_images_lean_towards_those_of_other_clients_by_hand() -> None:
    """Each image of a takes amplitudes of a stored image of b or c, of none of its own, and keeps its phases."""
    addon = Amplitude(fraction=0.2, mix=1, bank=5)
    banks = {name: addon.offer(Noted(images(n=7, seed=k), torch.zeros(7).long())) for k, name in enumerate("abc")}
    assert all(bank["amplitudes"].shape == (5, 2, 3, 3) for bank in banks.values())
    x = images(n=40, seed=9)
    local: Any = SimpleNamespace(client="a", offers=banks)
    with keyed(2):
        out = addon._changed(local, x)
    chosen = []
    for image, changed in zip(x, out, strict=True):
        candidates = {
            (name, k): exchanged(image[None], banks[name]["amplitudes"][k], 1)[0].clamp(x.min(), x.max())
            for name in "abc"
            for k in range(5)
        }
        (taken,) = [key for key, value in candidates.items() if float((value - changed).abs().max()) < 1e-12]
        chosen.append(taken)
    assert {name for name, _ in chosen} == {"b", "c"}
    assert len(set(chosen)) > 6
    assert float(out.min()) >= float(x.min())
    assert float(out.max()) <= float(x.max())


def test_amplitudes_are_interpolated_linearly() -> None:
    x, addon = images(n=1), Amplitude(fraction=0.2, mix=0.25)
    offers = {"b": {"amplitudes": amplitudes(images(n=1, seed=1), 1)}}
    wide: Any = SimpleNamespace(client="a", offers=offers)
    bounds = torch.tensor([-9.0, 9.0]).double().repeat(64).view(1, 2, 8, 8)  # a wide range, so that nothing is clipped
    low = addon._changed(wide, torch.cat([x, bounds]))
    expected = 0.75 * amplitudes(x, 1) + 0.25 * offers["b"]["amplitudes"]
    np.testing.assert_allclose(amplitudes(low[:1], 1), expected, rtol=1e-12)


def test_who_gets_whose_amplitudes() -> None:
    """In a federation all clients get all; one that trains alone, its own; images are spread evenly over a client's."""
    heard = {c.name: set(c.offers) for c in federation("amplitude").clients}
    assert heard == {name: {"a", "b", "c"} for name in "abc"}
    alone = {c.name: set(c.offers) for c in federation("amplitude", algorithm="local").clients}
    assert alone == {name: {name} for name in "abc"}
    data = positive()
    offers = federation({"name": "amplitude", "bank": 3}, data).clients[0].offers
    x = data["b"].x[[0, 10, 21]]  # 10.5 is rounded to the even number
    np.testing.assert_allclose(offers["b"]["amplitudes"], amplitudes(x, 0), rtol=1e-12)
