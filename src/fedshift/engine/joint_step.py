"""The joint step: the first local step of a round, which all clients take together, layer by layer.

FedTAN (section 4): all clients hold the same weights and pass through the network at the same time. At each BN layer
they exchange the means and variances of their batches, and in the backward pass the gradients with respect to both.
Each client then holds the gradient of its loss, through all clients' statistics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from ..algorithms import Bessel, Joint
from ..core.errors import UserError
from ..core.rng import keyed
from ..nn.batchnorm import batch_norm_by, moments, normalised
from .flat_network import Batch, FlatNetwork
from .ranks import ALONE, Ranks


@dataclass
class Exchange:
    """Computes weighted means over clients during a joint step, and counts the floats and messages that this takes.

    `weights` are those of the clients of this process, and `images` are the sizes of all clients' batches. `joint` has
    the settings of the joint step, and `ranks` are the processes that share the clients. `floats` counts the floats of
    one client in each direction, which are equal, since every mean goes back to all. `messages` counts the messages in
    one direction.
    """

    weights: Sequence[float]
    joint: Joint
    images: Sequence[int]
    ranks: Ranks = ALONE
    floats: int = 0
    messages: int = 0

    def mean(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the weighted mean over all clients. `parts` has the tensor of each client of this process."""
        self.floats += parts[0].numel()
        self.messages += 1
        # One client after another, in order: sums of floats depend on it, and sites must get the same bits.
        out = parts[0] * self.weights[0]
        for part, weight in zip(parts[1:], self.weights[1:], strict=True):
            out.add_(part, alpha=weight)
        return self.ranks.add_up(out)


class Need(Exception):  # noqa: N818 - it is a request
    """Raised to request the next mean over clients from the server; `part` is this client's contribution to it."""

    def __init__(self, part: Tensor) -> None:
        super().__init__("the mean over all clients")
        self.part = part


