"""What a site has been asked in a run, on its own disk, and what it may still be asked.

A site is its own authority. Its own study says how many rounds there are, and which kinds of messages each has.
Rounds only go up. The last one may be asked again, since an answer may have been lost. Each kind of message has a
budget for the whole run. The rows of single images are given once, for one network, and end the run at this site.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from ..core.errors import UserError
from ..core.plugin import Frozen
from ..io.text import read_json, write_json
from .transport import Message, content_of

if TYPE_CHECKING:
    from ..algorithms import Algorithm, Training
    from .message_forms import MessageForms

JOINT = 10_000
"""The most messages of a joint step, where none were counted beforehand."""
AGAIN = 20
"""How often messages of one kind may be asked beyond those that the study needs: when an answer was lost."""


class Record(Frozen):
    """What a site has been asked so far.

    Attributes
    ----------
    digest : specification and code of the run
    round : the last round of which anything was asked
    asked : number of messages of each kind
    networks : what was evaluated after each round, as the `content_of` its shared tensors
    rows : the network whose rows were given, in the same form; nothing before
    """

    digest: str
    round: int = 0
    asked: dict[str, int] = Field({})
    networks: dict[int, str] = Field({})
    rows: str = ""


@dataclass(frozen=True)
class Requests:
    """The requests to one site in one run.

    Attributes
    ----------
    folder : the site's folder for this run
    digest : specification and code of the run
    training, algorithm : those of the run
    joint : the most messages of one joint step, with every beginning anew after a site was lost
    """

    folder: Path
    digest: str
    training: Training
    algorithm: Algorithm
    joint: int

    @classmethod
    def of(
        cls, folder: Path, digest: str, training: Training, algorithm: Algorithm, forms: MessageForms | None
    ) -> Requests:
        """Return the requests to a site whose joint steps have as many messages as `forms` say."""
        joint = JOINT if forms is None else (forms.means + 2) * forms.clients
        return cls(folder, digest, training, algorithm, joint)

    @property
    def budgets(self) -> dict[str, int]:
        """How many messages of each kind a site answers in the whole run; of all other kinds it answers none."""
        rounds = self.training.rounds
        often = {"join": 1, "begin": 1, "train": rounds, "evaluate": rounds, "keep": rounds, "rows": 1}
        if any(phase.finishes for phase in self.algorithm.phases()):
            often["finish"] = 1
        budgets = {kind: count + AGAIN for kind, count in often.items()}
        if any(self.algorithm.joint(number) for number in range(1, rounds + 1)):
            budgets["first_step"] = (rounds + AGAIN) * self.joint
        return budgets

    def admit(self, message: Message) -> None:
        """Count a message against its budget. Raises UserError for one that this site need not answer."""
        record, kind = self._record(), message.kind
        number = self._number(message, record)
        where = f"message {kind}"
        if record.rows and kind not in ("rows", "join"):
            raise UserError(where, "comes after the rows, which end the run at this site", _ANEW)
        if number < record.round:
            problem = f"asks for round {number}, and this site is at round {record.round}"
            raise UserError(where, problem, _ANEW)
        asked = record.asked.get(kind, 0) + 1
        if asked > self.budgets.get(kind, 0):
            problem = f"is beyond the {self.budgets.get(kind, 0):,} of this kind that the study needs"
            raise UserError(where, problem, _ANEW)
        change = {"round": number, "asked": record.asked | {kind: asked}}
        if kind in ("evaluate", "rows"):
            content = message.about.get("contents", {}).get("received", "")
            if "received" in message.tensors:
                content = content_of(message.tensors["received"])
            if not content:
                raise UserError(where, "has no network")
            if kind == "rows":
                self._require_network(record, content, number)
                change["rows"] = content
            else:
                change["networks"] = record.networks | {number: content}
        write_json(self._file, record.model_copy(update=change).model_dump())

    def _number(self, message: Message, record: Record) -> int:
        """Return the round that a message belongs to. Raises UserError for one that the study does not have."""
        kind, about, rounds = message.kind, message.about, self.training.rounds
        if kind in ("join", "keep"):
            return record.round
        if kind == "begin":
            return 1
        number = int(about["round"]) - (kind == "finish")
        first = rounds if kind == "finish" or (kind == "rows" and not self.training.patience) else 1
        if not first <= number <= rounds:
            raise UserError(f"message {kind}", f"is for round {about['round']}, and this study has {rounds}")
        if kind in ("train", "first_step", "finish") and about["since"] >= about["round"]:
            raise UserError(f"message {kind}", f"starts round {about['round']} after round {about['since']}")
        return number

    def _require_network(self, record: Record, content: str, number: int) -> None:
        """Raise UserError for rows of a second network, or of one that this site, which saw all rounds, was not sent.

        A site without validation images, and one that has missed a round, cannot know the selected network.
        """
        if record.rows and content != record.rows:
            raise UserError("message rows", "asks for another network: rows are given once", _ANEW)
        if len(record.networks) >= number and content not in record.networks.values():
            raise UserError("message rows", "asks for a network that no round of this site has had")

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
