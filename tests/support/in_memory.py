"""A transport that turns every message into bytes and back, and opens a site anew from its disk for each message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedshift.core.errors import UserError
from fedshift.engine.federation import Federation
from fedshift.engine.messages import Fault, Message, MessageForms, packed, unpacked
from fedshift.engine.site import Site
from fedshift.engine.site_state import SiteState
from fedshift.engine.specification import Specification

Change = Callable[[str, Message], Message]


def through_bytes(message: Message) -> Message:
    """The message as it arrives at the other side."""
    there = unpacked(packed(message))
    assert isinstance(there, Message)
    return there


class InMemory:
    """Sites that share nothing but bytes with the coordinator.

    `asked` holds kind and site of each message so far. `changed` may replace an answer, or raise UserError for it;
    `times` says how often each task is done before its last answer counts. With `kept`, sites stay open.
    """

    def __init__(
        self,
        opened: Callable[[], Specification],
        sites: Mapping[str, Any],
        folder: Path,
        *,
        validation: Mapping[str, Any] = {},
        digest: str = "",
        times: int = 1,
        changed: Change = lambda name, answer: answer,
        sends_offers: bool = True,
        kept: bool = False,
    ) -> None:
        self.names: Sequence[str] = sorted(sites)
        self.opened, self.sites, self.folder, self.validation = opened, sites, folder, validation
        self.digest, self.times, self.changed, self.sends_offers = digest, times, changed, sends_offers
        self.asked: list[tuple[str, str]] = []
        self.kept, self.open = kept, dict[str, Site]()
        self.forms: MessageForms | None = None

    def site(self, name: str) -> Site:
        """The site as a new process opens it."""
        folder, val = self.folder / name, self.validation.get(name)
        data = self.sites[name], val
        rules: Any = {"digest": self.digest, "sends_offers": self.sends_offers, "forms": self.forms}
        return Site(name, self.opened(), *data, folder, **rules)

    def state(self, name: str) -> SiteState:
        """What the site has on its disk."""
        return SiteState(self.folder / name, name, self.digest)

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | Fault]]:
        """Yield the answers in the order of names."""
        for name in self.names:
            if name in messages:
                self.asked.append((messages[name].kind, name))
                yield name, self._answer(name, messages[name])

    def _answer(self, name: str, message: Message) -> Message | Fault:
        try:
            for _ in range(self.times):
                if not self.kept or name not in self.open:
                    self.open[name] = self.site(name)
                answer = self.open[name].answer(through_bytes(message))
            return self.changed(name, through_bytes(answer))
        except UserError as error:
            return Fault(str(error))


def difference(here: Federation, transport: InMemory, coordinator: Any) -> float:
    """The largest difference between a simulation and a run by messages, over all tensors of server and sites."""
    pairs = [(here.server.shared, coordinator.server.shared)]
    assert here.server.state.keys() == coordinator.server.state.keys()
    pairs += [(v, coordinator.server.state[k]) for k, v in here.server.state.items()]
    for client, since in zip(here.clients, coordinator.since, strict=True):
        there = transport.state(client.name).read(since)
        assert client.state.keys() == there.state.keys()
        pairs += [(client.own, there.own), (client.counters, there.counters)]
        pairs += [(v, there.state[k]) for k, v in client.state.items()]
    for one, two in pairs:
        assert (one.shape, one.dtype) == (two.shape, two.dtype)
    return max((float((one.double() - two.double()).abs().max()) for one, two in pairs if one.numel()), default=0.0)


def equal(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    """Whether two mappings hold equal tensors."""
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
