"""What further work on the engine would bring, by the shortest code that shows it. None of it is part of fedshift."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedshift.data.samples import MappedSamples, TensorSamples
from fedshift.nn.device import array_to_device

from .loads import DENSENET_SMALL, LR, Load, Loss, bare_round, convolves, resident
from .setting import Case, Figures, NotHereError, Setting, computing, in_turn

MLP = Load("mlp", (784,), 10, 50, 64, 32)
DIGITS = Load("digit_cnn", (3, 28, 28), 10, 5, 640, 32)
RESNET = Load("resnet20", (3, 32, 32), 10, 5, 1280, 128)
DENSENET = Load("densenet121", (3, 96, 96), 2, 2, 256, 128)
TINY_MLP = Load("mlp", (784,), 10, 3, 8, 4)
SECONDS = 2.0


def cases(setting: Setting) -> Iterator[Case]:
    """A row for each idea and network: `gain` is the time of today's way over that of the other."""
    every: dict[str, Load] = setting.size(
        {"DigitCNN": DIGITS, "ResNet-20": RESNET, "DenseNet121": DENSENET}, {"densenet_small": DENSENET_SMALL}
    )
    graphed = setting.size({"MLP": MLP, "DigitCNN": DIGITS, "ResNet-20": RESNET}, {"MLP": TINY_MLP})
    for name, load in graphed.items():
        yield Case(f"a CUDA graph of the step, {name}", 6, partial(_graph, setting, load))
    mlp = setting.size(MLP, TINY_MLP)
    yield Case("clients stacked by vmap, MLP", 6, partial(_stacked, setting, mlp))
    for name, load in every.items():
        yield Case(f"data on the device as uint8, {name}", 6, partial(_resident, setting, load))
        yield Case(f"kernels that need not be deterministic, {name}", 8, partial(_free, setting, load))
        yield Case(f"copies on a stream of their own, {name}", 6, partial(_streams, setting, load))


def _gain(setting: Setting, today: Callable[[], object], other: Callable[[], object]) -> Figures:
    works = {"today": today, "other": other}
    seconds = in_turn(works, setting.at, setting.size(SECONDS, 0))
    return {"gain": seconds["today"] / seconds["other"], **{f"ms {k}": 1000 * v for k, v in seconds.items()}}


# ---- data on the device


