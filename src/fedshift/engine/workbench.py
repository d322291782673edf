"""One network on one device, whose tensors are views of a single flat vector: where clients do their local work."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.sgd import sgd

from ..algorithms import Algorithm, Local, Training
from ..core.errors import Interrupted
from ..core.rng import reseed, stream, torch_stream
from ..data.samples import Samples
from ..nn.batchnorm import batch_norms, untracked
from ..nn.bn_policy import BNPolicy
from ..nn.flat_state import Layout
from .batches import batch_indices, batch_stream, round_steps
from .running_variance import RunningVariances
from .tally import Tally, diverged

Batch = tuple[Tensor, Tensor]
LARGE = 100_000
"""Floats of a tensor, on average, from which memory is what a step waits for."""


@dataclass(kw_only=True)
class Work(Local):
    """One client's work on a workbench."""

    bench: Workbench
    algorithm: Algorithm
    samples: Samples
    seed: int
    extra: Iterator[Batch] | None = None

    @property
    def key(self) -> tuple[int, int, str]:
        """Of all that is random in this work."""
        return self.seed, self.round, self.client

    def draw(self) -> Batch:
        if self.extra is None:
            self.extra = self.bench.batches(self.samples, *self.key, purpose="extra ", endless=True)
        return next(self.extra)

    def full_gradient(self) -> Tensor:
        before, total = self.all_grad.clone(), torch.zeros_like(self.grad)
        self.bench.mode(train=True)
        order = torch.randperm(len(self.samples), generator=torch_stream(*self.key, "full gradient")).numpy()
        with self.untracked():
            for index in batch_indices(order, self.bench.training.batch_size):
                self.all_grad.zero_()
                self.algorithm.backward(self, *self.bench.to_device(*self.samples.batch(index)))
                total.add_(self.grad, alpha=len(index) / len(self.samples))
        self.all_grad.copy_(before)
        return total

    def frozen(self, slot: str, whole: Tensor) -> nn.Module:
        return self.bench.frozen(slot, whole)

    def untracked(self) -> AbstractContextManager[None]:
        return untracked(self.model)


@dataclass
class FirstStep:
    """What a joint first step leaves for one client to go on from."""

    grad: Tensor
    logits: Tensor
    y: Tensor
    statistics: Tensor
    ticks: Tensor
    """What to add to BN's counters."""


