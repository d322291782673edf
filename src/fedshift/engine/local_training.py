"""Local training: one client's steps in a round, and what the hooks of an algorithm can ask for meanwhile."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from ..algorithms import Blend, Local, Phase, Training, task_loss
from ..core.errors import Interrupted
from ..core.rng import Draws, generator_state, reseed, seed_of, set_generators, stream, torch_stream, undisturbed
from ..data.samples import Samples, batch_indices, batch_stream, class_counts
from ..nn.batchnorm import untracked
from ..nn.device import read_ahead, to_device
from ..nn.features import Outputs
from ..nn.norms import clip_rows, clipped_parameters
from .client import Client
from .flat_network import Batch, FlatNetwork, Storage
from .joint_step import Exchange, FirstStep, joint_step
from .round_state import Assignment, ClientTensors, Tally, at_home
from .specification import Specification

LARGE = 100_000
"""Average number of floats in a tensor above which memory limits the speed of a step."""


class LocalTrainer(FlatNetwork, Local):
    """The network on which clients train in turn, as the hooks of an algorithm see it.

    `take_turn` makes it the local training of one client, `train` takes that client's steps, `leave` ends its turn.

    Attributes
    ----------
    flat_gradient : whether the gradient lies in one vector, as hooks and small networks need it
    logits : outputs of the last step (batch, classes, ...), detached
    """

    samples: Samples
    validation: Samples | None
    logits: Tensor

    def __init__(
        self,
        specification: Specification,
        training: Training,
        device: torch.device,
        channels_last: bool,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(specification, training, device, channels_last, storage)
        self.specification = specification
        self.algorithm = algorithm = specification.algorithm
        self.seed = specification.seed
        self.momentum = training.momentum
        self.objective = specification.addon.loss if specification.addon else task_loss
        self._leaves = [(p, p.grad) for p in self.model.parameters() if p.requires_grad]
        large = len(self.all_grad) > LARGE * len(self._leaves)
        clips = training.clip_norm is not None or training.clip_adaptive is not None
        self.flat_gradient = not large or algorithm.needs_flat_gradient or clips
        self._clipped = clipped_parameters(self.model) if training.clip_adaptive else []
        self._must_be_finite = self._finite_tensors()
        private = self.layout.private.stop
        end = self.layout.trainable.stop
        self._spans = {"all": slice(0, end), "home": slice(0, private), "rest": slice(private, end)}
        self.end_turn()

    # ---- a client's turn

    def take_turn(self, client: Client, assignment: Assignment) -> None:
        """Load a client's tensors, and set everything that the algorithm's hooks may use in its local training."""
        self.end_turn()
        self.received = assignment.received
        self.load(self.received, client.own, client.counters)
        self.client = client.name
        self.share = client.share
        self.offers = client.offers
        self.samples = client.train
        self.validation = client.val
        self.clients = assignment.clients
        self.classes = assignment.classes
        self.round = assignment.round
        self.lr = assignment.lr
        self.broadcast = assignment.broadcast
        self.state = {k: to_device(v, self.device) for k, v in client.state.items()}
        self.class_weights = None
        if client.class_weights is not None:
            self.class_weights = client.class_weights.to(self.state_vector)

    def leave(self, client: Client) -> None:
        """Save the tensors that stay at the client, and the plug-ins' state, in `client`, and end its turn."""
        client.own = self.own()
        client.state = at_home(self.state)
        if self.layout.counters:
            client.counters.copy_(self.counters)
        self.end_turn()

    def end_turn(self) -> None:
        """Reset what belongs to one client's turn: scratch tensors, state, optimisers, steps. Loaded tensors stay."""
        self.scratch = {}
        self.networks = {}
        self.logged = {}
        self.state = {}
        self.broadcast = {}
        self.steps = self.phase = 0
        self.finishing = False
        self._slots: dict[str, SGD | Adam] = {}
        self._extra: Iterator[Batch] | None = None

    @property
    def phases(self) -> list[Phase]:
        """Phases of local training in this turn: those of a round, or those that follow the last round."""
        return [phase for phase in self.algorithm.phases() if phase.finishes is self.finishing]

    @property
    def key(self) -> tuple[int, int, str]:
        """Key of everything random in this client's local training: seed, round and client."""
        return self.seed, self.round, self.client

    def batches(
        self, samples: Samples, number: int, client: str, purpose: str = "", endless: bool = False
    ) -> Iterator[Batch]:
        """Return the batches of a client in round `number`, on the device: one for each local step, or `endless`.

        Random draws depend on seed, round, client and `purpose`.
        """
        key = self.seed, number, client
        order = torch_stream(*key, f"{purpose}batches")
        augmentation = stream(*key, f"{purpose}augmentation") if samples.random else None
        indices = batch_stream(len(samples), self.training, order)
        if not endless:
            indices = itertools.islice(indices, self.steps_in_round(client, len(samples)))
        batches = (self.to_device(*samples.batch(index, augmentation)) for index in indices)
        # No thread for an endless stream: it would read batches ahead that nobody asks for.
        return batches if endless else read_ahead(batches, self.device)

    def steps_in_round(self, client: str, n: int) -> int:
        """Return the number of local steps, in all phases of a round, of a client with `n` samples."""
        return sum(phase.steps(n, self.training.at(client)) for phase in self.phases)

    # ---- local steps

    @contextmanager
    def trained(
        self,
        client: Client,
        assignment: Assignment,
        batches: Iterator[Batch],
        should_stop: Callable[[], bool],
        tally: Tally,
        first: FirstStep | None = None,
    ) -> Iterator[dict[str, Tensor]]:
        """Take a client's local steps in one round, and yield its report to the server.

        The tensors of the report are views of the network, valid inside the context. The client has its new tensors
        after it. The other parameters, and what is raised, are those of `train`.
        """
        self.take_turn(client, assignment)
        self.train(batches, should_stop, tally, first)
        with self.reported(client, assignment) as report:
            yield report

    @contextmanager
    def reported(self, client: Client, assignment: Assignment) -> Iterator[dict[str, Tensor]]:
        """Yield a client's report to the server after its local steps, in views of the network, and end its turn."""
        report = self.algorithm.report(self)
        self.variances.gather(self.shared, assignment.shared)
        yield report
        self.leave(client)

    def finish(self, client: Client, assignment: Assignment, should_stop: Callable[[], bool]) -> None:
        """Train a client's phases that follow the last round: only tensors that stay there change.

        Raises as `train` does.

        The number of the round in `assignment` is one more than the last.
        """
        tally = Tally(assignment.round - 1, self.task)
        self.take_turn(client, assignment)
        self.finishing = True
        self.train(self.batches(client.train, self.round, client.name), should_stop, tally)
        self.algorithm.report(self)  # it renews state that changes once a round, and nothing is sent
        tally.read()
        self.leave(client)

    def train(
        self,
        batches: Iterator[Batch],
        should_stop: Callable[[], bool],
        tally: Tally,
        first: FirstStep | None = None,
    ) -> None:
        """Take the local steps of the client whose turn it is. Parameters and what is raised: see `local_steps`."""
        try:
            for x, y in self.local_steps(batches, should_stop, tally, first):
                self.clear_gradient()
                self.logits = self.algorithm.gradient(self, x, y)
        finally:
            # Backward passes made new tensors where gradients were dropped; hooks expect the views of one vector.
            if not self.flat_gradient:
                for parameter, view in self._leaves:
                    parameter.grad = view

    def local_steps(
        self,
        batches: Iterator[Batch],
        should_stop: Callable[[], bool],
        tally: Tally,
        first: FirstStep | None = None,
    ) -> Iterator[Batch]:
        """Yield the batch of each local step of the client whose turn it is, and take the step when asked to go on.

        Until then the gradient of the batch must be in `all_grad`, and its outputs in `logits`.

        `first` is the first step if all clients took it together. The generator seeds torch's default generators: call
        it inside `rng.undisturbed`. Raises UserError if a loss is not finite, and Interrupted if `should_stop` returns
        True between batches; a weight that is not finite after the last step raises when `tally` is read.
        """
        algorithm = self.algorithm
        steps = self._planned_steps()
        frozen = algorithm.freezes_statistics(self.round, self.training.rounds)
        self.mode(train=True, frozen_statistics=frozen)
        reseed(seed_of(*self.key, "dropout"), self.device)
        algorithm.begin(self)
        if first:
            self._take_joint_step(first, next(steps).span)
            tally.add(self.client, first.logits, first.y)
        for (x, y), step in zip(batches, steps, strict=True):
            if should_stop():
                raise Interrupted
            self.mode(train=True, frozen_statistics=frozen or step.frozen_statistics)
            self.phase = step.phase
            yield x, y
            self._step(step, self._gradients(step))
            tally.add(self.client, self.logits, y)
        self.settle()
        tally.add_weights(self.client, self._must_be_finite)

    def first_steps(self, batches: Sequence[Batch], own: Sequence[Tensor], exchange: Exchange) -> list[FirstStep]:
        """Run a joint first step of several clients, from the tensors of the client whose turn it is.

        `batches` and `own` are each client's first batch and its own tensors, `exchange` computes means over clients;
        see `joint_step`.
        """
        objective = functools.partial(self.algorithm.loss, self)
        return joint_step(self, objective, batches, own, exchange, (self.seed, self.round, "joint dropout"))

    def _planned_steps(self) -> Iterator[_Step]:
        """Yield for each local step of the current client its parameters and optimiser.

        Each phase has its own optimiser.
        """
        training = self.training.at(self.client)
        for number, phase in enumerate(self.phases):
            span = self._spans[phase.trains]
            params: list[Tensor] = [self.all_params[span]]
            if not self.flat_gradient:
                params = [parameter for parameter, _ in self._leaves]
            rule = optimiser(self.training, params)
            step = _Step(params, self.all_grad[span], span, rule, phase.freezes_statistics, number)
            yield from itertools.repeat(step, phase.steps(len(self.samples), training))

    def _take_joint_step(self, first: FirstStep, span: slice) -> None:
        """Take the local step for which all clients computed gradients together, with an optimiser for this step alone.

        `span` is the slice of the trained vector that moves.
        """
        self.state_vector[self.layout.statistics] = first.statistics
        self.counters.add_(first.ticks)
        self.all_grad.copy_(first.grad)
        params, grad = [self.all_params[span]], self.all_grad[span]
        # As in FedTAN's reference code: the momentum of the later steps does not contain this gradient.
        self._step(_Step(params, grad, span, optimiser(self.training, params)), [grad])

    def clear_gradient(self) -> None:
        """Clear the gradient before a pass: set the one vector to zero, or drop each parameter's gradient."""
        # A large tensor is limited by memory, and dropping its gradient saves a pass over it. Of many small tensors,
        # one vector saves an update for each.
        if self.flat_gradient:
            self.all_grad.zero_()
        else:
            for parameter, _ in self._leaves:
                parameter.grad = None

    def _gradients(self, step: _Step) -> list[Tensor]:
        if self.flat_gradient:
            return [step.grad]
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in step.params]

    def _step(self, step: _Step, grads: list[Tensor]) -> None:
        """Let the algorithm correct the gradients, clip them, and take one step of the optimiser along them."""
        self.algorithm.correct(self)
        if step.span != self._spans["all"]:
            # Layers that this phase does not train must not enter the norm by which gradients are clipped.
            self.all_grad[: step.span.start] = 0
            self.all_grad[step.span.stop :] = 0
        self._clip(self.all_params)
        step.optimiser.step(grads, self.lr)
        self.steps += 1

    def _clip(self, params: Tensor) -> None:
        """Shorten the gradient of flat parameters in place, by `clip_norm` or `clip_adaptive` of the settings.

        Adaptive clipping needs the rows of weights, which are known for the whole network alone. It leaves any other
        parameters, which are those of a last layer (FedRoD's personal head), as they are.
        """
        if self.training.clip_norm is not None:
            clip_grad_norm_(params, self.training.clip_norm)
        if self.training.clip_adaptive is not None and params.data_ptr() == self.all_params.data_ptr():
            clip_rows(((p, p.grad) for p in self._clipped if p.grad is not None), self.training.clip_adaptive)

    def _finite_tensors(self) -> list[Tensor]:
        """Return the tensors that must stay finite: all floats except buffers of modules other than batch norm.

        A buffer of another module may be a mask of -inf. In a network without such buffers, this is the state vector.
        """
        statistics = {id(buffer) for layer in self.batch_norms for buffer in layer.buffers()}
        tracked = [view for _, _, view in self.buffers if id(view) in statistics and view.is_floating_point()]
        complete = sum(view.numel() for view in tracked) == self.layout.statistics.stop - self.layout.statistics.start
        return [self.state_vector] if complete else [self.all_params, *tracked]

    # ---- what hooks can ask for: see `Local`

    def draw(self) -> Batch:
        """Return another batch of the client's data; see `Local.draw`."""
        if self._extra is None:
            self._extra = self.batches(self.samples, self.round, self.client, "extra ", endless=True)
        return next(self._extra)

    def own_batches(self) -> Iterator[Batch]:
        """Yield all the client's training samples once; see `Local.own_batches`."""
        train, frozen = self.model.training, self._frozen_statistics
        self.mode(train=False)
        try:
            for index in batch_indices(np.arange(len(self.samples)), self.training.batch_size):
                yield self.to_device(*self.samples.batch(index))
        finally:
            self.mode(train, frozen)

    def full_gradient(self) -> Tensor:
        """Return the gradient over all the client's data; see `Local.full_gradient`."""
        before = self.all_grad.clone()
        total = torch.zeros_like(self.grad)
        self.mode(train=True)
        # Shuffled, since batch norm normalises each batch by itself, and stored images may be sorted by class.
        order = torch.randperm(len(self.samples), generator=torch_stream(*self.key, "full gradient")).numpy()
        with self.untracked():
            for index in batch_indices(order, self.training.batch_size):
                self.all_grad.zero_()
                self.algorithm.backward(self, *self.to_device(*self.samples.batch(index)))
                total.add_(self.grad, alpha=len(index) / len(self.samples))
        self.all_grad.copy_(before)
        return total

    def evaluation(self, validation: bool = False) -> tuple[float, float]:
        """Return mean cross-entropy and accuracy over all the client's samples; see `Local.evaluation`."""
        samples = self.samples
        if validation and self.validation is not None:
            samples = self.validation
        train = self.model.training
        frozen = self._frozen_statistics
        loss, accuracy, _ = self.evaluate(samples)
        self.mode(train, frozen)
        return loss, accuracy

    def untracked(self) -> AbstractContextManager[None]:
        """Return a context that leaves running statistics unchanged; see `Local.untracked`."""
        return untracked(self.model)

    def class_counts(self, classes: int) -> Tensor:
        """Return the number of the client's samples of each class; see `Local.class_counts`."""
        return class_counts(self.samples, classes).to(self.device)

    @contextmanager
    def holding(self, state_vector: Tensor, draws: Draws | None = None) -> Iterator[None]:
        """Let the network hold the tensors of `state_vector` inside the context; see `Local.holding`."""
        self.settle()
        before = self.state_vector.clone()
        counters = self.counters.clone()
        self.state_vector.copy_(state_vector)
        with undisturbed(self.device):
            if draws is not None:
                set_generators(draws, self.device)
            yield
        self.settle()
        state_vector.copy_(self.state_vector)
        self.state_vector.copy_(before)
        self.counters.copy_(counters)

    def next_draws(self) -> Draws:
        """Return the state of the random generators from which dropout draws; see `Local.next_draws`."""
        return generator_state(self.device)

    def descend(self, slot: str, params: Tensor, grad: Tensor) -> None:
        """Move `params` by one step of the client's optimiser along `grad`; see `Local.descend`."""
        clipped = params.detach()
        clipped.grad = grad
        self._clip(clipped)
        if slot not in self._slots:
            self._slots[slot] = optimiser(self.training, [params])
        self._slots[slot].step([grad], self.lr)

    # ---- networks that a client is scored with

    def load_personal(
        self, shared: Tensor, own: Tensor, counters: Tensor, state: Mapping[str, Tensor] | None = None
    ) -> Blend:
        """Load the networks with which a client is scored, and return them as state vectors with weights.

        `shared`, `own` and `counters` are the tensors that the client uses, and `state` the client's tensors of the
        algorithm; without `state`, the client is scored with the first three. The first vector of the `Blend` becomes
        the network's state.
        """
        self.load(shared, own, counters)
        if state is None:
            return Blend([self.state_vector], [1.0])
        self.state = {k: to_device(v, self.device) for k, v in state.items()}
        scored = self.algorithm.personal(self)
        blend = scored if isinstance(scored, Blend) else Blend([scored], [1.0])
        # Copies, since the first network may be a view of the vector that is loaded next.
        blend = replace(blend, networks=[vector.clone() for vector in blend.networks])
        self.answer_with(blend)
        return blend