class Resident:
    """Images that lie on the device as they are stored, uint8, with the transforms of a job."""

    random = False

    def __init__(self, samples: MappedSamples, device: torch.device) -> None:
        images = torch.from_numpy(samples.images[samples.rows])
        self.stored = images.permute(0, 3, 1, 2).to(device).contiguous(memory_format=torch.channels_last)
        self.labels = samples.labels.to(device)
        self.transforms = samples.transforms

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: np.ndarray, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return a batch; nothing but indices goes to the device."""
        rows = array_to_device(index, self.labels)
        x = self.stored.index_select(0, rows).float()
        for transform in self.transforms:
            x = transform.apply(x, np.random.default_rng(0))
        return x, self.labels.index_select(0, rows)


def _resident(setting: Setting, load: Load) -> Figures:
    device, network, read = setting.at, load.network(), load.read(setting.at)
    there = {name: Resident(samples, device) for name, samples in read.items()}
    return _gain(setting, load.federation(network, read, device).round, load.federation(network, there, device).round)


def _free(setting: Setting, load: Load) -> Figures:
    device, network = setting.at, load.network()
    data = resident(load.read(device), device)
    exact, free = (load.federation(network, data, device, deterministic=way) for way in (True, False))
    return _gain(setting, exact.round, free.round)


# ---- streams


def _streams(setting: Setting, load: Load) -> Figures:
    if setting.device != "cuda":
        raise NotHereError("streams need CUDA")
    with computing(setting.at):
        return _gain(setting, *(_streaming(load, setting.at, own) for own in (False, True)))


def _streaming(load: Load, device: torch.device, own: bool) -> Callable[[], None]:
    """Return a pass over all images that a thread reads and copies, on a stream of its own or that of kernels."""
    images, labels, _ = load.stored()
    model = load.network().to(device).to(memory_format=torch.channels_last).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, fused=True)
    kernels = torch.cuda.current_stream()
    copies = torch.cuda.Stream() if own else kernels

    def fetch(rows: np.ndarray) -> tuple[Tensor, Tensor, torch.cuda.Event]:
        with torch.cuda.stream(copies):
            pinned = [torch.from_numpy(of[rows]).pin_memory() for of in (images, labels)]
            x, y = (t.to(device, non_blocking=True) for t in pinned)
            arrived = torch.cuda.Event()
            arrived.record()
        return x, y, arrived

    def run() -> None:
        parts = np.array_split(np.random.default_rng(0).permutation(load.total), load.total // load.batch)
        with ThreadPoolExecutor(1) as pool:
            coming = deque(pool.submit(fetch, rows) for rows in parts[:2])
            for rows in [*parts[2:], None, None]:
                x, y, arrived = coming.popleft().result()
                if rows is not None:
                    coming.append(pool.submit(fetch, rows))
                kernels.wait_event(arrived)
                for tensor in (x, y):
                    tensor.record_stream(kernels)
                optimiser.zero_grad(set_to_none=True)
                load.loss(model(x.permute(0, 3, 1, 2).float() / 255), y).backward()
                optimiser.step()

    return run


# ---- graphs


def _graph(setting: Setting, load: Load) -> Figures:
    if setting.device != "cuda":
        raise NotHereError("graphs need CUDA")
    device, network = setting.at, load.network()
    data = resident(load.read(device), device)
    pairs = [(samples.x, samples.y) for samples in data.values()]
    with computing(device):
        today = load.federation(network, data, device).round
        graphed = graphed_round(network, pairs, load.batch, load.loss, device)
        bare = bare_round(network, pairs, load.batch, load.loss, device)
        seconds = in_turn({"today": today, "bare": bare, "other": graphed}, device, SECONDS)
    gains = {"gain": seconds["today"] / seconds["other"], "over the bare loop": seconds["bare"] / seconds["other"]}
    return gains | {f"ms {name}": 1000 * second for name, second in seconds.items()}


def graphed_round(
    network: nn.Module, data: list[tuple[Tensor, Tensor]], batch: int, loss: Loss, device: torch.device
) -> Callable[[], None]:
    """Return `bare_round` with one CUDA graph of its step, which is replayed for batches of one size."""
    layout = torch.channels_last if convolves(network) else torch.contiguous_format
    model = copy.deepcopy(network).to(device).to(memory_format=layout).train()
    data = [(x.contiguous(memory_format=layout), y) for x, y in data]
    params = list(model.parameters())
    state = [t.detach() for t in (*params, *model.buffers()) if t.is_floating_point()]
    shared = [t.clone() for t in state]
    x, y = (t[:batch].clone() for t in data[0])

    def step() -> None:
        gradients = torch.autograd.grad(loss(model(x), y), params)
        torch._foreach_add_([p.detach() for p in params], gradients, alpha=-LR)

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def run() -> None:
        mean = [torch.zeros_like(t) for t in state]
        for inputs, targets in data:
            torch._foreach_copy_(state, shared)
            for index in torch.randperm(len(targets), device=device).split(batch):
                torch.index_select(inputs, 0, index, out=x) if layout is torch.contiguous_format else x.copy_(
                    inputs[index]
                )
                y.copy_(targets[index])
                graph.replay()
            torch._foreach_add_(mean, state, alpha=1 / len(data))
        torch._foreach_copy_(shared, mean)

    return run


# ---- stacked clients


def _stacked(setting: Setting, load: Load) -> Figures:
    device, network = setting.at, load.network()
    data = resident(load.read(device), device)
    with computing(device):
        today = load.federation(network, data, device).round
        return _gain(setting, today, stacked_round(load, network, data, device))


def stacked_round(
    load: Load, network: nn.Module, data: dict[str, TensorSamples], device: torch.device
) -> Callable[[], list[Tensor]]:
    """Return a round in which all clients take each step at once, as many networks in one: equal sizes, plain SGD."""
    model = copy.deepcopy(network).to(device).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.num_batches_tracked = None  # an integer that vmap need not carry
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    n = load.clients
    x, y = (torch.stack([getattr(samples, of) for samples in data.values()]) for of in ("x", "y"))
    number = torch.arange(n, device=device)[:, None]

    def objective(weights: dict[str, Tensor], running: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> object:
        running = {name: value.clone() for name, value in running.items()}
        return load.loss(functional_call(model, (weights, running), (inputs,)), targets), running

    step = vmap(grad(objective, has_aux=True))

    def run() -> list[Tensor]:
        weights, running = ({k: v.expand(n, *v.shape).clone() for k, v in of.items()} for of in (params, buffers))
        for index in torch.rand(n, load.images, device=device).argsort(1).split(load.batch, 1):
            gradients, running = step(weights, running, x[number, index], y[number, index])
            torch._foreach_add_(list(weights.values()), [gradients[name] for name in weights], alpha=-LR)
        for kept, new in ((params, weights), (buffers, running)):
            torch._foreach_copy_(list(kept.values()), [new[name].mean(0) for name in kept])
        return [*params.values(), *buffers.values()]

    return run
