"""Clients: the sites of a federation that train, with their samples, their weights and their state between rounds."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..addons import Addon
from ..algorithms import Algorithm, Collaboration, Server, Traffic, Training
from ..core.errors import UserError, did_you_mean
from ..core.rng import undisturbed
from ..data.samples import Pooled, Samples, TensorSamples, class_counts, known_labels, labels_of
from ..tasks import Task
from .round_state import Member, at_home, shared_out

if TYPE_CHECKING:
    from .flat_network import FlatNetwork

CHANNELS = (1, 3, 4)
"""Numbers of channels that images usually have."""
SamplesBySite = Mapping[str, Samples | tuple[Any, Any]]


@dataclass(eq=False, kw_only=True)
class Client(Member):
    """A site that trains, with its samples and its tensors.

    Attributes
    ----------
    train, val : samples for training and, if the site has any, for validation
    class_weights : weight of each class in the loss, (classes,); None if all count alike
    offers : tensors that clients sent to this one before the first round (`Addon.offer`), by client and name
    """

    train: Samples
    val: Samples | None
    class_weights: Tensor | None = None
    offers: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)


def open_clients(
    data: Mapping[str, Samples], validation: Mapping[str, Samples], by_size: bool, algorithm: Algorithm
) -> list[Client]:
    """Return the clients before the first round, in the order of their names, without tensors yet.

    With `by_size`, shares follow the number of training samples; otherwise they are equal. Raises UserError for a
    client without training samples, and for validation samples that belong to no client.
    """
    if empty := [name for name, samples in data.items() if not len(samples)]:
        raise UserError(f"client {empty[0]!r}", "has no training samples", "leave it out")
    if unknown := sorted(set(validation) - set(data)):
        raise UserError("validation", f"{unknown[0]!r} is not a client", did_you_mean(unknown[0], data))
    train = algorithm.collaboration.clients(data, Pooled)
    val = algorithm.collaboration.clients({name: s for name, s in validation.items() if len(s)}, Pooled)
    members = shared_out([*train], [*map(len, train.values())], by_size, algorithm)
    return [Client(m.name, m.share, m.weight, train=train[m.name], val=val.get(m.name)) for m in members]


class Sites(NamedTuple):
    """Samples of all sites of a federation, by name.

    Attributes
    ----------
    train, validation : training samples of each client, and validation samples of those clients that have any
    elsewhere : samples of the sites that `training.select_at` names, by which the best round is selected
    watched : samples of sites on which the global network is tested while it trains, for learning curves
    """

    train: dict[str, Samples]
    validation: dict[str, Samples]
    elsewhere: dict[str, Samples]
    watched: dict[str, Samples]


def open_sites(
    clients: SamplesBySite,
    validation: SamplesBySite,
    watched: SamplesBySite,
    training: Training,
    algorithm: Algorithm,
    task: Task,
    dtype: torch.dtype | None = None,
) -> Sites:
    """Return the samples of all sites as `Samples`, with those of `training.select_at` apart from the clients' ones.

    Inputs become `dtype` if it is given. Raises UserError if a site of `training.select_at` has no samples or is a
    client, or if the algorithm has no global network to predict it; see also `samples_by_site`.
    """
    train = samples_by_site(clients, "client", task, dtype)
    val = samples_by_site(validation, "validation", task, dtype)
    elsewhere = {site: val.pop(site) for site in training.select_at if site in val}
    elsewhere = {site: samples for site, samples in elsewhere.items() if len(samples)}
    for site in training.select_at:
        if site in train:
            raise UserError("training.select_at", f"{site!r} is a client", "name sites that do not train")
        if site not in elsewhere:
            raise UserError("training.select_at", f"site {site!r} has no validation samples", "check its name")
    if training.select_at and not algorithm.collaboration.has_global_model:
        problem = f"needs a global network, and with {algorithm.name} {algorithm.collaboration.apart}"
        raise UserError("training.select_at", problem, "leave it out for this algorithm")
    return Sites(train, val, elsewhere, samples_by_site(watched, "watched", task, dtype))


def give_tensors(
    clients: Sequence[Client], network: FlatNetwork, algorithm: Algorithm, addon: Addon | None, server: Server
) -> None:
    """Set the clients' initial tensors: the network's tensors that stay at clients, BN's counters, states of plug-ins.

    Raises UserError if algorithm and add-on keep a tensor under the same name.
    """
    for client in clients:
        client.own = network.own()
        client.counters = network.counters.to("cpu", copy=True)
        client.state = at_home(algorithm.client_state(server))
        added = at_home(addon.client_state(server)) if addon else {}
        for name in added.keys() & client.state.keys():
            problem = f"{algorithm.name} keeps a tensor under this name, too"
            raise UserError(f"client_state, {name!r}", problem, "begin the name with that of the add-on")
        client.state |= added


def offer_of(samples: Samples, algorithm: Algorithm, server: Server) -> dict[str, Tensor]:
    """Return the tensors that a client sends to the server once, before the first round; {} for most algorithms."""
    if type(algorithm).offer is Algorithm.offer:
        return {}
    return algorithm.offer(server, samples, labels_of(samples).flatten())


def put_together(offers: Mapping[str, Mapping[str, Tensor]], algorithm: Algorithm, server: Server) -> Traffic:
    """Stack the tensors that clients send once, before the first round, as `server.offers`, and return the traffic.

    `offers` maps each client to its tensors by name; a stacked tensor has one row for each client. Raises UserError if
    clients send tensors of different names or shapes.
    """
    (one, first), *_ = offers.items()
    for name, offer in offers.items():
        if {k: v.shape for k, v in offer.items()} != {k: v.shape for k, v in first.items()}:
            problem = f"client {name!r} and {one!r} send tensors of different names or shapes"
            raise UserError(f"{algorithm.name}.offer", problem, "return the same shapes for all images")
    server.offers = {k: torch.stack([offer[k] for offer in offers.values()]).to(server.shared.device) for k in first}
    return Traffic(up=sum(table.numel() for table in server.offers.values()))


def passing_on(offers: Mapping[str, Mapping[str, Tensor]], algorithm: Algorithm) -> Traffic:
    """Return the traffic of the tensors that clients send to each other before the first round.

    `offers` maps each client to its tensors by name.
    """
    sizes = {name: sum(map(torch.numel, offer.values())) for name, offer in offers.items()}
    return Traffic.passed_on(sizes, algorithm.collaboration)


def float_of(model: nn.Module) -> torch.dtype | None:
    """Return the dtype of a network's float parameters, or None for a network without any."""
    return next((tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()), None)