class _Step(NamedTuple):
    """A kind of local step: parameters to train, their slice of the trained vector, optimiser, whether BN is frozen.

    `grad` is the slice of the gradient, and `phase` the number of the step's phase in the round.
    """

    params: list[Tensor]
    grad: Tensor
    span: slice
    optimiser: SGD | Adam
    frozen_statistics: bool = False
    phase: int = 0


class Networks(NamedTuple):
    """Networks that predict a site together: name, `state_dict` and weight of each.

    `of` says which of their outputs are averaged: logits or probabilities.
    """

    names: Sequence[str]
    states: Sequence[dict[str, Tensor]]
    weights: Sequence[float]
    of: Outputs = "logits"


def client_networks(trainer: LocalTrainer, name: str, received: Tensor, kept: ClientTensors) -> Networks:
    """Return the networks that predict a client, given the shared tensors `received` and its own tensors `kept`.

    Where several predict it together, the first is the client's personal network.
    """
    state = kept.state if trainer.algorithm.has_personal_networks else None
    blend = trainer.load_personal(received, kept.own, kept.counters, state)
    states = [trainer.named(vector, kept.counters) for vector in blend.networks]
    return Networks((name, *(f"{name}/{n}" for n in range(1, len(states)))), states, blend.weights, blend.of)


