"""What is trained: networks, the sizes of their data, and a bare loop that takes the same steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedshift import Federation
from fedshift.core.registry import build
from fedshift.data.samples import MappedSamples, TensorSamples
from fedshift.models import initialise
from fedshift.tasks import CLASSIFICATION, Segmentation, Task

LR = 0.01
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Load:
    """A network and its clients, all with as many samples.

    Attributes
    ----------
    shape : that of a sample: (channels, height, width), or (features,)
    images : samples of a client
    """

    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    images: int
    batch: int
    masks: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def network(self) -> nn.Module:
        """Return the network before the first round."""
        return initialise(build("model", {"name": self.model, **self.settings}), self.shape, self.classes, 0)

    @property
    def task(self) -> Task:
        """The task."""
        return Segmentation() if self.masks else CLASSIFICATION

    @property
    def total(self) -> int:
        """Samples of all clients."""
        return self.clients * self.images

    def stored(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return what a job finds on its disk: uint8 images or float32 vectors of all clients, labels, and masks."""
        rng = np.random.default_rng(0)
        labels = rng.integers(0, self.classes, self.total)
        if len(self.shape) == 1:
            return rng.standard_normal((self.total, *self.shape), dtype=np.float32), labels, None
        channels, *sides = self.shape
        images = rng.integers(0, 256, (self.total, *sides, channels), dtype=np.uint8)
        masks = rng.integers(0, self.classes, (self.total, *sides), dtype=np.uint8) if self.masks else None
        return images, labels, masks

    def read(self, device: torch.device) -> dict[str, MappedSamples]:
        """Return the samples of each client as jobs open them: on the host, uint8, scaled on the device."""
        images, labels, masks = self.stored()
        transforms = [build("transform", "scale_intensity")] if images.dtype == np.uint8 else []
        return {
            f"client{k:02d}": MappedSamples(images, rows, labels[rows], transforms, device, masks)
            for k, rows in enumerate(np.arange(self.total).reshape(self.clients, self.images))
        }

    def federation(
        self, network: nn.Module, clients: Mapping[str, Any], device: torch.device, **training: Any
    ) -> Federation:
        """Return the engine, with FedAvg."""
        settings = {"lr": LR, "batch_size": self.batch, **training}
        task = "segmentation" if self.masks else "classification"
        return Federation(network, clients, training=settings, device=device, task=task)

    def bare(
        self, network: nn.Module, clients: Mapping[str, TensorSamples], device: torch.device, precision: str
    ) -> Callable[[], list[Tensor]]:
        """Return a round of FedAvg as one would write it for this network alone; see `bare_round`."""
        data = [(samples.x, samples.y) for samples in clients.values()]
        return bare_round(network, data, self.batch, self.loss, device, precision)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return self.task.batch_loss(logits, y, None)


UNET_SMALL = {"features": [4, 4, 4, 6, 6, 4]}
"""Settings of a U-Net whose steps take no time."""
DENSENET_SMALL = Load("densenet_small", (3, 8, 8), 10, 2, 4, 2, settings={"growth": 4, "blocks": [1], "stem": 4})
"""A network with convolutions and batch norm, and images, of which a round takes no time."""


def resident(read: Mapping[str, MappedSamples], device: torch.device) -> dict[str, TensorSamples]:
    """Return samples that a job reads as float32 on the device."""
    out = {}
    for name, samples in read.items():
        x, y = samples.batch(np.arange(len(samples)))
        out[name] = TensorSamples(x.to(device), y.to(device))
    return out


def convolves(model: nn.Module) -> bool:
    """Whether a network convolves images."""
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def forward_in(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """Return a new context for a forward pass."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def bare_round(
    model: nn.Module,
    data: list[tuple[Tensor, Tensor]],
    batch: int,
    loss: Loss,
    device: torch.device,
    precision: str = "float32",
) -> Callable[[], list[Tensor]]:
    """Return a round of FedAvg as a good engineer would write it for one network, without a framework.

    Float32 data lie on the device, networks that convolve have the channels last, the optimiser takes a step in one
    kernel, tensors are loaded and averaged by one kernel for many, and nothing waits for the device. A round returns
    the parameters and the statistics of batch norm.
    """
    layout = torch.channels_last if convolves(model) else torch.contiguous_format
    model = copy.deepcopy(model).to(device).to(memory_format=layout).train()
    data = [(x.contiguous(memory_format=layout), y) for x, y in data]
    fused = {"fused": True} if device.type == "cuda" else {}
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, **fused)
    state = [t.detach() for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    shared = [t.clone() for t in state]

    def run() -> list[Tensor]:
        mean = [torch.zeros_like(t) for t in state]
        for x, y in data:
            torch._foreach_copy_(state, shared)
            for index in torch.randperm(len(y), device=device).split(batch):
                optimiser.zero_grad(set_to_none=True)
                with forward_in(device, precision):
                    logits = model(x[index].contiguous(memory_format=layout))
                loss(logits.float() if precision == "bfloat16" else logits, y[index]).backward()
                optimiser.step()
            torch._foreach_add_(mean, state, alpha=1 / len(data))
        torch._foreach_copy_(shared, mean)
        return shared

    return run