class Workbench:
    """A network that clients take turns to train.

    Attributes
    ----------
    layout : places of all tensors in `flat`
    flat : the state of whoever works here now, `[private | affine | weights | statistics]`
    counters : BN's integer buffers, beside it
    shared, span : the slices of `flat` that travel, and that travel and are trained
    shared_part, shared_params, shared_grad : views of these, and of the gradient
    variances : the running ones among what travels
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        policy: BNPolicy,
        training: Training,
        device: torch.device,
        stays: Collection[str] = (),
    ) -> None:
        self.training, self.device = training, device
        self.model = copy.deepcopy(model).to(device)
        self.layout = Layout(self.model, training.channels_last, stays)
        self.flat = self.layout.pack(dict(self.model.state_dict())).to(device)
        self.grad = torch.zeros_like(self.flat[self.layout.trainable])
        counted = [int(self.model.get_buffer(k)) for k in self.layout.counters]
        self.counters = torch.tensor(counted, dtype=torch.long, device=device)
        self.layout.attach(self.model, self.flat, self.grad, self.counters)
        self._leaves = [(p, p.grad) for p in self.model.parameters() if p.requires_grad]
        self._large = len(self.grad) > LARGE * len(self._leaves)
        self.shared = algorithm.shared(policy, self.layout)
        self.span = slice(self.shared.start, min(self.shared.stop, self.layout.trainable.stop))
        self.params = self.flat[self.layout.trainable]
        self.shared_part, self.shared_params = self.flat[self.shared], self.flat[self.span]
        self.shared_grad = self.grad[self.span]
        self.params.grad = self.grad
        lower = training.precision == "bfloat16"
        self.autocast = torch.autocast(device.type, dtype=torch.bfloat16) if lower else nullcontext()
        self._batch_norms = list(batch_norms(self.model).values())
        self.buffers = self.layout.buffers(self.model)
        self._learnt = self._what_must_be_finite()
        self._frozen_statistics = False
        self.variances = RunningVariances(training.running_variance, self.layout, self.shared, self.model, device)
        self._spare: dict[str, tuple[nn.Module, Tensor, Tensor]] = {}

    # ---- whose state lies here

    def load(self, shared: Tensor, own: Tensor, counters: Tensor) -> None:
        """Take up the shared tensors with one client's own."""
        self.settle()
        self.assemble(self.flat, shared, own)
        self.counters.copy_(counters)

    def assemble(self, flat: Tensor, shared: Tensor, own: Tensor) -> None:
        """Write a whole state into `flat`: what is shared, and around it what stays."""
        lo, hi = self.shared.start, self.shared.stop
        flat[lo:hi] = shared
        if len(own):
            flat[:lo] = own[:lo]
            flat[hi:] = own[lo:]

    @torch.no_grad()
    def settle(self) -> None:
        """Take up buffers that a module has replaced by others, rather than changed: they are in `flat` again."""
        for owner, leaf, view in self.buffers:
            if (found := owner._buffers[leaf]) is not view and found is not None:
                view.copy_(found)
                owner._buffers[leaf] = view

    def own(self) -> Tensor:
        """A copy, on the CPU, of the tensors that stay."""
        if self.shared == slice(0, self.layout.size):
            return self.flat[:0].cpu()
        return torch.cat([self.flat[: self.shared.start], self.flat[self.shared.stop :]]).cpu()

    @property
    def own_names(self) -> list[str]:
        """Names of the tensors that stay at the clients."""
        before, after = slice(0, self.shared.start), slice(self.shared.stop, self.layout.size)
        kept = [*self.layout.names(before), *self.layout.names(after)]
        kept += self.layout.counters if kept else []
        return kept + [again for again, first in self.layout.aliases.items() if first in kept]

    def frozen(self, slot: str, whole: Tensor) -> nn.Module:
        """A second network in evaluation mode, one for each slot, with the tensors of `whole`."""
        if slot not in self._spare:
            model, flat, counters = copy.deepcopy(self.model).eval(), torch.empty_like(self.flat), self.counters.clone()
            self.layout.attach(model, flat, self.grad, counters)  # nothing is ever differentiated there
            self._spare[slot] = model, flat, counters
        model, flat, _ = self._spare[slot]
        flat.copy_(whole)
        return model

    # ---- local work

    def batches(
        self, samples: Samples, *key: object, purpose: str = "", endless: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one client's round, on the device; all random draws depend on `key` and `purpose`."""
        order = torch_stream(*key, f"{purpose}batches")
        augmentation = stream(*key, f"{purpose}augmentation") if samples.random else None
        indices = batch_stream(len(samples), self.training, order)
        steps = None if endless else round_steps(len(samples), self.training)
        for index in itertools.islice(indices, steps):
            yield self.to_device(*samples.batch(index, augmentation))

    def train(
        self,
        work: Work,
        batches: Iterator[Batch],
        should_stop: Callable[[], bool],
        tally: Tally,
        first: FirstStep | None = None,
    ) -> None:
        """One client's local steps of one round, the first of them perhaps done already by all together.

        Seeds torch's default generators: call it inside `rng.undisturbed`. Raises UserError where a loss or a weight is
        not finite, Interrupted where `should_stop` says so between batches.
        """
        algorithm = work.algorithm
        self.mode(train=True, frozen_statistics=algorithm.freezes_statistics(work.round))
        reseed(*work.key, "dropout", device=self.device)
        algorithm.begin(work)
        if first:
            self.flat[self.layout.statistics] = first.statistics
            self.counters.add_(first.ticks)
            self.grad.copy_(first.grad)
            self._step(work, [self.params], [self.grad], [None])  # with an optimiser of its own, as in the reference
            tally.add(work.client, first.logits, first.y)
        whole = not self._large or algorithm.reads_gradient or self.training.clip_norm is not None
        params: list[Tensor] = [self.params] if whole else [p for p, _ in self._leaves]
        momentum: list[Tensor | None] = [None] * len(params)
        try:
            for x, y in batches:
                if should_stop():
                    raise Interrupted
                self._clear_gradient(whole)
                logits = algorithm.gradient(work, x, y)
                grads = [self.grad] if whole else [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
                self._step(work, params, grads, momentum)
                tally.add(work.client, logits, y)
        finally:
            for parameter, place in () if whole else self._leaves:
                parameter.grad = place
        self.settle()
        if not math.isfinite(sum(float(tensor.sum()) for tensor in self._learnt)):
            tally.read()
            raise diverged(work.round, work.client, "a weight is not finite after the last step")

    def _what_must_be_finite(self) -> list[Tensor]:
        """All floats, in one piece; without the buffers of other modules than BN, such as a mask of -inf."""
        known = {id(buffer) for layer in self._batch_norms for buffer in layer.buffers()}
        tracked = [view for _, _, view in self.buffers if id(view) in known and view.is_floating_point()]
        whole = sum(view.numel() for view in tracked) == self.layout.statistics.stop - self.layout.statistics.start
        return [self.flat] if whole else [self.params, *tracked]

    def _clear_gradient(self, whole: bool) -> None:
        """Before a pass: gradients are added up in one vector of zeros, or lie where the pass leaves them.

        The latter spares a pass over all of them, the former an update for each tensor.
        """
        if whole:
            self.grad.zero_()
        else:
            for parameter, _ in self._leaves:
                parameter.grad = None

    def _step(self, work: Work, params: list[Tensor], grads: list[Tensor], momentum: list[Tensor | None]) -> None:
        """One SGD step: torch's arithmetic without the cost of an Optimizer for each client."""
        t = self.training
        work.algorithm.correct(work)
        if t.clip_norm is not None:
            clip_grad_norm_(self.params, t.clip_norm)
        with torch.no_grad():
            sgd(
                params,
                grads,
                momentum,
                weight_decay=t.weight_decay,
                momentum=t.momentum,
                lr=work.lr,
                dampening=0,
                nesterov=False,
                maximize=False,
                foreach=len(params) > 1,
            )
        work.steps += 1

    @torch.no_grad()
    def evaluate(self, samples: Samples, batch_size: int = 256) -> tuple[float, float]:
        """Mean cross-entropy and accuracy of the state now loaded, with running statistics."""
        self.mode(train=False)
        loss_sum, right = self.flat.new_zeros(()), self.counters.new_zeros(())
        for index in batch_indices(np.arange(len(samples)), batch_size):
            x, y = self.to_device(*samples.batch(index))
            with self.autocast:
                logits = self.model(x)
            loss_sum += cross_entropy(logits.to(loss_sum.dtype), y, reduction="sum")
            right += (logits.argmax(1) == y).sum()
        return float(loss_sum) / len(samples), int(right) / len(samples)

    def mode(self, train: bool, frozen_statistics: bool = False) -> None:
        """Training or evaluation mode; with `frozen_statistics`, BN stays in the latter."""
        if self.model.training is not train or self._frozen_statistics is not frozen_statistics:
            self.model.train(train)
            for layer in self._batch_norms:
                layer.train(train and not frozen_statistics)
            self._frozen_statistics = frozen_statistics

    def to_device(self, x: Tensor, y: Tensor) -> Batch:
        """A batch on the device, in the memory format asked for."""
        x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
        if self.training.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, y