def samples_by_site(
    sites: SamplesBySite, what: str, task: Task, dtype: torch.dtype | None = None
) -> dict[str, Samples]:
    """Return the samples of each site, in the order of names.

    Inputs of floats become `dtype`, the network's type, since NumPy makes float64. Raises UserError for samples of
    another form, for targets that do not fit the task, and for targets that are no class numbers; the message names
    `what` (such as client) and the site.
    """
    return {name: _samples(f"{what} {name!r}", task, given, dtype) for name, given in sorted(sites.items())}


def _samples(where: str, task: Task, given: Any, dtype: torch.dtype | None) -> Samples:
    """Return the samples of a site, `given` as a pair (inputs, targets) or as `Samples`.

    Raises UserError, at `where`, for anything else, and for inputs or targets that do not fit the task.
    """
    if isinstance(given, tuple | list) and len(given) == 2:
        try:
            x, y = map(torch.as_tensor, given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(where, f"cannot become tensors: {error}", "give arrays or tensors of numbers") from error
        if dtype is not None and x.is_floating_point():
            x = x.to(dtype)
        return _tensor_samples(where, task, x, y)
    if not callable(getattr(given, "batch", None)):
        remedy = "give (x, y), arrays of all its inputs and targets, or an object with the methods of Samples"
        noun = type(given).__name__
        article = "an" if noun[:1].lower() in "aeiou" else "a"
        raise UserError(where, f"is {article} {noun}, from which no batches can be taken", remedy)
    samples: Samples = given
    return samples


def _tensor_samples(where: str, task: Task, x: Tensor, y: Tensor) -> TensorSamples:
    task.require_targets(where, x, y)
    if y.is_floating_point() or y.is_complex():
        raise UserError(where, f"{task.target}s of type {y.dtype} are not class numbers", task.remedy)
    if len(y) and int(y.min()) < 0:
        raise UserError(where, f"{task.target} {int(y.min())} is not a class number", task.remedy)
    return TensorSamples(x, y)


def require_classes(model: nn.Module, task: Task, by_kind: Mapping[str, Mapping[str, Samples]]) -> None:
    """Raise UserError for a label for which the network has no output, and for outputs that do not fit the task.

    `by_kind` holds the samples of sites under client, validation and watched; only samples given as tensors are
    checked. The network runs once for each form of inputs, with one input, in evaluation mode, on a copy.
    """
    labelled = {
        f"{kind} {name!r}": samples
        for kind, sites in by_kind.items()
        for name, samples in sites.items()
        if isinstance(samples, TensorSamples) and len(samples)
    }
    if not labelled:
        return
    forms = dict[tuple[Any, ...], int]()
    for where, samples in labelled.items():
        form = samples.x.dtype, samples.x.shape[1:]
        if form not in forms:
            forms[form] = _outputs_at(where, model, task, samples.x[:1])
        classes = forms[form]
        if len(samples) == 1 and where.startswith("client"):
            _require_one(where, model, samples.x)
        known = known_labels(samples.y)
        label = int(known.max()) if len(known) else 0
        if label >= classes:
            problem = f"label {label}, but the network has {classes} outputs, for the classes 0 to {classes - 1}"
            raise UserError(where, problem, "number classes from 0, or give the network more outputs")


def _outputs_at(where: str, model: nn.Module, task: Task, x: Tensor) -> int:
    """Return the number of classes of a network's logits for one input of a site.

    Raises UserError, which names the site by `where`, for inputs that the network does not take.
    """
    try:
        return outputs(model, task, x)
    except UserError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        remedy = "give inputs of the form that the network takes"
        if not x.is_floating_point():
            remedy = "give floats, such as images / 255"
        elif x.dim() == 4 and x.shape[1] not in CHANNELS and x.shape[3] in CHANNELS:
            remedy = "put the channels first: (n, channels, height, width)"
        elif x.dim() == 4 and x.shape[1] in CHANNELS:
            remedy = "give all sites the channels that the network takes, such as a grey image three times"
        problem = f"inputs {tuple(x.shape[1:])} of type {str(x.dtype).removeprefix('torch.')} do not fit the network"
        raise UserError(where, f"{problem} ({str(error).splitlines()[0]})", remedy) from error


def _require_one(where: str, model: nn.Module, x: Tensor) -> None:
    """Raise UserError if batch norm cannot train on a site's only sample `x`: it needs several values."""
    try:
        with undisturbed(), torch.no_grad():
            copy.deepcopy(model).to(x.device).train()(x)
    except ValueError as error:
        problem = "has one sample, and batch norm cannot train on a single value of a feature"
        raise UserError(where, problem, "give it more samples, or leave it out") from error


def outputs(model: nn.Module, task: Task, x: Tensor) -> int:
    """Return the number of classes of a network's logits for one input `x`.

    Raises UserError for outputs that do not fit the task.
    """
    with undisturbed(), torch.no_grad():
        logits = copy.deepcopy(model).to(x.device).eval()(x)
    return task.require_outputs(x, logits)


# ---- weights of the classes in the loss of local steps, from the labels of training images alone


def weigh_classes(clients: Sequence[Client], training: Training, collaboration: Collaboration) -> Traffic:
    """Set each client's class weights as `training.class_weights` asks for, and return the traffic of counting labels.

    See `class_weights`. Raises UserError for a label without a weight.
    """
    if training.class_weights is None:
        return Traffic()
    counted = [class_counts(client.train).numpy() for client in clients]
    for client, weights in zip(clients, class_weights(counted, training, collaboration), strict=True):
        client.class_weights = torch.from_numpy(weights.copy())
    return counting(counted, [client.name for client in clients], training, collaboration)


def class_weights(counted: Sequence[np.ndarray], training: Training, collaboration: Collaboration) -> np.ndarray:
    """Return the weights of the classes at each client, (clients, classes), given each client's counts of labels.

    `balanced` gives class c the weight n / (K n_c), with n training images, n_c of them of class c, and K classes that
    have any. The counts are the sums over all clients: each sends its own once, K integers, and gets the sums. Clients
    that train alone use their own counts. Raises UserError for a label without a weight.
    """
    classes = max(map(len, counted))
    if isinstance(training.class_weights, tuple):
        if classes > len(training.class_weights):
            problem = f"has {len(training.class_weights)} weights, and there is a label {classes - 1}"
            raise UserError("training.class_weights", problem, "give one weight for each class")
        return np.tile(training.class_weights, (len(counted), 1))
    counts = np.stack([np.pad(count, (0, classes - len(count))) for count in counted])
    return balanced(collaboration.class_counts(counts))


def counting(
    counted: Sequence[np.ndarray], names: Sequence[str], training: Training, collaboration: Collaboration
) -> Traffic:
    """Return the traffic of the numbers of labels that clients send for balanced class weights; none for other weights.

    `counted` are the numbers of labels of each class at each client, and `names` are the clients.
    """
    if training.class_weights != "balanced":
        return Traffic()
    return Traffic.summed_up(max(map(len, counted)), names, collaboration)


def balanced(counts: np.ndarray) -> np.ndarray:
    """Return balanced class weights n / (K n_c), 0 for classes without images, from `counts` (clients, classes).

    In each row, n is the number of images, n_c that of class c, and K the number of classes with images.
    """
    shown = (counts > 0).sum(1, keepdims=True)
    return counts.sum(1, keepdims=True) / (shown * np.maximum(counts, 1)) * (counts > 0)
