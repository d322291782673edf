"""Checks of algorithms, on a federation of three small clients."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pandas as pd
import torch
from torch import Tensor, nn

from ..addons import Addon, extended
from ..algorithms import Algorithm, Local
from ..core.errors import UserError
from ..core.plugin import Plugin
from ..engine.federation import Federation
from ..engine.specification import Specification
from ..io.arrays import read_tensors, write_tensors
from ..nn.policies import POLICIES
from .case import Case, made, numeric, others, reading, refusal, require, variants
from .fixtures import CLASSES, LARGE, NORMS, clients, differing, network, outlined, outlining_network

SETTINGS = {"rounds": 3, "batch_size": 8, "lr": 0.02}
"""Training settings of the checks: the three clients take two, three and one local steps in a round."""
LAST = SETTINGS | {"local_epochs": 2, "select": "last"}
"""Training settings that keep the last round's network, with enough local steps for clients to diverge (for FedExP)."""
WEIGHTED = LAST | {"class_weights": [1.0, 3.0, 0.5]}
WEIGHS = "weights of classes change what it trains, or it refuses them"
SHORT: dict[str, dict[str, Any]] = {
    "fedtan2": {"exchange_rounds": 2},
    "fedrep": {"head_epochs": 1},
    "vrex": {"beta": 2.0},
}
"""Settings, by name of an algorithm of this package, with which its method acts within three rounds. Other algorithms
are checked with their defaults."""
MASKS = 'it learns masks, or says tasks = ("classification",): the same bits after a resume and in any order of clients'
"""Title of the check on masks. A plug-in for image classes alone avoids the check by `tasks = ("classification",)`."""
Kind = type[Algorithm]
Networks = list[dict[str, Tensor]]
"""State dicts of the networks after the last round: first the server's, then each client's."""
Results = Callable[[Any, str], Networks]
"""A function that trains a federation with a plug-in under a BN policy, and returns its networks."""


def cases(cls: Kind) -> Iterator[Case]:
    """Yield the checks that an algorithm class must pass, for each BN policy. Checks of one training train it once."""
    results = functools.cache(lambda plugin, bn: networks(federation(cls, bn, algorithm=plugin, training=LAST)))
    yield Case("its own layers start from the seed alone", partial(layers_from_the_seed, cls))
    yield Case("its loss is a mean over the images of a batch", partial(loss_is_a_mean, cls, partial(federation, cls)))
    for bn in POLICIES:
        if bn not in cls.policies:
            yield Case(f"bn {bn} is refused in a line that says why", partial(refused, cls, bn))
            continue
        # A policy is about batch norm. Without it, and for how large tensors are handled, one policy is enough.
        for norm in (*NORMS, LARGE) if bn == cls.policies[0] or _shares_by_policy(cls) else ("batch norm",):
            title = "it learns, resumes to the same bits, and the order of clients makes no difference"
            yield Case(f"{title}: bn {bn}, {norm}", partial(trains, cls, bn, norm))
        yield Case(f"it resumes with a part of the clients: bn {bn}", partial(resumes_with_a_part, cls, bn))
        yield Case(
            f"tensors that stay at a client depend on no other client: bn {bn}", partial(leaves_at_home, cls, bn)
        )
    if "segmentation" in cls.tasks:
        yield Case(MASKS, partial(learns_masks, cls, partial(outlining, cls)))
    yield Case("its loss falls where classes can be told apart", partial(loss_falls, cls))
    yield Case("it differs from its base class", partial(differs, cls, results))
    build = partial(federation, cls, cls.policies[0])
    yield Case(WEIGHS, partial(weighs_classes, cls, build, lambda: results(usual(cls), cls.policies[0])))
    for field in numeric(cls):
        check = partial(setting_matters, partial(usual, cls), field, results, cls.policies)
        yield Case(f"its setting {field} changes results", check, advice=True)


