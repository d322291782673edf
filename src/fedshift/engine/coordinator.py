"""The coordinator of a federation: the server, without any data of the sites.

How to use it::

    coordinator = Coordinator.open(specification, transport, digest=digest)     # asks all sites to join
    coordinator.run(after_round=save)                                           # or: coordinator.round(), one by one

where `save(coordinator)` writes `coordinator.tensors()` (tensors by name) and `coordinator.progress()` (plain data for
JSON) whole or not at all. A new process goes on after the last round that was saved, without asking sites to join::

    coordinator = Coordinator.resume(specification, transport, tensors, progress, digest=digest)
    coordinator.run(after_round=save)

`specification` and `digest` are those of `Site`. Save after every round: a site keeps its state after the last
round that counted and after the one that it trained since, and no older one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..algorithms import Traffic
from ..core.errors import Interrupted, UserError, require_none
from ..core.rng import undisturbed
from ..nn.device import arithmetic, channels_last
from . import checkpoint
from .client import class_weights, counting, passing_on, put_together
from .local_training import LocalTrainer
from .messages import ANSWERS, Fault, Message, MessageForms, Transport, as_number, content_of, fault, require_known
from .round_state import SiteRecord, shared_out
from .selection import Choice
from .server_side import ServerRound, ServerSide, cost, report_disproportion
from .site import require_separate
from .specification import Specification

Answers = dict[int, Message]


class Coordinator(ServerSide):
    """The server of sites that are reached by messages. Open it with `open`, or with `resume` after a stop.

    Attributes
    ----------
    transport : what carries messages to the sites
    digest : digest of specification and code; sites with another one refuse every message
    joined : what each site said about itself when it joined, in the order of names
    missing : one dict for each answer that is missing: round, site, kind of the message and reason
    since : for each site, the last round in which its training counted; its next task starts from its state after that
    forms : names, shapes and types of the tensors that answers may have; if None, tensors are compared between sites

    A site keeps the tensors of the last message, so that they are not sent again: it trains from the tensors that it
    has just validated, and each message of a joint step adds one mean. After a fault of a site everything is sent.
    """

    def __init__(
        self,
        specification: Specification,
        transport: Transport,
        joined: Sequence[Mapping[str, Any]],
        digest: str,
        device: torch.device | str = "cpu",
        forms: MessageForms | None = None,
    ) -> None:
        super().__init__(specification)
        self.transport, self.digest, self.forms = transport, digest, forms
        self.joined = [dict(about) for about in joined]
        self.missing: list[dict[str, Any]] = []
        self.since = [0] * len(joined)
        self._held: list[set[str]] = [set() for _ in joined]
        settings = specification.training
        sizes = [about["n"] for about in joined]
        self.training = settings.equalised(sizes)
        device = torch.device(device)
        shape = tuple(joined[0]["shape"])
        self.layout = channels_last(settings.channels_last, specification.model, shape, device)
        self.trainer = LocalTrainer(specification, self.training, device, self.layout)
        members = shared_out(transport.names, sizes, settings.weights == "size", self.algorithm)
        for member in members:
            member.counters = self.trainer.counters.to("cpu", copy=True)
        self.rounds = self._round_state(self._new_server(members, joined[0]["classes"]), members)
        self._should_stop: Callable[[], bool] = lambda: False
        self.choice = Choice(self.rounds, self.training, self.algorithm.collaboration)

    @classmethod
    def open(
        cls,
        specification: Specification,
        transport: Transport,
        *,
        digest: str = "",
        device: torch.device | str = "cpu",
        forms: MessageForms | None = None,
    ) -> Self:
        """Ask all sites to join, send them the facts that follow from all answers, and return the coordinator.

        Raises UserError if a site does not answer, refuses, or does not fit the other sites, and if algorithm or
        settings need the images of several sites in one place.
        """
        _require_possible(specification, transport.names)
        question = Message("join", {"digest": digest}, {})
        introductions = _of_all(transport, dict.fromkeys(transport.names, question), forms)
        joined = [introductions[name].about for name in transport.names]
        require_none(_misfits(transport.names, joined, digest, forms))
        for name in specification.training.epochs_at.keys() - {*transport.names}:
            raise UserError("training.epochs_at", f"{name!r} is not a site of this run")
        new = cls(specification, transport, joined, digest, device, forms)
        new._begin({name: introduction.tensors for name, introduction in introductions.items()})
        return new

    @classmethod
    def resume(
        cls,
        specification: Specification,
        transport: Transport,
        tensors: Mapping[str, Tensor],
        progress: Mapping[str, Any],
        *,
        digest: str = "",
        device: torch.device | str = "cpu",
        forms: MessageForms | None = None,
    ) -> Self:
        """Return the coordinator as it was after a round, given what `tensors` and `progress` returned then.

        Raises UserError if `transport` reaches other sites than those of the checkpoint.
        """
        old = cls(specification, transport, progress["joined"], digest, device, forms)
        if [about["name"] for about in old.joined] != [*transport.names]:
            raise UserError(
                "sites",
                f"are {', '.join(transport.names)}, not those of the checkpoint",
                "connect the sites of the checkpoint, or remove it",
            )
        old.restore(tensors, progress)
        return old

    def _begin(self, offers: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Send each site the facts that follow from all sites, and collect what sites send for `Algorithm.offer`.

        `offers` maps each site to the tensors that it sent for the add-on when it joined.
        """
        specification, together = self.specification, self.algorithm.collaboration
        names, settings = self.transport.names, specification.training
        counts = [np.asarray(about.get("class_counts") or (), dtype=np.int64) for about in self.joined]
        weights: Sequence[np.ndarray | None] = [None] * len(names)
        if settings.class_weights is not None:
            weights = [*class_weights(counts, settings, together)]
            self.beforehand += counting(counts, names, settings, together)
        if self.addon:
            self.beforehand += passing_on(offers, self.algorithm)
        messages = {}
        for k, name in enumerate(names):
            heard = together.heard(name, offers)
            keys = [[client, key] for client, offer in heard.items() for key in offer]
            tensors = {f"offer/{place}": heard[client][key] for place, (client, key) in enumerate(keys)}
            own = weights[k]
            if own is not None:
                tensors["class_weights"] = torch.from_numpy(own.copy())
            about = self._about() | {
                "clients": len(names),
                "classes": self.server.classes,
                "share": self.rounds.clients[k].share,
                "channels_last": self.layout,
                "steps": self.training.local_steps,
                "clients_heard": [*heard],
                "offers": keys,
            }
            messages[name] = Message("begin", about, tensors)
        offered = {name: answer.tensors for name, answer in _of_all(self.transport, messages, self.forms).items()}
        self.beforehand += put_together(offered, self.algorithm, self.server)
        self.server.state = self.algorithm.server_state(self.server)

    # ---- rounds

    def round(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Do one round with the sites that answer. `should_stop` is called before messages are sent.

        Raises UserError if no site answers, and Interrupted if `should_stop` returns True. The round is then half done:
        go on with `resume`.
        """
        self._should_stop = should_stop
        device = self.trainer.device
        # Forward passes are at the sites: the server needs no device that has their precision.
        with arithmetic(device, deterministic=self.training.deterministic), undisturbed(device):
            self._train()
            if self.finishes:
                self._finish()
        self._evaluate()

    def _train(self) -> None:
        server_round = self._begin_round()
        means, images = self._first_steps(server_round)
        answers = self._asked(server_round, self._training("train", server_round, means, images))
        server_round.go_on_with([*answers])
        number = server_round.number
        floats, messages = sum(mean.numel() for mean in means), len(means)
        records = []
        for k, (about, report) in ((k, (answer.about, answer.tensors)) for k, answer in answers.items()):
            server_round.add(k, {key: value.to(self.trainer.device) for key, value in report.items()})
            member = self.rounds.clients[k]
            member.counters = torch.tensor(about["counters"], dtype=torch.long)
            self.since[k] = number
            down, up, sent = cost(server_round.assignment(k), report, floats, messages)
            values = member.name, about["loss"], as_number(about["accuracy"]), about["seconds"]
            logged = {name: as_number(value) for name, value in about["logged"].items()}
            records.append(SiteRecord(*values, down, up, sent, logged=logged))
        server_round.close(self.trainer.variances, server_round.mean)
        self.rounds.log("train", [records], self.server.logged)

    def _first_steps(self, server_round: ServerRound) -> tuple[list[Tensor], list[int]]:
        """Run the joint first step, if there is one, and return its means over sites and the sites' batch sizes.

        Sites need the means to repeat the step when they train. If a site does not answer, the step begins anew without
        it.
        """
        means: list[Tensor] = []
        images: list[int] = []
        if self.algorithm.joint(server_round.number) is None:
            return means, images
        while True:
            answers = self._asked(server_round, self._training("first_step", server_round, means, images))
            if [*answers] != [*server_round.participants]:
                server_round.go_on_with([*answers])
                means, images = [], []
                continue
            images = [answer.about["images"] for answer in answers.values()]
            if not means and server_round.number == 1:
                report_disproportion([*server_round.weights.values()], images, images)
            parts = {k: answer.tensors["part"] for k, answer in answers.items() if answer.tensors}
            if not parts:
                return means, images
            mean: Tensor | None = None
            # The operations of Exchange.mean, in the same order, so that a simulation has the same bits.
            for k, part in parts.items():
                weight = server_round.weights[k]
                mean = part * weight if mean is None else mean.add_(part, alpha=weight)
            assert mean is not None
            means.append(mean)

    def _training(
        self, kind: str, server_round: ServerRound, means: Sequence[Tensor], images: Sequence[int]
    ) -> dict[int, Message]:
        """Return the messages of a round by position of the participants, with the means of the joint step so far.

        `kind` is train or first_step, and `images` are the sizes of the sites' batches in the joint step.
        """
        joint = {f"mean/{n}": mean for n, mean in enumerate(means)}
        about = {"means": len(means), "images": [*images]}
        return {
            k: self._task(kind, k, server_round.broadcast, about, joint, server_round.number)
            for k in server_round.participants
        }

    def _task(
        self,
        kind: str,
        position: int,
        broadcast: Mapping[str, Tensor],
        about: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        number: int,
    ) -> Message:
        assigned = self.rounds.assignment(position, broadcast)
        sent = {"received": assigned.received, **{f"broadcast/{k}": v for k, v in broadcast.items()}, **tensors}
        if self.trainer.variances.pooled and self.algorithm.has_downloads:
            sent["shared"] = assigned.shared
        told = {"round": number, "since": self.since[position], **about}
        return Message(kind, self._about() | told, sent)

    def _about(self) -> dict[str, Any]:
        return {"digest": self.digest}

    def _finish(self) -> None:
        broadcast = self.algorithm.broadcast(self.server)
        number = self.rounds.round + 1
        everyone = range(len(self.rounds.clients))
        for k in self._ask({k: self._task("finish", k, broadcast, {}, {}, number) for k in everyone}):
            self.since[k] = number
        self._note_finish()

    def _evaluate(self) -> None:
        """Ask sites for validation and for the averaged model's training loss, where due, and select the round."""
        every = self.training.training_loss_every
        averaged = ["averaged"] if every and self.rounds.round % every == 0 else []
        messages = {}
        for k, about in enumerate(self.joined):
            splits = [*(["val"] if about["validation"] else []), *averaged]
            if splits:
                told = {"round": self.rounds.round, "since": self.since[k], "splits": splits}
                messages[k] = Message("evaluate", self._about() | told, {"received": self.rounds.received(k)})
        answers = self._ask(messages)
        records: dict[str, list[SiteRecord]] = {"val": [], "averaged": []}
        for k, answer in answers.items():
            for split, r in answer.about.items():
                name, accuracy = self.rounds.clients[k].name, as_number(r["accuracy"])
                score = as_number(r["score"]) if "score" in r else None
                records[split].append(SiteRecord(name, r["loss"], accuracy, r["seconds"], score=score))
        better = self.choice.choose(records["val"])
        self._ask({k: Message("keep", self._about() | {"since": self.since[k]}, {}) for k in better})
        if averaged:
            self.rounds.log("averaged", [records["averaged"]])

    # ---- answers

    def _asked(self, server_round: ServerRound, messages: Mapping[int, Message]) -> Answers:
        """Send the messages of a round, and return the usable answers by position.

        Raises UserError if there are none.
        """
        answers = self._ask(messages)
        if not answers:
            reasons = "; ".join(f"{m['site']}: {m['reason']}" for m in self.missing[-len(messages) :])
            raise UserError(
                f"round {server_round.number}", f"no site answered ({reasons})", "resume when they are back"
            )
        return answers

    def _ask(self, messages: Mapping[int, Message]) -> Answers:
        """Send messages by position of their sites, and return the usable answers; `missing` records the other sites.

        Raises Interrupted, before any message is sent, if the training is to stop.
        """
        if self._should_stop():
            raise Interrupted
        if not messages:
            return {}
        names = self.transport.names
        answers: Answers = {}
        faults: dict[int, str] = {}
        sent = self._without_held(messages)
        replies = dict(self.transport.ask({names[k]: message for k, message in sent.items()}))
        for k, message in sent.items():
            reply = replies.get(names[k], Fault("did not answer"))
            if isinstance(reply, Fault):
                self._held[k] = set()
            elif message.about["contents"]:  # a site that has answered, whatever it says, holds what it was sent
                self._held[k] = {*message.about["contents"].values()}
            reply = usable(message, reply, lambda *both, k=k: self._require_fit(k, *both))
            if isinstance(reply, Fault):
                faults[k] = reply.reason
            else:
                answers[k] = reply
        for k in _odd_ones(answers):
            faults[k] = "sent tensors of other shapes than most sites"
            del answers[k]
        kind = next(iter(messages.values())).kind
        number = next(iter(messages.values())).about.get("round", self.rounds.round)
        self.missing += [{"round": number, "site": names[k], "kind": kind, "reason": faults[k]} for k in sorted(faults)]
        return answers

    def _require_fit(self, position: int, asked: Message, answer: Message) -> None:
        """Raise UserError if the answer of the site at `position` does not fit the message `asked`.

        It must be for the same round, with the expected tensors, counters, batch size and splits.
        """
        about = answer.about
        if about.get("round", asked.about.get("round")) != asked.about.get("round"):
            raise UserError("answer", f"is not for this round, but for round {about['round']}")
        if self.forms:
            first = asked.kind == "train" and self.rounds.clients[position].first_round is None
            self.forms.require_answer(asked, answer, first=first)
        shared, own = self.server.shared, answer.tensors.get("shared", self.server.shared)
        if asked.kind == "train" and (own.shape, own.dtype) != (shared.shape, shared.dtype):
            problem = f"has shared {tuple(own.shape)} {own.dtype} in place of {tuple(shared.shape)} {shared.dtype}"
            raise UserError("answer", problem)
        counters = len(self.trainer.counters)
        if len(about.get("counters", range(counters))) != counters:
            raise UserError("answer", f"has {len(about['counters'])} counters of batch norm in place of {counters}")
        if about.get("images", 1) > self.joined[position]["n"]:
            raise UserError("answer", f"has a batch of {about['images']} images, and the site has fewer")
        if asked.kind == "evaluate":
            scored = self.choice.criterion.metric is not None
            parts = {split: "score" in record for split, record in about.items()}
            if parts != {split: scored and split == "val" for split in asked.about["splits"]}:
                raise UserError(
                    "answer", f"has splits {', '.join(parts) or 'none'}: not those asked for, or without score"
                )

    def _without_held(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        """Return messages with the hashes of all tensors, but without tensors that their sites hold already."""
        # Sites are sent the same tensors: each is read once.
        tensors = {id(tensor): tensor for message in messages.values() for tensor in message.tensors.values()}
        by_id = {key: content_of(tensor) for key, tensor in tensors.items()}
        slim = {}
        for k, message in messages.items():
            contents = {name: by_id[id(tensor)] for name, tensor in message.tensors.items()}
            new = {name: t for name, t in message.tensors.items() if contents[name] not in self._held[k]}
            slim[k] = Message(message.kind, message.about | {"contents": contents}, new)
        return slim

    # ---- results and checkpoints

    def global_state(self) -> dict[str, Tensor]:
        """Return the `state_dict` of the global network of the selected round, or of the last if none was selected.

        Raises UserError if some of its tensors stay at the sites, since the server does not have these.
        """
        if self.trainer.own_names:
            names = ", ".join(self.trainer.own_names[:3])
            raise UserError("global network", f"{names} and others stay at the sites", "use bn: aggregated")
        best = self.best()
        return self.trainer.named_state(best.shared, best.clients[0].own, best.clients[0].counters)

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all tensors of the server that the next round depends on, by name."""
        offers = {f"offers/{k}": v.clone() for k, v in self.server.offers.items()}
        return checkpoint.tensors(self.rounds) | offers

    def progress(self) -> dict[str, Any]:
        """Return the part of a checkpoint that is no tensor, as plain data for JSON."""
        before = self.beforehand
        return checkpoint.progress(self.rounds) | {
            "joined": self.joined,
            "since": [*self.since],
            "missing": [*self.missing],
            "beforehand": [before.down, before.down_broadcast, before.up],
        }

    def restore(self, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Set the state to that of a checkpoint, given what the methods `tensors` and `progress` returned."""
        offers = {k.removeprefix("offers/"): v for k, v in tensors.items() if k.startswith("offers/")}
        self.server.offers = {k: v.to(self.trainer.device) for k, v in offers.items()}
        checkpoint.restore(self.rounds, tensors, progress, self.trainer.device)
        self.since = [*progress["since"]]
        self.missing = [*progress["missing"]]
        self.beforehand = Traffic(*progress["beforehand"])


def _require_possible(specification: Specification, names: Sequence[str]) -> None:
    """Raise UserError for site names that repeat or are unsorted, and for settings that need images in one place."""
    if not names:
        raise UserError("sites", "there are none", "name at least one")
    if [*names] != sorted(set(names)):
        twice = [name for name, count in Counter(names).items() if count > 1]
        problem = f"two have the name {twice[0]!r}" if twice else "are not in the order of their names"
        raise UserError("sites", problem, "give each site its own name, and sort them")
    require_separate(specification.algorithm)
    if specification.training.select_at:
        problem = "needs the images of these sites where the server is"
        raise UserError("training.select_at", problem, "leave it out: rounds are then selected at the sites that train")


def _of_all(transport: Transport, messages: Mapping[str, Message], forms: MessageForms | None) -> dict[str, Message]:
    """Send messages before the first round, and return the answers by site.

    Raises an error that lists every site without a usable answer.
    """
    require = forms.require_answer if forms else lambda *_: None
    replies = dict(transport.ask(messages))
    answers = {name: usable(messages[name], replies[name], require) for name in messages}
    require_none(UserError(f"site {k!r}", v.reason) for k, v in answers.items() if isinstance(v, Fault))
    return {name: answer for name, answer in answers.items() if isinstance(answer, Message)}


def _misfits(
    names: Sequence[str], joined: Sequence[Mapping[str, Any]], digest: str, forms: MessageForms | None
) -> list[UserError]:
    """Return an error for each site whose introduction in `joined` does not fit.

    A site must have its name in `names`, the same `digest`, and the input shape and classes of `forms` or, without
    these, of the first site. Its class counts must add up to its number of images.
    """
    errors = []
    classes, shape = (forms.classes, [*forms.shape]) if forms else (joined[0]["classes"], joined[0]["shape"])
    for name, about in zip(names, joined, strict=True):
        for key, value in {"name": name, "digest": digest, "classes": classes, "shape": shape}.items():
            if about[key] != value:
                errors.append(UserError(f"site {name!r}", f"has {key} {about[key]!r}, expected {value!r}"))
        if (
            len(about.get("class_counts") or ()) > classes
            or sum(about.get("class_counts") or [about["n"]]) != about["n"]
        ):
            errors.append(UserError(f"site {name!r}", "has class counts that do not fit its images and classes"))
    return errors


def usable(
    asked: Message, reply: Message | Fault, require_fit: Callable[[Message, Message], None] = lambda *_: None
) -> Message | Fault:
    """Return the reply of a site if it is complete and well formed, or else a Fault with the reason.

    Each reply is checked here and nowhere else: a site whose reply cannot be used counts as one that did not answer.
    `require_fit(asked, reply)` checks in addition whether the tensors fit, and raises UserError if not.
    """
    if isinstance(reply, Fault):
        return reply
    try:
        if reply.kind != asked.kind:
            return fault(f"answered {reply.kind!r} to {asked.kind!r}")
        require_known(reply, ANSWERS)
        require_fit(asked, reply)
        for name, tensor in reply.tensors.items():
            if not bool(tensor.isfinite().all()):
                return fault(f"sent a tensor that is not finite: {name}")
    except Exception as error:  # an answer from outside may fail in any way
        return fault(str(error) or type(error).__name__)
    return reply


def _odd_ones(answers: Answers) -> list[int]:
    """Return the positions of sites that sent a tensor of another shape or type than most sites that sent it."""
    forms: dict[str, Counter[Any]] = {}
    for answer in answers.values():
        for name, tensor in answer.tensors.items():
            forms.setdefault(name, Counter())[tensor.shape, tensor.dtype] += 1
    usual = {name: counter.most_common(1)[0][0] for name, counter in forms.items()}
    return [k for k, a in answers.items() if any((t.shape, t.dtype) != usual[name] for name, t in a.tensors.items())]
