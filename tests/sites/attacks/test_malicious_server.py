"""A server that asks a site for what the study does not need: out of order, too often, in other shapes, by paths."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from served_sites import Hospitals, trained
from three_sites import STUDY, write
from wrong_messages import wrong_about, wrong_tensors

from fedshift import study
from fedshift.engine.messages import Fault, Message, packed, unpacked
from fedshift.engine.site_state import AGAIN
from fedshift.hospitals import agreed
from fedshift.hospitals.hospital import Hospital

ROUNDS = 3
VICTIM = "south"


class Victim:
    """A site of a study, and the messages that its honest server sends."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / VICTIM
        write(root, STUDY | {"model": "mlp", "training": STUDY["training"] | {"rounds": ROUNDS}})
        with contextlib.chdir(root / "server"):
            (self.run,) = study.load(Path("study.yaml"), "mini").runs.values()
        self.key = agreed.name_of(self.run)
        hospitals = Hospitals(root)
        coordinator = trained(self.run, hospitals)
        about = {"digest": agreed.digest_of(self.run), "run": self.key, "since": ROUNDS, "round": ROUNDS}
        self.rows = Message("rows", about, {"received": coordinator.server.shared})
        self.honest: dict[str, list[Message]] = {}
        for name, message, _ in hospitals.exchanged:
            if name == VICTIM:
                self.honest.setdefault(message.kind, []).append(message)
        # Each message with all its tensors, as it would be sent to a site that holds none.
        self.network = coordinator.server.shared
        self.reopen()

    def reopen(self, restart: bool = True) -> None:
        """Start the site again, by default with --restart."""
        with contextlib.chdir(self.folder):
            plan = study.load(Path("study.yaml"), "mini")
            self.side = Hospital(plan, VICTIM, Path("images.csv"), rows=True, offers=False)
            self.side.prepare()
            if restart:
                self.side.forget()

    def ask(self, message: Message | Fault) -> Message | Fault:
        """The answer to a message that has come as bytes."""
        there = unpacked(packed(message))
        if isinstance(there, Fault):
            return there
        with contextlib.chdir(self.folder):
            answer = self.side.answer(there)
        if isinstance(answer, Fault):
            assert len(answer.reason) <= 500
            assert answer.reason.isprintable()
            assert not answer.reason.startswith("failed at"), answer.reason
        return answer

    def begin(self) -> None:
        """Begin the run honestly."""
        for kind in ("join", "begin"):
            assert isinstance(self.ask(self.honest[kind][0]), Message)

    def train(self, number: int, since: int | None = None, network: torch.Tensor | None = None) -> Message | Fault:
        """Ask for a round, by default after the one before."""
        first = self.honest["train"][0]
        about = {k: v for k, v in first.about.items() if k != "contents"}
        about |= {"round": number, "since": number - 1 if since is None else since}
        tensors = first.tensors if network is None else first.tensors | {"received": network}
        return self.ask(first._replace(about=about, tensors=tensors))

    def outside(self) -> dict[Path, tuple[int, int]]:
        """Size and time of each file that is not in the site's results."""
        own = self.folder / "results"
        files = [file for file in self.root.rglob("*") if file.is_file() and own not in file.parents]
        return {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    return Victim(tmp_path_factory.mktemp("town"))


@pytest.fixture
def victim(served: Victim) -> Victim:
    """The site, started again with --restart, which has begun its run."""
    served.reopen()
    served.begin()
    return served


def whole(message: Message) -> Message:
    """A message without the list of what the site holds: all its tensors come with it."""
    return message._replace(about={k: v for k, v in message.about.items() if k != "contents"})


def attacks(victim: Victim) -> Iterator[tuple[str, str, Message | Fault]]:
    """Kind, name and message of each attack that changes one thing of an honest message."""
    honest = [victim.honest[kind][0] for kind in ("join", "begin", "train", "evaluate")]
    honest.append(Message("keep", {"digest": victim.rows.about["digest"], "run": victim.key, "since": 1}, {}))
    for message in honest:
        for name, wrong in (*wrong_about(whole(message)), *wrong_tensors(whole(message))):
            yield message.kind, name, wrong
    for kind in ("first_step", "finish", "over?", "", "\x1b[2J", "rows" * 10_000):
        yield kind, "another kind", whole(victim.honest["train"][0])._replace(kind=kind)
    yield "refused", "escapes", Message("refused", {"reason": "\x1b[2J" * 1000}, {})
    yield "hello", "more", Message("hello", {"x": math.nan}, {})


HARMLESS = {
    "share: half": "what the share of a site is follows from all sites, and changes no more than its own weight",
    "channels_last: true": "the format in memory changes the last bits of a number",
    "images: a list": "sizes of batches are read in a joint step alone",
}
"""Changes that are answered, and why they do no harm."""


def test_a_message_that_differs_from_an_honest_one_is_refused_with_a_line(victim: Victim) -> None:
    assert isinstance(victim.train(1), Message)
    before, counts = victim.outside(), Counter[str]()
    for kind, name, message in attacks(victim):
        answer = victim.ask(message)
        if isinstance(answer, Message):
            assert name in HARMLESS, f"{kind}, {name}: answered"
        counts["refused with a line" if isinstance(answer, Fault) else "answered"] += 1
    print(dict(counts))
    assert sum(counts.values()) >= 150
    assert victim.outside() == before


@pytest.mark.parametrize("number", [0, -1, 99, 10**9, True, "1", "/../../x", None, 1.0])
def test_only_rounds_of_the_study_are_trained(number: Any, victim: Victim) -> None:
    before = victim.outside()
    assert isinstance(victim.train(number, since=0), Fault)
    assert victim.outside() == before


def test_rounds_only_go_up_and_are_answered_no_more_often_than_the_site_has_agreed(victim: Victim) -> None:
    assert isinstance(victim.train(1), Message)
    assert isinstance(victim.train(2), Message)
    assert "is at round 2" in str(victim.train(1))
    assert "is at round 2" in str(victim.ask(victim.honest["begin"][0]))
    answered = 2
    for _ in range(2 * AGAIN + ROUNDS):
        answered += isinstance(victim.train(2), Message)
    # What comes out of order is refused without being counted.
    assert answered == ROUNDS + AGAIN
    victim.reopen(restart=False)
    assert f"beyond the {ROUNDS + AGAIN}" in str(victim.train(2)), "a new process remembers"


def test_a_run_begins_anew_only_with_the_sites_consent(victim: Victim) -> None:
    assert isinstance(victim.train(1), Message)
    assert isinstance(victim.train(2), Message)
    victim.reopen(restart=False)
    assert "--restart" in str(victim.ask(victim.honest["begin"][0]))
    victim.reopen(restart=True)
    victim.begin()


def test_rows_are_given_once_for_one_network_and_end_the_run(victim: Victim) -> None:
    """A server that could ask for the rows of many networks would draw the images from them, pixel by pixel."""
    for number in range(1, ROUNDS + 1):
        assert isinstance(victim.train(number), Message)
    first = victim.ask(victim.rows)
    assert isinstance(first, Message)
    given = 0
    for pixel in range(50):
        network = victim.network.clone()
        network[pixel] += 1
        given += isinstance(victim.ask(victim.rows._replace(tensors={"received": network})), Message)
    assert given == 0
    again = victim.ask(victim.rows)
    assert isinstance(again, Message)
    assert all(torch.equal(first.tensors[name], again.tensors[name]) for name in first.tensors)
    assert "comes after the rows" in str(victim.train(ROUNDS))
    assert "comes after the rows" in str(victim.ask(victim.honest["begin"][0]))


@pytest.mark.parametrize("number", [0, 1, ROUNDS - 1, ROUNDS + 1])
def test_rows_are_of_the_last_round(number: int, victim: Victim) -> None:
    assert isinstance(victim.train(1), Message)
    asked = victim.rows._replace(about=victim.rows.about | {"round": number})
    assert "the last of this study is 3" in str(victim.ask(asked))


def test_rows_of_a_network_that_no_round_has_had_stay_where_the_site_saw_all_rounds(victim: Victim) -> None:
    for number in range(1, ROUNDS + 1):
        assert isinstance(victim.train(number), Message)
        asked = whole(victim.honest["evaluate"][0])
        about = asked.about | {"round": number, "since": number}
        assert isinstance(victim.ask(asked._replace(about=about, tensors={"received": victim.network})), Message)
    crafted = victim.rows._replace(tensors={"received": torch.zeros_like(victim.network)})
    assert "has evaluated in no round" in str(victim.ask(crafted))
    assert isinstance(victim.ask(victim.rows), Message)


def test_the_learning_rate_is_the_sites_own(victim: Victim) -> None:
    first = whole(victim.honest["train"][0])
    assert "lr" not in first.about
    assert "lr: Extra inputs" in str(victim.ask(first._replace(about=first.about | {"lr": 1e9})))
