"""Export of a trained run as a MONAI bundle, which `monai.bundle` and other tools verify and run.

A bundle holds the network's tensors, the run's settings and a configuration that names parts of fedshift, so that
images are read and predicted as in `fedshift apply`; fedshift must be installed where it runs.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..core.errors import UserError
from ..io.disk import atomic_folder
from ..io.identity import require_own
from ..io.paths import RunFiles
from ..io.text import write_json, write_text
from ..jobs.apply import require_network
from ..jobs.image_files import ImageFiles
from ..jobs.predict import Network, load_run
from ..nn.features import Blended
from . import without_places

if TYPE_CHECKING:
    import torch

    from ..inferences import Inference
    from ..study.run import Run
    from ..tasks import Task

IGNITE = "0.5"
"""Earliest version of pytorch-ignite that works."""
SIGNS = ("$", "%", "@")
"""First characters of texts that MONAI does not read as text, but as code, a file or a reference."""
RELATIVE = re.compile(r"([@%])(?=#|::)")
"""Relative references, which MONAI resolves also inside of a text."""
MARKER = "fedshift-export.json"
"""File that lists the files of an export: the next export may replace these."""
FILES = "--meta_file configs/metadata.json --config_file configs/inference.json"
"""Options of `monai.bundle` that name the two files of configuration of a bundle."""


@contextmanager
def own_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, which then replaces an earlier export in `out`; nothing changes after an error.

    Raises UserError where `out` holds anything that an earlier export did not write there.
    """
    require_own(out, MARKER)
    with atomic_folder(out.resolve()) as new:
        yield new
        written = sorted(path.relative_to(new).as_posix() for path in new.rglob("*"))
        write_json(new / MARKER, {"files": written})


def export(folder: Path, inference: Inference, out: Path) -> Path:
    """Write the bundle of the run in `folder`, whole or not at all, in the place of an earlier one. Returns `out`.

    The network is the global one, or that of the inference's client. Raises UserError where the run has no such
    network, was not trained on square images, or `out` holds anything else than an earlier bundle, such as images.
    """
    import torch

    run = load_run(folder)
    require_network(run, inference)
    shape = ImageFiles.of(run, Path()).stored
    adapting = [transform.name for transform in run.transforms if transform.per_site]
    if adapting:
        fault = f"{adapting[0]} takes statistics of all images of a site, and a bundle reads them one by one"
        raise UserError(f"run {run.id}", fault, "use `fedshift apply`, or another run")
    model = Network(run, folder, shape, torch.device("cpu")).at(inference.client or "", inference.external_bn)
    if isinstance(model, Blended):
        fault = f"with {run.algorithm.name} several networks predict together, and a bundle holds one"
        raise UserError(f"run {run.id}", fault, "use `fedshift apply`, or another --client or run")
    wrong = [name for name, value in model.state_dict().items() if not value.isfinite().all()]
    if wrong:
        raise UserError(RunFiles(folder).model, f"its tensor {wrong[0]!r} holds NaN or infinity", "train it anew")
    # A bundle is passed on: paths of this machine stay out of it.
    public = without_places(run)
    with own_folder(out) as new:
        for name in ("configs", "docs", "models"):
            (new / name).mkdir()
        state = {name: value.contiguous() for name, value in model.state_dict().items()}
        torch.save(state, new / "models" / "model.pt")
        write_json(new / "models" / "spec.json", public.spec)
        write_json(new / "configs" / "metadata.json", quoted(metadata(public, model, shape)))
        write_json(new / "configs" / "inference.json", configuration(inference, run.data.task))
        write_text(new / "docs" / "README.md", readme(public, run.id, inference.client))
    return out


