"""The engine against FedAvg in plain PyTorch, float64, and its promises: selection, resume, randomness, errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import plain
import pytest
import squares
import torch
import toy
from torch import Tensor, nn
from toy import SIZES, TRAVELS, Noted, clients, differing, gap, network, states

from fedshift import Federation, Training, UserError
from fedshift.algorithms import Algorithm, Local
from fedshift.core.errors import Interrupted
from fedshift.data.samples import batch_indices
from fedshift.io.arrays import read_tensors, write_tensors

SETTINGS = Training(rounds=3, local_epochs=2, batch_size=4, lr=0.05)
MOMENTUM = SETTINGS.model_copy(update={"momentum": 0.9, "weight_decay": 0.01})


def federation(model: nn.Module | None = None, data: dict[str, Any] | None = None, **options: Any) -> Federation:
    return Federation(model or network(), data or clients(), **{"training": SETTINGS, **options})


def floats(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v for k, v in state.items() if v.is_floating_point()}


def images(kind: type = np.float32, shape: tuple[int, ...] = (3, 8, 8), n: int = 6) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).integers(0, 255, (n, *shape)).astype(kind), np.arange(n) % 2


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (images(np.uint8), "type uint8 do not fit the network"),
        (images(shape=(8, 8, 3)), "put the channels first"),
        (images(shape=(1, 8, 8)), "give all sites the channels that the network takes"),
        (torch.utils.data.TensorDataset(torch.zeros(4, 3, 8, 8), torch.zeros(4)), "is a TensorDataset, from which"),
        ((*images(), images()[1]), "is a tuple, from which"),
        ((np.array(["a", "b"]), np.array([0, 1])), "cannot become tensors"),
    ],
    ids=["uint8", "channels last", "grey", "Dataset", "three", "texts"],
)
def test_inputs_that_the_network_does_not_take_name_the_client(given: Any, words: str) -> None:
    with pytest.raises(UserError) as error:
        Federation(convolution(), {"a": images(), "b": given}, training={"batch_size": 3})
    assert str(error.value).startswith("client 'b': ") and words in str(error.value)


def test_one_vector_at_a_site_with_batch_norm_names_the_client() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    data = {"a": (torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)), "b": (torch.rand(6, 4), torch.arange(6) % 2)}
    with pytest.raises(UserError, match="client 'a': has one sample, and batch norm cannot train on"):
        Federation(net, data)


def test_floats_of_numpy_train_as_those_of_the_network() -> None:
    trained = [
        Federation(convolution_of(0), {"a": images(kind), "b": images(kind)}, training={"batch_size": 3}).run(rounds=1)
        for kind in (np.float64, np.float32)
    ]
    one, other = (made.global_state() for made in trained)
    assert all(torch.equal(one[name], other[name]) for name in one)


def convolution_of(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return convolution()


# ---- against plain PyTorch


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("bn", TRAVELS)
def test_rounds_as_in_plain_pytorch(bn: str, weights: str, rounds: int) -> None:
    training = SETTINGS.model_copy(update={"weights": weights})
    noted = {name: Noted(*given) for name, given in clients().items()}
    got = federation(data=noted, bn=bn, training=training).run(rounds)
    taken = {name: samples.taken for name, samples in noted.items()}
    mean, nets, losses = plain.fedavg(network(), clients(), training, bn, rounds, taken)
    assert gap({k: got.global_state()[k] for k in mean}, mean) < 1e-12
    for name, state in nets.items():
        assert gap(got.client_state(name), state) < 1e-12
    history = {(r["round"], r["site"]): r["loss"] for r in got.history}
    assert history == {
        (n, name): pytest.approx(loss, rel=1e-12) for n, row in enumerate(losses, 1) for name, loss in row.items()
    }


def test_unequal_clients_make_the_two_weightings_differ() -> None:
    one, two = (
        federation(training=SETTINGS.model_copy(update={"weights": w})).run(1).global_state()
        for w in ("size", "uniform")
    )
    assert gap(one, two) > 1e-3


@pytest.mark.parametrize("training", [SETTINGS, MOMENTUM], ids=["sgd", "momentum and weight decay"])
def test_local_steps_are_those_of_torch_optim_sgd(training: Training) -> None:
    """A round of one client is its local work alone: a new optimiser for each round, nothing else."""
    noted = Noted(*clients()["b"])
    got = federation(data={"b": noted}, training=training).run()
    last = {"memory_format": torch.channels_last}  # as the engine holds images; another format adds in another order
    model, x, batches = network().to(**last), noted.x.contiguous(**last), iter(noted.taken)
    for _ in range(training.rounds):
        plain.local_epochs(model, x, noted.y, training, batches)
    assert not differing(got.global_state(), model.state_dict()), "the same bits"
    assert not differing(got.client_state("b"), model.state_dict())


def test_a_cosine_schedule_is_torchs() -> None:
    training = MOMENTUM.model_copy(update={"schedule": "cosine"})
    noted = Noted(*clients()["b"])
    got = federation(data={"b": noted}, training=training).run()
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=training.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=training.rounds)
    model, batches = network(), iter(noted.taken)
    for _ in range(training.rounds):
        now = training.model_copy(update={"lr": schedule.get_last_lr()[0]})
        plain.local_epochs(model, noted.x, noted.y, now, batches)
        optimiser.step()
        schedule.step()
    assert gap(got.global_state(), model.state_dict()) < 1e-12
    assert training.rate(1) == training.lr


def test_momentum_starts_at_zero_each_round() -> None:
    """Two rounds of one epoch are not one round of two epochs, unless there is no momentum to lose."""
    x, y = clients({"a": 8})["a"]

    def trained(rounds: int, epochs: int, momentum: float) -> dict[str, Tensor]:
        training = Training(rounds=rounds, local_epochs=epochs, batch_size=8, lr=0.05, momentum=momentum)
        return federation(data={"a": (x, y)}, training=training).run().global_state()

    assert gap(trained(2, 1, 0.0), trained(1, 2, 0.0)) < 1e-12
    assert gap(trained(2, 1, 0.9), trained(1, 2, 0.9)) > 1e-3


def test_channels_last_changes_no_number() -> None:
    last, first = (federation(training=SETTINGS.model_copy(update={"channels_last": k})).run() for k in (True, False))
    assert gap(states(last), states(first)) < 1e-11


def test_channels_are_last_by_default() -> None:
    """The networks of the two calls are equal to the bit, in their usual layout."""
    last = federation(training=SETTINGS.model_copy(update={"channels_last": True})).run()
    default = federation().run()
    assert not differing(states(default), states(last))
    assert all(tensor.is_contiguous() for tensor in states(default).values())


def test_identical_clients_are_one_client() -> None:
    """Given the same data in whole batches, three clients take the same step, and so does their mean."""
    x, y = clients()["a"]
    training = SETTINGS.model_copy(update={"batch_size": len(y)})
    three = federation(data=dict.fromkeys("abc", (x, y)), training=training).run()
    one = federation(data={"a": (x, y)}, training=training).run()
    assert gap(three.global_state(), one.global_state()) < 1e-12


@pytest.mark.parametrize("bn", TRAVELS)
def test_the_order_of_clients_changes_no_bit(bn: str) -> None:
    given = clients()
    there, back = (
        federation(data={name: given[name] for name in names}, validation=given, bn=bn).run()
        for names in ("abc", "cba")
    )
    assert not differing(states(there), states(back))


# ---- what is left alone


def test_the_model_given_is_copied_and_not_changed() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    federation(model).run(1)
    assert not differing(model.state_dict(), before)
    assert all(p.grad is None for p in model.parameters())


def test_the_global_generators_are_neither_read_nor_moved() -> None:
    def trained() -> dict[str, Tensor]:
        before = torch.random.get_rng_state(), pickle.dumps(np.random.get_state())  # noqa: NPY002 - it is what is checked
        out = states(federation(network(dropout=0.5), validation=clients()).run())
        assert torch.equal(torch.random.get_rng_state(), before[0])
        assert pickle.dumps(np.random.get_state()) == before[1]  # noqa: NPY002
        return out

    first = trained()
    torch.rand(7)
    np.random.rand(7)  # noqa: NPY002
    assert not differing(trained(), first)


def test_the_generator_is_as_it_was_after_a_failure_too() -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(Interrupted):
        federation(network(dropout=0.5)).run(should_stop=lambda: True)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_depends_on_seed_round_and_client_alone() -> None:
    masks: dict[tuple[int, int, str], Tensor] = {}

    class Watching(Algorithm):
        seed: int

        def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            out = super().loss(local, x, y)
            if local.steps == 0:
                masks[self.seed, local.round, local.client] = torch.rand(8)
            return out

    for seed in (0, 1, 0):
        federation(network(dropout=0.5), algorithm=Watching(seed=seed), seed=seed).run(2)
    assert len({tuple(m.tolist()) for m in masks.values()}) == len(masks) == 2 * 2 * len(SIZES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_keeps_its_type(dtype: torch.dtype) -> None:
    given = clients(dtype=dtype)
    trained = federation(network(dtype=dtype), given, validation=given).run(1)
    assert {v.dtype for v in floats(states(trained)).values()} == {dtype}


def test_constants_survive() -> None:
    class WithTable(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(network())
            self.register_buffer("table", torch.tensor([3, -1, 2**60]))

    trained = federation(WithTable()).run(1)
    assert trained.global_state()["table"].tolist() == [3, -1, 2**60]
    assert trained.client_state("a")["table"].tolist() == [3, -1, 2**60]
    WithTable().load_state_dict(trained.global_state())


# ---- batches


@pytest.mark.parametrize(("n", "sizes"), [(8, [4, 4]), (9, [4, 5]), (10, [4, 4, 2]), (5, [5]), (4, [4]), (1, [1])])
def test_a_last_batch_of_one_joins_the_one_before(n: int, sizes: list[int]) -> None:
    pieces = list(batch_indices(np.arange(n), 4))
    assert [len(p) for p in pieces] == sizes
    assert np.concatenate(pieces).tolist() == list(range(n))


def epochs(seed: int = 0) -> dict[tuple[str, int], list[int]]:
    """Client and number of the epoch, of three rounds of two: the order in which samples were taken."""
    noted = {name: Noted(*given) for name, given in clients().items()}
    federation(data=noted, seed=seed).run()
    out = {}
    for name, samples in noted.items():
        n = SIZES[name]
        expected = [4] * (n // 4) + [n % 4] if n % 4 > 1 else [4] * (n // 4 - 1) + [4 + n % 4]
        assert [len(t) for t in samples.taken] == 6 * expected
        out |= {(name, k): order.tolist() for k, order in enumerate(torch.cat(samples.taken).split(n))}
    return out


def test_each_epoch_takes_every_sample_once_in_an_order_of_its_own() -> None:
    taken = epochs()
    assert len(taken) == 3 * 6
    assert all(sorted(order) == list(range(SIZES[name])) for (name, _), order in taken.items())
    assert len({tuple(order) for order in taken.values()}) == len(taken)
    assert epochs() == taken
    other = epochs(seed=1)
    assert all(other[k] != taken[k] for k in taken)


def test_the_order_of_batches_does_not_depend_on_other_clients() -> None:
    alone = Noted(*clients()["b"])
    federation(data={"b": alone}).run()
    together = {name: Noted(*given) for name, given in clients().items()}
    federation(data=together).run()
    assert [t.tolist() for t in alone.taken] == [t.tolist() for t in together["b"].taken]


def test_batch_norm_over_vectors_trains_where_one_sample_would_be_left() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    trained = federation(model, clients({"a": 9, "b": 5})).run(1)
    assert trained.client_state("a")["2.num_batches_tracked"] == 2 * SETTINGS.local_epochs
    assert all(np.isfinite(r["loss"]) for r in trained.history)


# ---- model selection


class Scripted(Federation):
    """A federation whose validation accuracies are given: one list a client."""

    script: dict[str, list[float]]

    def round(self, *given: Any) -> None:
        self.trainer.evaluate = self._scripted  # type: ignore[method-assign]
        self.asked = iter(sorted(self.script))
        super().round(*given)

    def _scripted(self, *_: object) -> tuple[float, float, None]:
        return 1.0, self.script[next(self.asked)][self.server.round - 1], None


def scripted(
    script: dict[str, list[float]], algorithm: str = "fedavg", bn: str = "local", **training: Any
) -> tuple[Scripted, list[dict[str, Tensor]]]:
    """Return that federation after its run, and the server's tensors after each round."""
    given = clients()
    settings = {"rounds": len(script["a"]), "batch_size": 8, "lr": 0.05, **training}
    validation = {k: given[k] for k in script}
    out = Scripted(network(), given, validation=validation, algorithm=algorithm, bn=bn, training=settings)
    out.script = script
    after: list[dict[str, Tensor]] = []
    out.run(after_round=lambda f: after.append({k: v.clone() for k, v in f.tensors().items()}))
    return out, after


