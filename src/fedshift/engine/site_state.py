"""The state of a site on its own disk: what it keeps after each round, and what it was told at the beginning.

The state after a round lies beside the one from which that round started. A task that comes twice, since its answer was
lost or the coordinator began anew, starts from the same state again: no control variate is advanced twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.errors import UserError
from ..io.arrays import read_tensors, write_tensors
from .client import ClientTensors
from .transport import Message, content_of

FACTS, KEPT, HELD = "facts", "kept", "held-"


@dataclass(frozen=True)
class SiteState:
    """Files of one site in one run.

    Attributes
    ----------
    folder : a folder for this run and this site alone
    site : name of the site
    digest : specification and code of the run
    """

    folder: Path
    site: str
    digest: str

    def write_facts(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Write what the coordinator said before the first round."""
        self._write(FACTS, tensors, json.dumps(facts))

    def forget(self) -> None:
        """Remove everything: the run begins anew."""
        for path in self.folder.glob("*.safetensors"):
            path.unlink()

    def facts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what the coordinator said before the first round. Raises UserError if it has said nothing yet."""
        tensors, text = self._read(FACTS, "the run has not begun here")
        return json.loads(text), tensors

    def write(self, number: int, tensors: ClientTensors, *, since: int) -> None:
        """Write the state after round `number`, which started from that after round `since`, and forget all others."""
        self._write(_round(number), _packed(tensors))
        for path in self.folder.glob("round-*.safetensors"):
            if path.name not in (self._file(_round(number)).name, self._file(_round(since)).name):
                path.unlink()

    def read(self, number: int) -> ClientTensors:
        """Return the state after round `number`; 0 is that before the first. Raises UserError if it is not kept."""
        tensors, _ = self._read(_round(number), f"the state after round {number} is not kept here")
        return _unpacked(tensors)

    def completed(self, message: Message) -> Message:
        """Return a message with all its tensors: those that came with it, and those that came with the one before.

        They are kept for the next message, and no others. Raises UserError if one did not come before.
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
        """Keep the state after round `number` as that of the selected round."""
        self._write(KEPT, _packed(self.read(number)))

    def kept(self) -> ClientTensors:
        """Return the state of the selected round. Raises UserError if none is kept."""
        return _unpacked(self._read(KEPT, "no round was selected here")[0])

    @property
    def has_kept(self) -> bool:
        """Whether the state of a selected round is kept."""
        return self._file(KEPT).exists()

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
