"""Choice of an inference and of metrics by their names, and the scores of predictions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ..algorithms import Collaboration
from ..core import registry
from ..core.errors import UserError, did_you_mean
from ..inferences import Inference

InferenceSpec = str | dict[str, Any] | Inference
"""An inference: its name, a mapping with `name` and settings, or an object."""


def inference_of(spec: InferenceSpec, batch_size: int | None = None) -> Inference:
    """Return an inference, with another batch size if one is given. Raises UserErrors for what is not known."""
    inference: Inference = registry.build("inference", spec)
    if batch_size is not None:
        inference = registry.build("inference", inference.spec() | {"batch_size": batch_size})
    return inference


def without_labels(spec: InferenceSpec, batch_size: int | None, data: str) -> Inference:
    """Return an inference as `inference_of` does. Raises UserError for one that adapts to labelled `data`."""
    inference = inference_of(spec, batch_size)
    if inference.uses_labels:
        raise UserError("inference", f"{inference.name} adapts to labelled {data}", "call evaluate with their labels")
    return inference


def scores(label: np.ndarray, probability: np.ndarray, metrics: Sequence[str]) -> dict[str, float]:
    """Return the value of each metric for labels (n,) and probabilities (n, classes); NaN where it is not defined."""
    names = [metrics] if isinstance(metrics, str) else metrics
    return {name: float(registry.build("metric", name).value(label, probability)) for name in names}


def require_site(site: str, sites: Collection[str]) -> None:
    """Raise UserError for a name that is none of the sites."""
    if site not in sites:
        raise UserError("site", f"unknown site {site!r}", did_you_mean(site, sites))


def require_network(client: str, collaboration: Collaboration, clients: Iterable[str]) -> None:
    """Raise UserError where no `client` is named, and clients share no network that others could use."""
    if not client and not collaboration.has_global_model:
        what = f"{collaboration.apart}: there is no network for sites outside"
        raise UserError("site", what, f"name one of {', '.join(clients)}")