def kept(trained: Federation, after: list[dict[str, Tensor]]) -> list[int]:
    """The rounds after which server and clients looked as the result does."""
    got = trained.result()
    now = {"server": got.shared, **{f"own/{n}": c.own for n, c in enumerate(got.clients)}}
    return [n for n, state in enumerate(after, 1) if all(torch.equal(now[k], state[k]) for k in now)]


def test_the_round_with_the_highest_mean_over_clients_is_kept_whole() -> None:
    trained, after = scripted({"a": [0.9, 0.5, 0.1], "b": [0.2, 0.7, 0.1]})
    assert trained.selected
    assert trained.selected.round == 2
    assert trained.selected.values == pytest.approx([(0.5 + 0.7) / 2])
    assert kept(trained, after) == [2]


def test_of_equal_rounds_the_earliest_wins() -> None:
    trained, after = scripted({"a": [0.5, 0.75, 0.75, 0.5]})
    assert kept(trained, after) == [2]


def test_the_last_round_is_kept_on_request_or_without_validation() -> None:
    trained, after = scripted({"a": [0.9, 0.5, 0.1]}, select="last")
    assert kept(trained, after) == [3]
    assert trained.selected is None
    unseen = federation().run(2)
    assert unseen.result().round == 2
    assert unseen.result().values == []


