"""Federations as scripts and notebooks use them; prediction and scores of trained networks on data of a user."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ..addons import Addon
from ..algorithms import Algorithm, Collaboration, Training
from ..core import registry
from ..core.errors import UserError, did_you_mean
from ..data.samples import Samples, TensorSamples
from ..engine import federation as engine
from ..engine.client import Client, SamplesBySite, float_of, require_classes, samples_by_site
from ..engine.prediction import adapted_probabilities, class_probabilities, client_answer, federation_answer
from ..engine.specification import Specification
from ..inferences import Inference, Site
from ..io.shipped import find_plugins
from ..metrics import Metric
from ..nn.features import Blended
from ..nn.policies import BATCH
from ..tasks import CLASSIFICATION, Task

InferenceSpec = str | dict[str, Any] | Inference
"""An inference: its name, a mapping with `name` and settings, or an object."""


def require_site(site: str, sites: Collection[str]) -> None:
    """Raise UserError if `site` is not one of `sites`."""
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
        """Return the inference that `spec` describes, with `batch_size` in place of its own unless that is None.

        Raises UserErrors for an unknown inference, wrong settings, or one that is not for the task.
        """
        inference: Inference = registry.build("inference", spec)
        inference.require_task(self.task.name, "inference")
        if batch_size is not None:
            inference = registry.build("inference", inference.spec() | {"batch_size": batch_size})
        return inference

    @abstractmethod
    def _predicted(self, x: Any, y: Any, inference: Inference, site: str | None) -> tuple[np.ndarray, np.ndarray]:
        """Return predictions (n, ...), and a mask (n,), bool, of inputs whose labels the inference has seen.

        Without labels (`y` is None), predictions are class probabilities; with labels, what the task's metrics need of
        each input. Raises UserError for inputs and labels that do not fit the networks.
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


