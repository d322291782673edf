"""Whether a device computes what the CPU computes, the same bits each time, also after a restart."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedshift import Federation
from fedshift.core.registry import build, discover
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import adapted_probabilities, client_answer, probabilities
from fedshift.inferences import Site
from fedshift.io.arrays import read_tensors, write_tensors
from fedshift.models import initialise
from fedshift.nn.device import channels_last
from fedshift.tasks import CLASSIFICATION, Segmentation, Task

from .loads import UNET_SMALL
from .setting import CPU, Case, Figures, Setting, WrongError

CLASSES, SIDE = 3, 16
SITES = {"a": 16, "b": 8}
TRAINING: dict[str, Any] = {"rounds": 2, "batch_size": 8, "lr": 0.05, "select": "last"}
BOUND = 5e-4
"""How far a training may be from the CPU's.

Ten times the distance of float32 from float64, which was measured on the CPU for each algorithm with each BN policy,
for each setting, and for each add-on that draws the same in both: 4.6e-5 at most, but for what follows. It is that of
the scales of batch norm: they move by a thousandth of themselves, so that the last of 24 bits is 1e-5 of that.
Another order of sums, with the channels last, was 2.9e-5 away at most.
"""
BOUNDS = {"apfl": 1e-3}
"""The same for methods of which float32 is further from float64 (1.0e-4): ten times that."""
OF_MASKS = 2e-2
"""The same for a U-Net, whose deepest layers see a single pixel: 1.6e-3 for the furthest of all variants."""
PREDICTED = 1e-4
"""How far a probability may be: ten times the distance of another order of sums, 1e-5 at most (masks, CoTTA)."""
MASK_TRAINING = TRAINING | {"lr": 2.0}
"""At a lower rate, a U-Net hardly moves in so few steps, and rounding is a large part of that."""
SHORT: dict[str, dict[str, Any]] = {"fedtan2": {"exchange_rounds": 1}, "fedrep": {"head_epochs": 1}}

State = dict[str, Tensor]


def network() -> nn.Module:
    """Two convolutions with batch norm. Nothing in it has a kink, at which a last bit could decide which way to go."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.SiLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.SiLU(),
            nn.AvgPool2d(4),
            nn.Flatten(),
            nn.Linear(32, CLASSES),
        )


def unet() -> nn.Module:
    """A small U-Net."""
    return initialise(build("model", {"name": "unet_small", **UNET_SMALL}), (3, SIDE, SIDE), 2, 0)