@pytest.mark.parametrize(("select_by", "best"), [("loss", min), ("brier", min), ("balanced_accuracy", max)])
def test_rounds_are_selected_by_the_metric_that_is_named(select_by: str, best: Callable[..., float]) -> None:
    """The values of every round in NumPy from the networks of that round; the mean over clients decides."""
    given, values = clients(seed=3), list[float]()

    def value(state: dict[str, Tensor], x: Tensor, y: Tensor) -> float:
        model = network()
        model.load_state_dict(state)
        logits, truth = model.eval()(x).detach().numpy(), y.numpy()
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        if select_by == "loss":
            return float(-np.log(p[np.arange(len(truth)), truth]).mean())
        if select_by == "brier":
            return float(((p - np.eye(3)[truth]) ** 2).sum(1).mean())
        return float(np.mean([(p.argmax(1) == truth)[truth == k].mean() for k in np.unique(truth)]))

    def note(trained: Federation) -> None:
        last = Federation(network(), clients(), bn="local", training={"select": "last", "rounds": 8})
        last.restore(trained.tensors(), trained.progress() | {"selected": None})
        values.append(float(np.mean([value(last.client_state(name), *given[name]) for name in given])))

    training = {"rounds": 8, "batch_size": 4, "lr": 0.3, "select_by": select_by}
    trained = Federation(network(), clients(), validation=given, bn="local", training=training).run(after_round=note)
    assert trained.selected
    assert len(set(values)) > 1
    assert trained.selected.values == pytest.approx([best(values)], rel=1e-9)
    assert values[trained.selected.round - 1] == pytest.approx(best(values), rel=1e-9)


