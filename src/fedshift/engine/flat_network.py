"""One network on one device, whose tensors are views of a single flat vector, and averages of running variances."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..addons import home_names
from ..algorithms import Blend, Training
from ..data.samples import Samples, batch_indices, shape_of
from ..metrics import Metric
from ..nn.batchnorm import batch_norms, read_anywhere
from ..nn.device import arithmetic, in_float64, read_ahead, to_device
from ..nn.features import Blended
from ..nn.flat_state import Layout
from ..nn.norms import rest
from .specification import Specification

Batch = tuple[Tensor, Tensor]
Storage = tuple[Tensor, Tensor, Tensor]
"""Where a network keeps its flat vector (size,), the gradient of its trainable part, and its counters (counters,)."""
EVALUATED = 256
"""Largest number of images that are evaluated at once."""


class RunningVariances:
    """Turns clients' running variances into mean squares that can be averaged, and their average into a variance.

    With `how` "pooled", the averaged variance is that of all clients' data. With "averaged", or if variances stay at
    the clients, the methods change nothing, and variances are averaged as they are. `shared` is the slice of the flat
    state that travels.
    """

    def __init__(
        self, how: Literal["averaged", "pooled"], layout: Layout, shared: slice, model: nn.Module, device: torch.device
    ) -> None:
        tracked = [k for k in batch_norms(model) if f"{k}.running_var" in layout.places]
        layers = [k for k in tracked if layout.places[f"{k}.running_var"].span.stop <= shared.stop]
        self.pooled = how == "pooled" and bool(layers)
        if self.pooled:
            spans = [[layout.places[f"{k}.running_{moment}"].span for k in layers] for moment in ("mean", "var")]
            mean, var = (torch.cat([torch.arange(s.start, s.stop) for s in kind]) - shared.start for kind in spans)
            self._mean = mean.to(device)
            self._var = var.to(device)

    def gather(self, shared: Tensor, around: Tensor) -> None:
        """Turn a client's variances in `shared` into mean squares around the means of `around`, in place.

        Mean squares around common means can be averaged over clients.
        """
        if self.pooled:
            shared[self._var] += (shared[self._mean] - around[self._mean]) ** 2

    def pool(self, shared: Tensor, around: Tensor) -> None:
        """Turn averaged mean squares in `shared` back into variances, in place: the reverse of `gather`."""
        if self.pooled:
            # Rounding can leave a variance below zero where clients hardly differ.
            shared[self._var] = (shared[self._var] - (shared[self._mean] - around[self._mean]) ** 2).clamp(min=0)


class FlatNetwork:
    """A network that holds the state of one client at a time.

    Its tensors are views of `storage`, which keeps its values until a client is loaded. By default it is new, with the
    values of the model.

    Attributes
    ----------
    layout : places of all tensors in the state vector
    state_vector : state of the current client, `[private | affine | weights | statistics]`
    all_params, all_grad : trainable part of the state vector, and its gradient
    travels : slice of the state vector that travels
    shared : the tensors that travel, as a view
    params, grad : the shared trainable part as a view, and its gradient
    counters : integer buffers of batch norm, kept beside the state vector
    batch_norms : the layers of batch norm whose statistics move in training
    variances : the running variances among the tensors that travel
    task : what targets are, and how outputs become a loss
    channels_last : whether images and convolutions have the channels last in memory
    answering : the module from which `evaluate` gets logits: the network, unless several networks were loaded to
        predict together
    """

    def __init__(
        self,
        specification: Specification,
        training: Training,
        device: torch.device,
        channels_last: bool,
        storage: Storage | None = None,
    ) -> None:
        policy, algorithm = specification.policy, specification.algorithm
        self.task = specification.task
        self.training = training
        self.device = device
        self.channels_last = channels_last
        self.model = copy.deepcopy(specification.model).to(device)
        rests = rest(self.model, training.train)
        if rests and channels_last:
            self.model.to(memory_format=torch.channels_last)  # what is trained gets its format from the layout
        stays = home_names(specification.addon, algorithm, specification.model)
        self.layout = Layout(self.model, channels_last, stays, policy.norms, rests)
        if storage is None:
            state_vector = self.layout.pack(dict(self.model.state_dict())).to(device)
            counts = [int(self.model.get_buffer(k)) for k in self.layout.counters]
            counters = torch.tensor(counts, dtype=torch.long, device=device)
            storage = state_vector, torch.zeros_like(state_vector[self.layout.trainable]), counters
        self.state_vector, self.all_grad, self.counters = storage
        self.layout.attach(self.model, self.state_vector, self.all_grad, self.counters)
        if channels_last and device.type == "cuda":
            read_anywhere(self.model)
        self.travels = algorithm.shared(policy, self.layout)
        trained = slice(self.travels.start, min(self.travels.stop, self.layout.trainable.stop))
        self.all_params = self.state_vector[self.layout.trainable]
        self.all_params.grad = self.all_grad
        self.shared = self.state_vector[self.travels]
        self.params = self.state_vector[trained]
        self.grad = self.all_grad[trained]
        self.trainable = slice(0, trained.stop - trained.start)
        around = self.state_vector[: self.travels.start], self.state_vector[self.travels.stop :]
        self._staying = [piece for piece in around if len(piece)]
        self._nothing = self.state_vector[:0].cpu()
        layers = batch_norms(self.model)
        self.batch_norms = [layer for name, layer in layers.items() if f"{name}.running_mean" not in rests]
        self._resting = [layer.eval() for layer in layers.values() if layer not in self.batch_norms]
        self.buffers = self.layout.buffers(self.model)
        self._frozen_statistics = False
        self.variances = RunningVariances(training.running_variance, self.layout, self.travels, self.model, device)
        self._copies: dict[str, tuple[nn.Module, Tensor, Tensor]] = {}
        self.answering = self.model

    @property
    def autocast(self) -> AbstractContextManager[None]:
        """A new context for one forward pass, in bfloat16 if the training asks for it. It cannot be entered twice."""
        if self.training.precision == "bfloat16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def arithmetic(self) -> AbstractContextManager[None]:
        """Return a context in which the device computes with the precision and determinism of the training settings."""
        return arithmetic(self.device, self.training.precision, self.training.deterministic)

    def load(self, shared: Tensor, own: Tensor, counters: Tensor) -> None:
        """Load the shared tensors, one client's own tensors, and its counters of batch norm."""
        self.settle()
        self.answering = self.model
        self.assemble(self.state_vector, shared, to_device(own, self.device))
        self.counters.copy_(counters)

    def answer_with(self, blend: Blend) -> None:
        """Load the first network of `blend`, and let `evaluate` use all of them, until `load` is called."""
        self.state_vector.copy_(blend.networks[0])
        if len(blend.networks) > 1:
            networks = [self.frozen(f"blend {k}", vector) for k, vector in enumerate(blend.networks)]
            self.answering = Blended(networks, blend.weights, blend.of)

    def assemble(self, state_vector: Tensor, shared: Tensor, own: Tensor) -> None:
        """Write a whole state into `state_vector` in place: the shared tensors, and around them the client's own."""
        lo, hi = self.travels.start, self.travels.stop
        state_vector[lo:hi] = shared
        if len(own):
            state_vector[:lo] = own[:lo]
            state_vector[hi:] = own[lo:]

    def settle(self) -> None:
        """Copy buffers that a module has replaced by new tensors back into the state vector."""
        for owner, leaf, view in self.buffers:
            current = owner._buffers[leaf]
            if current is not view and current is not None:
                view.copy_(current.detach())
                owner._buffers[leaf] = view

    def own(self) -> Tensor:
        """Return a copy, on the CPU, of the tensors that stay at the client."""
        return torch.cat(self._staying).cpu() if self._staying else self._nothing

    @property
    def own_names(self) -> list[str]:
        """Names of the tensors that stay at the clients."""
        before = slice(0, self.travels.start)
        after = slice(self.travels.stop, self.layout.size)
        names = [*self.layout.names(before), *self.layout.names(after)]
        if names:
            names += self.layout.counters
        return names + [alias for alias, first in self.layout.aliases.items() if first in names]

    def named_state(self, shared: Tensor, own: Tensor, counters: Tensor) -> dict[str, Tensor]:
        """Return the network's `state_dict`, on the CPU, from its vectors: shared, a client's own, counters."""
        vector = torch.empty_like(self.state_vector)
        self.assemble(vector, shared, own)
        return self.named(vector, counters)

    def named(self, state_vector: Tensor, counters: Tensor) -> dict[str, Tensor]:
        """Return the `state_dict` of the network with the tensors of `state_vector`, on the CPU."""
        current = self.model.state_dict()
        constants = {k: current[k].cpu().clone() for k in self.layout.constants}
        named_counters = dict(zip(self.layout.counters, counters.cpu().clone(), strict=True))
        state = {**self.layout.unpack(state_vector), **named_counters, **constants}
        return state | {k: state[first].clone() for k, first in self.layout.aliases.items()}

    def frozen(self, slot: str, state_vector: Tensor) -> nn.Module:
        """Return a second network in evaluation mode with the tensors of `state_vector`.

        There is one network for each `slot`: the next call with this name overwrites its tensors.
        """
        if slot not in self._copies:
            model = copy.deepcopy(self.model).eval()
            vector = torch.empty_like(self.state_vector)
            counters = self.counters.clone()
            # The copy is never differentiated, so that it needs no gradients for itself.
            self.layout.attach(model, vector, self.all_grad, counters)
            self._copies[slot] = model, vector, counters
        model, vector, _ = self._copies[slot]
        vector.copy_(state_vector)
        return model

    @torch.no_grad()
    def evaluate(
        self,
        samples: Samples,
        metric: Metric | None = None,
        rows: np.ndarray | None = None,
    ) -> tuple[float, float, float | None]:
        """Return mean cross-entropy, accuracy and the metric's value of the current state, in evaluation mode.

        `rows` (n,) are the indices of the samples that count; by default all do.
        """
        if rows is None:
            rows = np.arange(len(samples))
        self.mode(train=False)
        loss_sum = self.state_vector.new_zeros(())
        correct = in_float64(self.state_vector.new_zeros(()))
        outputs = list[Tensor]()
        labels = list[Tensor]()
        size = self.task.at_once(EVALUATED, shape_of(samples))
        batches = (self.to_device(*samples.batch(index)) for index in batch_indices(rows, size))
        for x, y in read_ahead(batches, self.device):
            with self.autocast:
                logits = self.answering(x)
            loss, right = self.task.sums(logits.to(loss_sum.dtype), y)
            loss_sum += loss
            correct += in_float64(right)
            if metric:
                outputs.append(self.task.predictions(logits, y, final=False))
                # Of a mask a pixel is enough: its predictions are counts already. A view would keep the whole mask.
                labels.append(y.reshape(len(y), -1)[:, 0].clone())
        value = None
        if metric:
            value = metric.value(torch.cat(labels).cpu().numpy(), torch.cat(outputs).cpu().numpy())
        return float(loss_sum) / len(rows), float(correct) / len(rows), value

    def mode(self, train: bool, frozen_statistics: bool = False) -> None:
        """Set training or evaluation mode of the network.

        Batch norm stays in evaluation mode with `frozen_statistics`, and always where `training.train` does not train
        it.
        """
        if self.model.training is not train or self._frozen_statistics is not frozen_statistics:
            self.model.train(train)
            for layer in self.batch_norms:
                layer.train(train and not frozen_statistics)
            for layer in self._resting:
                layer.eval()
            self._frozen_statistics = frozen_statistics

    def to_device(self, x: Tensor, y: Tensor) -> Batch:
        """Return a batch on the device, in the memory format of the network."""
        x, y = to_device(x, self.device), to_device(y, self.device)
        if self.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, y