def federation(cls: Kind, bn: str, norm: str = "batch norm", names: str = "abc", **options: Any) -> Federation:
    """Return an untrained federation for an algorithm class, whose training data also validate.

    `norm` names the network of the fixtures, each letter of `names` is a client, and `options` are further arguments of
    the specification.
    """
    # The large network in float32: in float64 it would take twice as long.
    dtype = torch.float32 if norm == LARGE else torch.float64
    data = clients(dtype=dtype)
    sites = {name: data[name] for name in names}
    settings = {"training": SETTINGS, "algorithm": usual(cls), **options}
    specification = Specification.open(network(norm, dropout=0.2, dtype=dtype), bn=bn, **settings)
    return Federation(specification, sites, validation=sites)


def usual(cls: Kind) -> Algorithm:
    """Return an instance of the algorithm with the settings that the checks use: SHORT's, or its defaults."""
    plugin: Algorithm = made(cls, **SHORT.get(cls.name, {}))
    return plugin


def _shares_by_policy(cls: Kind) -> bool:
    """Return True if the algorithm allows several BN policies and overrides `shared`, which names the sent tensors."""
    return len(cls.policies) > 1 and cls.shared is not Algorithm.shared


def _pools(algorithm: Algorithm) -> bool:
    """Return True if the algorithm pools the data of all sites into one client."""
    return bool(algorithm.collaboration.count(2) == 1)


def _state_of(trained: Federation, client: str) -> dict[str, torch.Tensor]:
    """Return the state dict of a client's final network; where all sites are pooled, of the one common network."""
    return trained.global_state() if _pools(trained.algorithm) else trained.client_state(client)


def learns(build: Callable[[str], Federation]) -> Federation:
    """Check that a training is finite and reproducible, and return the trained federation.

    `build` makes an untrained federation of the clients that the letters of its argument name. Tensors and losses must
    be finite, and all bits equal after a resume and in any order of clients.
    """
    trained = build("abc").run(2)
    shapes = _shapes(trained)
    require(all(bool(v.isfinite().all()) for v in trained.tensors().values()), "a tensor is not finite")
    require(all(math.isfinite(row["loss"]) for row in trained.history), "a loss is not finite")
    saved = trained.tensors(), trained.progress()
    whole = trained.run()
    for name, shape in _shapes(whole).items():
        words = f"{name} grows: it has the shape {shapes.get(name)} after two rounds, and {shape} after three"
        require(shapes.get(name, shape) == shape, words)
    resumed = build("abc")
    resumed.restore(*saved)
    changed = differing(resumed.run().tensors(), whole.tensors())
    words = "other bits after a resume; keep in server_state or client_state what must last"
    if changed and differing(build("abc").run().tensors(), whole.tensors()):
        words = "other bits the second time: it depends on the clock, an unseeded generator or earlier runs"
    require(not changed, f"{words}: {changed}")
    changed = differing(build("cab").run().tensors(), whole.tensors())
    require(not changed, f"the order of clients changes bits; keep nothing of the client before: {changed}")
    return whole


def moves(trained: Federation, start: nn.Module, bn: str, norm: str = "batch norm") -> None:
    """Check that training changed the weights and, with batch norm, the running means of the network `start`."""
    before, after = start.state_dict(), trained.global_state()
    weight = after["0.weight"]
    require(not torch.equal(weight, before["0.weight"].to(weight)), "the model does not change")
    if norm == "batch norm":
        words = "running statistics never move; leave the network in training mode, and freeze them in no first round"
        if POLICIES[bn].statistics:
            words = "the server's running statistics never move; call server.average_statistics(mean) in update"
        require(not torch.equal(after["1.running_mean"], before["1.running_mean"]), words)


def _shapes(trained: Federation) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a federation's checkpoint, by its name."""
    return {name: tuple(value.shape) for name, value in trained.tensors().items()}


