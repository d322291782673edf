"""Prediction and scores of trained networks on data of a user: what a federation and a trained run have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ..algorithms import Collaboration
from ..core import registry
from ..core.errors import UserError, did_you_mean
from ..inferences import Inference
from ..metrics import Metric
from ..tasks import CLASSIFICATION, Task

InferenceSpec = str | dict[str, Any] | Inference
"""An inference: its name, a mapping with `name` and settings, or an object."""


def require_site(site: str, sites: Collection[str]) -> None:
    """Raise UserError for a name that is none of the sites."""
    if site not in sites:
        raise UserError("site", f"unknown site {site!r}", did_you_mean(site, sites))


def require_network(client: str, collaboration: Collaboration, clients: Iterable[str]) -> None:
    """Raise UserError where no `client` is named, and clients share no network that others could use."""
    if not client and not collaboration.has_global_model:
        problem = f"{collaboration.apart}, so sites outside have no network"
        raise UserError("site", problem, f"name one of {', '.join(clients)}")


class Predictor(ABC):
    """Trained networks of some sites, which predict data of any site and are scored on them."""

    task: Task = CLASSIFICATION

    def _chosen(self, spec: InferenceSpec, batch_size: int | None) -> Inference:
        """Return an inference, with another batch size if one is given. Raises UserErrors for one that does not fit."""
        inference: Inference = registry.build("inference", spec)
        inference.require_task(self.task.name, "inference")
        if batch_size is not None:
            inference = registry.build("inference", inference.spec() | {"batch_size": batch_size})
        return inference

    @abstractmethod
    def _predicted(self, x: Any, y: Any, inference: Inference, site: str | None) -> tuple[np.ndarray, np.ndarray]:
        """Return predictions (n, ...), and which inputs (n,), bool, an inference has seen the labels of.

        These are class probabilities where no `y` is given (None), and else what the task keeps of each input. Raises
        UserError for inputs and labels that do not fit the networks.
        """

    def predict(
        self,
        x: Any,
        *,
        site: str | None = None,
        inference: InferenceSpec = "source",
        batch_size: int | None = None,
    ) -> np.ndarray:
        """Return class probabilities of the inputs of one site, as the workflow predicts them.

        Parameters
        ----------
        x : inputs of the form that the class documents, (n, ...)
        site : a site, whose own tensors are used where it keeps any; by default the inputs are those of a site outside
        inference : a name such as `source` or `tsmobn`, a mapping with `name` and settings, or an Inference; it adapts
            to `x` as to all inputs of a site
        batch_size : inputs a batch; by default that of the inference

        Returns
        -------
        Probabilities (n, classes), float64, in the order of `x`; of each pixel, (n, classes, height, width), for
        segmentation.

        Raises
        ------
        UserError
            For inputs of another form, an unknown inference or site, and an inference that adapts to labels: see
            `evaluate`. For a trained run also where the inference needs training images that are not prepared here.

        Examples
        --------
        >>> import fedshift
        >>> study = fedshift.load_study("my-study")
        >>> run = study.open_run(next(iter(study.runs)))
        >>> x, y = run.images("far")
        >>> p = run.predict(x, site="far", inference={"name": "tsmobn", "momentum": 0.5}, batch_size=10)
        >>> p.shape, p.dtype, p.sum(axis=1).round(9).tolist()[:3]
        ((40, 2), dtype('float64'), [1.0, 1.0, 1.0])
        """
        chosen = self._chosen(inference, batch_size)
        if chosen.uses_labels:
            raise UserError("inference", f"{chosen.name} adapts to labelled inputs", "call evaluate with their labels")
        return self._predicted(x, None, chosen, site)[0]

    def evaluate(
        self,
        x: Any,
        y: Any,
        inference: InferenceSpec = "source",
        site: str | None = None,
        metrics: str | Sequence[str | Metric] = ("accuracy",),
        *,
        batch_size: int | None = None,
    ) -> dict[str, float]:
        """Return scores on the labelled data of one site. The networks stay as they are.

        Parameters
        ----------
        x, inference, site, batch_size : as for `predict`
        y : labels (n,), class numbers 0, 1, ..., integer, or masks of them (n, height, width)
        metrics : metrics, by name (`fedshift list metrics`) or as objects

        Returns
        -------
        The value of each metric by its name, from 0 to 1 for shares such as accuracy; NaN where it is not defined, such
        as the AUC of a single class. Inputs whose labels an inference has adapted to are not scored.

        Raises
        ------
        UserError
            As `predict`; and for unknown metrics, and labels that are not class numbers of the networks.

        Examples
        --------
        >>> import torch
        >>> from fedshift import Federation
        >>> x, y = torch.eye(2).repeat(20, 1), torch.arange(40) % 2
        >>> federation = Federation(torch.nn.Linear(2, 2), {"a": (x, y)}, training={"lr": 1.0}).run(rounds=20)
        >>> federation.evaluate(x, y, metrics=["accuracy", "auc"])
        {'accuracy': 1.0, 'auc': 1.0}
        >>> federation.evaluate(x, y, site="c")
        Traceback (most recent call last):
        fedshift.core.errors.UserError: site: unknown site 'c'; known: a
        """
        probability, seen = self._predicted(x, y, self._chosen(inference, batch_size), site)
        label = np.asarray(y.cpu() if hasattr(y, "cpu") else y)[~seen]
        specs = [metrics] if isinstance(metrics, str) else metrics
        chosen: dict[str, Metric] = {
            spec if isinstance(spec, str) else spec.name: registry.build("metric", spec) for spec in specs
        }
        for metric in chosen.values():
            metric.require_task(self.task.name, "metrics")
        return {name: float(metric.value(label, probability[~seen])) for name, metric in chosen.items()}
