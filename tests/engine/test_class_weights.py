"""Weights of classes in the loss: by hand, from training labels alone, and where they would have no effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_optimisers import Linear, gradient, samples
from toy import CLASSES, Noted, clients, differing, gap, network

from fedshift import Federation, Training, UserError
from fedshift.addons import Addon
from fedshift.core.registry import build, discover, validated
from fedshift.engine.client import balanced

SETTINGS: dict[str, Any] = {"rounds": 2, "batch_size": 4, "lr": 0.1, "select": "last"}
FULL: dict[str, Any] = {"rounds": 1, "batch_size": 64, "lr": 0.5, "select": "last"}


def weights(algorithm: str = "fedavg", **options: Any) -> dict[str, list[float]]:
    """The weights of the clients a, of ten images of class 0 and two of class 1, and b, of four of class 1."""
    data = {"a": [0] * 10 + [1] * 2, "b": [1] * 4}
    given = {name: (torch.zeros(len(y), 2, 6, 6).double(), torch.tensor(y)) for name, y in data.items()}
    training = {**SETTINGS, "class_weights": "balanced", **options}
    trained = Federation(network(), given, validation={"a": given["b"]}, algorithm=algorithm, training=training)
    return {client.name: client.class_weights.tolist() for client in trained.clients}  # type: ignore[union-attr]


def test_balanced_is_over_all_training_images_of_the_federation() -> None:
    """16 images, 10 and 6 of two classes: 16 / 20 and 16 / 12. Validation images and absent clients change nothing."""
    expected = pytest.approx([16 / 20, 16 / 12], rel=1e-15)
    assert weights() == {"a": expected, "b": expected}
    assert weights(participation=0.5) == {"a": expected, "b": expected}
    assert weights("pooled") == {"pooled": expected}


def test_a_client_that_trains_alone_counts_its_own() -> None:
    assert weights("local") == {"a": pytest.approx([12 / 20, 12 / 4]), "b": [0, 1]}


def test_balanced_is_scikit_learns() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    for counts in ([3, 5, 9], [1, 1, 7], [4, 0, 2]):
        y = np.repeat(np.arange(3), counts)
        expected = np.zeros(3)
        expected[np.unique(y)] = compute_class_weight("balanced", classes=np.unique(y), y=y)
        np.testing.assert_allclose(balanced(np.array([counts]))[0], expected, rtol=1e-15)


def test_a_step_follows_the_weighted_sum_over_the_number_of_images() -> None:
    data = samples()
    x, y, start = data.x.numpy()[:, 0], data.y.numpy(), np.array([0.3, -0.2])
    trained = Federation(Linear(), {"a": data}, training={**FULL, "class_weights": [0.5, 3.0]}).run()
    sums = [w * (y == c).sum() * gradient(start, x[y == c], y[y == c]) for c, w in ((0, 0.5), (1, 3.0))]
    expected = start - 0.5 * (sums[0] + sums[1]) / len(y)
    np.testing.assert_allclose(trained.global_state()["theta"], expected, rtol=1e-12)


def test_clients_of_one_class_each_take_the_step_of_the_balanced_union() -> None:
    """One step on all images, with weights by size: the federation is the union, which a mean by weights is not."""
    data = samples()
    parts = {str(c): (data.x[data.y == c], data.y[data.y == c]) for c in (0, 1)}
    training = {**FULL, "class_weights": "balanced"}
    apart = Federation(Linear(), parts, training=training).run().global_state()
    union = Federation(Linear(), {"all": data}, training=training).run().global_state()
    plain = Federation(Linear(), {"all": data}, training=FULL).run().global_state()
    assert gap(apart, union) < 1e-12
    assert gap(union, plain) > 1e-3


def test_weights_of_one_are_none_and_validation_is_not_weighed() -> None:
    data = clients()
    runs = [
        Federation(network(), data, validation=data, training={**SETTINGS, "class_weights": w}).run()
        for w in (None, [1.0] * CLASSES, [1.0, 2.0, 3.0])
    ]
    assert gap(runs[1].global_state(), runs[0].global_state()) < 1e-12
    assert gap(runs[2].global_state(), runs[0].global_state()) > 1e-4
    before = [Federation(network(), data, training={**SETTINGS, "class_weights": w}) for w in (None, [5.0] * CLASSES)]
    logged = [one.run(1).history[0]["loss"] for one in before]
    assert logged[1] < 5 * logged[0] / 2, "the logged loss has no weights"


@pytest.mark.parametrize("name", discover("addon"))
def test_every_add_on_weighs_classes_or_refuses_to(name: str) -> None:
    addon = build("addon", name)
    options: dict[str, Any] = {"addon": addon, "training": {**SETTINGS, "class_weights": [1.0, 1.0, 9.0]}}
    if not addon.weighs_classes:
        with pytest.raises(UserError, match=rf"training\.class_weights: have no effect with the add-on {name}"):
            Federation(network(), clients(), **options)
        return
    weighed = Federation(network(), clients(), **options).run()
    plain = Federation(network(), clients(), addon=addon, training=SETTINGS).run()
    assert differing(weighed.global_state(), plain.global_state())


def test_an_add_on_that_does_not_say_that_it_weighs_classes_does_not() -> None:
    assert Addon.weighs_classes is False


@pytest.mark.parametrize("algorithm", ["fedtan", "moon", "perfedavg"])
def test_algorithms_with_steps_of_their_own_weigh_classes(algorithm: str) -> None:
    plain, weighed = (
        Federation(network(), clients(), algorithm=algorithm, training={**SETTINGS, "class_weights": w}).run()
        for w in (None, [1.0, 1.0, 9.0])
    )
    assert differing(plain.global_state(), weighed.global_state())


def test_personal_heads_weigh_classes_too() -> None:
    """Twice the weight of each class is twice the rate, for both heads of FedRoD; other weights are other heads."""
    heads = []
    for w, lr in ((None, 0.1), ([2.0] * CLASSES, 0.05), ([1.0, 1.0, 9.0], 0.1)):
        training = {**SETTINGS, "lr": lr, "class_weights": w}
        trained = Federation(network(), clients(), algorithm="fedrod", training=training).run(1)
        heads.append({client.name: client.state["head"] for client in trained.clients})
    assert gap(heads[1], heads[0]) < 1e-12
    assert gap(heads[2], heads[0]) > 1e-3


def test_a_list_has_a_weight_for_each_class() -> None:
    data = Noted(*clients()["a"])
    with pytest.raises(UserError, match="has 2 weights, and there is a label 2; give one weight for each class"):
        Federation(network(), {"a": data}, training={**SETTINGS, "class_weights": [1.0, 2.0]})
    with pytest.raises(UserError, match="has 2 weights, and there are 3 classes"):
        Training(class_weights=(1.0, 2.0)).require_classes(3)
    Training(class_weights="balanced").require_classes(3)
    for wrong in ("balancd", [1, 0], [1, "a"], 3, [], [True, False]):
        with pytest.raises(
            UserError, match=r"^training\.class_weights: is .*; give balanced, or a list with"
        ) as caught:
            validated(Training, {"class_weights": wrong}, "training")
        assert "\n" not in str(caught.value)


def test_studies_without_weights_keep_their_ids() -> None:
    assert "class_weights" not in Training().identity()
    assert Training(class_weights="balanced").identity()["class_weights"] == "balanced"
    assert Training(class_weights=(1, 2)).identity()["class_weights"] == [1, 2]