# ---- optimisers: torch's arithmetic, without the cost of an Optimizer for each client and round


EPSILON = 1e-8
"""Constant that Adam adds to the square root, as in torch."""


class SGD:
    """Stochastic gradient descent; its momentum buffer starts at zero.

    Parameters
    ----------
    training : gives momentum and weight decay
    params : the tensors that are trained, changed in place
    """

    def __init__(self, training: Training, params: Sequence[Tensor]) -> None:
        self.training = training
        self.params = [p.detach() for p in params]
        self.momentum: list[Tensor | None] = [None] * len(self.params)

    def step(self, grads: list[Tensor], lr: float) -> None:
        """Take one step of learning rate `lr` along `grads`, one for each parameter."""
        decay = self.training.weight_decay
        momentum = self.training.momentum
        if len(self.params) > 1:
            sgd(
                self.params,
                grads,
                self.momentum,
                weight_decay=decay,
                momentum=momentum,
                lr=lr,
                dampening=0,
                nesterov=False,
                maximize=False,
                foreach=True,
            )
            return
        # On one small vector torch's function would take longer for its checks than for the arithmetic.
        (param,), (grad,), (buffer,) = self.params, grads, self.momentum
        if decay:
            grad = grad.add(param, alpha=decay)
        if momentum:
            grad = grad.clone() if buffer is None else buffer.mul_(momentum).add_(grad)
            self.momentum = [grad]
        param.add_(grad, alpha=-lr)