def trains(cls: Kind, bn: str, norm: str) -> None:
    """Check that training passes `learns` and `moves`, and that its state dicts load into an ordinary network."""
    with watched(cls):
        trained = learns(lambda names: federation(cls, bn, norm, names))
    moves(trained, network(norm), bn, norm)
    network(norm).load_state_dict(trained.global_state())
    network(norm).load_state_dict(_state_of(trained, "b"))


def outlining(cls: Kind, names: str, addon: Any = None) -> Federation:
    """Return an untrained segmentation federation for an algorithm class; each letter of `names` is a client."""
    data = outlined()
    sites = {name: data[name] for name in names}
    specification = Specification.open(
        outlining_network(),
        algorithm=usual(cls),
        addon=addon,
        training=SETTINGS,
        task="segmentation",
    )
    return Federation(specification, sites, validation=sites)


def learns_masks(cls: type[Algorithm] | type[Addon], build: Callable[[str], Federation]) -> None:
    """Check that a segmentation training changes the model and passes `learns`, to which `build` is given."""
    with watched(cls):
        trained = learns(build)
    start = outlining_network().state_dict()["0.weight"]
    require(not torch.equal(trained.global_state()["0.weight"], start), "the model does not change")


def layers_from_the_seed(cls: type[Algorithm] | type[Addon]) -> None:
    """Check that the layers which `extend` adds are initialised by the seed alone, and differently for another seed."""
    one, again, other = (extended(made(cls), network(), seed).state_dict() for seed in (1, 1, 2))
    changed = differing(one, again)
    require(not changed, f"its layers must start from the seed alone: {changed}")
    added = one.keys() - network().state_dict().keys()
    drawn = [name for name in added if len(one[name].unique()) > 1]
    words = "with another seed its layers start alike; draw them from torch's default generator, and do not seed it"
    require(not drawn or any(not torch.equal(one[name], other[name]) for name in drawn), words)