class Federation(Predictor, engine.Federation):
    """Clients that train one model together, and the scores of that model on any data.

    The order in which clients are given changes nothing: they train in the order of their names. `predict` and
    `evaluate` take inputs (n, ...), a float tensor like those of the clients. An inference that changes grey levels,
    such as `cotta`, takes the smallest and the largest value of these inputs for black and white.

    Parameters
    ----------
    model : any network that maps a batch to logits (batch, classes), or for segmentation (batch, classes, height,
        width); it is copied once and not changed
    clients : name -> `(x, y)`, or `Samples`; x are float tensors (n, ...), y class numbers 0, 1, ... (n,), integer, or
        for segmentation masks of them (n, height, width)
    validation : validation samples of any of the clients, in the same form
    watched : samples of any sites on which the global network is tested every `training.watch_every` rounds, for
        curves; nothing depends on these tests
    algorithm : a name, a mapping with `name` and settings, or an Algorithm. In the folder of a project, names of the
        project's own plug-ins count, too
    bn : `aggregated`, `local`, `local_statistics` or `local_affine`; by default the first policy of the algorithm
    norms : types of the norms that `bn` is about: `all`, or some of `batch`, `group`, `layer` and `instance`
    addon : a name, a mapping with `name` and settings, or an Addon
    training : settings of local training and of the rounds, a mapping or a Training
    seed : seed of everything random: batches, augmentation, dropout, choice of participants
    device : device of the training
    task : `classification`, `segmentation`, a mapping with `name` and settings, or a Task

    Raises
    ------
    UserError
        For an unknown algorithm, policy or setting, a combination without meaning, a client without samples, and labels
        that are not class numbers.

    Examples
    --------
    Two hospitals train; a third, whose images are brighter, is predicted with two treatments of batch norm.

    >>> import torch
    >>> from fedshift import Federation
    >>> def hospital(shift, n=40):
    ...     g = torch.Generator().manual_seed(int(10 * shift))
    ...     y = torch.arange(n) % 2
    ...     return torch.randn(n, 4, generator=g) + 2 * y[:, None] + shift, y
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    >>> clients = {"north": hospital(0.0), "south": hospital(0.5)}
    >>> federation = Federation(net, clients, bn="local", training={"lr": 0.1}, seed=1).run(rounds=8)
    >>> x, y = hospital(6.0)
    >>> before, after = (federation.evaluate(x, y, inference=how) for how in ("source", "tsmobn"))
    >>> after["accuracy"] > before["accuracy"]
    True
    >>> sorted({row["site"] for row in federation.history})
    ['north', 'south']
    """

    def __init__(
        self,
        model: nn.Module,
        clients: SamplesBySite,
        *,
        validation: SamplesBySite | None = None,
        watched: SamplesBySite | None = None,
        algorithm: str | dict[str, Any] | Algorithm = "fedavg",
        bn: str | None = None,
        addon: str | dict[str, Any] | Addon | None = None,
        training: Training | dict[str, Any] | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        task: str | dict[str, Any] | Task = CLASSIFICATION,
        norms: str | Sequence[str] = BATCH,
    ) -> None:
        # By the names that studies of the project in this folder use, whatever was called before.
        find_plugins()
        specification = Specification.open(
            model, algorithm=algorithm, bn=bn, addon=addon, training=training, seed=seed, task=task, norms=norms
        )
        super().__init__(specification, clients, validation=validation, watched=watched, device=device)

    def model(self, site: str | None = None) -> nn.Module:
        """Return a copy of a trained network, in evaluation mode, on the device of the training.

        Parameters
        ----------
        site : a client, whose own tensors or personal network are then used; by default the network for a site outside

        Returns
        -------
        A module from a batch (batch, ...) to logits (batch, classes). Where several networks predict the site together,
        it holds all of them.

        Raises
        ------
        UserError
            For an unknown client, and without a name where clients share no model.

        Examples
        --------
        >>> import torch
        >>> from fedshift import Federation
        >>> clients = {"a": (torch.randn(20, 3), torch.arange(20) % 2), "b": (torch.randn(20, 3), torch.arange(20) % 2)}
        >>> federation = Federation(torch.nn.Linear(3, 2), clients).run(rounds=1)
        >>> federation.model("a")(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
        """
        self._require(site)
        require_network(site or "", self.algorithm.collaboration, self._members)
        networks = self.networks(site or "")
        modules = []
        for state in networks.states:
            module = copy.deepcopy(self.trainer.model).eval()
            # Assigned, not copied: the copy's own tensors are views of one large vector, and would keep it alive.
            module.load_state_dict(state, assign=True)
            modules.append(module.to(self.trainer.device))
        if len(modules) == 1:
            return modules[0]
        return Blended(modules, networks.weights, networks.of).eval()

    @property
    def _members(self) -> dict[str, Client]:
        return {client.name: client for client in self.clients}

    def _require(self, site: str | None) -> None:
        """Raise UserError if `site` is given, and no client has this name."""
        if site is not None:
            require_site(site, self._members)

    def _predicted(self, x: Any, y: Any, inference: Inference, site: str | None) -> tuple[np.ndarray, np.ndarray]:
        name = site or "outside"
        if y is None:
            inputs = torch.as_tensor(x)
            if inputs.is_floating_point():
                inputs = inputs.to(float_of(self.trainer.model) or inputs.dtype)
            samples: Samples = TensorSamples(inputs, torch.zeros(len(inputs), dtype=torch.long))
        else:
            dtype = float_of(self.trainer.model)
            samples = samples_by_site({name: (x, y)}, "samples of", self.task, dtype)[name]
            require_classes(self.trainer.model, self.task, {"samples of": {name: samples}})
        if not len(samples):
            raise UserError("x", "holds no samples", "give at least one")
        self._require(site)
        model = self.model(inference.network_at(site or "") or None)
        val = self._members[site].val if site else None
        empty = TensorSamples(torch.empty(0), torch.empty(0))
        knowledge = replace(self._knowledge(inference, site), greys=_greys(torch.as_tensor(x)))
        device = self.trainer.device
        read = class_probabilities if y is None else self.task.predictions
        exact = self.training.deterministic
        return adapted_probabilities(
            model, samples, val or empty, inference, name, device, None, knowledge, self.task, read, exact
        )

    def _knowledge(self, inference: Inference, site: str | None) -> Site:
        """Return what an inference may know at a site besides the inputs: the vector that it asks clients for.

        The vector is the weighted mean over clients, or that of one client where clients share no network.
        """
        inference.require_policy(self.specification.bn, self.specification.norms, f"inference {inference.name}")
        if not inference.asks:
            return Site()
        members, settings = self._members, (inference, self.trainer.device, self.task, self.training.deterministic)

        def ask(known: torch.Tensor | None) -> dict[str, torch.Tensor]:
            own = inference.network == "own"
            return {
                name: client_answer(self.model(name if own else None), client.train, *settings, known)
                for name, client in members.items()
            }

        if self.algorithm.collaboration.has_global_model:
            weights = {name: client.weight for name, client in members.items()}
            return Site(answer=federation_answer(inference, ask, weights))
        return Site(answer=ask(None)[inference.client or site or ""])


def _greys(x: torch.Tensor) -> tuple[tuple[float], tuple[float]] | None:
    """Return the smallest and largest value of images (n, channels, height, width) as black and white; else None."""
    low, high = float(x.min()), float(x.max())
    # Images of one value have no range that grey levels could be scaled by.
    return ((low,), (high,)) if x.dim() == 4 and low < high else None
