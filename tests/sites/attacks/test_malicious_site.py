"""A site that answers wrongly, in each way, to each kind of message: it costs itself its answer, and nobody else's.

The other sites' answers are recorded, so that a study is trained hundreds of times in seconds.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from served_sites import Hospitals, OfRun
from three_sites import SITES, STUDY, write
from wrong_messages import wrong_about, wrong_tensors

from fedshift import study
from fedshift.core.errors import UserError, UserErrors
from fedshift.engine.coordinator import Coordinator, usable
from fedshift.engine.messages import Fault, Message, MessageForms, packed, unpacked
from fedshift.hospitals import agreed
from fedshift.hospitals.rows import opened_rows
from fedshift.jobs.train import specification
from fedshift.study.run import Run

ATTACKER = "north"
HARMLESS = {
    "join": {
        "n: large": "an integer is believed; serve prints the share that follows",
        "validation: large": "says only that the site can be asked for validation",
        "class_counts: null": "this study does not weigh classes",
        "class_counts: missing": "this study does not weigh classes",
        "scored: large": "bounds the rows of this site alone",
        "scored: missing": "its rows are then refused",
    },
    "begin": {},
    "train": {
        "accuracy: null": "an accuracy is only shown",
        "accuracy: half": "an accuracy is only shown",
        "seconds: half": "seconds are only shown",
        "seconds: large": "seconds are only shown",
        "counters: a list": "the batches that batch norm has counted, which no prediction depends on",
        "loss: half": "a loss in its range is only shown by this algorithm",
        "loss: large": "a loss in its range is only shown by this algorithm",
    },
    "evaluate": {
        "val.accuracy: null": "an accuracy is only shown",
        "val.accuracy: half": "an accuracy is only shown",
        "val.seconds: half": "seconds are only shown",
        "val.seconds: large": "seconds are only shown",
        "val.loss: half": "a loss in its range is only shown: the study selects its last round",
        "val.loss: large": "a loss in its range is only shown: the study selects its last round",
    },
}
"""Wrong answers that are accepted, and why they do no harm."""


class Recorded:
    """A transport with the answers that were recorded, but for one of the attacker's."""

    names = SITES

    def __init__(self, answers: Mapping[tuple[str, str], Message], kind: str = "", wrong: Any = None) -> None:
        self.answers, self.kind, self.wrong = answers, kind, wrong

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | Fault]]:
        for name, message in messages.items():
            attacked = (name, message.kind) == (ATTACKER, self.kind)
            answer = self.wrong if attacked else self.answers[name, message.kind]
            yield name, unpacked(answer if isinstance(answer, bytes) else packed(answer))


class Town:
    """A study with its recorded answers of the first round, and of the rows."""

    def __init__(self, root: Path) -> None:
        write(root, STUDY | {"model": "mlp", "training": STUDY["training"] | {"rounds": 1}})
        with contextlib.chdir(root / "server"):
            (self.run,) = study.load(Path("study.yaml"), "mini").runs.values()
        hospitals = Hospitals(root)
        self.specification = specification(self.run, agreed.shape_of(self.run))
        self.forms: MessageForms = agreed.forms(self.run, len(SITES))
        self.digest = agreed.digest_of(self.run)
        link = OfRun(hospitals, self.run)
        coordinator = Coordinator.open(self.specification, link, digest=self.digest, forms=self.forms).run()
        about = {"digest": self.digest, "round": 1, "since": 1}
        best = {name: coordinator.best().received_by(k) for k, name in enumerate(SITES)}
        self.asked = {name: Message("rows", about, {"received": best[name]}) for name in SITES}
        list(link.ask(self.asked))
        self.answers = {(n, m.kind): a for n, m, a in hospitals.exchanged if isinstance(a, Message)}
        self.shared = coordinator.server.shared

    def outcome(self, kind: str, wrong: Any) -> str:
        """What a wrong answer to a kind of message leads to; fails for anything that must not happen."""
        transport = Recorded(self.answers, kind, wrong)
        try:
            coordinator = Coordinator.open(self.specification, transport, digest=self.digest, forms=self.forms)
            coordinator.round()
        except UserError as error:
            assert kind in ("join", "begin"), "the study has begun: no site can end it"
            lines = error.errors if isinstance(error, UserErrors) else [error]
            for line in map(str, lines):
                assert ATTACKER in line
                assert len(line) < 1000
                assert line.isprintable()
            return "refused with a line"
        assert coordinator.server.shared.isfinite().all()
        trained = {row["site"] for row in coordinator.history if row["split"] == "train"}
        assert trained >= {*SITES} - {ATTACKER}
        if coordinator.missing:
            (missing,) = coordinator.missing
            assert (missing["site"], missing["kind"]) == (ATTACKER, kind)
            assert len(missing["reason"]) <= 500
            assert missing["reason"].isprintable()
            return "missing answer"
        return "accepted"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return Town(tmp_path_factory.mktemp("town"))


