"""Trains and predicts on the CPU and on the stand-in accelerator, and keeps where their bits differ.

python device_worker.py LIBRARY OUT: writes OUT, a JSON of each case's difference or error; empty text for none.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any
from unittest import mock

import numpy as np
import predicting
import squares
import standin
import torch
import toy
import two_ways
from rotation import of_day
from torch import nn
from toy import LARGE, clients, network

from fedshift import Federation
from fedshift.addons import extended
from fedshift.contract.models import accepted
from fedshift.core.registry import Plugin, build, discover
from fedshift.core.rng import stream
from fedshift.data.samples import MappedSamples, TensorSamples, at_site, site_statistics
from fedshift.engine.federation import LocalRound
from fedshift.engine.prediction import adapted_probabilities, client_answer, federation_answer, probabilities
from fedshift.engine.server_side import ServerRound
from fedshift.inferences import Inference, Personalise, Site
from fedshift.io.arrays import read_tensors
from fedshift.io.tables import read_table
from fedshift.jobs.predict import MaskReader
from fedshift.models import initialise
from fedshift.nn.device import read_ahead
from fedshift.tasks import Segmentation
from fedshift.transforms import Transform

Work = Callable[[torch.device], Any]
CPU = torch.device("cpu")
SHAPE = (3, 8, 8)
# In one memory format on both: by default, a CPU has the channels last, and other kernels give other bits.
TRAINING = {"rounds": 2, "batch_size": 4, "lr": 0.02, "watch_every": 1, "channels_last": False}
SHORT: dict[str, dict[str, Any]] = {"fedtan2": {"exchange_rounds": 1}, "fedrep": {"head_epochs": 1}}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "fedprox": [{}, {"form": "norm"}],
    "randconv": [{}, {"variant": "image"}],
    "jigen": [{}, {"classify_only_sane": True, "grayscale": 0.5}],
    "csd": [{}],
}
"""Settings of known plug-ins that take other ways; others run with their defaults."""
OF_MASKS: dict[str, dict[str, Any]] = {"cotta": {"sure": 0}, "new_client": {"images": 4}}
"""Settings that test-time methods need for masks."""
MASKS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "a joint step": {"algorithm": "fedtan"},
    "a personal head": {"algorithm": {"name": "fedrep", "head_epochs": 1}},
    "channels last": {"training": TRAINING | {"channels_last": True}},
    "class weights": {"training": TRAINING | {"class_weights": "balanced"}},
    "cross-entropy": {"task": {"name": "segmentation", "loss": "cross_entropy"}},
    "features of images": {"algorithm": "moon"},
    "local batch norm": {"algorithm": "scaffold", "bn": "local"},
    "selected by dice": {"training": TRAINING | {"select_by": "dice"}},
}
"""What federations of masks are trained with."""
OPTIONS: dict[str, dict[str, Any]] = {
    "adam": {"optimiser": "adam"},
    "channels last": {"channels_last": True},
    "class weights": {"class_weights": "balanced"},
    "clipped": {"clip_norm": 0.1},
    "momentum": {"momentum": 0.5},
    "pooled variance": {"running_variance": "pooled"},
    "selected by auc": {"select_by": "auc"},
    "training loss": {"training_loss_every": 1},
    "with replacement": {"replacement": True, "participation": 0.6},
}


def settled(kind: str, name: str, **settings: Any) -> Any:
    cls: type[Plugin] = discover(kind)[name]
    required = {k: (field.examples or [None])[0] for k, field in cls.model_fields.items() if field.is_required()}
    return build(kind, {"name": name, **required, **settings})


# ---- what is done on both devices


def federation(
    device: torch.device, source: ModuleType = toy, layers: Mapping[str, Any] = MappingProxyType({}), **options: Any
) -> Federation:
    train, val, outside = (
        source.clients(sizes, seed, torch.float32)
        for seed, sizes in enumerate(({"a": 13, "b": 22, "c": 9}, {"a": 5, "b": 6}, {"d": 7}))
    )
    given = {"training": TRAINING, **options}
    model = source.network(**layers, dropout=0.2, dtype=torch.float32)
    return Federation(model, train, validation=val, watched=outside, device=device, **given)


def trained(device: torch.device, **options: Any) -> dict[str, Any]:
    """All that two rounds leave; on a device the second goes on from a checkpoint."""
    made = federation(device, **options).run(1)
    if device != CPU:
        saved = made.tensors(), made.progress()
        made = federation(device, **options)
        made.restore(*saved)
    made.run()
    states = {client.name: made.client_state(client.name) for client in made.clients}
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in made.history]
    return {"global": made.global_state(), "states": states, "history": history, "tensors": made.tensors()}


def lower(device: torch.device) -> dict[str, Any]:
    """Training in bfloat16: autocast of each kind of device has its own list of operators, and so its own bits."""
    out = trained(device, training=TRAINING | {"precision": "bfloat16"})
    return {
        name: [tensor.dtype == torch.float32, bool(tensor.isfinite().all())]
        for name, tensor in out["global"].items()
        if tensor.is_floating_point()
    }


def waits(device: torch.device, transforms: tuple[Any, ...] = (), masks: bool = False, **options: Any) -> str:
    """How often a local step on mapped samples waits for the device, and for what; nothing where it never waits."""
    if device == CPU:
        return ""
    totals = []
    for steps in (2, 4):
        samples = mapped(device, [build("transform", t) for t in transforms], 20, masks)
        model = squares.network(channels=3, dtype=torch.float32) if masks else convolutions()
        training = {"batch_size": 4, "local_steps": steps, "rounds": 1, "lr": 0.01, "clip_norm": 1.0}
        made = Federation(model, {"a": samples, "b": samples}, device=device, **{"training": training, **options})
        standin.counts()
        made.run()
        totals.append(standin.counts())
    few, many = totals
    a_step = {what: (n - few.get(what, 0)) / 4 for what, n in many.items() if what not in HARMLESS}
    return ", ".join(f"{what} {n:g}" for what, n in a_step.items() if n > 0)


def convolutions() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 2),
        )


def asked(model: nn.Module, samples: TensorSamples, inference: Inference, *settings: Any) -> torch.Tensor | None:
    """What one internal site answers to an inference."""
    if not inference.asks:
        return None
    ask = partial(client_answer, model, samples, inference, *settings)
    return federation_answer(inference, lambda known: {"": ask(known=known)}, {"": 1.0})


def predicted(device: torch.device, name: str, personalise: Personalise | None = None) -> dict[str, Any]:
    inference = settled("inference", name).model_copy(update={"batch_size": 5, "personalise": personalise})
    model = copy.deepcopy(network(dropout=0.2, dtype=torch.float32)).to(device)
    test, val = (TensorSamples(*data) for data in clients({"x": 23, "y": 9}, 3, torch.float32).values())
    answer = asked(model, val, inference, device)
    site = Site(greys=((0.0,), (1.0,)), answer=answer)
    if personalise:
        return {"p": adapted_probabilities(model, test, val, inference, "x", device, known=site)}
    return {"p": probabilities(model, test, inference, device, site=site), "counts": dict(site.counts), "asked": answer}


def predicted_masks(device: torch.device, name: str) -> dict[str, Any]:
    """The numbers of each image, distances among them, and all predicted masks."""
    inference = settled("inference", name, **OF_MASKS.get(name, {})).model_copy(update={"batch_size": 5})
    task = Segmentation(keep="masks")
    model = squares.network(dtype=torch.float32).to(device)
    samples = squares.clients({"x": 23, "y": 12}, 3, torch.float32).values()
    test, val = (TensorSamples(x.to(device), y.to(device)) for x, y in samples)
    answer = asked(model, val, inference, device, task)
    site = Site(greys=((0.0,), (1.0,)), answer=answer)
    reader = MaskReader(task, inference.image_order(len(test)))
    adapted = np.zeros(len(test), bool)
    if inference.uses_labels:
        p, adapted = adapted_probabilities(model, test, val, inference, "x", device, None, site, task, reader)
    else:
        p = probabilities(model, test, inference, device, None, site, task, reader)
    return {"p": p, "adapted": adapted, "counts": dict(site.counts), "asked": answer, **reader.kept(p)}


def one_step(device: torch.device, name: str) -> bool:
    """A step of a known network, in a batch of two; AlexNet pools in another order on a device, and has other bits."""
    cls = discover("model")[name]
    images = torch.rand(2, *accepted(cls), generator=torch.Generator().manual_seed(0))
    task = settled("task", "segmentation" if "segmentation" in cls.tasks else "classification")
    y = (images[:, 0] > 0.5).long() if task.has_masks else torch.arange(2)
    made = Federation(
        initialise(settled("model", name), images.shape[1:], 2, 0),
        {"a": (images.to(device), y.to(device))},
        task=task,
        device=device,
        training={"rounds": 1, "batch_size": 2, "lr": 0.01, "channels_last": False},
    )
    return all(bool(tensor.isfinite().all()) for tensor in made.run().global_state().values())


def mapped(device: torch.device, transforms: list[Transform], n: int = 12, masks: bool = False) -> MappedSamples:
    side = squares.SIDE if masks else 8
    images = np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    chosen = [settled("transform", "scale_intensity"), *transforms]
    bright = (images[..., 0] > 127).astype(np.uint8) if masks else None
    opened = partial(MappedSamples, images, np.arange(n), np.arange(n) % 2, device=device, masks=bright)
    statistics = site_statistics(chosen, lambda first: opened(first))
    return opened(at_site(chosen, statistics, [statistics, statistics]))


def transformed(device: torch.device, name: str, masks: bool = False) -> list[Any]:
    samples = mapped(device, [settled("transform", name)], masks=masks)
    rng = stream(0, "test")
    batches = [samples.batch(np.arange(7), rng), samples.batch(np.arange(5, 12), rng), samples.batch(np.arange(12))]
    assert all(tensor.device.type == device.type for batch in batches for tensor in batch)
    return [tensor for batch in batches for tensor in batch]


def job(device: torch.device) -> dict[str, Any]:
    """The files of a training and of a prediction of a small study, with all transforms that keep the size."""
    from fedshift.jobs import predict, train

    transforms = [t for t in EVERY_TRANSFORM if t != "macenko"]
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(train, "take_device", lambda *_: device),
        mock.patch.object(predict, "take_device", lambda *_: device),
    ):
        changes = {
            "transforms": transforms,
            "inferences": ["source", "tsmobn", "eata"],
            "runs": [{"algorithm": "fedavg", "bn": "local"}],
        }
        plan, paths = predicting.trained(Path(folder), **changes)
        (run,) = plan.runs
        table = predicting.written(plan, paths, run, *plan.inferences)
        # Beside the tensors, a file states its run, whose id depends on the folder of the images.
        files = [read_tensors(path)[0] for path in (paths.run_files(run).model, paths.run_files(run).clients)]
        return {
            "files": files,
            "rounds": read_table(paths.run_files(run).rounds).drop(columns="seconds").to_dict(),
            "table": table.to_dict(),
        }


def job_of_masks(device: torch.device) -> dict[str, Any]:
    """The files of a training, of predictions and of scores of a small study of masks."""
    import disc_study

    from fedshift import study
    from fedshift.io.paths import Paths
    from fedshift.jobs import predict, train

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(train, "take_device", return_value=device) as trains,
        mock.patch.object(predict, "take_device", return_value=device) as predicts,
    ):
        changes = {
            "task": {"name": "segmentation", "keep": "masks"},
            "transforms": ["scale_intensity", "flip", "rotate90", "rotate"],
            "training": disc_study.STUDY["training"] | {"channels_last": False},
            "runs": [{"algorithm": "fedavg", "bn": "local"}],
            "figures": [],
        }
        disc_study.carry_out(Path(folder), changes)
        plan, paths = study.load(Path(folder) / "discs.yaml", "mini"), Paths(Path(folder))
        (run,) = plan.runs
        files = paths.run_files(run)
        assert trains.called and predicts.called
        return {
            "files": [read_tensors(path) for path in (files.model, files.clients)],
            "rounds": read_table(files.rounds).drop(columns="seconds").to_dict(),
            "tables": [read_table(file).to_dict() for file in sorted(paths.results.rglob("predictions-*.parquet"))],
            "scores": read_table(paths.study_files(plan.name).scores).to_dict(),
        }


def library_and_jobs(device: torch.device, deterministic: bool = True) -> list[Any]:
    """What a script computes otherwise than jobs, and what torch was set to in all forward passes of both."""
    from fedshift.jobs import predict, train

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(train, "take_device", lambda *_: device),
        mock.patch.object(predict, "take_device", lambda *_: device),
        two_ways.watched() as seen,
    ):
        training = predicting.TINY["training"] | {"deterministic": deterministic}
        found = two_ways.differing(Path(folder), device, training=training)
    own = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision, 0, False
    told = "ieee", "ieee", 2 if deterministic else 0, not deterministic
    return [found, seen == {own if device == CPU else told}]


HARMLESS = ("asynchronous copy", "draw on the device")
EVERY_TRANSFORM: list[Any] = [
    "scale_intensity",
    "flip",
    "rotate90",
    "rotate",
    "random_crop",
    {"name": "center_crop", "size": 6},
    {"name": "resize", "size": 9},
    {"name": "normalize", "mean": [0.5], "std": [0.5]},
    {"name": "monai", "transform": "RandGaussianNoise"},
]


def pooled(device: torch.device) -> dict[str, Any]:
    """Centralised training on sites of which one lies on the device, and the others do not."""
    data = clients(dtype=torch.float32)
    data["b"] = tuple(tensor.to(device) for tensor in data["b"])
    made = Federation(network(dtype=torch.float32), data, algorithm="pooled", training=TRAINING, device=device).run()
    return made.global_state()


def drawn_weights(device: torch.device, kind: str, name: str) -> dict[str, Any]:
    """The layers of a plug-in for a network that lies on the device, where generators of the device draw apart."""
    torch.ops.standin.draw_apart(device != CPU)
    try:
        model = extended(settled(kind, name), network(dtype=torch.float32).to(device), seed=1)
    finally:
        torch.ops.standin.draw_apart(False)
    assert all(tensor.device == next(model.parameters()).device for tensor in model.buffers())
    return {"device": next(model.parameters()).device.type == device.type, **model.state_dict()}


def dropout(device: torch.device) -> list[Any]:
    """Losses of two equal trainings whose draws come from the device's own generator, which is left as it was."""
    torch.ops.standin.draw_apart(device != CPU)
    try:
        before = torch.ops.standin.generator_state()
        losses = [[row["loss"] for row in federation(device).run().history] for _ in range(2)]
        return [losses[0] == losses[1], torch.equal(before, torch.ops.standin.generator_state())]
    finally:
        torch.ops.standin.draw_apart(False)


