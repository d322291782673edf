"""Stacked clients: several clients take each local step together, on networks that are the rows of one matrix.

A step of a small network takes longer to start, operation by operation, than to compute. Here one operation serves many
clients (`torch.func.vmap`). They share only the forward and the backward pass: each row is a `LocalTrainer` of its own,
whose hooks, optimiser, clipping and random streams are those of a client that trains alone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import linear

from ..algorithms import Algorithm, task_loss
from ..core.rng import Draws, generator_state, set_generators, stream, undisturbed
from .client import Client
from .flat_network import Batch
from .local_training import LocalTrainer
from .round_state import Assignment, Tally

MOST = 100
"""Largest number of clients that take a step together: more save nothing (docs/benchmarks.md)."""
FEWEST = 6
"""Smallest number of clients whose step is faster together (docs/benchmarks.md)."""
SMALL = 150_000
"""Largest number of trained parameters with which `auto` lets clients train together (docs/benchmarks.md)."""
MEMORY = 2**30
"""Largest number of bytes of all rows with their activations. It is fixed, so that every machine stacks alike."""
ALIGNED = 16
"""Rows begin at multiples of this number of floats (64 bytes), where a vector of its own would begin."""
HOOKS = ("loss", "backward", "gradient", "phases", "joint")
"""Hooks that run the network or choose what a step trains. An algorithm that overrides one cannot be stacked."""


class Stack:
    """Networks of clients that take their local steps together: each is a row of one matrix.

    Attributes
    ----------
    vectors, grads, counters : state vectors, gradients and counters of all rows, (rows, ...)
    rows : the network of each row, whose tensors are views of these
    """

    def __init__(self, trainer: LocalTrainer, rows: int) -> None:
        self.trainer = trainer
        size, trained = len(trainer.state_vector), len(trainer.all_grad)
        stride = -(-size // ALIGNED) * ALIGNED
        self.vectors = trainer.state_vector.new_zeros(rows, stride)[:, :size]
        self.grads = trainer.all_grad.new_zeros(rows, stride)[:, :trained]
        self.counters = trainer.counters.repeat(rows, 1)
        self.vectors.copy_(trainer.state_vector)
        alike = trainer.specification, trainer.training, trainer.device, trainer.channels_last
        self.rows = [LocalTrainer(*alike, row) for row in zip(self.vectors, self.grads, self.counters, strict=True)]
        for layer in itertools.chain(*(row.model.modules() for row in self.rows)):
            if type(layer) is nn.Linear:
                layer.forward = functools.partial(_linear, layer)  # type: ignore[method-assign]
        cls = type(trainer.algorithm)
        self._inputs: Tensor | None = None
        self._may_draw = (cls.correct, cls.report) != (Algorithm.correct, Algorithm.report)

    def train(
        self,
        clients: Sequence[Client],
        assignments: Sequence[Assignment],
        batches: Sequence[Iterator[Batch]],
        should_stop: Callable[[], bool],
        tally: Tally,
    ) -> Iterator[LocalTrainer]:
        """Take all local steps of the clients, at most one for each row, and yield each client's row, in their order.

        The row is then in the state in which `LocalTrainer.train` leaves a client, and torch's default generators are
        those of the client. Raises what `LocalTrainer.local_steps` does.
        """
        # Clients with as many images have batches of one size in each step, and rows beside each other.
        order = sorted(range(len(clients)), key=lambda k: -len(clients[k].train))
        device = self.trainer.device
        draws: list[Draws | None] = [None] * len(order)
        for row, k in zip(self.rows, order, strict=False):
            row.take_turn(clients[k], assignments[k])
        rows = self.rows[: len(order)]
        steps = [row.local_steps(batches[k], should_stop, tally) for row, k in zip(rows, order, strict=True)]

        def go_on(n: int) -> Batch | None:
            """Return the next batch of a row, which draws from its own client's generators."""
            if (state := draws[n]) is not None:
                set_generators(state, device)
            batch = next(steps[n], None)
            if self._may_draw:
                draws[n] = generator_state(device)
            return batch

        coming = [go_on(n) for n in range(len(rows))]
        while any(coming):
            for shapes, numbers in itertools.groupby(range(len(rows)), key=lambda n: _shapes(coming[n])):
                if shapes:
                    self._gradients([*numbers], coming)
            coming = [go_on(n) if batch else None for n, batch in enumerate(coming)]
        for n in sorted(range(len(rows)), key=lambda n: order[n]):
            if (state := draws[n]) is not None:
                set_generators(state, device)
            yield rows[n]

    def _gradients(self, numbers: Sequence[int], coming: Sequence[Batch | None]) -> None:
        """Compute gradients and outputs of the neighbouring rows `numbers`, whose batches have the same shapes.

        `coming` has the next batch of each row, None for a row that is done.
        """
        batches = [batch for batch in coming[numbers[0] : numbers[-1] + 1] if batch]
        if len(batches) >= FEWEST:
            self.backward(numbers[0], batches)
            return
        for n, batch in zip(numbers, batches, strict=True):
            self.rows[n].clear_gradient()
            self.rows[n].logits = self.trainer.algorithm.gradient(self.rows[n], *batch)

    def backward(self, first: int, batches: Sequence[Batch]) -> None:
        """Run one forward and backward pass of several rows at once: those from `first` on, one for each batch.

        All batches have the same shapes. The gradients are then in `grads`, the outputs in the rows' `logits`, and
        running statistics have moved.
        """
        span = slice(first, first + len(batches))
        rows, layout, task = self.rows[span], self.trainer.layout, self.trainer.task
        model = rows[0].model
        x, y = self._joined([x for x, _ in batches]), torch.stack([y for _, y in batches])
        given = [row.class_weights for row in rows if row.class_weights is not None]
        weights = torch.stack(given) if given else None
        places, vectors = layout.places, self.vectors[span]
        params = {k: places[k].view(vectors).detach().requires_grad_() for k in layout.names(layout.trainable)}
        buffers = {k: places[k].view(vectors) for k in layout.names(layout.statistics)}
        counters = dict(zip(layout.counters, self.counters[span].unbind(1), strict=True))

        def loss(
            params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor | None
        ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            # Copies, since kernels write statistics in place, which does not reach every view.
            tensors = params | {name: buffer.clone() for name, buffer in buffers.items()}
            logits = functional_call(model, tensors, (x,))
            return task.batch_loss(logits, y, weights), logits, {name: tensors[name] for name in buffers}

        dims = 0, 0, 0, 0, None if weights is None else 0
        with self.trainer.autocast:
            losses, logits, moved = vmap(loss, dims)(params, buffers | counters, x, y, weights)
        # The sum has each row's own gradient, since no row's loss depends on another row.
        found = torch.autograd.grad(losses.sum(), [*params.values()], allow_unused=True)
        for name, grad in zip(params, found, strict=True):
            view = places[name].view(self.grads[span])
            view.zero_() if grad is None else view.copy_(grad)
        for name, before in (buffers | counters).items():
            before.copy_(moved[name].detach())
        for row, out in zip(rows, logits.detach(), strict=True):
            row.logits = out

    def _joined(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return inputs of one shape as one tensor (rows, ...), in memory that the next call uses again."""
        numbers = len(inputs) * inputs[0].numel()
        if self._inputs is None or self._inputs.numel() < numbers:
            self._inputs = inputs[0].new_empty(numbers)
        return torch.stack([*inputs], out=self._inputs[:numbers].view(len(inputs), *inputs[0].shape))


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return the outputs of a linear layer for inputs (batch, features), computed as transpose(weight @ transpose(x)).

    Torch computes x @ transpose(weight), which gives the gradient of each row transposed, and it would be copied number
    by number.
    """
    if x.dim() != 2:
        return linear(x, layer.weight, layer.bias)
    out = (layer.weight @ x.mT).mT
    return out if layer.bias is None else out + layer.bias


def _shapes(batch: Batch | None) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in batch or ())


def stacked(trainer: LocalTrainer, clients: Sequence[Client]) -> Stack | str:
    """Return a `Stack` for clients that train as `trainer` does, or a clause that says why they cannot train together.

    `training.stacked` is "auto" or True. One pass of two rows tries whether the network can be stacked.
    """
    if reason := _reason(trainer, len(clients)):
        return reason
    samples, weights = clients[0].train, clients[0].class_weights
    draws = stream(trainer.seed, "stack trial") if samples.random else None
    batch = trainer.to_device(*samples.batch(np.zeros(2, dtype=int), draws))
    trial = Stack(trainer, 2)
    for row in trial.rows:
        row.mode(train=True)
        row.class_weights = None if weights is None else weights.to(row.state_vector)
    try:
        with undisturbed(trainer.device):
            trial.backward(0, [batch, batch])
    except (RuntimeError, ValueError, TypeError) as error:
        return f"its network cannot: {str(error).splitlines()[0]}"
    bytes_of_row = (2 * trainer.state_vector.nbytes) + _kept(trainer, batch) * trainer.training.batch_size // 2
    return Stack(trainer, max(2, min(len(clients), MOST, MEMORY // bytes_of_row)))


def _reason(trainer: LocalTrainer, clients: int) -> str:
    """Return a clause that says why clients must train one after another, or "" if they may train together."""
    algorithm, auto = trainer.algorithm, trainer.training.stacked == "auto"
    if own := [hook for hook in HOOKS if getattr(type(algorithm), hook) is not getattr(Algorithm, hook)]:
        return f"{algorithm.name} has its own {own[0]}"
    if trainer.objective is not task_loss:
        return "the add-on has its own loss"
    if not trainer.flat_gradient:
        return "tensors of the network are so large that memory limits a step"
    if clients < FEWEST:
        return f"there are fewer than {FEWEST} clients"
    if auto and any(isinstance(module, nn.modules.conv._ConvNd) for module in trainer.model.modules()):
        return "the network convolves, which is no faster together"
    if auto and len(trainer.all_grad) > SMALL:
        return f"the network has more than {SMALL:,} parameters, which is no faster together"
    return ""


def _kept(trainer: LocalTrainer, batch: Batch) -> int:
    """Return the bytes that a forward pass of a batch keeps for the backward pass, without the network's own."""
    own = trainer.state_vector.untyped_storage().data_ptr()
    sizes = dict[int, int]()

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() != own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    trainer.mode(train=True)
    with (
        undisturbed(trainer.device),
        trainer.untracked(),
        torch.autograd.graph.saved_tensors_hooks(note, lambda t: t),
    ):
        trainer.model(batch[0])
    return sum(sizes.values())