def odd_bytes(right: Message, other: Message) -> Iterator[tuple[str, Any]]:
    """Answers that are no message, or another one."""
    content = packed(right)
    yield "nothing", b""
    yield "a part", content[: len(content) // 2]
    yield "a flipped bit", content[:-1] + bytes([content[-1] ^ 1])
    yield "a header of 4 GB", (2**32).to_bytes(8, "little") + content[8:]
    yield "another kind", other
    yield "an unknown kind", right._replace(kind="\x1b[2J" * 1000)
    yield "a fault of 10 MB", Fault("\x1b[2J" + "x" * 10_000_000)


@pytest.mark.parametrize("kind", ["join", "begin", "train", "evaluate"])
def test_a_wrong_answer_costs_its_site_alone(kind: str, town: Town, record_property: Any) -> None:
    right = town.answers[ATTACKER, kind]
    assert town.outcome(kind, right) == "accepted"
    other = town.answers[ATTACKER, "keep" if kind == "rows" else "begin" if kind != "begin" else "join"]
    attacks = [*wrong_about(right), *wrong_tensors(right), *odd_bytes(right, other)]
    counts = Counter[str]()
    for name, wrong in attacks:
        result = town.outcome(kind, wrong)
        # Text in the place of a text, and what was said before, are right answers.
        if result == "accepted" and name not in HARMLESS[kind]:
            assert _is_equivalent(right, wrong), f"{kind}, {name}: accepted"
            result = "accepted: a text or a number that is only shown"
        counts[result] += 1
    record_property("outcomes", dict(counts))
    print(kind, len(attacks), dict(counts))
    assert len(attacks) >= 10


def _is_equivalent(right: Message, wrong: Message) -> bool:
    """Whether two answers differ in nothing but versions of software, threads and what the site calls its numbers."""
    shown = ("versions", "threads", "seconds", "logged")
    parts = [{k: v for k, v in m.about.items() if k not in shown} for m in (right, wrong)]
    return parts[0] == parts[1] and right.tensors.keys() == wrong.tensors.keys()


def test_another_sites_name_is_refused(town: Town) -> None:
    right = town.answers[ATTACKER, "join"]
    assert town.outcome("join", right._replace(about=right.about | {"name": "south"})) == "refused with a line"


def test_an_answer_to_an_earlier_message_is_missing(town: Town) -> None:
    right = town.answers[ATTACKER, "train"]
    assert town.outcome("train", right._replace(about=right.about | {"round": 0})) == "missing answer"


def test_wrong_rows_are_missing_rows(town: Town) -> None:
    right = town.answers[ATTACKER, "rows"]
    most = town.answers[ATTACKER, "join"].about["scored"]

    def outcome(wrong: Any) -> Message | Fault:
        answer = unpacked(wrong if isinstance(wrong, bytes) else packed(wrong))
        return usable(town.asked[ATTACKER], answer, lambda _, a: _opened(town.run, a, most))

    assert isinstance(outcome(right), Message)
    beyond = {
        "label": right.tensors["label"] + 99,
        "split": right.tensors["split"] + 7,
        "sample": right.tensors["sample"] * 0,
        "p0": right.tensors["p0"] - 2,
        "patient": -2 - right.tensors["patient"],  # -1 is a patient that is not known
    }
    attacks = [*wrong_about(right), *wrong_tensors(right), *odd_bytes(right, town.answers[ATTACKER, "begin"])]
    attacks += [(f"{k}: beyond", right._replace(tensors=right.tensors | {k: v})) for k, v in beyond.items()]
    more = {k: torch.cat([v, v]) for k, v in right.tensors.items()}
    attacks.append(("rows twice", right._replace(tensors=more)))
    accepted = [name for name, wrong in attacks if isinstance(outcome(wrong), Message)]
    assert accepted == []
    assert len(attacks) > 90


def _opened(run: Run, answer: Message, most: int) -> None:
    opened_rows(answer, ATTACKER, run, (), most)
