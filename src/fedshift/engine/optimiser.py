"""Optimisers of local steps: torch's arithmetic, without the cost of an Optimizer for each client and round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from ..algorithms import Training

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
        """Take one step along the gradients, one for each parameter."""
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
        """Take one step along the gradients, one for each parameter."""
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


OPTIMISERS: dict[str, type[SGD] | type[Adam]] = {"sgd": SGD, "adam": Adam, "adamw": Adam}


def optimiser(training: Training, params: Sequence[Tensor]) -> SGD | Adam:
    """Return a new optimiser, without memory of earlier steps, as every client's round begins with one."""
    return OPTIMISERS[training.optimiser](training, params)