def sites(masks: bool = False, seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    """Images of each site and their classes, or masks; sites differ in brightness."""
    out = {}
    for k, (name, n) in enumerate(SITES.items()):
        g = torch.Generator().manual_seed(10 * seed + k)
        x = torch.randn(n, 3, SIDE, SIDE, generator=g) + k
        y = torch.randint(CLASSES, (n,), generator=g)
        x[:, 0] += y[:, None, None]
        if masks:
            y = torch.zeros(n, SIDE, SIDE, dtype=torch.long)
            y[:, 4:11, 3:9] = 1
            x += 2 * y[:, None]
        out[name] = x, y
    return out


def federation(device: torch.device, masks: bool, changes: Mapping[str, Any]) -> Federation:
    settings = {"training": MASK_TRAINING, "task": "segmentation"} if masks else {"training": TRAINING}
    return Federation(unet() if masks else network(), sites(masks), device=device, **settings | dict(changes))


# ---- what a training leaves


def moved(made: Federation, start: State) -> dict[str, Tensor]:
    """How far each number of the global network and of each client's has moved, float64, on the CPU."""
    states = {client.name: made.client_state(client.name) for client in made.clients}
    if made.algorithm.collaboration.has_global_model:
        states["global"] = made.global_state()
    return {
        f"{who}/{name}": value.double() - start[name].double()
        for who, state in states.items()
        for name, value in state.items()
        if value.is_floating_point()
    }


def difference(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest distance of two tensors of one name over the length of the second, and that name.

    A tensor that has hardly moved counts as if it had moved by a thousandth of what numbers move by on average: the
    bias of a convolution before batch norm has no gradient but rounding.
    """
    assert one.keys() == two.keys()
    mean = float(torch.cat([value.flatten() for value in two.values()]).square().mean().sqrt())
    ratios = {}
    for name, value in two.items():
        length = max(float(value.norm()), 1e-3 * mean * value.numel() ** 0.5, 1e-12)
        ratio = float((one[name] - value).norm()) / length
        ratios[name] = ratio if ratio == ratio else float("inf")
    worst = max(ratios, key=ratios.__getitem__)
    return ratios[worst], worst


def same_bits(one: Federation, two: Federation) -> bool:
    """Whether two trainings have left the same, but for their seconds."""
    a, b = one.tensors(), two.tensors()
    if a.keys() != b.keys() or not all(torch.equal(a[k].cpu(), b[k].cpu()) for k in a):
        return False
    histories = ([{k: v for k, v in row.items() if k != "seconds"} for row in made.history] for made in (one, two))
    return len({repr(history) for history in histories}) == 1


# ---- draws


class HostDraws(TorchFunctionMode):
    """Draws in the CPU's generator, in the order of indices: a GPU's own generator gives other numbers."""

    LIKE = (torch.rand_like, torch.randn_like, torch.randint_like)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in self.LIKE:
            device = args[0].device
            host = torch.empty(args[0].shape, dtype=args[0].dtype)
            return func(host, *args[1:], **kwargs).to(device)
        if func in (torch.randn, torch.rand) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


# ---- trainings


def compared(setting: Setting, bound: float, variants: Mapping[str, dict[str, Any]], masks: bool = False) -> Figures:
    """Train each variant on the CPU, twice on the device, once in two halves. Raises WrongError for a difference."""
    worst, where = 0.0, ""
    twice, resumed = [], []
    for name, changes in variants.items():
        train = partial(federation, setting.at, masks, changes)
        one, two = train().run(), train().run()
        found, tensor = _from_cpu(one, train, masks, changes)
        if found >= worst:
            worst, where = found, f"{name} {tensor}".strip()
        twice += [] if same_bits(one, two) else [name]
        resumed += [] if same_bits(one, _halves(train)) else [name]
    figures = {"difference": worst, "bound": bound, "at": where, "twice": not twice, "resumed": not resumed}
    if not worst <= bound:
        raise WrongError("differs from the CPU", figures)
    if twice or resumed:
        raise WrongError(f"other bits with {', '.join(dict.fromkeys(twice + resumed))}", figures)
    return figures


def _from_cpu(
    trained: Federation, train: Callable[[], Federation], masks: bool, changes: Mapping[str, Any]
) -> tuple[float, str]:
    """Compare a training with the CPU's, which has the channels first in memory, whatever its default is."""
    training = {**(MASK_TRAINING if masks else TRAINING), **changes.get("training", {}), "channels_last": False}
    with HostDraws():
        host = federation(CPU, masks, {**changes, "training": training})
        start = host.trainer.named(host.trainer.state_vector.clone(), host.trainer.counters)
        host.run()
        if "addon" in changes:  # what an add-on draws comes from the device's own generator
            trained = train().run()
    return difference(moved(trained, start), moved(host, start))


def _halves(train: Callable[[], Federation]) -> Federation:
    """Train one round, keep its checkpoint in a file, and go on from it in another federation."""
    first = train().run(1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint"
        write_tensors(file, first.tensors(), {"progress": json.dumps(first.progress())})
        tensors, about = read_tensors(file)
    made = train()
    made.restore(tensors, json.loads(about["progress"]))
    return made.run()


# ---- predictions


def predicted(setting: Setting, bound: float, name: str, masks: bool) -> Figures:
    """Predict a site on the CPU, and twice on the device."""
    host = _predictions(CPU, False, name, masks)
    one, two = (_predictions(setting.at, None, name, masks) for _ in range(2))
    distance = float(np.abs(one - host).max() / np.abs(host).max())
    figures = {"difference": distance, "bound": bound, "twice": np.array_equal(one, two, equal_nan=True)}
    if not distance <= bound:
        raise WrongError("differs from the CPU", figures)
    if not figures["twice"]:
        raise WrongError("other bits the second time", figures)
    return figures


def _predictions(device: torch.device, wanted: bool | None, name: str, masks: bool) -> np.ndarray:
    """Probabilities of each image, or of each pixel, of a site that is brighter than those of the training."""
    task: Task = Segmentation() if masks else CLASSIFICATION
    settings = {"cotta": {"sure": 0.0}, "new_client": {"images": 4}}.get(name, {}) if masks else {}
    inference = settled("inference", name, **settings).model_copy(update={"batch_size": 8})
    model = (unet() if masks else network()).to(device)
    if channels_last(wanted, model, (3, SIDE, SIDE), device):
        model = model.to(memory_format=torch.channels_last)
    test, val = (TensorSamples(x.to(device), y.to(device)) for x, y in sites(masks, seed=1).values())
    answer = client_answer(model, val, inference, device, task) if inference.asks else None
    site = Site(greys=((-4.0,), (6.0,)), answer=answer)
    if inference.uses_labels:
        return adapted_probabilities(model, test, val, inference, "x", device, None, site, task)[0]
    return probabilities(model, test, inference, device, None, site, task)


# ---- all of it


def settled(kind: str, name: str, **settings: Any) -> Any:
    """A plug-in with its defaults, with the first example for what has none, and with `settings`."""
    fields: dict[str, Any] = discover(kind)[name].model_fields
    required = {k: (field.examples or [None])[0] for k, field in fields.items() if field.is_required()}
    return build(kind, {"name": name, **required, **settings})


MASKS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedbn": {"algorithm": "fedbn"},
    "fedtan": {"algorithm": "fedtan"},
    "moon": {"algorithm": "moon"},
    "cross_entropy": {"task": {"name": "segmentation", "loss": "cross_entropy"}},
    "class weights": {"training": {**MASK_TRAINING, "class_weights": "balanced"}},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "adam": {"optimiser": "adam"},
    "clip_norm": {"clip_norm": 0.1, "lr": 1.0},
    "momentum": {"momentum": 0.9},
    "pooled variance": {"running_variance": "pooled"},
    "class weights": {"class_weights": "balanced"},
}
"""Settings of training beside algorithms."""


def cases(setting: Setting) -> Iterator[Case]:
    """A row for each algorithm with all its BN policies, each add-on, each inference, and the task of masks."""
    from . import same

    yield Case("library and workflow, the same run", 15, partial(same.library_and_workflow, setting))
    yield Case("a job that is stopped and called again", 15, partial(same.stopped, setting))
    every = setting.size(1, 6)
    for name, cls in list(discover("algorithm").items())[::every]:
        algorithm = settled("algorithm", name, **SHORT.get(name, {}))
        policies = cls.policies[: setting.size(None, 1)]
        variants = {bn: {"algorithm": algorithm, "bn": bn} for bn in policies}
        work = partial(compared, setting, BOUNDS.get(name, BOUND), variants)
        yield Case(f"{name} ({len(variants)})", 0.6 * len(variants), work)
    for name in list(discover("addon"))[::every]:
        work = partial(compared, setting, BOUNDS.get(name, BOUND), {"": {"addon": settled("addon", name)}})
        yield Case(f"addon {name}", 1, work)
    options = {name: {"training": {**TRAINING, **changes}} for name, changes in list(OPTIONS.items())[::every]}
    yield Case("settings of training", 3, partial(compared, setting, BOUND, options))
    for name, changes in list(MASKS.items())[: setting.size(None, 1)]:
        yield Case(f"masks, {name}", 1.5, partial(compared, setting, OF_MASKS, {"": changes}, masks=True))
    for name, inference in list(discover("inference").items())[::every]:
        outlines = "segmentation" in inference.tasks and not setting.small
        for masks in (False, True)[: 1 + outlines]:
            words = f"inference {name}" + ", masks" * masks
            yield Case(words, 0.5, partial(predicted, setting, PREDICTED, name, masks))