@dataclass
class KnownMeans(Exchange):
    """The exchange of one client that reaches the server by messages alone: it replays the means that were sent so far.

    `means` are the means that the server has sent, in order. If the pass needs one more, `mean` raises Need with the
    client's detached part. The pass is repeated from the same tensors once the server has sent that mean.
    """

    means: Sequence[Tensor] = ()

    def mean(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the next mean that the server has sent. Raises Need with this client's part if it has sent no more."""
        if self.messages == len(self.means):
            raise Need(parts[0].detach().clone())
        self.floats += parts[0].numel()
        self.messages += 1
        # A copy, since the pass may change it in place.
        return self.means[self.messages - 1].to(parts[0].device, copy=True)


@dataclass
class FirstStep:
    """Result of a joint first step for one client, whose later local steps start from it.

    Attributes
    ----------
    grad : gradient of all trainable tensors, flat
    logits, y : the client's logits (batch, classes) and labels (batch,)
    statistics : running statistics of batch norm, flat
    ticks : increments of the counters of batches of batch norm
    """

    grad: Tensor
    logits: Tensor
    y: Tensor
    statistics: Tensor
    ticks: Tensor


def joint_step(
    network: FlatNetwork,
    objective: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    batches: Sequence[Batch],
    own: Sequence[Tensor],
    exchange: Exchange,
    key: Sequence[object],
) -> list[FirstStep]:
    """Run one forward and backward pass of all clients of this process, from the state that `network` holds.

    Parameters
    ----------
    network : holds the shared tensors, which are stored once
    objective : maps inputs and labels to mean loss and logits
    batches, own : each client's batch, and its own tensors, which can only be private parameters
    exchange : computes the means over clients
    key : random key of dropout, equal for all clients

    Returns the gradient, outputs and statistics of each client. Raises UserError if the network depends on the size of
    a batch and the batches differ in size, and if an operation writes clients' values in place into a tensor that all
    clients would share.
    """
    before = network.counters.clone()
    grads = [torch.zeros_like(network.all_grad) for _ in own]
    parameters = _parameters(network, own, grads)
    xs, ys = zip(*batches, strict=True)
    network.mode(train=True)
    coupled = batch_norm_by(network.model, lambda layer, _: functools.partial(_normalise, layer, exchange))
    with keyed(*key, device=network.device), _in_place_of(network.model, parameters), coupled:
        with network.autocast, _NoSharedWrites(network):
            losses, logits = map(_parts, objective(Lockstep(xs), Lockstep(ys)))
        # One backward pass of the sum: gradients of a client's loss reach other clients through the BN layers.
        torch.stack(losses).sum().backward()
    _require_attached(network)
    statistics = network.state_vector[network.layout.statistics].clone()
    ticks = network.counters - before
    return [FirstStep(grad, out.detach(), y, statistics, ticks) for grad, out, y in zip(grads, logits, ys, strict=True)]


def _parameters(network: FlatNetwork, own: Sequence[Tensor], grads: Sequence[Tensor]) -> dict[str, Lockstep]:
    """Return each trainable parameter by name, as a `Lockstep` with one tensor and one gradient for each client.

    `own` are the clients' private parameters; the gradients are views of the clients' flat vectors `grads`.
    """
    layout = network.layout
    # A copy, since running statistics, which share the vector, change before the backward pass.
    start = network.all_params.clone()
    starts = [start] * len(own)
    if len(own[0]):
        starts = [_with(start, tensors[layout.private]) for tensors in own]
    out = {}
    for name, place in layout.places.items():
        if place.span.stop <= layout.trainable.stop:
            values = [_leaf(place.view(params), place.view(grad)) for params, grad in zip(starts, grads, strict=True)]
            out[name] = Lockstep(values)
    return out


def _require_attached(network: FlatNetwork) -> None:
    """Raise UserError if a module has replaced one of its buffers by a new tensor.

    In a joint step all clients share one buffer, which may only be changed in place.
    """
    for owner, leaf, view in network.buffers:
        if owner._buffers[leaf] is not view:
            problem = f"its buffer {leaf} is replaced in each pass, but a joint step has one buffer for all clients"
            raise UserError(
                f"module {type(owner).__name__}", problem, "change it in place, or choose another algorithm"
            )


def _parts(tensor: Tensor) -> list[Tensor]:
    assert isinstance(tensor, Lockstep)
    return list(tensor.parts)


def _with(params: Tensor, private: Tensor) -> Tensor:
    """Return a copy of the flat vector `params` that begins with one client's `private` parameters."""
    return torch.cat([private.to(params.device), params[len(private) :]])


def _leaf(value: Tensor, grad: Tensor) -> Tensor:
    """Return `value` as a parameter of one client, without a copy, whose gradient is added to the tensor `grad`."""
    leaf = value.detach().requires_grad_()
    leaf.grad = grad
    return leaf


@contextmanager
def _in_place_of(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace the model's parameters by `tensors` (name to tensor) inside the context."""
    new = {id(model.get_parameter(name)): tensor for name, tensor in tensors.items()}
    replaced = [(m, leaf, p) for m in model.modules() for leaf, p in m._parameters.items() if id(p) in new]
    for module, leaf, parameter in replaced:
        module._parameters[leaf] = new[id(parameter)]  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, leaf, parameter in replaced:
            module._parameters[leaf] = parameter


def _normalise(layer: _BatchNorm, exchange: Exchange, x: Tensor) -> Tensor:
    """Return every client's input of a BN layer, normalised with mean and variance over all clients.

    `x` is a `Lockstep`.
    """
    inputs = _parts(x)
    mean, var, *parts = _Coupling.apply(exchange, layer.eps, *inputs)
    _track(layer, mean, var, inputs[0][0].numel() // len(mean), exchange)
    weights, biases = (_each(tensor, len(parts)) for tensor in (layer.weight, layer.bias))
    return Lockstep(
        [
            normalised(part, mean, var, weight, bias, layer.eps)
            for part, weight, bias in zip(parts, weights, biases, strict=True)
        ]
    )


def _each(tensor: Tensor | None, clients: int) -> Sequence[Tensor | None]:
    """Return a tensor for each client: the parts of a `Lockstep`, or one untrained tensor (or None) that all share."""
    return tensor.parts if isinstance(tensor, Lockstep) else [tensor] * clients


@torch.no_grad()
def _track(layer: _BatchNorm, mean: Tensor, var: Tensor, pixels: int, exchange: Exchange) -> None:
    """Move a BN layer's running statistics, equal at all clients, towards mean and variance over all clients' batches.

    `pixels` is the number of values in one channel of one image.
    """
    if not layer.track_running_stats or layer.running_mean is None or layer.running_var is None:
        return
    layer.num_batches_tracked.add_(1)  # type: ignore[union-attr]
    rate = layer.momentum if layer.momentum is not None else 1 / int(layer.num_batches_tracked)  # type: ignore[arg-type]
    layer.running_mean.lerp_(mean, rate)
    layer.running_var.lerp_(var * _correction(exchange.joint.bessel, exchange.images, pixels), rate)


def _correction(bessel: Bessel, batches: Sequence[int], pixels: int) -> float:
    """Return Bessel's correction: the factor on the variance over all batches before it enters the running variance.

    `batches` are the clients' numbers of images, and `pixels` is the number of values in one channel of one image.
    Raises UserError for `fedtan_code` if the numbers of images differ or are 1.
    """
    if bessel == "none":
        return 1.0
    images = set(batches)
    if bessel == "fedtan_code" and (len(images) > 1 or images == {1}):
        raise UserError(
            "running_var_bessel",
            "fedtan_code counts the images of one client, but batches differ in size or hold one image",
            "use torch",
        )
    n = pixels * sum(batches) if bessel == "torch" else images.pop()
    return n / (n - 1)


class _Coupling(Function):
    """A BN layer's mean and variance over all clients, with the gradients that flow through them between clients.

    F_i is the loss of client i, y_i its input of the layer, with m_i values in each channel, and u the gradient of F_i
    with respect to the normalised input. Downstream, mean mu and variance v are constants. This backward pass receives
    the direct path dF_i/dy_i = u / std, and adds Gmu / m_i + 2 (y_i - mu) Gv / m_i, where Gmu and Gv are the means over
    clients of dF_i/dmu and dF_i/dv or, if clients do not exchange gradients, the client's own. Since sum u = std * sum
    direct, the values that each client sends follow: dF_i/dmu = -sum direct, dF_i/dv = -sum direct (y_i - mu) / (2 (v +
    eps)). The dependence of v_i, the variance of client i, on mu is left out, since it vanishes in the mean over
    clients, and only there.
    """

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, eps: float, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return mean and variance over all clients' inputs, (channels,) each, and the inputs unchanged."""
        dims = [0, *range(2, inputs[0].dim())]
        means, variances = zip(*map(moments, inputs), strict=True)
        mean = exchange.mean(means)
        # The mean of (y_i - mu)^2, with mu the mean over all clients: Var_i + (m_i - mu)^2.
        var = exchange.mean([v + (m - mean) ** 2 for v, m in zip(variances, means, strict=True)])
        ctx.exchange = exchange
        ctx.eps = eps
        ctx.dims = dims
        ctx.save_for_backward(mean, var, *inputs)
        ctx.mark_non_differentiable(mean, var)
        return mean, var, *(y.view_as(y) for y in inputs)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to the inputs: the direct path and the path through mean and variance."""
        exchange = ctx.exchange
        mean, var, *inputs = ctx.saved_tensors
        direct = outputs[2:]
        shape = [1, -1, *[1] * (inputs[0].dim() - 2)]
        centred = [y - mean.view(shape) for y in inputs]
        to_mean = [-d.sum(ctx.dims, dtype=mean.dtype) for d in direct]
        to_var = [(d * c).sum(ctx.dims).mul_(-0.5).div_(var + ctx.eps) for d, c in zip(direct, centred, strict=True)]
        if exchange.joint.gradients:
            pair = exchange.mean([torch.stack(both) for both in zip(to_mean, to_var, strict=True)])
            to_mean = [pair[0]] * len(inputs)
            to_var = [pair[1]] * len(inputs)
        out = []
        for d, c, grad_mean, grad_var in zip(direct, centred, to_mean, to_var, strict=True):
            m = d.numel() // len(mean)
            # In place, in this order: c is not needed again, and sums of floats depend on their order.
            out.append(c.mul_((2 * grad_var / m).view(shape)).add_((grad_mean / m).view(shape)).add_(d))
        return None, None, *out


class Lockstep(Tensor):
    """A tensor that stands for one tensor of each client: an operation on it runs on every client's tensor in turn.

    Parameters
    ----------
    parts : the clients' tensors; they may differ in the size of their batch
    """

    parts: Sequence[Tensor]

    @staticmethod
    def __new__(cls, parts: Sequence[Tensor]) -> Lockstep:
        """Return a tensor that holds the clients' tensors as `parts`."""
        # An empty tensor as carrier: torch dispatches on the type, and only the parts hold numbers.
        self = torch.empty(0).as_subclass(cls)
        self.parts = parts
        return self

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a torch function for each client in turn, and return the clients' results as one (see `_together`)."""
        arguments = (args, kwargs or {})
        clients = len(_first(arguments).parts)
        results = [func(*a, **k) for a, k in (_of(arguments, i) for i in range(clients))]
        return _together(results)


class _NoSharedWrites(TorchFunctionMode):
    """A torch mode that refuses in-place operations by which clients would share a tensor that they must not share.

    Only the network's own state vector and counters may be written so: all clients have the same running statistics.
    """

    def __init__(self, network: FlatNetwork) -> None:
        super().__init__()
        self.memory = {_address(network.state_vector), _address(network.counters)}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a torch function. Raises UserError if it writes a `Lockstep` in place into an ordinary tensor."""
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        mixed = in_place and Lockstep in types and not isinstance(args[0], Lockstep)
        if mixed and _address(args[0]) not in self.memory:
            problem = f"{name} writes into a tensor that all clients would share"
            raise UserError("joint step", problem, "write the network without changes in place")
        return func(*args, **kwargs or {})


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _first(argument: Any) -> Lockstep:
    """Return the first `Lockstep` in `argument`, which may be nested lists, tuples and dicts; None if there is none."""
    if isinstance(argument, Lockstep):
        return argument
    if isinstance(argument, dict):
        argument = tuple(argument.values())
    found = map(_first, argument if isinstance(argument, list | tuple) else ())
    return next((tensor for tensor in found if tensor is not None), None)  # type: ignore[return-value]


def _of(argument: Any, client: int) -> Any:
    """Return `argument` with the tensor of client number `client` in place of each `Lockstep` in it."""
    if isinstance(argument, Lockstep):
        return argument.parts[client]
    if isinstance(argument, dict):
        return {k: _of(v, client) for k, v in argument.items()}
    if type(argument) in (list, tuple):
        return type(argument)(_of(v, client) for v in argument)
    return argument


def _together(results: list[Any]) -> Any:
    """Return the clients' results as one: tensors become one `Lockstep`, other values must be equal.

    `results` has the result of a torch function for each client. Raises UserError for other values that differ.
    """
    first = results[0]
    if isinstance(first, Tensor):
        return Lockstep(results)
    if isinstance(first, list | tuple) and any(isinstance(v, Tensor) for v in first):
        return type(first)([_together(list(column)) for column in zip(*results, strict=True)])
    if any(other != first for other in results[1:]):
        raise UserError(
            "joint step",
            f"the network reads the size of its batch ({first}), in which the clients differ",
            "give clients equal batches, or change the network so that it does not read this size",
        )
    return first
