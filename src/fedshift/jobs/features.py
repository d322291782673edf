"""The features of a trained run: what its last layer sees of random test images of each site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from ..core.rng import stream
from ..data.samples import Samples
from ..engine.prediction import site_predictor
from ..inferences import Inference, Site
from ..io.paths import Paths
from ..nn.device import to_device
from ..nn.features import Blended, classifier, inputs_of
from .devices import take_device
from .predict import Network, load_run, site_knowledge
from .run_images import RunImages


class SiteFeatures(NamedTuple):
    """The features of some test images of a site under an inference.

    Attributes
    ----------
    inference : key of the inference
    site : name of the site
    samples : names of the images (n,), in random order
    values : features (n, d), float64
    """

    inference: str
    site: str
    samples: np.ndarray
    values: np.ndarray


def features(
    folder: Path, asked: Mapping[str, tuple[Inference, tuple[str, ...]]], paths: Paths, each: int, threads: int = 1
) -> Iterator[SiteFeatures]:
    """Yield the features of at most `each` random test images of sites of a run.

    `asked` names the inferences by key, each with the sites that it sees. An inference sees all test images of a site,
    as for predictions; features of the drawn ones are kept. An internal site without test images shows those of
    validation. Nothing is yielded where several networks predict a site
    together. Raises UserError where the run is not there, or its network has no linear layer.
    """
    run = load_run(folder)
    device = take_device(threads)
    images = RunImages(run, paths, device)
    network = Network(run, folder, images.prepared.shape, device)
    # Where internal sites have no test images, those of validation, which trained nothing, stand for them.
    unseen = images.by_site("val", run.partition.internal) | images.by_site("test", run.tested)
    for key, (inference, sites) in asked.items():
        knowledge = site_knowledge(inference, network, images)
        for site in sites:
            model = network.at(inference.network_at(site))
            if site not in unseen or isinstance(model, Blended):
                continue
            rows = unseen[site]
            drawn = stream("features", site).permutation(len(rows))[:each]
            exact = run.training.deterministic
            values = last_inputs(model, images.samples(rows), inference, drawn, knowledge(site), device, exact)
            yield SiteFeatures(key, site, rows["sample"].astype(str).to_numpy()[drawn], values)


def last_inputs(
    model: nn.Module,
    samples: Samples,
    inference: Inference,
    drawn: np.ndarray,
    place: Site | None = None,
    device: torch.device | str = "cpu",
    deterministic: bool = True,
) -> np.ndarray:
    """Return the inputs (n, d), float64, of the last linear layer for the samples at the positions `drawn` (n,).

    The inference predicts all samples in its own order and batches. Where a network passes a batch several times, the
    first pass counts. `deterministic` is that of `nn.device.arithmetic`.
    """
    order = inference.image_order(len(samples))
    indices = [order[start : start + inference.batch_size] for start in range(0, len(order), inference.batch_size)]

    def batches() -> Iterator[torch.Tensor]:
        return (to_device(samples.batch(index)[0], device) for index in indices)

    place = Site(batches, place.greys, place.answer) if place else Site(batches)
    wanted = set(drawn.tolist())
    kept: dict[int, np.ndarray] = {}
    # The inference works on a copy of the network, which keeps the hook.
    predictor = site_predictor(model, inference, place, deterministic=deterministic)
    with inputs_of(classifier(model)) as inputs, predictor as predict:
        for index, x in zip(indices, batches(), strict=True):
            inputs.clear()
            predict(x)
            values = inputs[0].detach().double().cpu().numpy().reshape(len(index), -1)
            kept |= {k: row for k, row in zip(index.tolist(), values, strict=True) if k in wanted}
    return np.stack([kept[k] for k in drawn.tolist()])