def test_selection_by_a_metric_logs_its_value_and_leaves_training_alone() -> None:
    given = clients()
    plain, other = (
        federation(validation=given, training=SETTINGS.model_copy(update={"select_by": name})).run(2)
        for name in ("accuracy", "auc")
    )
    assert not differing({"x": plain.server.shared}, {"x": other.server.shared})
    assert all("score" not in row for row in plain.history)
    assert all(("score" in row) is (row["split"] == "val") for row in other.history)


def test_a_client_at_which_the_metric_is_not_defined_does_not_count() -> None:
    given = clients()
    validation = {"a": given["a"], "b": (given["b"][0][:3], torch.zeros(3, dtype=torch.long))}
    training = SETTINGS.model_copy(update={"select_by": "auc"})
    trained = federation(validation=validation, training=training).run(1)
    assert trained.selected
    (a,) = [row["score"] for row in trained.history if (row["site"], row["split"]) == ("a", "val")]
    assert trained.selected.values == [a]


def test_an_unknown_criterion_is_one_line() -> None:
    with pytest.raises(UserError, match=r"training.select_by: unknown metric 'acuracy'; did you mean 'accuracy'\?"):
        federation(training={"select_by": "acuracy"})


def test_patience_counts_rounds_since_the_best() -> None:
    trained, _ = scripted({"a": [0.1, 0.5, 0.5, 0.4, 0.9]}, patience=2)
    assert trained.server.round == 4
    assert trained.exhausted
    trained, _ = scripted({"a": [0.1, 0.5, 0.5, 0.6, 0.9]}, patience=2)
    assert trained.server.round == 5
    assert not trained.exhausted


