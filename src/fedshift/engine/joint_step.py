"""The joint step: the first local step of a round, taken by all clients together, layer by layer.

FedTAN (section 4): all clients hold the same weights and pass through the network at the same time. At each BN layer
they exchange the means and variances of their batches, and in the backward pass the gradients with respect to both.
Each client then holds the gradient of its own loss, through all clients' statistics.
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
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from ..algorithms import Bessel, Joint
from ..core.errors import UserError
from ..core.rng import keyed
from ..nn.batchnorm import batch_norm_by, moments
from .flat_network import Batch, FlatNetwork
from .ranks import ALONE, Ranks


class Exchange:
    """A server that returns weighted means, and counts what it is sent.

    `weights` are those of the clients of this process, `images` the sizes of all clients' batches. `floats` are those
    of one client each way, since every mean goes back to all; `messages` those of one direction.
    """

    def __init__(self, weights: Sequence[float], joint: Joint, images: Sequence[int], ranks: Ranks = ALONE) -> None:
        self.weights, self.joint, self.images, self.ranks = weights, joint, images, ranks
        self.floats = self.messages = 0

    def mean(self, parts: Sequence[Tensor]) -> Tensor:
        """The clients' weighted mean."""
        self.floats += parts[0].numel()
        self.messages += 1
        out = parts[0] * self.weights[0]
        for part, weight in zip(parts[1:], self.weights[1:], strict=True):
            out.add_(part, alpha=weight)
        return self.ranks.add_up(out)


@dataclass
class FirstStep:
    """Result of a joint first step, from which one client goes on.

    Attributes
    ----------
    grad : gradient of all trainable tensors, flat
    logits, y : the client's logits (batch, classes) and labels (batch,)
    statistics : running statistics of batch norm, flat
    ticks : what to add to the counters of batch norm
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
    objective : inputs and labels to mean loss and logits
    batches, own : each client's batch, and its own tensors, which are private parameters at most
    exchange : the means over clients
    key : key of dropout, equal for all clients

    Raises UserError where the network depends on the size of a batch, and batches differ in size.
    """
    layout, before = network.layout, network.counters.clone()
    start = network.all_params.clone()  # apart from running statistics, which change before the backward pass
    starts = [start] * len(own) if not len(own[0]) else [_with(start, tensors[layout.private]) for tensors in own]
    grads = [torch.zeros_like(network.all_grad) for _ in own]
    parameters = {
        name: Lockstep([_leaf(place.view(of), place.view(grad)) for of, grad in zip(starts, grads, strict=True)])
        for name, place in layout.places.items()
        if place.span.stop <= layout.trainable.stop
    }
    xs, ys = zip(*batches, strict=True)
    network.mode(train=True)
    coupled = batch_norm_by(network.model, lambda layer: functools.partial(_normalise, layer, exchange))
    with keyed(*key, device=network.device), _in_place_of(network.model, parameters), coupled:
        with network.autocast:
            losses, logits = map(_parts, objective(Lockstep(xs), Lockstep(ys)))
        torch.stack(losses).sum().backward()
    for owner, leaf, view in network.buffers:
        if owner._buffers[leaf] is not view:
            what = f"its buffer {leaf} is replaced in each pass, but a joint step has one buffer for all clients"
            raise UserError(f"module {type(owner).__name__}", what, "change it in place, or choose another algorithm")
    statistics, ticks = network.state_vector[layout.statistics].clone(), network.counters - before
    return [FirstStep(grad, out.detach(), y, statistics, ticks) for grad, out, y in zip(grads, logits, ys, strict=True)]


def _parts(tensor: Tensor) -> list[Tensor]:
    assert isinstance(tensor, Lockstep)
    return list(tensor.parts)


def _with(params: Tensor, private: Tensor) -> Tensor:
    """The parameters with one client's private ones, which come first."""
    return torch.cat([private.to(params.device), params[len(private) :]])


def _leaf(value: Tensor, grad: Tensor) -> Tensor:
    """One client's own copy of a parameter as far as gradients go; the value is stored once."""
    leaf = value.detach().requires_grad_()
    leaf.grad = grad
    return leaf