def quoted(value: Any) -> Any:
    """Return the content of a JSON file, changed so that MONAI reads all of its texts as text.

    MONAI runs a text that begins with `$` as Python, puts another file in the place of one with `%`, and looks up what
    follows `@`. Names of classes and sites, and titles, come from the study that trained the run: an apostrophe is put
    before such a beginning, and a space between such a sign and the `#` or `::` of a relative reference.
    """
    if isinstance(value, dict):
        return {quoted(key): quoted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [quoted(inner) for inner in value]
    if not isinstance(value, str):
        return value
    text = RELATIVE.sub(r"\1 ", value)
    return f"'{text}" if text.startswith(SIGNS) else text


def metadata(run: Run, model: torch.nn.Module, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the content of metadata.json for a network; `shape` is that of one stored image, channels first.

    `monai.bundle verify_net_in_out` compares it with the network.
    """
    card = run.data.card
    classes = run.data.dataset.classes
    x, logits = _extremes(run, model, shape)
    channels = len(x[0])
    # what MONAI calls logits (batch, classes) of images, and those of pixels (batch, classes, height, width)
    form: dict[str, Any] = {"type": "image", "format": "segmentation", "spatial_shape": list(logits.shape[2:])}
    if logits.dim() == 2:
        form = {"type": "logits", "format": "classes", "spatial_shape": [1, logits.shape[1]]}
    format, names = ("RGB", ["R", "G", "B"]) if channels == 3 else ("magnitude", ["intensity"] * channels)
    return {
        "version": __version__,
        "changelog": {__version__: "exported by fedshift"},
        "monai_version": version("monai"),
        "pytorch_version": version("torch"),
        "numpy_version": version("numpy"),
        "required_packages_version": {"fedshift": __version__, "pytorch-ignite": IGNITE},
        "name": f"{run.data.dataset.name}, {run.method}",
        "task": f"{run.data.task.name.capitalize()}: {', '.join(classes)}",
        "description": f"{run.method} with batch norm {run.bn}, trained over {_sites(run)}. {_warning(run)}",
        "authors": "",
        "copyright": "",
        "data_source": _origin(run),
        "data_type": "image files",
        "intended_use": "Research only; not a medical device.",
        "references": [card.citation] if card.citation else [],
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image",
                    "format": format,
                    "num_channels": channels,
                    "spatial_shape": list(x.shape[2:]),
                    "dtype": str(x.dtype).removeprefix("torch."),
                    "value_range": [float(x.min()), float(x.max())],
                    "is_patch_data": False,
                    "channel_def": _numbered(names),
                }
            },
            "outputs": {
                "pred": {
                    **form,
                    "num_channels": logits.shape[1],
                    "dtype": str(logits.dtype).removeprefix("torch."),
                    "value_range": [],
                    "is_patch_data": False,
                    "channel_def": _numbered(classes),
                }
            },
        },
    }


def _numbered(names: Iterable[str]) -> dict[str, str]:
    return {str(k): name for k, name in enumerate(names)}


def part(name: str) -> str:
    """Return the name by which MONAI imports the function or class `name` of `monai_parts`."""
    return f"fedshift.export.monai_parts.{name}"


def _what_is_written(task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration of a transform of the logits and of the handler that writes predictions.

    They write a table of class probabilities or, for a task with pictures such as segmentation, a picture of each image
    as `fedshift apply` does, since MONAI's own savers do not know the size of the image file.
    """
    if task.pictures:
        return {"_target_": "monai.transforms.Identityd", "keys": "pred"}, {
            "_target_": part("PictureSaver"),
            "of": "@trained",
            "source": "@dataset_dir",
            "how": "@how",
            "output_dir": "@output_dir",
        }
    return {"_target_": "monai.transforms.Activationsd", "keys": "pred", "softmax": True}, {
        "_target_": "monai.handlers.ClassificationSaver",
        "output_dir": "@output_dir",
        "batch_transform": {"_target_": part("named")},
        "output_transform": "$monai.handlers.from_engine(['pred'])",
    }


def configuration(inference: Inference, task: Task) -> dict[str, Any]:
    """Return the content of inference.json, MONAI's workflow. Users set bundle_root, dataset_dir and inference."""
    postprocessing, saver = _what_is_written(task)
    return {
        "imports": ["$import torch"],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_dir": "$@bundle_root + '/eval'",
        "inference": quoted(inference.spec() | {"client": None}),
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "trained": {"_target_": part("run"), "spec": "$@bundle_root + '/models/spec.json'"},
        "how": {"_target_": part("inference"), "settings": "@inference"},
        "network_def": {"_target_": part("network"), "of": "@trained"},
        "network": "$@network_def.to(@device)",
        "preprocessing": {"_target_": part("ReadImage"), "of": "@trained", "source": "@dataset_dir"},
        "dataset": {
            "_target_": "monai.data.Dataset",
            "data": {"_target_": part("listed"), "of": "@trained", "source": "@dataset_dir"},
            "transform": "@preprocessing",
        },
        "dataloader": {
            "_target_": "monai.data.DataLoader",
            "dataset": "@dataset",
            "batch_size": "$@how.batch_size",
            "sampler": {"_target_": part("order"), "how": "@how", "n": "$len(@dataset)"},
        },
        "inferer": {
            "_target_": part("SiteInferer"),
            "how": "@how",
            "model": "@network",
            "loader": "@dataloader",
            "device": "@device",
            "of": "@trained",
        },
        "postprocessing": postprocessing,
        "handlers": [
            {
                "_target_": "monai.handlers.CheckpointLoader",
                "load_path": "$@bundle_root + '/models/model.pt'",
                "load_dict": {"model": "@network"},
                "strict": True,
            },
            "@inferer",
            saver,
        ],
        "evaluator": {
            "_target_": "monai.engines.SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@dataloader",
            "network": "@network",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
            "val_handlers": "@handlers",
        },
        "run": ["$@evaluator.run()"],
    }


def readme(run: Run, name: str, client: str | None) -> str:
    """Return docs/README.md: what the network of run `name` is, where it comes from and how to run it.

    `client` is the client whose network it is, or None for the global network.
    """
    card = run.data.card
    network = f"that of the client {client}, with what stayed there" if client else "the global one"
    facts = [
        f"Classes: {', '.join(f'{k}: {label}' for k, label in enumerate(run.data.dataset.classes))}",
        f"Trained over {_sites(run)}. The network is {network}.",
        f"Data: {_origin(run)} Licence: {card.licence}",
    ]
    if card.caveat:
        facts.append(f"Caveat: {card.caveat}")
    written = "eval/predictions.csv: path, and a probability for each class"
    if run.data.task.pictures:
        folders = " and ".join(f"eval/{kind}s" for kind in run.data.task.pictures)
        written = f"eval/predictions.csv, with numbers of each image, and a PNG file of each into {folders}"
    facts.append("Network, transforms and training: models/spec.json")
    return f"""# {run.method}, batch norm {run.bn}

Run {name} of fedshift {__version__}. {_warning(run)}

{"".join(f"- {html.escape(fact, quote=False)}{chr(10)}" for fact in facts)}
fedshift {__version__}, pytorch-ignite and fire must be installed. For the images of one hospital, a folder or a CSV
with the column `path`,

    python -m monai.bundle run {FILES} --dataset_dir FOLDER

writes {written}. Another treatment of batch norm at test time:

    python -m monai.bundle run {FILES} --dataset_dir FOLDER --inference '{{"name": "tsmobn", "momentum": 0.9}}'

This compares the metadata with the network:

    python -m monai.bundle verify_net_in_out network_def {FILES}
"""


def _origin(run: Run) -> str:
    card = run.data.card
    named = " ".join(filter(None, (card.title, card.version)))
    return f"{named}. {card.source}.".replace("..", ".")


def _warning(run: Run) -> str:
    warning = "For research only; not a medical device."
    if run.data.synthetic:
        warning = f"Trained on synthetic images, drawn to try the software: its answers mean nothing. {warning}"
    return warning


def _sites(run: Run) -> str:
    sites = run.partition.internal
    return f"{len(sites)} {'site' if len(sites) == 1 else 'sites'}: {', '.join(sites)}"


def _extremes(run: Run, model: torch.nn.Module, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a black and a white image as the network sees them (2, channels, height, width), and its logits."""
    import torch

    from ..data.samples import MappedSamples

    channels, height, width = shape
    stored = np.stack([np.full((height, width, channels), grey, dtype=np.uint8) for grey in (0, 255)])
    # The darkest and the brightest image bound the values that any image has after the transforms.
    both = np.arange(2)
    x, _ = MappedSamples(stored, both, both, run.transforms).batch(both)
    with torch.no_grad():
        return x, model.eval()(x)