def data_of_the_device(device: torch.device) -> dict[str, Any]:
    """Training on the CPU, on samples that lie on the device."""
    data = {name: tuple(tensor.to(device) for tensor in part) for name, part in clients(dtype=torch.float32).items()}
    return Federation(network(dtype=torch.float32), data, training=TRAINING).run().global_state()


def refused(device: torch.device) -> list[str]:
    """What is not refused of the calls that a GPU refuses; on the CPU, nothing is tried."""
    x, host = torch.ones(2, device=device), torch.ones(2)
    calls: dict[str, Callable[[], Any]] = {
        "a sum with a tensor of the host": lambda: x + host,
        "rows by an index of the host": lambda: x.index_select(0, torch.tensor([0])),
        "an array of a tensor": lambda: x.numpy(),
        "a generator of the host": lambda: torch.randn(2, device=device, generator=torch.Generator()),
        "a copy to the host that nobody waits for": lambda: x.to("cpu", non_blocking=True),
        "a layer on the host": lambda: nn.Linear(2, 2)(x),
    }
    passed = []
    for name, call in calls.items() if device != CPU else ():
        try:
            call()
            passed.append(name)
        except (RuntimeError, TypeError):
            pass
    return passed


def seconds_of_a_joint_step(device: torch.device) -> bool:
    """Whether the clock of a joint step is read after the device has done it."""
    with torch.random.fork_rng(devices=[]):
        made = federation(device, algorithm="fedtan")
        everyone = range(len(made.clients))
        server_round = ServerRound(made.algorithm, made.training, made.rounds, everyone)
        local = LocalRound(made.trainer, server_round, made.clients, made.ranks)
        if device != CPU:
            standin.counts()
        local.first_steps()
        return device == CPU or standin.counts().get("wait: for the device", 0) == 1