class Adam:
    """Adam with bias correction (Kingma and Ba 2015), or AdamW (Loshchilov and Hutter 2019); its moments start at zero.

    Weight decay enters the gradient of Adam, and so its moments. AdamW multiplies the weights by 1 - lr weight_decay.

    Parameters
    ----------
    training : gives beta1, beta2 and weight decay
    params : the tensors that are trained, changed in place
    """

    def __init__(self, training: Training, params: Sequence[Tensor]) -> None:
        self.training = training
        self.params = [p.detach() for p in params]
        self.means, self.squares = ([torch.zeros_like(p) for p in self.params] for _ in range(2))
        self.steps = [torch.zeros(()) for _ in self.params]

    def step(self, grads: list[Tensor], lr: float) -> None:
        """Take one step of learning rate `lr` along `grads`, one for each parameter."""
        adam(
            self.params,
            grads,
            self.means,
            self.squares,
            [],
            self.steps,
            foreach=len(self.params) > 1,
            decoupled_weight_decay=self.training.optimiser == "adamw",
            amsgrad=False,
            beta1=self.training.beta1,
            beta2=self.training.beta2,
            lr=lr,
            weight_decay=self.training.weight_decay,
            eps=EPSILON,
            maximize=False,
        )


def optimiser(training: Training, params: Sequence[Tensor]) -> SGD | Adam:
    """Return a new optimiser of `params`.

    It has no memory of earlier steps, since each client starts anew each round.
    """
    return SGD(training, params) if training.optimiser == "sgd" else Adam(training, params)
