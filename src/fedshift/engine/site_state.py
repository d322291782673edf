"""The state of a site on its own disk: its tensors after each round, the coordinator's facts, and counts of messages.

The state after a round lies beside the one from which that round started. A task that comes twice, since its answer was
lost or the coordinator began anew, starts from the same state again: no control variate is advanced twice.

A site is its own authority. Its own study says how many rounds there are, and which kinds of messages each has. Rounds
only go up. The last one may be asked again, since an answer may have been lost. Each kind of message has a budget for
the whole run. The rows of single images are given once, for one network, and end the run at this site.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from torch import Tensor

from ..core.errors import UserError
from ..core.plugin import Frozen
from ..io.arrays import read_tensors, write_tensors
from ..io.text import read_json, write_json
from .messages import Message, MessageForms, content_of
from .round_state import ClientTensors

if TYPE_CHECKING:
    from ..algorithms import Algorithm, Training

FACTS, KEPT, HELD = "facts", "kept", "held-"


@dataclass(frozen=True)
class SiteState:
    """The files in which a site keeps its tensors between the messages of one run.

    Attributes
    ----------
    folder : a folder for this run and this site alone
    site : name of the site
    digest : digest of the run's specification and code
    """

    folder: Path
    site: str
    digest: str

    def write_facts(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Save the facts and tensors that the coordinator sent before the first round."""
        self._write(FACTS, tensors, json.dumps(facts))

    def forget(self) -> None:
        """Delete all saved tensors of the run, which begins anew."""
        for path in self.folder.glob("*.safetensors"):
            path.unlink()

    def facts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the facts and tensors that the coordinator sent before the first round.

        Raises UserError if it has sent none yet.
        """
        tensors, text = self._read(FACTS, "the run has not begun here")
        return json.loads(text), tensors

    def write(self, number: int, tensors: ClientTensors, *, since: int) -> None:
        """Save `tensors` as the state after round `number`, and delete all others but the state after round `since`."""
        self._write(_round(number), _packed(tensors))
        for path in self.folder.glob("round-*.safetensors"):
            if path.name not in (self._file(_round(number)).name, self._file(_round(since)).name):
                path.unlink()

    def read(self, number: int) -> ClientTensors:
        """Return the state after round `number`, 0 for before the first. Raises UserError if it is not kept."""
        tensors, _ = self._read(_round(number), f"the state after round {number} is not kept here")
        return _unpacked(tensors)

    def completed(self, message: Message) -> Message:
        """Return a message with all tensors that its `contents` name, also those that only the message before carried.

        Exactly these tensors are kept for the next message. Raises UserError if a tensor came with neither message.
        """
        contents: Mapping[str, str] = message.about.get("contents", {})
        if not contents:
            return message
        # A file is found by its own name, so that no text of a message becomes a path.
        held = {path.stem.removeprefix(HELD): path for path in self.folder.glob(f"{HELD}*.safetensors")}
        for content, tensor in ((content_of(tensor), tensor) for tensor in message.tensors.values()):
            if content not in held:
                self._write(HELD + content, {"tensor": tensor})
                held[content] = self._file(HELD + content)
        if lost := [name for name, content in contents.items() if content not in held]:
            raise UserError(self.folder, f"does not hold {', '.join(lost)}", "the coordinator sends it again")
        for content in held.keys() - {*contents.values()}:
            held[content].unlink()
        tensors = {name: self._read(HELD + content, "is lost")[0]["tensor"] for name, content in contents.items()}
        return message._replace(tensors=tensors)

    def keep(self, number: int) -> None:
        """Save the state after round `number` once more, as that of the selected round."""
        self._write(KEPT, _packed(self.read(number)))

    def kept(self, since: int) -> ClientTensors:
        """Return the state of the selected round or, if none was selected, that after round `since`."""
        if self._file(KEPT).exists():
            return _unpacked(self._read(KEPT, "is lost")[0])
        return self.read(since)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def _write(self, name: str, tensors: Mapping[str, Tensor], facts: str = "") -> None:
        write_tensors(self._file(name), dict(tensors), {"site": self.site, "digest": self.digest, "facts": facts})

    def _read(self, name: str, missing: str) -> tuple[dict[str, Tensor], str]:
        path = self._file(name)
        if not path.exists():
            raise UserError(path, missing, "start the run from its beginning, or bring the site's folder back")
        tensors, about = read_tensors(path)
        if (about.get("site"), about.get("digest")) != (self.site, self.digest):
            raise UserError(path, "belongs to another site or to another run", "give each run of a site its own folder")
        return tensors, about["facts"]


def _round(number: int) -> str:
    return f"round-{number}"


def _packed(tensors: ClientTensors) -> dict[str, Tensor]:
    return {"own": tensors.own, "counters": tensors.counters, **{f"state/{k}": v for k, v in tensors.state.items()}}


def _unpacked(tensors: Mapping[str, Tensor]) -> ClientTensors:
    state = {k.removeprefix("state/"): v for k, v in tensors.items() if k.startswith("state/")}
    return ClientTensors(own=tensors["own"], counters=tensors["counters"], state=state)


JOINT = 10_000
"""Largest number of messages of a joint step, if no rehearsal has counted them."""
AGAIN = 20
"""How many messages of each kind a site answers beyond those that the study needs, since answers may get lost."""


class Record(Frozen):
    """Count of the messages that a site has admitted in a run; it is stored as asked.json.

    Attributes
    ----------
    digest : digest of the run's specification and code
    round : the last round of which anything was asked
    asked : number of messages of each kind
    networks : for each round, the hash (`content_of`) of the shared tensors that were evaluated after it
    rows : hash of the shared tensors of the network whose predictions were given; empty before
    """

    digest: str
    round: int = 0
    asked: dict[str, int] = Field({})
    networks: dict[int, str] = Field({})
    rows: str = ""


@dataclass(frozen=True)
class Requests:
    """Limits what a site answers in one run: numbers of messages, order of rounds, predictions of one network.

    Attributes
    ----------
    folder : the site's folder for this run
    digest : digest of the run's specification and code
    training, algorithm : those of the run
    forms : what a rehearsal of the run has recorded, such as the number of messages of a joint step; may be None
    """

    folder: Path
    digest: str
    training: Training
    algorithm: Algorithm
    forms: MessageForms | None

    @property
    def budgets(self) -> dict[str, int]:
        """Largest number of messages of each kind that a site answers in the whole run; it answers no other kinds."""
        rounds = self.training.rounds
        often = {"join": 1, "begin": 1, "train": rounds, "evaluate": rounds, "keep": rounds, "rows": 1}
        if any(phase.finishes for phase in self.algorithm.phases()):
            often["finish"] = 1
        budgets = {kind: count + AGAIN for kind, count in often.items()}
        if any(self.algorithm.joint(number) for number in range(1, rounds + 1)):
            # A joint step begins anew for each site that is lost in it.
            joint = JOINT if self.forms is None else (self.forms.means + 2) * self.forms.clients
            budgets["first_step"] = (rounds + AGAIN) * joint
        return budgets

    def admit(self, message: Message) -> None:
        """Count a message, and save the count. Raises UserError for a message that this site need not answer."""
        record, kind = self._record(), message.kind
        number = self._number(message, record)
        where = f"message {kind}"
        if record.rows and kind not in ("rows", "join"):
            raise UserError(where, "comes after the rows of predictions, which end the run at this site", _ANEW)
        if number < record.round:
            problem = f"asks for round {number}, and this site is at round {record.round}"
            raise UserError(where, problem, _ANEW)
        asked = record.asked.get(kind, 0) + 1
        if asked > self.budgets.get(kind, 0):
            problem = f"is beyond the {self.budgets.get(kind, 0):,} messages of this kind that the study needs"
            raise UserError(where, problem, _ANEW)
        change = {"round": number, "asked": record.asked | {kind: asked}}
        if kind in ("evaluate", "rows"):
            content = message.about.get("contents", {}).get("received", "")
            if "received" in message.tensors:
                content = content_of(message.tensors["received"])
            if not content:
                raise UserError(where, "names no network: it has neither tensors nor their digest")
            if kind == "rows":
                self._require_network(record, content, number)
                change["rows"] = content
            else:
                change["networks"] = record.networks | {number: content}
        write_json(self._file, record.model_copy(update=change).model_dump())

    def _number(self, message: Message, record: Record) -> int:
        """Return the round that a message belongs to. Raises UserError for a round that the study does not have."""
        kind, about, rounds = message.kind, message.about, self.training.rounds
        if kind in ("join", "keep"):
            return record.round
        if kind == "begin":
            return 1
        number = int(about["round"]) - (kind == "finish")
        first = rounds if kind == "finish" or (kind == "rows" and not self.training.patience) else 1
        if not first <= number <= rounds:
            raise UserError(f"message {kind}", f"is for round {about['round']}, and the last of this study is {rounds}")
        if kind in ("train", "first_step", "finish") and about["since"] >= about["round"]:
            raise UserError(f"message {kind}", f"starts round {about['round']} with the state after {about['since']}")
        return number

    def _require_network(self, record: Record, content: str, number: int) -> None:
        """Raise UserError for predictions of a second network, or of one that no round has evaluated here.

        `content` is the hash of the network, and `number` the round of the message. A site without validation images,
        and one that has missed a round, cannot know the selected network, and admits any.
        """
        if record.rows and content != record.rows:
            raise UserError("message rows", "asks for a second network: rows of predictions are given once", _ANEW)
        if len(record.networks) >= number and content not in record.networks.values():
            raise UserError("message rows", "asks for a network that this site has evaluated in no round", _ANEW)

    def _record(self) -> Record:
        if self._file.exists():
            record = Record.model_validate(read_json(self._file))
            if record.digest == self.digest:
                return record
        return Record(digest=self.digest)

    @property
    def _file(self) -> Path:
        return self.folder / "asked.json"


_ANEW = "to begin the run anew, start this site with --restart"