def ahead(device: torch.device) -> list[Any]:
    """Batches in order, an error in its place, and no thread that is left; only a device has a thread."""
    threads = set()

    def numbers() -> Iterator[int]:
        for n in range(5):
            threads.add(threading.get_ident())
            yield n
        raise OSError("the sixth cannot be read")

    batches, out = read_ahead(numbers(), device), list[Any]()
    try:
        out.extend(batches)
    except OSError as error:
        out.append(str(error))
    stopped = read_ahead(numbers(), device)
    out.append(next(stopped))
    stopped.close()
    apart = threads.isdisjoint({threading.get_ident()})
    return [*out, apart == (device != CPU), threading.active_count()]


# ---- all of it


def cases() -> dict[str, Work]:
    out: dict[str, Work] = {}
    for name, cls in discover("algorithm").items():
        for settings in SETTINGS.get(name, [{}]):
            algorithm = settled("algorithm", name, **SHORT.get(name, {}), **settings)
            for bn in cls.policies:
                out[" ".join(["algorithm", name, bn, *settings])] = partial(trained, algorithm=algorithm, bn=bn)
    for name in discover("addon"):
        for settings in SETTINGS.get(name, [{}]):
            addon = settled("addon", name, **settings)
            out[" ".join(["addon", name, *settings])] = partial(trained, addon=addon)
        out[f"weights of addon {name}"] = partial(drawn_weights, kind="addon", name=name)
    for name, changes in OPTIONS.items():
        out[f"training {name}"] = partial(trained, training=TRAINING | changes)
    out["large network"] = partial(trained, layers={"norm": LARGE})
    for name in discover("inference"):
        out[f"inference {name}"] = partial(predicted, name=name)
    out["inference personalised"] = partial(predicted, name="source", personalise=Personalise(steps=2))
    for name in discover("model"):
        out[f"model {name}"] = partial(one_step, name=name)
    for name in discover("transform"):
        out[f"transform {name}"] = partial(transformed, name=name)
    out["waits transform all"] = partial(waits, transforms=tuple(t for t in EVERY_TRANSFORM[1:-1]))
    for name in ["", *(t for t in discover("transform") if t not in ("macenko", "monai", "scale_intensity"))]:
        chosen = [t for t in EVERY_TRANSFORM if name in (t, isinstance(t, dict) and t["name"])] if name else []
        out[f"waits transform {name}"] = partial(waits, transforms=tuple(chosen or [name] * bool(name)))
    for name in discover("algorithm"):
        for settings in SETTINGS.get(name, [{}]):
            algorithm = settled("algorithm", name, **SHORT.get(name, {}), **settings)
            out[" ".join(["waits algorithm", name, *settings])] = partial(waits, algorithm=algorithm)
    for name in discover("addon"):
        for settings in SETTINGS.get(name, [{}]):
            out[" ".join(["waits addon", name, *settings])] = partial(waits, addon=settled("addon", name, **settings))
    for name, options in MASKS.items():
        out[f"masks {name}"] = partial(trained, source=squares, **{"task": "segmentation", **options})
    out["masks waits"] = partial(waits, transforms=("flip", "rotate90", "rotate"), masks=True, task="segmentation")
    for name, cls in discover("inference").items():
        if "segmentation" in cls.tasks:
            out[f"masks inference {name}"] = partial(predicted_masks, name=name)
    for name, cls in discover("transform").items():
        if cls.mask:
            out[f"masks transform {name}"] = partial(transformed, name=name, masks=True)
    return out | {
        "jobs of masks": job_of_masks,
        "data of the device, training on the CPU": data_of_the_device,
        "dropout": dropout,
        "library and jobs": library_and_jobs,
        "library and jobs, not deterministic": partial(library_and_jobs, deterministic=False),
        "jobs train and predict": job,
        "pooled sites on two devices": pooled,
        "reading ahead": ahead,
        "seconds of a joint step": seconds_of_a_joint_step,
        "training bfloat16": lower,
        "what a GPU refuses": refused,
    }


def difference(one: Any, other: Any, path: str = "") -> str:
    """Where two outcomes differ, or nothing."""
    if isinstance(one, dict) and isinstance(other, dict):
        if list(one) != list(other):
            return f"{path}: {list(one)} and {list(other)}"
        return next((found for k in one if (found := difference(one[k], other[k], f"{path}/{k}"))), "")
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return difference(dict(enumerate(one)), dict(enumerate(other)), path)
    one, other = (value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value for value in (one, other))
    if isinstance(one, np.ndarray):
        return "" if (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()) else path
    return "" if one == other or (one != one and other != other) else f"{path}: {one} and {other}"


def tried(work: Work, device: torch.device) -> str:
    try:
        return difference(work(CPU), work(device))
    except Exception:
        return traceback.format_exc()


def main(library: str, out: str) -> None:
    torch.set_num_threads(1)
    device = standin.load(Path(library))
    outcomes = {name: tried(work, device) for name, work in of_day(cases().items(), 4)}
    Path(out).write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
