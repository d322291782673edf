"""A site of a federation: its data, its local training, and what stays there between rounds.

How to use it, from one process for each message::

    specification = Specification.open(model, algorithm=..., bn=..., addon=..., training=..., seed=..., task=...)
    site = Site("north", specification, train, validation, folder, digest=digest)
    reply = site.answer(message)    # raises UserError for what the site refuses: a transport turns it into a Fault

`model` is the network with the initial weights of the run, equal at all sites and at the coordinator (see
`models.initialise`); the other parameters are those of `Federation`. `train` and `validation` are `Samples` or pairs
(x, y) of this site alone; `validation` may be None. `folder` belongs to this run and this site: the state after each
round that counts is kept there, so that a new process can open the site for every message. `digest` names specification
and code, such as `core.digest.of([run.id, code])`; a message with another digest is refused.

A task may come twice: the second answer equals the first, to the bit. Rounds, learning rates and steps are those of the
site's own specification. What it has been asked is counted in `folder` (see `site_state`).
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..addons import Addon
from ..algorithms import Algorithm
from ..core.errors import UserError
from ..core.rng import undisturbed
from ..data.samples import Samples, class_counts, example_of, shape_of
from ..nn.device import arithmetic
from .client import (
    Client,
    class_weights,
    give_tensors,
    offer_of,
    open_clients,
    outputs,
    require_classes,
    samples_by_site,
)
from .joint_step import FirstStep, KnownMeans, Need
from .local_training import LocalTrainer, Networks, client_networks
from .messages import QUESTIONS, Message, MessageForms, as_said, require_known
from .round_state import Assignment, SiteRecord, Tally, at_home, diverged
from .selection import Criterion, averaged, validated
from .server_side import opened_server
from .site_state import Requests, SiteState
from .specification import Specification


class Site:
    """A site of a federation: it answers the messages of a `Coordinator`, and may be opened anew between messages.

    The docstring of this module explains the parameters. Raises UserError for samples or labels that do not fit task
    and network.

    Attributes
    ----------
    client : the site's samples and, while it answers, its tensors
    specification : what sites and coordinator agree on
    state : the files in `folder` that hold the site's tensors between rounds
    sends_offers : True if the site lets plug-ins send what they derive from its images before the first round, such as
        mean spectra or numbers of images by class
    forms : names, shapes and types of tensors that each kind of message may have; if None, tensors are only checked for
        finite numbers
    requests : the number of messages of each kind that the site has admitted so far, and the limits on it
    """

    def __init__(
        self,
        name: str,
        specification: Specification,
        train: Samples | tuple[Any, Any],
        validation: Samples | tuple[Any, Any] | None,
        folder: Path,
        *,
        device: torch.device | str = "cpu",
        digest: str = "",
        sends_offers: bool = False,
        forms: MessageForms | None = None,
    ) -> None:
        task, algorithm = specification.task, specification.algorithm
        require_separate(algorithm)
        samples = samples_by_site({name: train}, "client", task)
        val = samples_by_site({name: validation} if validation is not None else {}, "validation", task)
        require_classes(specification.model, task, {"client": samples, "validation": val})
        (self.client,) = open_clients(samples, val, True, algorithm)
        self.specification, self.device = specification, torch.device(device)
        self.state = SiteState(folder, name, digest)
        self.sends_offers, self.forms = sends_offers, forms
        self.requests = Requests(folder, digest, specification.training, algorithm, forms)
        self._trainer: LocalTrainer | None = None
        self._clients = self._classes = 0

    def answer(self, message: Message) -> Message:
        """Return the answer to a message of the coordinator.

        Raises UserError for a message of another run or code, for a task that is unknown or cannot be done here, for
        one that the study does not need, and if training diverges.
        """
        message = self.admitted(message)
        training = self.specification.training
        with arithmetic(self.device, training.precision, training.deterministic), undisturbed(self.device):
            return TASKS[message.kind](self, message)

    def admitted(self, message: Message) -> Message:
        """Check a message of the coordinator, count it, and return it with all tensors that its task needs.

        Tensors that the coordinator has left out are those that the message before had. Raises UserError for a message
        of another run or code, for keys, values or tensors that its kind does not have, for numbers that are not
        finite, and for a message that the study does not need.
        """
        require_known(message, QUESTIONS)
        if message.about.get("digest", "") != self.state.digest:
            problem = f"the coordinator has another specification or code than site {self.client.name!r}"
            raise UserError("digest", problem, "give both the same study, and install the same version")
        if message.kind not in TASKS and message.kind != "rows":
            raise UserError(f"message {message.kind}", "is no task of a run")
        if self.forms:
            self.forms.require_names(message)
        self.requests.admit(message)
        message = self.state.completed(message)
        if self.forms:
            self.forms.require_question(message)
        for name, tensor in message.tensors.items():
            if not bool(tensor.isfinite().all()):
                raise UserError(f"message {message.kind}", f"has a tensor that is not finite: {name[:100]}")
        return message

    # ---- before the first round

    def join(self, message: Message) -> Message:
        """Return this site's name, numbers of samples and versions, with the tensors that the add-on sends.

        Raises UserError if the add-on sends tensors (`Addon.offer`) and the site does not allow it, and for a label
        without a class weight.
        """
        specification, samples = self.specification, self.client.train
        about: dict[str, Any] = {
            "name": self.client.name,
            "n": len(samples),
            "validation": len(self.client.val or ()),
            "shape": [*shape_of(samples)],
            "classes": outputs(specification.model, specification.task, example_of(samples)),
            "digest": self.state.digest,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "threads": torch.get_num_threads(),
        }
        if specification.training.class_weights is not None:
            counts = class_counts(samples).numpy()
            # Raises for a label without a weight, here where it can be mended.
            class_weights([counts], specification.training, specification.algorithm.collaboration)
            if specification.training.class_weights == "balanced":
                about["class_counts"] = counts.tolist()
        offer: Mapping[str, Tensor] = {}
        if specification.addon and type(specification.addon).offer is not Addon.offer:
            self._require_consent(specification.addon.name)
            offer = at_home(specification.addon.offer(samples))
        return Message("join", about, dict(offer))

    def begin(self, message: Message) -> Message:
        """Save the coordinator's facts from before the first round, and return the tensors of `Algorithm.offer`.

        This deletes all state that an earlier start of this run has left. Raises UserError if the facts contradict this
        site's own settings, or if the algorithm sends tensors and the site does not allow it.
        """
        algorithm, client = self.specification.algorithm, self.client
        if type(algorithm).offer is not Algorithm.offer:
            self._require_consent(algorithm.name)
        self._require_own(message.about)
        self.state.forget()
        self.state.write_facts(message.about, message.tensors)
        self._trainer = None  # it holds what this site was told, and has trained, in an earlier run
        trainer = self._opened_trainer()
        # Clients do not know the sizes of others, nor the state of the server.
        about = message.about
        server = opened_server(trainer, self.specification.features, about["clients"], about["classes"])
        give_tensors([client], trainer, algorithm, self.specification.addon, server)
        offer = offer_of(client.train, algorithm, server)
        self.state.write(0, client, since=0)
        return Message("begin", {}, at_home(offer))

    def _require_own(self, about: Mapping[str, Any]) -> None:
        """Raise UserError if the `begin` message contradicts this site's own settings.

        `about` is the plain data of the message: numbers of clients and classes, share of training samples, local
        steps.
        """
        training, known = self.specification.training, self.forms
        least = training.steps_in_round(len(self.client.train))
        steps = about["steps"]
        own = {
            "clients": known.clients if known else about["clients"],
            "classes": known.classes if known else about["classes"],
            "share": about["share"] if training.weights == "size" else 1 / about["clients"],
            "steps": max(steps or 0, least) if training.equal_steps else training.local_steps,
        }
        for key, value in own.items():
            if about[key] != value:
                raise UserError("message begin", f"says {key} {about[key]}, but this site's study says {value}")

    def _require_consent(self, plugin: str) -> None:
        if not self.sends_offers:
            problem = f"{plugin} sends what it derives from the images of site {self.client.name!r}"
            raise UserError("consent", problem, "start this site with --offers to allow it, or choose another method")

    # ---- rounds

    def train(self, message: Message) -> Message:
        """Train this site in the round of `message`, from its state after the last round that the server completed.

        Returns the answer: mean loss and accuracy, seconds, and the tensors that the algorithm reports to the server.

        Raises UserError if training diverges; the state of the site is then as before.
        """
        began = time.perf_counter()
        trainer, client = self._opened(message)
        number = message.about["round"]
        tally = Tally(number, trainer.task)
        batches = trainer.batches(client.train, number, client.name)
        first: FirstStep | None = None
        if trainer.algorithm.joint(number) is not None:
            first = self._first_step(message, next(batches))
        with trainer.trained(
            client, self._assignment(message, trainer), batches, lambda: False, tally, first
        ) as report:
            tensors = {k: v.detach().to("cpu", copy=True) for k, v in report.items()}
            logged = {k: as_said(float(v)) for k, v in trainer.logged.items()}
        loss, accuracy = tally.means(client.name)
        self.state.write(number, client, since=message.about["since"])
        seconds = time.perf_counter() - began
        about = {"round": number, "loss": loss, "accuracy": as_said(accuracy), "seconds": seconds}
        return Message("train", about | {"logged": logged, "counters": client.counters.tolist()}, tensors)

    def first_step(self, message: Message) -> Message:
        """Run the joint first step up to the first missing mean over sites, and return this site's part of it.

        `message` has the means that the server has sent so far. The answer has no tensor if no mean is missing;
        `images` in it is the size of this site's batch. No state is saved.
        """
        trainer, client = self._opened(message)
        batch = next(trainer.batches(client.train, message.about["round"], client.name))
        about = {"round": message.about["round"], "images": len(batch[1])}
        try:
            self._first_step(message, batch)
        except Need as need:
            return Message("first_step", about, {"part": need.part.cpu()})
        return Message("first_step", about, {})

    def _first_step(self, message: Message, batch: tuple[Tensor, Tensor]) -> FirstStep:
        """Return the result of the joint first step, given the means in `message`. Raises Need if a mean is missing."""
        trainer, client = self._opened(message)
        joint = trainer.algorithm.joint(message.about["round"])
        assert joint is not None
        means = [message.tensors[f"mean/{k}"] for k in range(message.about["means"])]
        exchange = KnownMeans([1.0], joint, message.about["images"], means=means)
        trainer.take_turn(client, self._assignment(message, trainer))
        try:
            return trainer.first_steps([batch], [client.own], exchange)[0]
        finally:
            trainer.end_turn()

    def finish(self, message: Message) -> Message:
        """Train the phases that follow the last round (`Phase.finishes`).

        Only tensors that stay at this site change.
        """
        trainer, client = self._opened(message)
        trainer.finish(client, self._assignment(message, trainer), lambda: False)
        self.state.write(message.about["round"], client, since=message.about["since"])
        return Message("finish", {"round": message.about["round"]}, {})

    def evaluate(self, message: Message) -> Message:
        """Evaluate the network in `message`, and return loss, accuracy and, on `val`, the metric that selects rounds.

        The splits are `val`, the validation samples, and `averaged`, the training samples. Raises UserError for a split
        that the study does not evaluate in this round, and for a loss that is not finite.
        """
        trainer, client = self._opened(message)
        received = message.tensors["received"].to(self.device)
        metric = Criterion(trainer.training.select_by).metric
        records: dict[str, Callable[[], SiteRecord]] = {
            "val": lambda: validated(trainer, client, received, metric),
            "averaged": lambda: averaged(trainer, client, received),
        }
        every = trainer.training.training_loss_every
        due = {"val": client.val is not None, "averaged": bool(every and message.about["round"] % every == 0)}
        about: dict[str, Any] = {}
        for split in message.about["splits"]:
            if not due[split]:
                raise UserError("message evaluate", f"asks for {split}, which the study does not need in this round")
            record = records[split]()
            if not math.isfinite(record.loss):
                raise diverged(message.about["round"], client.name, f"the loss on {split} is {record.loss}")
            values = {"accuracy": as_said(record.accuracy), "seconds": record.seconds}
            if record.score is not None:
                values["score"] = as_said(record.score)
            about[split] = {"loss": record.loss, **values}
        return Message("evaluate", about, {})

    def keep(self, message: Message) -> Message:
        """Save the site's state after round `since` of the message as that of the selected (best) round."""
        self.state.keep(message.about["since"])
        return Message("keep", {}, {})

    # ---- results

    def networks(self, received: Tensor, since: int) -> Networks:
        """Return the networks that predict this site, given the shared tensors `received` of the selected round.

        The site adds its own tensors of the selected round or, if none was selected, of round `since`. Several networks
        predict together under some algorithms: see `Federation.networks`.
        """
        kept = self.state.kept(since)
        return client_networks(self._opened_trainer(), self.client.name, received.to(self.device), kept)

    def _opened(self, message: Message) -> tuple[LocalTrainer, Client]:
        """Return trainer and client; the client has its state after round `since` of the message."""
        trainer = self._opened_trainer()
        self.client.keep(self.state.read(message.about["since"]))
        return trainer, self.client

    def _assignment(self, message: Message, trainer: LocalTrainer) -> Assignment:
        """Return the inputs of a local training: the message's tensors, and the site's own learning rate."""
        number = message.about["round"]
        tensors = {k: v.to(trainer.device) for k, v in message.tensors.items()}
        received = tensors["received"]
        return Assignment(
            round=number,
            lr=trainer.training.rate(min(number, trainer.training.rounds)),
            shared=tensors.get("shared", received),
            received=received,
            broadcast={k.removeprefix("broadcast/"): v for k, v in tensors.items() if k.startswith("broadcast/")},
            clients=self._clients,
            classes=self._classes,
        )

    def _opened_trainer(self) -> LocalTrainer:
        """Return the trainer. The first call builds it with the facts that the coordinator sent before the first round.

        That call also sets the client's share, class weights, and the tensors that other clients sent before the first
        round.
        """
        if self._trainer is None:
            facts, tensors = self.state.facts()
            training = self.specification.training
            if facts["steps"] is not None:
                training = training.taking(facts["steps"])
            self._trainer = LocalTrainer(self.specification, training, self.device, facts["channels_last"])
            self._clients, self._classes = facts["clients"], facts["classes"]
            self.client.share = facts["share"]
            self.client.class_weights = tensors.get("class_weights")
            offers: dict[str, dict[str, Tensor]] = {name: {} for name in facts["clients_heard"]}
            for place, (name, key) in enumerate(facts["offers"]):
                offers[name][key] = tensors[f"offer/{place}"]
            self.client.offers = offers
        return self._trainer


TASKS: dict[str, Callable[[Site, Message], Message]] = {
    "join": Site.join,
    "begin": Site.begin,
    "first_step": Site.first_step,
    "train": Site.train,
    "finish": Site.finish,
    "evaluate": Site.evaluate,
    "keep": Site.keep,
}
"""The method that answers each kind of message."""


def require_separate(algorithm: Algorithm) -> None:
    """Raise UserError for an algorithm that needs the data of all sites in one place."""
    if algorithm.collaboration.count(2) != 2:
        raise UserError(
            "algorithm",
            f"{algorithm.name} needs the images of all sites in one place",
            "simulate this study in one place",
        )