def test_each_client_validates_with_its_own_batch_norm() -> None:
    given = clients()
    trained = federation(validation=given, bn="local", training=SETTINGS.model_copy(update={"select": "last"})).run(2)
    for name, (x, y) in given.items():
        model = network()
        model.load_state_dict(trained.client_state(name))
        logits = model.eval()(x)
        row = next(r for r in trained.history if (r["round"], r["site"], r["split"]) == (2, name, "val"))
        assert row["loss"] == pytest.approx(nn.functional.cross_entropy(logits, y).item(), rel=1e-12)
        assert row["accuracy"] == pytest.approx(float((logits.argmax(1) == y).double().mean()))
        assert row["floats_down"] == row["floats_up"] == 0


def test_history_has_a_row_for_each_round_client_and_split() -> None:
    given = clients()
    trained = federation(validation={"b": given["b"]}).run(2)
    rows = [(r["round"], r["site"], r["split"]) for r in trained.history]
    assert rows == [(n, *rest) for n in (1, 2) for rest in (*((s, "train") for s in "abc"), ("b", "val"))]


# ---- errors


def test_a_nan_at_one_client_stops_the_run_and_names_it() -> None:
    given = clients()
    given["b"][0][3] = float("nan")
    with pytest.raises(UserError, match=r"round 1, client 'b': the training loss is nan; lower training\.lr"):
        federation(data=given).run()


def test_a_validation_loss_that_is_not_finite_stops_the_run() -> None:
    """Its accuracy would be that of the first class, and might be selected by."""
    held = clients()
    held["b"][0][:] = float("inf")
    with pytest.raises(UserError, match="round 1, client 'b': the validation loss is nan"):
        federation(validation=held).run()