def loss_is_a_mean(cls: type[Algorithm] | type[Addon], build: Callable[..., Federation]) -> None:
    """Check that a class's own loss is a mean over images: a batch with each image twice has about the same loss.

    `build` makes a federation under a BN policy. A class that does not override `loss` passes.
    """
    if cls.loss is Algorithm.loss:
        return
    ratios = list[float]()
    with watched(cls):
        hook = cls.loss

        def watching(plugin: Any, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            with torch.random.fork_rng(devices=[]):
                twice = hook(plugin, local, torch.cat([x, x]), torch.cat([y, y]))[0]
            result = hook(plugin, local, x, y)
            ratios.append((twice / result[0]).item())
            return result

        with mock.patch.object(cls, "loss", watching):
            build(cls.policies[0] if issubclass(cls, Algorithm) else "aggregated").run(1)
    # The ratio is 1 for a mean and 2 for a sum; the median, since a loss may draw random numbers.
    ratio = sorted(ratios)[len(ratios) // 2]
    words = "so its steps depend on the size of the batch; return the mean over images, not their sum"
    require(ratio < 1.5, f"a batch with each image twice has {ratio:.2f} times the loss, {words}")


def weighs_classes(
    cls: type[Algorithm] | type[Addon], build: Callable[..., Federation], usually: Callable[[], Networks]
) -> None:
    """Check that `training.class_weights` changes the trained networks, or that the plug-in refuses it by UserError.

    `build` makes a federation with given training settings. `usually` returns the networks after training with the
    settings LAST, without class weights.
    """
    with contextlib.suppress(UserError), watched(cls):
        words = "its loss ignores training.class_weights; make it with `class_loss`, or refuse them in `require`"
        require(not alike(usually(), networks(build(training=WEIGHTED))), words)


def resumes_with_a_part(cls: Kind, bn: str) -> None:
    """Check that with partial participation a training resumes to equal bits from a safetensors file of its state."""
    training = {**SETTINGS, "participation": 0.6, "rounds": 4}
    whole = federation(cls, bn, training=training)
    for _ in range(2):
        whole.round()
    with tempfile.TemporaryDirectory() as folder:
        write_tensors(Path(folder, "state.safetensors"), whole.tensors(), {})
        saved = read_tensors(Path(folder, "state.safetensors"))[0], whole.progress()
    resumed = federation(cls, bn, training=training)
    resumed.restore(*saved)
    changed = differing(resumed.run().tensors(), whole.run().tensors())
    require(not changed, f"other bits after a resume with a part of the clients: {changed}")


def refused(cls: Kind, bn: str) -> None:
    """Check that a BN policy that the algorithm does not list is refused in one line, with the reason and a remedy."""
    words = refusal(lambda: federation(cls, bn), f"bn {bn} is accepted, and is not in policies")
    require(bool(cls.why), f"`why` must say what is wrong with bn {bn}")
    require("\n" not in words, "the error has several lines")
    require(cls.why in words and cls.policies[0] in words, f"the error must say why, and the usual policy: {words}")


def leaves_at_home(cls: Kind, bn: str) -> None:
    """Check that the tensors which a client keeps have the same bits after one round with and without other clients."""
    # Where data are pooled, nothing belongs to a client.
    if _pools(made(cls)):
        return
    # Uniform, since FedDC's local work depends on a client's share of samples.
    training = {**SETTINGS, "weights": "uniform"}
    together = federation(cls, bn, training=training).run(1)
    names = together.trainer.own_names
    if not POLICIES[bn].affine:
        require({"1.weight", "1.bias"} <= set(names), "weights of batch norm do not stay at home")
    alone = federation(cls, bn, names="b", training=training).run(1)
    of_three, of_one = ({k: f.client_state("b")[k] for k in names} for f in (together, alone))
    changed = differing(of_three, of_one)
    require(not changed, f"these tensors stay at home, and depend on other clients: {changed}")


def loss_falls(cls: Kind) -> None:
    """Check that the mean training loss of the last three of eight rounds is below the loss of the first round."""
    trained = federation(cls, cls.policies[0], training={**SETTINGS, "rounds": 8, "local_epochs": 2, "lr": 0.05}).run()
    losses = pd.DataFrame(trained.history).query("split == 'train'").groupby("round")["loss"].mean()
    first, last = losses.iloc[0], losses.iloc[-3:].mean()
    require(last < first, f"the training loss rises from {first:.3f} in the first round to {last:.3f} in the last")


def differs(cls: Kind, results: Results) -> None:
    """Check that under some BN policy the trained networks differ from those of the base class. `results` trains."""
    parents = (parent for parent in cls.__mro__[1:] if issubclass(parent, Algorithm))
    # Helpers that several algorithms share train nothing by themselves.
    base = next(p for p in parents if p is Algorithm or not p.__module__.rpartition(".")[2].startswith("_"))
    # FedAvg is the base class itself, and another name of an algorithm means the same results.
    if cls.name == "fedavg" or cls.stands_for:
        return
    same = all(alike(results(usual(cls), bn), results(base(), bn)) for bn in cls.policies)
    require(not same, f"its trained networks have the bits of {base.__name__}: none of its methods has an effect")


def networks(federation: Federation) -> Networks:
    """Train a federation to its end, and return the networks of the server and of each client."""
    trained = federation.run()
    return [trained.global_state(), *(_state_of(trained, client) for client in "abc")]


def alike(first: Networks, second: Networks) -> bool:
    """Return True if two lists of state dicts have the same names, shapes and bits."""
    return not any(differing(*pair) for pair in zip(first, second, strict=True))


def setting_matters(build: Callable[[], Any], field: str, results: Results, policies: Sequence[str]) -> None:
    """Check that a numeric setting has an effect: another value changes trained bits, or the plug-in's code reads it.

    `build` makes the plug-in, `field` names the setting, and `results` trains a plug-in under a BN policy. An effect
    under one of the `policies` suffices.
    """
    usual = build()
    tried = False
    read = set[str]()
    for plugin in variants(usual):
        for changed, bn in itertools.product([*others(plugin, field)], policies):
            # Some values of a setting need another training.
            with contextlib.suppress(UserError), reading(type(usual), read):
                if not alike(results(plugin, bn), results(changed, bn)):
                    return
                tried = True
            # A method that acts on larger problems only reads its setting all the same.
            if field in read:
                return
    words = f"no bit changes with {field}: nothing reads it, or the method of another parent acts in its place"
    require(not tried, words)


# ---- hooks, wrapped while a federation trains: checks of what they return and change


IN_PLACE = ("begin", "correct", "update")
"""Hooks that change their argument in place and return nothing."""
TENSORS = ("server_state", "client_state", "broadcast", "report")
"""Hooks that return a dict of tensors by name."""
GRADIENTS = ("gradient", "backward", "correct")
"""Hooks that may change the gradient."""
READ = ("server_state", "client_state", "sample", "broadcast", "download", "round_weights", "personal")
"""Hooks that read the network and change nothing in it."""


@contextlib.contextmanager
def watched(cls: type[Plugin]) -> Iterator[None]:
    """Inside the block, wrap each hook that `cls` overrides so that it raises Broken if it breaks the hook's rules.

    The rules are those of the base class's documentation: what a hook returns, and what it may change.
    """
    kind = next(base for base in cls.__mro__ if "kind" in vars(base))
    names = {"loss", *IN_PLACE, *TENSORS, *GRADIENTS, *READ}
    seen = _Seen({}, {})
    with contextlib.ExitStack() as stack:
        for name in sorted(names):
            hook = getattr(cls, name, None)
            if hook is not None and hook is not getattr(kind, name, None):
                stack.enter_context(mock.patch.object(cls, name, _watching(name, hook, seen)))
        yield
    sent = {key for report in seen.reports.values() for key in report}
    unsent = sorted(getattr(cls, "per_client", sent) - sent) if sent else []
    require(not unsent, f"`per_client` names tensors that no `report` returns: {unsent}")


class _Seen(NamedTuple):
    """Observations of one training: the round of each state of torch's generator, and the shapes reported per round.

    `draws` maps the bytes of a generator's state to a round; `reports` maps a round to the shapes of the first report.
    """

    draws: dict[bytes, int]
    reports: dict[int, dict[str, tuple[int, ...]]]


def _watching(name: str, hook: Callable[..., Any], seen: _Seen) -> Callable[..., Any]:
    """Return a hook wrapped so that each call checks what the hook returns and what it changes; see `watched`."""

    @functools.wraps(hook)
    def watching(plugin: Plugin, *arguments: Any) -> Any:
        before = torch.random.get_rng_state()
        local = arguments[0]
        gradient = getattr(local, "grad", None)
        model = getattr(local, "model", None)
        modes = _modes(model)
        vector: Any = getattr(local, "state_vector", getattr(local, "shared", None))
        kept = vector.clone() if name in READ else None
        result = hook(plugin, *arguments)
        changed = sorted(part for part, mode in _modes(model).items() if mode != modes[part])
        words = "leaves these parts of the network in another mode (training or evaluation, frozen or not); set it back"
        require(not changed, f"{name} {words}: {changed}")
        if kept is not None:
            words = f"{name} changes the network, and only says what is sent or kept; work on a clone"
            require(torch.equal(kept, vector), words)
        if name in IN_PLACE:
            require(result is None, f"{name} returns a {type(result).__name__}; change its argument in place")
        if name in TENSORS:
            _require_tensors(f"{name} must return tensors by name", result)
        if name == "loss":
            _require_loss(result, len(arguments[2]))
        if name in GRADIENTS and isinstance(local, Local):
            require(
                local.grad is gradient, f"{name} binds local.grad to a new tensor; change it in place, as grad.mul_()"
            )
        if hasattr(local, "state"):
            _require_tensors(f"after {name}, the state must hold tensors by name", local.state)
            _require_own(name, local, vector)
        if name == "report":
            _require_alike(result, local, plugin, seen.reports)
        if isinstance(local, Local):
            _require_draws(name, before, seen.draws.setdefault, local.round)
        return result

    return watching


def _require_tensors(words: str, result: object) -> None:
    """Raise Broken, whose message begins with `words`, unless `result` is a dict of tensors."""
    require(isinstance(result, dict), f"{words}: it is a {type(result).__name__}")
    assert isinstance(result, dict)
    for key, value in result.items():
        require(isinstance(value, Tensor), f"{words}: {key!r} is a {type(value).__name__}")


def _modes(model: nn.Module | None) -> dict[str, bool]:
    """Return the training flag of each layer and the `requires_grad` of each parameter, by path; {} without a model."""
    if model is None:
        return {}
    layers = {path or "all": layer.training for path, layer in model.named_modules()}
    return layers | {path: parameter.requires_grad for path, parameter in model.named_parameters()}


def _require_own(name: str, local: Any, vector: Tensor) -> None:
    """Raise Broken if a tensor of `local.state` has an autograd graph, or shares memory with the network's `vector`."""
    for key, value in local.state.items():
        words = f"after {name}, {key!r} of the state holds the graph of a backward pass, which grows; detach() it"
        require(not value.requires_grad, words)
        words = f"after {name}, {key!r} of the state is a view of the network, and changes with it; clone() it"
        require(value.untyped_storage().data_ptr() != vector.untyped_storage().data_ptr(), words)


def _require_alike(
    report: dict[str, Tensor], local: Any, plugin: Any, reports: dict[int, dict[str, tuple[int, ...]]]
) -> None:
    """Raise Broken if reports of one round differ in names or shapes, or have numbers wider than the network's.

    Reported tensors are averaged over clients, except for those that the plug-in's `per_client` names. The ledger of
    traffic counts each number as one float of the network. `reports` maps a round to the shapes of its first report.
    """
    shapes = {key: tuple(value.shape) for key, value in report.items()}
    other = reports.setdefault(local.round, shapes)
    averaged = (shapes.keys() | other.keys()) - plugin.per_client
    differing = sorted(key for key in averaged if other.get(key) != shapes.get(key))
    words = "report gives these tensors, or their shapes, at some clients only, and the mean is over all; send zeros"
    require(not differing, f"{words}: {differing}")
    wide = sorted(key for key, value in report.items() if value.dtype.itemsize > local.shared.dtype.itemsize)
    words = f"report sends more bytes than the ledger counts, which takes each number for {local.shared.dtype}"
    require(not wide, f"{words}; convert them with .to(local.shared): {wide}")


def _require_loss(result: object, images: int) -> None:
    """Raise Broken unless a `loss` hook's result is a scalar tensor and logits with one row for each of the images."""
    words = "loss must return two tensors: the mean loss of the batch, of shape (), and the logits (batch, classes)"
    pair = isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, Tensor) for part in result)
    require(pair, f"{words}; it returns a {type(result).__name__}")
    assert isinstance(result, tuple)
    loss, logits = (tuple(part.shape) for part in result)
    # of masks they are (batch, classes, height, width)
    require(loss == () and logits[:2] == (images, CLASSES), f"{words}; their shapes are {loss} and {logits}")


def _require_draws(name: str, before: Tensor, first: Callable[[bytes, int], int], number: int) -> None:
    """Raise Broken if a hook leaves torch's generator in a state that it also left in another round.

    `before` is the state before the hook ran. `first` maps a state and this round's `number` to the first round with
    that state.
    """
    after = torch.random.get_rng_state()
    if not torch.equal(after, before):
        words = f"{name} sets torch's generator to one state in each round, so that later draws repeat themselves"
        require(first(after.numpy().tobytes(), number) == number, words)
