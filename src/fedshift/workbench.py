"""One network on one device, whose tensors are views of a single flat vector: where clients do their local work."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.sgd import sgd

from .algorithm import Algorithm, Local
from .bn import BNPolicy
from .errors import Interrupted, UserError
from .rng import seed_of, stream, torch_stream
from .samples import Samples
from .state import Layout
from .training import Training


class Workbench:
    """A network that clients take turns to train.

    Attributes
    ----------
    layout : places of all tensors in `flat`
    flat : the state of whoever works here now, `[affine | weights | statistics]`
    counters : BN's integer buffers, beside it
    shared, span : the slices of `flat` that travel, and that travel and are trained
    """

    def __init__(self, model: nn.Module, policy: BNPolicy, training: Training, device: torch.device) -> None:
        self.training, self.device = training, device
        self.model = copy.deepcopy(model).to(device)
        self.layout = Layout(self.model, training.channels_last)
        self.flat = self.layout.pack(dict(self.model.state_dict())).to(device)
        self.grad = torch.zeros_like(self.flat[self.layout.trainable])
        counted = [int(self.model.get_buffer(k)) for k in self.layout.counters]
        self.counters = torch.tensor(counted, dtype=torch.long, device=device)
        self.layout.attach(self.model, self.flat, self.grad, self.counters)
        self.shared = policy.shared(self.layout)
        self.span = slice(self.shared.start, min(self.shared.stop, self.layout.trainable.stop))
        self._parameter = self.flat[self.layout.trainable]
        lower = training.precision == "bfloat16" and device.type == "cuda"
        self._autocast = torch.autocast(device.type, dtype=torch.bfloat16) if lower else nullcontext()

    def load(self, shared: Tensor, own: Tensor, counters: Tensor) -> None:
        """Take up the shared tensors with one client's own."""
        self.assemble(self.flat, shared, own)
        self.counters.copy_(counters)

    def assemble(self, flat: Tensor, shared: Tensor, own: Tensor) -> None:
        """Write a whole state into `flat`: what is shared, and around it what stays."""
        lo, hi = self.shared.start, self.shared.stop
        flat[lo:hi] = shared
        if len(own):
            flat[:lo] = own[:lo]
            flat[hi:] = own[lo:]

    def own(self) -> Tensor:
        """A copy of the tensors that stay."""
        if self.shared == slice(0, self.layout.size):
            return self.flat[:0]
        return torch.cat([self.flat[: self.shared.start], self.flat[self.shared.stop :]])

    @property
    def own_names(self) -> list[str]:
        """Names of the tensors that stay at the clients."""
        before, after = slice(0, self.shared.start), slice(self.shared.stop, self.layout.size)
        kept = [*self.layout.names(before), *self.layout.names(after)]
        return kept + (self.layout.counters if kept else [])

    def train(
        self, samples: Samples, local: Local, algorithm: Algorithm, seed: int, should_stop: Callable[[], bool]
    ) -> tuple[float, float]:
        """One client's local steps of one round. Returns mean loss and accuracy over all samples seen.

        Raises UserError where the loss is not finite, Interrupted where `should_stop` says so between batches.
        """
        t, key = self.training, (seed, local.round, local.client)
        order = torch_stream(*key, "batches")
        augmentation = stream(*key, "augmentation") if samples.random else None
        tally = _Tally(local)
        momentum: list[Tensor | None] = [None]
        self._mode(train=True)
        with _TorchState(seed_of(*key, "dropout"), self.device):
            for _ in range(t.local_epochs):
                for index in batch_indices(torch.randperm(len(samples), generator=order).numpy(), t.batch_size):
                    if should_stop():
                        raise Interrupted
                    x, y = self._input(*samples.batch(index, augmentation))
                    self.grad.zero_()
                    with self._autocast:
                        loss, logits = algorithm.loss(local, x, y)
                    loss.backward()
                    algorithm.correct(local)
                    self._step(local.lr, momentum)
                    local.steps += 1
                    tally.add(loss.detach(), logits.detach(), y)
        means = tally.means()
        if not math.isfinite(float(self.flat.sum())):
            raise diverged(local, "a weight is not finite after the last step")
        return means

    def _step(self, lr: float, momentum: list[Tensor | None]) -> None:
        """One SGD step on the whole trainable vector.

        Torch's arithmetic without the cost of an Optimizer for each client.
        """
        t = self.training
        sgd(
            [self._parameter],
            [self.grad],
            momentum,
            weight_decay=t.weight_decay,
            momentum=t.momentum,
            lr=lr,
            dampening=0,
            nesterov=False,
            maximize=False,
            foreach=False,
        )

    @torch.no_grad()
    def evaluate(self, samples: Samples, batch_size: int = 256) -> tuple[float, float]:
        """Mean cross-entropy and accuracy of the state now loaded, with running statistics."""
        self._mode(train=False)
        loss_sum, right = self.flat.new_zeros(()), self.counters.new_zeros(())
        for index in batch_indices(np.arange(len(samples)), batch_size):
            x, y = self._input(*samples.batch(index))
            with self._autocast:
                logits = self.model(x)
            loss_sum += cross_entropy(logits.to(loss_sum.dtype), y, reduction="sum")
            right += (logits.argmax(1) == y).sum()
        return float(loss_sum) / len(samples), int(right) / len(samples)

    def _mode(self, train: bool) -> None:
        if self.model.training is not train:
            self.model.train(train)

    def _input(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
        if self.training.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, y


def diverged(local: Local, what: str) -> UserError:
    """Says at which round and client training went astray."""
    place = f"round {local.round}, client {local.client!r}"
    return UserError(place, what, "lower training.lr, or look for broken inputs at that client")


class _Tally:
    """Loss and accuracy of one client's steps, read from the device only every so many steps."""

    def __init__(self, local: Local, every: int = 64) -> None:
        self.local, self.every = local, every
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []
        self.loss, self.right, self.seen = 0.0, 0, 0

    def add(self, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        self.steps.append((loss, logits, y))
        if len(self.steps) == self.every:
            self._read()

    def _read(self) -> None:
        losses, logits, labels = zip(*self.steps, strict=True)
        self.steps = []
        truth = torch.cat(labels)
        self.loss += sum(loss * len(y) for loss, y in zip(torch.stack(losses).tolist(), labels, strict=True))
        self.right += int((torch.cat(logits).argmax(1) == truth).sum())
        self.seen += len(truth)
        if not math.isfinite(self.loss):
            raise diverged(self.local, f"the training loss is {self.loss / self.seen}")

    def means(self) -> tuple[float, float]:
        if self.steps:
            self._read()
        return self.loss / self.seen, self.right / self.seen


def batch_indices(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Consecutive batches of `order`.

    A last batch of one joins the one before it, since BN cannot train on one vector.
    """
    n = len(order)
    cuts = list(range(0, n, size))
    if n % size == 1 and n > 1:
        cuts.pop()
    for start, stop in zip(cuts, [*cuts[1:], n], strict=True):
        yield order[start:stop]


class _TorchState:
    """Torch's default generators seeded inside, and as they were outside: dropout draws from them."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed, self.device = seed, device

    def __enter__(self) -> None:
        self.cpu = torch.random.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        torch.random.default_generator.manual_seed(self.seed)
        if self.cuda is not None:
            torch.cuda.manual_seed(self.seed)

    def __exit__(self, *_: object) -> None:
        torch.random.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)