def test_an_infinite_objective_in_a_later_round_is_named() -> None:
    class Exploding(Algorithm):
        def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            value, logits = super().loss(local, x, y)
            return value / (local.round < 2 or local.client != "c"), logits

    with pytest.raises(UserError, match="round 2, client 'c': a weight is not finite"):
        federation(algorithm=Exploding(), training={"batch_size": 32}).run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bn": "lokal"}, r"bn: unknown BN policy 'lokal'; did you mean 'local'\?"),
        ({"algorithm": "fedagv"}, r"unknown algorithm 'fedagv'; did you mean 'fedavg'\?"),
        ({"training": {"round": 1}}, r"training\.round: unknown key 'round'; did you mean 'rounds'\?"),
        ({"training": {"lr": float("nan")}}, r"training\.lr"),
        ({"training": {"batch_size": 1}}, r"training\.batch_size"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        federation(**options)


def test_no_clients_and_empty_clients_are_errors() -> None:
    with pytest.raises(UserError, match="clients: there are none"):
        Federation(network(), {})
    x, y = clients()["a"]
    with pytest.raises(UserError, match="client 'z': has no training samples"):
        federation(data={"a": (x, y), "z": (x[:0], y[:0])})


X, Y = clients()["a"]
NOT_CLASSES: dict[str, tuple[Any, str]] = {
    "too few": (Y[1:], "client 'a': 13 inputs, but 12 labels; give one label for each input"),
    "masks": (
        torch.zeros(13, 6, 6, dtype=torch.long),
        r"client 'a': labels of shape \(13, 6, 6\) are not class numbers",
    ),
    "one hot": (torch.nn.functional.one_hot(Y), r"client 'a': labels of shape \(13, 3\) are not class numbers"),
    "floats": (Y / 2, r"client 'a': labels of type torch.float32 are not class numbers; give class numbers 0, 1"),
    "negative": (Y - 1, "client 'a': label -1 is not a class number"),
    "too many": (Y + 1, "client 'a': label 3, but the network has 3 outputs, for the classes 0 to 2"),
}


@pytest.mark.parametrize("case", NOT_CLASSES)
def test_labels_that_are_not_class_numbers_are_one_line(case: str) -> None:
    y, line = NOT_CLASSES[case]
    with pytest.raises(UserError, match=line) as caught:
        federation(data={"a": (X, y)})
    assert "\n" not in str(caught.value)


def test_labels_of_validation_and_of_watched_sites_are_checked_too() -> None:
    with pytest.raises(UserError, match="validation 'a': label 3, but the network has 3 outputs"):
        federation(validation={"a": (X, Y + 1)})
    with pytest.raises(UserError, match=r"watched 'far': labels of shape \(13, 1\) are not class numbers"):
        federation(watched={"far": (X, Y[:, None])})


def test_booleans_and_arrays_of_numpy_are_class_numbers() -> None:
    one = federation(data={"a": (X, Y > 0)}).run(1).global_state()
    two = federation(data={"a": (X.numpy(), (Y > 0).long().numpy())}).run(1).global_state()
    assert not differing(one, two)


def test_a_network_without_class_scores_is_one_line() -> None:
    with pytest.raises(UserError, match=r"model: returns \(1, 2, 6, 6\) for one input; return logits of shape"):
        federation(nn.Identity())


# ---- stop and resume


@pytest.mark.parametrize("bn", TRAVELS)
@pytest.mark.parametrize(("task", "source"), [("classification", toy), ("segmentation", squares)])
def test_resumed_in_the_middle_the_bits_are_those_of_a_run_without_a_stop(
    task: str, source: ModuleType, bn: str, tmp_path: Path
) -> None:
    def new() -> Federation:
        training = MOMENTUM.model_copy(update={"rounds": 5})
        options = {"validation": source.clients(seed=9), "bn": bn, "training": training, "task": task}
        return federation(source.network(dropout=0.3), source.clients(), **options)

    whole = new().run()
    first = new().run(2)
    tensors, progress = first.tensors(), first.progress()
    write_tensors(tmp_path / "state.safetensors", tensors, {})
    first.run()  # what was saved does not move with the federation it came from
    in_a_file, _ = read_tensors(tmp_path / "state.safetensors")
    for saved in (tensors, tensors, in_a_file):  # nor with one that goes on from it
        second = new()
        second.restore(saved, progress)
        assert second.server.round == 2
        second.run()
        assert not differing(second.tensors(), whole.tensors())
        assert not differing(states(second), states(whole))
        assert second.ledger() == whole.ledger()
        timeless = [[{**row, "seconds": 0} for row in f.history] for f in (second, whole)]
        assert timeless[0] == timeless[1]


def test_the_selected_round_survives_a_resume() -> None:
    first, after = scripted({"a": [0.9, 0.5, 0.4]})
    second = federation(bn="local")
    second.restore(first.tensors(), first.progress())
    assert second.result().round == 1
    assert second.result().values == [0.9]
    assert kept(second, after) == [1]
    assert not differing(states(second), states(first))


def test_restoring_a_round_without_selection_forgets_a_later_one() -> None:
    given = clients()
    trained = federation(validation=given)
    start = trained.tensors(), trained.progress()
    trained.run(1)
    trained.restore(*start)
    assert trained.selected is None
    assert trained.history == []
    assert gap(trained.global_state(), network().state_dict()) == 0


def test_a_stop_between_batches_loses_the_round_under_way_only() -> None:
    steps = iter(range(1000))
    trained = federation().run(1)
    before = {k: v.clone() for k, v in trained.tensors().items() if not k.startswith(("own", "counters"))}
    with pytest.raises(Interrupted):
        trained.run(should_stop=lambda: next(steps) > 3)
    assert trained.server.round == 1
    assert torch.equal(trained.server.shared, before["server"])


def test_run_counts_rounds_in_all() -> None:
    trained = federation().run(0)
    assert trained.server.round == 0
    assert trained.run(1).run(1).server.round == 1
    assert trained.run().server.round == SETTINGS.rounds


def test_where_clients_train_alone_each_selects_its_own_round() -> None:
    """Their best rounds differ: a common one would be nobody's."""
    trained, after = scripted({"a": [0.9, 0.5, 0.1], "b": [0.1, 0.5, 0.9]}, algorithm="local", bn="local")
    assert trained.selected
    assert trained.selected.values[:2] == [0.9, 0.9]
    for n, round_ in ((0, 0), (1, 2)):
        assert torch.equal(trained.selected.clients[n].own, after[round_][f"own/{n}"])
        assert not torch.equal(after[0][f"own/{n}"], after[2][f"own/{n}"])


def test_watched_sites_are_logged_and_change_nothing() -> None:
    given = clients()
    training = {"rounds": 4, "batch_size": 8, "lr": 0.05}
    plain = federation(bn="local", training=training).run()
    watching = federation(bn="local", watched={"far": given["a"]}, training={**training, "watch_every": 2}).run()
    seen = [row for row in watching.history if row["split"] == "test"]
    assert [(row["round"], row["site"]) for row in seen] == [(2, "far"), (4, "far")]
    network_ = network()
    network_.load_state_dict(watching.global_state())
    x, y = given["a"]
    assert seen[-1]["accuracy"] == pytest.approx(float((network_.eval()(x).argmax(1) == y).double().mean()))
    assert not differing(states(plain), states(watching))
