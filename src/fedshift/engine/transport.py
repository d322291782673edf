"""Messages between a coordinator and sites, and the protocol of what carries them.

A `Coordinator` sends each site a message and gets one back; `Site.answer` makes the answer. A transport knows neither
algorithms nor rounds, so that one of them can be a loop in this process and another a network of hospitals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ..core.console import printable
from ..io import arrays

LARGEST = 1_000_000
"""Characters of the plain data of a message, as JSON."""


class Message(NamedTuple):
    """A question to a site, or its answer, which has the kind of the question.

    Attributes
    ----------
    kind : the task, a name in `site.TASKS`: join, begin, first_step, train, finish, evaluate or keep
    about : plain data that JSON can hold, except NaN and infinity, which travel as the floats of Python's JSON.
        `contents`, if it is there, has the `content_of` each tensor of the task by name: those that are not in
        `tensors` came with the message before
    tensors : tensors of any shapes on the CPU or on the device of this process, by name
    """

    kind: str
    about: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class Fault(NamedTuple):
    """What stands in place of the answer of a site that did not give one.

    Attributes
    ----------
    reason : why, in one line without the name of the site
    """

    reason: str

    @property
    def nbytes(self) -> int:
        """Bytes of tensors, of which a fault has none."""
        return 0


class Transport(Protocol):
    """What carries messages to sites and answers back.

    Attributes
    ----------
    names : names of all sites, in the order in which sums run: sorted
    """

    @property
    def names(self) -> Sequence[str]:
        """Names of all sites."""
        ...

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | Fault]]:
        """Send each named site its message, and yield name and answer of each, in the order of `names`.

        A site that raises UserError, or that cannot be reached, gives a Fault. The coordinator takes all answers before
        it asks again.
        """
        ...


def packed(message: Message | Fault) -> bytes:
    """Return the bytes of a message, or of the fault in its place: safetensors with a checksum."""
    if isinstance(message, Fault):
        return arrays.packed({}, {"fault": message.reason})
    return arrays.packed(message.tensors, {"kind": message.kind, "about": json.dumps(message.about)})


def unpacked(content: bytes) -> Message | Fault:
    """Return what `packed` was given, its tensors on the CPU and sorted by name; a Fault for other bytes.

    The reason of a fault is cut, and has no control characters.
    """
    try:
        values, about = arrays.unpacked(content, "the message")
        if "fault" in about:
            return fault(about["fault"])
        if len(about["about"]) > LARGEST:
            return Fault(f"what came says more than {LARGEST:,} characters")
        said = json.loads(about["about"])
        return Message(about["kind"], said, values) if isinstance(said, dict) else Fault("what came says no mapping")
    except Exception as error:  # bytes from outside may fail in any way: nested too deep, or larger than the memory
        return fault(f"what came is not a message: {error or type(error).__name__}")


def fault(reason: str) -> Fault:
    """Return a fault whose reason is one line of at most 500 characters, without control characters."""
    return Fault(printable(" ".join(reason[:2000].split()))[:500])


def content_of(tensor: Tensor) -> str:
    """Return the SHA-256, in hex digits, of a tensor's type, shape and bits."""
    whole = tensor.detach().cpu().contiguous()
    about = f"{whole.dtype} {tuple(whole.shape)} ".encode()
    return hashlib.sha256(about + whole.numpy().tobytes()).hexdigest()
