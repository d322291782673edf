"""The federation as scripts and notebooks use it: training, and the evaluation of what was trained."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.errors import UserError
from ..data.samples import Samples, TensorSamples
from ..engine import federation as engine
from ..engine.client import Client, require_classes, samples_by_site
from ..engine.prediction import adapted_probabilities, client_answer, mean_answer
from ..inferences import Inference, Site
from ..nn.blend import Blended
from .evaluation import InferenceSpec, inference_of, require_network, require_site, scores, without_labels


class Federation(engine.Federation):
    """Clients that train one model together, and the scores of that model on any data.

    The order in which clients are given changes nothing: they train in the order of their names. Parameters for several
    processes are those of `fedshift.engine.federation.Federation`.

    Parameters
    ----------
    model : any network that maps a batch to (batch, classes) logits; it is copied once and not changed
    clients : name -> `(x, y)`, or `Samples`; x are float tensors (n, ...), y class numbers 0, 1, ... (n,), integer
    validation : validation samples of any of the clients, in the same form
    watched : samples of any sites on which the global network is tested every `training.watch_every` rounds, for
        curves; nothing depends on these tests
    algorithm : a name, a mapping with `name` and settings, or an Algorithm
    bn : `aggregated`, `local`, `local_statistics` or `local_affine`; by default the first policy of the algorithm
    addon : a name, a mapping with `name` and settings, or an Addon
    training : settings of local training and of the rounds, a mapping or a Training
    seed : seed of everything random: batches, augmentation, dropout, choice of participants
    device : device of the training

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
            For a name that is no client, and without a name where clients share no model.

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
        modules = [self._module(state) for state in networks.states]
        if len(modules) == 1:
            return modules[0]
        return Blended(modules, networks.weights, networks.of).eval()

    @property
    def _members(self) -> dict[str, Client]:
        return {client.name: client for client in self.clients}

    def _require(self, site: str | None) -> None:
        """Raise UserError for a name that is no client."""
        if site is not None:
            require_site(site, self._members)

    def _module(self, state: dict[str, torch.Tensor]) -> nn.Module:
        module = copy.deepcopy(self.trainer.model).eval()
        module.load_state_dict(state, assign=True)  # the copy's own tensors are views of one large vector
        return module.to(self.trainer.device)

    def predict(
        self,
        x: Any,
        *,
        site: str | None = None,
        inference: InferenceSpec = "source",
        batch_size: int | None = None,
    ) -> np.ndarray:
        """Return class probabilities of the inputs of one site.

        Parameters
        ----------
        x : inputs (n, ...), a float tensor like those of the clients
        site : a client, to predict with its own tensors; by default the inputs belong to a site outside
        inference : a name such as `source` or `tsmobn`, a mapping with `name` and settings, or an Inference
        batch_size : inputs a batch; by default that of the inference

        Returns
        -------
        Probabilities (n, classes), float64, in the order of `x`.

        Raises
        ------
        UserError
            For an unknown inference or site, and for an inference that adapts to labels: see `evaluate`.

        Examples
        --------
        >>> import torch
        >>> from fedshift import Federation
        >>> clients = {"a": (torch.randn(20, 3), torch.arange(20) % 2)}
        >>> federation = Federation(torch.nn.Linear(3, 2), clients).run(rounds=1)
        >>> p = federation.predict(torch.randn(7, 3))
        >>> p.shape, p.dtype, p.sum(1).round(6).tolist()
        ((7, 2), dtype('float64'), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
        """
        chosen = without_labels(inference, batch_size, "inputs")
        x = torch.as_tensor(x)
        return self._predicted(TensorSamples(x, torch.zeros(len(x), dtype=torch.long)), chosen, site)[0]

    def evaluate(
        self,
        x: Any,
        y: Any,
        inference: InferenceSpec = "source",
        site: str | None = None,
        metrics: Sequence[str] = ("accuracy",),
        *,
        batch_size: int | None = None,
    ) -> dict[str, float]:
        """Return scores of the trained model on the labelled data of one site. The federation stays as it is.

        Parameters
        ----------
        x : inputs (n, ...), a float tensor like those of the clients
        y : labels (n,), class numbers 0, 1, ..., integer
        inference : a name such as `source` or `tsmobn`, a mapping with `name` and settings, or an Inference
        site : a client, to predict with its own tensors; by default the data belong to a site outside
        metrics : names of metrics: `fedshift list metrics`
        batch_size : inputs a batch; by default that of the inference

        Returns
        -------
        The value of each metric by its name, from 0 to 1 for shares such as accuracy; NaN where it is not defined, such
        as the AUC of a single class. Inputs whose labels an inference has adapted to are not scored.

        Raises
        ------
        UserError
            For an unknown inference, metric or site, labels that are not class numbers, and data without a sample.

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
        chosen, name = inference_of(inference, batch_size), site or "outside"
        samples = samples_by_site({name: (x, y)}, "samples of")[name]
        require_classes(self.trainer.model, {"samples of": {name: samples}})
        probability, seen = self._predicted(samples, chosen, site)
        label = torch.as_tensor(y).cpu().numpy()
        return scores(label[~seen], probability[~seen], metrics)

    def _predicted(self, samples: Samples, inference: Inference, site: str | None) -> tuple[np.ndarray, np.ndarray]:
        """Return probabilities (n, classes), and which samples (n,), bool, an inference has seen the labels of."""
        if not len(samples):
            raise UserError("x", "holds no samples", "give at least one")
        self._require(site)
        model = self.model(inference.network_at(site or "") or None)
        val = self._members[site].val if site else None
        empty = TensorSamples(torch.empty(0), torch.empty(0))
        place, device = self._knowledge(inference, site), self.trainer.device
        return adapted_probabilities(model, samples, val or empty, inference, site or "outside", device, known=place)

    def _knowledge(self, inference: Inference, site: str | None) -> Site:
        """Return what an inference may know at a site besides the inputs: what it has asked of the clients."""
        if not inference.asks:
            return Site()
        device, members = self.trainer.device, self._members
        answers = {name: client_answer(self.model(name), c.train, inference, device) for name, c in members.items()}
        if self.algorithm.collaboration.has_global_model:
            return Site(answer=mean_answer(answers, {name: client.weight for name, client in members.items()}))
        return Site(answer=answers[inference.client or site or ""])