@contextmanager
def _in_place_of(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the model's parameters are these tensors."""
    new = {id(model.get_parameter(name)): tensor for name, tensor in tensors.items()}
    held = [(m, leaf, p) for m in model.modules() for leaf, p in m._parameters.items() if id(p) in new]
    for module, leaf, parameter in held:
        module._parameters[leaf] = new[id(parameter)]  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, leaf, parameter in held:
            module._parameters[leaf] = parameter


def _normalise(layer: _BatchNorm, exchange: Exchange, x: Tensor) -> Tensor:
    """What a BN layer does in lockstep: normalise every client's input with the statistics of all."""
    given = _parts(x)
    mean, var, *parts = _Coupling.apply(exchange, layer.eps, *given)
    _track(layer, mean, var, given[0][0].numel() // len(mean), exchange)
    weights, biases = (_each(own, len(parts)) for own in (layer.weight, layer.bias))
    return Lockstep(
        [
            batch_norm(part, mean, var, weight, bias, training=False, eps=layer.eps)
            for part, weight, bias in zip(parts, weights, biases, strict=True)
        ]
    )


def _each(tensor: Tensor | None, clients: int) -> Sequence[Tensor | None]:
    """Every client's; one that is not trained, or not there, is the same for all."""
    return tensor.parts if isinstance(tensor, Lockstep) else [tensor] * clients


@torch.no_grad()
def _track(layer: _BatchNorm, mean: Tensor, var: Tensor, pixels: int, exchange: Exchange) -> None:
    """Move the running statistics, which are the same at all clients, towards those of all batches.

    `pixels`: values a channel of one image.
    """
    if not layer.track_running_stats or layer.running_mean is None or layer.running_var is None:
        return
    layer.num_batches_tracked.add_(1)  # type: ignore[union-attr]
    rate = layer.momentum if layer.momentum is not None else 1 / int(layer.num_batches_tracked)  # type: ignore[arg-type]
    layer.running_mean.lerp_(mean, rate)
    layer.running_var.lerp_(var * _correction(exchange.joint.bessel, exchange.images, pixels), rate)


def _correction(bessel: Bessel, batches: Sequence[int], pixels: int) -> float:
    """What the variance over batches of so many images is multiplied by before it is kept."""
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
    """Passes the clients' inputs of a BN layer on, with the mean and variance of all; adds their gradients' path.

    Downstream, mean and variance are constants. This backward pass receives the direct path dF_i/dy_i = u / std, and
    adds Gmu / m_i + 2 (y_i - mu) Gv / m_i. Since sum u = std * sum direct, what each client sends follows from it:
    dF_i/dmu = -sum direct, dF_i/dv = -sum direct (y_i - mu) / (2 (v + eps)). The dependence of v_i on mu is left out,
    since it vanishes in the mean over clients, and only there.
    """

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, eps: float, *inputs: Tensor) -> tuple[Tensor, ...]:
        dims = [0, *range(2, inputs[0].dim())]
        means, variances = zip(*map(moments, inputs), strict=True)
        mean = exchange.mean(means)
        # the mean of (y_i - mu)^2 around the mean of all
        var = exchange.mean([v + (m - mean) ** 2 for v, m in zip(variances, means, strict=True)])
        ctx.exchange, ctx.eps, ctx.dims = exchange, eps, dims
        ctx.save_for_backward(mean, var, *inputs)
        ctx.mark_non_differentiable(mean, var)
        return mean, var, *(y.view_as(y) for y in inputs)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        exchange, (mean, var, *inputs), direct = ctx.exchange, ctx.saved_tensors, outputs[2:]
        shape = [1, -1, *[1] * (inputs[0].dim() - 2)]
        centred = [y - mean.view(shape) for y in inputs]
        to_mean = [-d.sum(ctx.dims, dtype=mean.dtype) for d in direct]
        to_var = [(d * c).sum(ctx.dims).mul_(-0.5).div_(var + ctx.eps) for d, c in zip(direct, centred, strict=True)]
        if exchange.joint.gradients:
            pair = exchange.mean([torch.stack(both) for both in zip(to_mean, to_var, strict=True)])
            to_mean, to_var = [pair[0]] * len(inputs), [pair[1]] * len(inputs)
        out = []
        for d, c, of_mean, of_var in zip(direct, centred, to_mean, to_var, strict=True):
            m = d.numel() // len(mean)
            out.append(c.mul_((2 * of_var / m).view(shape)).add_((of_mean / m).view(shape)).add_(d))
        return None, None, *out


class Lockstep(Tensor):
    """One tensor of every client: what is done to it is done to each client's, in turn.

    Parameters
    ----------
    parts : the clients' tensors; they may differ in the size of their batch
    """

    parts: Sequence[Tensor]

    @staticmethod
    def __new__(cls, parts: Sequence[Tensor]) -> Lockstep:
        self = torch.empty(0).as_subclass(cls)
        self.parts = parts
        return self

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = (args, kwargs or {})
        clients = len(_first(given).parts)
        done = [func(*a, **k) for a, k in (_of(given, i) for i in range(clients))]
        return _together(done)


def _first(given: Any) -> Lockstep:
    """The first tensor of all clients among arguments."""
    if isinstance(given, Lockstep):
        return given
    parts = given.values() if isinstance(given, dict) else given if isinstance(given, list | tuple) else ()
    return next((found for part in parts if (found := _first(part)) is not None), None)  # type: ignore[return-value]


def _of(given: Any, client: int) -> Any:
    """Arguments as one client has them."""
    if isinstance(given, Lockstep):
        return given.parts[client]
    if isinstance(given, dict):
        return {k: _of(v, client) for k, v in given.items()}
    if type(given) in (list, tuple):
        return type(given)(_of(v, client) for v in given)
    return given


def _together(done: list[Any]) -> Any:
    """The clients' results as one: tensors in lockstep, anything else if it is the same for all."""
    first = done[0]
    if isinstance(first, Tensor):
        return Lockstep(done)
    if isinstance(first, list | tuple) and any(isinstance(v, Tensor) for v in first):
        return type(first)([_together(list(column)) for column in zip(*done, strict=True)])
    if any(other != first for other in done[1:]):
        raise UserError(
            "joint step",
            f"the network asks for a size ({first}) in which clients' batches differ",
            "give clients equal batches, or write the network so that it does not ask",
        )
    return first
